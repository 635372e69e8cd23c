"""A search that runs: each device of a pool tries one configuration at a time until the strategy has no more.

The run owns one task, its host, and the host alone holds the task group in which the devices' loops are. So nothing
of anyio spans the user's block, and a run may be entered in one task and left in another. A trial is kept the moment
it ends, whether or not anybody is reading; reading is a place in that list, so a reader that is slow holds nothing
up, and one that is cancelled loses nothing.

Where somebody waits, and what is half done when it is cancelled there:
    the reader, for a trial    nothing; the next read gives the same trial
    a device's loop, anywhere  its trial is under way: it is given up, and no part of it is kept
    leaving                    the host was told to end, and ends without being waited for

What ends the run with an error, instead of being one trial's failure: whatever says nothing about a configuration. The
pool was closed, a device or library is missing, a device's compiler can build nothing, the strategy or a restriction raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Self

import anyio

from tunewire.bench import Measurement, RawKernel, benchmark_outcome
from tunewire.bench.expressions import Value
from tunewire.errors import BrokenCompiler, InvalidKernel, MissingExtra, NoSuchDevice
from tunewire.pool.protocol import PoolLike
from tunewire.tune.configuration import Configuration
from tunewire.tune.result import (
    Environment,
    KernelIdentity,
    SpaceRecord,
    StrategyRecord,
    TuningResult,
    ranked,
)
from tunewire.tune.search import Search
from tunewire.tune.space import Space
from tunewire.tune.strategies import Strategy, strategy_named
from tunewire.tune.trial import Trial, failure_of
from tunewire.tune.tunable import check_parameters
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome, OutcomeKind

__all__ = ["DEFAULT_TIMEOUT", "Tuning", "tune"]

#: Seconds for the check, and again for the measurement, of a configuration where the caller names no limit. An
#: endless kernel is a normal thing to meet in a search, so "no limit" is not the default here.
#: Combinations, before restrictions, up to which a space is counted.
_COUNTED = 20_000
DEFAULT_TIMEOUT = 10.0
_OF_NO_CONFIGURATION = (BrokenCompiler, MissingExtra, NoSuchDevice)


def tune(
    kernel: RawKernel,
    space: Space,
    *,
    pool: PoolLike,
    strategy: str | Strategy = "exhaustive",
    seed: int = 0,
    max_trials: int | None = None,
    default: Mapping[str, Value] | None = None,
    device: str | Sequence[str] | None = None,
    timeout: float | None = None,
    limits: Limits | None = None,
) -> Tuning:
    """A search over the configurations of `space` for the fastest way to run `kernel`; enter it to begin.

    `strategy` is "exhaustive", "random" (which `seed` decides) or an object that asks and is told. `max_trials` ends it
    early. `default` is the configuration to beat, the space's first where none is given: it is tried before any other.
    `device` names one or several devices of the pool; without it, all of the pool's that run the kernel's language are
    used, one trial at a time on each. (Times from unlike devices do not compare: choose like ones.)

    `timeout` is how many seconds a configuration may take for its check, and again for its measurement, 10 where
    neither it nor `limits` is given. `limits` are those of all stages; with both, `timeout` replaces `limits.run`.

    Raises InvalidKernel where a parameter is read by nothing in the kernel; InvalidSpace for a default that is not
    in the space; NoSuchDevice; ValueError for an unknown strategy or a number that is out of range.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> from tunewire.bench import Array
    >>> kernel = RawKernel(
    ...     "kernel void fill(global int *y) { for (int i = 0; i < WORK; i++) y[get_global_id(0) * WORK + i] = 1; }",
    ...     "fill", args=[Array(1024, "int32", output=True)], grid="1024 // (64 * WORK)", block=64)
    >>> async def main():
    ...     async with Pool(devices=["opencl:0"]) as pool:
    ...         async with tune(kernel, Space({"WORK": [1, 2, 4]}), pool=pool) as run:
    ...             async for trial in run:
    ...                 assert trial.ok
    ...         return run.best.measurement.median_ns > 0, len(run.trials)
    >>> asyncio.run(main())
    (True, 3)
    """
    if not isinstance(kernel, RawKernel):
        raise TypeError(f"tune is for a RawKernel, not {type(kernel).__name__}")
    if not isinstance(space, Space):
        raise TypeError(f"the space is a tunewire.tune.Space, not {type(space).__name__}: Space({{...}})")
    check_parameters(kernel, space)
    if max_trials is not None and max_trials < 1:
        raise ValueError(f"max_trials is at least 1, not {max_trials}")
    named = isinstance(strategy, str)
    record = StrategyRecord(
        name=strategy if isinstance(strategy, str) else type(strategy).__name__,
        seed=seed if named else None,
        max_trials=max_trials,
    )
    return Tuning(
        kernel,
        space,
        pool=pool,
        strategy=strategy_named(strategy, space, seed) if isinstance(strategy, str) else strategy,
        record=record,
        default=space.first if default is None else space.validate(default),
        devices=_devices(kernel, pool, device),
        timeout=DEFAULT_TIMEOUT if timeout is None and limits is None else timeout,
        limits=limits,
    )


class Tuning:
    """A search under way: an async context manager and an async iterator of its trials. Made by `tune`.

    It runs from the moment that its block is entered, read or not. Trials come in the order in which they end. Leaving
    the block, early or by an exception, cancels what is under way and keeps what has ended. What says nothing about a
    configuration (a closed pool, a missing library) is raised where trials are read, else when the block is left.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> kernel = RawKernel("kernel void nothing() { int tile[TILE]; }", "nothing")
    >>> async def main():
    ...     async with Pool(devices=["opencl:0"]) as pool:
    ...         async with tune(kernel, Space({"TILE": [8, 16, 32]}), pool=pool) as run:
    ...             async for trial in run:
    ...                 break  # what is under way is cancelled
    ...         return run.complete, run.trials[0].configuration
    >>> asyncio.run(main())
    (False, Configuration({'TILE': 8}))
    """

    def __init__(
        self,
        kernel: RawKernel,
        space: Space,
        *,
        pool: PoolLike,
        strategy: Strategy,
        record: StrategyRecord,
        default: Configuration,
        devices: tuple[str, ...],
        timeout: float | None,
        limits: Limits | None,
    ) -> None:
        self._kernel = kernel
        self._space = space
        self._pool = pool
        self._record = record
        self._default = default
        self._devices = devices
        self._timeout = timeout
        self._limits = limits
        self._search = Search(space, strategy, default=default, max_trials=record.max_trials)
        self._running: dict[str, Configuration] = {}
        self._read = 0
        self._host: asyncio.Task[None] | None = None
        self._left = False
        self._raised = False
        self._changed = asyncio.Event()
        self._started = self._finished = datetime.now(UTC)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial that has ended, in that order, read or not."""
        return tuple(self._search.trials)

    @property
    def failures(self) -> tuple[Trial, ...]:
        """Those of them that have no measurement."""
        return tuple(trial for trial in self._search.trials if not trial.ok)

    @property
    def best(self) -> Trial | None:
        """The fastest by median so far; never one that failed. None while nothing was measured."""
        return self._search.best

    @property
    def running(self) -> Mapping[str, Configuration]:
        """What each device tries at this moment."""
        return MappingProxyType(dict(self._running))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that take part."""
        return self._devices

    @property
    def total(self) -> int:
        """How many trials there will be, at most. Exact where the space is small enough to be counted at once, see
        `total_is_exact`; else restrictions are not counted in."""
        # Counting walks the space, on the event loop: a large one is not counted.
        count = len(self._space) if self.total_is_exact else self._space.combinations
        most = self._record.max_trials
        return count if most is None else min(count, most)

    @property
    def total_is_exact(self) -> bool:
        """Whether `total` is the number itself and not only a bound of it."""
        return self._space.combinations <= _COUNTED

    @property
    def complete(self) -> bool:
        """Whether the search came to its own end."""
        return (
            self._host is not None
            and self._host.done()
            and self._failure() is None
            and not self._host.cancelled()
        )

    def result(self) -> TuningResult:
        """The search as it stands, as one value that can be saved; also while it runs, and after it was left."""
        ended = self._host is not None and self._host.done()
        return TuningResult(
            kernel=KernelIdentity.of(self._kernel),
            space=SpaceRecord.of(self._space),
            strategy=self._record,
            devices=self._devices,
            environment=Environment.of(self._devices, self._search.trials),
            default=self._default,
            complete=self.complete,
            started=self._started,
            finished=self._finished if ended else datetime.now(UTC),
            ranking=tuple(trial.index for trial in ranked(self._search.trials)),
            trials=self.trials,
        )

    async def __aenter__(self) -> Self:
        if self._host is not None:
            raise RuntimeError("a tuning is entered once; make a new one")
        self._started = datetime.now(UTC)
        self._host = asyncio.create_task(self._run(), name="tunewire tuning")
        self._host.add_done_callback(self._note_end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._host is not None
        self._left = True
        self._host.cancel()
        # `wait` does not raise what the host raised, and leaves it ending when this task is cancelled.
        await asyncio.wait([self._host])
        if error is None and not self._raised:
            self._raise_failure()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Trial:
        if self._host is None:
            raise RuntimeError("a tuning is read in its block: async with tune(...) as run")
        while self._read == len(self._search.trials):
            if self._host.done():
                self._raise_failure()
                raise StopAsyncIteration
            await self._changed.wait()
        self._read += 1
        return self._search.trials[self._read - 1]

    def __repr__(self) -> str:
        state = "not begun" if self._host is None else "ended" if self._host.done() else "running"
        return f"<Tuning of {self._kernel.title!r} on {', '.join(self._devices)}, {state}, {len(self.trials)} trials>"

    def _announce(self) -> None:
        # One event for each change, so that any number of readers and devices can wait for the next.
        self._changed.set()
        self._changed = asyncio.Event()

    def _note_end(self, _host: asyncio.Task[None]) -> None:
        self._finished = datetime.now(UTC)
        self._announce()

    def _failure(self) -> BaseException | None:
        """What the host failed with. Being cancelled by us is its way to end."""
        assert self._host is not None
        if not self._host.cancelled():
            return self._host.exception()
        return None if self._left else RuntimeError("the task of this tuning was cancelled by somebody else")

    def _raise_failure(self) -> None:
        failure = self._failure()
        if failure is not None:
            self._raised = True
            raise failure

    async def _run(self) -> None:
        try:
            async with anyio.create_task_group() as devices:
                for device in self._devices:
                    devices.start_soon(self._serve, device)
        except BaseExceptionGroup as group:
            raise _first(group) from None

    async def _serve(self, device: str) -> None:
        while (configuration := await self._next()) is not None:
            await self._try(configuration, device)

    async def _next(self) -> Configuration | None:
        while (configuration := self._search.next()) is None and self._running:
            await self._changed.wait()
        return configuration

    async def _try(self, configuration: Configuration, device: str) -> None:
        loop = asyncio.get_running_loop()
        self._running[device] = configuration
        begin = loop.time()
        try:
            outcome = await self._outcome(configuration, device)
        finally:
            del self._running[device]
        failure = None if outcome.ok else failure_of(outcome)
        says_nothing = not outcome.began or isinstance(outcome.error, _OF_NO_CONFIGURATION)
        if not outcome.ok and (failure is None or says_nothing):
            outcome.unwrap()
        self._search.end(
            configuration,
            device=device,
            seconds=loop.time() - begin,
            measurement=outcome.value,
            failure=failure,
        )
        self._announce()

    async def _outcome(self, configuration: Configuration, device: str) -> Outcome[Measurement]:
        try:
            bound = self._kernel.bind(configuration)
        except InvalidKernel as error:
            return Outcome(kind=OutcomeKind.ERROR, error=error)
        return await benchmark_outcome(
            bound, device=device, pool=self._pool, timeout=self._timeout, limits=self._limits
        )


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _devices(kernel: RawKernel, pool: PoolLike, wanted: str | Sequence[str] | None) -> tuple[str, ...]:
    if wanted is not None:
        return _wanted(pool, (wanted,) if isinstance(wanted, str) else tuple(wanted))
    if not pool.devices:
        return (f"{kernel.language}:0",)
    suitable = tuple(device for device in pool.devices if device.startswith(f"{kernel.language}:"))
    if not suitable:
        reason = f"{kernel.title!r} is written in {kernel.language}, and the pool has no such device"
        raise NoSuchDevice(device=f"{kernel.language}:0", available=pool.devices, reason=reason)
    return suitable


def _wanted(pool: PoolLike, wanted: tuple[str, ...]) -> tuple[str, ...]:
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"device is one or several different device ids, not {wanted}")
    for device in wanted:
        if pool.devices and device not in pool.devices:
            raise NoSuchDevice(
                device=device, available=pool.devices, reason="the pool was not opened with it"
            )
    return wanted
