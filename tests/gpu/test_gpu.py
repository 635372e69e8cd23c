"""What needs an NVIDIA GPU with CuPy. Skipped, with the reason, where discovery finds none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

import pytest
import pytest_asyncio

from tunewire import Pool, Telemetry
from tunewire.bench import Array, RawKernel, Scalar, benchmark
from tunewire.devices import Discovery, discover
from tunewire.errors import CallTimeout, CompileFailed, DeviceFault, InvalidKernel, WrongResult

N = 1 << 20
# Each failure is planted by a define.
SOURCE = """
extern "C" __global__ void scale(float *y, const float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#if FAILURE == 1
    y[i] = undeclared;
#elif FAILURE == 2
    *(volatile int *)16 = 1;
#elif FAILURE == 3
    while (((volatile const float *)x)[0] < 2.0f) {}
#elif FAILURE == 4
    by += 1;
#endif
    if (i < n) y[i] = by * x[i];
}
"""


@cache
def found() -> Discovery:
    return asyncio.run(discover())


@pytest.fixture(autouse=True)
def gpu() -> str:
    devices = [device.id for device in found().devices if device.kind == "cuda"]
    if not devices:
        told = [problem.reason for problem in found().problems if problem.kind == "cuda"]
        pytest.skip(f"no CUDA device: {told[0] if told else 'none is visible'}")
    return devices[0]


@pytest_asyncio.fixture
async def pool(gpu: str) -> AsyncIterator[Pool]:
    async with Pool(devices=[gpu]) as opened:
        yield opened


def scaled(y: Any, x: Any, by: Any, n: Any) -> Any:
    return by * x


def scale(**changes: Any) -> RawKernel:
    parts: dict[str, Any] = {
        "args": [Array(N, output=True), Array(N), Scalar(2.5, "float32"), Scalar(N, "int32")],
        "grid": N // 256,
        "block": 256,
        "defines": {"FAILURE": 0},
        "reference": scaled,
    }
    return RawKernel(SOURCE, "scale", "cuda", **{**parts, **changes})


async def good(pool: Pool) -> bool:
    return (await benchmark(scale(), pool=pool, timeout=60, samples=5)).check == "passed"


@pytest.mark.asyncio
async def test_a_kernel_is_measured_by_events(pool: Pool, gpu: str) -> None:
    taken = await benchmark(scale(), pool=pool, timeout=60)
    assert (taken.device, taken.backend, taken.clock, taken.check) == (gpu, "cuda", "cuda events", "passed")
    assert taken.median_ns > taken.resolution_ns
    assert taken.driver is not None
    assert taken.driver.startswith("CUDA ")


@pytest.mark.asyncio
async def test_a_device_is_found_with_its_properties(gpu: str) -> None:
    device = next(device for device in found().devices if device.id == gpu)
    assert device.name
    assert device.memory_bytes is not None
    assert device.memory_bytes > 1 << 30
    assert device.compute_capability is not None
    assert device.compute_units is not None


@pytest.mark.asyncio
async def test_a_wrong_result_and_a_bad_source_are_told(pool: Pool) -> None:
    with pytest.raises(WrongResult) as wrong:
        await benchmark(scale().bind({"FAILURE": 4}), pool=pool, timeout=60)
    assert wrong.value.mismatched > N // 2
    with pytest.raises(CompileFailed, match="undeclared"):
        await benchmark(scale().bind({"FAILURE": 1}), pool=pool, timeout=60)
    assert await good(pool)


@pytest.mark.asyncio
async def test_an_illegal_access_is_a_fault_and_the_next_kernel_runs_in_a_fresh_process(pool: Pool) -> None:
    before = await pool.call(os.getpid)
    with pytest.raises(DeviceFault):
        await benchmark(scale().bind({"FAILURE": 2}), pool=pool, timeout=60)
    assert await good(pool)
    assert await pool.call(os.getpid) != before


@pytest.mark.asyncio
async def test_an_endless_kernel_reaches_its_limit_and_the_next_one_is_good(pool: Pool) -> None:
    assert await good(pool)
    with pytest.raises(CallTimeout) as late:
        await benchmark(scale().bind({"FAILURE": 3}), pool=pool, timeout=5)
    assert late.value.phase == "check"
    assert await good(pool)


@pytest.mark.asyncio
async def test_memory_that_is_not_there_is_a_memory_error_and_harms_nothing(pool: Pool) -> None:
    def hoard() -> None:
        import cupy

        cupy.empty(1 << 50, cupy.uint8)

    before = await pool.call(os.getpid)
    with pytest.raises(MemoryError):
        await benchmark(hoard, pool=pool, timeout=60)
    assert await good(pool)
    assert await pool.call(os.getpid) == before


@pytest.mark.asyncio
async def test_a_launch_that_the_device_refuses_is_an_invalid_kernel_and_harms_nothing(pool: Pool) -> None:
    before = await pool.call(os.getpid)
    with pytest.raises(InvalidKernel, match="refuses it"):
        await benchmark(scale(block=(64, 64)), pool=pool, timeout=60)
    assert await good(pool)
    assert await pool.call(os.getpid) == before


@pytest.mark.asyncio
async def test_much_shared_memory_and_a_templates_instance_are_launched(pool: Pool) -> None:
    source = """
    template <class T, int PER> __global__ void reverse(T *y, const T *x) {
        extern __shared__ float tile[];
        for (int i = threadIdx.x; i < PER; i += blockDim.x) tile[i] = x[blockIdx.x * PER + i];
        __syncthreads();
        for (int i = threadIdx.x; i < PER; i += blockDim.x) y[blockIdx.x * PER + i] = tile[PER - 1 - i];
    }
    """

    def reversed_by_16384(y: Any, x: Any) -> Any:
        return x.reshape(-1, 16384)[:, ::-1].reshape(-1)

    kernel = RawKernel(
        source,
        "reverse<float, 16384>",
        "cuda",
        args=[Array(65536, output=True), Array(65536)],
        grid=4,
        block=256,
        shared_bytes=4 * 16384,
        reference=reversed_by_16384,
    )
    assert (await benchmark(kernel, pool=pool, timeout=60)).check == "passed"


def adds(x: Any) -> Any:
    return x + 1


def launches_nothing(x: Any) -> int:
    return sum(range(1000))


def waits(x: Any) -> float:
    return float(x.sum())


@pytest.mark.asyncio
@pytest.mark.parametrize(("candidate", "seen"), [(adds, True), (launches_nothing, False), (waits, None)])
async def test_a_callable_that_launches_nothing_is_found_out(
    pool: Pool, gpu: str, candidate: Any, seen: bool | None
) -> None:
    taken = await benchmark(candidate, args=(Array(N),), device=gpu, pool=pool, timeout=60)
    assert taken.device_work is seen
    assert taken.clock == "cuda events"


@pytest.mark.asyncio
async def test_described_arguments_are_cupy_arrays_and_the_stream_is_the_current_one(
    pool: Pool, gpu: str
) -> None:
    def candidate(x: Any) -> None:
        import cupy

        assert isinstance(x, cupy.ndarray)
        x += 1

    assert (await benchmark(candidate, args=(Array(N),), device=gpu, pool=pool, timeout=60)).min_ns > 0


@pytest.mark.asyncio
async def test_all_gpus_are_measured_at_once() -> None:
    async with Pool(devices="auto") as every:
        gpus = [device for device in every.devices if device.startswith("cuda:")]
        taken = await asyncio.gather(
            *(benchmark(scale(), device=gpu, pool=every, timeout=60) for gpu in gpus)
        )
        assert [measurement.device for measurement in taken] == gpus


@pytest.mark.asyncio
async def test_telemetry_reads_the_gpus_that_discovery_finds() -> None:
    async with Telemetry(interval=0.02, path=os.devnull) as telemetry:
        with telemetry.scope("idle"):
            row = await anext(aiter(telemetry.rows()))
        notes = await telemetry.notes()
    assert notes == ()
    there = {device.uuid: device for device in found().devices if device.kind == "cuda" and device.uuid}
    read = {device.uuid: device for device in row.devices}
    assert there.keys() <= read.keys()
    for uuid, device in there.items():
        assert read[uuid].id in (device.id, None)
        total = read[uuid].memory_total_bytes
        assert total is not None
        assert total > 0
        use = read[uuid].utilization_percent
        assert use is None or 0 <= use <= 100
