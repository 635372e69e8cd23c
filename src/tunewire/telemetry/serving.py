"""The process that samples: its providers, its rows, and the files that it writes.

Readings block: a driver may take milliseconds, or hang for good. So each provider is read in a thread, and no reading is
waited for longer than a bound; then its row goes without it, and so do those after it until it is back. What the service
answers, and what it writes when its parent dies, needs no driver.

Rows, in order: a change of scopes is taken before what its caller asks next is answered, and a snapshot waits for the
sample that is being read and for those that are due for scopes which are closed already. So a snapshot after a scope has
that scope's rows, all of them, and a row is in no two files after a reset.

At each await of a snapshot, cancelled there: the file is written and the rows are forgotten all the same, as one act that
nobody can cut in two. If this process ends meanwhile, it waits for that act, and then writes what is left.

How it ends: by `finish`, when its parent closes it; when the parent is killed, or forgets it, by leaving the block, which
has half a second. Either way the rows that no snapshot took go to one file, at the path that was given. If that cannot be
written, they go to a file in the folder for temporary ones, and whoever hears it is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tunewire.errors import encodable
from tunewire.telemetry.definition import TelemetryOptions, TelemetryService
from tunewire.telemetry.model import DeviceReadings, HostReadings, Row, ScopeChanges, Snapshot
from tunewire.telemetry.providers import Closing, HostProvider, NvmlProvider, Provider, Unavailable
from tunewire.telemetry.sampling import Sampling
from tunewire.telemetry.store import Store, line_of, timestamped_name, write_lines
from tunewire.wire.exceptions import undescribed

P = TypeVar("P", bound=Closing)
T = TypeVar("T")

logger = logging.getLogger("telemetry")

#: How long a row waits for a provider; and at the beginning, since a driver that nobody uses has to come up.
READ_LIMIT = 1.0
FIRST_READ_LIMIT = 5.0
#: Rows that a reader of `rows` may be behind; of more it misses the oldest, which their numbers show.
MAX_BEHIND = 1024
MAX_NOTES = 100


class Notes:
    """What could not be read: each is logged once, and kept. From any thread."""

    def __init__(self) -> None:
        self.texts: dict[str, None] = {}

    def __call__(self, level: int, text: str) -> None:
        text = encodable(text)  # a driver, or a provider, may say anything
        if text not in self.texts and len(self.texts) < MAX_NOTES:
            self.texts[text] = None
            logger.log(level, "%s", text)


class Source(Generic[P]):
    """One provider, which is made and read in a thread."""

    def __init__(self, name: str, make: Callable[[], P], notes: Notes) -> None:
        self.name = name
        self._make = make
        self._notes = notes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"telemetry {name}")
        self._provider: P | None = None
        self._reading: asyncio.Future[Any] | None = None
        self._available = True

    async def read(self, read: Callable[[P], Any], limit: float) -> Any:
        """What `read` makes of the provider; None where that fails or takes too long."""
        if not self._available or (self._reading is not None and not self._reading.done()):
            return None
        self._reading = asyncio.get_running_loop().run_in_executor(self._thread, self._attempt, read)
        await asyncio.wait([self._reading], timeout=limit)
        if self._reading.done():
            return self._reading.result()
        self._notes(
            logging.WARNING, f"{self.name} took longer than {limit:g} s, and is left out until it answers"
        )
        return None

    def _attempt(self, read: Callable[[P], Any]) -> Any:
        """In its thread. Nothing is raised from here: of what a provider may raise, some would end the sampling
        (SystemExit, CancelledError), and some no future can hold (StopIteration)."""
        try:
            if self._provider is None:
                self._provider = self._make()
            return read(self._provider)
        except Unavailable as error:
            self._available = False
            self._notes(logging.INFO, str(error))
        except BaseException as error:  # noqa: BLE001 — a provider may raise anything; the others are read all the same
            self._notes(logging.WARNING, f"{self.name}: {type(error).__name__}: {undescribed(error).message}")
        return None

    async def close(self, limit: float) -> None:
        """Let go of the provider, if it lets itself be."""
        if self._provider is not None and (self._reading is None or self._reading.done()):
            await self.read(_close, limit)
        self._thread.shutdown(wait=False, cancel_futures=True)


def _close(provider: Closing) -> None:
    provider.close()


class Sources:
    """All that is read for a row."""

    def __init__(self, providers: tuple[str, ...], notes: Notes) -> None:
        self._host = Source("the host", HostProvider, notes)
        self._devices = Source("NVML", partial(NvmlProvider.here, os.environ, notes), notes)
        self._more: list[Source[Provider]] = [Source(name, partial(_made, name), notes) for name in providers]

    async def read(
        self, *, follows: bool, limit: float = READ_LIMIT
    ) -> tuple[HostReadings | None, tuple[DeviceReadings, ...], dict[str, Mapping[str, float | None]]]:
        """The host's readings, the devices', and those of a user's providers by name."""
        host, devices, *more = await asyncio.gather(
            self._host.read(lambda provider: provider.read(follows=follows), limit),
            self._devices.read(lambda provider: provider.read(), limit),
            *(source.read(_numbers, limit) for source in self._more),
        )
        named = zip(self._more, more, strict=True)
        return host, devices or (), {source.name: read for source, read in named if read is not None}

    async def close(self, limit: float) -> None:
        """Let go of them."""
        closing = [self._host.close(limit), self._devices.close(limit)]
        await asyncio.gather(*closing, *(source.close(limit) for source in self._more))


def _made(name: str) -> Provider:
    module, _, cls = name.partition(":")
    provider: Provider = getattr(importlib.import_module(module), cls)()
    return provider


def _numbers(provider: Provider) -> dict[str, float | None]:
    """What it reads, as it can be sent and written."""
    return {encodable(str(name)): _finite(value) for name, value in provider.read().items()}


def _finite(value: float | None) -> float | None:
    """JSON has neither infinities nor what is no number."""
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None


class Reader:
    """One who reads rows as they come."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=MAX_BEHIND)
        self._news = asyncio.Event()
        self._over = False

    def put(self, row: Row) -> None:
        """A row has come."""
        self._rows.append(row)
        self._news.set()

    def finish(self) -> None:
        """No more will come."""
        self._over = True
        self._news.set()

    async def rows(self) -> AsyncIterator[Row]:
        """Until the end."""
        while self._rows or not self._over:
            if self._rows:
                yield self._rows.popleft()
            else:
                self._news.clear()
                await self._news.wait()


class TelemetryHere(TelemetryService):
    """The implementation."""

    def __init__(self, options: TelemetryOptions) -> None:
        self._path = options.path or str(Path(options.folder, timestamped_name()))
        self._notes = Notes()
        self._sources = Sources(options.providers, self._notes)
        self._sampling = Sampling(options.interval)
        self._store = Store(options.max_bytes)
        self._readers: set[Reader] = set()
        self._number = 0
        #: Set when something has changed that the sampler, or who waits for it, may wait for.
        self._changed = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._caught_up.set()
        self._writing = asyncio.Lock()
        self._sampler: asyncio.Task[None] | None = None
        self._acts: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        # Opens the drivers, which may take long once, and no row is to wait for that.
        await self._sources.read(follows=False, limit=FIRST_READ_LIMIT)
        self._start = time.monotonic()
        self._sampler = asyncio.create_task(self._sample(), name="telemetry sampler")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop_sampling()
        if self._acts:
            await asyncio.wait(self._acts)
        if len(self._store):
            self._write_at_the_end()
        await self._sources.close(READ_LIMIT)

    # Sampling.

    async def _sample(self) -> None:
        try:
            while True:
                due = self._sampling.due
                now = time.monotonic()
                if due is not None and due <= now:
                    await self._take(now)
                    continue
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else due - now):
                        await self._changed.wait()
        finally:
            self._caught_up.set()  # nobody is to wait for one who has gone

    async def _take(self, now: float) -> None:
        self._caught_up.clear()
        follows = self._sampling.follows(now)
        scopes = self._sampling.take(now)
        unix_time = time.time()
        host, devices, more = await self._sources.read(follows=follows)
        row = Row(
            number=self._number,
            seconds=now - self._start,
            unix_time=unix_time,
            scopes=scopes,
            host=host,
            devices=devices,
            more=more,
        )
        self._number += 1
        self._hold(row)
        if not self._sampling.is_behind:
            self._caught_up.set()

    def _hold(self, row: Row) -> None:
        dropped = self._store.dropped
        self._store.add(line_of(row))
        if self._store.dropped and not dropped:
            self._notes(logging.WARNING, "there is no room for more rows: the oldest are dropped from now on")
        for reader in self._readers:
            reader.put(row)

    async def _until_caught_up(self) -> None:
        """Until each scope of which its caller has told has its rows so far."""
        await self._caught_up.wait()
        assert self._sampler is not None
        if self._sampler.done() and not self._sampler.cancelled():
            self._sampler.result()

    def _stop_sampling(self) -> None:
        if self._sampler is not None:
            self._sampler.cancel()
        for reader in self._readers:
            reader.finish()

    # What its caller asks.

    async def change(self, changes: ScopeChanges) -> None:
        """Scopes were opened and closed."""
        self._sampling.change(changes, time.monotonic())
        if self._sampling.is_behind:
            self._caught_up.clear()
        self._changed.set()

    async def rows(self) -> AsyncIterator[Row]:
        """Each row from now on."""
        reader = Reader()
        self._readers.add(reader)
        try:
            async for row in reader.rows():
                yield row
        finally:
            self._readers.discard(reader)

    async def held(self) -> AsyncIterator[Row]:
        """The rows that are held."""
        await self._until_caught_up()
        for row in self._store.rows():
            yield row

    async def notes(self) -> tuple[str, ...]:
        """What could not be read, and why."""
        return tuple(self._notes.texts)

    async def snapshot(self, path: str, reset: bool) -> Snapshot:
        """Write the rows that are held, and with `reset` hold them no more."""
        if Path(path).resolve() == Path(self._path).resolve():  # noqa: ASYNC240 — before anything is written
            raise ValueError(f"{path!r} is where the rows go at the end, and would be replaced then")
        await self._until_caught_up()
        return await self._whole(self._written(path, reset=reset))

    async def finish(self) -> Snapshot | None:
        """Sample no more, end the streams, and write what is held to where it goes at the end, if anything is."""
        await self._until_caught_up()
        self._stop_sampling()
        if not len(self._store) and not self._acts:
            return None
        return await self._whole(self._written_at_the_end())

    # Writing.

    async def _whole(self, act: Coroutine[Any, Any, T]) -> T:
        """What an act comes to, which goes on to its end though nobody waits for it any more."""
        task = asyncio.ensure_future(act)
        self._acts.add(task)
        task.add_done_callback(self._acts.discard)
        return await asyncio.shield(task)

    async def _written(self, path: str, *, reset: bool) -> Snapshot:
        async with self._writing:
            lines, end = self._store.held()
            await asyncio.to_thread(write_lines, path, lines)
            if reset:
                self._store.forget(end)
        return self._snapshot(path, len(lines), reset=reset)

    async def _written_at_the_end(self) -> Snapshot | None:
        async with self._writing:
            if not len(self._store):
                return None
            return self._write_at_the_end()

    def _write_at_the_end(self) -> Snapshot:
        """On this thread: there is nothing else to do now."""
        lines, end = self._store.held()
        try:
            write_lines(self._path, lines)
        except OSError as error:
            refuge = str(Path(tempfile.gettempdir(), timestamped_name()))
            write_lines(refuge, lines)
            self._store.forget(end)
            error.add_note(f"the {len(lines)} rows of telemetry are in {refuge}")
            raise
        self._store.forget(end)
        return self._snapshot(self._path, len(lines), reset=True)

    def _snapshot(self, path: str, rows: int, *, reset: bool) -> Snapshot:
        return Snapshot(
            path=path,
            rows=rows,
            reset=reset,
            dropped=self._store.dropped,
            notes=tuple(self._notes.texts),
        )
