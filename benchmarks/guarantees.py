"""Measures what tunewire guarantees in time and memory, against its bars, and writes docs/guarantees.md.

    python benchmarks/guarantees.py [--repetitions 30] [--output docs/guarantees.md]

Nothing is taken from tunewire's own word where it can be seen from outside. The deadline is reckoned from the clock of the
callee's first line. A process is gone when its pid is: a thread of this process waits on pidfds until all have ended, and
then looks every 0.2 ms until none of the pids exists, that is, until each has been reaped.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from guarantees_calls import REPORT, hang
from tunewire import OutcomeKind, Pool, Worker

LIMIT = 0.2
RESOLUTION = 0.0002
BOUND = 20.0
BUSY_WORKERS = 8
HANGS = ("sleeps", "holds the GIL", "is stopped", "ignores SIGTERM", "handles SIGTERM, and goes on")
MB = 1e6


class Row(NamedTuple):
    """One guarantee: what was measured, all of it, and the most that it may be."""

    what: str
    values: Sequence[float]
    unit: str = "ms"
    bar: float | None = None

    def line(self) -> str:
        """As a row of the page's table."""
        median, worst = statistics.median(self.values), max(self.values)
        cells = [
            self.what,
            f"{median:.3g} {self.unit}",
            f"{worst:.3g} {self.unit}",
            str(len(self.values)),
            "" if self.bar is None else f"{self.bar:g} {self.unit}",
            self._verdict(median, worst),
        ]
        return f"| {' | '.join(cells)} |"

    def _verdict(self, median: float, worst: float) -> str:
        if self.bar is None:
            return ""
        if median > self.bar:
            return "**not met**"
        return "met" if worst <= self.bar else "met at the median"


class Hanging(NamedTuple):
    """A call that will not end, as it reported itself."""

    began: float
    pids: tuple[int, ...]


class Station:
    """Where the calls report."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "station")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.path)

    async def report(self) -> Hanging:
        async with asyncio.timeout(BOUND):
            began, *pids = REPORT.unpack(
                await asyncio.get_running_loop().sock_recv(self._socket, REPORT.size)
            )
        return Hanging(began, tuple(pids))

    def close(self) -> None:
        self._socket.close()


def gone_at(pidfds: Sequence[int], pids: Sequence[int]) -> float:
    """When all of these have ended and been reaped; infinite if they have not within the bound. Blocks."""
    end = time.monotonic() + BOUND
    for pidfd in pidfds:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll(BOUND * 1e3)
        os.close(pidfd)
    while any(map(exists, pids)):
        if time.monotonic() > end:
            return float("inf")
        time.sleep(RESOLUTION)
    return time.monotonic()


def exists(pid: int) -> bool:
    """Whether there is such a process, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def watch(pids: Sequence[int]) -> asyncio.Future[float]:
    """When these will be gone."""
    pidfds = [os.pidfd_open(pid) for pid in pids]
    return asyncio.get_running_loop().run_in_executor(None, gone_at, pidfds, pids)


async def ready(pool: Pool, spares: int) -> None:
    """Until a process serves and the spares are up."""
    await pool.call(os.getpid)
    async with asyncio.timeout(BOUND):
        while pool.statistics().spares < spares:
            await asyncio.sleep(0.005)


async def deadlines(repetitions: int, station: Station) -> list[Row]:
    """From the deadline to the outcome, to the tree gone, and to the slot usable."""
    rows = []
    for how in HANGS:
        late, gone, usable = [], [], []
        async with Pool(1) as pool:
            for _ in range(repetitions):
                await ready(pool, 0)
                call = asyncio.ensure_future(pool.run(hang, station.path, how, timeout=LIMIT))
                hanging = await station.report()
                ended = watch(hanging.pids)
                outcome = await call
                decided = time.monotonic()
                assert outcome.kind is OutcomeKind.TIMEOUT, outcome
                await pool.settled()
                settled = time.monotonic()
                deadline = hanging.began + LIMIT
                late.append((decided - deadline) * 1e3)
                gone.append((await ended - deadline) * 1e3)
                usable.append((settled - deadline) * 1e3)
        rows += [
            Row(f"deadline to outcome; the child {how}", late, bar=20),
            Row(f"deadline to the tree gone; the child {how}", gone, bar=50),
            Row(f"deadline to the slot usable; the child {how}", usable, bar=50),
        ]
    return rows


async def timed_out(pool: Pool, station: Station, how: str) -> OutcomeKind:
    """What became of a call that hangs."""
    call = asyncio.ensure_future(pool.run(hang, station.path, how, timeout=LIMIT))
    await station.report()
    return (await call).kind


async def next_results(repetitions: int, station: Station) -> list[Row]:
    """From the outcome of a call that cost its process, to the result of the next."""
    rows = []
    for spares, told, hangs in ((1, "with a spare", HANGS), (0, "without a spare", HANGS[:1])):
        for how in (*hangs, None):
            seconds = []
            async with Pool(1, spares=spares) as pool:
                for _ in range(repetitions):
                    await ready(pool, spares)
                    kind = (
                        (await pool.run(os.abort)).kind
                        if how is None
                        else await timed_out(pool, station, how)
                    )
                    begun = time.monotonic()
                    assert kind is (OutcomeKind.CRASH if how is None else OutcomeKind.TIMEOUT), kind
                    await pool.call(os.getpid)
                    seconds.append((time.monotonic() - begun) * 1e3)
            failure = "a crash" if how is None else f"a timeout whose child {how}"
            rows.append(Row(f"next result after {failure}, {told}", seconds, bar=10 if spares else None))
    return rows


async def closing(repetitions: int, station: Station) -> list[Row]:
    """From `aclose()` until it has returned and no process is left, whichever is later."""
    rows = []
    for how in ("sleeps", "computes"):
        seconds = []
        for _ in range(repetitions):
            pool = await Pool(BUSY_WORKERS).open()
            calls = [asyncio.ensure_future(pool.run(hang, station.path, how)) for _ in range(BUSY_WORKERS)]
            pids = [pid for _ in calls for pid in (await station.report()).pids]
            ended = watch(pids)
            begun = time.monotonic()
            await pool.aclose()
            closed = time.monotonic()
            seconds.append((max(closed, await ended) - begun) * 1e3)
            await asyncio.gather(*calls)
        rows.append(Row(f"closing {BUSY_WORKERS} busy workers, nothing left; each {how}", seconds, bar=100))
    return rows


async def idle_deaths(repetitions: int) -> list[Row]:
    """From the SIGKILL of an idle process until the worker knows, and the process's tree is reaped."""
    seconds = []
    async with Worker() as worker:
        for _ in range(repetitions):
            pid = await worker.call(os.getpid)
            begun = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await worker.join(BOUND)
            seconds.append((time.monotonic() - begun) * 1e3)
    return [Row("death of an idle worker noticed and reaped", seconds)]


async def memory(repetitions: int) -> list[Row]:
    """Of a worker that has run one call, with its guard."""
    resident, once, proportional, unique = [], [], [], []
    for _ in range(repetitions):
        async with Worker() as worker:
            process = psutil.Process(await worker.call(os.getpid))
            parent = process.parent()
            assert parent is not None
            mine, guard = process.memory_full_info(), parent.memory_full_info()
            resident.append((mine.rss + guard.rss) / MB)
            once.append((mine.rss + guard.uss) / MB)
            proportional.append((mine.pss + guard.pss) / MB)
            unique.append((mine.uss + guard.uss) / MB)
    return [
        Row(
            "memory of a worker and its guard: RSS of both, what they share counted twice", resident, "MB", 25
        ),
        Row("memory of a worker and its guard: RSS, what they share counted once", once, "MB", 25),
        Row("memory of a worker and its guard: PSS", proportional, "MB", 25),
        Row("memory of a worker and its guard: USS", unique, "MB", 25),
    ]


FIRST_RESULT = """
import asyncio
from tunewire import Pool
async def main():
    async with Pool(1) as pool:
        print(await pool.call(len, "abc"), flush=True)
asyncio.run(main())
"""


def run_time(code: str) -> float:
    """Seconds from the start of a program to its first line, or to its end if it prints none."""
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        seconds = time.monotonic() - begun
    assert program.returncode == 0, code
    return seconds


def import_time(statement: str) -> float:
    """Seconds that a statement takes in a new interpreter, without the interpreter's own start."""
    code = f"import time; begun = time.perf_counter(); {statement}; print(time.perf_counter() - begun)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


async def first_result() -> float:
    """Seconds from a worker that is not there to its first result, in this warm process."""
    begun = time.monotonic()
    async with Worker() as worker:
        await worker.call(len, "abc")
        return time.monotonic() - begun


async def cold_starts(repetitions: int) -> list[Row]:
    """Interleaved, so that a slow moment of the machine is everyone's."""
    floors, workers, programs, imports_of_both = [], [], [], []
    for _ in range(repetitions):
        floors.append((run_time("import msgspec, pickle"), run_time("pass")))
        workers.append(await first_result())
        imports_of_both.append(floors[-1][0] + run_time("import asyncio, msgspec, anyio"))
        programs.append(run_time(FIRST_RESULT))
    # 1.5 times the first and once the second: the stricter of the sentence's two readings.
    allowed = [1.5 * imported + bare for imported, bare in floors]
    return [
        Row("`import msgspec, pickle` in a new interpreter", [imported * 1e3 for imported, _ in floors]),
        Row("a bare interpreter start", [bare * 1e3 for _, bare in floors]),
        Row(
            "cold start to first result: a worker, in a program that runs", [value * 1e3 for value in workers]
        ),
        Row(
            "the same, as a part of 1.5 x the first of these and once the second",
            ratios(workers, allowed),
            "x",
            1,
        ),
        Row("cold start to first result: a whole program", [value * 1e3 for value in programs]),
        Row("the same, against the imports of both its processes", ratios(programs, imports_of_both), "x"),
    ]


def imports(repetitions: int) -> list[Row]:
    """Against what any program of its kind imports."""
    peers, bare, pools = [], [], []
    for _ in range(repetitions):
        peers.append(import_time("import asyncio, msgspec, anyio"))
        bare.append(import_time("import tunewire"))
        pools.append(import_time("from tunewire import Pool"))
    return [
        Row("`import asyncio, msgspec, anyio`", [value * 1e3 for value in peers]),
        Row("`import tunewire`, against that", ratios(bare, peers), "x", 1.25),
        Row("`from tunewire import Pool`, against that", ratios(pools, peers), "x", 1.25),
    ]


def ratios(values: Sequence[float], against: Sequence[float]) -> list[float]:
    """Pair by pair."""
    return [value / other for value, other in zip(values, against, strict=True)]


async def measured(repetitions: int, station: Station) -> AsyncIterator[tuple[str, list[Row]]]:
    """The page's sections, one after the other."""
    yield "Deadlines", await deadlines(repetitions, station)
    yield "The next result", await next_results(repetitions, station)
    yield "Closing, and death", [*await closing(repetitions, station), *await idle_deaths(repetitions)]
    yield "Memory", await memory(repetitions)
    yield "Starting", [*await cold_starts(repetitions), *imports(repetitions)]


PAGE = """# Guarantees, measured

What tunewire guarantees in time and memory, against the bar that each guarantee has, as `make guarantees` measured it.
That is `python benchmarks/guarantees.py --repetitions {repetitions}`; it writes this page. That nothing is lost, doubled or
left behind over 100,000 calls is another command's to show, `make soak`.

The machine: {cores} cores, {machine}, Linux {kernel}, {implementation} {python}; load average {load:.1f} at the start. The
absolute figures are of that run on that machine. A bar is met if the worst repetition is within it, and met at the
median if only the median is.

{sections}

## How it is measured

**A deadline** is the moment at which the callable began, by the clock of its own first line, plus its limit of {limit:g} s.
Each callable has forked a process into a session of its own before it hangs. The ladder is the default one: SIGTERM,
then SIGKILL after 20 ms, or at once where SIGTERM would change nothing. *Holds the GIL* is `ctypes.PyDLL(None).sleep`.
The timer runs from the sending, and is moved when the flight recorder says that the callable began later.

**Gone** means that the guard, the worker and that further process have ended and been reaped: a thread waits on their
pidfds, and then looks every {resolution:g} ms until none of the pids exists. **Usable** is when `pool.settled()` returns:
from then on the worker takes a call.

**The next result** counts from the outcome of the call that cost its process, as its caller sees it, to the value of the
call made at that moment. *With a spare* there was one that was ready. A child that handles SIGTERM and goes on all the
same costs the ladder's 20 ms too: its handler is given that time, unless a pool or a call has `Ladder(terminate=None)`.

**Closing** counts from `aclose()` to its return or to the last process's reaping, whichever is later. **A death** counts
from a SIGKILL to an idle process until `join()` returns: the worker knows, and nothing of the process is left.

**Memory** is read after one call. RSS counts every page that a process has in reach: most are the interpreter's, which
the guard, forked from the same process, has in common with its worker. PSS divides shared pages among those who share
them, other interpreters on the machine included; USS counts pages that nobody shares.

**Starting** is compared pair by pair, in turns, with everything compiled to bytecode before, as an installed package is.
The cold start's bar is one worker's, in a program that runs. A whole program cannot meet it: it imports asyncio and
anyio first, and its worker then msgspec and pickle, one after the other; it is compared with those imports alone, each in
a new interpreter. Imports are timed inside a new interpreter, without its own start.
`import tunewire` loads its parts when they are first named; so the import of what a caller names is there too.
"""


@asynccontextmanager
async def a_station() -> AsyncIterator[Station]:
    """In a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        station = Station(Path(folder))
        try:
            yield station
        finally:
            station.close()


async def page(repetitions: int) -> str:
    """Measure, showing the rows as they come, and write it down."""
    sections, load = [], os.getloadavg()[0]
    async with a_station() as station:
        async for title, rows in measured(repetitions, station):
            table = [
                f"## {title}",
                "",
                "| what | median | worst | repetitions | bar | |",
                "|---|---|---|---|---|---|",
            ]
            table += [row.line() for row in rows]
            print(*table, "", sep="\n", flush=True)
            sections.append("\n".join(table))
    return PAGE.format(
        repetitions=repetitions,
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        kernel=".".join(platform.release().split(".")[:2]),
        implementation=platform.python_implementation(),
        python=platform.python_version(),
        load=load,
        limit=LIMIT,
        resolution=RESOLUTION * 1e3,
        sections="\n\n".join(sections),
    )


def main() -> None:
    """Measure and write the page."""
    # Its children would compile every module anew at each start, and this would be the time of that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    run_time("import tunewire.runtime.serve, tunewire.pool.driver")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[1] / "docs" / "guarantees.md")
    arguments = parser.parse_args()
    arguments.output.write_text(asyncio.run(page(arguments.repetitions)))


if __name__ == "__main__":
    main()
