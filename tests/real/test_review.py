"""What demanding readers of the code found, each as the smallest case."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from tunewire import ChildEndpoint, Limits, OutcomeKind, ParentEndpoint, Pool, Recycle, Worker
from tunewire.errors import CallTimeout, EncodeError, PoolClosed, PoolSaturated, WorkerCrashed

pytestmark = pytest.mark.asyncio


def add(a, b=0):
    return a + b


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("turns", range(12))
async def test_draining_ends_spares_that_are_still_starting(turns):
    """Also those whose process is only being spawned: in the first turns of the loop."""
    async with Pool(1, spares=2) as pool:
        for _ in range(turns):
            await asyncio.sleep(0)
        await pool.drain()
        assert psutil.Process().children() == []


@pytest.mark.parametrize("turns", range(12))
async def test_a_spawn_that_was_cancelled_has_left_nothing_when_it_is_over(turns):
    spawning = asyncio.create_task(
        ParentEndpoint.spawn([sys.executable, "-c", "import time; time.sleep(60)"])
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert psutil.Process().children() == []


async def test_draining_is_not_held_up_by_calls_that_come():
    async with Pool(1, spares=1) as pool:
        calls = [asyncio.create_task(pool.call(add, i)) for i in range(3)]
        await asyncio.sleep(0)
        draining = asyncio.create_task(pool.drain())
        await asyncio.gather(*calls)
        await pool.call(add, 1)
        await draining


async def test_an_idle_spare_that_dies_is_replaced():
    async with Pool(1, spares=1) as pool:
        await pool.call(add, 1)
        await until(lambda: pool.statistics().spares == 1)
        ((started, _),) = pool._spares[None]._ready
        os.kill(started.pid, signal.SIGKILL)
        await until(lambda: pool._spares[None]._ready and pool._spares[None]._ready[0][0].pid != started.pid)


async def test_items_of_a_map_may_reuse_one_buffer():
    buffer = np.zeros(100_000)

    def items():
        for i in range(6):
            buffer[:] = i
            yield buffer

    async with Pool(1) as pool, pool.map(lambda array: float(array[0]), items()) as results:
        assert [value async for value in results] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


SLEEPER = """
import asyncio, subprocess, sys
from tunewire import ChildEndpoint
async def main():
    async with ChildEndpoint() as child:
        grandchild = subprocess.Popen(["sleep", "1000"])
        await child.send(grandchild.pid)
        try:
            await child.receive()
        except EOFError:
            {then}
asyncio.run(main())
"""


@pytest.mark.parametrize("then", ["pass", "await asyncio.sleep(1000)"])
async def test_closing_an_endpoint_leaves_no_grandchild_however_the_child_ends(then):
    async with await ParentEndpoint.spawn([sys.executable, "-c", SLEEPER.replace("{then}", then)]) as parent:
        grandchild = await parent.receive()
        assert psutil.pid_exists(grandchild)
    await until(lambda: not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == "zombie")


async def test_a_closing_that_the_end_of_the_loop_cuts_short_still_kills():
    script = f"""
import asyncio, sys
from tunewire import ParentEndpoint
SLEEPER = {SLEEPER.replace("{then}", "await asyncio.sleep(1000)")!r}
async def main():
    parent = await ParentEndpoint.spawn([sys.executable, "-c", SLEEPER])
    print(parent.pid, await parent.receive(), flush=True)
    closing = asyncio.create_task(parent.aclose())
    await asyncio.sleep(0)
    closing.cancel()
asyncio.run(main())
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    await until(
        lambda: not any(psutil.pid_exists(p) and psutil.Process(p).status() != "zombie" for p in pids)
    )


async def test_a_wrong_codec_starts_nothing():
    with pytest.raises(ValueError, match="codec"):
        await ParentEndpoint.spawn(["/bin/sleep", "1000"], codec="json")
    with pytest.raises(RuntimeError):
        ChildEndpoint()


async def test_exit_codes_are_never_lost_to_a_signal():
    async with Pool(2) as pool:
        for _ in range(15):
            await asyncio.gather(*(pool.run(os._exit, 3) for _ in range(2)))
        await pool.settled()
        codes = {told.exit_code for told in pool.postmortems()}
    assert codes == {3}


async def test_a_pool_is_not_opened_after_it_was_closed():
    pool = Pool(1)
    await pool.aclose()
    with pytest.raises(RuntimeError, match="make a new one"):
        await pool.open()
    await pool.aclose()


async def test_a_full_sink_holds_nothing_up():
    read, write = os.pipe()
    try:
        async with Worker(stdout=write) as worker:
            outcome = await worker.run(lambda: print("x" * 500_000))
            assert outcome.ok
            assert len(outcome.stdout) == 16 * 1024
            assert await worker.call(add, 1) == 1
    finally:
        os.close(read)
        os.close(write)


async def test_what_was_ended_on_purpose_is_not_run_again():
    async with Worker(recycle=Recycle(tree_bytes=150 << 20)) as worker:
        outcome = await worker.run(
            lambda: len(b"x" * (400 << 20)) and ctypes.CDLL(None).sleep(1000), idempotent=True
        )
        assert isinstance(outcome.error, WorkerCrashed)
        assert "the limit is" in str(outcome.error)
    async with Worker() as worker:
        call = asyncio.create_task(worker.run(sleep_for_ever, idempotent=True))
        await until(lambda: worker._pool.statistics().running == 1 and worker.pid is not None)
        await worker.kill()
        assert (await call).kind is OutcomeKind.CRASH


def sleep_for_ever():
    ctypes.CDLL(None).sleep(1000)


class Falsy(Exception):
    def __len__(self):
        return 0


class Stubborn(Exception):
    def __bool__(self):
        raise ZeroDivisionError


class StartError(Exception):
    """Of the user's own, with a name that is one of ours too."""


class Stop(StopIteration):
    pass


class OddGroup(ExceptionGroup):
    @property
    def exceptions(self):
        raise ZeroDivisionError


class OddText(str):
    def encode(self, *args):
        raise ZeroDivisionError


class Worded(Exception):
    def __str__(self):
        return OddText("worded")


def raise_it(make):
    raise make()


def raise_from(make):
    raise ValueError("x") from make()


@pytest.mark.parametrize("results", ["pickle", "msgspec"])
async def test_any_exception_is_an_error_of_its_call_and_keeps_the_process(results):
    makes = [Falsy, Stubborn, StartError, Stop, Worded, make_odd_group]
    async with Worker(results=results) as worker:
        pid = await worker.call(os.getpid)
        for make in makes:
            for raising in (raise_it, raise_from):
                outcome = await worker.run(raising, make)
                assert outcome.kind is OutcomeKind.ERROR, (make, raising)
                if results == "pickle" and raising is raise_it and make in (Falsy, StartError):
                    assert type(outcome.error) is make
                if raising is raise_from:
                    assert outcome.error.__cause__.__cause__ is not None
        assert await worker.call(os.getpid) == pid


def make_odd_group():
    return OddGroup("several", [ValueError(1)])


async def test_the_agreed_size_of_a_frame_holds_for_both_sides_of_an_endpoint():
    source = """
import asyncio
from tunewire import ChildEndpoint
from tunewire.errors import EncodeError
async def main():
    async with ChildEndpoint() as child:
        try:
            await child.send(b"x" * 100_000)
        except EncodeError:
            await child.send("refused")
asyncio.run(main())
"""
    async with await ParentEndpoint.spawn([sys.executable, "-c", source], max_frame_bytes=4096) as parent:
        with pytest.raises(EncodeError, match="limit is 4096"):
            await parent.send(b"x" * 100_000)
        assert await parent.receive() == "refused"


async def test_maps_keep_the_bound_of_the_queue():
    most = 0

    async def read(pool):
        nonlocal most
        async with pool.map(add, range(20)) as results:
            async for _ in results:
                most = max(most, pool.statistics().waiting)

    async with Pool(1, max_pending=2) as pool:
        await asyncio.gather(*(read(pool) for _ in range(5)))
    assert most <= 2
    async with Pool(1, max_pending=1, when_full="raise") as pool:
        results = await asyncio.gather(*(read(pool) for _ in range(5)), return_exceptions=True)
        assert any(isinstance(result, PoolSaturated) for result in results)


async def test_killing_and_joining_check_that_the_worker_is_open():
    for ask in (Worker().kill, Worker().join):
        with pytest.raises(PoolClosed):
            await ask()


async def test_waiting_for_a_lease_is_under_the_queues_limit():
    async with Pool(1, limits=Limits(queue=0.05)) as pool, pool.lease("cpu"):
        with pytest.raises(CallTimeout) as caught:
            async with pool.lease("cpu"):
                pytest.fail("granted twice")
    assert (caught.value.phase, caught.value.device) == ("queue", "cpu")


async def test_an_outcome_says_whether_its_call_may_have_begun():
    def refuse():
        raise LookupError

    async with Worker(initializer=refuse) as worker:
        outcome = await worker.run(add, 1)
        assert (outcome.phase, outcome.began) == ("init", False)
    async with Worker(preload=["no_such_module"]) as worker:
        assert (await worker.run(add, 1)).phase == "start"
    async with Worker() as worker:
        outcome = await worker.run(os._exit, 1)
        assert (outcome.phase, outcome.began) == ("run", True)


@pytest.mark.parametrize(
    ("options", "error"),
    [({"env": {"A": "\ud800"}}, ValueError), ({"name": 5}, TypeError), ({"env": {"A": 1}}, TypeError)],
)
async def test_odd_options_of_a_call_are_refused_in_plain_words(options, error):
    async with Worker() as worker:
        with pytest.raises(error):
            await worker.call(add, 1, **options)
        assert await worker.call(add, 1) == 1


async def test_whatever_is_awaitable_is_awaited():
    class Later:
        def __await__(self):
            yield from asyncio.sleep(0).__await__()
            return "awaited"

    async with Worker() as worker:
        assert await worker.call(Later) == "awaited"


async def test_the_memory_of_a_tree_is_looked_at_ten_times_a_second_and_not_more(monkeypatch):
    from tunewire.workers import driver

    looks = 0

    def look(pid):
        nonlocal looks
        looks += 1
        return 0

    monkeypatch.setattr(driver, "tree_bytes", look)
    async with Worker(recycle=Recycle(tree_bytes=1 << 40)) as worker:
        await worker.call(nap, 0)
        looks = 0
        for i in range(100):
            await worker.call(add, i)
        assert 100 <= looks <= 110, "once after each, and hardly ever within one"
        looks = 0
        await worker.call(nap, 0.55)
    assert looks <= 7


def nap(seconds):
    import time

    time.sleep(seconds)
