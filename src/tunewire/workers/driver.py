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
    reap        only time: the outcome has been given
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import anyio
import msgspec

from tunewire.endpoints.process import ChildProcess, python_command, signal_name
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
from tunewire.wire.codecs import Codec
from tunewire.wire.exceptions import add_note, rebuild
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame
from tunewire.wire.messages import Failure, Phase, Result, expect, read_message
from tunewire.workers.call import PackedFrame, PendingCall
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
from tunewire.workers.outcome import Outcome, OutcomeKind
from tunewire.workers.reply import Reply, read_reply

log = logging.getLogger("tunewire")

#: A stream that ended: how long the process may take to end too before it is taken for one that goes on running.
_END_WAIT = 0.2
#: A guard that has not taken its tree down after this long is killed with its whole process group.
_GUARD_WAIT = 0.5
#: After which a process that cannot be reaped is reported. It holds its worker until it is.
_REAP_REPORT = 2.0
#: Turns of the loop from bytes in a pipe to a frame in hand: one feeds the reader, one wakes it.
_READ_TURNS = 2
#: Announcements of phases of calls that are over, which a process may send by mistake (a thread that was left over).
_STRAY_PHASES = 100
#: The id of the initializer's call; users' calls count from 1.
INITIALIZER = 0


class WorkerSpec(msgspec.Struct, frozen=True):
    """What every process of a worker is made from."""

    device: str | None
    #: Over the parent's environment; None removes a variable.
    env: Mapping[str, str | None]
    #: The frame of the initializer's call.
    initializer: PackedFrame | None
    results: Codec
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES


class WorkerDriver:
    """A worker: at most one process, at most one call."""

    def __init__(
        self,
        index: int,
        spec: WorkerSpec,
        *,
        start: Callable[[Callable[[], Coroutine[Any, Any, None]]], None],
        on_change: Callable[[WorkerDriver], None],
    ) -> None:
        self.index = index
        self.spec = spec
        self.pid: int | None = None
        self.processes = 0
        self._lifecycle = Lifecycle()
        self._start = start
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._handling = False
        self._process: ChildProcess | None = None
        self._call: PendingCall | None = None
        self._sent_at: float | None = None
        self._reply: Reply | None = None
        self._loss: tuple[OutcomeKind, BaseException] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stray_phases = 0
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
        self._post(Cancelled(call_id))

    def kill(self) -> None:
        """End the process, whatever it does; the worker lives on."""
        if not self.is_empty:
            self._loss = (OutcomeKind.CRASH, self._crash(reason="was killed on request"))
            self._post(Lost())

    def close(self) -> None:
        """End for good; `finished()` tells when nothing is left."""
        self._post(Close())

    async def finished(self) -> None:
        """Until the worker has closed and nothing of it is left."""
        await asyncio.shield(self._finished)

    def output(self) -> tuple[str, str]:
        """The tails of stdout and stderr since the last call's outcome."""
        if self._process is None:
            return "", ""
        return self._process.stdout.text(), self._process.stderr.text()

    # Events in, actions out.

    def _post(self, event: Event) -> None:
        self._events.append(event)
        if self._handling:
            return  # an action raised it; it waits until the actions before it are done
        self._handling = True
        try:
            while self._events:
                for action in self._lifecycle.handle(self._events.popleft()):
                    self._do(action)
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
                self._on_change(self)
            case Spawn():
                self._loss = None
                self._start(self._live)
            case Initialise():
                self._initialise()
            case Kill():
                self._kill()
            case Finish():
                self._finished.set_result(None)
                self._on_change(self)

    def _arm(self, action: Arm) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if action.at is not None:
            self._timer = self._loop.call_at(action.at, self._give_reply_a_turn, _READ_TURNS, action.timer)

    def _give_reply_a_turn(self, turns: int, timer: int) -> None:
        """Where the loop itself was late, the reply may have come in time and only not been read: the reader first."""
        if turns:
            self._loop.call_soon(self._give_reply_a_turn, turns - 1, timer)
        else:
            self._post(DeadlineReached(timer))

    def _send_call(self) -> None:
        assert self._process is not None
        assert self._call is not None
        call = self._call
        self._process.stdout.forget()
        self._process.stderr.forget()
        self._sent_at = self._loop.time()
        self._process.connection.write_now(*call.frame)

    def _initialise(self) -> None:
        if self.spec.initializer is None:
            self._post(Initialised(self._loop.time()))
        else:
            assert self._process is not None
            self._process.connection.write_now(*self.spec.initializer)

    def _kill(self) -> None:
        if self._process is not None:
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
        self._call = self._reply = self._sent_at = None
        call.decide(
            Outcome(
                kind=kind,
                value=value,
                error=error,
                stdout=stdout,
                stderr=stderr,
                seconds=seconds,
                pid=self.pid,
            )
        )

    def _verdict(self, action: Decide, call: PendingCall) -> tuple[OutcomeKind, Any, BaseException | None]:
        name = call.name
        match action.verdict:
            case Verdict.REPLY:
                assert self._reply is not None
                return self._reply.kind, self._reply.value, self._reply.error
            case Verdict.TIMEOUT:
                assert action.limit is not None
                timeout = CallTimeout(
                    phase=action.phase, limit=action.limit, device=self.spec.device, callable_name=name
                )
                return OutcomeKind.TIMEOUT, None, timeout
            case Verdict.CANCELLED:
                return OutcomeKind.CANCELLED, None, CallCancelled(callable_name=name)
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
                await self._bury()

    async def _serve(self) -> None:
        process = await ChildProcess.spawn(
            python_command("import tunewire.runtime.__main__"),
            env=self._environment(),
            max_frame_bytes=self.spec.max_frame_bytes,
            guarded=sys.platform == "linux",
        )
        self._process = process
        self._stray_phases = 0
        self.processes += 1
        if self.state is not State.STARTING:
            return  # given up while it was spawned
        hello = await process.greet(max_frame_bytes=self.spec.max_frame_bytes, sys_path=_search_path())
        self.pid = hello.pid
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._end_reading_at_exit, process)
            self._post(Started(self._loop.time()))
            await self._read_frames(process)
            watch.cancel_scope.cancel()

    async def _read_frames(self, process: ChildProcess) -> None:
        try:
            while True:
                self._on_frame(await process.connection.read_frame())
        except (EndpointClosed, TruncatedFrame):
            await self._note_end(process)
        except WireError as error:
            self._loss = (OutcomeKind.CRASH, error)
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
            return
        exit_code = await process.exit_code_soon(_END_WAIT)
        reason = None if exit_code is not None else "closed its channel and went on running"
        self._loss = (OutcomeKind.CRASH, self._crash(exit_code=exit_code, reason=reason))

    def _crash(self, *, exit_code: int | None = None, reason: str | None = None) -> WorkerCrashed:
        stdout, stderr = self.output()
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
        )

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        for name, value in self.spec.env.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return environment

    def _on_frame(self, frame: Frame) -> None:
        if frame.call_id == INITIALIZER and self.state is State.INITIALISING:
            self._on_initializer_reply(frame)
        elif frame.kind == Phase.kind:
            self._on_phase(frame)
        elif self._call is not None and frame.call_id == self._call.id and self.state is State.BUSY:
            self._reply = read_reply(frame, self._call)
            self._post(Replied(frame.call_id, self._reply.keep))
        elif self.state in (State.BUSY, State.IDLE, State.INITIALISING, State.STARTING):
            raise WireError(reason=f"a frame for call {frame.call_id}, which is not running", pid=self.pid)

    def _on_phase(self, frame: Frame) -> None:
        phase = expect(frame, Phase)
        if self._call is None or frame.call_id != self._call.id:
            self._stray_phases += 1
            if self._stray_phases > _STRAY_PHASES:
                raise WireError(reason=f"phases of calls that are over, {_STRAY_PHASES} times", pid=self.pid)
        self._post(PhaseEntered(frame.call_id, phase.name, self._loop.time()))

    def _on_initializer_reply(self, frame: Frame) -> None:
        message = read_message(frame)
        if isinstance(message, Result):
            self._post(Initialised(self._loop.time()))
        elif isinstance(message, Failure):
            error = rebuild(message.exception, trusted=self.spec.results is not Codec.MSGSPEC)
            add_note(error, "raised by the initializer; the call did not begin")
            self._loss = (OutcomeKind.ERROR, error)
            self._post(Lost())
        else:
            raise WireError(reason="the initializer was answered with something else", pid=self.pid)

    async def _bury(self) -> None:
        """Whatever brought it here: the call gets its outcome, and of the process nothing is left."""
        process = self._process
        if self._loss is None:
            abandoned = PoolClosed(reason="it failed, or its event loop ended, while the call ran")
            self._loss = (OutcomeKind.CANCELLED, abandoned)
        self._post(Lost())
        if process is not None:
            process.kill()
            await self._reap(process)
            process.close()
        self._process = self.pid = None
        self._post(Gone())

    async def _reap(self, process: ChildProcess) -> None:
        for bound, remedy in ((_GUARD_WAIT, process.kill_group), (_REAP_REPORT, self._report_unreapable)):
            if await process.exit_code_soon(bound) is not None:
                return
            remedy()
        await process.wait()

    def _report_unreapable(self) -> None:
        assert self._process is not None
        log.error(
            "worker %d%s: process %d cannot be reaped; the worker is not used until it is",
            self.index,
            "" if self.spec.device is None else f" on {self.spec.device}",
            self._process.pid,
        )


def _search_path() -> tuple[str, ...]:
    """What this process imports from. Python passes over entries that are not text, so does a child."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))
