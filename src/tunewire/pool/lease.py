"""A worker that one caller holds alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tunewire.errors import PoolClosed
from tunewire.pool.caller import BaseCaller, CallOptions
from tunewire.pool.stream import CallStream
from tunewire.workers.driver import WorkerDriver
from tunewire.workers.outcome import Outcome


class Lessor(Protocol):
    """What a lease asks of its pool."""

    def check_open(self) -> None:
        """PoolClosed unless it is open."""

    async def run_one(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        lease: int | None,
    ) -> Outcome[Any]:
        """One call, on the worker of this lease."""
        ...

    def stream_one(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        lease: int | None,
    ) -> CallStream[Any]:
        """One call that says something on the way, on the worker of this lease."""
        ...

    def cancel_lease(self, lease: int) -> None:
        """Cancel what runs or waits on it."""


class LeasedWorker(BaseCaller):
    """A worker that serves its lease alone. Made by `Pool.lease`.

    Calls run one after the other, in the order in which they were made.

    >>> import asyncio, os
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(2) as pool, pool.lease("cpu") as worker:
    ...         return await worker.call(os.getpid) == await worker.call(os.getpid) == worker.pid
    >>> asyncio.run(main())
    True
    """

    def __init__(self, pool: Lessor, lease: int, device: str, worker: WorkerDriver) -> None:
        self._pool = pool
        self._lease = lease
        self._worker = worker
        self._ended = False
        self.device = device

    @property
    def pid(self) -> int | None:
        """The process that serves now; None while there is none."""
        return self._worker.pid

    def __repr__(self) -> str:
        ended = ", ended" if self._ended else ""
        return f"<LeasedWorker pid={self.pid} on {self.device}{ended}>"

    async def _run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Outcome[Any]:
        self._check_held()
        return await self._pool.run_one(function, args, kwargs, options, self._lease)

    def _stream(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> CallStream[Any]:
        self._check_held()
        return self._pool.stream_one(function, args, kwargs, options, self._lease)

    def _check_held(self) -> None:
        self._pool.check_open()
        if self._ended:
            raise PoolClosed(reason="the lease has ended")

    def end(self) -> None:
        """The lease has ended: what still runs or waits is cancelled."""
        self._ended = True
        self._pool.cancel_lease(self._lease)
