"""anyio.to_process: worker processes that come when they are needed and stay until the loop ends."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import anyio
from anyio import to_process

from calls import nothing, same
from peer import TIMEOUT, Peer
from process_tree import descendants

NOTICED = 0.1
"""Seconds in which the loop learns that a process has ended."""


class AnyioToProcess(Peer):
    """Its cancellation ends the worker, as ours does."""

    distribution = "anyio"

    async def open(self, workers: int) -> None:
        self.limiter = anyio.CapacityLimiter(workers)

    async def close(self) -> None:
        # There is no other way to be without a worker in a loop that goes on.
        for process in descendants():
            os.kill(process, signal.SIGKILL)
        await asyncio.sleep(NOTICED)

    async def noop(self) -> None:  # type: ignore[override]
        await to_process.run_sync(nothing, limiter=self.limiter)

    async def noop_within(self) -> None:  # type: ignore[override]
        with anyio.fail_after(TIMEOUT):
            await to_process.run_sync(nothing, limiter=self.limiter, cancellable=True)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return await to_process.run_sync(same, array, limiter=self.limiter)

    async def flood(self, count: int) -> None:  # type: ignore[override]
        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(self.noop)
