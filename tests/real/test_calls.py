"""Calls into real processes: what comes back, in every way in which a call can end."""

import asyncio
import ctypes
import functools
import os
import signal
import sys
import threading
import time

import anyio
import msgspec
import numpy as np
import psutil
import pytest

from tunewire import Limits, OutcomeKind, Pool, Worker, current_call
from tunewire.errors import (
    CallTimeout,
    DecodeError,
    DeviceFault,
    EncodeError,
    PoolClosed,
    PoolSaturated,
    RemoteError,
    RemoteTraceback,
    WireError,
    WorkerCrashed,
)

pytestmark = pytest.mark.asyncio


def add(a, b=0):
    return a + b


async def later(value):
    await asyncio.sleep(0)
    return value, os.getpid()


class Custom(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code} {text}")


def fail_oddly():
    raise Custom(1, "two")


def sleep_for_ever():
    time.sleep(1000)


async def until_running(pool, name):
    """Until a worker of the pool runs a callable of this name."""
    while name not in [
        worker.callable_name for worker in pool.statistics().workers if worker.state == "busy"
    ]:
        await asyncio.sleep(0.001)


async def test_values_arguments_and_keyword_arguments():
    async with Pool(2) as pool:
        assert await pool.call(add, 1, kwargs={"b": 2}) == 3
        assert await pool.call(lambda: None) is None
        offset = 40
        assert await pool.call(lambda x: x + offset, 2) == 42
        assert await pool.call(functools.partial(add, b=5), 1) == 6
        assert await pool.call("a,b".split, ",") == ["a", "b"]


async def test_an_async_callable_is_awaited_in_the_worker_and_keeps_its_loop():
    def loop_id():
        return id(asyncio.get_event_loop_policy())

    async def running_loop():
        return id(asyncio.get_running_loop())

    async with Worker() as worker:
        assert await worker.call(later, 5) == (5, worker.pid)
        assert await worker.call(running_loop) == await worker.call(running_loop)
        assert await worker.call(loop_id)


async def test_a_call_runs_on_the_main_thread():
    async with Worker() as worker:
        assert await worker.call(lambda: threading.current_thread() is threading.main_thread())


async def test_arrays_travel_both_ways_and_are_writable():
    def double(array):
        array *= 2
        return array

    async with Worker() as worker:
        array = np.arange(1_000_000.0)
        doubled = await worker.call(double, array)
        assert (doubled == 2 * np.arange(1_000_000.0)).all()
        assert (array == np.arange(1_000_000.0)).all()
        doubled[0] = 1.0


async def test_an_exception_is_raised_as_itself_with_the_remote_traceback_as_its_cause():
    def boom():
        raise KeyError("k")

    async with Worker() as worker:
        with pytest.raises(KeyError) as caught:
            await worker.call(boom)
        assert caught.value.args == ("k",)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "in boom" in caught.value.__cause__.text
        assert "tunewire" not in caught.value.__cause__.text, "the runner's own frames are left out"


@pytest.mark.parametrize("leave", [lambda: sys.exit(3), lambda: signal.raise_signal(signal.SIGINT)])
async def test_leaving_the_interpreter_is_an_error_of_the_call_and_keeps_the_process(leave):
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        with pytest.raises(RemoteError):
            await worker.call(leave)
        assert await worker.call(os.getpid) == pid


async def test_what_cannot_travel_costs_its_own_call_and_says_which_part():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        with pytest.raises(EncodeError, match=r"\[0\]\[1\]"):
            await worker.call(add, [1, threading.Lock()])
        with pytest.raises(EncodeError, match=r"\['a'\]"):
            await worker.call(lambda: {"a": threading.Lock()})
        with pytest.raises(RemoteError, match="Custom: 1 two"):
            await worker.call(fail_oddly)
        assert await worker.call(os.getpid) == pid


class FailsToLoad:
    def __reduce__(self):
        return int, ("no number",)


async def test_what_cannot_be_rebuilt_costs_its_own_call():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        with pytest.raises(DecodeError, match="no number"):
            await worker.call(add, FailsToLoad())
        with pytest.raises(DecodeError, match="no number"):
            await worker.call(FailsToLoad)
        assert await worker.call(os.getpid) == pid


async def test_a_returned_exception_is_a_value():
    async with Worker() as worker:
        assert isinstance(await worker.call(lambda: ValueError("x")), ValueError)


CRASHES = {
    "SIGSEGV": lambda: ctypes.memset(0, 0, 1),
    "SIGABRT": os.abort,
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGBUS": lambda: os.kill(os.getpid(), signal.SIGBUS),
}


@pytest.mark.parametrize("name", CRASHES)
async def test_a_crash_names_the_signal_and_costs_its_own_call(name):
    def crash():
        print("last words", file=sys.stderr)
        CRASHES[name]()

    async with Worker() as worker:
        outcome = await worker.run(crash)
        assert outcome.kind is OutcomeKind.CRASH
        assert isinstance(outcome.error, WorkerCrashed)
        assert isinstance(outcome.error, ChildProcessError)
        assert outcome.error.signal == name
        assert "last words" in outcome.error.stderr
        assert outcome.error.pid == outcome.pid
        assert await worker.call(add, 1) == 1
        assert worker.pid != outcome.pid


async def test_an_exit_is_a_crash_with_its_code():
    async with Worker() as worker:
        with pytest.raises(WorkerCrashed, match="exited with code 7") as caught:
            await worker.call(os._exit, 7)
        assert caught.value.exit_code == 7


async def test_a_crash_costs_no_other_call():
    async with Pool(3) as pool:
        outcomes = await asyncio.gather(
            *(pool.run(os._exit, 1) if i % 5 == 0 else pool.run(add, i) for i in range(30))
        )
    assert [outcome.kind is OutcomeKind.CRASH for outcome in outcomes] == [i % 5 == 0 for i in range(30)]
    assert all(outcome.value == i for i, outcome in enumerate(outcomes) if i % 5)


def ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sleep_for_ever()


def hold_the_gil():
    ctypes.PyDLL(None).sleep(1000)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    "hang", [sleep_for_ever, ignore_sigterm, hold_the_gil, stop], ids=lambda f: f.__name__
)
async def test_a_timeout_is_kept_whatever_the_child_does(hang):
    async with Worker() as worker:
        await worker.call(add, 1)
        pid = worker.pid
        outcome = await worker.run(hang, timeout=0.1)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert isinstance(outcome.error, CallTimeout)
        assert (outcome.error.phase, outcome.error.limit) == ("run", 0.1)
        assert await worker.call(os.getpid) != pid
        assert not psutil.pid_exists(pid)


async def test_each_stage_has_its_own_limit():
    def stages():
        current_call().enter("check")
        sleep_for_ever()

    limits = Limits(compile=20.0, check=0.1, run=20.0)
    async with Worker(limits=limits) as worker:
        with pytest.raises(CallTimeout) as caught:
            await worker.call(stages, phase="compile")
        assert (caught.value.phase, caught.value.limit) == ("check", 0.1)


async def test_a_limit_counts_from_the_start_of_execution_and_not_from_the_queue():
    async with Pool(1) as pool:
        calls = [pool.run(time.sleep, 0.15, timeout=0.9) for _ in range(8)]
        assert {outcome.kind for outcome in await asyncio.gather(*calls)} == {OutcomeKind.COMPLETED}


async def test_waiting_for_a_worker_has_a_limit_of_its_own():
    async with Pool(1, limits=Limits(queue=0.05)) as pool:
        first = asyncio.create_task(pool.run(time.sleep, 0.5))
        await asyncio.sleep(0)
        with pytest.raises(CallTimeout) as caught:
            await pool.call(add, 1)
        assert caught.value.phase == "queue"
        assert (await first).ok


@pytest.mark.parametrize("scope", ["task.cancel", "asyncio.timeout", "anyio.move_on_after", "TaskGroup"])
async def test_cancelling_the_awaiting_task_stops_the_work(scope):
    async def fail_when_it_runs(pool):
        await until_running(pool, "sleep_for_ever")
        raise ZeroDivisionError

    async with Pool(1) as pool:
        await pool.call(add, 1)
        pid = pool.statistics().workers[0].pid
        if scope == "task.cancel":
            task = asyncio.create_task(pool.call(sleep_for_ever))
            await until_running(pool, "sleep_for_ever")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif scope == "asyncio.timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await pool.call(sleep_for_ever)
        elif scope == "anyio.move_on_after":
            with anyio.move_on_after(0.05) as moved:
                await pool.call(sleep_for_ever)
            assert moved.cancelled_caught
        else:
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(pool.call(sleep_for_ever))
                    group.create_task(fail_when_it_runs(pool))
        assert pool.statistics().outcomes["cancelled"] == 1
        await pool.settled()
        assert not psutil.pid_exists(pid)
        assert await pool.call(add, 2) == 2


async def test_a_cancelled_call_that_waits_never_begins(tmp_path):
    mark = tmp_path / "mark"
    async with Pool(1) as pool:
        running = asyncio.create_task(pool.call(time.sleep, 0.2))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(pool.call(mark.touch))
        await asyncio.sleep(0)
        waiting.cancel()
        await running
        await pool.drain()
    assert not mark.exists()


async def test_what_a_call_prints_is_on_its_outcome_and_nowhere_else(capfd):
    def chatter(text):
        print(text)
        os.write(1, b"raw ")
        print("err", file=sys.stderr)
        os.write(2, b"raw err")

    async with Pool(2) as pool:
        outcomes = await asyncio.gather(*(pool.run(chatter, f"text {i}") for i in range(10)))
    for i, outcome in enumerate(outcomes):
        assert outcome.stdout == f"text {i}\nraw "
        assert outcome.stderr == "err\nraw err"
    assert capfd.readouterr() == ("", "")


async def test_a_flood_of_output_is_bounded_and_harmless():
    def flood():
        for _ in range(200):
            os.write(1, b"x" * 50_000)
            os.write(2, b"y" * 50_000)
        os.write(1, b"end")

    async with Worker() as worker:
        outcome = await worker.run(flood)
        assert outcome.stdout.endswith("xend")
        assert len(outcome.stdout) <= 16 * 1024
        assert set(outcome.stderr) == {"y"}
        assert (await worker.run(flood, timeout=0.001)).kind in (OutcomeKind.TIMEOUT, OutcomeKind.COMPLETED)


async def test_the_standard_descriptors_are_the_callables_own():
    def close_and_read():
        os.close(0)
        os.close(1)
        return True

    def read():
        return sys.stdin.read()

    async with Worker() as worker:
        assert await worker.call(read) == ""
        assert await worker.call(close_and_read)
        assert await worker.call(add, 1) == 1


async def test_an_initializer_runs_once_for_each_process_and_before_its_first_call():
    def prepare(a, b):
        os.environ["PREPARED"] = f"{os.environ.get('PREPARED', '')}{a}{b}"

    async with Worker(initializer=prepare, initargs=("x", "y")) as worker:
        for _ in range(2):
            assert await worker.call(os.getenv, "PREPARED") == "xy"
        await worker.run(os._exit, 1)
        assert await worker.call(os.getenv, "PREPARED") == "xy"


async def test_an_initializer_that_fails_gives_its_error_and_no_call_begins(tmp_path):
    mark = tmp_path / "mark"

    def prepare():
        raise LookupError("no device")

    async with Worker(initializer=prepare) as worker:
        for _ in range(2):
            with pytest.raises(LookupError, match="no device"):
                await worker.call(mark.touch)
    assert not mark.exists()


async def test_an_initializer_that_hangs_is_a_timeout_of_its_phase():
    async with Worker(initializer=sleep_for_ever, limits=Limits(init=0.1)) as worker:
        with pytest.raises(CallTimeout) as caught:
            await worker.call(add, 1)
        assert caught.value.phase == "init"


class Point(msgspec.Struct):
    x: float


def write_garbage():
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            try:
                os.write(int(name), b"garbage that is no frame at all, but long enough")
            except OSError:
                continue
    time.sleep(10)


async def test_results_as_msgspec_are_rebuilt_and_checked_and_never_unpickled():
    async with Worker(results="msgspec") as worker:
        assert await worker.call(Point, 1.5, result_type=Point) == Point(1.5)
        with pytest.raises(DecodeError, match="Expected `int`"):
            await worker.call(add, 1.5, result_type=int)
        with pytest.raises(EncodeError):
            await worker.call(threading.Lock)
        with pytest.raises(RemoteError, match="Custom"):
            await worker.call(fail_oddly)
        with pytest.raises(KeyError):
            await worker.call({}.__getitem__, "k")


async def test_a_child_that_breaks_the_protocol_loses_its_process_only():
    async with Worker() as worker:
        outcome = await worker.run(write_garbage)
        assert outcome.kind is OutcomeKind.CRASH
        assert isinstance(outcome.error, WireError)
        assert await worker.call(add, 1) == 1


async def test_a_child_that_closes_its_channel_and_lives_is_given_up_at_once():
    def close_everything():
        os.closerange(3, 100)
        sleep_for_ever()

    async with Worker() as worker:
        await worker.call(add, 1)
        pid = worker.pid
        with pytest.raises(WorkerCrashed, match="closed its channel and went on running"):
            await worker.call(close_everything)
        assert await worker.call(add, 1) == 1
        assert not psutil.pid_exists(pid)


async def test_a_device_fault_replaces_the_process():
    def fault():
        raise DeviceFault(reason="illegal address", device="cuda:0")

    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        outcome = await worker.run(fault)
        assert outcome.kind is OutcomeKind.DEVICE_FAULT
        assert isinstance(outcome.error, DeviceFault)
        assert await worker.call(os.getpid) != pid


async def test_a_frame_over_the_limit_is_refused_where_it_is_made():
    async with Worker(max_frame_bytes=100_000) as worker:
        pid = await worker.call(os.getpid)
        with pytest.raises(EncodeError, match="limit is 100000"):
            await worker.call(len, bytes(200_000))
        with pytest.raises(EncodeError, match="limit is 100000"):
            await worker.call(bytes, 200_000)
        assert await worker.call(os.getpid) == pid


async def test_a_full_queue_makes_callers_wait_or_refuses():
    async with Pool(1, max_pending=2) as pool:
        outcomes = await asyncio.gather(*(pool.run(add, i) for i in range(20)))
        assert [outcome.value for outcome in outcomes] == list(range(20))
    async with Pool(1, max_pending=2, when_full="raise") as pool:
        results = await asyncio.gather(*(pool.run(add, i) for i in range(5)), return_exceptions=True)
        assert sum(isinstance(result, PoolSaturated) for result in results) == 2
        assert sum(not isinstance(result, BaseException) for result in results) == 3


async def test_map_keeps_the_order_takes_items_as_it_goes_and_stops_early():
    taken = []

    def items():
        for i in range(10_000):
            taken.append(i)
            yield i

    async with Pool(2) as pool:
        async with pool.map(add, items()) as results:
            async for value in results:
                if value == 5:
                    break
        assert len(taken) < 30
        await pool.drain()

        async def endless():
            for i in range(3):
                yield i

        async with pool.map(add, endless(), ordered=False) as results:
            assert sorted([value async for value in results]) == [0, 1, 2]


async def test_map_raises_at_the_first_failure_and_map_outcomes_does_not():
    def invert(x):
        return 1 / x

    async with Pool(2) as pool:
        with pytest.raises(ZeroDivisionError):
            async with pool.map(invert, [1, 0, 2]) as results:
                assert [value async for value in results]
        async with pool.map_outcomes(os._exit, [1, threading.Lock(), 2]) as outcomes:
            kinds = [outcome.kind async for outcome in outcomes]
        assert kinds == [OutcomeKind.CRASH, OutcomeKind.ERROR, OutcomeKind.CRASH]
        async with pool.map_outcomes(time.sleep, [0, 1000, 0], timeout=0.2) as outcomes:
            kinds = [outcome.kind async for outcome in outcomes]
        assert kinds == [OutcomeKind.COMPLETED, OutcomeKind.TIMEOUT, OutcomeKind.COMPLETED]


async def test_a_lease_is_exclusive_until_its_block_ends():
    async with Pool(2) as pool:
        async with pool.lease("cpu") as worker:
            pid = await worker.call(os.getpid)
            assert worker.pid == pid
            others = await asyncio.gather(*(pool.call(os.getpid) for _ in range(6)))
            assert pid not in others
            second = asyncio.create_task(call_on_lease(pool))
            await pool.call(add, 1)
            assert not second.done()
        assert await second in {pid, *others}
        with pytest.raises(PoolClosed, match="lease has ended"):
            await worker.call(add, 1)


async def call_on_lease(pool):
    async with pool.lease("cpu") as worker:
        return await worker.call(os.getpid)


async def test_a_lease_is_granted_only_when_the_old_work_is_gone():
    async with Pool(1) as pool:
        async with pool.lease("cpu") as worker:
            pid = await worker.call(os.getpid)
            hanging = asyncio.create_task(worker.run(ignore_sigterm))
            await until_running(pool, "ignore_sigterm")
        assert (await hanging).kind is OutcomeKind.CANCELLED
        async with pool.lease("cpu") as worker:
            assert not psutil.pid_exists(pid)
            assert await worker.call(add, 1) == 1


async def test_a_cancelled_wait_for_a_lease_gives_it_up():
    async with Pool(1) as pool:
        async with pool.lease("cpu"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02), pool.lease("cpu"):
                    pytest.fail("granted twice")
        assert await pool.call(add, 1) == 1


async def test_a_worker_can_be_killed_and_joined_and_serves_again():
    async with Worker() as worker:
        assert not worker.is_alive()
        running = asyncio.create_task(worker.run(sleep_for_ever))
        while not worker.is_alive():
            await asyncio.sleep(0.001)
        pid = worker.pid
        await worker.kill()
        assert not psutil.pid_exists(pid)
        outcome = await running
        assert outcome.kind is OutcomeKind.CRASH
        await worker.join(1.0)
        assert await worker.call(add, 1) == 1
        with pytest.raises(TimeoutError):
            await worker.join(0.01)


async def test_statistics_say_what_runs_where():
    async with Pool(2) as pool:
        running = asyncio.create_task(pool.run(sleep_for_ever, timeout=0.3))
        await until_running(pool, "sleep_for_ever")
        (busy,) = (worker for worker in pool.statistics().workers if worker.state == "busy")
        assert busy.callable_name == "sleep_for_ever"
        assert pool.statistics().running == 1
        await running
        assert pool.statistics().outcomes == {"timeout": 1}
