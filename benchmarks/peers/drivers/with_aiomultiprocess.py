"""aiomultiprocess's Pool: coroutines in the workers, spawned, with queues that are polled."""

from __future__ import annotations

import asyncio
from typing import Any

from aiomultiprocess import Pool

from calls import nothing_awaited, same_awaited
from peer import TIMEOUT, Peer


class Aiomultiprocess(Peer):
    """A queue for each process, which its documentation recommends for many small calls."""

    distribution = "aiomultiprocess"
    pool: Any

    async def open(self, workers: int) -> None:
        self.pool = Pool(processes=workers, queuecount=workers)

    async def close(self) -> None:
        self.pool.terminate()
        await self.pool.join()

    async def noop(self) -> None:  # type: ignore[override]
        await self.pool.apply(nothing_awaited)

    async def noop_within(self) -> None:  # type: ignore[override]
        async with asyncio.timeout(TIMEOUT):
            await self.pool.apply(nothing_awaited)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return await self.pool.apply(same_awaited, (array,))

    async def flood(self, count: int) -> None:  # type: ignore[override]
        await asyncio.gather(*(self.pool.apply(nothing_awaited) for _ in range(count)))

    async def map(self, count: int) -> None:  # type: ignore[override]
        await self.pool.map(nothing_awaited, range(count))
