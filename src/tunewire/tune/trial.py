"""One configuration's outcome, as the search and its record see it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tunewire.bench import Measurement
from tunewire.errors import CompileFailed, InvalidKernel, WorkerCrashed, WrongResult
from tunewire.tune.configuration import Configuration
from tunewire.workers.outcome import Outcome, OutcomeKind

__all__ = ["Failure", "FailureKind", "Trial"]

#: What is kept of a failure's text: enough for a compiler's log, little enough for ten thousand trials.
REASON_CHARACTERS = 1_000
DETAILS_CHARACTERS = 8_000


class FailureKind(StrEnum):
    """Why a configuration has no measurement.

    >>> FailureKind("wrong_result").name
    'WRONG_RESULT'
    """

    #: The kernel cannot be launched so: an expression has no sensible value there.
    INVALID_KERNEL = "invalid_kernel"
    COMPILE_FAILED = "compile_failed"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    #: Its process ended, or was lost.
    CRASH = "crash"
    DEVICE_FAULT = "device_fault"
    #: It raised something else.
    ERROR = "error"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How a configuration failed: the kind, the stage that it was in where that is known (compile, check, run, ...),
    the reason in one sentence, and `details`: a compiler's log or the last that was written to stderr.

    Text is as it came, from a compiler or the kernel's process: escape it where you show it.

    >>> failure = Failure(kind=FailureKind.TIMEOUT, phase="check", reason="still in phase 'check' after 2 s")
    >>> failure.kind.value
    'timeout'
    """

    kind: FailureKind
    phase: str | None
    reason: str
    details: str = ""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration, tried once: a measurement, or a failure, never both.

    `index` is its place in the order of completion, from 0. `seconds` is the wall time that it took, starting a
    process and compiling included. `device` is where.

    >>> failure = Failure(kind=FailureKind.CRASH, phase="run", reason="its process was ended by SIGSEGV")
    >>> tile = Configuration({"TILE": 8})
    >>> trial = Trial(index=0, configuration=tile, device="opencl:0", seconds=0.5, failure=failure)
    >>> trial.ok
    False
    """

    index: int
    configuration: Configuration
    device: str
    seconds: float
    measurement: Measurement | None = None
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if (self.measurement is None) == (self.failure is None):
            raise ValueError("a trial has either a measurement or a failure")

    @property
    def ok(self) -> bool:
        """Whether it was measured. A wrong result is not."""
        return self.measurement is not None


def failure_of(outcome: Outcome[Measurement]) -> Failure | None:
    """How the outcome of a benchmark counts against its configuration; None where it does not.

    Nothing is counted against a configuration that the pool never ran: the outcomes `cancelled` and `rejected`
    have no failure.

    >>> from tunewire.errors import CallTimeout
    >>> error = CallTimeout(phase="check", limit=2.0)
    >>> failure = failure_of(Outcome(kind=OutcomeKind.TIMEOUT, error=error))
    >>> failure.kind.value, failure.phase
    ('timeout', 'check')
    """
    error = outcome.error
    if error is None or outcome.kind in (OutcomeKind.CANCELLED, OutcomeKind.REJECTED):
        return None
    kind, phase = _classified(outcome.kind, error)
    return Failure(
        kind=kind,
        phase=phase,
        reason=_writable(_sentence(error)[:REASON_CHARACTERS]),
        details=_writable(_details(outcome, error)[-DETAILS_CHARACTERS:]),
    )


def _classified(kind: OutcomeKind, error: BaseException) -> tuple[FailureKind, str | None]:
    match error:
        case InvalidKernel():
            return FailureKind.INVALID_KERNEL, None
        case CompileFailed():
            return FailureKind.COMPILE_FAILED, "compile"
        case WrongResult():
            return FailureKind.WRONG_RESULT, "check"
    return FailureKind(kind.value), getattr(error, "phase", None)


def _sentence(error: BaseException) -> str:
    name, text = type(error).__name__, str(error)
    ours = type(error).__module__.startswith("tunewire.")
    return text if ours else f"{name}: {text}" if text else name


def _details(outcome: Outcome[Measurement], error: BaseException) -> str:
    match error:
        case CompileFailed(log=log):
            return log
        case WorkerCrashed(stderr=stderr) if stderr:
            return stderr
    return outcome.stderr


def _writable(text: str) -> str:
    # A path or an argument that is no UTF-8 has surrogates, which no JSON file can hold.
    return text.encode("utf-8", "backslashreplace").decode()
