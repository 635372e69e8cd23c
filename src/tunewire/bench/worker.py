"""What a worker process does for a benchmark: plain functions, importable, that the parent only names.

Each is sent by reference, and its own arguments are values that need no import of a user's. A candidate
travels sealed, as the pickle that it is, and is opened only after the backend, and with it the clock, has
been imported: what a candidate's module does to `time` or to CuPy at its import comes too late for the clock
that measures it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tunewire.bench.kernel import Array, RawKernel, Scalar
from tunewire.bench.measurement import Measurement
from tunewire.bench.procedure import Backend, Plan, measure
from tunewire.devices.identifiers import parse
from tunewire.errors import InvalidKernel, MissingExtra, NoSuchDevice
from tunewire.wire.codecs import decode_pickle, encode_pickle

__all__ = ["Sealed", "callable_title", "measure_callable", "measure_kernel", "seal"]

#: The buffers of a pickle of (function, args, kwargs).
Sealed = tuple[pickle.PickleBuffer, ...]


def seal(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sealed:
    """A candidate as it travels. EncodeError, which names the part at fault, where it cannot be pickled."""
    value = (function, tuple(args), dict(kwargs))
    _, buffers = encode_pickle(value, what=f"{callable_title(function)} with its arguments")
    return tuple(pickle.PickleBuffer(buffer) for buffer in buffers)


def callable_title(function: Callable[..., Any]) -> str:
    """What errors call a candidate."""
    return str(getattr(function, "__qualname__", None) or getattr(function, "name", None) or repr(function))


def measure_kernel(kernel: RawKernel, device: str, plan: Plan) -> Measurement:
    """Compile, check and measure a bound kernel in this process.

    CompileFailed, BrokenCompiler, WrongResult, DeviceFault, MemoryError, MissingExtra, NoSuchDevice; InvalidKernel for
    what the device refuses; and whatever its reference raises.
    """
    backend = _kernel_backend(kernel, device)
    from tunewire.bench.arguments import prepare
    from tunewire.bench.comparison import compare_outputs

    asked = plan.check and kernel.reference is not None
    expected: list[Any] = []

    def values() -> Sequence[Any]:
        prepared = prepare(kernel, with_reference=asked)
        expected.extend(prepared.expected)
        return prepared.values

    def check(outputs: Sequence[Any]) -> None:
        compare_outputs(kernel, outputs, expected, device=device)

    return measure(backend, plan, prepare=values, check=check if asked else None, work=kernel.work)


def _kernel_backend(kernel: RawKernel, device: str) -> Backend:
    kind = parse(device).kind
    if kind != kernel.language:
        reason = f"it is written for {kernel.language}, and {device} is not such a device"
        raise InvalidKernel(reason=reason, kernel=kernel.title)
    if kind == "opencl":
        with _needing("PyOpenCL", "opencl"):
            from tunewire.bench.backends.opencl import OpenCLBackend
        return OpenCLBackend(kernel, device)
    with _needing("CuPy", "cuda12"):
        from tunewire.bench.backends.cuda import CudaKernelBackend
    return CudaKernelBackend(kernel, device)


def measure_callable(sealed: Sealed, device: str, plan: Plan) -> Measurement:
    """Measure a sealed candidate in this process, on the CPU or on a GPU through CuPy.

    DeviceFault, MemoryError, MissingExtra, NoSuchDevice; DecodeError where it cannot be unpickled here; and
    whatever it raises.
    """
    make = _callable_backend(device)
    function, args, kwargs = decode_pickle(
        [memoryview(part) for part in sealed], what="the benchmarked callable with its arguments"
    )
    args = [_bound(value) for value in args]
    kwargs = {name: _bound(value) for name, value in kwargs.items()}
    backend = make(function, args, kwargs)
    return measure(backend, plan, prepare=lambda: _materialise([*args, *kwargs.values()]))


def _callable_backend(
    device: str,
) -> Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Backend]:
    kind = parse(device).kind
    if kind == "cpu":
        from tunewire.bench.backends.cpu import CpuBackend

        return CpuBackend
    if kind == "cuda":
        with _needing("CuPy", "cuda12"):
            from tunewire.bench.backends.cuda import CudaCallableBackend
        return lambda function, args, kwargs: CudaCallableBackend(
            function, args, kwargs, device, callable_title(function)
        )
    raise NoSuchDevice(device=device, reason="a callable is measured on 'cpu' or on a CUDA device")


def _bound(value: Any) -> Any:
    return value.bind({}) if isinstance(value, Array | Scalar) else value


def _materialise(values: Sequence[Any]) -> Sequence[Any]:
    if not any(isinstance(value, Array | Scalar) for value in values):
        return values
    with _needing("NumPy", "bench"):
        from tunewire.bench.arguments import initial_value
    return [
        initial_value(value, position) if isinstance(value, Array | Scalar) else value
        for position, value in enumerate(values)
    ]


@contextmanager
def _needing(package: str, extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra(package=package, extra=extra) from error
