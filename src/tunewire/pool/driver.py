"""The pool: it hosts workers, and does what the scheduler says.

One task, the host, owns everything that runs: the task group in which the processes' lives run is inside it and
nowhere else. So a pool can be opened in one task and closed in another, used from any, and a caller that is cancelled
only says so: nothing of the pool's runs in the caller's task, and nothing there needs a shield.

Where a caller waits, and what is half done when it is cancelled there:
    for a place in the queue   nothing
    for the outcome            the call is withdrawn if it waits, and its process ended if it runs
    for a lease                the request is withdrawn, or the lease given back if it was granted just now
    in aclose                  the host goes on closing
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import anyio
import anyio.abc
import msgspec

from tunewire.errors import (
    CallCancelled,
    CallTimeout,
    EncodeError,
    NoSuchDevice,
    PoolClosed,
    PoolSaturated,
)
from tunewire.pool.caller import BaseCaller, CallOptions
from tunewire.pool.results import MapOutcomes, MapResults
from tunewire.pool.scheduler import (
    Event,
    Grant,
    LeaseAsked,
    LeaseReturned,
    Run,
    Scheduler,
    Submitted,
    Withdrawn,
    WorkerChanged,
)
from tunewire.pool.statistics import PoolStatistics, WorkerStatistics
from tunewire.wire.codecs import Codec
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.workers.call import Function, PendingCall, Request
from tunewire.workers.driver import WorkerDriver, WorkerSpec
from tunewire.workers.lifecycle import State
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome, OutcomeKind

T = TypeVar("T")

log = logging.getLogger("tunewire")

#: Closing waits this long for processes that were killed. Normally it takes milliseconds.
_CLOSE_BOUND = 5.0
#: Of a map: calls under way for each worker, so that none waits for the reader.
_WINDOW_PER_WORKER = 4


class Pool(BaseCaller):
    """Worker processes, a bounded queue, and the rules that match calls to workers.

    `size` workers serve calls; a process is started when a call first needs one. With `devices` there is one worker
    for each of these device ids instead, whose processes see that device only: `"auto"` takes every GPU, or else every
    OpenCL device, or else the CPU.

    `initializer(*initargs)` runs in each process before its first call; if it raises, the call that waited gets the
    error and the process is ended. `env` is laid over this process's environment (None removes a variable).
    `results` is how results come back: "pickle", or "msgspec", with which nothing that a child sends is ever unpickled.
    `limits` are the defaults of every call. At most `max_pending` calls wait; a further one waits for a place, or is
    refused with PoolSaturated when `when_full="raise"`.

    Use it as an async context manager, or with `open` and `aclose`, which may be called from different tasks of one
    event loop; from another loop it is a RuntimeError. Leaving the block kills what runs; what waits gets PoolClosed.

    >>> import asyncio
    >>> async def main():
    ...     async with Pool(2) as pool:
    ...         return await asyncio.gather(pool.call(len, "abc"), pool.call(lambda x: x + 1, 41))
    >>> asyncio.run(main())
    [3, 42]
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        devices: Literal["auto"] | Sequence[str] | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        env: Mapping[str, str | None] | None = None,
        results: Literal["pickle", "msgspec"] = "pickle",
        limits: Limits | None = None,
        max_pending: int = 10_000,
        when_full: Literal["wait", "raise"] = "wait",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> None:
        if (size is None) == (devices is None):
            raise TypeError("a pool is made with a number of workers or with devices=, one of the two")
        if size is not None and size < 1:
            raise ValueError(f"a pool has at least one worker, not {size}")
        if devices is not None and devices != "auto" and not devices:
            raise ValueError("devices is 'auto' or at least one device id")
        if isinstance(devices, str) and devices != "auto":
            raise TypeError(f"devices is 'auto' or a sequence of device ids; did you mean [{devices!r}]?")
        if when_full not in ("wait", "raise"):
            raise ValueError(f"when_full is 'wait' or 'raise', not {when_full!r}")
        if max_pending < 1:
            raise ValueError(f"max_pending is at least 1, not {max_pending}")
        self._size = size
        self._wanted_devices = devices
        self._initializer = initializer
        self._initargs = tuple(initargs)
        self._env = dict(env or {})
        self._results = Codec.named(results)
        self._limits = limits or Limits()
        self._max_pending = max_pending
        self._refuse_when_full = when_full == "raise"
        self._max_frame_bytes = max_frame_bytes

        self._loop: asyncio.AbstractEventLoop | None = None
        self._host_task: asyncio.Task[None] | None = None
        self._task_group: anyio.abc.TaskGroup | None = None
        self._close_asked: asyncio.Event | None = None
        self._closed_because: str | None = None
        self._failure: BaseException | None = None

        self._devices: tuple[str, ...] = ()
        self._workers: list[WorkerDriver] = []
        self._scheduler = Scheduler([])
        self._ids = itertools.count(1)
        self._calls: dict[int, PendingCall] = {}
        self._running: dict[int, WorkerDriver] = {}
        self._queue_timers: dict[int, asyncio.TimerHandle] = {}
        self._grants: dict[int, asyncio.Future[WorkerDriver]] = {}
        self._admissions: deque[asyncio.Future[None]] = deque()
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._outcomes: Counter[str] = Counter()

    # Opening and closing.

    async def open(self) -> Self:
        """Make the pool ready; the same as entering its block. RuntimeError if it was opened before.

        Raises NoSuchDevice for a device that is not to be had. Cancelling leaves it closed.
        """
        if self._loop is not None:
            raise RuntimeError("a pool is opened once; make a new one")
        self._loop = asyncio.get_running_loop()
        self._close_asked = asyncio.Event()
        try:
            specs = await self._specs()
        except BaseException:
            self._closed_because = "it could not be opened"
            raise
        self._workers = [
            WorkerDriver(index, spec, start=self._start, on_change=self._on_worker_change)
            for index, spec in enumerate(specs)
        ]
        self._scheduler = Scheduler([spec.device for spec in specs])
        ready = self._loop.create_future()
        self._host_task = asyncio.create_task(self._host(ready), name="tunewire pool")
        try:
            await asyncio.shield(ready)
        except asyncio.CancelledError:
            self._begin_closing("it was cancelled while it opened")
            raise
        return self

    async def _specs(self) -> list[WorkerSpec]:
        initializer = None
        if self._initializer is not None:
            initializer = Request(Function(self._initializer), self._initargs, None)
        if self._size is not None:
            return [self._spec(None, {}, initializer) for _ in range(self._size)]
        from tunewire.devices import discover, environment_for  # only who pins devices pays for it

        if self._wanted_devices == "auto":
            discovery = await discover()
            self._devices = best_devices(tuple(device.id for device in discovery.devices))
        else:
            assert self._wanted_devices is not None
            self._devices = tuple(self._wanted_devices)
        return [self._spec(device, environment_for(device), initializer) for device in self._devices]

    def _spec(
        self, device: str | None, mask: Mapping[str, str | None], initializer: Request | None
    ) -> WorkerSpec:
        return WorkerSpec(
            device=device,
            env={**mask, **self._env},
            initializer=initializer,
            results=self._results,
            max_frame_bytes=self._max_frame_bytes,
        )

    async def _host(self, ready: asyncio.Future[None]) -> None:
        assert self._close_asked is not None
        try:
            async with anyio.create_task_group() as self._task_group:
                ready.set_result(None)
                await self._close_asked.wait()
                for worker in self._workers:
                    worker.close()
                for worker in self._workers:
                    await worker.finished()
        except Exception as error:
            log.exception("a pool failed")
            self._failure = error
            self._begin_closing("it failed; see the cause")
        finally:
            self._begin_closing("its event loop ended")
            for call in list(self._calls.values()):
                call.decide(self._closed_outcome())

    def _start(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert self._task_group is not None
        self._task_group.start_soon(life)

    def _begin_closing(self, reason: str) -> None:
        """No call begins from here on; what waits is told so."""
        if self._closed_because is not None:
            return
        self._closed_because = reason
        assert self._close_asked is not None
        self._close_asked.set()
        for call_id in self._scheduler.waiting_calls():
            self._handle(Withdrawn(call_id))
            self._calls[call_id].decide(self._closed_outcome())
        for grant in self._grants.values():
            if not grant.done():
                grant.set_exception(self._closed_error())
        for admission in self._admissions:
            if not admission.done():
                admission.set_exception(self._closed_error())
        self._changed()

    def _closed_error(self) -> PoolClosed:
        error = PoolClosed(reason=self._closed_because or "it is not open")
        error.__cause__ = self._failure
        return error

    def _closed_outcome(self) -> Outcome[Any]:
        return Outcome(kind=OutcomeKind.REJECTED, error=self._closed_error())

    async def aclose(self) -> None:
        """Close: what runs is killed, what waits gets PoolClosed. When it returns, no process is left.

        It returns in bounded time even if a process cannot be reaped, which is then logged as an error. Cancelling
        does not stop the closing. Closing twice is closing once.
        """
        if self._host_task is None:
            self._closed_because = self._closed_because or "it was closed"
            return
        self._check_loop()
        self._begin_closing("it was closed")
        # `wait` neither cancels the host when this task is cancelled, nor raises what the host raised.
        _, left = await asyncio.wait([self._host_task], timeout=_CLOSE_BOUND)
        if left:
            log.error("a pool did not close within %g s: %s", _CLOSE_BOUND, self.statistics())
            self._host_task.cancel()
            await asyncio.wait([self._host_task], timeout=_CLOSE_BOUND)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _check_loop(self) -> None:
        if self._loop is not asyncio.get_running_loop():
            if self._loop is None:
                raise self._closed_error()
            raise RuntimeError("a pool belongs to the event loop that it was opened in")

    def _check_open(self) -> None:
        self._check_loop()
        if self._closed_because is not None:
            raise self._closed_error()

    # Calls.

    async def _run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Outcome[Any]:
        self._check_open()
        await self._admit()
        return await self._outcome_of(
            self._submit(Request(Function(function), args, kwargs, options.name), options)
        )

    async def _admit(self) -> None:
        """Until the queue has a place."""
        while self._scheduler.waiting >= self._max_pending:
            if self._refuse_when_full:
                raise PoolSaturated(max_pending=self._max_pending)
            assert self._loop is not None
            admission = self._loop.create_future()
            self._admissions.append(admission)
            try:
                await admission
            finally:
                self._admissions.remove(admission)

    def _submit(self, request: Request, options: CallOptions, lease: int | None = None) -> PendingCall:
        assert self._loop is not None
        self._check_size(request)
        limits = options.limits or self._limits
        if options.timeout is not None:
            limits = msgspec.structs.replace(limits, run=options.timeout)
        call = PendingCall(
            next(self._ids),
            request,
            phase=options.phase,
            limits=limits,
            results=self._results,
            result_type=options.result_type,
            future=self._loop.create_future(),
            decided=self._on_decided,
        )
        self._calls[call.id] = call
        self._handle(Submitted(call.id, lease))
        if limits.queue is not None and self._scheduler.is_waiting(call.id):
            self._queue_timers[call.id] = self._loop.call_later(limits.queue, self._on_queue_limit, call)
        return call

    def _check_size(self, request: Request) -> None:
        size = sum(memoryview(buffer).nbytes for buffer in request.buffers)
        if size > self._max_frame_bytes:
            raise EncodeError(
                what=f"arguments of {request.name}",
                reason=f"they are {size} bytes long, and the pool's limit is {self._max_frame_bytes}",
            )

    async def _outcome_of(self, call: PendingCall) -> Outcome[Any]:
        try:
            return await call.future
        except asyncio.CancelledError:
            self._cancel(call)
            raise

    def _cancel(self, call: PendingCall) -> None:
        if self._scheduler.is_waiting(call.id):
            self._handle(Withdrawn(call.id))
            error = CallCancelled(callable_name=call.request.name)
            call.decide(Outcome(kind=OutcomeKind.CANCELLED, error=error))
        elif call.id in self._running:
            self._running[call.id].cancel(call.id)

    def _on_queue_limit(self, call: PendingCall) -> None:
        if self._scheduler.is_waiting(call.id):
            self._handle(Withdrawn(call.id))
            limit = call.info.limits.queue
            assert limit is not None
            error = CallTimeout(phase="queue", limit=limit, callable_name=call.request.name)
            call.decide(Outcome(kind=OutcomeKind.TIMEOUT, error=error))

    def _on_decided(self, call: PendingCall, outcome: Outcome[Any]) -> None:
        del self._calls[call.id]
        self._running.pop(call.id, None)
        timer = self._queue_timers.pop(call.id, None)
        if timer is not None:
            timer.cancel()
        self._outcomes[outcome.kind] += 1
        self._changed()

    def _on_worker_change(self, worker: WorkerDriver) -> None:
        if worker.state is not State.CLOSED:
            warm = worker.state is State.IDLE
            self._handle(WorkerChanged(worker.index, worker.is_free, warm))
        self._changed()

    def _handle(self, event: Event) -> None:
        for action in self._scheduler.handle(event):
            match action:
                case Run(call_id, index):
                    worker = self._workers[index]
                    self._running[call_id] = worker
                    timer = self._queue_timers.pop(call_id, None)
                    if timer is not None:
                        timer.cancel()
                    worker.assign(self._calls[call_id])
                case Grant(lease, index):
                    grant = self._grants[lease]
                    if not grant.done():  # whoever waited was cancelled just now, and will return it
                        grant.set_result(self._workers[index])
        self._let_in()

    def _let_in(self) -> None:
        places = self._max_pending - self._scheduler.waiting
        for admission in itertools.islice(self._admissions, max(places, 0)):
            if not admission.done():
                admission.set_result(None)

    # Maps.

    def map(
        self,
        function: Callable[[Any], T],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        timeout: float | None = None,
        limits: Limits | None = None,
        ordered: bool = True,
    ) -> MapResults[T]:
        """The results of `function(item)` for every item, as an async iterator and context manager.

        `items` may be asynchronous or endless: they are taken as results are read, a bounded window ahead. Results
        come in the items' order, or, with `ordered=False`, as they are ready. `timeout` and `limits` are each call's
        own. The first call that fails raises its error and ends the iteration. Leaving the block cancels what is under
        way.

        >>> import asyncio
        >>> async def main():
        ...     async with Pool(2) as pool, pool.map(abs, [-1, -2, -3]) as results:
        ...         return [value async for value in results]
        >>> asyncio.run(main())
        [1, 2, 3]
        """
        submit = self._map_submitter(function, CallOptions(timeout, limits, Any, "run", None))
        return MapResults(items, submit, self._cancel, window=self._window, ordered=ordered)

    def map_outcomes(
        self,
        function: Callable[[Any], T],
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        timeout: float | None = None,
        limits: Limits | None = None,
        ordered: bool = True,
    ) -> MapOutcomes[T]:
        """Like `map`, with failures as values: one outcome for every item, and an item that fails costs itself alone.

        >>> import asyncio
        >>> async def main():
        ...     async with Pool(2) as pool, pool.map_outcomes(int, ["7", "x"]) as outcomes:
        ...         return [outcome.kind.value async for outcome in outcomes]
        >>> asyncio.run(main())
        ['completed', 'error']
        """
        submit = self._map_submitter(function, CallOptions(timeout, limits, Any, "run", None))
        return MapOutcomes(items, submit, self._cancel, window=self._window, ordered=ordered)

    @property
    def _window(self) -> int:
        return _WINDOW_PER_WORKER * len(self._workers)

    def _map_submitter(
        self, function: Callable[..., Any], options: CallOptions
    ) -> Callable[[Any], tuple[asyncio.Future[Outcome[Any]], PendingCall | None]]:
        self._check_open()
        encoded = Function(function)

        def submit(item: Any) -> tuple[asyncio.Future[Outcome[Any]], PendingCall | None]:
            self._check_open()
            try:
                call = self._submit(Request(encoded, (item,), None), options)
            except EncodeError as error:
                assert self._loop is not None
                failed: asyncio.Future[Outcome[Any]] = self._loop.create_future()
                failed.set_result(Outcome(kind=OutcomeKind.ERROR, error=error))
                return failed, None
            return call.future, call

        return submit

    # Leases.

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that its workers are pinned to, in order; empty for a pool of a given size."""
        return self._devices

    @asynccontextmanager
    async def lease(self, device: str) -> AsyncIterator[LeasedWorker]:
        """The exclusive right to `device` until the block ends: a worker on it that serves no one else.

        In a pool with devices it must be one of them (NoSuchDevice); in another, any worker serves, and no other lease
        of the same device name is granted meanwhile. Leaving the block cancels what still runs there, and the device is
        free again when that work is gone. Cancelling while waiting gives the request up.

        >>> import asyncio
        >>> async def main():
        ...     async with Pool(1) as pool, pool.lease("cpu") as worker:
        ...         return await worker.call(sum, [1, 2, 3])
        >>> asyncio.run(main())
        6
        """
        self._check_open()
        if self._devices and device not in self._devices:
            raise NoSuchDevice(
                device=device, available=self._devices, reason="the pool was not opened with it"
            )
        assert self._loop is not None
        lease = next(self._ids)
        grant: asyncio.Future[WorkerDriver] = self._loop.create_future()
        self._grants[lease] = grant
        self._handle(LeaseAsked(lease, device))
        try:
            worker = LeasedWorker(self, lease, device, await grant)
            try:
                yield worker
            finally:
                worker._end()
        finally:
            del self._grants[lease]
            self._handle(LeaseReturned(lease))

    # What goes on.

    def statistics(self) -> PoolStatistics:
        """What every worker does at this moment, and how many calls ended in which kind of outcome.

        >>> Pool(2).statistics().waiting
        0
        """
        return PoolStatistics(
            workers=tuple(
                WorkerStatistics(
                    index=worker.index,
                    device=worker.spec.device,
                    state=worker.state.name.lower(),
                    pid=worker.pid,
                    processes=worker.processes,
                    callable_name=None if worker.call is None else worker.call.request.name,
                )
                for worker in self._workers
            ),
            waiting=len(self._calls) - len(self._running),
            running=len(self._running),
            outcomes=dict(self._outcomes),
        )

    async def drain(self) -> None:
        """Wait until no call waits or runs. New calls are still taken, and waited for."""
        self._check_loop()
        await self._until(lambda: not self._calls)

    async def settled(self) -> None:
        """Wait until work that was given up (by a timeout, a cancel, a crash) is really gone.

        A cancelled await returns at once, before its process has ended; after this, it has.
        """
        self._check_loop()
        await self._until(lambda: all(worker.state is not State.ENDING for worker in self._workers))

    async def _end_processes(self) -> None:
        """Kill every process there is now; until they are gone."""
        before = {worker: worker.processes for worker in self._workers}
        for worker in self._workers:
            worker.kill()
        await self._until(lambda: all(w.is_empty or w.processes > n for w, n in before.items()))

    async def _until_empty(self) -> None:
        """Until no worker has a process."""
        await self._until(lambda: all(worker.is_empty for worker in self._workers))

    async def _until(self, condition: Callable[[], bool]) -> None:
        assert self._loop is not None
        while not condition():
            changed: asyncio.Future[None] = self._loop.create_future()
            watcher = (condition, changed)
            self._watchers.append(watcher)
            try:
                await changed
            finally:
                self._watchers.remove(watcher)

    def _changed(self) -> None:
        for condition, changed in self._watchers:
            if not changed.done() and condition():
                changed.set_result(None)


class LeasedWorker(BaseCaller):
    """A worker that serves its lease alone. Made by `Pool.lease`.

    Calls run one after the other, in the order in which they were made.

    >>> import asyncio, os
    >>> async def main():
    ...     async with Pool(2) as pool, pool.lease("cpu") as worker:
    ...         return await worker.call(os.getpid) == await worker.call(os.getpid) == worker.pid
    >>> asyncio.run(main())
    True
    """

    def __init__(self, pool: Pool, lease: int, device: str, worker: WorkerDriver) -> None:
        self._pool = pool
        self._lease = lease
        self._worker = worker
        self._calls: set[PendingCall] = set()
        self._ended = False
        self.device = device

    @property
    def pid(self) -> int | None:
        """The process that serves now; None while there is none."""
        return self._worker.pid

    async def _run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Outcome[Any]:
        self._pool._check_open()
        if self._ended:
            raise PoolClosed(reason="the lease has ended")
        call = self._pool._submit(
            Request(Function(function), args, kwargs, options.name), options, self._lease
        )
        self._calls.add(call)
        try:
            return await self._pool._outcome_of(call)
        finally:
            self._calls.discard(call)

    def _end(self) -> None:
        self._ended = True
        for call in list(self._calls):
            self._pool._cancel(call)


def best_devices(available: tuple[str, ...]) -> tuple[str, ...]:
    """Of all devices those that `devices="auto"` takes: the GPUs, or else OpenCL's, or else the CPU.

    >>> best_devices(("cpu", "opencl:0", "cuda:0", "cuda:1"))
    ('cuda:0', 'cuda:1')
    """
    for kind in ("cuda:", "opencl:"):
        chosen = tuple(device for device in available if device.startswith(kind))
        if chosen:
            return chosen
    return ("cpu",)
