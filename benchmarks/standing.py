"""What this process holds at one moment, and what of it is more than it was: the measure of "nothing is left".

Processes are counted twice over: the descendants that can be seen, and every process anywhere with this run's mark in its
environment, since a daemon that forked twice is nobody's visible descendant. Shared memory is what is new in /dev/shm and
held by no running process but this one (another program's segment is none of ours), and the mappings of memory files here;
their descriptors count as descriptors.

The end of a process or of a thread is news that travels, so `settled` looks again until nothing is left, for a bounded time.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "TUNEWIRE_SOAK"
_LOOK_AGAIN = 0.02
_SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class Standing:
    """Processes and threads by number, descriptors by what they lead to, and memory."""

    processes: frozenset[int]
    threads: frozenset[int]
    descriptors: Counter[str]
    shared_memory: frozenset[str]
    memory_files: int

    @classmethod
    def now(cls) -> Standing:
        """As of now."""
        return cls(
            processes=frozenset(_processes()),
            threads=frozenset(int(task.name) for task in Path("/proc/self/task").iterdir()),
            descriptors=Counter(_descriptors()),
            shared_memory=frozenset(path.name for path in _SHARED.glob("*")),
            memory_files=Path("/proc/self/maps").read_text().count("/memfd:"),
        )

    def more_than(self, before: Standing) -> dict[str, list[str]]:
        """For each kind of thing, what is here and was not before."""
        segments = self.shared_memory - before.shared_memory
        return {
            "processes": sorted(map(_describe, self.processes - before.processes)),
            "threads": sorted(map(str, self.threads - before.threads)),
            "descriptors": sorted((self.descriptors - before.descriptors).elements()),
            "shared memory": sorted(segments - _of_others(segments))
            + ["a mapped memory file"] * (self.memory_files - before.memory_files),
        }


def left_since(before: Standing, bound: float) -> dict[str, list[str]]:
    """What there is more than before, when nothing is or when `bound` seconds are over. Blocks."""
    end = time.monotonic() + bound
    while True:
        more = Standing.now().more_than(before)
        if not any(more.values()) or time.monotonic() > end:
            return more
        time.sleep(_LOOK_AGAIN)


def resident_bytes() -> int:
    """This process's resident memory, after a collection, and after the C library has given back what it keeps unused:
    what is left is held by something."""
    gc.collect()
    with suppress(AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def _processes() -> Iterator[int]:
    yield from (child.pid for child in psutil.Process().children(recursive=True))
    mark = os.environ.get(MARK)
    for process in psutil.process_iter():
        # Another user's, a zombie (a descendant, if ours), or gone since.
        with suppress(psutil.Error, OSError):
            if mark is not None and process.pid != os.getpid() and process.environ().get(MARK) == mark:
                yield process.pid


def _descriptors() -> Iterator[str]:
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that listed the folder
            yield re.sub(r"\d+", "N", str(descriptor.readlink()))


def _of_others(segments: frozenset[str]) -> frozenset[str]:
    """Those of the segments that a running process other than this one has mapped."""
    held: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*") if segments else ():
        if folder.name != str(os.getpid()):
            with suppress(OSError):
                maps = (folder / "maps").read_text()
                held.update(name for name in segments if f"{_SHARED}/{name}\n" in maps)
    return frozenset(held)


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{pid} ({process.status()}: {' '.join(process.cmdline())[:80]})"
    except psutil.Error:
        return f"{pid} (gone just now)"
