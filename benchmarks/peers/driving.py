"""A driver as the bench sees it: a process that answers each command with one line, within a bound or not at all."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from peers.environments import NotToBeHad
from peers.roster import Entry

DRIVERS = Path(__file__).parent / "drivers"
END_BOUND = 5.0
"""Seconds for a driver to end by itself once it is told that there are no more commands."""


class TunewireFailed(Exception):
    """The side that every peer is compared with: without it there is nothing to show."""


class Driver:
    """Runs from the start of its block until the end of it, and so do the processes that it started."""

    def __init__(
        self,
        entry: Entry,
        python: Path,
        cores: Sequence[int],
        bound: float,
        failure: type[Exception] = NotToBeHad,
    ) -> None:
        self.entry = entry
        self._failure = failure
        self._python = python
        self._cores = cores
        self.bound = bound
        self.version = ""
        self.offers: frozenset[str] = frozenset()

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            # -P: the drivers are found by PYTHONPATH, which the peer's workers have too.
            [
                str(self._python),
                "-P",
                str(DRIVERS / "drive.py"),
                self.entry.driver,
                self.entry.loop,
                *map(str, self._cores),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(DRIVERS)},
            start_new_session=True,
        )
        self._unread = b""
        try:
            hello = self.ask("hello")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.version, self.offers = hello["version"], frozenset(hello["offers"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._end()
        self._errors.close()

    def _end(self) -> None:
        """It has been told to, or has closed its side."""
        try:
            self._process.wait(END_BOUND)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """The answer; the driver's kind of failure if there is none, or the peer has failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise self._failure(self._last_words()) from None
        answer: dict[str, Any] = json.loads(self._line(do))
        if "error" in answer:
            raise self._failure(answer["error"].splitlines()[0])
        return answer

    def _line(self, do: str) -> bytes:
        assert self._process.stdout is not None
        end = time.monotonic() + self.bound
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise self._failure(f"no answer to {do!r} within {self.bound:g} s")
            chunk = self._process.stdout.read(65536)
            if not chunk:
                raise self._failure(self._last_words())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._end()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1] if said else f"it ended with exit code {self._process.returncode}"
