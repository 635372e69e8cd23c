"""tunewire, by its public names."""

from __future__ import annotations

import asyncio
from typing import Any

from calls import nothing, same
from peer import TIMEOUT, Peer
from tunewire import Pool


class Tunewire(Peer):
    """A pool with its defaults."""

    distribution = "tunewire"

    pool: Pool

    async def open(self, workers: int) -> None:
        self.pool = await Pool(workers).open()
        self.workers = workers

    async def close(self) -> None:
        await self.pool.aclose()

    async def noop(self) -> None:  # type: ignore[override]
        await self.pool.call(nothing)

    async def noop_within(self) -> None:  # type: ignore[override]
        await self.pool.call(nothing, timeout=TIMEOUT)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return await self.pool.call(same, array)

    async def flood(self, count: int) -> None:  # type: ignore[override]
        await asyncio.gather(*(self.pool.call(nothing) for _ in range(count)))

    async def map(self, count: int) -> None:  # type: ignore[override]
        async with self.pool.map(nothing, range(count)) as results:
            async for _ in results:
                pass
