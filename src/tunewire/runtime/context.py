"""What a running call may tell the process that awaits it, and what it may know of itself."""

from __future__ import annotations

import time
from typing import Protocol, TypeAlias

from tunewire.wire.phases import INSIDE, next_phases

#: Seconds for the phases compile, check and run.
PhaseLimits: TypeAlias = tuple[float | None, float | None, float | None]

#: `logging.INFO`: a worker imports that module when somebody needs it.
_INFO = 20
_NOTE_LENGTH = 1 << 14


class Teller(Protocol):
    """What brings it to the other process."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def report(self, value: object, progress: float | None) -> None:
        """A value on the way."""

    def note(self, level: int, text: str) -> None:
        """A line of the log."""


class CurrentCall:
    """The call that runs in this process, as its own code sees it; from any thread.

    >>> from tunewire.runtime import current_call
    >>> current_call().phase
    'run'
    """

    def __init__(
        self, phase: str, teller: Teller | None = None, limits: PhaseLimits = (None, None, None)
    ) -> None:
        self._phase = phase
        self._teller = teller
        self._limits = limits
        self._entered = time.monotonic()
        self._cancelled = False

    @property
    def phase(self) -> str:
        """The phase that the call is in: compile, check or run."""
        return self._phase

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the call any more: its caller has gone, or a limit was reached.

        It becomes True where the ladder of the call has a rung that leaves it time: `Ladder(interrupt=...)`, which raises
        an exception on the main thread too, so that this is for other threads and for cleaning up, or
        `Ladder(interrupt=..., cooperative=True)`, which does not: the callable looks here now and then, and returns.
        """
        return self._cancelled

    @property
    def deadline(self) -> float | None:
        """When the limit of the phase that the call is in will be reached, by `time.monotonic()`; None without one."""
        limit = self._limits[INSIDE.index(self._phase)]
        return None if limit is None else self._entered + limit

    def report(self, value: object = None, *, progress: float | None = None) -> None:
        """Give whoever streams this call a value on the way, or how far it is, or both.

        The value travels as a result does, and `progress` is a number of your own choosing, a share of 1.0 by custom. A
        reader that falls behind holds this up, and time goes on meanwhile. Where nobody streams the call, and outside of a
        worker, nothing happens. Raises EncodeError for what cannot be sent.

        >>> current_call().report({"loss": 0.25}, progress=0.5)
        """
        if (teller := self._teller) is not None:
            teller.report(value, None if progress is None else float(progress))

    def log(self, message: str, level: int = _INFO) -> None:
        """Give whoever streams this call a line of text, with a level as `logging` has them; at most 16 KiB of it.

        Like `report` in everything else.

        >>> current_call().log("compiled", level=20)
        """
        if (teller := self._teller) is not None:
            text = str(message)[:_NOTE_LENGTH].encode("utf-8", "backslashreplace").decode()
            teller.note(int(level), text)

    def enter(self, phase: str) -> None:
        """Begin the next phase: from now on its limit counts, and a timeout or crash names it.

        Phases go forward only: compile, check, run. ValueError for any other step. Outside of a worker (a function
        under test, called directly) there is no limit to restart and nothing happens.
        """
        teller = self._teller
        if teller is None or phase == self._phase:
            return
        if phase not in next_phases(self._phase):
            raise ValueError(
                f"a call goes from {self._phase!r} to one of {next_phases(self._phase)}, not {phase!r}"
            )
        self._phase = phase
        self._entered = time.monotonic()
        teller.phase(phase)

    def begins(self) -> None:
        """The runtime's: it is unpickled, and its limit counts from here."""
        self._entered = time.monotonic()

    def cancel(self) -> None:
        """The runtime's: nobody waits for it any more."""
        self._cancelled = True

    def end(self) -> None:
        """The runtime's: what the call left running has nothing to tell any more."""
        self._teller = None


_outside = CurrentCall("run")
_current = _outside


def current_call() -> CurrentCall:
    """The call that is running in this process; outside of a worker a stand-in whose methods do nothing.

    >>> def compile_and_run(source):
    ...     program = compile(source, "kernel", "eval")
    ...     current_call().enter("run")
    ...     return eval(program)
    >>> compile_and_run("6 * 7")
    42
    """
    return _current


def begin(phase: str, teller: Teller, limits: PhaseLimits) -> CurrentCall:
    """The runtime's: a call begins."""
    global _current  # one call at a time is what a worker process is
    _current = CurrentCall(phase, teller, limits)
    return _current


def end() -> None:
    """The runtime's: the call has ended; what it left running finds no call."""
    global _current
    _current.end()
    _current = _outside
