"""The part of CuPy's API that the cuda backend uses, over a simulated GPU: two clocks and arrays on the host.

It shows that the backend calls things in the right order and draws the right conclusions; that CuPy and a GPU
behave like this, it cannot show. Times are in ms. `host` is the host's clock, `end` the moment at which the
device will have done all that was enqueued; whatever is enqueued begins when both have come.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

EVENT_MS = 0.001


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cudaError{status}")


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR_{status}")


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):
    pass


class SimulatedGpu:
    """One device; `kernels` holds what each kernel computes, by name, and how long it takes."""

    def __init__(self, *, devices: int = 1) -> None:
        self.devices = devices
        self.host = 0.0
        self.end = 0.0
        self.dead_with: int | None = None
        self.kernels: dict[str, tuple[Callable[..., None], float]] = {"spin": (lambda ns: None, 0.0)}
        self.launches: list[tuple[str, Any, Any, int]] = []
        self.loaded: list[bytes] = []
        self.selected: list[int] = []
        self.attributes: list[tuple[Any, Any, int]] = []
        self.frees = 0
        self.stream = Stream(self)

    def enqueue(self, ms: float) -> float:
        if self.dead_with is not None:
            raise CUDARuntimeError(self.dead_with)
        self.end = max(self.end, self.host) + ms
        return self.end

    def wait(self) -> None:
        self.enqueue(0.0)
        self.host = max(self.host, self.end)

    def modules(self) -> dict[str, ModuleType]:
        """What to put into sys.modules."""
        cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
        runtime, driver, compiler, memory = (
            ModuleType(f"cupy.cuda.{name}") for name in ("runtime", "driver", "compiler", "memory")
        )
        _fill(
            runtime,
            CUDARuntimeError=CUDARuntimeError,
            getDeviceCount=self._count,
            driverGetVersion=lambda: 12080,
            deviceSynchronize=self.wait,
        )
        _fill(
            driver,
            CUDADriverError=CUDADriverError,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="dynamic shared",
            funcSetAttribute=lambda function, attribute, value: self.attributes.append(
                (function, attribute, value)
            ),
        )
        _fill(compiler, CompileException=CompileException)
        _fill(memory, OutOfMemoryError=OutOfMemoryError)
        _fill(
            cuda,
            runtime=runtime,
            driver=driver,
            compiler=compiler,
            memory=memory,
            Event=lambda: Event(self),
            Module=lambda: Module(self),
            Device=lambda index: Device(self, index),
            get_current_stream=lambda: self.stream,
            get_elapsed_time=lambda begin, end: end.at - begin.at,
        )
        _fill(
            cupy,
            __version__="simulated",
            cuda=cuda,
            asarray=lambda host: DeviceArray(self, host),
            asnumpy=lambda array, stream=None: array.get(),
            get_default_memory_pool=lambda: Pool(self),
        )
        return {
            "cupy": cupy,
            "cupy.cuda": cuda,
            "cupy.cuda.runtime": runtime,
            "cupy.cuda.driver": driver,
            "cupy.cuda.compiler": compiler,
            "cupy.cuda.memory": memory,
        }

    def _count(self) -> int:
        if self.devices == 0:
            raise CUDARuntimeError(100)
        return self.devices


def _fill(module: ModuleType, **names: Any) -> None:
    vars(module).update(names)


class Stream:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def synchronize(self) -> None:
        self.gpu.wait()


class Event:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu
        self.at = 0.0

    def record(self, stream: Stream) -> None:
        assert stream is self.gpu.stream
        self.at = self.gpu.enqueue(EVENT_MS)

    @property
    def done(self) -> bool:
        return self.at <= self.gpu.host

    def synchronize(self) -> None:
        self.gpu.wait()


class Device:
    def __init__(self, gpu: SimulatedGpu, index: int) -> None:
        self.gpu = gpu
        self.index = index
        self.compute_capability = "90"

    def use(self) -> None:
        self.gpu.selected.append(self.index)


class Module:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def load(self, cubin: bytes) -> None:
        self.gpu.loaded.append(cubin)

    def get_function(self, name: str) -> Function:
        assert f".text.{name}".encode() in self.gpu.loaded[-1]
        return Function(self.gpu, name)


class Function:
    def __init__(self, gpu: SimulatedGpu, name: str) -> None:
        self.gpu = gpu
        self.name = self.ptr = name

    def __call__(self, grid: Any, block: Any, args: Any, shared_mem: int, stream: Stream) -> None:
        assert stream is self.gpu.stream
        self.gpu.launches.append((self.name, grid, block, shared_mem))
        compute, ms = self.gpu.kernels[self.name]
        self.gpu.enqueue(ms if self.name != "spin" else int(args[0]) * 1e-6)
        compute(*(argument.on_device if isinstance(argument, DeviceArray) else argument for argument in args))


class DeviceArray:
    def __init__(self, gpu: SimulatedGpu, host: Any) -> None:
        gpu.enqueue(0.0)
        self.gpu = gpu
        self.on_device = np.array(host)

    def set(self, host: Any, stream: Stream) -> None:
        assert stream is self.gpu.stream
        self.on_device[...] = host

    def get(self) -> Any:
        self.gpu.wait()
        return self.on_device.copy()


class Pool:
    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def free_all_blocks(self) -> None:
        self.gpu.enqueue(0.0)
        self.gpu.frees += 1
