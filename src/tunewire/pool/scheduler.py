"""Which call runs on which worker: a pure table of what waits and what is free.

No process, no clock, no loop: events in, actions out. The pool (pool.driver) tells it what happened and does what it
says. Rules:

* Calls without a lease run in the order in which they were submitted, on any worker that is free and not leased. One
  whose process is up comes before one that would have to start a process, the most recently used first.
* A lease waits for its device: for the worker that is pinned to it, or, in a pool without devices, for any worker and
  until no other lease holds a device of the same name. Waiting leases come before waiting calls, in their order.
* Calls of a lease run in their order on its worker and on no other.
* A lease that is given back while its worker is not free (a call was cancelled, the process is on its way out) is held
  until the worker is: whoever is next must not meet the old work on the device.
"""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import msgspec


class Submitted(msgspec.Struct, frozen=True):
    """A call came, for any worker or for a lease's."""

    call: int
    lease: int | None = None


class Returned(msgspec.Struct, frozen=True):
    """A call that was given to a worker is to be given to one again, before all others."""

    call: int
    lease: int | None = None


class Withdrawn(msgspec.Struct, frozen=True):
    """A call that waits is not wanted any more."""

    call: int


class WorkerChanged(msgspec.Struct, frozen=True):
    """A worker became free, or stopped being so by itself. `warm`: its process is up."""

    worker: int
    free: bool
    warm: bool = False


class LeaseAsked(msgspec.Struct, frozen=True):
    """Somebody waits for a device."""

    lease: int
    device: str


class LeaseReturned(msgspec.Struct, frozen=True):
    """A lease, granted or still waited for, is not wanted any more."""

    lease: int


Event: TypeAlias = Submitted | Returned | Withdrawn | WorkerChanged | LeaseAsked | LeaseReturned


class Run(msgspec.Struct, frozen=True):
    """Give this call to this worker, which is free."""

    call: int
    worker: int


class Grant(msgspec.Struct, frozen=True):
    """The lease holds its device from now on."""

    lease: int
    worker: int


Action: TypeAlias = Run | Grant


class _Lease:
    __slots__ = ("calls", "device", "returned", "worker")

    def __init__(self, device: str) -> None:
        self.device = device
        self.worker: int | None = None
        self.calls: deque[int] = deque()
        self.returned = False


class Scheduler:
    """What waits and what is free.

    >>> scheduler = Scheduler([None])
    >>> scheduler.handle(Submitted(call=1))
    [Run(call=1, worker=0)]
    >>> scheduler.handle(Submitted(call=2))
    []
    >>> scheduler.handle(WorkerChanged(worker=0, free=True, warm=True))
    [Run(call=2, worker=0)]
    """

    def __init__(self, devices: list[str | None]) -> None:
        """`devices[i]` is what worker i is pinned to."""
        self._devices = devices
        self._pinned = any(device is not None for device in devices)
        self._queue: dict[int, None] = {}
        self._warm: dict[int, None] = {}
        self._cold: dict[int, None] = dict.fromkeys(range(len(devices)))
        self._leases: dict[int, _Lease] = {}
        self._asked: dict[int, None] = {}
        self._leased: dict[int, int] = {}
        self._lease_of_call: dict[int, int] = {}

    def waiting(self, lease: int | None = None) -> int:
        """Calls that wait for any worker, or for a lease's."""
        if lease is None:
            return len(self._queue)
        return len(self._leases[lease].calls) if lease in self._leases else 0

    def is_waiting(self, call: int) -> bool:
        """Whether this call has not been given to a worker yet."""
        return call in self._queue or call in self._lease_of_call

    def waiting_calls(self) -> list[int]:
        """All calls that wait, those of leases included."""
        return [*self._queue, *self._lease_of_call]

    def handle(self, event: Event) -> list[Action]:
        """What to do about `event`, in this order."""
        match event:
            case Submitted(call, None):
                self._queue[call] = None
            case Submitted(call, lease):
                assert lease is not None
                self._leases[lease].calls.append(call)
                self._lease_of_call[call] = lease
            case Returned(call, lease):
                self._take_back(call, lease)
            case Withdrawn(call):
                self._withdraw(call)
            case WorkerChanged(worker, free, warm):
                self._note(worker, free=free, warm=warm)
            case LeaseAsked(lease, device):
                self._leases[lease] = _Lease(device)
                self._asked[lease] = None
            case _:
                self._return(event.lease)
        return self._match()

    def _take_back(self, call: int, lease: int | None) -> None:
        if lease is None:
            self._queue = {call: None, **self._queue}
        elif lease in self._leases:
            self._leases[lease].calls.appendleft(call)
            self._lease_of_call[call] = lease

    def _withdraw(self, call: int) -> None:
        self._queue.pop(call, None)
        lease = self._lease_of_call.pop(call, None)
        if lease is not None:
            self._leases[lease].calls.remove(call)

    def _note(self, worker: int, *, free: bool, warm: bool) -> None:
        self._warm.pop(worker, None)
        self._cold.pop(worker, None)
        if not free:
            return
        (self._warm if warm else self._cold)[worker] = None
        lease = self._leased.get(worker)
        if lease is not None and self._leases[lease].returned:
            self._drop(lease)

    def _return(self, lease: int) -> None:
        held = self._leases[lease]
        for call in held.calls:
            del self._lease_of_call[call]
        held.calls.clear()
        held.returned = True
        if held.worker is None or self._is_free(held.worker):
            self._drop(lease)

    def _drop(self, lease: int) -> None:
        held = self._leases.pop(lease)
        self._asked.pop(lease, None)
        if held.worker is not None:
            del self._leased[held.worker]

    def _is_free(self, worker: int) -> bool:
        return worker in self._warm or worker in self._cold

    def _take(self, worker: int) -> int:
        self._warm.pop(worker, None)
        self._cold.pop(worker, None)
        return worker

    def _match(self) -> list[Action]:
        actions: list[Action] = []
        if self._leases:
            self._match_leases(actions)
        while self._queue and (worker := self._best_unleased()) is not None:
            call = next(iter(self._queue))
            del self._queue[call]
            actions.append(Run(call, self._take(worker)))
        return actions

    def _match_leases(self, actions: list[Action]) -> None:
        for lease in list(self._asked):
            worker = self._grantable(self._leases[lease].device)
            if worker is not None:
                del self._asked[lease]
                self._leases[lease].worker = worker
                self._leased[worker] = lease
                actions.append(Grant(lease, worker))
        for worker, lease in self._leased.items():
            calls = self._leases[lease].calls
            if calls and self._is_free(worker):
                call = calls.popleft()
                del self._lease_of_call[call]
                actions.append(Run(call, self._take(worker)))

    def _best_unleased(self) -> int | None:
        for free in (self._warm, self._cold):
            for worker in reversed(free):
                if worker not in self._leased:
                    return worker
        return None

    def _grantable(self, device: str) -> int | None:
        if self._pinned:
            for worker, pinned in enumerate(self._devices):
                if pinned == device and worker not in self._leased and self._is_free(worker):
                    return worker
            return None
        if any(self._leases[lease].device == device for lease in self._leased.values()):
            return None
        return self._best_unleased()
