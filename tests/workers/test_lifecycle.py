"""The life of a worker as a table: each race is a sequence of rows, and random sequences keep the rules."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

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
    Kill,
    Lifecycle,
    Lost,
    PhaseEntered,
    Replied,
    Send,
    Spawn,
    Started,
    State,
    Verdict,
    Withdraw,
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
IDLE = (*BUSY, Replied(7))


def test_a_call_on_a_new_worker_passes_every_stage_with_its_own_limit():
    worker = Lifecycle()
    assert worker.handle(Assign(CALL, now=0.0)) == [Spawn(), Arm(1, 1.0)]
    assert worker.handle(Started(now=0.5)) == [Arm(2, 2.5), Initialise()]
    assert worker.handle(Initialised(now=0.7)) == [Send(7), Arm(3, 5.7)]
    assert worker.handle(Replied(7)) == [Arm(4, None), Decide(7, Verdict.REPLY, "run"), Free()]
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
    ("history", "phase", "limit"), [(STARTING, "start", 1.0), (INITIALISING, "init", 2.0), (BUSY, "run", 5.0)]
)
def test_a_deadline_ends_the_process_and_names_phase_and_limit(history, phase, limit):
    worker = worker_after(*history)
    decided = worker.handle(DeadlineReached(worker._timer))
    assert decided[1:] == [Decide(7, Verdict.TIMEOUT, phase, limit), Kill()]
    assert worker.state is State.ENDING


@pytest.mark.parametrize("history", [STARTING, INITIALISING, BUSY])
@pytest.mark.parametrize(
    ("event", "verdict"),
    [(Cancelled(7), Verdict.CANCELLED), (Lost(), Verdict.LOST), (Close(), Verdict.CLOSED)],
)
def test_cancel_loss_and_close_decide_the_call_at_every_stage(history, event, verdict):
    worker = worker_after(*history)
    actions = worker.handle(event)
    assert [action.verdict for action in actions if isinstance(action, Decide)] == [verdict]
    assert actions[-1] == Kill()


FIRST = [Replied(7), Cancelled(7), Lost(), Close(), DeadlineReached(3)]


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("second", FIRST)
def test_the_first_of_two_decides_and_the_second_finds_no_call(first, second):
    worker = worker_after(*BUSY)
    decisions = [
        action for event in (first, second) for action in worker.handle(event) if isinstance(action, Decide)
    ]
    assert len(decisions) == 1


def test_a_worker_is_free_again_only_when_the_old_work_is_gone():
    worker = worker_after(*BUSY, Cancelled(7))
    assert not worker.is_free
    assert worker.handle(Replied(7)) == []
    assert worker.handle(Gone()) == [Free()]
    assert worker.is_free


def test_a_reply_that_gives_the_process_up_ends_it_before_the_worker_is_free():
    worker = worker_after(*BUSY)
    assert worker.handle(Replied(7, keep=False))[1:] == [Decide(7, Verdict.REPLY, "run"), Kill()]
    assert worker.handle(Gone()) == [Free()]


def test_an_idle_process_that_is_lost_withdraws_the_worker_until_it_is_gone():
    worker = worker_after(*IDLE)
    assert worker.handle(Lost()) == [Withdraw(), Kill()]
    assert not worker.is_free
    assert worker.handle(Gone()) == [Free()]


def test_a_deadline_that_was_on_its_way_when_it_was_replaced_does_nothing():
    worker = worker_after(*BUSY)
    assert worker.handle(DeadlineReached(2)) == []
    assert worker.state is State.BUSY


def test_a_cancel_for_another_call_does_nothing():
    worker = worker_after(*BUSY)
    assert worker.handle(Cancelled(8)) == []
    assert worker.handle(Replied(8)) == []


@pytest.mark.parametrize("history", [(), IDLE, BUSY, (*BUSY, Lost())])
def test_closing_ends_when_nothing_is_left_and_nothing_happens_after(history):
    worker = worker_after(*history)
    actions = worker.handle(Close())
    if worker.state is State.CLOSING:
        actions += worker.handle(Gone())
    assert actions[-1] == Finish()
    assert worker.state is State.CLOSED
    for event in (Close(), Gone(), Lost(), Started(0.0), Replied(7), Cancelled(7), DeadlineReached(1)):
        assert worker.handle(event) == []


class WorkerMachine(RuleBasedStateMachine):
    """Any interleaving of what can happen keeps C1 (one outcome each), C3 (one call at a time) and C5 (free only when
    the old work is gone)."""

    def __init__(self):
        super().__init__()
        self.worker = Lifecycle()
        self.process = False
        self.told_to_end = False
        self.closed = False
        self.next_id = 1
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
                case Kill():
                    self.told_to_end = True
                case Free():
                    assert not (self.process and self.told_to_end)
                case Finish():
                    assert not self.process
                    assert not self.closed
                    self.closed = True

    @precondition(lambda self: self.worker.is_free and not self.closed)
    @rule(phase=st.sampled_from(["compile", "check", "run"]))
    def assign(self, phase):
        assert not self.open_calls
        call = CallInfo(id=self.next_id, phase=phase, limits=LIMITS)
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
        self.post(Replied(self.next_id - back, keep))

    @rule(back=st.integers(0, 2), phase=st.sampled_from(["compile", "check", "run", "?"]))
    def phase(self, back, phase):
        self.post(PhaseEntered(self.next_id - back, phase, self.now))

    @rule(back=st.integers(0, 2))
    def deadline(self, back):
        if self.worker.call is not None or back:
            self.post(DeadlineReached(self.worker._timer - back))

    @rule(back=st.integers(0, 2))
    def cancel(self, back):
        self.post(Cancelled(self.next_id - back))

    @precondition(lambda self: self.process)
    @rule()
    def lost(self):
        self.post(Lost())

    @precondition(lambda self: self.process and self.told_to_end)
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


WorkerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestWorkerMachine = WorkerMachine.TestCase


def test_every_row_of_the_table_names_a_state_and_an_event():
    assert all(isinstance(state, State) for state, _ in _TABLE)
    assert {state for state, _ in _TABLE} == set(State) - {State.CLOSED}
