"""Which call runs where, as a table."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tunewire.pool.scheduler import (
    Grant,
    LeaseAsked,
    LeaseReturned,
    Returned,
    Run,
    Scheduler,
    Submitted,
    Withdrawn,
    WorkerChanged,
)


def test_calls_run_in_their_order_one_at_a_time_on_each_worker():
    scheduler = Scheduler([None, None])
    runs = [scheduler.handle(Submitted(call)) for call in (1, 2, 3, 4)]
    assert [len(run) for run in runs] == [1, 1, 0, 0]
    assert {run[0].worker for run in runs[:2]} == {0, 1}
    assert scheduler.handle(WorkerChanged(1, free=True, warm=True)) == [Run(3, 1)]
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Run(4, 0)]


def test_a_worker_with_a_process_comes_before_one_without():
    scheduler = Scheduler([None, None, None])
    scheduler.handle(WorkerChanged(1, free=True, warm=True))
    assert scheduler.handle(Submitted(1)) == [Run(1, 1)]


def test_a_withdrawn_call_does_not_run():
    scheduler = Scheduler([None])
    scheduler.handle(Submitted(1))
    scheduler.handle(Submitted(2))
    scheduler.handle(Submitted(3))
    assert scheduler.handle(Withdrawn(2)) == []
    assert scheduler.handle(WorkerChanged(0, free=True, warm=True)) == [Run(3, 0)]


def test_a_worker_that_stops_being_free_gets_no_call():
    scheduler = Scheduler([None])
    scheduler.handle(WorkerChanged(0, free=False))
    assert scheduler.handle(Submitted(1)) == []
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Run(1, 0)]


def test_a_lease_waits_for_its_device_and_comes_before_waiting_calls():
    scheduler = Scheduler(["cuda:0", "cuda:1"])
    scheduler.handle(Submitted(1))
    scheduler.handle(Submitted(2))
    scheduler.handle(Submitted(3))
    assert scheduler.handle(LeaseAsked(9, "cuda:0")) == []
    assert scheduler.handle(WorkerChanged(1, free=True)) == [Run(3, 1)]
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Grant(9, 0)]


def test_a_leased_worker_serves_its_lease_alone():
    scheduler = Scheduler([None])
    assert scheduler.handle(LeaseAsked(9, "cpu")) == [Grant(9, 0)]
    assert scheduler.handle(Submitted(1)) == []
    assert scheduler.handle(Submitted(2, lease=9)) == [Run(2, 0)]
    assert scheduler.handle(WorkerChanged(0, free=True, warm=True)) == []
    assert scheduler.handle(LeaseReturned(9)) == [Run(1, 0)]


def test_in_a_pool_without_devices_a_name_is_leased_once_at_a_time():
    scheduler = Scheduler([None, None])
    assert len(scheduler.handle(LeaseAsked(8, "cpu"))) == 1
    assert scheduler.handle(LeaseAsked(9, "cpu")) == []
    assert len(scheduler.handle(LeaseAsked(10, "opencl:0"))) == 1
    assert [action.lease for action in scheduler.handle(LeaseReturned(8))] == [9]


def test_a_returned_lease_is_held_until_its_worker_is_free():
    scheduler = Scheduler(["cuda:0"])
    scheduler.handle(LeaseAsked(8, "cuda:0"))
    scheduler.handle(Submitted(1, lease=8))
    scheduler.handle(LeaseAsked(9, "cuda:0"))
    assert scheduler.handle(LeaseReturned(8)) == []
    assert scheduler.handle(WorkerChanged(0, free=False)) == []
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Grant(9, 0)]


def test_a_lease_that_is_given_up_while_it_waits_is_not_granted():
    scheduler = Scheduler([None])
    scheduler.handle(LeaseAsked(8, "cpu"))
    scheduler.handle(LeaseAsked(9, "cpu"))
    scheduler.handle(LeaseReturned(9))
    assert scheduler.handle(LeaseReturned(8)) == []
    assert scheduler.handle(Submitted(1)) == [Run(1, 0)]


class SchedulerMachine(RuleBasedStateMachine):
    """In any interleaving: no worker has two calls, a leased one serves its lease alone, a device has one lease, and
    nothing that can run waits."""

    def __init__(self):
        super().__init__()
        self.devices = ["a", "b", "b"]
        self.scheduler = Scheduler(self.devices)
        self.ids = iter(range(1, 10_000))
        self.running = {}
        self.unavailable = set()
        self.waiting = {}
        self.granted = {}
        self.asked = {}
        self.returned = {}

    def post(self, event):
        for action in self.scheduler.handle(event):
            if isinstance(action, Run):
                assert action.worker not in self.running
                assert action.worker not in self.unavailable
                lease = self.waiting.pop(action.call)
                holder = {**self.granted, **self.returned}
                assert [key for key, worker in holder.items() if worker == action.worker] == (
                    [] if lease is None else [lease]
                )
                self.running[action.worker] = action.call
            else:
                assert isinstance(action, Grant)
                assert action.worker not in self.granted.values()
                assert action.worker not in self.returned.values()
                assert self.devices[action.worker] == self.asked.pop(action.lease)
                self.granted[action.lease] = action.worker

    @rule()
    def submit(self):
        call = next(self.ids)
        self.waiting[call] = None
        self.post(Submitted(call))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def submit_to_lease(self, data):
        call, lease = next(self.ids), data.draw(st.sampled_from(sorted(self.granted)))
        self.waiting[call] = lease
        self.post(Submitted(call, lease))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data):
        call = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[call]
        self.post(Withdrawn(call))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), warm=st.booleans())
    def finish(self, data, warm):
        worker = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[worker]
        self.returned = {lease: held for lease, held in self.returned.items() if held != worker}
        self.post(WorkerChanged(worker, free=True, warm=warm))

    @rule(worker=st.integers(0, 2))
    def lose(self, worker):
        if worker not in self.running:
            self.unavailable.add(worker)
            self.post(WorkerChanged(worker, free=False))

    @precondition(lambda self: self.unavailable)
    @rule(data=st.data())
    def recover(self, data):
        worker = data.draw(st.sampled_from(sorted(self.unavailable)))
        self.unavailable.discard(worker)
        self.returned = {lease: held for lease, held in self.returned.items() if held != worker}
        self.post(WorkerChanged(worker, free=True))

    @rule(device=st.sampled_from(["a", "b"]))
    def ask(self, device):
        lease = next(self.ids)
        self.asked[lease] = device
        self.post(LeaseAsked(lease, device))

    @precondition(lambda self: self.asked or self.granted)
    @rule(data=st.data())
    def give_back(self, data):
        lease = data.draw(st.sampled_from(sorted({*self.asked, *self.granted})))
        self.asked.pop(lease, None)
        worker = self.granted.pop(lease, None)
        self.waiting = {call: owner for call, owner in self.waiting.items() if owner != lease}
        if worker in self.running or worker in self.unavailable:
            self.returned[lease] = worker
        self.post(LeaseReturned(lease))

    @invariant()
    def nothing_waits_that_could_run(self):
        held = {*self.granted.values(), *self.returned.values()}
        free = {0, 1, 2} - set(self.running) - self.unavailable
        assert not (free - held and None in self.waiting.values())
        assert not any(self.granted.get(lease) in free for lease in self.waiting.values() if lease)
        assert not any(self.devices[worker] in self.asked.values() for worker in free - held)
        assert sorted(self.scheduler.waiting_calls()) == sorted(self.waiting)


SchedulerMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40)
TestSchedulerMachine = SchedulerMachine.TestCase


def test_a_call_that_is_sent_again_comes_before_all_that_wait():
    scheduler = Scheduler([None])
    assert scheduler.handle(Submitted(1)) == [Run(1, 0)]
    scheduler.handle(Submitted(2))
    assert scheduler.handle(Returned(1)) == []
    assert scheduler.waiting_calls() == [1, 2]
    assert scheduler.waiting() == 2
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Run(1, 0)]


def test_a_call_of_a_lease_that_is_sent_again_comes_before_the_leases_others():
    scheduler = Scheduler([None])
    scheduler.handle(LeaseAsked(9, "cpu"))
    assert scheduler.handle(Submitted(1, lease=9)) == [Run(1, 0)]
    scheduler.handle(Submitted(2, lease=9))
    scheduler.handle(Returned(1, lease=9))
    assert scheduler.waiting(9) == 2
    assert scheduler.handle(WorkerChanged(0, free=True)) == [Run(1, 0)]
    assert scheduler.waiting(9) == 1
    assert scheduler.is_waiting(2)
    assert not scheduler.is_waiting(1)


def test_a_call_of_a_lease_that_has_ended_is_not_sent_again():
    scheduler = Scheduler([None])
    scheduler.handle(LeaseAsked(9, "cpu"))
    scheduler.handle(Submitted(1, lease=9))
    scheduler.handle(Submitted(2, lease=9))
    scheduler.handle(LeaseReturned(9))
    scheduler.handle(WorkerChanged(0, free=True))
    assert scheduler.handle(Returned(1, lease=9)) == []
    assert scheduler.waiting(9) == 0
    assert scheduler.waiting_calls() == []


def test_a_withdrawn_call_of_a_lease_does_not_run():
    scheduler = Scheduler([None])
    scheduler.handle(LeaseAsked(9, "cpu"))
    scheduler.handle(Submitted(1, lease=9))
    scheduler.handle(Submitted(2, lease=9))
    scheduler.handle(Withdrawn(2))
    assert scheduler.handle(WorkerChanged(0, free=True)) == []
