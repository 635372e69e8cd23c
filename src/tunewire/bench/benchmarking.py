"""`benchmark`: one measurement in a leased worker, awaited.

The parent binds, seals and names; everything else happens in the worker (`tunewire.bench.worker`), which
holds the device exclusively until the measurement has ended. A candidate that crashes, hangs or lies costs
its own process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tunewire.bench.cfunction import CFunction
from tunewire.bench.kernel import RawKernel
from tunewire.bench.measurement import Measurement
from tunewire.bench.procedure import Plan
from tunewire.bench.worker import callable_title, measure_callable, measure_kernel, seal
from tunewire.errors import NoSuchDevice
from tunewire.pool.protocol import PoolLike
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome

__all__ = ["benchmark", "benchmark_outcome", "choose_device"]


async def benchmark(
    candidate: RawKernel | Callable[..., Any],
    *,
    pool: PoolLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    timeout: float | None = None,
    limits: Limits | None = None,
    warmup: int = 3,
    samples: int = 20,
    check: bool = True,
) -> Measurement:
    """How long one launch of `candidate` takes on `device`: a kernel, or a callable that launches CuPy work
    ("cuda:N", timed by events on its current stream) or works on the CPU ("cpu").

    `args` and `kwargs` are a callable's; an `Array` or `Scalar` among them is made in the worker, as a CuPy
    array on a GPU and a NumPy array on the CPU. A kernel has its arguments in itself, and is bound with its
    defines alone if it was not bound before. Without `device`, the pool's first device that fits is taken,
    else "opencl:0", "cuda:0" or "cpu".

    `timeout` limits the check (inputs, reference, first launch, comparison) and the sampling, each, in seconds, in place
    of the pool's limits for them; with `limits` given as well, it replaces `limits.run` only. Building has
    `limits.compile`, 60 s by default. `warmup` launches come before `samples` samples. `check=False` leaves the
    comparison with the kernel's reference out.

    Cancelling ends the measurement, and with it the worker's process; the device is free when that is gone.

    Raises what went wrong: CompileFailed, or BrokenCompiler where the device can build nothing at all; WrongResult,
    InvalidKernel, CallTimeout (its `phase` is the stage: compile, check or run), WorkerCrashed, DeviceFault, MemoryError,
    NoSuchDevice, MissingExtra, EncodeError for a callable that cannot be sent, and whatever a callable or reference raises
    itself.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool:
    ...         return await benchmark(sorted, args=([3, 1, 2],), pool=pool, samples=5)
    >>> measurement = asyncio.run(main())
    >>> len(measurement.samples_ns), measurement.clock
    (5, 'perf_counter_ns')
    """
    outcome = await benchmark_outcome(
        candidate,
        pool=pool,
        args=args,
        kwargs=kwargs,
        device=device,
        timeout=timeout,
        limits=limits,
        warmup=warmup,
        samples=samples,
        check=check,
    )
    try:
        return outcome.unwrap()
    finally:
        del outcome  # see Outcome.unwrap


async def benchmark_outcome(
    candidate: RawKernel | Callable[..., Any],
    *,
    pool: PoolLike,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    timeout: float | None = None,
    limits: Limits | None = None,
    warmup: int = 3,
    samples: int = 20,
    check: bool = True,
) -> Outcome[Measurement]:
    """The same as `benchmark`, with what the candidate did as a value: never raises for that.

    Raises for what was asked wrongly, before anything runs: InvalidKernel for a kernel that cannot be bound,
    EncodeError for a callable that cannot be sent, NoSuchDevice, ValueError for less than one warm-up or
    sample.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool:
    ...         return await benchmark_outcome(int, args=("not a number",), pool=pool)
    >>> outcome = asyncio.run(main())
    >>> outcome.kind.value, type(outcome.error).__name__
    ('error', 'ValueError')
    """
    if not isinstance(candidate, RawKernel) and not callable(candidate):
        raise TypeError(f"a kernel or a callable is measured, not {type(candidate).__name__}")
    plan = Plan(warmup=warmup, samples=samples, check=check)
    chosen = choose_device(candidate, pool.devices) if device is None else device
    name = candidate.title if isinstance(candidate, RawKernel) else callable_title(candidate)
    call: tuple[Any, ...]
    if isinstance(candidate, RawKernel):
        if args or kwargs:
            raise TypeError("a RawKernel has its arguments in itself; args= and kwargs= are for callables")
        call = (measure_kernel, candidate.bind({}), chosen, plan)
    else:
        if isinstance(candidate, CFunction) and kwargs:
            raise TypeError(
                f"a C function has no named arguments, so not {', '.join(kwargs)}: they go in args="
            )
        call = (measure_callable, seal(candidate, args, kwargs or {}), chosen, plan)
    async with pool.lease(chosen) as worker:
        return await worker.run(
            *call,
            limits=_limits(timeout, limits, pool.limits),
            result_type=Measurement,
            phase="compile",
            name=name,
        )


def choose_device(candidate: RawKernel | Callable[..., Any], devices: Sequence[str]) -> str:
    """The first of a pool's `devices` on which `candidate` can run; with no devices to choose from, the first
    of its kind.

    A kernel runs on a device of its language. A callable runs on a CUDA device if the pool has one, else on
    the CPU.

    >>> choose_device(sorted, ("cpu", "opencl:0"))
    'cpu'
    """
    kinds = (candidate.language,) if isinstance(candidate, RawKernel) else ("cuda", "cpu")
    fitting = [device for kind in kinds for device in devices if device.partition(":")[0] == kind]
    if fitting:
        return fitting[0]
    if devices:
        raise NoSuchDevice(device=kinds[-1], available=devices, reason="the pool has no device that fits")
    return f"{kinds[0]}:0" if isinstance(candidate, RawKernel) else "cpu"


def _limits(timeout: float | None, limits: Limits | None, pools: Limits) -> Limits:
    if timeout is None:
        return limits or pools
    if limits is not None:
        return msgspec.structs.replace(limits, run=timeout)
    return msgspec.structs.replace(pools, check=timeout, run=timeout)
