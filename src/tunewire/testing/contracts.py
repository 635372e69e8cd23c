"""What a connection and a worker must do, as tests written once: the real things pass them, and so must a fake.

A fake that behaves better than the real thing hides faults, and one that behaves worse invents them. So each suite here
is a class of tests that a test file derives from, once for each implementation, by saying how one is made and how a
coroutine is run. They need pytest; they are collected where the derived class's name begins with `Test`.

Nothing here sleeps for luck: a test waits for a condition, or lets the loop go round.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from tunewire.endpoints.connection import Connection
from tunewire.errors import (
    CallTimeout,
    EndpointClosed,
    PoolClosed,
    StartError,
    TruncatedFrame,
    WireError,
    WorkerCrashed,
)
from tunewire.pool import Pool
from tunewire.testing.work import echo, fail, go_through, last, say
from tunewire.wire.frames import HEADER_BYTES, JOIN_BYTES, Frame
from tunewire.wire.messages import Data, pack_message
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome, OutcomeKind

T = TypeVar("T")

#: Seconds within which a condition comes true, and longer than a call of these suites is let run.
_BOUND = 20.0
_LONG = 3600.0
#: Turns of the loop after which what could happen has happened.
_TURNS = 50
_SIZES = [0, 1, 1000, JOIN_BYTES - 200, JOIN_BYTES, JOIN_BYTES + 1, 1 << 20, (3 << 20) + 7]


async def _turns(count: int = _TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_BOUND):
        for turn in itertools.count():
            if condition():
                return
            await asyncio.sleep(0 if turn < _TURNS else 0.005)  # some states last for a few turns only


def _packed(call_id: int, *values: bytes) -> tuple[list[Any], int]:
    return pack_message(Data(), call_id=call_id, buffers=values)


def _bytes_of(*values: bytes) -> bytes:
    return b"".join(_packed(1, *values)[0])


def _send_bytes(connection: Connection, data: bytes) -> None:
    connection.write_now([data], len(data))


class _Contract:
    """How coroutines are run; a real clock is asyncio's, or whatever loop a derived class says."""

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """The result of `main` on a new event loop."""
        return asyncio.run(main)


class ConnectionContract(_Contract):
    """Two connected ends of frames. Derive from it and say how two are connected.

    >>> from tunewire.testing import connection_pair, virtual_loop
    >>> class TestMemory(ConnectionContract):
    ...     def run(self, main):
    ...         with virtual_loop() as runner:
    ...             return runner.run(main)
    ...     async def connect(self, max_frame_bytes):
    ...         return connection_pair(max_frame_bytes=max_frame_bytes)
    >>> TestMemory().test_frames_come_in_order_and_are_counted()
    """

    async def connect(self, max_frame_bytes: int) -> tuple[Connection, Connection]:
        """Two ends of one connection."""
        raise NotImplementedError

    @asynccontextmanager
    async def connected(self, max_frame_bytes: int = 1 << 30) -> AsyncIterator[tuple[Connection, Connection]]:
        """Two ends, closed at the end of the block, and the loop let round so that nothing of them is left."""
        left, right = await self.connect(max_frame_bytes)
        try:
            yield left, right
        finally:
            left.close()
            right.close()
            await _turns()

    @pytest.mark.parametrize("size", _SIZES)
    def test_a_value_of_any_size_arrives_as_it_was_sent(self, size: int) -> None:
        async def main() -> None:
            value = os.urandom(size)
            async with self.connected() as (left, right):
                for sender, receiver in ((left, right), (right, left)):
                    sender.write(*_packed(7, value, b"", value[:10]))
                    frame = await receiver.read_frame()
                    assert (frame.kind, frame.call_id) == (Data.kind, 7)
                    assert [bytes(buffer) for buffer in frame.buffers] == [value, b"", value[:10]]

        self.run(main())

    def test_frames_come_in_order_and_are_counted(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                sizes = [left.write(*_packed(number, bytes(number % 90))) for number in range(2000)]
                await left.drain()
                assert [(await right.read_frame()).call_id for _ in sizes] == list(range(2000))
                assert left.messages_sent == right.messages_received == 2000
                assert left.bytes_sent == right.bytes_received == sum(sizes)
                assert right.messages_sent == left.messages_received == 0

        self.run(main())

    def test_both_directions_at_once(self) -> None:
        async def write(connection: Connection) -> None:
            for number in range(50):
                connection.write(*_packed(number, bytes(30_000)))
                await connection.drain()

        async def read(connection: Connection) -> list[int]:
            return [(await connection.read_frame()).call_id for _ in range(50)]

        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                both = asyncio.gather(read(left), read(right))
                await asyncio.gather(write(left), write(right))
                assert list(await both) == [list(range(50))] * 2

        self.run(main())

    def test_small_frames_of_one_turn_are_written_together(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                for number in range(100):
                    left.write(*_packed(number))
                for _ in range(100):
                    await right.read_frame()
                assert left.flushes == 2  # the first at once, the others at the turn's end

        self.run(main())

    def test_write_now_overtakes_nothing(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                left.write(*_packed(1))
                left.write(*_packed(2))
                left.write_now(*_packed(3))
                left.write(*_packed(4))
                left.flush()
                assert [(await right.read_frame()).call_id for _ in range(4)] == [1, 2, 3, 4]

        self.run(main())

    def test_a_writer_waits_for_a_reader_that_does_not_read(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                written = 0
                while True:
                    left.write(*_packed(written, bytes(50_000)))
                    written += 1
                    draining = asyncio.ensure_future(left.drain())
                    await _turns()
                    if not draining.done():
                        break
                    assert written < 100, "five megabytes are on their way to nobody"
                for _ in range(written):
                    await right.read_frame()
                await draining

        self.run(main())

    def test_cancelling_a_drain_loses_nothing(self) -> None:
        async def main() -> None:
            value = os.urandom(4 << 20)
            async with self.connected() as (left, right):
                left.write(*_packed(1, value))
                draining = asyncio.ensure_future(left.drain())
                await _turns()
                draining.cancel()
                left.write(*_packed(2))
                assert bytes((await right.read_frame()).buffers[0]) == value
                assert (await right.read_frame()).call_id == 2

        self.run(main())

    def test_cancelling_a_read_loses_nothing(self) -> None:
        async def dribble(connection: Connection, data: bytes) -> None:
            for start in range(0, len(data), 7001):
                _send_bytes(connection, data[start : start + 7001])
                await asyncio.sleep(0)

        async def impatient(connection: Connection) -> tuple[Frame, int]:
            for cancelled in range(10_000):
                reading = asyncio.ensure_future(connection.read_frame())
                await _turns(cancelled % 4)
                if not reading.done():
                    reading.cancel()
                await asyncio.wait([reading])
                if not reading.cancelled():
                    return reading.result(), cancelled
            raise AssertionError("no frame came")

        async def main() -> None:
            values = [os.urandom(size) for size in (10, 40_000, 300_000, 5)]
            async with self.connected() as (left, right):
                data = b"".join(_bytes_of(value, value[:100]) for value in values)
                writing = asyncio.ensure_future(dribble(left, data))
                frames = [await impatient(right) for _ in values]
                await writing
                assert [bytes(frame.buffers[0]) for frame, _ in frames] == values
                assert [bytes(frame.buffers[1]) for frame, _ in frames] == [value[:100] for value in values]
                assert sum(cancelled for _, cancelled in frames) > 3, "reads were cancelled in between"

        self.run(main())

    def test_the_end_between_frames_is_a_close(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                left.write(*_packed(1))
                left.write(*_packed(2, bytes(500_000)))
                closing = asyncio.ensure_future(left.close_writing())
                assert [(await right.read_frame()).call_id for _ in range(2)] == [1, 2]
                with pytest.raises(EndpointClosed):
                    await right.read_frame()
                await closing
                assert not left.is_writable
                right.write(*_packed(3))  # the other direction goes on
                assert (await left.read_frame()).call_id == 3

        self.run(main())

    @pytest.mark.parametrize("kept", [1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 5, -1])
    @pytest.mark.parametrize("size", [100, 200_000])
    def test_the_end_inside_a_frame_is_a_truncation(self, kept: int, size: int) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                _send_bytes(left, _bytes_of(bytes(size))[:kept])
                closing = asyncio.ensure_future(left.close_writing())
                with pytest.raises(TruncatedFrame):
                    await right.read_frame()
                await closing

        self.run(main())

    @pytest.mark.parametrize("place", [0, 1, 2, 5, 23])
    def test_bytes_that_are_no_frame_are_an_error(self, place: int) -> None:
        async def main() -> None:
            data = bytearray(_bytes_of(b"value"))
            data[place] ^= 0xFF
            async with self.connected() as (left, right):
                _send_bytes(left, bytes(data))
                with pytest.raises(WireError):
                    await right.read_frame()

        self.run(main())

    def test_a_frame_over_the_limit_is_an_error_before_it_is_read(self) -> None:
        async def main() -> None:
            async with self.connected(max_frame_bytes=1000) as (left, right):
                _send_bytes(left, _bytes_of(bytes(2000))[:HEADER_BYTES])
                with pytest.raises(WireError, match="limit"):
                    await right.read_frame()

        self.run(main())

    def test_what_was_written_before_a_close_of_both_directions_may_be_lost_and_the_end_is_seen(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                left.write(*_packed(1, os.urandom(4 << 20)))
                left.close()
                with pytest.raises((EndpointClosed, TruncatedFrame)):
                    await right.read_frame()

        self.run(main())

    def test_who_writes_to_a_reader_that_has_gone_is_told(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                left.write(*_packed(1, bytes(4 << 20)))
                draining = asyncio.ensure_future(left.drain())
                await _turns()
                assert not draining.done()
                right.close()
                await draining
                await _until(lambda: not left.is_writable)
                left.write(*_packed(2))  # goes nowhere, and says nothing

        self.run(main())

    def test_after_stop_reading_whoever_reads_sees_the_end(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                reading = asyncio.ensure_future(left.read_frame())
                await _turns()
                left.stop_reading()
                with pytest.raises(EndpointClosed):
                    await reading
                left.write(*_packed(1))
                assert (await right.read_frame()).call_id == 1

        self.run(main())

    def test_end_reading_gives_what_was_written_and_then_the_end(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                for number in range(3):
                    right.write(*_packed(number, bytes(10_000)))
                right.flush()
                await left.end_reading()  # though the other end is open still
                assert [(await left.read_frame()).call_id for _ in range(3)] == [0, 1, 2]
                with pytest.raises(EndpointClosed):
                    await left.read_frame()

        self.run(main())

    @pytest.mark.parametrize("stray", [b"", b"printed at the start\n", bytes(300_000)])
    def test_text_before_the_cookie_is_told_apart(self, stray: bytes) -> None:
        async def main() -> None:
            cookie = os.urandom(16)
            async with self.connected() as (left, right), asyncio.timeout(_BOUND):
                _send_bytes(right, stray + cookie + _bytes_of(b"value"))
                assert await left.read_until_cookie(cookie, 100) == stray[-100:]
                assert bytes((await left.read_frame()).buffers[0]) == b"value"

        self.run(main())

    def test_closing_twice_is_closing_once(self) -> None:
        async def main() -> None:
            async with self.connected() as (left, right):
                left.close()
                left.close()
                left.stop_reading()
                await left.close_writing()
                right.close()

        self.run(main())


class WorkerContract(_Contract):
    """Calls in a supervised process. Derive from it and say how a pool is made, and one that cannot start a process.

    >>> from tunewire.testing import FakePool, Script, exit_process, virtual_loop
    >>> class TestFakes(WorkerContract):
    ...     end_process = staticmethod(exit_process)
    ...     def run(self, main):
    ...         with virtual_loop() as runner:
    ...             return runner.run(main)
    ...     def pool(self, size=1, **options):
    ...         return FakePool(size, **options)
    ...     def pool_that_cannot_start(self):
    ...         return FakePool(scripts=[Script(cannot_start="no such file")])
    >>> TestFakes().test_a_call_that_raises_is_an_error_and_keeps_the_process()
    """

    #: In a callable: end its process at once with this exit code.
    end_process: Callable[[int], object] = staticmethod(os._exit)
    #: Longer than a process takes to start, and to run nothing.
    short: float = 0.5

    def pool(self, size: int = 1, **options: Any) -> Pool:
        """A pool, not open yet."""
        return Pool(size, **options)

    def pool_that_cannot_start(self) -> Pool:
        """A pool each of whose processes fails before it says hello."""
        raise NotImplementedError

    def is_gone(self, pool: Pool, pid: int) -> bool:
        """Whether nothing is left of this process of the pool's."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self, size: int = 1, **options: Any) -> AsyncIterator[Pool]:
        """An open pool; when it is closed every call has had one outcome and nothing is left."""
        async with self.pool(size, **options) as pool:
            yield pool
        _nothing_is_left(pool)

    def test_a_call_completes_with_its_value_and_its_output(self) -> None:
        async def main() -> None:
            async with self.opened() as pool:
                outcome = await pool.run(echo, {"a": (1, None, b"x")})
                assert outcome.unwrap() == {"a": (1, None, b"x")}
                assert outcome.pid == pool.statistics().workers[0].pid is not None
                assert (await pool.run(say, "first")).stdout == "first\n"
                assert (await pool.run(say, "second")).stdout == "second\n"
                assert (await pool.run(echo, None)).stdout == ""
                assert await pool.call(last, 0.01) == 0.01
                assert pool.statistics().workers[0].processes == 1

        self.run(main())

    def test_a_large_value_goes_there_and_back(self) -> None:
        async def main() -> None:
            value = os.urandom(3 << 20)
            async with self.opened() as pool:
                assert await pool.call(echo, value) == value

        self.run(main())

    def test_a_call_that_raises_is_an_error_and_keeps_the_process(self) -> None:
        async def main() -> None:
            async with self.opened() as pool:
                outcome: Outcome[Any] = await pool.run(fail, "told")
                assert outcome.kind is OutcomeKind.ERROR
                assert repr(outcome.error) == "ValueError('told')"
                assert (await pool.run(echo, 1)).pid == outcome.pid

        self.run(main())

    def test_a_call_that_takes_too_long_times_out_and_costs_its_process(self) -> None:
        async def main() -> None:
            async with self.opened() as pool:
                before = await pool.run(echo, 1)
                outcome = await pool.run(last, _LONG, timeout=self.short)
                assert outcome.kind is OutcomeKind.TIMEOUT
                error = outcome.error
                assert isinstance(error, CallTimeout)
                assert (error.phase, error.limit) == ("run", self.short)
                await self._is_replaced(pool, before)

        self.run(main())

    @pytest.mark.parametrize("phase", ["compile", "check", "run"])
    def test_each_phase_has_its_own_limit(self, phase: str) -> None:
        async def main() -> None:
            limits = Limits(**{"compile": _LONG, "check": _LONG, "run": _LONG, phase: self.short})
            async with self.opened(limits=limits) as pool:
                await pool.run(echo, 1)
                passed = {"compile": [], "check": ["check"], "run": ["check", "run"]}[phase]
                outcome = await pool.run(_enter_then_last, passed, phase="compile")
                assert isinstance(outcome.error, CallTimeout)
                assert outcome.error.phase == phase
                assert await pool.call(go_through, passed, 0.0, phase="compile") == phase

        self.run(main())

    def test_a_cancelled_caller_has_control_at_once_and_the_work_is_stopped(self) -> None:
        async def main() -> None:
            async with self.opened() as pool:
                before = await pool.run(echo, 1)
                calling = asyncio.ensure_future(pool.call(last, _LONG))
                await _until(lambda: pool.statistics().workers[0].state == "busy")
                calling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await calling
                await self._is_replaced(pool, before)

        self.run(main())

    def test_a_process_that_ends_is_a_crash_with_its_exit_code(self) -> None:
        async def main() -> None:
            async with self.opened() as pool:
                before = await pool.run(echo, 1)
                outcome = await pool.run(self.end_process, 3)
                assert outcome.kind is OutcomeKind.CRASH
                assert isinstance(outcome.error, WorkerCrashed)
                assert (outcome.error.exit_code, outcome.error.signal) == (3, None)
                await self._is_replaced(pool, before)

        self.run(main())

    def test_what_cannot_start_is_an_error_for_each_call_that_wanted_it(self) -> None:
        async def main() -> None:
            pool = self.pool_that_cannot_start()
            async with pool:
                for _ in range(2):
                    outcome = await pool.run(echo, 1)
                    assert outcome.kind is OutcomeKind.CRASH
                    assert isinstance(outcome.error, StartError)
            _nothing_is_left(pool)

        self.run(main())

    def test_an_initializer_that_raises_gives_its_error_and_no_call_begins(self) -> None:
        async def main() -> None:
            async with self.opened(initializer=fail, initargs=("no licence",)) as pool:
                for _ in range(2):
                    outcome = await pool.run(echo, 1)
                    assert (outcome.kind, repr(outcome.error)) == (
                        OutcomeKind.ERROR,
                        "ValueError('no licence')",
                    )
                await pool.settled()
                assert pool.statistics().workers[0].processes == 2

        self.run(main())

    def test_an_initializer_that_takes_too_long_names_its_phase(self) -> None:
        async def main() -> None:
            limits = Limits(init=self.short)
            async with self.opened(initializer=last, initargs=(_LONG,), limits=limits) as pool:
                outcome = await pool.run(echo, 1)
                assert isinstance(outcome.error, CallTimeout)
                assert outcome.error.phase == "init"

        self.run(main())

    @pytest.mark.parametrize("state", ["starting", "initialising", "busy", "terminating", "idle"])
    def test_closing_in_any_state_gives_each_call_one_outcome(self, state: str) -> None:
        async def main() -> None:
            initializer: dict[str, Any] = (
                {"initializer": last, "initargs": (_LONG,)} if state == "initialising" else {}
            )
            async with self.opened(2, **initializer) as pool:
                calls = [asyncio.ensure_future(pool.run(last, _LONG)) for _ in range(5)]
                if state == "terminating":
                    await self._reaches(pool, "busy")
                    calls[0].cancel()
                    calls[1].cancel()
                elif state == "idle":
                    for call in calls:
                        call.cancel()
                    await asyncio.wait(calls)
                    await pool.settled()
                    await pool.call(echo, 1)
                await self._reaches(pool, state)
            await asyncio.wait(calls)
            for call in calls:
                if not call.cancelled():
                    assert isinstance(call.result().error, PoolClosed)

        self.run(main())

    def test_no_more_processes_than_workers_whatever_ends_them(self) -> None:
        async def main() -> None:
            async with self.opened(2) as pool:
                await asyncio.gather(*(pool.run(echo, number) for number in range(4)))
                calls: list[Coroutine[Any, Any, Outcome[Any]]] = [
                    *(pool.run(echo, number) for number in range(4)),
                    *(pool.run(last, _LONG, timeout=self.short) for _ in range(2)),
                    *(pool.run(self.end_process, 5) for _ in range(2)),
                    *(pool.run(fail, "told") for _ in range(2)),
                    *(pool.run(echo, number) for number in range(4)),
                ]
                kinds = Counter(outcome.kind for outcome in await asyncio.gather(*calls))
                assert kinds == {
                    OutcomeKind.COMPLETED: 8,
                    OutcomeKind.TIMEOUT: 2,
                    OutcomeKind.CRASH: 2,
                    OutcomeKind.ERROR: 2,
                }

        self.run(main())

    async def _reaches(self, pool: Pool, state: str) -> None:
        await _until(lambda: any(worker.state == state for worker in pool.statistics().workers))

    async def _is_replaced(self, pool: Pool, before: Outcome[Any]) -> None:
        """The worker takes a call only when the process is gone, and then in another one."""
        assert before.pid is not None
        following = asyncio.ensure_future(pool.run(_nothing))
        await pool.settled()
        assert self.is_gone(pool, before.pid)
        after = await following
        assert after.ok
        assert after.pid != before.pid
        assert pool.statistics().workers[0].processes == 2


def _nothing() -> None:
    """A call that only shows who runs it."""


async def _enter_then_last(phases: list[str]) -> None:
    await go_through(phases, 0.0)
    await last(_LONG)


def _nothing_is_left(pool: Pool) -> None:
    statistics = pool.statistics()
    assert (statistics.waiting, statistics.running) == (0, 0)
    assert {worker.state for worker in statistics.workers} == {"closed"}
    assert all(worker.pid is None for worker in statistics.workers)


__all__ = ["ConnectionContract", "WorkerContract"]
