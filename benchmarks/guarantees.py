"""Measures what tunewire promises about time and memory, against its bars, and writes docs/guarantees.md.

python benchmarks/guarantees.py [--repeats 20] [--output docs/guarantees.md]
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil

from tunewire import Ladder, Pool, Worker

LIMIT = 0.1
MS = 1e3


class Row(msgspec.Struct):
    """One promise: what was measured, in which unit, and the most that it may be at the median."""

    what: str
    values: list[float]
    unit: str = "ms"
    bar: float | None = None

    def line(self) -> str:
        """As a row of the table."""
        median, worst = statistics.median(self.values), max(self.values)
        bar = "-" if self.bar is None else f"{self.bar:g} {self.unit}"
        met = "-" if self.bar is None else ("met" if median <= self.bar else "**not met**")
        cells = [
            self.what,
            f"{median:.1f} {self.unit}",
            f"{worst:.1f} {self.unit}",
            str(len(self.values)),
            bar,
            met,
        ]
        return f"| {' | '.join(cells)} |"


def sleep() -> None:
    time.sleep(1000)


def hold_the_gil() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(1000)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)


def nothing() -> int:
    return os.getpid()


HANGS = {
    "sleeps": sleep,
    "holds the GIL": hold_the_gil,
    "is stopped": stop,
    "ignores SIGTERM": ignore_sigterm,
}


async def deadlines(repeats: int) -> list[Row]:
    """From a deadline to its outcome, and until the tree is gone and the slot may be used."""
    rows = []
    for name, hang in HANGS.items():
        late, gone = [], []
        async with Pool(1, spares=1) as pool:
            for _ in range(repeats):
                await ready(pool)
                outcome = await pool.run(hang, timeout=LIMIT)
                ended = time.perf_counter()
                late.append((outcome.seconds - LIMIT) * MS)
                await pool.settled()
                gone.append((time.perf_counter() - ended) * MS + late[-1])
        rows.append(Row(f"deadline to outcome, the child {name}", late, bar=20))
        rows.append(Row(f"deadline to tree gone and slot usable, the child {name}", gone, bar=50))
    return rows


async def ready(pool: Pool) -> None:
    """A warm process and, where the pool keeps one, a spare."""
    await pool.call(nothing)
    end = time.monotonic() + 10
    while pool._spare_count and not pool.statistics().spares and time.monotonic() < end:
        await asyncio.sleep(0.005)


async def next_results(repeats: int) -> list[Row]:
    """From the outcome of a call that failed to the result of the next one."""
    rows = []
    for spares in (1, 0):
        for name, fail, options in (("a timeout", sleep, {"timeout": LIMIT}), ("a crash", os.abort, {})):
            values = []
            async with Pool(1, spares=spares, ladder=Ladder(terminate=None)) as pool:
                for _ in range(repeats):
                    await ready(pool)
                    await pool.run(fail, **options)
                    begun = time.perf_counter()
                    await pool.call(nothing)
                    values.append((time.perf_counter() - begun) * MS)
            with_spare = "with a spare" if spares else "without a spare"
            rows.append(Row(f"next result after {name}, {with_spare}", values, bar=10 if spares else None))
    return rows


async def closing(repeats: int) -> Row:
    """Closing a pool of 8 busy workers, until no process is left."""
    values = []
    for _ in range(max(3, repeats // 4)):
        pool = await Pool(8).open()
        calls = [asyncio.ensure_future(pool.run(sleep)) for _ in range(8)]
        while [worker.state for worker in pool.statistics().workers] != ["busy"] * 8:
            await asyncio.sleep(0.005)
        begun = time.perf_counter()
        await pool.aclose()
        values.append((time.perf_counter() - begun) * MS)
        assert not psutil.Process().children(recursive=True)
        await asyncio.gather(*calls)
    return Row("closing 8 busy workers, nothing left", values, bar=100)


async def idle_death(repeats: int) -> Row:
    """From the SIGKILL of an idle worker to the pool's knowing of it."""
    values = []
    async with Worker() as worker:
        for _ in range(repeats):
            pid = await worker.call(nothing)
            begun = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            while worker._pool.statistics().workers[0].state == "idle":
                await asyncio.sleep(0)
            values.append((time.perf_counter() - begun) * MS)
            await worker.join(10)
    return Row("death of an idle worker noticed", values)


async def memory() -> list[Row]:
    """Of a bare worker and its guard: resident, and what is theirs alone."""
    async with Worker() as worker:
        await worker.call(nothing)
        tree = psutil.Process().children(recursive=True)
        rss = sum(process.memory_info().rss for process in tree) / 1e6
        uss = sum(process.memory_full_info().uss for process in tree) / 1e6
    return [
        Row(
            "memory of a bare worker, its guard included (resident, shared pages counted twice)",
            [rss],
            "MB",
            25,
        ),
        Row("the same, pages of their own", [uss], "MB", 25),
    ]


def seconds_of(code: str) -> float:
    """The wall time of an interpreter that runs `code`."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begun


async def cold_start(repeats: int) -> Row:
    """Opening a worker and its first result, against two interpreter starts."""

    async def first_result() -> float:
        begun = time.perf_counter()
        async with Worker() as worker:
            await worker.call(nothing)
            return time.perf_counter() - begun

    values = []
    for _ in range(repeats):
        floor = seconds_of("import msgspec, pickle") + seconds_of("pass")
        values.append(await first_result() / floor)
    return Row(
        'cold start to first result, in times of `python -c "import msgspec, pickle"` + a bare start',
        values,
        "x",
        1.5,
    )


def importing(repeats: int) -> Row:
    """Importing what a program that uses a pool imports, less the interpreter's own start."""
    values = []
    for _ in range(repeats):
        bare = seconds_of("pass")
        floor = seconds_of("import asyncio, msgspec, anyio") - bare
        values.append((seconds_of("import tunewire") - bare) / floor)
    return Row("import tunewire, in times of `import asyncio, msgspec, anyio`", values, "x", 1.25)


async def measure(repeats: int) -> list[Row]:
    """All rows, one after the other."""
    rows: list[Row] = []
    parts: list[Callable[[], Awaitable[Row | list[Row]]]] = [
        lambda: deadlines(repeats),
        lambda: next_results(repeats),
        lambda: closing(repeats),
        lambda: idle_death(repeats),
        memory,
        lambda: cold_start(repeats),
    ]
    for part in parts:
        found = await part()
        rows += found if isinstance(found, list) else [found]
        print(
            *(row.line() for row in rows[-(len(found) if isinstance(found, list) else 1) :]),
            sep="\n",
            flush=True,
        )
    rows.append(importing(repeats))
    print(rows[-1].line())
    return rows


PAGE = """# Guarantees, measured

What tunewire promises about time and memory, with the bar that each promise is held against, as `make guarantees` measured
it on a machine with {cores} cores ({machine}, Linux {kernel}, Python {python}). Figures are of that run; on another machine
they differ, and the command says how. A bar is held against the median.

| what | median | worst | repeats | bar | |
| --- | --- | --- | --- | --- | --- |
{rows}

How it is measured: a deadline's lateness is the call's seconds, as the parent saw them, less its limit of {limit:g} s. A
tree is gone when its guard has been reaped, which happens only after every descendant has been (`pool.settled()`); the slot
is usable at the same moment. The default ladder is used (20 ms between SIGTERM and SIGKILL), but for the next results, where
SIGKILL comes at once. "Next result" counts from the failed call's outcome to the next call's value. Closing counts until
`aclose()` returns, when no process is left. Memory is of the worker and its guard together.
"""


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("docs/guarantees.md"))
    options = parser.parse_args()
    rows = asyncio.run(measure(options.repeats))
    page = PAGE.format(
        cores=os.cpu_count(),
        machine=platform.machine(),
        kernel=platform.release().split("-")[0],
        python=platform.python_version(),
        rows="\n".join(row.line() for row in rows),
        limit=LIMIT,
    )
    options.output.write_text(page)


if __name__ == "__main__":
    main()
