"""The soak: very many calls, some of which crash, hang or are cancelled, and the proof that each had exactly one outcome.

    python benchmarks/soak.py --calls 100000 --loop asyncio --seed 1

Of all calls 1 % crash (an exit, SIGABRT, SIGSEGV, SIGKILL), 1 % time out (asleep, or inside C code that holds the
interpreter's lock), 1 % are cancelled at a random moment (while they wait, while a process starts, while they run, around
their end), and 97 % return a value of their own. One in four of those that crash or hang has left a daemon: forked twice,
in a session of its own, holding the worker's descriptors. The seed decides the kind of each call.

What is checked:

* none is lost: every caller had an outcome, of the kind that its call asks for: the value of this very call, the exit code
  or signal of its crash, a timeout of the phase "run"; a cancelled one was cancelled, or was done before with its own
  value. The pool's own count of outcomes agrees.
* none is doubled: each call appends its number to a file when it begins. No number is there twice; that of a value or
  a crash is there once.
* nothing is left: processes (marked ones anywhere on the machine included), threads, descriptors and shared memory are what
  they were before; and the resident memory is, within a tolerance.

The tolerance of the resident memory is 4 MiB. It is compared after a warm-up in a pool of its own, which pays for imports,
caches and the allocators' first arenas, and after a collection. What then remains is fragmentation: single objects that keep
an arena of the interpreter's allocator (1 MiB each since Python 3.10) from being given back. A leak of 42 bytes for each of
100,000 calls, or of 1.4 KB for each of the 3,000 processes that are replaced, would be seen.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import resource
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any

import anyio

from soak_calls import EXIT_CODE, RECORD, crash, hang, payload_of, value, value_after
from standing import MARK, Standing, left_since, resident_bytes
from tunewire import Outcome, OutcomeKind, Pool
from tunewire.errors import CallTimeout, WorkerCrashed

WORKERS = 4
SPARES = 1
CALLERS = 64
#: Of a call that hangs.
TIMEOUT = 0.05
#: Of every other call: armed, and never to fire.
AMPLE = 300.0
#: No outcome at all for so long: what is under way is lost.
STALLED = 120.0
#: A cancel comes after a time between these, each order of magnitude as likely: it meets calls that wait, whose process
#: starts, that run, and that end just then.
CANCEL_AFTER = (1e-4, 1.0)
WARM_UP_CALLS = 400
RSS_TOLERANCE_BYTES = 4 * 2**20
SETTLE_BOUND = 5.0
SHOWN_VIOLATIONS = 20
PROGRESS_EVERY = 5.0


class Kind(IntEnum):
    """What a call does."""

    VALUE = 0
    CRASH = 1
    TIMEOUT = 2
    CANCEL = 3


SHARES = {Kind.CRASH: 0.01, Kind.TIMEOUT: 0.01, Kind.CANCEL: 0.01}
CRASHES = ("exit", "SIGABRT", "SIGSEGV", "SIGKILL")
HANGS = ("sleep", "hold")


def planned(calls: int, rng: random.Random) -> bytes:
    """The kind of every call, each kind with its exact share."""
    plan = bytearray()
    for kind, share in SHARES.items():
        plan += bytes([kind]) * round(calls * share)
    plan += bytes([Kind.VALUE]) * (calls - len(plan))
    rng.shuffle(plan)
    return bytes(plan)


class Soak:
    """One run: its plan, its callers, and what they found."""

    def __init__(self, calls: int, seed: int, folder: Path) -> None:
        rng = random.Random(seed)
        self.plan = planned(calls, rng)
        self.rng = rng
        self.path = folder / uuid.uuid4().hex
        self.path.touch()
        self.answered = bytearray(calls)  # not a set: memory is measured
        self.seen: Counter[str] = Counter()
        self.violations: list[str] = []
        self.done = 0
        self.pool_outcomes: dict[str, int] = {}
        self._numbers = iter(range(calls))

    def object_to(self, violation: str) -> None:
        self.violations.append(violation)

    async def run(self, progress: Callable[[int], None]) -> None:
        """All calls, in a pool of its own, until it is closed."""
        async with Pool(WORKERS, spares=SPARES) as pool:
            callers = [asyncio.create_task(self._call_on(pool)) for _ in range(CALLERS)]
            watch = asyncio.create_task(self._watch(callers, progress))
            ended = await asyncio.gather(*callers, return_exceptions=True)
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
            for error in ended:
                if isinstance(error, BaseException):
                    self.object_to(f"a caller ended with {error!r}")
            await pool.settled()
            self.pool_outcomes = {str(kind): count for kind, count in pool.statistics().outcomes.items()}
            progress(self.done)

    async def _call_on(self, pool: Pool) -> None:
        for number in self._numbers:
            await self._call(pool, number, Kind(self.plan[number]))
            self.answered[number] += 1
            self.done += 1

    async def _watch(self, callers: list[asyncio.Task[None]], progress: Callable[[int], None]) -> None:
        before, since = self.done, time.monotonic()
        while True:
            await asyncio.sleep(PROGRESS_EVERY)
            progress(self.done)
            if self.done > before:
                before, since = self.done, time.monotonic()
            elif time.monotonic() - since > STALLED:
                self.object_to(f"no outcome for {STALLED:g} s: what was under way was given up")
                for caller in callers:
                    caller.cancel()
                return

    async def _call(self, pool: Pool, number: int, kind: Kind) -> None:
        path, rng = str(self.path), self.rng
        match kind:
            case Kind.VALUE:
                self._check_value(number, await pool.run(value, path, number, timeout=AMPLE))
            case Kind.CRASH:
                how, daemon = rng.choice(CRASHES), rng.random() < 0.25
                outcome = await pool.run(crash, path, number, how, daemon, timeout=AMPLE)
                self._check_crash(number, how, outcome)
            case Kind.TIMEOUT:
                how, daemon = rng.choice(HANGS), rng.random() < 0.25
                self._check_timeout(number, await pool.run(hang, path, number, how, daemon, timeout=TIMEOUT))
            case Kind.CANCEL:
                await self._cancel(pool, number)

    async def _cancel(self, pool: Pool, number: int) -> None:
        """Half of them never end and are surely cancelled; half race with their own end."""
        path, rng = str(self.path), self.rng
        endless = rng.random() < 0.5
        call: Awaitable[Outcome[Any]]
        if endless:
            call = pool.run(hang, path, number, rng.choice(HANGS), rng.random() < 0.25, timeout=AMPLE)
        else:
            call = pool.run(value_after, path, number, self._moment(), timeout=AMPLE)
        outcome: Outcome[Any] | None = None
        if rng.random() < 0.5:
            with anyio.move_on_after(self._moment()):
                outcome = await call
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._moment()):
                    outcome = await call
        if outcome is None:
            self.seen["cancelled"] += 1
        elif endless:
            self.object_to(f"call {number} never ends, and ended: {outcome}")
        else:
            self._check_value(number, outcome)

    def _moment(self) -> float:
        first, last = CANCEL_AFTER
        return first * math.exp(self.rng.random() * math.log(last / first))

    def _check_value(self, number: int, outcome: Outcome[tuple[int, bytes]]) -> None:
        self.seen[outcome.kind] += 1
        if outcome.kind is not OutcomeKind.COMPLETED or outcome.value != (number, payload_of(number)):
            self.object_to(f"call {number} has a value of its own, and had {str(outcome)[:300]}")

    def _check_crash(self, number: int, how: str, outcome: Outcome[None]) -> None:
        self.seen[outcome.kind] += 1
        error = outcome.error
        told = (error.exit_code, error.signal) if isinstance(error, WorkerCrashed) else None
        right = told == (EXIT_CODE, None) if how == "exit" else told is not None and told[1] == how
        if outcome.kind is not OutcomeKind.CRASH or not right:
            self.object_to(f"call {number} crashed by {how}, and had {str(outcome)[:300]}")

    def _check_timeout(self, number: int, outcome: Outcome[None]) -> None:
        self.seen[outcome.kind] += 1
        error = outcome.error
        right = isinstance(error, CallTimeout) and (error.phase, error.limit) == ("run", TIMEOUT)
        if outcome.kind is not OutcomeKind.TIMEOUT or not right:
            self.object_to(f"call {number} hung, and had {str(outcome)[:300]}")

    def check_outcomes(self) -> None:
        """None is lost."""
        lost = [number for number, count in enumerate(self.answered) if count != 1]
        if lost:
            self.object_to(f"{len(lost)} calls had no outcome: {lost[:SHOWN_VIOLATIONS]}")
        counted = sum(self.pool_outcomes.values())
        if counted != len(self.plan):
            self.object_to(f"the pool counts {counted} outcomes of {len(self.plan)} calls")
        for kind in (OutcomeKind.CRASH, OutcomeKind.TIMEOUT):
            if self.pool_outcomes.get(kind.value, 0) != self.seen[kind]:
                self.object_to(f"the pool counts {self.pool_outcomes}, and its callers saw {dict(self.seen)}")

    def check_records(self) -> Counter[str]:
        """None is doubled, and what must have run has. How many of each kind began."""
        begun = bytearray(len(self.plan))
        for number in self._recorded():
            begun[number] = min(begun[number] + 1, 2)
        doubled = [number for number, times in enumerate(begun) if times > 1]
        if doubled:
            self.object_to(f"{len(doubled)} calls ran more than once: {doubled[:SHOWN_VIOLATIONS]}")
        certain = (Kind.VALUE, Kind.CRASH)
        missing = [n for n, times in enumerate(begun) if not times and self.plan[n] in certain]
        if missing:
            self.object_to(f"{len(missing)} calls did not run: {missing[:SHOWN_VIOLATIONS]}")
        return Counter(Kind(kind).name.lower() for kind, times in zip(self.plan, begun, strict=True) if times)

    def _recorded(self) -> Iterator[int]:
        return (number for (number,) in RECORD.iter_unpack(self.path.read_bytes()))


class Progress:
    """One line, rewritten on a terminal."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.began = time.monotonic()

    def __call__(self, done: int) -> None:
        seconds = time.monotonic() - self.began
        line = (
            f"{done:,} of {self.calls:,} calls in {seconds:.0f} s, {done / max(seconds, 1e-9):,.0f} a second"
        )
        if sys.stderr.isatty():
            print(f"\r{line}", end="" if done < self.calls else "\n", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)


def summary(soak: Soak, begun: Counter[str], left: dict[str, list[str]], grown: int) -> str:
    """What was found, as a table."""
    asked = Counter(Kind(kind).name.lower() for kind in soak.plan)
    lines = [f"{'calls':<16}{'made':>9}{'began':>9}"]
    lines += [
        f"{'  ' + kind.name.lower():<16}{asked[kind.name.lower()]:>9,}{begun[kind.name.lower()]:>9,}"
        for kind in Kind
    ]
    lines += ["", f"{'outcomes':<16}{'callers':>9}{'pool':>9}"]
    for kind in sorted({*soak.seen, *soak.pool_outcomes}):
        lines.append(f"{'  ' + kind:<16}{soak.seen[kind]:>9,}{soak.pool_outcomes.get(kind, 0):>9,}")
    lines += ["", "left"]
    lines += [f"{'  ' + what:<16}{len(things):>9,}" for what, things in left.items()]
    lines.append(f"{'  memory':<16}{grown / 2**20:>+9.1f} MiB, {RSS_TOLERANCE_BYTES / 2**20:g} MiB tolerated")
    return "\n".join(lines)


async def soaked(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The whole of it: the violations."""
    warm_up = Soak(WARM_UP_CALLS, arguments.seed + 1, folder)
    await warm_up.run(lambda _done: None)
    soak = Soak(arguments.calls, arguments.seed, folder)
    # Nothing else runs in this process while these block.
    left_since(before := Standing.now(), SETTLE_BOUND)
    resident = resident_bytes()
    await soak.run(Progress(arguments.calls))
    left = left_since(before, SETTLE_BOUND)
    grown = resident_bytes() - resident
    soak.check_outcomes()
    begun = soak.check_records()
    for what, things in left.items():
        if things:
            soak.object_to(f"{what} left: {', '.join(things[:SHOWN_VIOLATIONS])}")
    if grown > RSS_TOLERANCE_BYTES:
        soak.object_to(f"resident memory grew by {grown} bytes; {RSS_TOLERANCE_BYTES} are tolerated")
    print(summary(soak, begun, left, grown))
    return warm_up.violations + soak.violations


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Of asyncio, or of uvloop, which is an extra."""
    if name == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def main() -> int:
    """Run it; 1 if anything is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="asyncio")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ[MARK] = uuid.uuid4().hex
    # Thousands of crashes; none is to write a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with (
        tempfile.TemporaryDirectory(prefix="soak-") as folder,
        asyncio.Runner(loop_factory=loop_factory(arguments.loop)) as runner,
    ):
        violations = runner.run(soaked(arguments, Path(folder)))
    print()
    for violation in violations[:SHOWN_VIOLATIONS]:
        print(f"violation: {violation}")
    print(f"violations: {len(violations)}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
