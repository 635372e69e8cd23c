"""The bench in short: what a call costs, against a bare echo in the same process, loop and moment.

The bars are the bench's to judge, on a quiet machine. Here a gross regression is caught, on any machine: the two are
measured in turn, in short blocks; each pair gives a ratio, and the median of the ratios counts. Nothing absolute does.

Both ends stand on one core. Left to the scheduler, a bare echo took 13 us or 100 us, as its ends were put on one core or
on two, and the ratio was 2 or 16; on two, it is mostly the machine's price of waking the other one. On one core it is
that of the code.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.asyncio

DRIVERS = Path(__file__).parents[1] / "benchmarks" / "peers" / "drivers"
PAIRS = 15
CALLS = 40
MOST = 20
"""Times a bare echo; it was 10 where this was written."""


@pytest.fixture
def drivers(monkeypatch):
    monkeypatch.syspath_prepend(str(DRIVERS))
    before = set(sys.modules)
    from process_tree import unpin

    yield
    unpin()
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(DRIVERS):
            del sys.modules[name]


async def block(operation, children, cpu_ns):
    """Median nanoseconds of a call, and CPU nanoseconds of both ends for each."""
    await operation()
    samples = []
    before = time.process_time_ns() + cpu_ns(children)
    for _ in range(CALLS):
        begun = time.perf_counter_ns()
        await operation()
        samples.append(time.perf_counter_ns() - begun)
    cpu = time.process_time_ns() + cpu_ns(children) - before
    return statistics.median(samples), cpu / CALLS


async def test_a_call_costs_a_small_multiple_of_a_bare_echo(drivers):
    from floors import BareEcho
    from ours import Tunewire
    from process_tree import cpu_ns, pin_all

    echo, tunewire = BareEcho(), Tunewire()
    await echo.open(1)
    await tunewire.open(1)
    try:
        pid = await tunewire.pool.call(os.getpid)
        core = max(os.sched_getaffinity(0))
        pin_all(core, [core])
        wall, cpu = [], []
        for _ in range(PAIRS):
            floor = await block(echo.noop, [echo.child.pid], cpu_ns)
            ours = await block(tunewire.noop_within, [pid], cpu_ns)
            wall.append(ours[0] / floor[0])
            cpu.append(ours[1] / floor[1])
    finally:
        await tunewire.close()
        await echo.close()
    assert statistics.median(wall) < MOST, wall
    assert statistics.median(cpu) < MOST, cpu


async def test_many_in_flight_cost_no_more_than_as_many_one_at_a_time(drivers):
    from ours import Tunewire
    from process_tree import pin_all

    one, many = [], []
    tunewire = Tunewire()
    await tunewire.open(1)
    try:
        await tunewire.noop()
        core = max(os.sched_getaffinity(0))
        pin_all(core, [core])
        for _ in range(PAIRS):
            begun = time.perf_counter_ns()
            for _ in range(CALLS):
                await tunewire.noop()
            between = time.perf_counter_ns()
            await tunewire.flood(CALLS)
            one.append(between - begun)
            many.append(time.perf_counter_ns() - between)
    finally:
        await tunewire.close()
    # They overlap, so they should cost less; twice as much is what queueing that grows with the queue would show.
    assert statistics.median(m / o for m, o in zip(many, one, strict=True)) < 2
