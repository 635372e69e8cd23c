"""The life of one worker as a table: in a state, on an event, to another state with some actions.

Pure: no process, no clock, no loop. The driver (workers.driver) turns what happens into events, and does what the
actions say; it decides nothing. So every race is a row or a sequence of rows, and is tested as one.

    EMPTY ──assign──▶ STARTING ──started──▶ INITIALISING ──initialised──▶ BUSY ──replied──▶ IDLE ─┐
      ▲                  │                       │                         │  ▲──────assign──────┘
      │                  └────── deadline, cancel, lost, failed ───────────┘
      └──── gone ◀──── ENDING                                 close: ──▶ CLOSING ──gone──▶ CLOSED

Rules that the rows below keep:

* One call at a time, and one outcome for it. `call` is set from Assign until Decide is emitted, and Decide is only
  emitted while it is set; so the first of {reply, deadline, cancel, loss, close} decides, and whatever comes later
  finds no call.
* A process that was told to end never gets another call: from ENDING the only ways out are Gone and Close.
* The worker is free for another call (action Free) only when its process is idle, or gone and reaped: work that was
  given up still holds its worker, and with it its device. An idle process that is lost withdraws it.
* A deadline carries the number of the timer that it belongs to. One that was replaced or disarmed, and whose event
  was already on its way, is recognised and does nothing.
* A call that fails before it began (start, initializer) costs itself alone: the next one starts a new process.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from tunewire.wire.phases import next_phases
from tunewire.workers.limits import Limits


class State(Enum):
    """Where a worker is in its life."""

    EMPTY = auto()
    STARTING = auto()
    INITIALISING = auto()
    IDLE = auto()
    BUSY = auto()
    ENDING = auto()
    CLOSING = auto()
    CLOSED = auto()


class CallInfo(msgspec.Struct, frozen=True):
    """What the table needs to know of a call."""

    id: int
    phase: str
    limits: Limits


# Events. `now` is the loop's monotonic time in seconds.


class Assign(msgspec.Struct, frozen=True):
    """The pool gives this worker a call; only while it is free."""

    call: CallInfo
    now: float


class Started(msgspec.Struct, frozen=True):
    """The process said hello."""

    now: float


class Initialised(msgspec.Struct, frozen=True):
    """The initializer returned."""

    now: float


class Replied(msgspec.Struct, frozen=True):
    """The whole reply to a call was read. `keep` is False when it says that the process is no good any more."""

    call_id: int
    keep: bool = True


class PhaseEntered(msgspec.Struct, frozen=True):
    """The running call went on to its next phase."""

    call_id: int
    phase: str
    now: float


class DeadlineReached(msgspec.Struct, frozen=True):
    """Timer number `timer` fired."""

    timer: int


class Cancelled(msgspec.Struct, frozen=True):
    """Whoever awaited the call no longer does."""

    call_id: int


class Lost(msgspec.Struct, frozen=True):
    """The process cannot be used any more: it ended, closed its channel, broke the protocol, did not start, or its
    initializer failed. The driver knows which."""


class Gone(msgspec.Struct, frozen=True):
    """The process and its tree are ended and reaped, and its descriptors closed."""


class Close(msgspec.Struct, frozen=True):
    """The worker is to end for good."""


Event: TypeAlias = (
    Assign
    | Started
    | Initialised
    | Replied
    | PhaseEntered
    | DeadlineReached
    | Cancelled
    | Lost
    | Gone
    | Close
)


class Verdict(Enum):
    """Why a call ended; the driver makes an outcome of it."""

    REPLY = auto()
    TIMEOUT = auto()
    CANCELLED = auto()
    LOST = auto()
    CLOSED = auto()


# Actions.


class Spawn(msgspec.Struct, frozen=True):
    """Start a process."""


class Initialise(msgspec.Struct, frozen=True):
    """Send the initializer; where there is none, say Initialised at once."""


class Send(msgspec.Struct, frozen=True):
    """Send the call to the process: from here on it may have begun."""

    call_id: int


class Arm(msgspec.Struct, frozen=True):
    """Replace the timer by one that fires at `at`; None for no timer."""

    timer: int
    at: float | None


class Decide(msgspec.Struct, frozen=True):
    """Give the call its outcome; `phase` is where it was, `limit` what was reached if it was one."""

    call_id: int
    verdict: Verdict
    phase: str
    limit: float | None = None


class Kill(msgspec.Struct, frozen=True):
    """End the process and its tree."""


class Free(msgspec.Struct, frozen=True):
    """The worker may be given another call."""


class Withdraw(msgspec.Struct, frozen=True):
    """The worker was free and is not any more: its idle process was lost."""


class Finish(msgspec.Struct, frozen=True):
    """Nothing is left of the worker."""


Action: TypeAlias = Spawn | Initialise | Send | Arm | Decide | Kill | Free | Withdraw | Finish


class Lifecycle:
    """The state of one worker, and the table.

    >>> worker = Lifecycle()
    >>> worker.handle(Assign(CallInfo(id=7, phase="run", limits=Limits(start=5.0)), now=100.0))
    [Spawn(), Arm(timer=1, at=105.0)]
    >>> worker.state.name
    'STARTING'
    """

    def __init__(self) -> None:
        self.state = State.EMPTY
        self.call: CallInfo | None = None
        self.phase = "start"
        self._limit: float | None = None
        self._timer = 0

    @property
    def is_free(self) -> bool:
        """Whether Assign is allowed."""
        return self.state in (State.EMPTY, State.IDLE)

    def handle(self, event: Event) -> list[Action]:
        """What to do about `event`, in this order. An event that has no row in this state changes nothing."""
        row = _TABLE.get((self.state, type(event)))
        return [] if row is None else row(self, event)

    def _enter(self, phase: str, limits: Limits, now: float) -> Arm:
        self.phase = phase
        self._limit = limits.of(phase)
        return self._arm(None if self._limit is None else now + self._limit)

    def _arm(self, at: float | None) -> Arm:
        self._timer += 1
        return Arm(self._timer, at)

    def _decide(self, verdict: Verdict) -> list[Action]:
        """The outcome of the call in hand, if there is one; and no timer any more."""
        if self.call is None:
            return []
        call, self.call = self.call, None
        limit = self._limit if verdict is Verdict.TIMEOUT else None
        return [self._arm(None), Decide(call.id, verdict, self.phase, limit)]

    def _concerns(self, call_id: int) -> bool:
        return self.call is not None and self.call.id == call_id


def _assign_cold(worker: Lifecycle, event: Assign) -> list[Action]:
    worker.state, worker.call = State.STARTING, event.call
    return [Spawn(), worker._enter("start", event.call.limits, event.now)]


def _assign_warm(worker: Lifecycle, event: Assign) -> list[Action]:
    worker.state, worker.call = State.BUSY, event.call
    return [Send(event.call.id), worker._enter(event.call.phase, event.call.limits, event.now)]


def _started(worker: Lifecycle, event: Started) -> list[Action]:
    assert worker.call is not None
    worker.state = State.INITIALISING
    # Armed first: without an initializer the driver answers Initialise at once, which arms the next timer.
    return [worker._enter("init", worker.call.limits, event.now), Initialise()]


def _initialised(worker: Lifecycle, event: Initialised) -> list[Action]:
    assert worker.call is not None
    worker.state = State.BUSY
    return [Send(worker.call.id), worker._enter(worker.call.phase, worker.call.limits, event.now)]


def _replied(worker: Lifecycle, event: Replied) -> list[Action]:
    if not worker._concerns(event.call_id):
        return []
    decided = worker._decide(Verdict.REPLY)
    if not event.keep:
        worker.state = State.ENDING
        return [*decided, Kill()]
    worker.state = State.IDLE
    return [*decided, Free()]


def _phase_entered(worker: Lifecycle, event: PhaseEntered) -> list[Action]:
    if not worker._concerns(event.call_id) or event.phase not in next_phases(worker.phase):
        return []  # a child may not buy itself time by going back
    assert worker.call is not None
    return [worker._enter(event.phase, worker.call.limits, event.now)]


def _deadline(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    if event.timer != worker._timer:
        return []
    worker.state = State.ENDING
    return [*worker._decide(Verdict.TIMEOUT), Kill()]


def _cancelled(worker: Lifecycle, event: Cancelled) -> list[Action]:
    if not worker._concerns(event.call_id):
        return []
    worker.state = State.ENDING
    return [*worker._decide(Verdict.CANCELLED), Kill()]


def _lost(worker: Lifecycle, _event: Lost) -> list[Action]:
    worker.state = State.ENDING
    return [*worker._decide(Verdict.LOST), Kill()]


def _lost_idle(worker: Lifecycle, _event: Lost) -> list[Action]:
    worker.state = State.ENDING
    return [Withdraw(), Kill()]


def _gone(worker: Lifecycle, _event: Gone) -> list[Action]:
    worker.state = State.EMPTY
    return [Free()]


def _close_at_once(worker: Lifecycle, _event: Close) -> list[Action]:
    worker.state = State.CLOSED
    return [Finish()]


def _close(worker: Lifecycle, _event: Close) -> list[Action]:
    worker.state = State.CLOSING
    return [*worker._decide(Verdict.CLOSED), Kill()]


def _closing_gone(worker: Lifecycle, _event: Gone) -> list[Action]:
    worker.state = State.CLOSED
    return [Finish()]


#: Rows that are missing change nothing, on purpose: a Replied, Cancelled or DeadlineReached that finds no call came
#: second; a Lost in ENDING or CLOSING is the loss that was ordered.
_TABLE: Final[dict[tuple[State, type], Callable[..., list[Action]]]] = {
    (State.EMPTY, Assign): _assign_cold,
    (State.EMPTY, Close): _close_at_once,
    (State.STARTING, Started): _started,
    (State.STARTING, DeadlineReached): _deadline,
    (State.STARTING, Cancelled): _cancelled,
    (State.STARTING, Lost): _lost,
    (State.STARTING, Close): _close,
    (State.INITIALISING, Initialised): _initialised,
    (State.INITIALISING, DeadlineReached): _deadline,
    (State.INITIALISING, Cancelled): _cancelled,
    (State.INITIALISING, Lost): _lost,
    (State.INITIALISING, Close): _close,
    (State.IDLE, Assign): _assign_warm,
    (State.IDLE, Lost): _lost_idle,
    (State.IDLE, Close): _close,
    (State.BUSY, Replied): _replied,
    (State.BUSY, PhaseEntered): _phase_entered,
    (State.BUSY, DeadlineReached): _deadline,
    (State.BUSY, Cancelled): _cancelled,
    (State.BUSY, Lost): _lost,
    (State.BUSY, Close): _close,
    (State.ENDING, Gone): _gone,
    (State.ENDING, Close): _close,
    (State.CLOSING, Gone): _closing_gone,
}
