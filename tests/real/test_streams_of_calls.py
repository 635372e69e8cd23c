"""Calls that say something on the way."""

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest

from tunewire import CallLog, CallPhase, CallReport, Ladder, Limits, OutcomeKind, Pool, Worker, current_call
from tunewire.errors import CallCancelled, CallTimeout, EncodeError, PoolClosed, RemoteError, WorkerCrashed

pytestmark = pytest.mark.asyncio


def says(*values):
    for value in values:
        current_call().report(value)
    return len(values)


def says_everything():
    call = current_call()
    call.enter("check")
    call.report("a", progress=0.5)
    call.log("careful", level=30)
    call.enter("run")
    call.report(progress=1)


def says_and_waits():
    current_call().enter("check")
    current_call().report(os.getpid())
    time.sleep(60)


def says_without_end(size):
    i = 0
    while True:
        current_call().report((i, b"x" * size))
        i += 1


def says_then_ends(number, signal_number):
    for i in range(number):
        current_call().report(i)
    os.kill(os.getpid(), signal_number)


def raises_after(number):
    yield from range(number)
    raise ValueError("enough")


async def gives_asynchronously(number):
    for i in range(number):
        await asyncio.sleep(0)
        yield i


def waits_for_a_cancel():
    current_call().report("waiting")
    while not current_call().cancelled:
        time.sleep(0.001)
    return os.getpid()


def seconds_left():
    deadline = current_call().deadline
    return None if deadline is None else deadline - time.monotonic()


def leaves_a_thread():
    call = current_call()
    call.report("mine")

    def run():
        while True:
            call.report("late")
            current_call().report("somebody else's")

    threading.Thread(target=run, daemon=True).start()


def forks():
    if (child := os.fork()) == 0:
        current_call().report("from the fork")
        os._exit(0)
    os.waitpid(child, 0)
    current_call().report("from the parent")


def interrupts_itself_while_it_reports(size, number):
    """Its own handler raises, at whatever moment of a report."""

    class Alarm(Exception):
        pass

    armed = False

    def handler(*_):
        nonlocal armed
        if armed:
            armed = False
            raise Alarm

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
    done = 0
    while done < number:
        try:
            armed = True
            current_call().report(bytes(size))
            armed = False
            done += 1
        except Alarm:
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    return "whole"


async def read(call):
    return [event async for event in call]


@pytest.mark.parametrize("results", ["pickle", "msgspec"])
async def test_reports_come_in_order_and_then_the_result(results):
    async with Pool(1, results=results) as pool, pool.stream(says, 1, "b", {"c": [2.5]}) as call:
        assert await read(call) == [CallReport(1), CallReport("b"), CallReport({"c": [2.5]})]
        assert await call.result() == 3
        assert (await call.outcome()).ok


async def test_progress_logs_and_phases_are_events():
    async with Pool(1) as pool, pool.stream(says_everything, phase="compile") as call:
        assert await read(call) == [
            CallPhase("check"),
            CallReport("a", 0.5),
            CallLog(30, "careful"),
            CallPhase("run"),
            CallReport(None, 1.0),
        ]
        assert await call.result() is None


async def test_it_is_told_which_call_runs_in_which_phase_and_which_waits():
    async with Pool(1) as pool:
        async with pool.stream(says_and_waits, phase="compile", name="first") as call:
            assert await anext(call) == CallPhase("check")
            waiting = asyncio.create_task(pool.call(int, "2", name="second"))
            await asyncio.sleep(0)
            statistics = pool.statistics()
            (worker,) = statistics.workers
            assert (worker.callable_name, worker.state, worker.pid) == (
                "first",
                "busy",
                (await anext(call)).value,
            )
            assert worker.since <= asyncio.get_running_loop().time()
            assert (statistics.running, statistics.waiting) == (1, 1)
        assert await waiting == 2


async def test_a_generator_reports_what_it_gives():
    async with Pool(1) as pool:
        async with pool.stream(gives_asynchronously, 3) as call:
            assert [event.value async for event in call] == [0, 1, 2]
            assert await call.result() is None
        async with pool.stream(raises_after, 2) as call:
            seen = []
            with pytest.raises(ValueError, match="enough"):
                async for event in call:
                    seen.append(event.value)
            assert seen == [0, 1]
            with pytest.raises(ValueError, match="enough"):
                await call.result()
            assert (await call.outcome()).kind is OutcomeKind.ERROR


async def test_arrays_travel_as_results_do():
    array = np.arange(100_000.0)
    async with Pool(1) as pool, pool.stream(says, array) as call:
        (event,) = await read(call)
        assert np.array_equal(event.value, array)
        event.value[:] = 0  # memory of its own


async def test_the_result_can_be_awaited_without_reading():
    async with Pool(1) as pool, pool.stream(says, *range(10)) as call:
        assert await call.result() == 10
        assert len(await read(call)) == 10


async def test_a_slow_reader_holds_the_writer_and_memory_stays_bounded():
    async with Pool(1) as pool, pool.stream(says_without_end, 10_000) as call:
        seen = [(await anext(call)).value[0] for _ in range(3)]
        while not call._reports.is_full:
            await asyncio.sleep(0.001)
        held = call._reports._held
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert call._reports._held <= held + (1 << 17)
        seen += [(await anext(call)).value[0] for _ in range(300)]
        assert seen == list(range(303))


async def test_leaving_the_block_cancels_the_call_and_the_pool_goes_on():
    async with Pool(1) as pool:
        async with pool.stream(says_without_end, 100) as call:
            async for event in call:
                if event.value[0] == 5:
                    break
        assert (await call.outcome()).kind is OutcomeKind.CANCELLED
        with pytest.raises(CallCancelled):
            await call.result()
        assert await pool.call(os.getpid) > 0


async def test_an_event_that_is_not_waited_for_is_not_lost():
    async with Pool(1) as pool, pool.stream(waits_for_a_cancel) as call:
        assert (await anext(call)).value == "waiting"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(call)
        assert pool.statistics().running == 1


async def test_a_limit_is_kept_while_the_reader_sleeps():
    async with Pool(1) as pool, pool.stream(says_without_end, 1000, timeout=0.2) as call:
        while not call._call.future.done():
            await asyncio.sleep(0.001)
        assert (await call.outcome()).kind is OutcomeKind.TIMEOUT
        seen = []
        with pytest.raises(CallTimeout):
            async for event in call:
                seen.append(event.value[0])
        assert seen == list(range(len(seen)))
        assert seen


async def test_a_reply_behind_unread_reports_is_in_time():
    """More reports than are read ahead, and then the reply, which stands in the pipe behind a part of them."""
    blob = b"x" * 1000
    async with Pool(1) as pool, pool.stream(says, *[blob] * 210, timeout=0.2) as call:
        while not call._call.future.done():
            await asyncio.sleep(0.001)
        assert await call.result() == 210
        assert len(await read(call)) == 210


async def test_whoever_awaits_the_result_is_not_held_up_by_reports():
    blob = b"x" * 10_000
    async with Pool(1) as pool, pool.stream(says, *[blob] * 300) as call:
        assert (await anext(call)).value == blob
        assert await call.result() == 300
        assert 0 < call.dropped < 299
        assert len(await read(call)) == 299 - call.dropped


async def test_what_was_said_before_a_crash_is_there():
    async with Pool(1) as pool:
        async with pool.stream(says_then_ends, 1000, signal.SIGSEGV) as call:
            seen = []
            with pytest.raises(WorkerCrashed) as caught:
                async for event in call:
                    seen.append(event.value)
            assert seen == list(range(1000))
            assert caught.value.signal == "SIGSEGV"
        assert await pool.call(int, "1") == 1


async def test_what_was_said_before_a_crash_is_there_for_a_slow_reader_too():
    async with Pool(1) as pool, pool.stream(says_then_ends, 1100, signal.SIGKILL) as call:
        while not call._call.future.done():
            await asyncio.sleep(0.001)
        seen = []
        with pytest.raises(WorkerCrashed):
            async for event in call:
                seen.append(event.value)
        assert seen == list(range(1100))


async def test_what_cannot_be_sent_is_an_error_where_it_is_said():
    async with Pool(1) as pool:
        async with pool.stream(says, 1, threading.Lock) as call:  # a function: it can
            assert len(await read(call)) == 2
        async with pool.stream(says_a_lock) as call:
            assert [event.value async for event in call] == ["refused"]
        with pytest.raises(EncodeError):
            async with pool.stream(says, threading.Lock()):
                pass
    async with Pool(1, results="msgspec") as pool, pool.stream(says, object) as call:
        with pytest.raises((EncodeError, RemoteError)):
            await call.result()


def says_a_lock():
    try:
        current_call().report(threading.Lock())
    except EncodeError:
        current_call().report("refused")


async def test_nobody_hears_what_a_plain_call_reports():
    async with Pool(1) as pool:
        assert await pool.call(says, 1, 2, 3) == 3
        assert await pool.call(says_everything, phase="compile") is None


async def test_a_thread_that_was_left_over_says_nothing_in_the_next_call():
    async with Pool(1) as pool:
        async with pool.stream(leaves_a_thread) as call:
            assert {event.value for event in await read(call)} <= {"mine", "late", "somebody else's"}
        for _ in range(50):
            assert await pool.call(says, 1) == 1
        assert pool.statistics().workers[0].processes == 1


async def test_a_fork_says_nothing():
    async with Pool(1) as pool, pool.stream(forks) as call:
        assert await read(call) == [CallReport("from the parent")]


@pytest.mark.parametrize(("size", "number"), [(10, 3000), (100_000, 100)])
async def test_a_handler_that_raises_never_tears_a_frame(size, number):
    async with Pool(1) as pool:
        async with pool.stream(interrupts_itself_while_it_reports, size, number) as call:
            assert all(len(event.value) == size for event in await read(call))
            assert await call.result() == "whole"
        assert pool.statistics().workers[0].processes == 1


@pytest.mark.parametrize("size", [10, 100_000])
async def test_a_soft_interrupt_never_tears_a_frame(size):
    ladder = Ladder(interrupt=5.0)
    async with Pool(1, ladder=ladder) as pool:
        pid = await pool.call(os.getpid)
        for stop in range(20):
            async with pool.stream(says_without_end, size) as call:
                for _ in range(stop):
                    await anext(call)
            assert await pool.call(os.getpid) == pid


async def test_a_cooperative_ladder_lets_the_callable_return():
    async with Pool(1, ladder=Ladder(interrupt=5.0, cooperative=True)) as pool:
        pid = await pool.call(os.getpid)
        with pytest.raises(CallTimeout):
            await pool.call(waits_for_a_cancel, timeout=0.05)
        assert await pool.call(os.getpid) == pid
        async with pool.stream(waits_for_a_cancel) as call:
            await anext(call)
        assert await pool.call(os.getpid) == pid


async def test_a_cooperative_ladder_ends_who_does_not_cooperate():
    async with Pool(1, ladder=Ladder(interrupt=0.02, cooperative=True)) as pool:
        pid = await pool.call(os.getpid)
        with pytest.raises(CallTimeout):
            await pool.call(time.sleep, 60, timeout=0.05)
        assert await pool.call(os.getpid) != pid


async def test_a_call_knows_its_deadline():
    async with Pool(1) as pool:
        assert await pool.call(seconds_left) is None
        assert 0 < await pool.call(seconds_left, timeout=5.0) <= 5.0
        assert 0 < await pool.call(seconds_left, phase="check", limits=Limits(check=7.0)) <= 7.0
    assert current_call().deadline is None
    assert not current_call().cancelled


async def test_a_lease_and_a_worker_stream_too():
    async with Pool(2) as pool, pool.lease("cpu") as worker, worker.stream(says, 1) as call:
        assert await read(call) == [CallReport(1)]
    async with Worker() as worker, worker.stream(says, 1) as call:
        assert await read(call) == [CallReport(1)]


async def test_a_stream_is_its_block():
    async with Pool(1) as pool:
        stream = pool.stream(says, 1)
        with pytest.raises(RuntimeError, match="async with"):
            await anext(stream)
        async with stream:
            pass
        with pytest.raises(RuntimeError, match="once"):
            async with stream:
                pass
    with pytest.raises(PoolClosed):
        async with pool.stream(says, 1):
            pass


async def test_closing_the_pool_ends_a_stream():
    pool = await Pool(1).open()
    async with pool.stream(says_without_end, 10) as call:
        await anext(call)
        await pool.aclose()
        with pytest.raises(PoolClosed):
            await read(call)
        with pytest.raises(PoolClosed):
            await call.result()


async def test_a_full_queue_is_an_outcome_of_its_phase():
    async with Pool(1, max_pending=1, limits=Limits(queue=0.02)) as pool:
        running = [asyncio.create_task(pool.call(time.sleep, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        async with pool.stream(says, 1) as call:
            with pytest.raises(CallTimeout, match="queue"):
                await read(call)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
