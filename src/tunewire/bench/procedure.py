"""The order of one measurement, apart from any device's library.

    compile -> inputs and reference -> allocate -> poison -> launch once -> compare -> warm up -> sample ->
    release

Guaranteed, for whatever step fails: the cleanup of a step is armed before the step begins, so a step that
fails half-way is undone too; what was armed last is undone first; every armed cleanup runs, once; and the
error that is raised is the first one. A cleanup that fails as well adds a note to that error, and is itself
raised only where nothing went wrong before it.

The call moves to phase "check" before the inputs are made (where a comparison was asked for) and to "run"
before the warm-up, so a limit that is reached names its stage. The first launch belongs to the check: a
kernel that never ends is found there, and a driver that translates late does it there, not in a sample.

Samples. A clock with a step of r ns cannot say more of a shorter time than that it is short, so the launches
per sample are doubled until a sample spans `MIN_STEPS` * r: at 100 steps, reading the clock errs by at most 1
%. Every sample of a measurement has the same number of launches. Should one still be shorter than a single
step (a clock that jumps, a sizing that was disturbed), the launches are doubled and the samples begin again:
samples of different sizes are not one distribution, and a time of 0 is never one. Where `MAX_LAUNCHES` do not
move the clock either, it is broken: DeviceFault.

What is not known here: whether the samples have settled (their number is fixed), at which clock rate the
device ran, and what its caches held; a kernel is launched on the same buffers again and again, so they are
warm if they fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

import msgspec

from tunewire.bench.kernel import Work
from tunewire.bench.measurement import BackendName, Check, ClockName, Measurement
from tunewire.errors import DeviceFault
from tunewire.runtime import current_call

__all__ = ["MAX_LAUNCHES", "MIN_STEPS", "Backend", "DeviceFacts", "Plan", "measure"]

MIN_STEPS = 100
MAX_LAUNCHES = 1 << 20

# Taken here, once: what a candidate makes of the time module later cannot reach it by this name.
_now_ns = time.perf_counter_ns


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a measurement is wanted: `warmup` launches, then `samples` samples (both at least 1), and
    whether the result is compared with the reference, where there is one.

    >>> Plan(samples=5).warmup
    3
    """

    warmup: int = 3
    samples: int = 20
    check: bool = True

    def __post_init__(self) -> None:
        for name in ("warmup", "samples"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} is less than 1")


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a backend knows of its device and clock before anything is measured. See `Measurement` for
    each."""

    device: str
    backend: BackendName
    clock: ClockName
    resolution_ns: float
    driver: str | None = None
    library: str | None = None


class Backend(Protocol):
    """One candidate on one device, step by step. Each undoing step may be called after its step has
    failed."""

    @property
    def facts(self) -> DeviceFacts: ...

    @property
    def compiles(self) -> bool:
        """Whether `compile` does anything; else a measurement has no compile time."""

    def compile(self) -> None:
        """Build the candidate and load it. CompileFailed with the compiler's log;
        BrokenCompiler where that is not the candidate's doing."""

    def unload(self) -> None:
        """Undo `compile`."""

    def allocate(self, values: Sequence[Any]) -> None:
        """Make the arguments on the device; inputs get their content."""

    def free(self) -> None:
        """Undo `allocate`."""

    def poison(self) -> None:
        """Give each output its initial content, which is poison where the candidate only writes it."""

    def launch(self, launches: int) -> float:
        """Launch `launches` times back to back, wait for the end, and give the time from the beginning of the
        first to the end of the last in ns, by the device's clock."""

    def outputs(self) -> Sequence[Any]:
        """The outputs' content now, as NumPy arrays, in the arguments' order."""

    def device_work(self) -> bool | None:
        """Whether a launch was seen to do work on the device; None where that cannot be told."""


class Cleanup:
    """Undoes, in reverse order, what was armed; keeps the first error the one that is raised."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def arm(self, undo: Callable[[], None]) -> None:
        """Have `undo` called at the end, whatever happens."""
        self._undo.append(undo)

    def __enter__(self) -> Cleanup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        first = error
        while self._undo:
            try:
                self._undo.pop()()
            except Exception as failure:  # noqa: BLE001 - a cleanup may fail in any way; the next must still run
                if first is None:
                    first = failure
                else:
                    first.add_note(f"While cleaning up after it: {type(failure).__name__}: {failure}")
        if error is None and first is not None:
            raise first


def measure(
    backend: Backend,
    plan: Plan,
    *,
    prepare: Callable[[], Sequence[Any]],
    check: Callable[[Sequence[Any]], None] | None = None,
    work: Work | None = None,
) -> Measurement:
    """One candidate on one device, in the order of this module.

    `prepare` makes the arguments' initial values on the host, `check` compares outputs and raises
    WrongResult; None where nothing is compared. `work` is bound work.
    """
    call = current_call()
    with Cleanup() as cleanup:
        compile_s = _compile(backend, cleanup)
        if check is not None:
            call.enter("check")
        values = prepare()
        cleanup.arm(backend.free)
        backend.allocate(values)
        backend.poison()
        first: float | None = None
        if check is not None:
            first = backend.launch(1)
            check(backend.outputs())
        call.enter("run")
        launcher = _Launcher(backend, first)
        launcher.warm_up(plan.warmup)
        samples, launches = launcher.sample(plan.samples)
        return _measurement(
            backend,
            samples,
            launches,
            launcher=launcher,
            compile_s=compile_s,
            check="not asked" if check is None else "passed",
            work=work,
        )


def _compile(backend: Backend, cleanup: Cleanup) -> float | None:
    cleanup.arm(backend.unload)
    begin = _now_ns()
    backend.compile()
    return (_now_ns() - begin) / 1e9 if backend.compiles else None


class _Launcher:
    """Counts launches, and sizes samples by the clock's resolution."""

    def __init__(self, backend: Backend, first: float | None) -> None:
        self._backend = backend
        self._resolution = backend.facts.resolution_ns
        self.first_ns = first
        self.launched = 0 if first is None else 1
        self.warmup = 0

    def _launch(self, launches: int) -> float:
        elapsed = self._backend.launch(launches)
        if self.launched == 0 and launches == 1:
            self.first_ns = elapsed
        self.launched += launches
        return elapsed

    def warm_up(self, launches: int) -> None:
        for _ in range(launches):
            self._launch(1)

    def sample(self, count: int) -> tuple[list[float], int]:
        """`count` samples of one launch's time in ns, and the launches that each is the mean of."""
        launches = self._sized()
        while True:
            self.warmup = self.launched
            samples = self._series(count, launches)
            if len(samples) == count:
                return samples, launches
            launches = self._more(launches)

    def _series(self, count: int, launches: int) -> list[float]:
        """Samples, up to `count`: it ends before the first that is shorter than one step of the clock."""
        samples: list[float] = []
        for _ in range(count):
            elapsed = self._launch(launches)
            if elapsed < self._resolution:
                break
            samples.append(elapsed / launches)
        return samples

    def _sized(self) -> int:
        launches = 1
        while self._launch(launches) < MIN_STEPS * self._resolution:
            launches = self._more(launches)
        return launches

    def _more(self, launches: int) -> int:
        if launches >= MAX_LAUNCHES:
            facts = self._backend.facts
            reason = f"its clock ({facts.clock}) did not move over {launches} launches"
            raise DeviceFault(reason=reason, device=facts.device)
        return launches * 2


def _measurement(
    backend: Backend,
    samples: list[float],
    launches: int,
    *,
    launcher: _Launcher,
    compile_s: float | None,
    check: Check,
    work: Work | None,
) -> Measurement:
    facts = backend.facts
    return Measurement(
        samples_ns=tuple(samples),
        launches_per_sample=launches,
        first_ns=launcher.first_ns
        if launcher.first_ns and launcher.first_ns >= facts.resolution_ns
        else None,
        warmup=launcher.warmup,
        device=facts.device,
        backend=facts.backend,
        clock=facts.clock,
        resolution_ns=facts.resolution_ns,
        driver=facts.driver,
        library=facts.library,
        compile_s=compile_s,
        check=check,
        device_work=backend.device_work(),
        flops=None if work is None or work.flops is None else float(work.flops),
        bytes=None if work is None or work.bytes is None else float(work.bytes),
    )
