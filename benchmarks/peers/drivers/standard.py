"""Python's own: concurrent.futures and multiprocessing, with the start method that is the platform's default."""

from __future__ import annotations

import asyncio
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from calls import nothing, same
from peer import TIMEOUT, Peer

CHUNKS_PER_WORKER = 4
"""As `multiprocessing.Pool.map` divides its items; the executors' documentation asks for large chunks without a number."""


def chunk_size(count: int, workers: int) -> int:
    """Of a map."""
    return max(1, count // (workers * CHUNKS_PER_WORKER))


class Executor(Peer):
    """ProcessPoolExecutor, whose futures are waited for by the calling thread."""

    executor: Any

    def make(self, workers: int) -> Any:
        return ProcessPoolExecutor(workers)

    async def open(self, workers: int) -> None:
        self.executor = self.make(workers)
        self.workers = workers

    async def close(self) -> None:
        self.executor.shutdown(wait=True)

    async def noop(self) -> None:  # type: ignore[override]
        self.executor.submit(nothing).result()

    async def noop_within(self) -> None:  # type: ignore[override]
        self.executor.submit(nothing).result(TIMEOUT)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return self.executor.submit(same, array).result()

    async def flood(self, count: int) -> None:  # type: ignore[override]
        futures = [self.executor.submit(nothing) for _ in range(count)]
        for future in futures:
            future.result()

    async def map(self, count: int) -> None:  # type: ignore[override]
        for _ in self.executor.map(nothing, range(count), chunksize=chunk_size(count, self.workers)):
            pass


class AwaitedExecutor(Peer):
    """ProcessPoolExecutor through `loop.run_in_executor`."""

    executor: ProcessPoolExecutor

    async def open(self, workers: int) -> None:
        self.executor = ProcessPoolExecutor(workers)

    async def close(self) -> None:
        self.executor.shutdown(wait=True)

    async def noop(self) -> None:  # type: ignore[override]
        await asyncio.get_running_loop().run_in_executor(self.executor, nothing)

    async def noop_within(self) -> None:  # type: ignore[override]
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().run_in_executor(self.executor, nothing)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return await asyncio.get_running_loop().run_in_executor(self.executor, same, array)

    async def flood(self, count: int) -> None:  # type: ignore[override]
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self.executor, nothing) for _ in range(count)))


class MultiprocessingPool(Peer):
    """multiprocessing.Pool."""

    pool: Any

    async def open(self, workers: int) -> None:
        self.pool = multiprocessing.Pool(workers)

    async def close(self) -> None:
        self.pool.terminate()
        self.pool.join()

    async def noop(self) -> None:  # type: ignore[override]
        self.pool.apply(nothing)

    async def noop_within(self) -> None:  # type: ignore[override]
        self.pool.apply_async(nothing).get(TIMEOUT)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return self.pool.apply(same, (array,))

    async def flood(self, count: int) -> None:  # type: ignore[override]
        results = [self.pool.apply_async(nothing) for _ in range(count)]
        for result in results:
            result.get()

    async def map(self, count: int) -> None:  # type: ignore[override]
        self.pool.map(nothing, range(count))
