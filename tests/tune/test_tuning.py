"""A tuning against a pool that is made up here: every outcome, order and race that a real one may bring."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trials import measured
from tunewire.bench import Measurement, RawKernel
from tunewire.errors import (
    BrokenCompiler,
    CallTimeout,
    CompileFailed,
    InvalidKernel,
    InvalidSpace,
    MissingExtra,
    NoSuchDevice,
    PoolClosed,
    WorkerCrashed,
)
from tunewire.tune import Configuration, FailureKind, Space, Trial, Tunable, Tuning, tune
from tunewire.workers import Limits, Outcome, OutcomeKind

KERNEL = RawKernel("kernel void f() { int tile[TILE]; }", "f")
SPACE = Space({"TILE": [1, 2, 3, 4]})

Behaviour = Callable[[int, str], Awaitable[Outcome[Measurement]]]


class Worker:
    """One device's worker."""

    def __init__(self, pool: MadeUpPool, device: str) -> None:
        self.pool = pool
        self.device = device

    async def run(
        self, function: Callable[..., Any], kernel: RawKernel, *rest: Any, **options: Any
    ) -> Outcome[Any]:
        tile = kernel.defines["TILE"]
        assert isinstance(tile, int)
        self.pool.options.append(options)
        self.pool.begun.append((self.device, tile))
        try:
            return await self.pool.behaviour(tile, self.device)
        except asyncio.CancelledError:
            self.pool.cancelled.append(tile)
            raise

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return (await self.run(function, *args, **options)).unwrap()


class MadeUpPool(Worker):
    """A pool whose kernels do what a function says, and which checks that a device has one lease at a time."""

    def __init__(self, behaviour: Behaviour, devices: tuple[str, ...] = ("opencl:0",)) -> None:
        super().__init__(self, "none")
        self.behaviour = behaviour
        self.devices = devices
        self.limits = Limits()
        self.begun: list[tuple[str, int]] = []
        self.cancelled: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.leased: set[str] = set()

    @asynccontextmanager
    async def lease(self, device: str) -> AsyncIterator[Worker]:
        assert device not in self.leased
        self.leased.add(device)
        try:
            yield Worker(self, device)
        finally:
            self.leased.discard(device)


def good(tile: int) -> Outcome[Measurement]:
    return Outcome(kind=OutcomeKind.COMPLETED, value=measured(100.0 / tile))


async def at_once(tile: int, device: str) -> Outcome[Measurement]:
    return good(tile)


def tiles(trials: tuple[Trial, ...] | list[Trial]) -> list[int]:
    return [int(trial.configuration["TILE"]) for trial in trials]


def tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


class Gate:
    """Lets a trial end when the test says so."""

    def __init__(self) -> None:
        self.ends: dict[int, asyncio.Future[Outcome[Measurement]]] = {}

    def end_of(self, tile: int) -> asyncio.Future[Outcome[Measurement]]:
        return self.ends.setdefault(tile, asyncio.get_running_loop().create_future())

    async def __call__(self, tile: int, device: str) -> Outcome[Measurement]:
        return await self.end_of(tile)

    def open(self, tile: int) -> None:
        self.end_of(tile).set_result(good(tile))


@pytest.mark.asyncio
async def test_every_configuration_is_tried_and_the_fastest_is_the_best() -> None:
    pool = MadeUpPool(at_once)
    async with tune(KERNEL, SPACE, pool=pool) as run:
        read = [trial async for trial in run]
    assert tiles(read) == [1, 2, 3, 4]
    assert run.trials == tuple(read)
    assert [trial.index for trial in read] == [0, 1, 2, 3]
    assert run.best is not None
    assert run.best.configuration == {"TILE": 4}
    assert run.complete
    assert run.result().complete
    assert run.result().gain is not None


@pytest.mark.asyncio
async def test_failures_are_kept_as_what_they_are_and_the_search_goes_on() -> None:
    errors: dict[int, tuple[OutcomeKind, Exception]] = {
        1: (OutcomeKind.ERROR, CompileFailed(log="error: no")),
        2: (OutcomeKind.TIMEOUT, CallTimeout(phase="check", limit=2.0)),
        3: (OutcomeKind.CRASH, WorkerCrashed(signal="SIGSEGV")),
    }

    async def behaviour(tile: int, device: str) -> Outcome[Measurement]:
        if tile in errors:
            kind, error = errors[tile]
            return Outcome(kind=kind, error=error)
        return good(tile)

    async with tune(KERNEL, SPACE, pool=MadeUpPool(behaviour)) as run:
        read = [trial async for trial in run]
    assert [trial.failure.kind if trial.failure else None for trial in read] == [
        FailureKind.COMPILE_FAILED,
        FailureKind.TIMEOUT,
        FailureKind.CRASH,
        None,
    ]
    assert run.failures == tuple(read[:3])
    assert run.best is read[3]
    assert run.result().gain is None  # the first one failed


@pytest.mark.asyncio
async def test_a_configuration_that_cannot_be_launched_is_a_failure_without_a_call() -> None:
    kernel = RawKernel("kernel void f() { int tile[TILE]; }", "f", grid="TILE - 1")
    pool = MadeUpPool(at_once)
    async with tune(kernel, SPACE, pool=pool) as run:
        read = [trial async for trial in run]
    assert read[0].failure is not None
    assert read[0].failure.kind is FailureKind.INVALID_KERNEL
    assert [tile for _, tile in pool.begun] == [2, 3, 4]


@pytest.mark.asyncio
async def test_each_device_tries_one_configuration_at_a_time_and_trials_come_as_they_end() -> None:
    gate = Gate()
    pool = MadeUpPool(gate, devices=("opencl:0", "cpu", "opencl:1"))
    async with tune(KERNEL, SPACE, pool=pool) as run:
        gate.open(2)
        assert (await anext(run)).configuration == {"TILE": 2}
        gate.open(3)
        assert (await anext(run)).configuration == {"TILE": 3}
        gate.open(1)
        gate.open(4)
        assert set(tiles([trial async for trial in run])) == {1, 4}
    assert run.devices == ("opencl:0", "opencl:1")
    assert pool.begun[:2] == [("opencl:0", 1), ("opencl:1", 2)]
    assert {device for device, tile in pool.begun[2:]} == {"opencl:1"}


@pytest.mark.asyncio
async def test_what_runs_is_shown_while_it_runs() -> None:
    gate = Gate()
    async with tune(KERNEL, SPACE, pool=MadeUpPool(gate)) as run:
        gate.open(1)
        await anext(run)
        assert dict(run.running) == {"opencl:0": Configuration({"TILE": 2})}
        assert (len(run.trials), run.total, run.complete) == (1, 4, False)
        partial = run.result()
    assert (len(partial.trials), partial.complete) == (1, False)
    assert dict(run.running) == {}


@pytest.mark.asyncio
async def test_leaving_early_cancels_what_runs_and_keeps_what_ended() -> None:
    gate = Gate()
    pool = MadeUpPool(gate)
    before = tasks()
    async with tune(KERNEL, SPACE, pool=pool) as run:
        gate.open(1)
        async for _ in run:
            break
    assert pool.cancelled == [2]
    assert tiles(run.trials) == [1]
    assert not run.complete
    assert tasks() == before


@pytest.mark.asyncio
async def test_an_exception_in_the_block_cancels_what_runs_and_is_the_one_that_comes_out() -> None:
    pool = MadeUpPool(Gate())
    before = tasks()
    with pytest.raises(KeyError):
        async with tune(KERNEL, SPACE, pool=pool):
            await asyncio.sleep(0)
            raise KeyError
    await asyncio.sleep(0)
    assert tasks() == before


@pytest.mark.asyncio
async def test_a_reader_that_is_cancelled_loses_no_trial() -> None:
    gate = Gate()
    async with tune(KERNEL, SPACE, pool=MadeUpPool(gate)) as run:
        reader = asyncio.create_task(anext(run))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        reader.cancel()
        # It ends while nobody reads, and in the very step in which the reader is cancelled.
        for tile in SPACE:
            gate.open(int(tile["TILE"]))
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert tiles([trial async for trial in run]) == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_trials_that_ended_unread_are_read_after_the_block() -> None:
    gate = Gate()
    async with tune(KERNEL, SPACE, pool=MadeUpPool(gate)) as run:
        gate.open(1)
        gate.open(2)
        await anext(run)
        while len(run.trials) < 2:
            await asyncio.sleep(0)
    assert tiles([trial async for trial in run]) == [2]


@pytest.mark.asyncio
async def test_a_slow_reader_holds_nothing_up() -> None:
    async with tune(KERNEL, SPACE, pool=MadeUpPool(at_once)) as run:
        while not run.complete:
            await asyncio.sleep(0)
        assert tiles([trial async for trial in run]) == [1, 2, 3, 4]


@pytest.mark.asyncio
async def test_it_may_be_entered_in_one_task_and_left_in_another() -> None:
    gate = Gate()
    pool = MadeUpPool(gate)
    run = tune(KERNEL, SPACE, pool=pool)
    await asyncio.create_task(run.__aenter__())  # type: ignore[arg-type]
    gate.open(1)
    await anext(run)
    await asyncio.create_task(run.__aexit__(None, None, None))  # type: ignore[arg-type]
    assert pool.cancelled == [2]


@pytest.mark.asyncio
async def test_leaving_can_itself_be_cancelled_and_nothing_is_left() -> None:
    release = asyncio.Event()

    async def stubborn(tile: int, device: str) -> Outcome[Measurement]:
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
        raise AssertionError

    before = tasks()
    run = tune(KERNEL, SPACE, pool=MadeUpPool(stubborn))
    await run.__aenter__()
    await asyncio.sleep(0)
    leaving = asyncio.create_task(run.__aexit__(None, None, None))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    release.set()
    while tasks() != before:
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "error",
    [
        PoolClosed(),
        MissingExtra(package="pyopencl", extra="opencl"),
        NoSuchDevice(device="opencl:0"),
        BrokenCompiler(device="opencl:0", reason="error: unknown target CPU"),
    ],
)
@pytest.mark.asyncio
async def test_what_says_nothing_about_a_configuration_ends_the_run_with_its_error(error: Exception) -> None:
    async def behaviour(tile: int, device: str) -> Outcome[Measurement]:
        if tile < 3:
            return good(tile)
        kind = OutcomeKind.REJECTED if isinstance(error, PoolClosed) else OutcomeKind.ERROR
        return Outcome(kind=kind, error=error)

    read = []
    with pytest.raises(type(error)) as caught:
        async with tune(KERNEL, SPACE, pool=MadeUpPool(behaviour)) as run:
            async for trial in run:
                read.append(trial)
    assert caught.value is error
    assert tiles(read) == [1, 2]
    assert tiles(run.trials) == [1, 2]
    assert not run.complete


@pytest.mark.asyncio
async def test_an_error_that_nobody_read_comes_out_of_the_block() -> None:
    async def behaviour(tile: int, device: str) -> Outcome[Measurement]:
        raise PoolClosed

    with pytest.raises(PoolClosed):
        async with tune(KERNEL, SPACE, pool=MadeUpPool(behaviour)) as run:
            while "ended" not in repr(run):
                await asyncio.sleep(0)
    gc.collect()  # an error that was never retrieved would be told here


@pytest.mark.asyncio
async def test_two_devices_that_fail_at_once_raise_one_error_and_no_group() -> None:
    async def behaviour(tile: int, device: str) -> Outcome[Measurement]:
        raise PoolClosed

    with pytest.raises(PoolClosed):
        async with tune(KERNEL, SPACE, pool=MadeUpPool(behaviour, devices=("opencl:0", "opencl:1"))) as run:
            await anext(run)


@pytest.mark.asyncio
async def test_a_strategy_that_raises_ends_the_run_with_its_error() -> None:
    class Broken:
        def ask(self) -> Configuration | None:
            raise ZeroDivisionError

        def tell(self, trial: Trial) -> None:
            pass

    with pytest.raises(ZeroDivisionError):
        async with tune(KERNEL, SPACE, pool=MadeUpPool(at_once), strategy=Broken()) as run:
            async for _ in run:
                pass
    assert tiles(run.trials) == [1]


@pytest.mark.asyncio
async def test_a_restriction_that_raises_ends_the_run_with_its_error() -> None:
    space = Space({"TILE": [2, 1, 0]}, ["2 / TILE > 0"])
    with pytest.raises(InvalidSpace, match="TILE=0"):
        async with tune(KERNEL, space, pool=MadeUpPool(at_once)) as run:
            async for _ in run:
                pass
    assert tiles(run.trials) == [2, 1]


@pytest.mark.asyncio
async def test_a_run_whose_task_somebody_else_cancelled_does_not_look_finished() -> None:
    async with tune(KERNEL, SPACE, pool=MadeUpPool(Gate())) as run:
        for task in tasks():
            task.cancel()
        with pytest.raises(RuntimeError, match="cancelled"):
            await anext(run)


@pytest.mark.asyncio
async def test_a_strategy_that_waits_for_a_trial_is_asked_again_when_one_has_ended() -> None:
    class OneAfterTheOther:
        """Gives nothing while something is out, although another device is free."""

        def __init__(self) -> None:
            self.left = list(SPACE)[1:]
            self.out = 1

        def ask(self) -> Configuration | None:
            if self.out or not self.left:
                return None
            self.out += 1
            return self.left.pop(0)

        def tell(self, trial: Trial) -> None:
            self.out -= 1

    pool = MadeUpPool(at_once, devices=("opencl:0", "opencl:1"))
    async with tune(KERNEL, SPACE, pool=pool, strategy=OneAfterTheOther()) as run:
        assert tiles([trial async for trial in run]) == [1, 2, 3, 4]
    assert run.result().strategy.name == "OneAfterTheOther"
    assert run.result().strategy.seed is None


@pytest.mark.asyncio
async def test_random_is_repeatable_and_begins_with_the_default() -> None:
    orders = []
    for seed in (4, 4, 5):
        space = Space({"TILE": range(1, 30)})
        run = tune(KERNEL, space, pool=MadeUpPool(at_once), strategy="random", seed=seed, default={"TILE": 7})
        async with run:
            orders.append(tiles([trial async for trial in run]))
    assert orders[0] == orders[1] != orders[2]
    assert all(order[0] == 7 and sorted(order) == list(range(1, 30)) for order in orders)


@pytest.mark.asyncio
async def test_max_trials_ends_it_early_and_completely() -> None:
    async with tune(KERNEL, SPACE, pool=MadeUpPool(at_once), max_trials=2) as run:
        assert run.total == 2
        assert tiles([trial async for trial in run]) == [1, 2]
    assert run.complete
    assert run.result().strategy.max_trials == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (10.0, None)),
        ({"timeout": 2.0}, (2.0, None)),
        ({"limits": Limits(run=1.0)}, (None, Limits(run=1.0))),
    ],
)
@pytest.mark.asyncio
async def test_a_search_has_a_limit_even_where_none_was_named(
    options: dict[str, Any], expected: tuple[float | None, Limits | None]
) -> None:
    pool = MadeUpPool(at_once)
    async with tune(KERNEL, SPACE, pool=pool, max_trials=1, **options) as run:
        await anext(run)
    timeout, limits = expected
    assert pool.options[0]["limits"] == (limits or Limits(check=timeout, run=timeout))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"strategy": "annealing"}, ValueError, "annealing"),
        ({"max_trials": 0}, ValueError, "max_trials"),
        ({"default": {"TILE": 9}}, InvalidSpace, "9"),
        ({"device": "opencl:7"}, NoSuchDevice, "opencl:7"),
        ({"device": ["opencl:0", "opencl:0"]}, ValueError, "different"),
        ({"device": []}, ValueError, "one or several"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        tune(KERNEL, SPACE, pool=MadeUpPool(at_once), **options)


def test_a_parameter_that_the_kernel_never_reads_is_refused() -> None:
    space = Space({"TILE": [1], "UNROLL": [1, 2]})
    with pytest.raises(InvalidKernel, match="UNROLL"):
        tune(KERNEL, space, pool=MadeUpPool(at_once))
    with pytest.raises(InvalidKernel, match="UNROLL"):
        Tunable(KERNEL, space)


def test_a_pool_without_a_device_for_the_kernel_is_refused() -> None:
    with pytest.raises(NoSuchDevice, match="opencl"):
        tune(KERNEL, SPACE, pool=MadeUpPool(at_once, devices=("cuda:0", "cpu")))


def test_a_pool_without_devices_uses_the_first_of_the_kernels_language() -> None:
    assert tune(KERNEL, SPACE, pool=MadeUpPool(at_once, devices=())).devices == ("opencl:0",)


def test_a_tunable_is_one_kernel_in_different_languages() -> None:
    cuda = RawKernel('extern "C" __global__ void f() { int tile[TILE]; }', "f", "cuda")
    tunable = Tunable([cuda, KERNEL], SPACE)
    assert tunable.languages == ("cuda", "opencl")
    assert tunable.kernel_in("opencl") is KERNEL
    assert tunable.kernel_in("metal") is None
    with pytest.raises(InvalidKernel, match="one language"):
        Tunable([KERNEL, KERNEL], SPACE)
    with pytest.raises(InvalidKernel, match="at least one"):
        Tunable([], SPACE)
    with pytest.raises(InvalidSpace, match="9"):
        Tunable(KERNEL, SPACE, default={"TILE": 9})


@pytest.mark.asyncio
async def test_it_is_read_in_its_block_and_entered_once() -> None:
    run: Tuning = tune(KERNEL, SPACE, pool=MadeUpPool(at_once))
    with pytest.raises(RuntimeError, match="async with"):
        await anext(run)
    async with run:
        with pytest.raises(RuntimeError, match="once"):
            await run.__aenter__()
