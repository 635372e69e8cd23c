"""The life of one worker as a table: in a state, on an event, to another state with some actions.

Pure: no process, no clock, no loop. The driver (workers.driver) turns what happens into events, and does what the
actions say; it decides nothing. So every race is a row or a sequence of rows, and is tested as one.

    EMPTY ──assign──▶ STARTING ──started──▶ INITIALISING ──initialised──▶ BUSY ──replied──▶ IDLE ─┐
      ▲                  │                       │                        │ │ ▲──────assign───────┘
      │                  │ deadline, cancel,     │          deadline,     │ │ │
      │                  │ lost                  │          cancel        │ │ └──replied── INTERRUPTING
      │                  ▼                       ▼                        ▼ └──────────────────┘ │
      └──────gone──── ENDING ◀───────────────────┴──deadline, lost── TERMINATING ◀───deadline────┘
                                                            close, in any state: CLOSING ──gone──▶ CLOSED

Rules that the rows below keep:

* One call at a time, and one outcome for it. `call` is set from Assign until Decide (or Return) is emitted, and Decide
  is only emitted while it is set; so the first of {reply, deadline, cancel, loss, close} decides, and whatever comes
  later finds no call.
* A process that was told to end (SIGTERM or more) never gets another call. One that was only interrupted may: its late
  reply decides whether it is kept, and the ladder's next rung is then withdrawn with its timer.
* The worker is free for another call (action Free) only when its process is idle, or gone and reaped: work that was
  given up still holds its worker, and with it its device. An idle process that is lost withdraws it.
* A deadline carries the number of the timer that it belongs to. One that was replaced or disarmed, and whose event
  was already on its way, is recognised and does nothing.
* A limit counts from the moment at which the callable begins. The timer is armed when the call is sent; if the flight
  recorder then says that the callable began later, or that it is still being unpickled (its module imported), the timer
  is armed again, but never by more than a start may take: what says so is written by the child.
* A call that fails before it began (start, initializer) costs itself alone: the next one starts a new process. A call
  that was sent to a process and is known not to have begun when that was lost is given back to be sent again, and so is
  one that its caller marked idempotent, a bounded number of times: what says "not begun" is written by the child.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from tunewire.wire.phases import next_phases
from tunewire.workers.ladder import Ladder
from tunewire.workers.limits import Limits


class State(Enum):
    """Where a worker is in its life."""

    __hash__ = (
        object.__hash__
    )  # by identity: Enum's own is a function in Python, and the table is asked twice a call

    EMPTY = auto()
    STARTING = auto()
    INITIALISING = auto()
    IDLE = auto()
    BUSY = auto()
    INTERRUPTING = auto()
    TERMINATING = auto()
    ENDING = auto()
    CLOSING = auto()
    CLOSED = auto()


class CallInfo(msgspec.Struct, frozen=True):
    """What the table needs to know of a call."""

    id: int
    phase: str
    limits: Limits
    ladder: Ladder = Ladder()
    idempotent: bool = False
    #: How often it may still be sent again.
    repeats: int = 2


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
    """The whole reply to a call was read. `keep` is False when the process is no good any more, or is to be replaced."""

    call_id: int
    now: float
    keep: bool = True


class PhaseEntered(msgspec.Struct, frozen=True):
    """The running call went on to its next phase."""

    call_id: int
    phase: str
    now: float


class DeadlineReached(msgspec.Struct, frozen=True):
    """Timer number `timer` fired. `began`: when the callable of the call in hand began, as the flight recorder says;
    infinite if it says that it is still being unpickled; None if it says nothing of this call."""

    timer: int
    now: float
    began: float | None = None


class Cancelled(msgspec.Struct, frozen=True):
    """Whoever awaited the call no longer does."""

    call_id: int
    now: float


class Lost(msgspec.Struct, frozen=True):
    """The process cannot be used any more: it ended, closed its channel, broke the protocol, did not start, or its
    initializer failed. The driver knows which. `begun` is False if the call in hand is known not to have begun; `on_purpose`
    says that the process was ended on request, or for what it did, and its call with it."""

    begun: bool = True
    on_purpose: bool = False


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


class Return(msgspec.Struct, frozen=True):
    """Give the call back undecided: it is to be sent again, to another process."""

    call_id: int


class Interrupt(msgspec.Struct, frozen=True):
    """Raise an exception in the Python code of this call, or only let it know that nobody waits for it."""

    call_id: int
    raises: bool = True


class Terminate(msgspec.Struct, frozen=True):
    """SIGTERM to the process."""


class Kill(msgspec.Struct, frozen=True):
    """End the process and its tree."""


class Free(msgspec.Struct, frozen=True):
    """The worker may be given another call."""


class Withdraw(msgspec.Struct, frozen=True):
    """The worker was free and is not any more: its idle process was lost."""


class Finish(msgspec.Struct, frozen=True):
    """Nothing is left of the worker."""


Action: TypeAlias = (
    Spawn
    | Initialise
    | Send
    | Arm
    | Decide
    | Return
    | Interrupt
    | Terminate
    | Kill
    | Free
    | Withdraw
    | Finish
)


#: Below what a clock tells apart.
_LEAST_CORRECTION: Final = 1e-6
#: What a start without a limit may take, where one must be assumed.
_LONGEST_LOADING: Final = 60.0


class Lifecycle:
    """The state of one worker, and the table.

    >>> worker = Lifecycle()
    >>> worker.handle(Assign(CallInfo(id=7, phase="run", limits=Limits(start=5.0)), now=100.0))
    [Spawn(), Arm(timer=1, at=105.0)]
    >>> worker.state.name
    'STARTING'
    """

    def __init__(self, idle_limit: float | None = None) -> None:
        """`idle_limit`: seconds after which an idle process is ended."""
        self.state = State.EMPTY
        self.call: CallInfo | None = None
        self._idle_limit = idle_limit
        self._interrupted: tuple[int, Ladder] | None = None
        self.phase = "start"
        self._limit: float | None = None
        self._timer = 0
        self._sent = 0.0

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

    def _send(self, call: CallInfo, now: float) -> list[Action]:
        self.state = State.BUSY
        self._sent = now
        return [Send(call.id), self._enter(call.phase, call.limits, now)]

    def _later_deadline(self, event: DeadlineReached) -> float | None:
        """When the limit is really reached, if the callable began later than its call was sent."""
        assert self.call is not None
        if event.began is None or self._limit is None or self.phase != self.call.phase:
            return None
        start = self.call.limits.start
        latest = self._sent + (_LONGEST_LOADING if start is None else start) + self._limit
        # While it is unpickled, look again after each limit's time: it may begin at any moment.
        due = min(event.now if event.began == math.inf else event.began, event.now) + self._limit
        due = min(due, latest)
        return due if due > event.now + _LEAST_CORRECTION else None

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

    def _kill(self) -> list[Action]:
        self.state = State.ENDING
        return [Kill()]

    def _idle(self, now: float) -> list[Action]:
        self.state = State.IDLE
        timer: list[Action] = [] if self._idle_limit is None else [self._arm(now + self._idle_limit)]
        return [*timer, Free()]

    def _give_up(self, verdict: Verdict, now: float) -> list[Action]:
        """Decide the running call, and begin to end its work by the ladder that it came with."""
        assert self.call is not None
        call = self.call
        decided = self._decide(verdict)
        if call.ladder.interrupt is None:
            return [*decided, *self._terminate(call.ladder, now)]
        self.state = State.INTERRUPTING
        self._interrupted = call.id, call.ladder
        return [
            *decided,
            Interrupt(call.id, not call.ladder.cooperative),
            self._arm(now + call.ladder.interrupt),
        ]

    def _terminate(self, ladder: Ladder, now: float) -> list[Action]:
        if ladder.terminate is None:
            return self._kill()
        self.state = State.TERMINATING
        return [Terminate(), self._arm(now + ladder.terminate)]


def _assign_cold(worker: Lifecycle, event: Assign) -> list[Action]:
    worker.state, worker.call = State.STARTING, event.call
    return [Spawn(), worker._enter("start", event.call.limits, event.now)]


def _assign_warm(worker: Lifecycle, event: Assign) -> list[Action]:
    worker.call = event.call
    return worker._send(event.call, event.now)


def _started(worker: Lifecycle, event: Started) -> list[Action]:
    assert worker.call is not None
    worker.state = State.INITIALISING
    # Armed first: without an initializer the driver answers Initialise at once, which arms the next timer.
    return [worker._enter("init", worker.call.limits, event.now), Initialise()]


def _initialised(worker: Lifecycle, event: Initialised) -> list[Action]:
    assert worker.call is not None
    return worker._send(worker.call, event.now)


def _replied(worker: Lifecycle, event: Replied) -> list[Action]:
    if not worker._concerns(event.call_id):
        return []
    decided = worker._decide(Verdict.REPLY)
    return [*decided, *(worker._idle(event.now) if event.keep else worker._kill())]


def _phase_entered(worker: Lifecycle, event: PhaseEntered) -> list[Action]:
    if not worker._concerns(event.call_id) or event.phase not in next_phases(worker.phase):
        return []  # a child may not buy itself time by going back
    assert worker.call is not None
    return [worker._enter(event.phase, worker.call.limits, event.now)]


def _deadline_before(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    if event.timer != worker._timer:
        return []
    return [*worker._decide(Verdict.TIMEOUT), *worker._kill()]


def _deadline(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    if event.timer != worker._timer:
        return []
    later = worker._later_deadline(event)
    return worker._give_up(Verdict.TIMEOUT, event.now) if later is None else [worker._arm(later)]


def _cancelled_before(worker: Lifecycle, event: Cancelled) -> list[Action]:
    if not worker._concerns(event.call_id):
        return []
    return [*worker._decide(Verdict.CANCELLED), *worker._kill()]


def _cancelled(worker: Lifecycle, event: Cancelled) -> list[Action]:
    return worker._give_up(Verdict.CANCELLED, event.now) if worker._concerns(event.call_id) else []


def _lost_before(worker: Lifecycle, _event: Lost) -> list[Action]:
    return [*worker._decide(Verdict.LOST), *worker._kill()]


def _lost(worker: Lifecycle, event: Lost) -> list[Action]:
    assert worker.call is not None
    call = worker.call
    if call.repeats > 0 and not event.on_purpose and (call.idempotent or not event.begun):
        worker.call = None
        return [worker._arm(None), Return(call.id), *worker._kill()]
    return [*worker._decide(Verdict.LOST), *worker._kill()]


def _lost_idle(worker: Lifecycle, _event: Lost) -> list[Action]:
    return [worker._arm(None), Withdraw(), *worker._kill()]


def _idle_too_long(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    return [] if event.timer != worker._timer else [Withdraw(), *worker._kill()]


def _late_reply(worker: Lifecycle, event: Replied) -> list[Action]:
    assert worker._interrupted is not None
    call_id, ladder = worker._interrupted
    if event.call_id != call_id:
        return []
    if not event.keep:
        return worker._terminate(ladder, event.now)
    return [worker._arm(None), *worker._idle(event.now)]


def _interrupt_too_slow(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    assert worker._interrupted is not None
    return [] if event.timer != worker._timer else worker._terminate(worker._interrupted[1], event.now)


def _terminate_too_slow(worker: Lifecycle, event: DeadlineReached) -> list[Action]:
    return [] if event.timer != worker._timer else worker._kill()


def _lost_given_up(worker: Lifecycle, _event: Lost) -> list[Action]:
    return [worker._arm(None), *worker._kill()]


def _gone(worker: Lifecycle, _event: Gone) -> list[Action]:
    worker.state = State.EMPTY
    return [Free()]


def _close_at_once(worker: Lifecycle, _event: Close) -> list[Action]:
    worker.state = State.CLOSED
    return [Finish()]


def _close(worker: Lifecycle, _event: Close) -> list[Action]:
    worker.state = State.CLOSING
    return [*worker._decide(Verdict.CLOSED), worker._arm(None), Kill()]


def _closing_gone(worker: Lifecycle, _event: Gone) -> list[Action]:
    worker.state = State.CLOSED
    return [Finish()]


#: Rows that are missing change nothing, on purpose: a Replied, Cancelled or DeadlineReached that finds no call came
#: second; a Lost in ENDING or CLOSING is the loss that was ordered.
_TABLE: Final[dict[tuple[State, type], Callable[..., list[Action]]]] = {
    (State.EMPTY, Assign): _assign_cold,
    (State.EMPTY, Close): _close_at_once,
    (State.STARTING, Started): _started,
    (State.STARTING, DeadlineReached): _deadline_before,
    (State.STARTING, Cancelled): _cancelled_before,
    (State.STARTING, Lost): _lost_before,
    (State.STARTING, Close): _close,
    (State.INITIALISING, Initialised): _initialised,
    (State.INITIALISING, DeadlineReached): _deadline_before,
    (State.INITIALISING, Cancelled): _cancelled_before,
    (State.INITIALISING, Lost): _lost_before,
    (State.INITIALISING, Close): _close,
    (State.IDLE, Assign): _assign_warm,
    (State.IDLE, DeadlineReached): _idle_too_long,
    (State.IDLE, Lost): _lost_idle,
    (State.IDLE, Close): _close,
    (State.BUSY, Replied): _replied,
    (State.BUSY, PhaseEntered): _phase_entered,
    (State.BUSY, DeadlineReached): _deadline,
    (State.BUSY, Cancelled): _cancelled,
    (State.BUSY, Lost): _lost,
    (State.BUSY, Close): _close,
    (State.INTERRUPTING, Replied): _late_reply,
    (State.INTERRUPTING, DeadlineReached): _interrupt_too_slow,
    (State.INTERRUPTING, Lost): _lost_given_up,
    (State.INTERRUPTING, Close): _close,
    (State.TERMINATING, DeadlineReached): _terminate_too_slow,
    (State.TERMINATING, Lost): _lost_given_up,
    (State.TERMINATING, Close): _close,
    (State.ENDING, Gone): _gone,
    (State.ENDING, Close): _close,
    (State.CLOSING, Gone): _closing_gone,
}


def replay(events: Iterable[Event], *, idle_limit: float | None = None) -> list[list[Action]]:
    """What a new worker does about these events: the same as the one that they were logged from.

    >>> replay([Assign(CallInfo(id=1, phase="run", limits=Limits(start=None)), now=0.0), Lost(), Gone()])[-1]
    [Free()]
    """
    worker = Lifecycle(idle_limit)
    return [worker.handle(event) for event in events]
