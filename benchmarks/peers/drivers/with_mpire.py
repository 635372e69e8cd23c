"""mpire's WorkerPool, kept alive between maps as its documentation recommends, with the chunks it chooses itself."""

from __future__ import annotations

from typing import Any

from mpire import WorkerPool

from calls import nothing, same
from peer import TIMEOUT, Peer


class Mpire(Peer):
    """Its timeout ends the worker, as ours does. A pool that has applied cannot map, so maps have one of their own."""

    distribution = "mpire"
    pool: Any
    mapping: Any

    async def open(self, workers: int) -> None:
        self.pool = WorkerPool(n_jobs=workers, keep_alive=True)
        self.mapping = WorkerPool(n_jobs=workers, keep_alive=True)

    async def close(self) -> None:
        self.pool.terminate()
        self.mapping.terminate()

    async def noop(self) -> None:  # type: ignore[override]
        self.pool.apply(nothing)

    async def noop_within(self) -> None:  # type: ignore[override]
        self.pool.apply(nothing, task_timeout=TIMEOUT)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return self.pool.apply(same, (array,))

    async def flood(self, count: int) -> None:  # type: ignore[override]
        results = [self.pool.apply_async(nothing) for _ in range(count)]
        for result in results:
            result.get()

    async def map(self, count: int) -> None:  # type: ignore[override]
        self.mapping.map(nothing, range(count))
