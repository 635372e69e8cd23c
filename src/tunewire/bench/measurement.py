"""A measurement: the numbers, and what it takes to believe them.

The samples are the measurement. Minimum, median and spread are computed from them where they are asked for,
so they cannot contradict them. A measurement without a sample, or with one that is not a positive finite
time, cannot be made: an unusable clock is an error and never a zero.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from tunewire.bench.statistics import quantile, relative_spread

__all__ = ["BackendName", "Check", "ClockName", "Measurement"]

BackendName = Literal["opencl", "cuda", "cpu"]
ClockName = Literal["opencl profiling events", "cuda events", "perf_counter_ns"]
Check = Literal["passed", "not asked"]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """How long one launch took on one device, sample by sample, in nanoseconds.

    - `samples_ns`: every sample in the order in which it was taken; none is left out. Each is the time of one
      launch; where `launches_per_sample` is more than 1, that many were launched back to back and the sample
      is their mean, the gaps between them included.
    - `first_ns`: the very first launch, which is no sample (a driver may still translate or load then); None
      where it was too short for the clock.
    - `warmup`: launches before the first sample, the first and those that sized the samples included.
    - `clock` and `resolution_ns`: what took the times and its smallest step. A sample spans at least 100
      steps.
    - `compile_s`: seconds of building and loading, None for a callable. Drivers have caches of their own; a
      short time may be such a cache's.
    - `check`: whether the result was compared with a reference. A wrong one has no Measurement: it is a
      WrongResult.
    - `device_work`: for a callable on a GPU, False where its work on the current stream could not be told
      from none at all (it may launch nothing, or launch elsewhere), None where that was not found out.
    - `flops`, `bytes`: of one launch, as the kernel's author counts them.
    - `driver`, `library`: what compiled and launched, with versions.

    >>> m = Measurement(
    ...     samples_ns=(2000.0, 1000.0, 1500.0), device="cpu", backend="cpu", clock="perf_counter_ns",
    ...     resolution_ns=1.0, flops=3000,
    ... )
    >>> m.min_ns, m.median_ns, m.gflops
    (1000.0, 1500.0, 2.0)
    """

    samples_ns: tuple[float, ...]
    device: str
    backend: BackendName
    clock: ClockName
    resolution_ns: float
    launches_per_sample: int = 1
    first_ns: float | None = None
    warmup: int = 0
    compile_s: float | None = None
    check: Check = "not asked"
    device_work: bool | None = None
    flops: float | None = None
    bytes: float | None = None
    driver: str | None = None
    library: str | None = None

    def __post_init__(self) -> None:
        if not self.samples_ns:
            raise ValueError("a measurement has at least one sample")
        for sample in self.samples_ns:
            if not (sample > 0 and math.isfinite(sample)):
                raise ValueError(f"a sample of {sample} ns is not a positive finite time")

    @property
    def min_ns(self) -> float:
        """The shortest sample."""
        return min(self.samples_ns)

    @property
    def median_ns(self) -> float:
        """The median sample: what measurements are compared by."""
        return quantile(self.samples_ns, 0.5)

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median; 0 where there is one sample."""
        return relative_spread(self.samples_ns)

    @property
    def gflops(self) -> float | None:
        """10^9 floating-point operations per second at the median, by the author's count; None without
        one."""
        return None if self.flops is None else self.flops / self.median_ns

    @property
    def gbytes_per_s(self) -> float | None:
        """10^9 bytes moved per second at the median, by the author's count; None without one."""
        return None if self.bytes is None else self.bytes / self.median_ns
