"""The side that is sampled: scopes, and what was read while they were open.

A scope must cost its caller next to nothing and never hurt it. Opening and closing one is an entry in a table
(`OpenScopes`) and, where none is under way, a task that tells the service of all changes since the last time; nobody waits
for it. What asks for rows waits until everything that was opened and closed before has been told.

If the service's process ends, or does not answer in time, scopes open and close as before, a warning says so once, and
whatever asks for rows raises. The rows that it held are lost then; the program that is sampled is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

from tunewire.errors import ServiceClosed, TunewireError, encodable
from tunewire.services import ServiceConnection, connect
from tunewire.telemetry.definition import IMPLEMENTATION, TelemetryOptions, TelemetryService
from tunewire.telemetry.model import Row, Scope, Snapshot
from tunewire.telemetry.sampling import OpenScopes
from tunewire.workers.limits import Limits

P = ParamSpec("P")
T = TypeVar("T")

#: Says whether to sample, where the program does not.
ENABLED = "TUNEWIRE_TELEMETRY"
#: Where the rows go that are held at the end, where the program does not say.
PATH = "TUNEWIRE_TELEMETRY_PATH"
_SAID: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("", "0", "false", "no", "off"), False),
}

logger = logging.getLogger("tunewire.telemetry")


class OpenScope:
    """A scope as a block: it is open until the block is left, in whatever way. Made by `Telemetry.scope`, for one block."""

    def __init__(self, telemetry: Telemetry, name: str, labels: Mapping[str, str]) -> None:
        self._telemetry = telemetry
        self._name = name
        self._labels = labels
        self._outer: OpenScope | None = None
        self._scope: Scope | None = None

    def __enter__(self) -> None:
        if self._scope is not None:
            raise RuntimeError(f"scope {self._name!r} was opened before: each block has one of its own")
        self._outer = _innermost.get()
        around = self._around()
        path = self._name if around is None else f"{around.path}/{self._name}"
        self._scope = Scope(path, {**({} if around is None else around.labels), **self._labels})
        _innermost.set(self)
        self._telemetry._open_scope(self._scope)

    def _around(self) -> Scope | None:
        """The scope of the same telemetry that this one is in."""
        outer = self._outer
        while outer is not None and outer._telemetry is not self._telemetry:
            outer = outer._outer
        return None if outer is None else outer._scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._scope is None:
            raise RuntimeError(f"scope {self._name!r} is closed, and it is not open")
        _innermost.set(self._outer)
        self._telemetry._close_scope(self._scope)


#: The scope that this task, or thread, is in.
_innermost: ContextVar[OpenScope | None] = ContextVar("tunewire_telemetry_scope", default=None)


class Telemetry:
    """What the host and its GPUs do while a piece of a program runs. Nothing is sampled while no scope is open.

    A process of its own samples each `interval` seconds, and holds the rows in at most `max_bytes`; of more, the oldest
    are dropped, and counted. What no snapshot took goes to one file at the end: when this is closed, and when this process
    is killed. The file is `path` (os.devnull for none), else what TUNEWIRE_TELEMETRY_PATH says, else one in the working
    directory whose name has the time. It is replaced if it is there.

    The host is read by psutil; NVIDIA's GPUs by NVML, where there is a driver and nvidia-ml-py, as far as
    CUDA_VISIBLE_DEVICES shows them. `providers` are one's own, each "module:Class": made without arguments in the
    process that samples, with `read()`, which gives numbers by name, and `close()`. `env` is laid over this process's
    environment for it. What the service is asked is answered within `timeout` seconds, or raises CallTimeout.

    With `enabled=False`, or where TUNEWIRE_TELEMETRY says 0, no or off and `enabled` says nothing, no process is started:
    scopes do nothing, there are no rows, and a snapshot is a warning.

    It may be opened again after it was closed, and belongs to the event loop that it is open in. Scopes may be opened
    from any thread, also while it is not open.

    >>> import asyncio
    >>> async def main():
    ...     async with Telemetry(interval=0.05, path=os.devnull) as telemetry:
    ...         with telemetry.scope("load"):
    ...             async for row in telemetry.rows():
    ...                 break
    ...     return row.scope, row.host.memory_used_bytes > 0
    >>> asyncio.run(main())
    ('load', True)
    """

    def __init__(
        self,
        *,
        interval: float = 0.1,
        path: str | os.PathLike[str] | None = None,
        enabled: bool | None = None,
        providers: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
        max_bytes: int = 64 << 20,
        timeout: float = 10.0,
    ) -> None:
        if not (interval > 0 and math.isfinite(interval)):
            raise ValueError(f"the interval is a number of seconds more than 0, not {interval!r}")
        if max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {max_bytes!r}")
        for provider in providers:
            if not all(provider.partition(":")):
                raise ValueError(f"a provider is 'module:Class', not {provider!r}")
        self._enabled = _said_by_environment() if enabled is None else enabled
        self._interval = float(interval)
        self._path = path
        self._providers = tuple(providers)
        self._env = env
        self._max_bytes = max_bytes
        self._limits = Limits(run=timeout)
        self._scopes = OpenScopes()
        self._lock = threading.Lock()
        self._session: _Session | None = None

    # Its life.

    async def open(self) -> Self:
        """Start the process that samples; nothing where it is open, or not enabled. Raises what opening a service does."""
        if not self.enabled:
            return self
        if self._session is None or self._session.is_over:
            self._session = _Session(self._connection(), self._scopes, self._lock)
        session = self._session
        try:
            await session.opened()
        except BaseException:
            if self._session is session:
                self._session = None
            raise
        return self

    def _connection(self) -> ServiceConnection[TelemetryService]:
        path = os.environ.get(PATH) or None if self._path is None else os.fspath(self._path)
        options = TelemetryOptions(
            interval=self._interval,
            path=None if path is None else str(Path(path).absolute()),
            folder=str(Path.cwd()),
            max_bytes=self._max_bytes,
            providers=self._providers,
        )
        return connect(
            TelemetryService,
            implementation=IMPLEMENTATION,
            args=(options,),
            env=self._env,
            limits=self._limits,
        )

    async def aclose(self) -> Snapshot | None:
        """End it. The rows that are held are written; what was written, or None if there were none.

        Safe when it is not open. Cancelling does not stop it. Raises OSError if the file cannot be written (a note says
        where the rows are instead), and ServiceClosed, with what became of it, if the process has ended before.
        """
        session, self._session = self._session, None
        return None if session is None or session.is_over else await session.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except (TunewireError, OSError) as late:
            if error is None:
                raise
            logger.warning("closing telemetry failed: %s", _in_words(late))  # the block has an error already

    @property
    def enabled(self) -> bool:
        """Whether it does anything at all."""
        return self._enabled

    @property
    def is_open(self) -> bool:
        """Whether it samples, while a scope is open."""
        return self._session is not None and self._session.is_open

    @property
    def pid(self) -> int | None:
        """The process that samples; None where there is none."""
        return None if self._session is None else self._session.pid

    # What is sampled.

    def scope(self, name: str, **labels: str) -> OpenScope:
        """A block to be sampled, `with telemetry.scope("forward", backend="triton"):`. Within another one, its path is
        "outer/forward", and it has the outer one's labels too. ValueError without a name."""
        if not name:
            raise ValueError("a scope has a name")
        for said in (name, *labels.values()):
            if not isinstance(said, str):
                raise TypeError(f"a scope's name and labels are text, not {said!r}")
        return OpenScope(self, encodable(name), {key: encodable(label) for key, label in labels.items()})

    @overload
    def annotate(self, function: Callable[P, T], /) -> Callable[P, T]: ...

    @overload
    def annotate(
        self, name: str | None = None, /, **labels: str
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...

    def annotate(self, function: Any = None, /, **labels: str) -> Any:
        """A decorator: each run of the function, async or not, is in a scope of its name, or of the one that is given.

        >>> telemetry = Telemetry(enabled=False)
        >>> @telemetry.annotate
        ... def twice(x):
        ...     return 2 * x
        >>> @telemetry.annotate("search", strategy="random")
        ... async def find(): ...
        >>> twice(21)
        42
        """
        if callable(function):
            return self._annotated(function, function.__name__, {})
        return lambda inner: self._annotated(inner, inner.__name__ if function is None else function, labels)

    def _annotated(self, function: Callable[..., Any], name: str, labels: Mapping[str, str]) -> Any:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator, which runs when it is read: open a scope in it")
        self.scope(name, **labels)  # what is wrong with it is said now
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def in_scope(*args: Any, **kwargs: Any) -> Any:
                with self.scope(name, **labels):
                    return await function(*args, **kwargs)

            return in_scope

        @functools.wraps(function)
        def in_scope_here(*args: Any, **kwargs: Any) -> Any:
            with self.scope(name, **labels):
                return function(*args, **kwargs)

        return in_scope_here

    def _open_scope(self, scope: Scope) -> None:
        if not self.enabled:
            return
        with self._lock:
            self._scopes.open(scope)
        if self._session is not None:
            self._session.tell_soon()

    def _close_scope(self, scope: Scope) -> None:
        if not self.enabled:
            return
        with self._lock:
            self._scopes.close(scope)
        if self._session is not None:
            self._session.tell_soon()

    # What was read.

    def rows(self) -> AsyncIterator[Row]:
        """Each row that is sampled from the moment on in which the first is asked for, until telemetry is closed.

        A reader that is more than a thousand rows behind misses the oldest of them, which `Row.number` shows. Raises
        ServiceCrashed, or ServiceClosed later on, if the process has ended.
        """
        return self._open_session.rows() if self.enabled else _no_rows()

    async def rows_so_far(self) -> list[Row]:
        """The rows that are held; they still are afterwards."""
        return await self._open_session.held() if self.enabled else []

    async def snapshot(self, path: str | os.PathLike[str], *, reset: bool = True) -> Snapshot | None:
        """Write the rows that are held to a file, in place of what is there, while sampling goes on. With `reset` they
        are held no more: no later file has them. None, and a warning, where telemetry is not enabled.

        If this is cancelled, the file is written all the same, unless that has not begun. Raises OSError, and holds the
        rows as before, if it cannot be written; ValueError for the path where the rows go at the end; ServiceClosed, which
        is a RuntimeError, if telemetry is not open.
        """
        if not self.enabled:
            logger.warning("no snapshot is written to %s: telemetry is not enabled", os.fspath(path))
            return None
        absolute = str(Path(path).absolute())  # noqa: ASYNC240 — it reads no disk
        return await self._open_session.snapshot(absolute, reset=reset)

    async def notes(self) -> tuple[str, ...]:
        """What could not be read, and why: that there is no NVIDIA driver, say. It is logged too, as the service's."""
        return await self._open_session.notes() if self.enabled else ()

    @property
    def _open_session(self) -> _Session:
        if self._session is None:
            raise ServiceClosed(service=TelemetryService.__name__, reason="telemetry has not been opened")
        return self._session


class _Session:
    """One process, from its opening to its closing."""

    def __init__(
        self, connection: ServiceConnection[TelemetryService], scopes: OpenScopes, lock: threading.Lock
    ) -> None:
        self._connection = connection
        self._scopes = scopes
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._telling: asyncio.Task[None] | None = None
        #: Whether a thread has asked the loop's one to tell, which has not come to it yet.
        self._woken = False
        self._lost = False
        self._closing: asyncio.Task[Snapshot | None] | None = None
        self._opening = asyncio.ensure_future(self._open())

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    @property
    def pid(self) -> int | None:
        return self._connection.pid

    @property
    def is_over(self) -> bool:
        """Whether its loop has ended, and it with that."""
        return self._loop.is_closed()

    async def _open(self) -> TelemetryService:
        service = await self._connection.open()
        with self._lock:
            self._scopes.tell_again()
        return service

    async def opened(self) -> None:
        """Until it is open. Cancelling ends it."""
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            self._opening.cancel()
            await asyncio.wait([self._opening])
            await self._connection.aclose()
            raise
        self.tell_soon()

    @property
    def _service(self) -> TelemetryService:
        if not self._opening.done():
            raise ServiceClosed(service=TelemetryService.__name__, reason="telemetry is still being opened")
        return self._opening.result()

    # Telling of scopes.

    def tell_soon(self) -> None:
        """Scopes have changed. From any thread; never waits."""
        if threading.get_ident() == self._thread:
            self._tell_in_a_task()
        elif not self._woken:
            self._woken = True
            with contextlib.suppress(
                RuntimeError
            ):  # the loop has been closed, and nobody is to be told any more
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._woken = False
        self._tell_in_a_task()

    def _tell_in_a_task(self) -> None:
        if self._telling is None and not self._lost and self._opening.done() and self._scopes.has_changes:
            self._telling = self._loop.create_task(self._tell(self._opening.result()))
            self._telling.add_done_callback(self._told)

    async def _tell(self, service: TelemetryService) -> None:
        with self._lock:
            changes = self._scopes.changes()
        await service.change(changes)

    def _told(self, telling: asyncio.Task[None]) -> None:
        self._telling = None
        if telling.cancelled():
            return
        if (error := telling.exception()) is None:
            self._tell_in_a_task()
        elif not self._lost and self._closing is None:
            self._lost = True
            logger.warning("scopes are not sampled any more: %s", error)

    async def _everything_told(self) -> None:
        """Until the service knows of all that was opened and closed before."""
        if self._telling is not None:  # of what came before its last changes
            await asyncio.wait([self._telling])
        self._tell_in_a_task()
        if self._telling is not None:
            await asyncio.wait([self._telling])

    # What it is asked.

    def rows(self) -> AsyncIterator[Row]:
        return self._service.rows()

    async def held(self) -> list[Row]:
        await self._everything_told()
        return [row async for row in self._service.held()]

    async def snapshot(self, path: str, *, reset: bool) -> Snapshot:
        await self._everything_told()
        return await self._service.snapshot(path, reset)

    async def notes(self) -> tuple[str, ...]:
        return await self._service.notes()

    # Its end.

    async def aclose(self) -> Snapshot | None:
        """Cancelling does not stop it."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> Snapshot | None:
        try:
            await asyncio.wait([self._opening])
            await self._everything_told()
            return await self._service.finish()
        finally:
            await self._connection.aclose()


async def _no_rows() -> AsyncIterator[Row]:
    nothing: tuple[Row, ...] = ()
    for row in nothing:
        yield row


def _said_by_environment() -> bool:
    text = os.environ.get(ENABLED)
    if text is None:
        return True
    if (said := _SAID.get(text.strip().lower())) is None:
        raise ValueError(f"{ENABLED} is 1 or 0, true or false, yes or no, on or off, and not {text!r}")
    return said


def _in_words(error: BaseException) -> str:
    return " ".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
