"""What was tried against interrupts, spares, leases and early cancels, each kept as its smallest case."""

import asyncio
import os
import signal
import time

import psutil
import pytest

from tunewire import Ladder, Limits, OutcomeKind, Pool, Worker
from tunewire.errors import NoSuchDevice, PoolClosed

pytestmark = pytest.mark.asyncio

SOFT = Ladder(interrupt=2.0)


def identity(x):
    return x


def hang():
    time.sleep(1000)


def processes():
    return len(psutil.Process().children(recursive=True))


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


# Interrupts.


@pytest.fixture
def module_that_hangs(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(
        "import pathlib, time\npathlib.Path(__file__ + '.begun').touch()\ntime.sleep(1000)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "slow_to_import.py.begun"


def import_it():
    import slow_to_import  # noqa: F401


def import_it_and_say_nothing():
    try:
        import slow_to_import  # noqa: F401
    except BaseException:  # noqa: BLE001, S110 — what is tried is a callable that swallows its interrupt
        pass


@pytest.mark.parametrize("importing", [import_it, import_it_and_say_nothing])
async def test_a_process_with_a_half_made_import_is_not_kept(module_that_hangs, importing):
    async with Worker(ladder=SOFT) as worker:
        pid = await worker.call(os.getpid)
        call = asyncio.ensure_future(worker.call(importing))
        await until(module_that_hangs.exists)
        call.cancel()
        assert await worker.call(os.getpid) != pid


async def test_an_import_that_is_over_does_not_count():
    def import_then_hang():
        import wave  # noqa: F401

        time.sleep(1000)

    async with Worker(ladder=SOFT) as worker:
        pid = await worker.call(os.getpid)
        assert (await worker.run(import_then_hang, timeout=0.2)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) == pid


# Spares.


@pytest.mark.parametrize("how", ["drain", "aclose"])
async def test_a_spare_whose_initializer_hangs_holds_up_nobody(how):
    async with Pool(1, spares=1, initializer=hang, limits=Limits(init=None)) as pool:
        await until(lambda: processes() == 2)  # the spare and its guard
        async with asyncio.timeout(4.0):
            await getattr(pool, how)()
        assert processes() == 0


async def test_a_spare_that_hangs_in_a_module_to_preload_holds_up_nobody(module_that_hangs):
    pool = await Pool(1, spares=1, preload=["slow_to_import"], limits=Limits(start=None)).open()
    await until(module_that_hangs.exists)
    async with asyncio.timeout(4.0):
        await pool.aclose()
    assert processes() == 0


async def test_draining_again_and_again_wears_no_spares_out():
    async with Pool(1, spares=1) as pool:
        for _ in range(5):
            await pool.call(identity, 1)
            await until(lambda: pool.statistics().spares == 1)
            await pool.drain()
            assert processes() == 0


@pytest.mark.parametrize("pause", [0, 1, 3])
async def test_a_spare_that_is_killed_as_it_is_taken_costs_no_call(pause):
    async with Pool(1, spares=1, initializer=identity, initargs=(1,)) as pool:
        for _ in range(5):
            worker = await pool.call(os.getpid)
            await until(lambda: pool.statistics().spares == 1)
            guards = psutil.Process().children()
            spare = next(p.pid for guard in guards for p in guard.children() if p.pid != worker)
            os.kill(spare, signal.SIGKILL)
            await turns(pause)
            os.kill(worker, signal.SIGKILL)
            assert await pool.call(identity, 2) == 2


# Leases.


async def is_usable(pool, device):
    async with asyncio.timeout(20):
        assert await pool.call(identity, 1) == 1
        async with pool.lease(device) as worker:
            assert await worker.call(identity, 2) == 2


@pytest.mark.parametrize(
    ("device", "error"), [("cuda:9", NoSuchDevice), ("", TypeError), (None, TypeError), (0, TypeError)]
)
async def test_a_lease_that_is_refused_leaves_the_pool_as_it_was(device, error):
    async with Pool(devices=["cpu"]) as pool:
        with pytest.raises(error):
            async with pool.lease(device):
                pass
        await is_usable(pool, "cpu")


async def test_a_lease_that_is_cancelled_at_any_turn_gives_the_device_back():
    async def hold(pool):
        async with pool.lease("cpu") as worker:
            await worker.call(identity, 1)

    async with Pool(devices=["cpu"]) as pool:
        for count in range(12):
            first, second = asyncio.ensure_future(hold(pool)), asyncio.ensure_future(hold(pool))
            await turns(count)
            first.cancel()
            await turns(count % 3)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
        await is_usable(pool, "cpu")


async def test_a_pool_that_closes_ends_whoever_waits_for_a_lease():
    async def hold(pool):
        async with pool.lease("cpu"):
            await asyncio.sleep(1000)

    for count in range(4):
        pool = await Pool(devices=["cpu"]).open()
        holder = asyncio.ensure_future(hold(pool))
        await turns(3)
        waiter = asyncio.ensure_future(hold(pool))
        await turns(count)
        await pool.aclose()
        with pytest.raises(PoolClosed):
            await waiter
        holder.cancel()
        await asyncio.gather(holder, return_exceptions=True)


# Cancels.


@pytest.mark.parametrize(
    "options",
    [
        {"size": 1},
        {"size": 1, "initializer": identity, "initargs": (1,)},
        {"size": 1, "initializer": identity, "initargs": (1,), "spares": 1},
        {"devices": ["cpu"], "initializer": identity, "initargs": (1,), "spares": 1},
        {"size": 1, "ladder": SOFT},
    ],
    ids=["plain", "initializer", "spare", "pinned spare", "interrupt"],
)
async def test_a_call_that_is_cancelled_at_any_moment_has_one_outcome_and_leaves_its_slot(options):
    async with Pool(**options) as pool:
        for moment in range(30):
            if moment % 3 == 0:
                assert await pool.call(identity, 0) == 0
            call = asyncio.ensure_future(pool.call(identity, moment))
            # The first turns one by one, and then through starting, promoting, initialising and the call itself.
            await turns(moment) if moment < 15 else await asyncio.sleep((moment - 15) * 0.004)
            call.cancel()
            try:
                assert await call == moment
            except asyncio.CancelledError:
                pass  # it may have had its outcome by then, and only not been told
            if moment % 5 == 4:
                await pool.end_processes("the next call is to start one")
        await pool.settled()
        statistics = pool.statistics()
        assert statistics.running == statistics.waiting == 0
        # One outcome each; the task that is cancelled before its first turn has not called anything.
        assert sum(statistics.outcomes.values()) == 30 - 1 + 10
        assert set(statistics.outcomes) == {"completed", "cancelled"}
        assert await pool.call(identity, 1) == 1
        await pool.drain()
        assert processes() == 0
