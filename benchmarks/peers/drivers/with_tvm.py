"""TVM's PopenWorker and PopenPoolExecutor."""

from __future__ import annotations

from typing import Any

from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker

from calls import nothing, same
from peer import TIMEOUT, Peer


class Worker(Peer):
    """One process, used by one thread. Its timer is a thread in the child for each call."""

    distribution = "apache-tvm"
    worker: Any

    async def open(self, workers: int) -> None:  # noqa: ARG002 — one at a time
        self.worker = PopenWorker()

    async def close(self) -> None:
        self.worker.kill()

    async def noop(self) -> None:  # type: ignore[override]
        self.worker.send(nothing)
        self.worker.recv()

    async def noop_within(self) -> None:  # type: ignore[override]
        self.worker.send(nothing, timeout=TIMEOUT)
        self.worker.recv()

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        self.worker.send(same, (array,))
        return self.worker.recv()


class Executor(Peer):
    """A timeout is the whole pool's, so the row with one has a pool of its own."""

    distribution = "apache-tvm"
    executor: Any
    hurried: Any

    async def open(self, workers: int) -> None:
        self.executor = PopenPoolExecutor(max_workers=workers)
        self.hurried = PopenPoolExecutor(max_workers=workers, timeout=TIMEOUT)

    async def close(self) -> None:
        self.executor.shutdown()
        self.hurried.shutdown()

    async def noop(self) -> None:  # type: ignore[override]
        self.executor.submit(nothing).result()

    async def noop_within(self) -> None:  # type: ignore[override]
        self.hurried.submit(nothing).result()

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        return self.executor.submit(same, array).result()

    async def flood(self, count: int) -> None:  # type: ignore[override]
        futures = [self.executor.submit(nothing) for _ in range(count)]
        for future in futures:
            future.result()

    async def map(self, count: int) -> None:  # type: ignore[override]
        for _ in self.executor.map_with_error_catching(nothing, range(count)):
            pass
