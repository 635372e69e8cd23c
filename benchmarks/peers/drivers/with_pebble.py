"""pebble's ProcessPool."""

from __future__ import annotations

from typing import Any

from pebble import ProcessPool

from calls import nothing, same
from peer import TIMEOUT, Peer
from standard import chunk_size


class Pebble(Peer):
    """Its timeout ends the worker, as ours does."""

    distribution = "pebble"
    pool: Any

    async def open(self, workers: int) -> None:
        self.pool = ProcessPool(max_workers=workers)
        self.workers = workers

    async def close(self) -> None:
        self.pool.stop()
        self.pool.join()

    async def noop(self) -> None:  # type: ignore[override]
        self.pool.schedule(nothing).result()

    async def noop_within(self) -> None:  # type: ignore[override]
        self.pool.schedule(nothing, timeout=TIMEOUT).result()

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return self.pool.schedule(same, (array,)).result()

    async def flood(self, count: int) -> None:  # type: ignore[override]
        futures = [self.pool.schedule(nothing) for _ in range(count)]
        for future in futures:
            future.result()

    async def map(self, count: int) -> None:  # type: ignore[override]
        for _ in self.pool.map(nothing, range(count), chunksize=chunk_size(count, self.workers)).result():
            pass
