"""The fakes and the real things pass the same tests."""

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import psutil
import uvloop

from tunewire import Pool
from tunewire.endpoints.connection import Connection
from tunewire.testing import FakePool, Faults, Script, connection_pair, exit_process, virtual_loop
from tunewire.testing.contracts import ConnectionContract, WorkerContract

T = TypeVar("T")

uvloop.new_event_loop().close()  # the first one opens a pipe that libuv keeps for as long as the process lives


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    with virtual_loop(debug=True) as runner:
        return runner.run(main)


class TestConnectionInMemory(ConnectionContract):
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return run_virtually(main)

    async def connect(self, max_frame_bytes: int) -> tuple[Connection, Connection]:
        return connection_pair(max_frame_bytes=max_frame_bytes)


class TestConnectionInMemoryFromTheSecondEnd(TestConnectionInMemory):
    async def connect(self, max_frame_bytes: int) -> tuple[Connection, Connection]:
        first, second = connection_pair(max_frame_bytes=max_frame_bytes)
        return second, first


class TestConnectionInPieces(TestConnectionInMemory):
    """However its bytes are cut up, a stream is the same stream."""

    async def connect(self, max_frame_bytes: int) -> tuple[Connection, Connection]:
        first, second = connection_pair(max_frame_bytes=max_frame_bytes, faults=Faults(split=40_000, seed=7))
        return second, first


class TestConnectionOverPipes(ConnectionContract):
    async def connect(self, max_frame_bytes: int) -> tuple[Connection, Connection]:
        (left_reads, right_writes), (right_reads, left_writes) = os.pipe(), os.pipe()
        return (
            await Connection.open(left_reads, left_writes, max_frame_bytes=max_frame_bytes),
            await Connection.open(right_reads, right_writes, max_frame_bytes=max_frame_bytes),
        )


class TestConnectionOverPipesOnUvloop(TestConnectionOverPipes):
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)


class TestFakeWorker(WorkerContract):
    end_process = staticmethod(exit_process)
    script = Script()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return run_virtually(main)

    def pool(self, size: int = 1, **options: Any) -> Pool:
        return FakePool(size, scripts=[self.script], **options)

    def pool_that_cannot_start(self) -> Pool:
        return FakePool(scripts=[Script(ends_at_byte=0, exit_code=1)])

    def is_gone(self, pool: Pool, pid: int) -> bool:
        assert isinstance(pool, FakePool)
        return all(process.has_ended for process in pool.spawner.processes if process.pid == pid)


class TestFakeWorkerInPieces(TestFakeWorker):
    """Slow to start, slow to end, and each read gives some bytes."""

    script = Script(hello_after=3.0, reap_seconds=0.1, faults=Faults(split=5000, seed=3))


class TestRealWorker(WorkerContract):
    def pool_that_cannot_start(self) -> Pool:
        return Pool(1, env={"PYTHONHOME": "/nowhere"})

    def is_gone(self, pool: Pool, pid: int) -> bool:
        return not psutil.pid_exists(pid)


class TestRealWorkerOnUvloop(TestRealWorker):
    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main)
