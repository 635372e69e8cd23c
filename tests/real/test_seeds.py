"""What the suites of the systems before this one check of their pools and processes, as behaviour of ours.

`test_coverage_of_reports` says which test stands for which of their lines; those not here are elsewhere in `tests/`.
"""

import asyncio
import codecs
import ctypes
import os
import signal
import sys
import time

import psutil
import pytest

from tunewire import OutcomeKind, Pool, Recycle, Worker
from tunewire.errors import CallTimeout, NoSuchDevice, WorkerCrashed

pytestmark = pytest.mark.asyncio

DEVICE_MASK = "CUDA_VISIBLE_DEVICES"


def identity(x):
    return x


def sleep_for_ever():
    time.sleep(1000)


def sleep_and_return(seconds):
    time.sleep(seconds)
    return seconds


class Plain:
    def __init__(self, text):
        self.text = text


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


# One worker, one pool.


async def test_one_worker_object_goes_through_a_timeout_an_exit_and_values():
    """Ten milliseconds are less than a process takes to come up, which is not counted."""
    async with Worker() as worker:
        with pytest.raises(TimeoutError):
            await worker.call(sleep_for_ever, timeout=0.01)
        with pytest.raises(ChildProcessError):
            await worker.call(os._exit, 0)
        assert await worker.call(sleep_and_return, 0) == 0
        assert await worker.call(sleep_and_return, 0.0001) == 0.0001


async def test_four_endings_at_once_each_reach_their_own_caller():
    def end_myself():
        os.kill(os.getpid(), signal.SIGTERM)
        sleep_for_ever()

    async with Pool(2) as pool:
        hung, ended, value, thing = await asyncio.gather(
            pool.run(sleep_for_ever, timeout=0.015),
            pool.run(end_myself, timeout=30.0),
            pool.run(identity, 3, timeout=30.0),
            pool.run(Plain, "made there", timeout=30.0),
        )
    assert isinstance(hung.error, CallTimeout)
    assert isinstance(ended.error, WorkerCrashed)
    assert value.unwrap() == 3
    assert thing.unwrap().text == "made there"


async def test_a_use_limit_of_two_gives_processes_a_a_b_and_a_is_gone():
    async with Pool(1, recycle=Recycle(uses=2)) as pool:
        first = await pool.call(os.getpid)
        assert psutil.pid_exists(first)
        assert await pool.call(os.getpid) == first
        assert await pool.call(os.getpid) != first
        assert not psutil.pid_exists(first)


async def test_what_an_initializer_registered_is_found_by_its_name():
    """A registry of the interpreter, written in C: no Python code travels with the call."""

    def register():
        codecs.register_error("seeds", lambda error: ("found", error.end))

    async with Worker(initializer=register) as worker:
        assert await worker.call(b"<\xff>".decode, "ascii", "seeds") == "<found>"


async def test_a_call_that_takes_just_its_limit_completes_or_times_out_and_nothing_else():
    """Of a builtin, since importing the callable's module would be within the limit too."""
    async with Pool(2, spares=1) as pool:
        outcomes = await asyncio.gather(*(pool.run(time.sleep, 0.05, timeout=0.05) for _ in range(16)))
        assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.COMPLETED, OutcomeKind.TIMEOUT}
        assert await pool.call(identity, 1) == 1


# Devices. No GPU is touched: what is looked at is what a process on one would see.


async def test_each_worker_sees_its_own_device_before_its_first_import(tmp_path, monkeypatch):
    """Eight workers, and a module that remembers the mask that stood when it was imported."""
    (tmp_path / "seeds_remembers.py").write_text(f"import os\nMASK = os.environ[{DEVICE_MASK!r}]\n")
    monkeypatch.syspath_prepend(tmp_path)
    parents = [str(number) for number in (7, 3, 5, 1, 6, 2, 4, 0)]
    monkeypatch.setenv(DEVICE_MASK, ",".join(parents))

    def masks():
        return sys.modules["seeds_remembers"].MASK, os.environ[DEVICE_MASK]

    async def on(pool, device):
        async with pool.lease(device) as worker:
            return await worker.call(masks)

    async with Pool(devices=[f"cuda:{index}" for index in range(8)], preload=["seeds_remembers"]) as pool:
        seen = await asyncio.gather(*(on(pool, device) for device in pool.devices))
    assert seen == [(mask, mask) for mask in parents]
    assert os.environ[DEVICE_MASK] == ",".join(parents)


async def test_a_pool_on_the_last_two_of_four_devices_uses_these_two(monkeypatch):
    monkeypatch.setenv(DEVICE_MASK, "4,5,6,7")
    async with Pool(devices=["cuda:2", "cuda:3"]) as pool:

        async def on(device, value):
            async with pool.lease(device) as worker:
                return await worker.call(os.getenv, DEVICE_MASK), await worker.call(identity, value)

        assert await asyncio.gather(on("cuda:2", 1), on("cuda:3", 2)) == [("6", 1), ("7", 2)]


GPU = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-41b359e2-e721-56e5-8009-12797ed51514"


@pytest.mark.parametrize(
    ("mask", "device", "seen"),
    [
        (GPU, "cuda:0", GPU),
        (MIG, "cuda:0", MIG),
        ("1, 0", "cuda:1", "0"),
        ("", None, None),
        ("-1", None, None),
    ],
)
async def test_a_process_gets_its_share_of_the_parents_mask_or_the_pool_is_refused(
    monkeypatch, mask, device, seen
):
    monkeypatch.setenv(DEVICE_MASK, mask)
    if device is None:
        with pytest.raises(NoSuchDevice, match=f"{DEVICE_MASK} is {mask!r}"):
            await Worker(device="cuda:0").open()
    else:
        async with Worker(device=device) as worker:
            assert await worker.call(os.getenv, DEVICE_MASK) == seen


# The tree, shrinking, closing.


async def test_a_guard_that_is_killed_from_outside_ends_the_call_that_runs():
    async with Worker() as worker:
        running = asyncio.create_task(worker.run(sleep_for_ever))
        await until(worker.is_alive)
        await until(lambda: worker._pool.statistics().running == 1)
        (guard,) = psutil.Process().children()
        guard.kill()
        outcome = await running
        assert outcome.kind is OutcomeKind.CRASH
        assert await worker.call(identity, 1) == 1


async def test_draining_twice_at_once_and_again_and_again_loses_no_call():
    async with Pool(2) as pool:
        for turn in range(4):
            calls = [asyncio.create_task(pool.call(identity, (turn, n))) for n in range(6)]
            await asyncio.sleep(0)
            await asyncio.gather(pool.drain(), pool.drain())
            assert [call.result() for call in calls] == [(turn, n) for n in range(6)]
            assert psutil.Process().children() == []


def ignore_sigterm(mark):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark.touch()
    sleep_for_ever()


def hold_the_gil(mark):
    mark.touch()
    ctypes.PyDLL(None).sleep(1000)


async def test_closing_waits_for_no_call_that_is_provably_inside(tmp_path):
    """Two that no signal but SIGKILL can reach, of a thousand seconds each."""
    marks = [tmp_path / "ignores", tmp_path / "holds"]
    async with Pool(2) as pool:
        calls = [
            asyncio.create_task(pool.run(function, mark))
            for function, mark in zip((ignore_sigterm, hold_the_gil), marks, strict=True)
        ]
        await until(lambda: all(mark.exists() for mark in marks))
        processes = psutil.Process().children(recursive=True)
        await pool.aclose()
        assert [call.done() for call in calls] == [True, True]
        assert not [process for process in processes if process.is_running()]
    assert {(await call).kind for call in calls} == {OutcomeKind.CANCELLED}


async def test_while_a_call_runs_it_is_shown_and_what_waits_is_shown_as_waiting():
    async with Pool(1) as pool:
        await pool.call(identity, 1)
        running = asyncio.create_task(pool.run(sleep_for_ever))
        waiting = asyncio.create_task(pool.run(identity, 2, name="the second"))
        await until(lambda: pool.statistics().running == 1)
        shown = pool.statistics()
        (worker,) = shown.workers
        assert (worker.callable_name, worker.state, shown.waiting) == ("sleep_for_ever", "busy", 1)
        assert worker.pid == psutil.Process(worker.pid).pid
        earlier = worker.since
        running.cancel()
        assert (await waiting).ok
        (worker,) = pool.statistics().workers
        assert worker.callable_name is None
        assert worker.since > earlier
        assert [event.call for event in pool.events() if event.kind == "sent"][-1] == "the second"


async def test_an_idle_limit_that_is_armed_and_withdrawn_by_rapid_calls_costs_none():
    """The limit is about as long as the pauses, so that it fires in some and is withdrawn in others."""
    async with Worker(idle_timeout=0.001) as worker:
        for n in range(400):
            assert await worker.call(identity, n) == n
        await worker.join(10.0)
        assert await worker.call(identity, "again") == "again"
        await worker.join(10.0)


async def test_the_guard_forks_while_it_has_one_thread_and_a_worker_begins_with_one():
    def threads_of(pid):
        return len(os.listdir(f"/proc/{pid}/task"))

    def threads():
        return threads_of(os.getppid()), threads_of(os.getpid())

    async with Worker() as worker:
        assert await worker.call(threads) == (1, 1)
