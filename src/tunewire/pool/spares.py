"""Spares: processes that are up before they are needed, so that a timeout or a crash costs milliseconds.

A spare has its interpreter and the preloaded modules up. Where no device is pinned, the initializer has run in it too;
where one is, it has not, since it may make a device context, and a spare holds none. Spares are kept for each kind of
process apart (workers on different devices differ in their environment): `count` of each.

A spare that cannot start, or dies while it waits, is replaced; after `_MOST_FAILURES` in a row only when a worker's own
start has shown that it can be: a broken environment gives its error to calls, and no loop runs for it.

Draining is by generation: spares that were begun before it are ended, in whatever stage they are, and those that calls
need meanwhile are not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from tunewire.endpoints.process import ChildProcess
from tunewire.workers.limits import Limits
from tunewire.workers.start import StartedProcess, WorkerSpec, bury, make_spare, spawn

log = logging.getLogger("tunewire")

_MOST_FAILURES = 3


class Spares:
    """The spares of one kind of worker."""

    def __init__(
        self,
        spec: WorkerSpec,
        count: int,
        limits: Limits,
        start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        changed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._count = count
        self._limits = limits
        self._start = start
        self._changed = changed
        self._ready: deque[tuple[StartedProcess, asyncio.Future[bool]]] = deque()
        self._generation = 0
        self._lives: dict[anyio.CancelScope, int] = {}
        self._failures = 0
        self._closed = False

    @property
    def ready(self) -> int:
        """How many could be taken now."""
        return len(self._ready)

    @property
    def alive(self) -> int:
        """How many processes there are, those that start or end included."""
        return len(self._lives)

    @property
    def outdated(self) -> int:
        """How many of them are to end since the last `end`."""
        return sum(generation < self._generation for generation in self._lives.values())

    def fill(self) -> None:
        """Start what is missing."""
        current = len(self._lives) - self.outdated
        while not self._closed and current < self._count and self._failures < _MOST_FAILURES:
            current += 1
            life = anyio.CancelScope()
            self._lives[life] = self._generation
            self._start(lambda life=life: self._live(life))  # type: ignore[misc]

    def take(self) -> StartedProcess | None:
        """One that is ready, if any; another is started in its place."""
        taken = None
        while self._ready and taken is None:
            started, fate = self._ready.popleft()
            if not fate.done():
                fate.set_result(True)
                taken = started
        self.fill()
        return taken

    def a_worker_started(self) -> None:
        """A process of this kind can start: spares may be tried again."""
        if self._failures:
            self._failures = 0
            self.fill()

    def end(self) -> None:
        """End all that there are now, those that start included. `fill` starts new ones.

        One that starts is not waited for: its initializer, or a module that is preloaded, may hang without a limit.
        """
        self._generation += 1
        for life in self._lives:
            life.cancel()
        self._ready.clear()

    def close(self) -> None:
        """End all, and start no more."""
        self._closed = True
        self.end()

    async def _live(self, life: anyio.CancelScope) -> None:
        """The life of one spare, until it is taken or gone."""
        process: ChildProcess | None = None
        fate: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        try:
            with life:
                process = await spawn(self.spec)
                started = await make_spare(process, self.spec, self._limits)
                await self._offer(started, fate)
        except Exception as error:  # noqa: BLE001 — an initializer may raise anything; calls will meet it themselves
            self._failures += 1
            log.warning("a spare%s could not start: %s", self.spec.on_device, error)
        finally:
            # What was taken is its worker's, even where this task is cancelled before it could see it.
            if not (fate.done() and fate.result()):
                with anyio.CancelScope(shield=True):
                    await self._end(process)
            was_wanted = self._lives.pop(life) == self._generation
            self._changed()
        if was_wanted:
            self.fill()

    async def _offer(self, started: StartedProcess, fate: asyncio.Future[bool]) -> None:
        """Until it is taken, is to end, or has ended by itself."""
        self._ready.append((started, fate))
        self._changed()
        ended = asyncio.ensure_future(started.process.wait())
        try:
            news: list[asyncio.Future[Any]] = [fate, ended]
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            if not fate.done():
                fate.set_result(False)
        if fate.result():
            self._failures = 0
        else:
            self._failures += 1  # it died while it waited

    async def _end(self, process: ChildProcess | None) -> None:
        self._ready = deque(entry for entry in self._ready if entry[0].process is not process)
        if process is not None:
            if not await bury(process, self.spec.ladder):
                log.error("a spare%s: process %d cannot be reaped", self.spec.on_device, process.pid)
                await process.wait()
            process.close()
