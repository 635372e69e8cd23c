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
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import anyio

from tunewire.endpoints.launch import Sink, checked_environment, descriptor_of
from tunewire.errors import (
    CallCancelled,
    CallTimeout,
    EncodeError,
    NoSuchDevice,
    PoolClosed,
    PoolSaturated,
)
from tunewire.pool.caller import BaseCaller, CallOptions
from tunewire.pool.lease import LeasedWorker
from tunewire.pool.options import best_devices
from tunewire.pool.results import MapOutcomes, MapResults
from tunewire.pool.scheduler import (
    Event,
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
from tunewire.pool.spares import Spares
from tunewire.pool.statistics import PoolStatistics, WorkerStatistics
from tunewire.pool.stream import BegunCall, CallStream
from tunewire.wire.codecs import Codec
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.phases import INSIDE
from tunewire.workers.call import Function, PackedFrame, PendingCall, Request, callable_name
from tunewire.workers.driver import WorkerDriver
from tunewire.workers.events import WorkerEvent
from tunewire.workers.ladder import Ladder
from tunewire.workers.lifecycle import CallInfo, State
from tunewire.workers.limits import Limits, check_seconds, with_run
from tunewire.workers.outcome import Outcome, OutcomeKind
from tunewire.workers.postmortem import Postmortem
from tunewire.workers.recycle import Recycle
from tunewire.workers.reports import Reports
from tunewire.workers.start import INITIALIZER, StartedProcess, WorkerSpec

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")

log = logging.getLogger("tunewire")

#: Closing waits this long for processes that were killed. Normally it takes milliseconds.
_CLOSE_BOUND = 5.0
#: States of work that was given up and is not gone yet.
_GIVEN_UP = (State.INTERRUPTING, State.TERMINATING, State.ENDING)
_EVENTS = 1000
_POSTMORTEMS = 100
#: Of a map: calls under way for each worker, so that none waits for the reader.
_WINDOW_PER_WORKER = 4


class Pool(BaseCaller):
    """Worker processes, a bounded queue, and the rules that match calls to workers.

    `size` workers serve calls; a process is started when a call first needs one. With `devices` there is one worker
    for each of these device ids instead, whose processes see that device only: `"auto"` takes every GPU, or else every
    OpenCL device, or else the CPU. An OpenCL device whose compiler can build nothing is passed over where another can.

    `initializer(*initargs)` runs in each process before its first call; if it raises, the call that waited gets the
    error and the process is ended. `env` is laid over this process's environment (None removes a variable).
    `results` is how results come back: "pickle", or "msgspec", with which nothing that a child sends is ever unpickled.
    `limits` and `ladder` are the defaults of every call. At most `max_pending` calls wait; a further one waits for a
    place, or is refused with PoolSaturated when `when_full="raise"`.

    `spares` processes of each kind are kept ready, so that a timeout or a crash costs the next call milliseconds;
    `preload` names modules that every process imports when it starts. `recycle` says when a process that works is
    replaced, `idle_timeout` after how many idle seconds it is ended. With `memory_per_worker_bytes` there are no more
    workers than the available memory has room for. `stdout` and `stderr` (a descriptor or an open file) get a copy of
    what processes print.

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
        spares: int = 0,
        preload: Sequence[str] = (),
        recycle: Recycle | None = None,
        idle_timeout: float | None = None,
        memory_per_worker_bytes: int | None = None,
        ladder: Ladder | None = None,
        stdout: Sink = None,
        stderr: Sink = None,
    ) -> None:
        if (size is None) == (devices is None):
            raise TypeError("a pool is made with a number of workers or with devices=, one of the two")
        if size is not None and (not isinstance(size, int) or isinstance(size, bool)):
            raise TypeError(f"a pool is made with a number of workers, not {size!r}")
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
        self._env = checked_environment(env or {})
        self._results = Codec.named(results)
        self._limits = limits or Limits()
        self._max_pending = max_pending
        self._refuse_when_full = when_full == "raise"
        self._max_frame_bytes = max_frame_bytes
        if spares < 0:
            raise ValueError(f"spares is a number of processes, not {spares}")
        if isinstance(preload, str):
            raise TypeError(f"preload is a sequence of module names; did you mean [{preload!r}]?")
        check_seconds("idle_timeout", idle_timeout)
        self._spare_count = spares
        self._preload = tuple(preload)
        self._recycle = recycle or Recycle()
        self._idle_timeout = idle_timeout
        self._memory_per_worker = memory_per_worker_bytes
        self._ladder = ladder or Ladder()
        self._sinks = (descriptor_of(stdout), descriptor_of(stderr))

        self._loop: asyncio.AbstractEventLoop | None = None
        self._host_task: asyncio.Task[None] | None = None
        self._task_group: TaskGroup | None = None
        self._close_asked: asyncio.Event | None = None
        self._closed_because: str | None = None
        self._failure: BaseException | None = None

        self._devices: tuple[str, ...] = ()
        self._workers: list[WorkerDriver] = []
        self._scheduler = Scheduler([])
        self._ids = itertools.count(1)
        self._calls: dict[int, PendingCall] = {}
        self._running: dict[int, WorkerDriver] = {}
        self._lease_of: dict[int, int] = {}
        self._queue_timers: dict[int, asyncio.TimerHandle] = {}
        self._grants: dict[int, asyncio.Future[WorkerDriver]] = {}
        self._admissions: dict[int | None, deque[asyncio.Future[None]]] = {}
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._outcomes: Counter[str] = Counter()
        self._spares: dict[str | None, Spares] = {}
        self._events: deque[WorkerEvent] = deque(maxlen=_EVENTS)
        self._postmortems: deque[Postmortem] = deque(maxlen=_POSTMORTEMS)

    # Opening and closing.

    async def open(self) -> Self:
        """Make the pool ready; the same as entering its block. RuntimeError if it was opened before.

        Raises NoSuchDevice for a device that is not to be had. Cancelling leaves it closed.
        """
        if self._loop is not None or self._closed_because is not None:
            raise RuntimeError("a pool is opened once, and not after it was closed; make a new one")
        self._loop = asyncio.get_running_loop()
        self._close_asked = asyncio.Event()
        try:
            specs = await self._specs()
        except BaseException:
            self._closed_because = "it could not be opened"
            raise
        self._workers = [WorkerDriver(index, spec, self) for index, spec in enumerate(specs)]
        self._spares = {
            spec.device: Spares(spec, self._spare_count, self._limits, self.start, self._changed)
            for spec in specs
        }
        self._scheduler = Scheduler([spec.device for spec in specs])
        ready = self._loop.create_future()
        self._host_task = asyncio.create_task(self._host(ready), name="tunewire pool")
        try:
            await asyncio.shield(ready)
        except asyncio.CancelledError:
            self._begin_closing("it was cancelled while it opened")
            raise
        for spares in self._spares.values():
            spares.fill()
        return self

    async def _specs(self) -> list[WorkerSpec]:
        initializer = self._packed_initializer()
        if self._size is not None:
            return [self._spec(None, {}, initializer) for _ in range(self._affordable(self._size))]
        from tunewire.devices import discover, environment_for  # only who pins devices pays for it

        if self._wanted_devices == "auto":
            discovery = await discover()
            self._devices = best_devices(discovery.devices)
        else:
            assert self._wanted_devices is not None
            self._devices = tuple(self._wanted_devices)
        return [self._spec(device, environment_for(device), initializer) for device in self._devices]

    def _packed_initializer(self) -> PackedFrame | None:
        if self._initializer is None:
            return None
        request = Request(Function(self._initializer), self._initargs, None)
        return request.pack(
            INITIALIZER, phase="run", results=Codec.NONE, max_frame_bytes=self._max_frame_bytes
        )

    def _spec(
        self, device: str | None, mask: Mapping[str, str | None], initializer: PackedFrame | None
    ) -> WorkerSpec:
        return WorkerSpec(
            device=device,
            env={**mask, **self._env},
            initializer=initializer,
            results=self._results,
            max_frame_bytes=self._max_frame_bytes,
            preload=self._preload,
            recycle=self._recycle,
            idle_limit=self._idle_timeout,
            ladder=self._ladder,
            sinks=self._sinks,
        )

    def _affordable(self, size: int) -> int:
        """As many workers as the memory that is available now has room for, but one at least."""
        if self._memory_per_worker is None:
            return size
        import psutil  # an eighth of what importing a pool costs, for who asks for this

        room = psutil.virtual_memory().available // self._memory_per_worker
        if room < size:
            log.warning("memory is available for %d of %d workers", max(room, 1), size)
        return max(1, min(size, room))

    async def _host(self, ready: asyncio.Future[None]) -> None:
        assert self._close_asked is not None
        try:
            async with anyio.create_task_group() as self._task_group:
                ready.set_result(None)
                await self._close_asked.wait()
                for worker in self._workers:
                    worker.close()
                for spares in self._spares.values():
                    spares.close()
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

    # What workers ask of their host.

    def start(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A worker's: run a process's life in the host."""
        assert self._task_group is not None
        self._task_group.start_soon(life)

    def changed(self, worker: WorkerDriver) -> None:
        """A worker's: it became free, or stopped being so."""
        if worker.state is not State.CLOSED:
            self._handle(WorkerChanged(worker.index, worker.is_free, worker.state is State.IDLE))
        self._changed()

    def returned(self, call: PendingCall) -> None:
        """A worker's: the call is to be sent to another process."""
        self._running.pop(call.id, None)
        self._handle(Returned(call.id, self._lease_of.get(call.id)))

    def take_spare(self, spec: WorkerSpec) -> StartedProcess | None:
        """A worker's: a process that is ready, if there is one."""
        return self._spares[spec.device].take()

    def record(self, event: WorkerEvent) -> None:
        """A worker's: something happened."""
        self._events.append(event)
        if event.kind == "ready":
            self._spares[self._workers[event.worker or 0].spec.device].a_worker_started()

    def ended(self, postmortem: Postmortem) -> None:
        """A worker's: a process has ended, and this is how."""
        self._postmortems.append(postmortem)

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
        for admission in itertools.chain.from_iterable(self._admissions.values()):
            if not admission.done():
                admission.set_exception(self._closed_error())
        self._changed()

    def _closed_error(self) -> PoolClosed:
        error = PoolClosed(reason=self._closed_because or "it is not open")
        error.__cause__ = self._failure
        return error

    def _closed_outcome(self) -> Outcome[Any]:
        return Outcome(kind=OutcomeKind.REJECTED, error=self._closed_error(), phase="queue")

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

    def check_open(self) -> None:
        """PoolClosed unless it is open; RuntimeError in another event loop."""
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
        self.check_open()
        return await self.run_one(function, args, kwargs, options, None)

    def _stream(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> CallStream[Any]:
        return self.stream_one(function, args, kwargs, options, None)

    def stream_one(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        lease: int | None,
    ) -> CallStream[Any]:
        """One call that says something on the way."""

        async def begin(reports: Reports) -> BegunCall:
            self.check_open()
            return await self.begin_one(function, args, kwargs, options, lease, reports)

        name = options.name or callable_name(function)
        return CallStream(begin, self.cancel_call, name, self._results)

    async def run_one(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        lease: int | None,
    ) -> Outcome[Any]:
        """One call, from its place in the queue to its outcome. A lease has a queue of its own: its calls must not
        wait for those that wait for its worker."""
        future, call = await self.begin_one(function, args, kwargs, options, lease)
        return future.result() if call is None else await self._outcome_of(call)

    async def begin_one(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
        lease: int | None,
        reports: Reports | None = None,
    ) -> BegunCall:
        """The same, up to its place in the queue; what it says on the way goes to `reports`."""
        limits = self._limits_of(options)
        assert self._loop is not None
        begun = self._loop.time()
        if self.is_full(lease) and not await self.admit(lease, limits.queue):
            refused: asyncio.Future[Outcome[Any]] = self._loop.create_future()
            refused.set_result(self._queue_timeout(limits, options.name or callable_name(function)))
            return refused, None
        request = Request(Function.of(function), args, kwargs, options.name)
        call = self._submit(request, options, limits, begun, lease, reports)
        return call.future, call

    def is_full(self, lease: int | None = None) -> bool:
        """Whether no further call may wait."""
        return self._scheduler.waiting(lease) >= self._max_pending

    async def admit(self, lease: int | None = None, limit: float | None = None) -> bool:
        """Until the queue has a place; False if it has none within the limit."""
        if self._refuse_when_full:
            raise PoolSaturated(max_pending=self._max_pending)
        try:
            async with asyncio.timeout(limit):
                while self.is_full(lease):
                    await self._place(lease)
        except TimeoutError:
            return False
        self.check_open()
        return True

    async def _place(self, lease: int | None) -> None:
        assert self._loop is not None
        admission = self._loop.create_future()
        waiting = self._admissions.setdefault(lease, deque())
        waiting.append(admission)
        try:
            await admission
        finally:
            waiting.remove(admission)
            if not waiting:
                self._admissions.pop(lease, None)

    def _limits_of(self, options: CallOptions) -> Limits:
        limits = self._limits if options.limits is None else options.limits
        if not isinstance(limits, Limits):
            raise TypeError(f"limits is a tunewire.Limits, not {limits!r}")
        if not isinstance(options.name, str | None):
            raise TypeError(f"name is text, not {options.name!r}")
        if options.phase not in INSIDE:
            raise ValueError(f"a call starts in one of the phases {INSIDE}, not {options.phase!r}")
        if options.timeout is None:
            return limits
        return with_run(limits, options.timeout)

    def _submit(
        self,
        request: Request,
        options: CallOptions,
        limits: Limits,
        begun: float,
        lease: int | None = None,
        reports: Reports | None = None,
    ) -> PendingCall:
        """Everything that may be wrong with a call is found before it is known to anyone. `begun` is when its wait did."""
        assert self._loop is not None
        call_id = next(self._ids)
        frame = request.pack(
            call_id,
            phase=options.phase,
            results=self._results,
            max_frame_bytes=self._max_frame_bytes,
            env=None if options.env is None else checked_environment(options.env),
            limits=limits,
            streams=reports is not None,
        )
        info = CallInfo(
            id=call_id,
            phase=options.phase,
            limits=limits,
            ladder=options.ladder or self._ladder,
            idempotent=options.idempotent,
        )
        call = PendingCall(
            request,
            frame,
            info=info,
            results=self._results,
            result_type=options.result_type,
            future=self._loop.create_future(),
            decided=self._on_decided,
            reports=reports,
        )
        self._calls[call_id] = call
        if lease is not None:
            self._lease_of[call_id] = lease
        self._handle(Submitted(call_id, lease))
        if limits.queue is not None and self._scheduler.is_waiting(call_id):
            self._queue_timers[call_id] = self._loop.call_at(begun + limits.queue, self._on_queue_limit, call)
        return call

    async def _outcome_of(self, call: PendingCall) -> Outcome[Any]:
        try:
            return await call.future
        except asyncio.CancelledError:
            self.cancel_call(call)
            raise

    def cancel_call(self, call: PendingCall) -> None:
        """Whoever awaited it has gone."""
        if self._scheduler.is_waiting(call.id):
            self._handle(Withdrawn(call.id))
            error = CallCancelled(callable_name=call.name)
            call.decide(Outcome(kind=OutcomeKind.CANCELLED, error=error, phase="queue"))
        elif call.id in self._running:
            self._running[call.id].cancel(call.id)

    def cancel_lease(self, lease: int) -> None:
        """Cancel what a lease's holder has under way, or waiting for a place."""
        for admission in self._admissions.get(lease, ()):
            if not admission.done():
                admission.set_exception(PoolClosed(reason="the lease has ended"))
        for call_id in [call_id for call_id, held in self._lease_of.items() if held == lease]:
            self.cancel_call(self._calls[call_id])

    def _on_queue_limit(self, call: PendingCall) -> None:
        if self._scheduler.is_waiting(call.id):
            self._handle(Withdrawn(call.id))
            call.decide(self._queue_timeout(call.info.limits, call.name))

    def _queue_timeout(self, limits: Limits, name: str) -> Outcome[Any]:
        assert limits.queue is not None
        error = CallTimeout(phase="queue", limit=limits.queue, callable_name=name)
        return Outcome(kind=OutcomeKind.TIMEOUT, error=error, phase="queue")

    def _on_decided(self, call: PendingCall, outcome: Outcome[Any]) -> None:
        del self._calls[call.id]
        self._running.pop(call.id, None)
        self._lease_of.pop(call.id, None)
        timer = self._queue_timers.pop(call.id, None)
        if timer is not None:
            timer.cancel()
        self._outcomes[outcome.kind] += 1
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
        if self._admissions:
            self._let_in()

    def _let_in(self) -> None:
        for lease, waiting in self._admissions.items():
            places = self._max_pending - self._scheduler.waiting(lease)
            for admission in itertools.islice(waiting, max(places, 0)):
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
        submit = self._map_submitter(function, CallOptions(timeout=timeout, limits=limits))
        return MapResults(items, submit, self.cancel_call, self, window=self._window, ordered=ordered)

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
        submit = self._map_submitter(function, CallOptions(timeout=timeout, limits=limits))
        return MapOutcomes(items, submit, self.cancel_call, self, window=self._window, ordered=ordered)

    @property
    def _window(self) -> int:
        return min(_WINDOW_PER_WORKER * len(self._workers), self._max_pending + len(self._workers))

    def _map_submitter(
        self, function: Callable[..., Any], options: CallOptions
    ) -> Callable[[Any], BegunCall]:
        self.check_open()
        encoded = Function(function)
        limits = self._limits_of(options)

        def submit(item: Any) -> BegunCall:
            self.check_open()
            assert self._loop is not None
            try:
                request = Request(encoded, (item,), None).snapshot()
                call = self._submit(request, options, limits, self._loop.time())
            except EncodeError as error:
                failed: asyncio.Future[Outcome[Any]] = self._loop.create_future()
                failed.set_result(Outcome(kind=OutcomeKind.ERROR, error=error, phase="queue"))
                return failed, None
            return call.future, call

        return submit

    # Leases.

    @property
    def limits(self) -> Limits:
        """The limits of a call that brings none of its own."""
        return self._limits

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that its workers are pinned to, in order; empty for a pool of a given size."""
        return self._devices

    @asynccontextmanager
    async def lease(self, device: str) -> AsyncIterator[LeasedWorker]:
        """The exclusive right to `device` until the block ends: a worker on it that serves no one else.

        In a pool with devices it must be one of them (NoSuchDevice); in another, any worker serves, and no other lease
        of the same device name is granted meanwhile. Leaving the block cancels what still runs there, and the device is
        free again when that work is gone. Cancelling while waiting gives the request up; waiting longer than the pool's
        limit for the queue is a CallTimeout of that phase. A plain call that is awaited inside the block needs another
        worker: in a pool of one it would wait for ever, and `worker.call` is meant.

        >>> import asyncio
        >>> async def main():
        ...     async with Pool(1) as pool, pool.lease("cpu") as worker:
        ...         return await worker.call(sum, [1, 2, 3])
        >>> asyncio.run(main())
        6
        """
        self.check_open()
        if not isinstance(device, str) or not device:
            raise TypeError(f"a device is named by its id, as tunewire devices lists them, not by {device!r}")
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
            worker = LeasedWorker(self, lease, device, await self._granted(grant, device))
            try:
                yield worker
            finally:
                worker.end()
        finally:
            del self._grants[lease]
            self._handle(LeaseReturned(lease))

    async def _granted(self, grant: asyncio.Future[WorkerDriver], device: str) -> WorkerDriver:
        limit = self._limits.queue
        try:
            async with asyncio.timeout(limit) as waiting:
                return await grant
        except TimeoutError:
            if limit is None or not waiting.expired():
                raise
            raise CallTimeout(phase="queue", limit=limit, device=device, callable_name="a lease") from None

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
                    since=worker.since,
                    callable_name=None if worker.call is None else worker.call.name,
                )
                for worker in self._workers
            ),
            waiting=len(self._calls) - len(self._running),
            running=len(self._running),
            spares=sum(spares.ready for spares in self._spares.values()),
            outcomes=dict(self._outcomes),
        )

    def events(self) -> tuple[WorkerEvent, ...]:
        """What happened to its workers, the latest last; the last thousand things.

        >>> Pool(2).events()
        ()
        """
        return tuple(self._events)

    def postmortems(self) -> tuple[Postmortem, ...]:
        """How its processes ended, the latest last; the last hundred.

        >>> Pool(2).postmortems()
        ()
        """
        return tuple(self._postmortems)

    def __repr__(self) -> str:
        if self._loop is None:
            return "<Pool not open>"
        states = Counter(worker.state.name.lower() for worker in self._workers)
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        closed = "" if self._closed_because is None else f", closed: {self._closed_because}"
        return f"<Pool {told}; {len(self._calls)} calls, {len(self._running)} of them running{closed}>"

    async def drain(self) -> None:
        """Wait until no call waits or runs, then end idle processes and spares: nothing is left running.

        New calls are still taken, and waited for; the pool starts processes again when it needs them.
        """
        self._check_loop()
        await self._until(lambda: not self._calls)
        for spares in self._spares.values():
            spares.end()
        await self.end_processes("was drained")
        await self._until(lambda: not any(spares.outdated for spares in self._spares.values()))

    async def settled(self) -> None:
        """Wait until work that was given up (by a timeout, a cancel, a crash) is really gone.

        A cancelled await returns at once, before its process has ended; after this, it has.
        """
        self._check_loop()
        await self._until(lambda: not any(worker.state in _GIVEN_UP for worker in self._workers))

    async def end_processes(self, reason: str) -> None:
        """End every process of its workers that there is now, with the calls that run there; until they are gone."""
        self._check_loop()
        before = {worker: worker.processes for worker in self._workers}
        for worker in self._workers:
            worker.end_process(reason)
        await self._until(lambda: all(w.is_empty or w.processes > n for w, n in before.items()))

    async def until_empty(self) -> None:
        """Wait until no worker has a process."""
        self._check_loop()
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
