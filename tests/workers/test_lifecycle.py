"""The life of a worker as a table: each race is a sequence of rows, and random sequences keep the rules."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tunewire.workers.ladder import Ladder
from tunewire.workers.lifecycle import (
    _TABLE,
    Arm,
    Assign,
    CallInfo,
    Cancelled,
    Close,
    DeadlineReached,
    Decide,
    Finish,
    Free,
    Gone,
    Initialise,
    Initialised,
    Interrupt,
    Kill,
    Lifecycle,
    Lost,
    PhaseEntered,
    Replied,
    Return,
    Send,
    Spawn,
    Started,
    State,
    Terminate,
    Verdict,
    Withdraw,
    replay,
)
from tunewire.workers.limits import Limits

LIMITS = Limits(start=1.0, init=2.0, compile=3.0, check=4.0, run=5.0)
CALL = CallInfo(id=7, phase="run", limits=LIMITS)
TWO_STAGES = CallInfo(id=7, phase="compile", limits=LIMITS)


def worker_after(*events) -> Lifecycle:
    worker = Lifecycle()
    for event in events:
        worker.handle(event)
    return worker


STARTING = (Assign(CALL, now=0.0),)
INITIALISING = (*STARTING, Started(now=0.5))
BUSY = (*INITIALISING, Initialised(now=0.7))
IDLE = (*BUSY, Replied(7, 8.0))


def test_a_call_on_a_new_worker_passes_every_stage_with_its_own_limit():
    worker = Lifecycle()
    assert worker.handle(Assign(CALL, now=0.0)) == [Spawn(), Arm(1, 1.0)]
    assert worker.handle(Started(now=0.5)) == [Arm(2, 2.5), Initialise()]
    assert worker.handle(Initialised(now=0.7)) == [Send(7), Arm(3, 5.7)]
    assert worker.handle(Replied(7, 8.0)) == [Arm(4, None), Decide(7, Verdict.REPLY, "run"), Free()]
    assert worker.handle(Assign(CALL, now=9.0)) == [Send(7), Arm(5, 14.0)]


def test_the_phases_of_a_call_have_limits_of_their_own_and_go_forward_only():
    worker = worker_after(Assign(TWO_STAGES, now=0.0), Started(now=0.0), Initialised(now=0.0))
    assert worker.handle(PhaseEntered(7, "check", now=1.0)) == [Arm(4, 5.0)]
    assert worker.handle(PhaseEntered(7, "compile", now=2.0)) == []
    assert worker.handle(PhaseEntered(7, "check", now=2.0)) == []
    assert worker.handle(PhaseEntered(7, "no such", now=2.0)) == []
    assert worker.handle(PhaseEntered(8, "run", now=2.0)) == []
    assert worker.handle(PhaseEntered(7, "run", now=2.0)) == [Arm(5, 7.0)]


@pytest.mark.parametrize(
    ("history", "phase", "limit"), [(STARTING, "start", 1.0), (INITIALISING, "init", 2.0)]
)
def test_a_deadline_before_the_call_began_kills_at_once(history, phase, limit):
    worker = worker_after(*history)
    decided = worker.handle(DeadlineReached(worker._timer, 8.0))
    assert decided[1:] == [Decide(7, Verdict.TIMEOUT, phase, limit), Kill()]
    assert worker.state is State.ENDING


def test_a_deadline_of_a_running_call_decides_it_and_climbs_the_ladder():
    worker = worker_after(*BUSY)
    decided = worker.handle(DeadlineReached(3, 8.0))
    assert decided == [Arm(4, None), Decide(7, Verdict.TIMEOUT, "run", 5.0), Terminate(), Arm(5, 8.02)]
    assert worker.handle(DeadlineReached(5, 8.02)) == [Kill()]
    assert worker.handle(Gone()) == [Free()]


@pytest.mark.parametrize(
    ("began", "armed"),
    [
        (None, None),  # the recorder says nothing of this call: it has not been read
        (0.7, None),  # it began when it was sent
        (2.0, 7.0),  # it began later, and so does its limit
        (math.inf, 6.7),  # it is still being unpickled: looked at again when the start's limit is used up
        (99.0, 6.7),  # a child may not buy itself more
    ],
)
def test_a_limit_counts_from_the_moment_at_which_the_callable_begins(began, armed):
    worker = worker_after(*BUSY)
    actions = worker.handle(DeadlineReached(3, 5.7, began))
    if armed is None:
        assert Decide(7, Verdict.TIMEOUT, "run", 5.0) in actions
    else:
        assert actions == [Arm(4, min(armed, 6.7))]
        assert Decide(7, Verdict.TIMEOUT, "run", 5.0) in worker.handle(DeadlineReached(4, 6.8, began))


def test_without_a_limit_for_the_start_unpickling_still_ends():
    call = CallInfo(id=7, phase="run", limits=Limits(start=None, run=50.0))
    worker = worker_after(Assign(call, now=0.0), Started(now=0.0), Initialised(now=0.0))
    assert worker.handle(DeadlineReached(3, 50.0, math.inf)) == [Arm(4, 100.0)]
    assert worker.handle(DeadlineReached(4, 100.0, math.inf)) == [Arm(5, 110.0)]
    assert Decide(7, Verdict.TIMEOUT, "run", 50.0) in worker.handle(DeadlineReached(5, 110.0, math.inf))


def with_ladder(**rungs):
    call = CallInfo(id=7, phase="run", limits=LIMITS, ladder=Ladder(**rungs))
    return (Assign(call, now=0.0), Started(now=0.5), Initialised(now=0.7))


def test_without_the_terminate_rung_a_call_that_is_given_up_is_killed():
    worker = worker_after(*with_ladder(terminate=None))
    assert worker.handle(Cancelled(7, 8.0))[-1] == Kill()
    assert worker.state is State.ENDING


def test_a_call_that_ends_when_it_is_interrupted_keeps_its_process():
    worker = worker_after(*with_ladder(interrupt=0.5))
    given_up = worker.handle(Cancelled(7, 8.0))
    assert given_up == [Arm(4, None), Decide(7, Verdict.CANCELLED, "run"), Interrupt(7), Arm(5, 8.5)]
    assert not worker.is_free
    assert worker.handle(Replied(7, 8.499)) == [Arm(6, None), Free()]
    assert worker.handle(DeadlineReached(5, 8.5)) == [], "the next rung was withdrawn with its timer"
    assert worker.state is State.IDLE


def test_an_interrupted_call_that_goes_on_is_terminated_and_then_killed():
    worker = worker_after(*with_ladder(interrupt=0.5), Cancelled(7, 8.0))
    assert worker.handle(DeadlineReached(5, 8.5)) == [Terminate(), Arm(6, 8.52)]
    assert worker.handle(Replied(7, 8.51)) == [], "after SIGTERM it never gets another call"
    assert worker.handle(DeadlineReached(6, 8.52)) == [Kill()]


def test_an_interrupted_process_that_is_no_good_any_more_is_ended():
    worker = worker_after(*with_ladder(interrupt=0.5), Cancelled(7, 8.0))
    assert worker.handle(Replied(7, 8.1, keep=False)) == [Terminate(), Arm(6, 8.12)]


def test_a_late_reply_of_another_call_keeps_nothing():
    worker = worker_after(*with_ladder(interrupt=0.5), Cancelled(7, 8.0))
    assert worker.handle(Replied(6, 8.1)) == []
    assert worker.state is State.INTERRUPTING


@pytest.mark.parametrize("rungs", [{"interrupt": 0.5}, {"terminate": 0.5}])
def test_a_process_that_ends_on_a_rung_is_seen_off(rungs):
    worker = worker_after(*with_ladder(**rungs), Cancelled(7, 8.0))
    assert worker.handle(Lost())[-1] == Kill()
    assert worker.handle(Gone()) == [Free()]


@pytest.mark.parametrize("rungs", [{"interrupt": 0.5}, {"terminate": 0.5}])
def test_closing_goes_straight_to_the_kill(rungs):
    worker = worker_after(*with_ladder(**rungs), Cancelled(7, 8.0))
    assert worker.handle(Close())[-1] == Kill()
    assert worker.handle(Gone()) == [Finish()]


def test_an_idle_process_is_ended_after_its_limit_and_grows_again_unseen():
    worker = Lifecycle(idle_limit=60.0)
    for event in BUSY:
        worker.handle(event)
    assert worker.handle(Replied(7, 8.0))[-2:] == [Arm(5, 68.0), Free()]
    assert worker.handle(DeadlineReached(5, 68.0)) == [Withdraw(), Kill()]
    assert worker.handle(Gone()) == [Free()]
    assert worker.handle(Assign(CALL, now=70.0))[0] == Spawn()


def test_a_new_call_withdraws_the_idle_limit():
    worker = Lifecycle(idle_limit=60.0)
    for event in (*IDLE, Assign(CALL, now=9.0)):
        worker.handle(event)
    assert worker.handle(DeadlineReached(5, 68.0)) == []
    assert worker.state is State.BUSY


def test_a_call_that_has_not_begun_is_sent_again_a_bounded_number_of_times():
    worker = worker_after(*IDLE, Assign(CALL, now=9.0))
    assert worker.handle(Lost(begun=False))[1:] == [Return(7), Kill()]
    assert worker.call is None
    worn = CallInfo(id=7, phase="run", limits=LIMITS, repeats=0)
    worker = worker_after(*IDLE, Assign(worn, now=9.0))
    assert Decide(7, Verdict.LOST, "run") in worker.handle(Lost(begun=False))


def test_a_call_that_may_have_begun_is_sent_again_only_if_it_may_be():
    worker = worker_after(*BUSY)
    assert Decide(7, Verdict.LOST, "run") in worker.handle(Lost(begun=True))
    twice = CallInfo(id=7, phase="run", limits=LIMITS, idempotent=True)
    worker = worker_after(Assign(twice, now=0.0), Started(now=0.5), Initialised(now=0.7))
    assert Return(7) in worker.handle(Lost(begun=True))


def test_a_log_of_events_replays_to_the_same_actions():
    events = [
        *with_ladder(interrupt=0.5),
        Cancelled(7, 8.0),
        Replied(7, 8.1),
        Assign(CALL, 9.0),
        Lost(),
        Gone(),
    ]
    assert replay(events) == replay(events)
    assert replay(events)[-1] == [Free()]


@pytest.mark.parametrize("history", [STARTING, INITIALISING, BUSY])
@pytest.mark.parametrize(
    ("event", "verdict"),
    [(Cancelled(7, 8.0), Verdict.CANCELLED), (Lost(), Verdict.LOST), (Close(), Verdict.CLOSED)],
)
def test_cancel_loss_and_close_decide_the_call_at_every_stage(history, event, verdict):
    worker = worker_after(*history)
    actions = worker.handle(event)
    assert [action.verdict for action in actions if isinstance(action, Decide)] == [verdict]
    assert not worker.is_free


FIRST = [Replied(7, 8.0), Cancelled(7, 8.0), Lost(), Close(), DeadlineReached(3, 8.0)]


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("second", FIRST)
def test_the_first_of_two_decides_and_the_second_finds_no_call(first, second):
    worker = worker_after(*BUSY)
    decisions = [
        action for event in (first, second) for action in worker.handle(event) if isinstance(action, Decide)
    ]
    assert len(decisions) == 1


def test_a_worker_is_free_again_only_when_the_old_work_is_gone():
    worker = worker_after(*BUSY, Cancelled(7, 8.0))
    assert not worker.is_free
    assert worker.handle(Replied(7, 8.0)) == []
    worker.handle(Lost())
    assert worker.handle(Gone()) == [Free()]
    assert worker.is_free


def test_a_reply_that_gives_the_process_up_ends_it_before_the_worker_is_free():
    worker = worker_after(*BUSY)
    assert worker.handle(Replied(7, 8.0, keep=False))[1:] == [Decide(7, Verdict.REPLY, "run"), Kill()]
    assert worker.handle(Gone()) == [Free()]


def test_an_idle_process_that_is_lost_withdraws_the_worker_until_it_is_gone():
    worker = worker_after(*IDLE)
    assert worker.handle(Lost())[1:] == [Withdraw(), Kill()]
    assert not worker.is_free
    assert worker.handle(Gone()) == [Free()]


def test_a_deadline_that_was_on_its_way_when_it_was_replaced_does_nothing():
    worker = worker_after(*BUSY)
    assert worker.handle(DeadlineReached(2, 8.0)) == []
    assert worker.state is State.BUSY


def test_a_cancel_for_another_call_does_nothing():
    worker = worker_after(*BUSY)
    assert worker.handle(Cancelled(8, 8.0)) == []
    assert worker.handle(Replied(8, 8.0)) == []


@pytest.mark.parametrize("history", [(), IDLE, BUSY, (*BUSY, Lost())])
def test_closing_ends_when_nothing_is_left_and_nothing_happens_after(history):
    worker = worker_after(*history)
    actions = worker.handle(Close())
    if worker.state is State.CLOSING:
        actions += worker.handle(Gone())
    assert actions[-1] == Finish()
    assert worker.state is State.CLOSED
    for event in (
        Close(),
        Gone(),
        Lost(),
        Started(0.0),
        Replied(7, 8.0),
        Cancelled(7, 8.0),
        DeadlineReached(1, 8.0),
    ):
        assert worker.handle(event) == []


class WorkerMachine(RuleBasedStateMachine):
    """Any interleaving of what can happen keeps C1 (one outcome each), C3 (one call at a time) and C5 (free only when
    the old work is gone)."""

    def __init__(self):
        super().__init__()
        self.worker = Lifecycle(idle_limit=60.0)
        self.process = False
        self.told_to_end = False
        self.closed = False
        self.next_id = 1
        self.may_repeat = self.call_idempotent = False
        self.call_repeats = 0
        self.open_calls = set()
        self.decided = set()
        self.now = 0.0

    def post(self, event):
        self.now += 1.0
        for action in self.worker.handle(event):
            match action:
                case Spawn():
                    assert not self.process
                    self.process, self.told_to_end = True, False
                case Send(call_id):
                    assert self.process
                    assert not self.told_to_end
                    assert self.open_calls == {call_id}
                case Decide(call_id):
                    assert call_id not in self.decided
                    self.decided.add(call_id)
                    self.open_calls.remove(call_id)
                case Return(call_id):
                    assert call_id not in self.decided
                    assert self.may_repeat
                    self.open_calls.remove(call_id)
                case Interrupt(call_id):
                    assert call_id in self.decided
                    assert not self.told_to_end
                case Kill() | Terminate():
                    self.told_to_end = True
                case Free():
                    assert not (self.process and self.told_to_end)
                case Finish():
                    assert not self.process
                    assert not self.closed
                    self.closed = True

    @precondition(lambda self: self.worker.is_free and not self.closed)
    @rule(
        phase=st.sampled_from(["compile", "check", "run"]),
        ladder=st.sampled_from([Ladder(), Ladder(interrupt=0.5), Ladder(interrupt=0.5, terminate=None)]),
        idempotent=st.booleans(),
        repeats=st.integers(0, 2),
    )
    def assign(self, phase, ladder, idempotent, repeats):
        assert not self.open_calls
        self.call_idempotent, self.call_repeats = idempotent, repeats
        call = CallInfo(
            id=self.next_id, phase=phase, limits=LIMITS, ladder=ladder, idempotent=idempotent, repeats=repeats
        )
        self.next_id += 1
        self.open_calls.add(call.id)
        self.post(Assign(call, self.now))

    @precondition(lambda self: self.process and not self.told_to_end and self.worker.state is State.STARTING)
    @rule()
    def started(self):
        self.post(Started(self.now))

    @precondition(
        lambda self: self.process and not self.told_to_end and self.worker.state is State.INITIALISING
    )
    @rule()
    def initialised(self):
        self.post(Initialised(self.now))

    @rule(back=st.integers(0, 2), keep=st.booleans())
    def replied(self, back, keep):
        self.post(Replied(self.next_id - back, self.now, keep))

    @rule(back=st.integers(0, 2), phase=st.sampled_from(["compile", "check", "run", "?"]))
    def phase(self, back, phase):
        self.post(PhaseEntered(self.next_id - back, phase, self.now))

    @rule(back=st.integers(0, 2), began=st.sampled_from([None, math.inf, 0.0]))
    def deadline(self, back, began):
        if self.worker.call is not None or back:
            self.post(DeadlineReached(self.worker._timer - back, self.now, began))

    @rule(back=st.integers(0, 2))
    def cancel(self, back):
        self.post(Cancelled(self.next_id - back, self.now))

    @precondition(lambda self: self.process)
    @rule(begun=st.booleans())
    def lost(self, begun):
        self.may_repeat = self.call_repeats > 0 and (self.call_idempotent or not begun)
        self.post(Lost(begun))

    @precondition(lambda self: self.process and self.worker.state in (State.ENDING, State.CLOSING))
    @rule()
    def gone(self):
        self.process = False
        self.post(Gone())

    @rule()
    def close(self):
        self.post(Close())

    @invariant()
    def one_call_at_most(self):
        assert len(self.open_calls) <= 1
        assert (self.worker.call is not None) == bool(self.open_calls)

    def teardown(self):
        self.post(Close())
        if self.process:
            self.process = False
            self.post(Gone())
        assert self.closed
        assert not self.open_calls


WorkerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestWorkerMachine = WorkerMachine.TestCase


def test_every_row_of_the_table_names_a_state_and_an_event():
    assert all(isinstance(state, State) for state, _ in _TABLE)
    assert {state for state, _ in _TABLE} == set(State) - {State.CLOSED}
