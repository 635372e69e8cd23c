"""`benchmark` through a real pool: whatever a candidate does costs its own measurement, and the next one is
good."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tunewire import Limits, OutcomeKind, Pool
from tunewire.bench import Array, CFunction, RawKernel, Scalar, benchmark, benchmark_outcome
from tunewire.bench.benchmarking import choose_device
from tunewire.errors import (
    CallTimeout,
    CompileFailed,
    EncodeError,
    InvalidKernel,
    NoSuchDevice,
    WorkerCrashed,
    WrongResult,
)

DEVICE = "opencl:0"
# Each failure is planted by a define, so that all the kernels are one source, as a tuning run's are.
SOURCE = """
kernel void scale(global float *y, global const float *x, float by) {
    int i = get_global_id(0);
#if FAILURE == 1
    y[i] = undeclared;
#elif FAILURE == 2
    *(volatile global int *)16 = 1;
#elif FAILURE == 3
    volatile global const float *never = x;
    while (never[0] < 2.0f) {}
#elif FAILURE == 4
    by += 1;
#endif
    y[i] = by * x[i];
}
"""


def scaled(y: Any, x: Any, by: Any) -> Any:
    return by * x


KERNEL = RawKernel(
    SOURCE,
    "scale",
    args=[Array(1024, output=True), Array(1024), Scalar(2.5, "float32")],
    grid=16,
    block=64,
    defines={"FAILURE": 0},
    reference=scaled,
)


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool(devices=[DEVICE, "cpu"]) as opened:
        yield opened


async def good(pool: Pool) -> bool:
    return (await benchmark(KERNEL, pool=pool, timeout=60, samples=3)).check == "passed"


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_a_right_kernel_is_measured_in_another_process(pool: Pool) -> None:
    outcome = await benchmark_outcome(KERNEL, pool=pool, timeout=60, samples=4)
    assert outcome.kind is OutcomeKind.COMPLETED
    assert outcome.pid not in (None, os.getpid())
    measurement = outcome.unwrap()
    assert len(measurement.samples_ns) == 4
    assert sum(measurement.samples_ns) * 1e-9 < outcome.seconds


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_each_failure_has_its_own_kind_and_the_next_kernel_is_good(pool: Pool) -> None:
    assert await good(pool)

    with pytest.raises(CompileFailed, match="undeclared"):
        await benchmark(KERNEL.bind({"FAILURE": 1}), pool=pool, timeout=60)
    assert await good(pool)

    with pytest.raises(WorkerCrashed) as crashed:
        await benchmark(KERNEL.bind({"FAILURE": 2}), pool=pool, timeout=60)
    assert (crashed.value.signal, crashed.value.phase, crashed.value.device) == ("SIGSEGV", "check", DEVICE)
    assert await good(pool)

    with pytest.raises(CallTimeout) as late:
        await benchmark(KERNEL.bind({"FAILURE": 3}), pool=pool, timeout=2)
    assert (late.value.phase, late.value.limit, late.value.device) == ("check", 2, DEVICE)
    assert await good(pool)

    with pytest.raises(WrongResult) as wrong:
        await benchmark(KERNEL.bind({"FAILURE": 4}), pool=pool, timeout=60)
    assert wrong.value.device == DEVICE
    assert await good(pool)


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_outcomes_hold_what_benchmark_would_raise(pool: Pool) -> None:
    outcome = await benchmark_outcome(KERNEL.bind({"FAILURE": 4}), pool=pool, timeout=60)
    assert outcome.kind is OutcomeKind.ERROR
    assert isinstance(outcome.error, WrongResult)
    outcome = await benchmark_outcome(KERNEL.bind({"FAILURE": 2}), pool=pool, timeout=60)
    assert outcome.kind is OutcomeKind.CRASH


def endless() -> None:
    while True:
        time.sleep(1)


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_a_limit_names_the_stage_that_was_too_slow(pool: Pool) -> None:
    with pytest.raises(CallTimeout) as late:
        await benchmark(endless, pool=pool, device="cpu", timeout=0.2)
    assert (late.value.phase, late.value.limit) == ("run", 0.2)

    def slow_reference(y: Any, x: Any, by: Any) -> Any:
        import time

        time.sleep(30)

    slow = RawKernel(SOURCE, "scale", args=KERNEL.args, grid=16, block=64, reference=slow_reference)
    with pytest.raises(CallTimeout) as late:
        await benchmark(slow, pool=pool, limits=Limits(check=0.3, run=60))
    assert (late.value.phase, late.value.limit) == ("check", 0.3)


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_a_compilation_that_takes_too_long_is_told_from_a_slow_kernel(pool: Pool) -> None:
    assert await good(pool)  # so that the library's import is not in the limit
    many = "".join(f"y[i] += sin(x[i] * {n}.0f + y[{n}]);\n" for n in range(20_000))
    slow = RawKernel(
        f"kernel void slow(global float *y, global const float *x) {{ int i = get_global_id(0);\n{many} }}",
        "slow",
        args=KERNEL.args[:2],
    )
    with pytest.raises(CallTimeout) as late:
        await benchmark(slow, pool=pool, limits=Limits(compile=0.3))
    assert (late.value.phase, late.value.limit) == ("compile", 0.3)
    assert await good(pool)


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_cancelling_ends_the_kernel_and_frees_its_device(pool: Pool, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def reference(y: Any, x: Any, by: Any) -> Any:
        begun.touch()  # the kernel is launched next
        return by * x

    kernel = RawKernel(SOURCE, "scale", args=KERNEL.args, grid=16, block=64, reference=reference)
    running = asyncio.create_task(benchmark(kernel.bind({"FAILURE": 3}), pool=pool))
    while not begun.exists() and not running.done():
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await good(pool)


@pytest.mark.asyncio
async def test_callables_of_every_kind_are_sent(pool: Pool) -> None:
    by = 3

    def closure(x: Any) -> Any:
        return x * by

    for candidate in (sorted, lambda x: x, closure):
        measurement = await benchmark(candidate, args=([3, 1, 2],), pool=pool, samples=2, device="cpu")
        assert (measurement.device, measurement.check) == ("cpu", "not asked")
    taken = await benchmark(closure, kwargs={"x": Array(16)}, pool=pool, samples=2)
    assert taken.median_ns > 0


@pytest.mark.asyncio
async def test_what_a_callable_raises_is_raised_here(pool: Pool) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await benchmark(int, args=("three",), pool=pool)


@pytest.mark.asyncio
async def test_what_is_asked_wrongly_is_an_error_before_anything_runs(pool: Pool) -> None:
    with pytest.raises(EncodeError, match="with its arguments"):
        await benchmark_outcome(sorted, args=(threading.Lock(),), pool=pool)
    with pytest.raises(NoSuchDevice):
        await benchmark_outcome(KERNEL, pool=pool, device="opencl:7")
    with pytest.raises(NoSuchDevice):
        await benchmark_outcome(RawKernel("__global__ void f() {}", "f", "cuda"), pool=pool)
    with pytest.raises(InvalidKernel, match="no parameter 'N'"):
        await benchmark_outcome(RawKernel("kernel void f() {}", "f", grid="N"), pool=pool)
    with pytest.raises(TypeError, match="no named arguments, so not x"):
        await benchmark(
            CFunction("libm.so.6", "sqrt", ("c_double",), "c_double"), kwargs={"x": 1.0}, pool=pool
        )
    with pytest.raises(TypeError, match="are for callables"):
        await benchmark_outcome(KERNEL, args=(1,), pool=pool)
    with pytest.raises(ValueError, match="samples=0"):
        await benchmark_outcome(KERNEL, samples=0, pool=pool)


@pytest.mark.asyncio
async def test_a_kernel_on_a_device_of_another_language_is_refused(pool: Pool) -> None:
    with pytest.raises(InvalidKernel, match="written for opencl, and cpu is not such a device"):
        await benchmark(KERNEL, pool=pool, device="cpu")


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_results_may_be_plain_data() -> None:
    async with Pool(devices=[DEVICE], results="msgspec") as pool:
        measurement = await benchmark(KERNEL, pool=pool, timeout=60, samples=3)
        assert measurement.check == "passed"
        with pytest.raises(WrongResult) as wrong:
            await benchmark(KERNEL.bind({"FAILURE": 4}), pool=pool, timeout=60)
        assert wrong.value.mismatched == 1024


CUDA = RawKernel("__global__ void f() {}", "f", "cuda")


@pytest.mark.parametrize(
    ("candidate", "devices", "chosen"),
    [
        (KERNEL, (), "opencl:0"),
        (CUDA, (), "cuda:0"),
        (sorted, (), "cpu"),
        (KERNEL, ("cpu", "cuda:0", "opencl:1", "opencl:0"), "opencl:1"),
        (CUDA, ("opencl:0", "cuda:1"), "cuda:1"),
        (sorted, ("opencl:0", "cpu"), "cpu"),
        (sorted, ("cpu", "cuda:0"), "cuda:0"),
    ],
)
def test_the_first_device_that_fits_is_chosen(candidate: Any, devices: tuple[str, ...], chosen: str) -> None:
    assert choose_device(candidate, devices) == chosen


@pytest.mark.parametrize("candidate", [KERNEL, CUDA, sorted])
def test_a_pool_without_a_device_that_fits_is_told_with_what_it_has(candidate: Any) -> None:
    devices = ("opencl:0",) if candidate is not KERNEL else ("cuda:0",)
    with pytest.raises(NoSuchDevice) as raised:
        choose_device(candidate, devices)
    assert raised.value.available == devices
