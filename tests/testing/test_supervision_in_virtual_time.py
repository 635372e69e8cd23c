"""The driver and the pool on fake processes: limits of hours, and what no real process does on demand."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tunewire import Limits
from tunewire.errors import (
    CallTimeout,
    DecodeError,
    PoolClosed,
    RemoteError,
    StartError,
    WireError,
    WorkerCrashed,
)
from tunewire.runtime import current_call
from tunewire.testing import FakePool, Faults, Script, exit_process, virtual_loop
from tunewire.testing.work import echo, go_through, last
from tunewire.workers.ladder import Ladder
from tunewire.workers.outcome import Outcome, OutcomeKind

MINUTE, HOUR = 60.0, 3600.0
NONE = Limits(queue=None, start=None, init=None, compile=None, check=None, run=None)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with virtual_loop() as runner:
        runner.run(main())


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def fakes(*scripts: Script, size: int = 1, **options: Any) -> AsyncIterator[FakePool]:
    async with FakePool(size, scripts=scripts, **options) as pool:
        yield pool
    assert pool.spawner.living == 0
    assert {worker.state for worker in pool.statistics().workers} == {"closed"}


def timed_out(outcome: Outcome[Any], phase: str, limit: float) -> bool:
    error = outcome.error
    return isinstance(error, CallTimeout) and (error.phase, error.limit) == (phase, limit)


# Limits.


def test_each_limit_names_its_stage_at_its_time() -> None:
    async def main() -> None:
        limits = Limits(start=5 * MINUTE, init=HOUR, compile=20 * MINUTE, check=10 * MINUTE, run=2 * HOUR)
        async with fakes(Script(silent=True), limits=limits) as pool:
            assert timed_out(await pool.run(echo, 1), "start", 5 * MINUTE)
            assert now() == 5 * MINUTE
        async with fakes(
            Script(hello_after=4 * MINUTE), limits=limits, initializer=last, initargs=(2 * HOUR,)
        ) as pool:
            begun = now()
            assert timed_out(await pool.run(echo, 1), "init", HOUR)
            assert now() - begun == 4 * MINUTE + HOUR
        async with fakes(limits=limits) as pool:
            begun = now()
            assert timed_out(await pool.run(last, 9 * HOUR, phase="compile"), "compile", 20 * MINUTE)
            assert timed_out(await pool.run(last, 9 * HOUR, phase="check"), "check", 10 * MINUTE)
            assert timed_out(await pool.run(last, 9 * HOUR), "run", 2 * HOUR)
            assert now() - begun == pytest.approx(30 * MINUTE + 2 * HOUR, abs=1.0)

    run(main)


def test_a_stage_begins_with_its_full_limit() -> None:
    async def main() -> None:
        limits = Limits(compile=10 * MINUTE, check=10 * MINUTE, run=10 * MINUTE)
        async with fakes(limits=limits) as pool:
            phases = ["check", "run"]
            assert await pool.call(go_through, phases, 9 * MINUTE, phase="compile") == "run"
            assert now() == 27 * MINUTE
            assert timed_out(
                await pool.run(go_through, phases, 10.5 * MINUTE, phase="compile"), "compile", 10 * MINUTE
            )

    run(main)


def test_timeout_counts_from_the_start_of_execution() -> None:
    async def main() -> None:
        async with fakes(Script(hello_after=HOUR), limits=NONE, initializer=last, initargs=(HOUR,)) as pool:
            outcomes = await asyncio.gather(*(pool.run(last, MINUTE, timeout=2 * MINUTE) for _ in range(3)))
            assert [outcome.kind for outcome in outcomes] == [OutcomeKind.COMPLETED] * 3
            assert [outcome.seconds for outcome in outcomes] == [MINUTE] * 3
            assert now() == 2 * HOUR + 3 * MINUTE

    run(main)


def test_a_queue_limit_ends_what_waits_and_not_what_runs() -> None:
    async def main() -> None:
        async with fakes(limits=Limits(queue=10 * MINUTE)) as pool:
            running = asyncio.ensure_future(pool.run(last, HOUR))
            waiting = asyncio.ensure_future(pool.run(echo, 1))
            assert timed_out(await waiting, "queue", 10 * MINUTE)
            assert now() == 10 * MINUTE
            assert (await running).value == HOUR

    run(main)


def test_the_queue_limit_holds_from_before_there_is_a_place_in_the_queue() -> None:
    async def main() -> None:
        async with fakes(limits=Limits(queue=10 * MINUTE), max_pending=1) as pool:
            running = asyncio.ensure_future(pool.run(last, 6 * MINUTE))
            await asyncio.sleep(0)
            second = asyncio.ensure_future(pool.run(last, HOUR))
            await asyncio.sleep(0)
            third = asyncio.ensure_future(
                pool.run(echo, 1)
            )  # has a place after 6 minutes, and no worker after 10
            assert (await third).kind is OutcomeKind.TIMEOUT
            assert now() == 10 * MINUTE
            assert (await running).ok
            second.cancel()
            await asyncio.wait([second])

    run(main)


def test_a_child_cannot_buy_time_with_phases() -> None:
    async def main() -> None:
        async def again_and_again() -> None:
            for _ in range(100):
                await asyncio.sleep(MINUTE)
                current_call().enter("run")

        async with fakes(limits=Limits(run=5 * MINUTE)) as pool:
            assert timed_out(await pool.run(again_and_again), "run", 5 * MINUTE)

    run(main)


def test_an_idle_process_is_ended_after_its_time() -> None:
    async def main() -> None:
        async with fakes(size=2, idle_timeout=HOUR) as pool:
            await asyncio.gather(pool.run(last, MINUTE), pool.run(last, MINUTE))
            assert pool.spawner.living == 2
            await asyncio.sleep(30 * MINUTE)
            assert await pool.call(echo, 1) == 1
            await asyncio.sleep(31 * MINUTE)
            assert pool.spawner.living == 1
            await asyncio.sleep(HOUR)
            assert pool.spawner.living == 0
            assert await pool.call(echo, 1) == 1

    run(main)


# What will not end.


def test_a_deaf_process_times_out_on_time_and_is_gone_by_the_ladder() -> None:
    async def main() -> None:
        ladder = Ladder(terminate=2.0, reap=30.0)
        async with fakes(Script(deaf=True), Script(), ladder=ladder) as pool:
            outcome = await pool.run(last, HOUR, timeout=MINUTE)
            assert outcome.kind is OutcomeKind.TIMEOUT
            assert now() == MINUTE
            following = await pool.run(echo, 1)
            assert following.ok
            assert now() == MINUTE + 2.0 + 30.0, "SIGTERM has its time, the guard its own, then comes SIGKILL"
            assert [process.exit_code for process in pool.spawner.processes] == [-9, None]

    run(main)


def test_what_cannot_be_reaped_costs_its_slot_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fakes(Script(unreapable=True), Script(), size=2) as pool:
            stuck = asyncio.ensure_future(pool.run(last, HOUR, timeout=MINUTE))
            await asyncio.sleep(1.0)
            beside = await asyncio.gather(*(pool.run(last, 10.0) for _ in range(20)))
            assert all(outcome.ok for outcome in beside)
            assert {outcome.pid for outcome in beside} == {pool.spawner.processes[1].pid}
            assert (await stuck).kind is OutcomeKind.TIMEOUT
            await asyncio.sleep(HOUR)
            assert Counter(worker.state for worker in pool.statistics().workers) == {"ending": 1, "idle": 1}
            pool.spawner.processes[0].release()
            await pool.settled()
            assert Counter(worker.state for worker in pool.statistics().workers) == {"empty": 1, "idle": 1}

    with caplog.at_level(logging.ERROR, "tunewire"):
        run(main)
    (record,) = caplog.records
    assert "cannot be reaped" in record.getMessage()


def test_closing_is_bounded_when_a_process_cannot_be_reaped(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pool = FakePool(2, scripts=[Script(unreapable=True), Script()])
        await pool.open()
        calls = [asyncio.ensure_future(pool.run(last, 9 * HOUR)) for _ in range(5)]
        await asyncio.sleep(MINUTE)
        begun = now()
        await pool.aclose()
        assert now() - begun <= 10.0
        outcomes = await asyncio.gather(*calls)
        assert all(isinstance(outcome.error, PoolClosed) for outcome in outcomes)
        assert pool.spawner.living == 1
        pool.spawner.processes[0].release()
        await asyncio.sleep(MINUTE)
        assert pool.spawner.living == 0

    with caplog.at_level(logging.ERROR, "tunewire"):
        run(main)
    told = [record.getMessage() for record in caplog.records]
    assert any("cannot be reaped" in message for message in told)
    assert any("did not close" in message for message in told)


# What ends too early.


STREAM = 190
"""More bytes than a process writes before its second reply, and fewer than it writes before its fourth."""


async def errors_of_five_calls(script: Script, **options: Any) -> list[BaseException]:
    """Those on a process that is at fault once, and on the good one that takes its place."""
    async with fakes(script, Script(), **options) as pool:
        outcomes = [await pool.run(echo, "abc") for _ in range(5)]
        assert outcomes[-1].value == "abc"
        assert sum(pool.statistics().outcomes.values()) == 5
        return [outcome.error for outcome in outcomes if outcome.error is not None]


@pytest.mark.parametrize("recorder", [True, False])
def test_wherever_a_process_dies_its_call_has_one_outcome_and_the_next_one_runs(recorder: bool) -> None:
    async def main() -> None:
        kinds: set[type] = set()
        for place in range(STREAM):
            script = Script(ends_at_byte=place, exit_code=-11, has_recorder=recorder)
            errors = await errors_of_five_calls(script)
            # Where it dies between two calls, the recorder tells that the second one may be sent again.
            assert len(errors) == 1 or (recorder and not errors), place
            for error in errors:
                assert isinstance(error, StartError | WorkerCrashed)
                assert error.exit_code == -11, place
                kinds.add(type(error))
        assert kinds == {StartError, WorkerCrashed}

    run(main)


@pytest.mark.parametrize(
    ("fault", "possible"),
    [
        ("cut", {StartError, WorkerCrashed}),
        ("stall", {CallTimeout}),
        ("garble", {StartError, WireError, CallTimeout, DecodeError, RemoteError}),
        ("duplicate", {StartError, WireError, CallTimeout, DecodeError, RemoteError}),
    ],
)
def test_wherever_a_stream_is_at_fault_the_calls_after_it_are_not_hurt(
    fault: str, possible: set[type]
) -> None:
    async def main() -> None:
        kinds: set[type] = set()
        for place in range(STREAM):
            faults = Faults(**{fault: (place, place + 3) if fault == "duplicate" else place})
            limits = Limits(start=MINUTE, run=MINUTE)
            errors = await errors_of_five_calls(Script(faults=faults), limits=limits, results="msgspec")
            # Bytes too many in a reply spoil that reply, and what is left of them the next one.
            assert len(errors) <= (2 if fault == "duplicate" else 1), place
            kinds.update(map(type, errors))
        assert kinds
        assert kinds <= possible

    run(main)


def test_a_reply_that_breaks_off_is_a_crash() -> None:
    async def main() -> None:
        for place in (0, 1, 24, 25, 60_000, 200_000):
            async with fakes(Script(ends_in_reply=place), Script()) as pool:
                outcome = await pool.run(echo, bytes(300_000))
                assert isinstance(outcome.error, WorkerCrashed)
                assert outcome.error.signal == "SIGSEGV"

    run(main)


def test_a_process_that_hangs_up_in_a_call_and_lives_is_a_crash_that_says_so() -> None:
    async def main() -> None:
        async with fakes(Script(hangs_up="call"), Script()) as pool:
            outcome = await pool.run(last, HOUR)
            assert isinstance(outcome.error, WorkerCrashed)
            assert outcome.error.reason == "closed its channel and went on running"
            assert now() < 1.0
            assert (await pool.run(echo, 1)).ok

    run(main)


def test_a_call_for_a_process_that_had_hung_up_before_is_sent_again() -> None:
    async def main() -> None:
        async with fakes(Script(hangs_up="start"), Script()) as pool:
            assert (await pool.run(last, HOUR)).value == HOUR
            assert [process.exit_code for process in pool.spawner.processes] == [-9, None]

    run(main)


def test_what_cannot_be_run_gives_its_reason() -> None:
    async def main() -> None:
        async with fakes(Script(cannot_start="Too many open files"), Script()) as pool:
            outcome = await pool.run(echo, 1)
            assert isinstance(outcome.error, StartError)
            assert "Too many open files" in str(outcome.error)
            assert (await pool.run(echo, 1)).ok

    run(main)


@pytest.mark.parametrize("recorder", [True, False])
@pytest.mark.parametrize("turns", range(12))
def test_a_call_that_meets_an_idle_process_at_its_death_is_not_told_that_the_pool_closed(
    turns: int, recorder: bool
) -> None:
    async def main() -> None:
        async with fakes(Script(has_recorder=recorder), Script()) as pool:
            await pool.run(echo, 1)
            pool.spawner.processes[0].die(-9)
            for _ in range(turns):
                await asyncio.sleep(0)
            outcome = await pool.run(echo, 2)
            if recorder:
                assert outcome.value == 2, "it had not begun, so it is sent again"
            else:
                assert outcome.ok or isinstance(outcome.error, WorkerCrashed)

    run(main)


# Interrupts and spares.


async def heedless() -> None:
    for _ in range(3):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HOUR)


def test_an_interrupted_call_keeps_its_process() -> None:
    async def main() -> None:
        async with fakes(ladder=Ladder(interrupt=MINUTE)) as pool:
            before = await pool.run(echo, 1)
            outcome = await pool.run(last, 9 * HOUR, timeout=HOUR)
            assert outcome.kind is OutcomeKind.TIMEOUT
            after = await pool.run(echo, 2)
            assert (after.value, after.pid) == (2, before.pid)

    run(main)


def test_a_call_that_does_not_heed_its_interrupt_is_ended() -> None:
    async def main() -> None:
        async with fakes(ladder=Ladder(interrupt=MINUTE)) as pool:
            before = await pool.run(echo, 1)
            assert timed_out(await pool.run(heedless, timeout=HOUR), "run", HOUR)
            after = await pool.run(echo, 2)
            assert after.ok
            assert after.pid != before.pid

    run(main)


def test_a_spare_takes_the_place_of_a_crashed_process_at_once() -> None:
    async def main() -> None:
        async with fakes(Script(hello_after=MINUTE), spares=1, limits=NONE) as pool:
            await pool.run(echo, 1)
            await asyncio.sleep(HOUR)
            begun = now()
            assert isinstance((await pool.run(exit_process, 1)).error, WorkerCrashed)
            assert (await pool.run(echo, 2)).value == 2
            assert now() - begun < 1.0
            await asyncio.sleep(HOUR)
            assert pool.statistics().spares == 1
            assert pool.spawner.living == 2

    run(main)


@pytest.mark.parametrize("turns", range(12))
def test_a_spare_that_dies_as_it_is_taken_costs_no_call(turns: int) -> None:
    async def main() -> None:
        async with fakes(spares=1) as pool:
            await asyncio.sleep(MINUTE)
            pool.spawner.processes[0].die(-9)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert await pool.call(echo, 1) == 1
            await pool.run(exit_process, 1)
            assert await pool.call(echo, 2) == 2
            await asyncio.sleep(MINUTE)
            assert pool.statistics().spares == 1
            assert pool.spawner.living == 2

    run(main)


@pytest.mark.parametrize(
    "script",
    [
        Script(silent=True),
        Script(cannot_start="no memory"),
        Script(ends_at_byte=40),
        Script(hello_after=HOUR),
    ],
)
def test_spares_that_cannot_start_do_not_loop(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with fakes(script, spares=2, limits=Limits(start=MINUTE)) as pool:
            for _ in range(5):
                await asyncio.sleep(HOUR)
            assert pool.spawner.attempts <= 10
            assert pool.spawner.living == 0

    run(main)
    assert all(record.getMessage().split(": ", 1)[1] for record in caplog.records), "a warning says why"


def test_a_spare_whose_initializer_takes_too_long_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        options = {"initializer": last, "initargs": (9 * HOUR,), "limits": Limits(init=HOUR)}
        async with fakes(spares=1, **options) as pool:
            await asyncio.sleep(5 * HOUR)
            assert pool.spawner.living == 0

    run(main)
    assert caplog.records
    assert all("init" in record.getMessage() for record in caplog.records)


def test_a_spare_that_cannot_be_reaped_does_not_hold_the_closing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        pool = FakePool(1, scripts=[Script(unreapable=True)], spares=1)
        await pool.open()
        await asyncio.sleep(MINUTE)
        assert pool.statistics().spares == 1
        begun = now()
        await pool.aclose()
        assert now() - begun <= 10.0
        pool.spawner.processes[0].release()
        await asyncio.sleep(MINUTE)
        assert pool.spawner.living == 0

    run(main)


# Many at once.


def test_a_thousand_calls_with_every_ending_have_one_outcome_each() -> None:
    async def main() -> None:
        async with fakes(size=8, ladder=Ladder(interrupt=None)) as pool:

            def call(number: int) -> Coroutine[Any, Any, Outcome[Any]]:
                match number % 10:
                    case 0:
                        return pool.run(exit_process, number % 7)
                    case 1:
                        return pool.run(last, HOUR, timeout=MINUTE)
                    case _:
                        return pool.run(last, float(number % 50))

            calls = [asyncio.ensure_future(call(number)) for number in range(1000)]
            for number in range(2, 1000, 10):
                asyncio.get_running_loop().call_later(number * 3.0, calls[number].cancel)
            most = 0
            while not all(call.done() for call in calls):
                await asyncio.sleep(1.0)
                most = max(most, pool.spawner.living)
            assert most <= 8
            kinds = Counter("cancelled" if call.cancelled() else call.result().kind.value for call in calls)
            assert kinds["crash"] == kinds["timeout"] == 100
            assert sum(kinds.values()) == 1000
            assert sum(pool.statistics().outcomes.values()) == 1000
            for number, done in enumerate(calls):
                if number % 10 > 2:
                    assert done.result().value == number % 50

    run(main)
