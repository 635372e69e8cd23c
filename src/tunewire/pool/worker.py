"""A lone worker: a pool of one, that says which process serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tunewire.endpoints.launch import Sink
from tunewire.pool.caller import BaseCaller, CallOptions
from tunewire.pool.driver import Pool
from tunewire.pool.stream import CallStream
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.workers.ladder import Ladder
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome
from tunewire.workers.postmortem import Postmortem
from tunewire.workers.recycle import Recycle


class Worker(BaseCaller):
    """One supervised process at a time; when it is lost, the next call starts another.

    The options are the pool's; with `device` its processes see that device only, and `maximum_uses` is short for
    `recycle=Recycle(uses=...)`. Calls run one after the other, in
    the order in which they were made.

    >>> import asyncio, os
    >>> async def main():
    ...     async with Worker() as worker:
    ...         return await worker.call(os.getpid) == worker.pid
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self,
        *,
        device: str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        env: Mapping[str, str | None] | None = None,
        results: Literal["pickle", "msgspec"] = "pickle",
        limits: Limits | None = None,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        spares: int = 0,
        preload: Sequence[str] = (),
        maximum_uses: int | None = None,
        recycle: Recycle | None = None,
        idle_timeout: float | None = None,
        ladder: Ladder | None = None,
        stdout: Sink = None,
        stderr: Sink = None,
    ) -> None:
        if maximum_uses is not None:
            recycle = msgspec.structs.replace(recycle or Recycle(), uses=maximum_uses)
        self._pool = Pool(
            1 if device is None else None,
            devices=None if device is None else [device],
            initializer=initializer,
            initargs=initargs,
            env=env,
            results=results,
            limits=limits,
            max_frame_bytes=max_frame_bytes,
            spares=spares,
            preload=preload,
            recycle=recycle,
            idle_timeout=idle_timeout,
            ladder=ladder,
            stdout=stdout,
            stderr=stderr,
        )

    async def open(self) -> Self:
        """Make it ready; the same as entering its block."""
        await self._pool.open()
        return self

    async def aclose(self) -> None:
        """Kill what runs; see `Pool.aclose`."""
        await self._pool.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Outcome[Any]:
        return await self._pool._run(function, args, kwargs, options)

    def _stream(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> CallStream[Any]:
        return self._pool._stream(function, args, kwargs, options)

    @property
    def pid(self) -> int | None:
        """The process that serves now; None while there is none."""
        workers = self._pool.statistics().workers
        return workers[0].pid if workers else None

    @property
    def postmortem(self) -> Postmortem | None:
        """How its last process ended; None while none has."""
        postmortems = self._pool.postmortems()
        return postmortems[-1] if postmortems else None

    def __repr__(self) -> str:
        return f"<Worker pid={self.pid} of {self._pool!r}>"

    def is_alive(self) -> bool:
        """Whether there is a process."""
        return self.pid is not None

    async def kill(self) -> None:
        """End the process now, with all its descendants; a call that runs is lost with WorkerCrashed. Returns when they
        are gone. The worker lives on: its next call starts a process."""
        await self._pool.end_processes("was killed on request")

    async def join(self, timeout: float | None = None) -> None:
        """Wait until there is no process; TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._pool.until_empty()
