"""One worker kept honest: the driver that does what the lifecycle's table says.

It owns no task. Whoever hosts it (a pool) gives it `start`, which runs a coroutine in the host's task group; the
driver starts one such coroutine for each process, and that coroutine is the process's whole life: spawn, greet, read
frames until the stream ends, see to it that the tree is gone, say Gone. Every other thing that happens (a call is
assigned, a deadline fires, a caller goes away) is an event that is handled on the spot, without a task switch: for a
call on an idle process that is one write and one timer.

Each await of a life, and what is half done there:
    spawn       a process may be on its way: ChildProcess.spawn kills it
    greet       the process is known: killed in `finally`
    read_frame  the call in hand gets its outcome from Lost, or from whoever killed
    bury        only time: the outcome has been given
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio

from tunewire.endpoints.process import ChildProcess, signal_name
from tunewire.errors import (
    CallCancelled,
    CallTimeout,
    EndpointClosed,
    PoolClosed,
    StartError,
    TruncatedFrame,
    WireError,
    WorkerCrashed,
)
from tunewire.wire.frames import Frame
from tunewire.wire.messages import Phase, expect
from tunewire.workers import reports
from tunewire.workers.call import PendingCall
from tunewire.workers.events import WorkerEvent
from tunewire.workers.lifecycle import (
    Action,
    Arm,
    Assign,
    Cancelled,
    Close,
    DeadlineReached,
    Decide,
    Event,
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
)
from tunewire.workers.outcome import Outcome, OutcomeKind
from tunewire.workers.postmortem import Postmortem, out_of_memory_kills
from tunewire.workers.recycle import tree_bytes
from tunewire.workers.reply import Reply, keeps_process, read_reply
from tunewire.workers.start import (
    StartedProcess,
    WorkerSpec,
    bury,
    greet,
    initializer_error,
    spawn,
)

log = logging.getLogger("tunewire")

#: A stream that ended: how long the process may take to end too before it is taken for one that goes on running.
_END_WAIT = 0.2
#: Turns of the loop from bytes in a pipe to a frame in hand.
_READ_TURNS = 1
#: The same, where the pipe was not read for a while.
_HELD_TURNS = 2
#: What calls that are over go on to say, which a process may send by mistake (a thread that was left over).
_STRAY_WORDS = 100
#: Seconds between two looks at the memory of a tree, while a call runs.
_MEMORY_INTERVAL = 0.1
#: Names of calls that a postmortem tells, and events that a worker's log holds.
_LAST_CALLS = 8
_LOG_LENGTH = 256


class Host(Protocol):
    """What a worker asks of the pool that it belongs to."""

    def start(self, life: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in the host's task group."""

    def changed(self, worker: WorkerDriver) -> None:
        """The worker became free, or stopped being so."""

    def returned(self, call: PendingCall) -> None:
        """A call that has not begun (or may begin again) is to be sent to another process."""

    def take_spare(self, spec: WorkerSpec) -> StartedProcess | None:
        """A process that is ready, if there is one."""

    def record(self, event: WorkerEvent) -> None:
        """Something happened."""

    def ended(self, postmortem: Postmortem) -> None:
        """A process has ended, and this is how."""


class WorkerDriver:
    """A worker: at most one process, at most one call."""

    def __init__(self, index: int, spec: WorkerSpec, host: Host) -> None:
        self.index = index
        self.spec = spec
        self.pid: int | None = None
        self.processes = 0
        self.since = asyncio.get_running_loop().time()
        self.postmortem: Postmortem | None = None
        self.log: deque[Event] = deque(maxlen=_LOG_LENGTH)
        self._lifecycle = Lifecycle(spec.idle_limit)
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._handling = False
        self._process: ChildProcess | None = None
        self._initialised = False
        self._call: PendingCall | None = None
        self._sent_at: float | None = None
        self._reply: Reply | None = None
        self._loss: tuple[OutcomeKind, BaseException] | None = None
        self._end_reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._memory_timer: asyncio.TimerHandle | None = None
        self._started_at = 0.0
        self._uses = 0
        self._last_calls: deque[str] = deque(maxlen=_LAST_CALLS)
        self._memory_kills = 0
        self._stray_words = 0
        self._finished = self._loop.create_future()

    # What the pool asks and says.

    @property
    def state(self) -> State:
        """Where the worker is in its life."""
        return self._lifecycle.state

    @property
    def is_free(self) -> bool:
        """Whether it may be given a call."""
        return self._lifecycle.is_free

    @property
    def is_empty(self) -> bool:
        """Whether it has no process, nor one on its way."""
        return self.state in (State.EMPTY, State.CLOSED)

    @property
    def call(self) -> PendingCall | None:
        """The call in hand, without an outcome yet."""
        return self._call

    def assign(self, call: PendingCall) -> None:
        """Run `call`; only while free."""
        self._call = call
        self._post(Assign(call.info, self._loop.time()))

    def cancel(self, call_id: int) -> None:
        """The caller of this call has gone: its work stops. Another call's is not touched."""
        self._post(Cancelled(call_id, self._loop.time()))

    def end_process(self, reason: str) -> None:
        """End the process, whatever it does; the worker lives on."""
        if not self.is_empty:
            self._loss = (OutcomeKind.CRASH, self._crash(reason=reason))
            self._end_reason = reason
            self._post(Lost(on_purpose=True))

    def close(self) -> None:
        """End for good; `finished()` tells when nothing is left."""
        self._post(Close())

    async def finished(self) -> None:
        """Until the worker has closed and nothing of it is left."""
        await asyncio.shield(self._finished)

    # Events in, actions out.

    def _post(self, event: Event) -> None:
        self._events.append(event)
        if self._handling:
            return  # an action raised it; it waits until the actions before it are done
        self._handling = True
        try:
            while self._events:
                event = self._events.popleft()
                self.log.append(event)
                before = self._lifecycle.state
                for action in self._lifecycle.handle(event):
                    self._do(action)
                if self._lifecycle.state is not before:
                    self.since = self._loop.time()
        finally:
            self._handling = False

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                self._send_call()
            case Arm():
                self._arm(action)
            case Decide():
                self._decide(action)
            case Free() | Withdraw():
                self._host.changed(self)
            case Spawn():
                self._begin_life()
            case Initialise():
                self._initialise()
            case Return():
                self._return_call()
            case Interrupt(call_id, raises):
                self._note("interrupt")
                assert self._process is not None
                self._process.interrupt(call_id, raises=raises)
            case Terminate():
                self._note("terminate")
                assert self._process is not None
                self._process.terminate()
            case Kill():
                self._kill()
            case Finish():
                self._finished.set_result(None)
                self._host.changed(self)

    def _note(self, kind: str, detail: str = "") -> None:
        name = None if self._call is None else self._call.name
        self._host.record(WorkerEvent(self._loop.time(), self.index, kind, self.pid, name, detail))

    def _arm(self, action: Arm) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if action.at is not None:
            self._timer = self._loop.call_at(action.at, self._on_timer, action.timer)

    def _read_on(self) -> None:
        if self._process is not None:
            self._process.connection.go_on_reading()

    def _on_timer(self, timer: int) -> None:
        turns = _READ_TURNS
        if self._call is not None and self._call.reports is not None:
            # The reply may stand behind reports that were not read: a full pipe is one read.
            self._read_on()
            turns += _HELD_TURNS
        self._give_reply_a_turn(turns, timer)

    def _give_reply_a_turn(self, turns: int, timer: int) -> None:
        """Where the loop itself was late, the reply may have come in time and only not been read: the reader first."""
        if turns:
            self._loop.call_soon(self._give_reply_a_turn, turns - 1, timer)
        else:
            self._post(DeadlineReached(timer, self._loop.time(), self._began()))

    def _began(self) -> float | None:
        """When the callable of the call in hand began, as its process says: see DeadlineReached."""
        if self._process is None or self._call is None:
            return None
        return self._process.began(self._call.id, self._loop.time())

    def _begin_life(self) -> None:
        self._loss = None
        self._end_reason = ""
        self._initialised = False
        self._host.start(self._live)

    def _send_call(self) -> None:
        assert self._process is not None
        assert self._call is not None
        call = self._call
        self._process.stdout.forget()
        self._process.stderr.forget()
        self._sent_at = self._loop.time()
        self._uses += 1
        self._last_calls.append(call.name)
        self._note("sent")
        if call.reports is not None:
            call.reports.read_on = self._read_on
        self._process.connection.write_now(*call.frame)
        if self.spec.recycle.tree_bytes is not None:
            self._memory_timer = self._loop.call_later(_MEMORY_INTERVAL, self._look_at_memory)

    def _stop_looking_at_memory(self) -> None:
        if self._memory_timer is not None:
            self._memory_timer.cancel()
            self._memory_timer = None

    def _look_at_memory(self) -> None:
        """Ten times a second while a call runs: reading two files of /proc for each process of the tree."""
        self._memory_timer = None
        assert self._process is not None
        used = tree_bytes(self._process.pid)
        limit = self.spec.recycle.tree_bytes
        assert limit is not None
        if used > limit:
            self.end_process(f"held {used} bytes with its descendants, and the limit is {limit}")
        else:
            self._memory_timer = self._loop.call_later(_MEMORY_INTERVAL, self._look_at_memory)

    def _initialise(self) -> None:
        if self.spec.initializer is None or self._initialised:
            self._post(Initialised(self._loop.time()))
        else:
            assert self._process is not None
            self._process.connection.write_now(*self.spec.initializer)

    def _return_call(self) -> None:
        call = self._call
        assert call is not None
        self._stop_looking_at_memory()
        self._note("returned", "it is sent again")
        self._call = self._sent_at = None
        call.count_repeat()
        self._host.returned(call)

    def _kill(self) -> None:
        if self._process is not None:
            self._note("kill", self._end_reason)
            self._process.kill()
            self._process.connection.stop_reading()  # wakes the process's life, which sees to the rest

    def _decide(self, action: Decide) -> None:
        call = self._call
        assert call is not None
        assert call.id == action.call_id
        kind, value, error = self._verdict(action, call)
        stdout = stderr = ""
        seconds = 0.0
        if self._process is not None:
            stdout, stderr = self._process.stdout.take(), self._process.stderr.take()
        if self._sent_at is not None:
            seconds = self._loop.time() - self._sent_at
        self._stop_looking_at_memory()
        self._note("outcome", kind)
        if call.reports is not None:
            self._read_on()
        self._call = self._reply = self._sent_at = None
        if kind is not OutcomeKind.COMPLETED and not self._end_reason:
            self._end_reason = f"its call ended as {kind.value}"
        call.decide(
            Outcome(
                kind=kind,
                value=value,
                error=error,
                stdout=stdout,
                stderr=stderr,
                phase=action.phase,
                seconds=seconds,
                pid=self.pid,
            )
        )

    def _verdict(self, action: Decide, call: PendingCall) -> tuple[OutcomeKind, Any, BaseException | None]:
        match action.verdict:
            case Verdict.REPLY:
                assert self._reply is not None
                return self._reply.kind, self._reply.value, self._reply.error
            case Verdict.TIMEOUT:
                assert action.limit is not None
                timeout = CallTimeout(
                    phase=action.phase, limit=action.limit, device=self.spec.device, callable_name=call.name
                )
                return OutcomeKind.TIMEOUT, None, timeout
            case Verdict.CANCELLED:
                return OutcomeKind.CANCELLED, None, CallCancelled(callable_name=call.name)
            case Verdict.CLOSED:
                return OutcomeKind.CANCELLED, None, PoolClosed(reason="it was closed while the call ran")
            case Verdict.LOST:
                assert self._loss is not None
                kind, error = self._loss
                return kind, None, error

    # The life of one process.

    async def _live(self) -> None:
        try:
            await self._serve()
        except StartError as error:
            self._loss = (OutcomeKind.CRASH, error)
        except Exception as error:  # noqa: BLE001 — see _give_up
            self._give_up(error)
        finally:
            # Shielded: when the host itself is cancelled, the process must still not be left behind.
            with anyio.CancelScope(shield=True):
                await self._end_life()

    async def _serve(self) -> None:
        spare = self._host.take_spare(self.spec)
        process = await spawn(self.spec) if spare is None else spare.process
        self._begin(process)
        if self.state is not State.STARTING:
            return  # given up while it was spawned
        if spare is None:
            self.pid = await greet(process, self.spec)
        else:
            self.pid, self._initialised = spare.pid, spare.initialised
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._end_reading_at_exit, process)
            self._note("ready", "" if spare is None else "it was a spare")
            self._post(Started(self._loop.time()))
            await self._read_frames(process)
            watch.cancel_scope.cancel()

    def _begin(self, process: ChildProcess) -> None:
        self._process = process
        self.processes += 1
        self._uses = self._stray_words = 0
        self._last_calls.clear()
        self._started_at = self._loop.time()
        self._memory_kills = out_of_memory_kills()
        self._note("started")

    async def _read_frames(self, process: ChildProcess) -> None:
        try:
            await process.connection.deliver_frames(self._on_frame)
        except (EndpointClosed, TruncatedFrame):
            await self._note_end(process)
        except WireError as error:
            located = WireError(reason=error.reason, pid=self.pid, device=self.spec.device)
            located.__cause__ = error
            self._loss = (OutcomeKind.CRASH, located)
        except Exception as error:  # noqa: BLE001 — see _give_up
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Whatever it is, it costs this process and its call, and not the pool."""
        log.error("worker %d: its process is given up", self.index, exc_info=error)
        crash = self._crash(reason=f"was given up: {error!r}")
        crash.__cause__ = error
        self._loss = (OutcomeKind.CRASH, crash)

    @staticmethod
    async def _end_reading_at_exit(process: ChildProcess) -> None:
        await process.wait()
        await process.connection.end_reading()

    async def _note_end(self, process: ChildProcess) -> None:
        """The stream has ended. If the process has too, its exit code says how; if not, it hides."""
        if self._call is None:
            # A call may still be assigned before this process's loss is known.
            crash = self._crash(exit_code=process.exit_code, reason="ended while it was idle")
            self._loss = (OutcomeKind.CRASH, crash)
            return
        exit_code = await process.exit_code_soon(_END_WAIT)
        reason = None if exit_code is not None else "closed its channel and went on running"
        self._loss = (OutcomeKind.CRASH, self._crash(exit_code=exit_code, reason=reason))

    def _crash(self, *, exit_code: int | None = None, reason: str | None = None) -> WorkerCrashed:
        stdout = stderr = ""
        peak_bytes = uptime = None
        if self._process is not None:
            stdout, stderr = self._process.stdout.text(), self._process.stderr.text()
            peak_bytes, uptime = self._process.peak_bytes(), self._loop.time() - self._started_at
        return WorkerCrashed(
            exit_code=exit_code,
            signal=signal_name(exit_code),
            stderr=stderr,
            stdout=stdout,
            phase=self._lifecycle.phase,
            device=self.spec.device,
            pid=self.pid,
            callable_name=None if self._call is None else self._call.name,
            reason=reason,
            arguments="" if self._call is None else self._call.arguments,
            uptime=uptime,
            peak_bytes=peak_bytes,
        )

    def _on_frame(self, frame: Frame) -> None:
        state = self.state
        if state is State.BUSY and self._call is not None and frame.call_id == self._call.id:
            if frame.kind == Phase.kind:
                self._on_phase(frame)
            elif frame.kind in reports.KINDS:
                self._on_report(frame, self._call.reports)
            else:
                self._on_reply(frame, self._call)
        elif frame.kind == Phase.kind or frame.kind in reports.KINDS:
            self._on_stray_word(frame)
        elif state is State.INITIALISING:
            self._on_initializer_reply(frame)
        elif state is State.INTERRUPTING:
            keep = keeps_process(frame) and not self._recycle_reason()
            self._post(Replied(frame.call_id, self._loop.time(), keep))
        elif state in (State.BUSY, State.IDLE):
            raise WireError(reason=f"a frame for call {frame.call_id}, which is not running", pid=self.pid)

    def _on_reply(self, frame: Frame, call: PendingCall) -> None:
        self._reply = read_reply(frame, call)
        keep = self._reply.keep
        if keep and (reason := self._recycle_reason()):
            self._end_reason = reason
            self._note("recycle", reason)
            keep = False
        self._post(Replied(frame.call_id, self._loop.time(), keep))

    def _recycle_reason(self) -> str | None:
        recycle, process = self.spec.recycle, self._process
        assert process is not None
        used = None if recycle.tree_bytes is None else tree_bytes(process.pid)
        return recycle.due(uses=self._uses, age=self._loop.time() - self._started_at, tree_bytes=used)

    def _on_phase(self, frame: Frame) -> None:
        phase = expect(frame, Phase)
        before = self._lifecycle.phase
        self._post(PhaseEntered(frame.call_id, phase.name, self._loop.time()))
        call = self._call
        if call is not None and call.reports is not None and self._lifecycle.phase != before:
            call.reports.put(frame)

    def _on_report(self, frame: Frame, to: reports.Reports | None) -> None:
        if to is None:
            self._on_stray_word(frame)
            return
        to.put(frame)
        if to.holds_back:
            assert self._process is not None
            self._process.connection.hold_reading()

    def _on_stray_word(self, frame: Frame) -> None:
        """Of a call that is over, or that nobody streams. One that is being ended may say what it likes until it is."""
        if self.state is State.INTERRUPTING:
            return
        self._stray_words += 1
        if self._stray_words > _STRAY_WORDS:
            raise WireError(
                reason=f"{_STRAY_WORDS} frames of calls that are over, the last of call {frame.call_id}",
                pid=self.pid,
            )

    def _on_initializer_reply(self, frame: Frame) -> None:
        error = initializer_error(frame, self.spec)
        if error is None:
            self._post(Initialised(self._loop.time()))
        else:
            self._loss = (OutcomeKind.ERROR, error)
            self._post(Lost())

    async def _end_life(self) -> None:
        """Whatever brought it here: the call gets its outcome, and of the process nothing is left."""
        process = self._process
        if self._loss is None:
            abandoned = PoolClosed(reason="it failed, or its event loop ended, while the call ran")
            self._loss = (OutcomeKind.CANCELLED, abandoned)
        self._post(Lost(begun=self._may_have_begun()))
        if process is not None:
            if not await bury(process, self.spec.ladder):
                self._report_unreapable(process)
                await process.wait()
            self._hold_postmortem(process)
            process.close()
        # What died is nobody's any more: an error's traceback may refer to the caller's frames, and to all that they hold.
        self._loss = self._process = self.pid = None
        self._post(Gone())

    def _may_have_begun(self) -> bool:
        """Whether the call in hand may have begun: the flight recorder knows of one that has not."""
        record = None if self._process is None else self._process.recorded()
        return record is None or self._call is None or record.call_id == self._call.id

    def _hold_postmortem(self, process: ChildProcess) -> None:
        exit_code = process.exit_code
        killed = signal_name(exit_code) == "SIGKILL" and not self._end_reason
        self.postmortem = Postmortem(
            pid=process.pid if self.pid is None else self.pid,
            exit_code=exit_code,
            signal=signal_name(exit_code),
            reason=self._end_reason or "it ended by itself",
            uptime=self._loop.time() - self._started_at,
            peak_bytes=process.peak_bytes(),
            out_of_memory=killed and out_of_memory_kills() > self._memory_kills,
            last_calls=tuple(self._last_calls),
            stdout=process.stdout.text(),
            stderr=process.stderr.text(),
        )
        self._note("gone", self.postmortem.reason)
        self._host.ended(self.postmortem)

    def _report_unreapable(self, process: ChildProcess) -> None:
        log.error(
            "worker %d%s: process %d cannot be reaped; the worker is not used until it is",
            self.index,
            self.spec.on_device,
            process.pid,
        )
