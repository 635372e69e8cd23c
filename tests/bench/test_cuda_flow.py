"""The cuda backend's decisions, over a simulated GPU. The compiler is the real one; what needs a GPU is in
tests/gpu."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")

from simulated_cupy import CompileException, CUDADriverError, CUDARuntimeError, OutOfMemoryError, SimulatedGpu

from tunewire.bench import Array, Measurement, RawKernel, Scalar
from tunewire.bench.backends.nvrtc import nvrtc_version
from tunewire.bench.procedure import Plan
from tunewire.bench.worker import measure_callable, measure_kernel, seal
from tunewire.errors import CompileFailed, DeviceFault, InvalidKernel, NoSuchDevice, WrongResult

BACKEND = "tunewire.bench.backends.cuda"
SOURCE = """
extern "C" __global__ void scale(float *y, const float *x, float by) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = by * x[i];
}
"""
PLAN = Plan(samples=3, warmup=1)
ILLEGAL_ADDRESS = 700
INVALID_VALUE = 1


def scaled(y: Any, x: Any, by: Any) -> Any:
    return by * x


def right(y: Any, x: Any, by: Any) -> None:
    y[...] = by * x


def scale(**changes: Any) -> RawKernel:
    parts: dict[str, Any] = {
        "args": [Array(256, output=True, name="y"), Array(256), Scalar(2.5, "float32")],
        "grid": 4,
        "block": 64,
        "reference": scaled,
    }
    return RawKernel(SOURCE, "scale", "cuda", **{**parts, **changes})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGpu]:
    nvrtc_version()  # the compiler's library is found with the real CuPy's help, once
    simulated = SimulatedGpu()
    simulated.kernels["scale"] = (right, 0.2)
    for name, module in simulated.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, BACKEND, raising=False)
    monkeypatch.delenv("TUNEWIRE_DEVICE", raising=False)
    yield simulated
    sys.modules.pop(BACKEND, None)  # it holds on to the simulated library


def test_a_kernel_is_compiled_loaded_checked_and_timed_by_events(gpu: SimulatedGpu) -> None:
    taken = measure_kernel(scale(), "cuda:0", PLAN)
    assert taken.check == "passed"
    assert taken.samples_ns == pytest.approx((201_000.0,) * 3)  # the kernel, and the event behind it
    assert (taken.backend, taken.clock, taken.driver) == ("cuda", "cuda events", "CUDA 12.8")
    assert taken.library is not None
    assert taken.library.startswith("CuPy simulated, NVRTC 12")
    assert gpu.selected == [0]
    assert len(gpu.loaded) == 1
    assert set(gpu.launches) == {("scale", (4,), (64,), 0)}
    assert gpu.frees == 1


def test_a_short_kernel_is_launched_until_the_events_can_tell(gpu: SimulatedGpu) -> None:
    gpu.kernels["scale"] = (right, 0.002)
    taken = measure_kernel(scale(), "cuda:0", PLAN)
    assert taken.launches_per_sample == 32  # 100 steps of 0.5 us, in launches of 2 us
    assert taken.median_ns == pytest.approx(2000, rel=0.05)


def test_a_wrong_result_is_found_and_everything_freed(gpu: SimulatedGpu) -> None:
    def forgets_one(y: Any, x: Any, by: Any) -> None:
        y[1:] = by * x[1:]

    gpu.kernels["scale"] = (forgets_one, 0.2)
    with pytest.raises(WrongResult) as raised:
        measure_kernel(scale(), "cuda:0", PLAN)
    assert (raised.value.mismatched, raised.value.device) == (1, "cuda:0")
    assert gpu.frees == 1


def test_a_kernel_that_does_not_compile_is_not_loaded(gpu: SimulatedGpu) -> None:
    broken = RawKernel(SOURCE.replace("by * x[i]", "undeclared"), "scale", "cuda", args=scale().args)
    with pytest.raises(CompileFailed, match="undeclared") as raised:
        measure_kernel(broken, "cuda:0", PLAN)
    assert raised.value.device == "cuda:0"
    assert gpu.loaded == []


def test_an_architecture_may_be_chosen_by_option(gpu: SimulatedGpu) -> None:
    measure_kernel(scale(options=["-arch=sm_90a", "-DX=1"]), "cuda:0", PLAN)
    with pytest.raises(InvalidKernel, match="is not a real architecture"):
        measure_kernel(scale(options=["-arch=native"]), "cuda:0", PLAN)


@pytest.mark.parametrize(
    ("shared_bytes", "asked"), [(48 * 1024, []), (96 * 1024, [("scale", "dynamic shared", 96 * 1024)])]
)
def test_much_shared_memory_is_asked_for(gpu: SimulatedGpu, shared_bytes: int, asked: list[Any]) -> None:
    measure_kernel(scale(shared_bytes=shared_bytes), "cuda:0", PLAN)
    assert gpu.attributes == asked
    assert {launch[3] for launch in gpu.launches} == {shared_bytes}


def raising(error: Exception, gpu: SimulatedGpu | None = None) -> Callable[..., None]:
    def compute(*_: Any) -> None:
        if gpu is not None:
            gpu.dead_with = ILLEGAL_ADDRESS
        raise error

    return compute


@pytest.mark.parametrize("error", [CUDADriverError(ILLEGAL_ADDRESS), CUDARuntimeError(ILLEGAL_ADDRESS)])
def test_an_error_after_which_the_device_is_dead_is_a_fault(gpu: SimulatedGpu, error: Exception) -> None:
    gpu.kernels["scale"] = (raising(error, gpu), 0.2)
    with pytest.raises(DeviceFault, match="700") as raised:
        measure_kernel(scale(), "cuda:0", PLAN)
    assert raised.value.device == "cuda:0"
    assert raised.value.__cause__ is error
    assert raised.value.__notes__  # freeing failed, too, and did not hide it


@pytest.mark.parametrize("error", [CUDADriverError(INVALID_VALUE), CUDARuntimeError(INVALID_VALUE)])
def test_an_error_that_the_device_survives_is_the_kernels(gpu: SimulatedGpu, error: Exception) -> None:
    gpu.kernels["scale"] = (raising(error), 0.2)
    with pytest.raises(InvalidKernel, match="cuda:0 refuses it"):
        measure_kernel(scale(), "cuda:0", PLAN)
    assert gpu.frees == 1


@pytest.mark.parametrize("error", [OutOfMemoryError("no memory"), CUDARuntimeError(2), CUDADriverError(2)])
def test_memory_that_is_not_there_is_a_memory_error(gpu: SimulatedGpu, error: Exception) -> None:
    gpu.kernels["scale"] = (raising(error), 0.2)
    with pytest.raises(MemoryError, match="cuda:0 has not the memory for 'scale'"):
        measure_kernel(scale(), "cuda:0", PLAN)


def test_a_pinned_process_uses_the_one_device_that_it_sees(
    gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEWIRE_DEVICE", "cuda:3")
    assert measure_kernel(scale(), "cuda:3", PLAN).device == "cuda:3"
    assert gpu.selected == [0]
    with pytest.raises(NoSuchDevice, match="started for another device"):
        measure_kernel(scale(), "cuda:0", PLAN)


def test_a_device_that_is_not_there_is_told(gpu: SimulatedGpu) -> None:
    with pytest.raises(NoSuchDevice, match="sees 1 CUDA devices"):
        measure_kernel(scale(), "cuda:1", PLAN)
    gpu.devices = 0
    with pytest.raises(NoSuchDevice, match="cudaError100"):
        measure_kernel(scale(), "cuda:0", PLAN)


def callable_on(gpu: SimulatedGpu, work: Callable[..., None], *args: Any) -> Measurement:
    # The simulation lives in this process and cannot be pickled: the callable finds it by its module.
    global _gpu, _work
    _gpu, _work = gpu, work
    return measure_callable(seal(_run, args, {}), "cuda:0", PLAN)


_gpu: SimulatedGpu
_work: Callable[..., None]


def _run(*args: Any) -> None:
    _gpu.host += 0.1  # Python takes its time
    _work(_gpu, *args)


def launches(gpu: SimulatedGpu, *_: Any) -> None:
    gpu.enqueue(0.3)


def launches_nothing(gpu: SimulatedGpu, *_: Any) -> None:
    pass


def launches_and_waits(gpu: SimulatedGpu, *_: Any) -> None:
    gpu.enqueue(0.3)
    gpu.wait()


@pytest.mark.parametrize(
    ("work", "seen"), [(launches, True), (launches_nothing, False), (launches_and_waits, None)]
)
def test_a_callable_that_launches_nothing_is_found_out(
    gpu: SimulatedGpu, work: Callable[..., None], seen: bool | None
) -> None:
    taken = callable_on(gpu, work)
    assert taken.device_work is seen
    # The events alone do not tell: Python's time is between them, whether or not anything was launched.
    assert taken.median_ns > 99_000


def test_described_arguments_are_on_the_device_and_others_as_they_are(gpu: SimulatedGpu) -> None:
    seen: list[Any] = []

    def work(gpu: SimulatedGpu, described: Any, plain: Any, scalar: Any) -> None:
        seen.append((type(described).__name__, type(plain).__name__, scalar))
        gpu.enqueue(0.3)

    callable_on(gpu, work, Array(4, fill="arange"), np.zeros(2), Scalar(3, "int32"))
    assert set(seen) == {("DeviceArray", "ndarray", 3)}
    assert gpu.frees == 1


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (CompileException("no such thing as floot"), CompileFailed),
        (CUDARuntimeError(INVALID_VALUE), InvalidKernel),
        (ZeroDivisionError("the callable's own"), ZeroDivisionError),
    ],
)
def test_what_a_callable_raises_passes_the_same_seam(
    gpu: SimulatedGpu, error: Exception, wanted: type[Exception]
) -> None:
    with pytest.raises(wanted):
        callable_on(gpu, raising(error))
    assert gpu.frees == 1
