"""Kernels in CUDA C++, and Python callables that launch CuPy work, on one NVIDIA GPU; times from CUDA events.

A sample is the time between two events on one stream, the first recorded before the first launch and the
second after the last. That is the device's clock (about 0.5 us a step), and what happens between the events
counts: where a launch takes the host longer than the device, the device waits, and the sample is the host's
time. So a kernel of a few microseconds is measured with its launch cost; a callable is measured with whatever
its Python does between launches.

Loading. A kernel is compiled by NVRTC for the device's own architecture (see `nvrtc`) and loaded with
`cupy.cuda.Module`, which is unloaded with its last reference. Not with `cupy.RawModule(path=...)`: that keeps
every module for the life of the process, by path.

Streams. A kernel runs on the stream that is current when its measurement begins, the default stream unless
the process chose another. A callable is measured on that stream too; work that it puts on another one is not
seen by the events. `device_work` looks for that: it holds the stream with a kernel that spins, calls the
callable behind it, and takes the time between events on both sides of the call. With nothing in between, that
is the time of an empty pair, which is measured in the same way. The answer is False where the two cannot be
told apart, and None where the callable waited for the device (the spin was over when it returned), because
then its own waiting is in the time.

Errors. Memory that is not there is MemoryError. After any other error a probe decides, not the error's text:
if the device can still be synchronised and a buffer be copied there and back, the context lives and the
candidate is to blame; else every later call in this process would fail too, and it is a DeviceFault.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter_ns as _now_ns
from typing import Any

import cupy
import numpy as np
from cupy.cuda import compiler, driver, runtime

from tunewire.bench.backends.nvrtc import compile_cubin, nvrtc_version
from tunewire.bench.kernel import Array, RawKernel
from tunewire.bench.procedure import DeviceFacts
from tunewire.devices.identifiers import local_index
from tunewire.errors import CompileFailed, DeviceFault, InvalidKernel, NoSuchDevice

__all__ = ["CudaCallableBackend", "CudaKernelBackend"]

# Taken here, before a candidate is unpickled.
_Event = cupy.cuda.Event
_elapsed_ms = cupy.cuda.get_elapsed_time

#: The resolution that NVIDIA documents for cudaEventElapsedTime: around 0.5 microseconds.
RESOLUTION_NS = 500.0
#: Dynamic shared memory that a kernel may have without asking, on every device.
PLAIN_SHARED_BYTES = 48 * 1024
_OUT_OF_MEMORY = 2
_ARCH = "-arch="
_SPIN = """
extern "C" __global__ void spin(unsigned long long ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < ns);
}
"""
_SPIN_LEAST_NS = 2_000_000
_SPIN_MOST_NS = 100_000_000
_FOREIGN_ERRORS = (runtime.CUDARuntimeError, driver.CUDADriverError)


class _CudaDevice:
    """One GPU as this process has it: its architecture, the stream of the measurement, and the seam of its
    errors."""

    def __init__(self, device: str, title: str) -> None:
        self.name = device
        self._title = title
        with self.errors():
            self.arch = f"sm_{_select(device).compute_capability}"
            self.stream = cupy.cuda.get_current_stream()
            self._begin = _Event()
            self._end = _Event()

    @property
    def facts(self) -> DeviceFacts:
        """Versions, and the clock."""
        version = runtime.driverGetVersion()
        return DeviceFacts(
            device=self.name,
            backend="cuda",
            clock="cuda events",
            resolution_ns=RESOLUTION_NS,
            driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
            library=f"CuPy {cupy.__version__}, NVRTC {nvrtc_version()}",
        )

    def timed(self, launch: Callable[[], Any], launches: int = 1) -> float:
        """Device time of so many launches on the stream, in ns; waits for their end."""
        with self.errors():
            self._begin.record(self.stream)
            for _ in range(launches):
                launch()
            self._end.record(self.stream)
            self._end.synchronize()
            return float(_elapsed_ms(self._begin, self._end)) * 1e6

    def timed_behind(self, hold: Callable[[], Any], launch: Callable[[], Any]) -> tuple[float, bool]:
        """The same for one launch, enqueued while `hold` keeps the stream; and whether it still did
        afterwards."""
        with self.errors():
            hold()
            self._begin.record(self.stream)
            launch()
            held = not self._begin.done
            self._end.record(self.stream)
            self._end.synchronize()
            return float(_elapsed_ms(self._begin, self._end)) * 1e6, held

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The seam where CuPy's errors become ours."""
        try:
            yield
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(f"{self.name} has not the memory for {self._title!r}: {error}") from error
        except compiler.CompileException as error:
            raise CompileFailed(log=str(error), kernel=self._title, device=self.name) from error
        except _FOREIGN_ERRORS as error:
            raise self._translated(error) from error

    def _translated(self, error: Any) -> Exception:
        if error.status == _OUT_OF_MEMORY:
            return MemoryError(f"{self.name} has not the memory for {self._title!r}: {error}")
        if self._lives():
            return InvalidKernel(reason=f"{self.name} refuses it: {error}", kernel=self._title)
        return DeviceFault(reason=str(error), device=self.name)

    def _lives(self) -> bool:
        sent = np.arange(4, dtype=np.int32)
        try:
            runtime.deviceSynchronize()
            received = cupy.asnumpy(cupy.asarray(sent))
        except (*_FOREIGN_ERRORS, MemoryError):
            return False
        return bool((sent == received).all())


def _select(device: str) -> Any:
    """Make `device` the current one of this process; CuPy's object for it."""
    index = local_index(device, os.environ)
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise NoSuchDevice(device=device, reason=str(error)) from error
    if index >= count:
        raise NoSuchDevice(device=device, reason=f"this process sees {count} CUDA devices")
    selected = cupy.cuda.Device(index)
    selected.use()
    return selected


class _CudaBackend:
    """What a kernel and a callable have in common: the device, and arrays on it."""

    def __init__(self, device: str, title: str) -> None:
        self._device = _CudaDevice(device, title)
        self._initial_outputs: list[tuple[Any, Any]] = []

    @property
    def facts(self) -> DeviceFacts:
        """The device's clock and versions."""
        return self._device.facts

    def _upload(self, described: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        """A CuPy array for each that is described; anything else as it is."""
        with self._device.errors():
            mine = [
                cupy.asarray(value) if isinstance(argument, Array) else value
                for argument, value in zip(described, values, strict=True)
            ]
            self._device.stream.synchronize()
        self._initial_outputs = [
            (array, initial)
            for argument, array, initial in zip(described, mine, values, strict=True)
            if isinstance(argument, Array) and argument.output
        ]
        return mine

    def poison(self) -> None:
        """Write each output's initial content."""
        with self._device.errors():
            for array, initial in self._initial_outputs:
                array.set(initial, stream=self._device.stream)
            self._device.stream.synchronize()

    def outputs(self) -> list[Any]:
        """Each output, downloaded."""
        with self._device.errors():
            return [cupy.asnumpy(array, stream=self._device.stream) for array, _ in self._initial_outputs]

    def free(self) -> None:
        """Give the arrays back, and the pool's free blocks to the device."""
        self._initial_outputs = []
        with self._device.errors():
            cupy.get_default_memory_pool().free_all_blocks()


class CudaKernelBackend(_CudaBackend):
    """A bound kernel on one GPU; see `tunewire.bench.procedure.Backend`.

    It is compiled for the device's own architecture, unless its options have an `-arch=` of their own
    ("sm_90a").
    """

    compiles = True

    def __init__(self, kernel: RawKernel, device: str) -> None:
        super().__init__(device, kernel.title)
        self._kernel = kernel
        self._grid, self._block = kernel.dimensions
        self._shared_bytes = int(kernel.shared_bytes)
        self._function: Any = None
        self._arguments: tuple[Any, ...] = ()

    def compile(self) -> None:
        """Compile, load, and find the entry."""
        options = [option for option in self._kernel.options if not option.startswith(_ARCH)]
        chosen = [option.removeprefix(_ARCH) for option in self._kernel.options if option.startswith(_ARCH)]
        compiled = compile_cubin(
            self._kernel.source,
            self._kernel.entry,
            arch=chosen[-1] if chosen else self._device.arch,
            options=(*self._kernel.definitions(), *options),
            kernel=self._kernel.title,
            device=self._device.name,
        )
        with self._device.errors():
            self._function = _load(compiled.cubin, compiled.entry)
            if self._shared_bytes > PLAIN_SHARED_BYTES:
                attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.funcSetAttribute(self._function.ptr, attribute, self._shared_bytes)

    def unload(self) -> None:
        """Give up the function, and with it the module."""
        self._function = None

    def allocate(self, values: Sequence[Any]) -> None:
        """An array on the device for each on the host; scalars are passed as they are."""
        self._arguments = tuple(self._upload(self._kernel.args, values))

    def free(self) -> None:
        """Give up the arguments."""
        self._arguments = ()
        super().free()

    def launch(self, launches: int) -> float:
        """Launch and wait; device time in ns."""
        function, grid, block, arguments = self._function, self._grid, self._block, self._arguments
        launch = partial(function, grid, block, arguments, self._shared_bytes, self._device.stream)
        return self._device.timed(launch, launches)

    def device_work(self) -> bool | None:
        """Not looked into: a kernel's launch is device work by its nature."""
        return None


class CudaCallableBackend(_CudaBackend):
    """A callable that launches CuPy work on one GPU; see `tunewire.bench.procedure.Backend`."""

    compiles = False

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        device: str,
        title: str,
    ) -> None:
        super().__init__(device, title)
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._call: Callable[[], Any] | None = None

    def compile(self) -> None:
        """Nothing to build: what the callable builds, it builds at its first call."""

    def unload(self) -> None:
        """Nothing was built."""

    def allocate(self, values: Sequence[Any]) -> None:
        """The arrays that are described, on the device; and the call itself."""
        mine = self._upload([*self._args, *self._kwargs.values()], values)
        args, kwargs = mine[: len(self._args)], mine[len(self._args) :]
        self._call = partial(self._function, *args, **dict(zip(self._kwargs, kwargs, strict=True)))

    def free(self) -> None:
        """Give up the call and its arguments."""
        self._call = None
        super().free()

    def launch(self, launches: int) -> float:
        """Call that many times and wait; device time on the stream in ns."""
        assert self._call is not None
        return self._device.timed(self._call, launches)

    def device_work(self) -> bool | None:
        """See "Streams" above. Calls the callable four times more."""
        assert self._call is not None
        begin = _now_ns()
        self._device.timed(self._call)
        duration = min(max(10 * (_now_ns() - begin), _SPIN_LEAST_NS), _SPIN_MOST_NS)
        hold = partial(_spin(self._device), (1,), (1,), (np.uint64(duration),), 0, self._device.stream)
        empty = [self._device.timed_behind(hold, _nothing) for _ in range(5)]
        filled = [self._device.timed_behind(hold, self._call) for _ in range(3)]
        if not all(held for _, held in (*empty, *filled)):
            return None
        return min(ns for ns, _ in filled) > max(ns for ns, _ in empty)


def _load(cubin: bytes, entry: str) -> Any:
    module = cupy.cuda.Module()
    module.load(cubin)
    return module.get_function(entry)


def _nothing() -> None:
    pass


@cache
def _compiled_spin(arch: str) -> Any:
    compiled = compile_cubin(_SPIN, "spin", arch=arch)
    return _load(compiled.cubin, compiled.entry)


def _spin(device: _CudaDevice) -> Any:
    with device.errors():
        return _compiled_spin(device.arch)
