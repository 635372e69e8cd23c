"""What became of a call."""

from __future__ import annotations

from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

from tunewire.wire.phases import INSIDE

T = TypeVar("T")


class OutcomeKind(StrEnum):
    """How a call ended. Exactly one of these, for every call.

    >>> OutcomeKind.TIMEOUT == "timeout"
    True
    """

    COMPLETED = "completed"
    #: It raised, or its result could not be brought back.
    ERROR = "error"
    TIMEOUT = "timeout"
    #: Its process ended, was lost, or never came up.
    CRASH = "crash"
    DEVICE_FAULT = "device_fault"
    CANCELLED = "cancelled"
    #: It never began: the pool was closed or full.
    REJECTED = "rejected"


class Outcome(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What became of one call: its value, or how it failed, and what it printed.

    `error` is None when it completed, and otherwise the exception that `call` would have raised. `stdout` and `stderr`
    are the tails (at most 16 KiB each) of what was printed during this call. `seconds` is the time from the start of
    execution to the outcome, 0.0 for a call that did not begin. `phase` is the stage in which it ended: before it began
    queue, start or init, then compile, check or run. `pid` is the process that ran it, if any did.

    >>> Outcome(kind=OutcomeKind.COMPLETED, value=3).unwrap()
    3
    """

    kind: OutcomeKind
    value: T | None = None
    error: BaseException | None = None
    stdout: str = ""
    stderr: str = ""
    phase: str = "run"
    seconds: float = 0.0
    pid: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it completed."""
        return self.kind is OutcomeKind.COMPLETED

    @property
    def began(self) -> bool:
        """Whether the callable may have begun; else what happened says nothing about it."""
        return self.phase in INSIDE

    def unwrap(self) -> T:
        """The value of a call that completed; else its error is raised."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                # The error's traceback refers to this frame, and to all frames above it with what they hold: if one of
                # them referred to the error, all that would wait for the garbage collector.
                del self
        return self.value  # type: ignore[return-value]  # a completed call has the value that it returned
