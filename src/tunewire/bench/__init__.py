"""Kernels and callables measured in worker processes.

>>> from tunewire.bench import Array, RawKernel
>>> kernel = RawKernel("kernel void nothing(global float *x) {}", "nothing", args=[Array(16)])
>>> kernel.bind({}).dimensions
((1,), (1,))

A name is loaded when it is first used: a worker process measures with parts of this package, and does not pay
for the asyncio of the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunewire.bench.benchmarking import benchmark as benchmark
    from tunewire.bench.benchmarking import benchmark_outcome as benchmark_outcome
    from tunewire.bench.cfunction import CFunction as CFunction
    from tunewire.bench.expressions import Expression as Expression
    from tunewire.bench.kernel import Array as Array
    from tunewire.bench.kernel import RawKernel as RawKernel
    from tunewire.bench.kernel import Scalar as Scalar
    from tunewire.bench.kernel import Work as Work
    from tunewire.bench.measurement import Measurement as Measurement

_HOMES = {
    "Array": "kernel",
    "CFunction": "cfunction",
    "Expression": "expressions",
    "Measurement": "measurement",
    "RawKernel": "kernel",
    "Scalar": "kernel",
    "Work": "kernel",
    "benchmark": "benchmarking",
    "benchmark_outcome": "benchmarking",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
