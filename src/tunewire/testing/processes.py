"""Child processes that are none: in the event loop's own thread, misbehaving by script.

A `FakeProcess` is a real `ChildProcess` (its greeting, its signals to the guard and its way of closing are the real
code) whose operating system is imitated: the process's handle, its pipes, its captured output, its death. What runs in
it is the runtime's real `Executor` on the other end of the pipes, with two differences. A callable that is a coroutine
runs on the loop that is there, so that it can take virtual time; and a callable runs here, where what it does to this
process (its working directory, its modules) stays done. A plain function takes no virtual time.

Dying is what it is for a real process: its ends of the pipes close, what the pipes have taken can still be read, what
they have not is lost, and whoever waits for its exit code gets it when it is reaped.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import platform
import signal
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, Literal, NoReturn

import msgspec

from tunewire.endpoints.capture import OutputCapture
from tunewire.endpoints.connection import Connection
from tunewire.endpoints.process import OUTPUT_TAIL_BYTES, ChildProcess
from tunewire.endpoints.tree import ProcessHandle
from tunewire.errors import EndpointClosed, StartError, TruncatedFrame
from tunewire.runtime import context
from tunewire.runtime.context import CurrentCall, Teller
from tunewire.runtime.execute import Executor, _overlay, _restore
from tunewire.runtime.interrupt import Interrupts
from tunewire.testing.faults import Faults
from tunewire.testing.pipes import connection_pair
from tunewire.version import __version__
from tunewire.wire.codecs import Codec, encode
from tunewire.wire.exceptions import capture
from tunewire.wire.frames import Buffer, Frame
from tunewire.wire.messages import (
    Call,
    Failure,
    Hello,
    Interrupt,
    Note,
    Phase,
    Ready,
    Report,
    Welcome,
    expect,
    pack_message,
    read_message,
)
from tunewire.wire.record import Record

#: Linux gives process ids up to 2 ** 22: no real process has one of these.
_PIDS = itertools.count((1 << 22) + 1)


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """How a fake process behaves; as it should, but for what is said here. Seconds are the loop's.

    It starts: `cannot_start` is the reason why it cannot be run at all; `silent` is one that never says hello;
    `hello_after` the seconds that it takes to.

    It ends by itself, with `exit_code` (negative: by that signal): `ends_at_byte`, when it has written so many bytes (0:
    before its hello, whose first 16 are the cookie); `ends_in_reply`, when it has written so many bytes of a reply.

    It `hangs_up`: closes its channel and lives on, at its "start" or in its first "call".

    It will not end: `deaf` is one that no signal ends or interrupts but the SIGKILL to its group (its guard is stopped);
    `unreapable` one that not even that ends, until the test calls `release`. `reap_seconds` pass from its end to the
    news of it.

    `faults` are those of what it writes. `has_recorder` is whether it has a flight recorder.

    >>> Script(ends_at_byte=0, exit_code=1).silent
    False
    """

    cannot_start: str | None = None
    silent: bool = False
    hello_after: float = 0.0
    ends_at_byte: int | None = None
    ends_in_reply: int | None = None
    exit_code: int = -signal.SIGSEGV
    hangs_up: Literal["start", "call"] | None = None
    deaf: bool = False
    unreapable: bool = False
    reap_seconds: float = 0.0
    faults: Faults = Faults()
    has_recorder: bool = True


class _ProcessExit(BaseException):
    """Leaves the callable and the runtime, as an exit does."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def exit_process(code: int) -> NoReturn:
    """In a callable that runs in a fake process: end the process, as `os._exit` ends a real one.

    >>> async def main():
    ...     async with FakePool() as pool:
    ...         return await pool.run(exit_process, 3)
    >>> from tunewire.testing import FakePool, virtual_loop
    >>> with virtual_loop() as runner:
    ...     runner.run(main()).error.exit_code
    3
    """
    raise _ProcessExit(code)


class _Handle(asyncio.subprocess.Process):
    """What asyncio knows of a process: its id, its exit code, how to wait and to signal."""

    def __init__(self, pid: int, on_signal: Callable[[int], None]) -> None:
        self.pid = pid
        self._on_signal = on_signal
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self.exited.result() if self.exited.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self.exited)

    def send_signal(self, signal: int) -> None:
        if self.exited.done():
            raise ProcessLookupError
        self._on_signal(signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _FakeHandle(ProcessHandle):
    """A handle whose signals reach the fake."""

    def __init__(self, fake: _Handle) -> None:
        self.pid = fake.pid
        self._fake = fake

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            self._fake.send_signal(number)

    def close(self) -> None:
        """Nothing is held."""


class _Capture(OutputCapture):
    """Captured output without a pipe: what is printed is there at once."""

    def __init__(self, sink: int | None) -> None:
        self._limit = OUTPUT_TAIL_BYTES
        self._sink = sink
        self._chunks = deque()
        self._held = 0
        self._open = False  # nothing to read from, nothing to close


class _Stream(io.TextIOBase):
    """What `print` writes to."""

    def __init__(self, output: OutputCapture) -> None:
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._output.add(text.encode("utf-8", "backslashreplace"))
        return len(text)


class _Interrupts(Interrupts):
    """The fake process delivers them itself: a signal's handler would be this process's."""

    def __init__(self) -> None:
        self.interrupted = self.in_import = False

    def arm(self, call_id: int) -> None:
        """Nothing to listen to."""

    def cancel_with(self, cancel: Callable[[], None] | None) -> None:
        """The task is known already."""

    def disarm(self) -> None:
        """Nothing was listened to."""


class _Teller:
    """What a call says goes into the pipe, which takes everything."""

    def __init__(self, call_id: int, call: Call, write: Callable[[list[Buffer], int], None]) -> None:
        self._call_id = call_id
        self._call = call
        self._write = write

    def phase(self, name: str) -> None:
        self._write(*pack_message(Phase(name), call_id=self._call_id))

    def report(self, value: object, progress: float | None) -> None:
        if self._call.streams:
            codec, buffers = encode(value, Codec(self._call.results), what="report")
            message = Report(progress)
            self._write(*pack_message(message, call_id=self._call_id, codec=codec, buffers=tuple(buffers)))

    def note(self, level: int, text: str) -> None:
        if self._call.streams:
            self._write(*pack_message(Note(level, text), call_id=self._call_id))


class _Executor(Executor):
    """The runtime's, but that coroutines run on the loop that is there.

    For a coroutine there are two rounds: the first makes it; the second, when it is over, is given what became of it, and
    makes the reply of that.
    """

    def __init__(self, max_frame_bytes: int, inside: Callable[[], AbstractContextManager[None]]) -> None:
        self._deliveries = _Interrupts()
        super().__init__(max_frame_bytes, self._deliveries)
        self._inside = inside
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._exit: _ProcessExit | None = None
        self._current: CurrentCall | None = None

    async def execute_here(self, frame: Frame, call: Call, teller: Teller) -> list[Buffer]:
        """The reply to `call`."""
        self._deliveries.interrupted = False
        reply = self._round(frame, call, teller)
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return reply
        self._task = asyncio.ensure_future(self._drive(coroutine, call, teller))
        try:
            await asyncio.wait([self._task])
            return self._round(frame, call, teller)
        finally:
            self._task.cancel()
            self._task = None

    def interrupt(self, *, raises: bool) -> None:
        """Stop the coroutine that runs, if one does, or let it know that nobody waits for it."""
        if self._current is not None:
            self._current.cancel()
        if self._task is not None and raises:
            self._deliveries.interrupted = True
            self._task.cancel()

    def _round(self, frame: Frame, call: Call, teller: Teller) -> list[Buffer]:
        with self._inside():
            reply = self.execute(frame.call_id, list(frame.buffers), call, teller)
        if self._exit is not None:
            raise self._exit
        return reply

    def _invoke(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, streams: bool
    ) -> Any:
        try:
            if self._task is not None:
                return self._task.result()
            return super()._invoke(function, args, kwargs, streams=streams)
        except _ProcessExit as end:
            self._exit = end

    def _run_awaitable(self, awaitable: Awaitable[Any]) -> None:
        self._coroutine = _awaiting(awaitable)

    async def _drive(self, coroutine: Coroutine[Any, Any, Any], call: Call, teller: Teller) -> Any:
        current = self._current = CurrentCall(call.phase, teller, call.limits)
        try:
            return await _Stepped(coroutine, lambda: self._around_step(current, call.env))
        finally:
            current.end()
            self._current = None

    @contextmanager
    def _around_step(self, current: CurrentCall, env: dict[str, str | None] | None) -> Iterator[None]:
        outside, context._current = context._current, current
        restore = _overlay(env)
        try:
            with self._inside():
                yield
        finally:
            _restore(restore)
            context._current = outside


class _Stepped:
    """A coroutine, each of whose steps is run within a context: where several fakes share a thread, what belongs to one
    of them must not be seen while another runs."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], around: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._coroutine = coroutine
        self._around = around

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = lambda: self._coroutine.send(None)  # noqa: E731
        while True:
            try:
                with self._around():
                    waited_for = step()
            except StopIteration as end:
                return end.value
            try:
                yield waited_for
                step = lambda: self._coroutine.send(None)  # noqa: E731
            except BaseException as error:  # noqa: BLE001 — what the loop throws in is the coroutine's
                step = _throwing(self._coroutine, error)


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _throwing(coroutine: Coroutine[Any, Any, Any], error: BaseException) -> Callable[[], Any]:
    return lambda: coroutine.throw(error)


class FakeProcess(ChildProcess):
    """Stands where a worker's ChildProcess stands. Made by a `FakeSpawner`.

    `script` is what it was made from; `signals` are the numbers of those that were sent to it, in order.

    >>> async def main():
    ...     process = await FakeSpawner(Script(deaf=True))(["anything"], env={}, max_frame_bytes=1000, guarded=True)
    ...     await process.greet_worker(max_frame_bytes=1000, sys_path=())
    ...     process.kill()
    ...     still_there = await process.exit_code_soon(60.0) is None
    ...     process.kill_group()
    ...     exit_code = await process.wait()
    ...     process.close()
    ...     return still_there, exit_code
    >>> from tunewire.testing import virtual_loop
    >>> with virtual_loop() as runner:
    ...     runner.run(main())
    (True, -9)
    """

    def __init__(
        self,
        script: Script,
        command: tuple[str, ...],
        *,
        max_frame_bytes: int,
        guarded: bool,
        sinks: tuple[int | None, int | None],
    ) -> None:
        self.script = script
        self.signals: list[int] = []
        self._fake = _Handle(next(_PIDS), self._on_signal)
        mine, its = connection_pair(max_frame_bytes=max_frame_bytes, faults=script.faults)
        cookie = self._fake.pid.to_bytes(16)
        stdout, stderr = map(_Capture, sinks)
        super().__init__(self._fake, mine, stdout, stderr, command, cookie, None, guarded=guarded)
        self._handle = _FakeHandle(self._fake)
        self._faulty = mine
        self._program = _Program(self, its, cookie, max_frame_bytes)
        self._life = asyncio.create_task(self._live(), name=f"fake process {self.pid}")
        self._has_ended = False
        self._let_go = False
        self._withheld: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return self.exit_code is not None

    async def _live(self) -> None:
        try:
            exit_code = await self._program.run()
        except _ProcessExit as end:
            exit_code = end.code
        except Exception:  # noqa: BLE001 — as in the runtime: it is told on stderr, and then the process is at its end
            self.stderr.add(traceback.format_exc().encode())
            exit_code = 1
        self._end(exit_code)

    def _on_signal(self, number: int) -> None:
        """What the guard does, or the kernel if there is none."""
        self.signals.append(number)
        if self.script.deaf:
            return
        if number == signal.SIGUSR1:
            self._end(-signal.SIGTERM)
        elif number == signal.SIGUSR2:
            self._program.interrupt()
        else:
            self._end(-signal.SIGKILL if self._guarded else -number)

    def kill_group(self) -> None:
        """SIGKILL, which ends all but an unreapable one."""
        if self.exit_code is None:
            self.signals.append(signal.SIGKILL)
            self._end(-signal.SIGKILL)

    def _seconds_since(self, began_ns: int) -> float:
        return asyncio.get_running_loop().time() - began_ns / 1e9

    def recorded(self) -> Record | None:
        """What its flight recorder says, if it has one."""
        return self._program.record if self.script.has_recorder else None

    def die(self, exit_code: int) -> None:
        """End it now, whatever it does, as if by itself."""
        self._end(exit_code)

    def release(self) -> None:
        """Let an unreapable process end; and end a stall of its stream."""
        self._let_go = True
        self._faulty.release()
        if self._withheld is not None:
            self._end(self._withheld)

    def _end(self, exit_code: int) -> None:
        if self._has_ended:
            return
        self._life.cancel()
        if self.script.unreapable and not self._let_go:
            self._withheld = exit_code
            return
        self._has_ended = True
        self._program.connection.close()
        asyncio.get_running_loop().call_later(
            self.script.reap_seconds, self._fake.exited.set_result, exit_code
        )


class _Program:
    """What runs in a fake process: `tunewire.runtime.serve`, as a coroutine."""

    def __init__(
        self, process: FakeProcess, connection: Connection, cookie: bytes, max_frame_bytes: int
    ) -> None:
        self._process = process
        self._script = process.script
        self.connection = connection
        self._cookie = cookie
        self._executor = _Executor(max_frame_bytes, self._printing)
        self._written = 0
        self._running: int | None = None
        self._finished = 0
        self.record = Record(0, 0, 0)

    async def run(self) -> int:
        """Until the parent closes its side; the exit code."""
        try:
            await self._say_hello()
            await self._settle_in(expect(await self.connection.read_frame(), Welcome))
            if self._script.hangs_up == "start":
                await self._hang_up()
            while True:
                await self._serve(await self.connection.read_frame())
        except (EndpointClosed, TruncatedFrame):
            return 0

    async def _say_hello(self) -> None:
        await asyncio.sleep(self._script.hello_after)
        if self._script.silent:
            await _for_ever()
        hello = Hello(
            tunewire=__version__,
            python=platform.python_version(),
            pid=self._process.pid,
            capabilities=("interrupt",),
        )
        await self._say([self._cookie, *pack_message(hello)[0]])

    async def _settle_in(self, welcome: Welcome) -> None:
        try:
            for name in welcome.preload:
                __import__(name)
        except BaseException as error:
            await self._say(pack_message(Failure(capture(error, with_pickle=False)))[0])
            raise _ProcessExit(1) from error
        await self._say(pack_message(Ready())[0])

    async def _serve(self, frame: Frame) -> None:
        message = read_message(frame)
        if isinstance(message, Interrupt):
            return  # for a call that is over
        assert isinstance(message, Call)
        self._note(frame.call_id)
        if self._script.hangs_up == "call":
            await self._hang_up()
        self._running = frame.call_id
        try:
            reply = await self._executor.execute_here(
                frame, message, _Teller(frame.call_id, message, self._tell)
            )
        finally:
            self._running = None
        self._finished += 1
        self._note(frame.call_id)
        await self._say(reply, is_reply=True)

    def _note(self, call_id: int) -> None:
        began_ns = max(
            1, int(asyncio.get_running_loop().time() * 1e9)
        )  # 0 would say that it is being unpickled
        self.record = Record(call_id, began_ns, self._finished)

    def _tell(self, parts: list[Buffer], size: int) -> None:
        self._written += size
        self.connection.write(parts, size)

    def interrupt(self) -> None:
        """The soft interrupt's signal has come: its frame is the next in the pipe, which nobody else reads now."""
        if self._running is not None:
            self._taking = asyncio.ensure_future(self._take_interrupt(self._running))

    async def _take_interrupt(self, running: int) -> None:
        try:
            frame = await self.connection.read_frame()
        except EndpointClosed:
            return  # it was ended meanwhile
        message = expect(frame, Interrupt)
        if frame.call_id == running == self._running:
            self._executor.interrupt(raises=message.raises)

    async def _say(self, parts: Sequence[Buffer], *, is_reply: bool = False) -> None:
        data = b"".join(parts)
        ends_after = [] if self._script.ends_at_byte is None else [self._script.ends_at_byte - self._written]
        if is_reply and self._script.ends_in_reply is not None:
            ends_after.append(self._script.ends_in_reply)
        stop = min(ends_after, default=len(data) + 1)
        self._written += len(data)
        if stop <= len(data):
            self.connection.write_now([data[:stop]], stop)
            await self.connection.close_writing()  # all of it has left the process when it ends
            raise _ProcessExit(self._script.exit_code)
        self.connection.write_now([data], len(data))
        await self.connection.drain()

    async def _hang_up(self) -> NoReturn:
        self.connection.close()
        await _for_ever()

    @contextmanager
    def _printing(self) -> Iterator[None]:
        with redirect_stdout(_Stream(self._process.stdout)), redirect_stderr(_Stream(self._process.stderr)):
            yield


async def _for_ever() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nothing ends it")


class FakeSpawner:
    """Starts fake processes: callable as `ChildProcess.spawn` is.

    The first process follows the first script, the second the second, and those after the last one the last; without
    scripts they behave as they should. `processes` are all that were started.

    >>> async def main():
    ...     spawner = FakeSpawner(Script(ends_at_byte=20), Script())
    ...     await spawner(["anything"], env={}, max_frame_bytes=1000, guarded=True)
    ...     return spawner.processes[0].script.ends_at_byte
    >>> from tunewire.testing import virtual_loop
    >>> with virtual_loop() as runner:
    ...     runner.run(main())
    20
    """

    def __init__(self, *scripts: Script) -> None:
        self._scripts = scripts or (Script(),)
        self.processes: list[FakeProcess] = []
        self.attempts = 0

    @property
    def living(self) -> int:
        """How many processes have started and not ended."""
        return sum(not process.has_ended for process in self.processes)

    async def __call__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],  # noqa: ARG002 — a callable here has this process's environment
        cwd: str | None = None,  # noqa: ARG002
        max_frame_bytes: int,
        guarded: bool,
        sinks: tuple[int | None, int | None] = (None, None),
    ) -> FakeProcess:
        """The next process. StartError if its script says that it cannot be run."""
        script = self._scripts[min(self.attempts, len(self._scripts) - 1)]
        self.attempts += 1
        await asyncio.sleep(0)
        if script.cannot_start is not None:
            raise StartError(command=command, reason=script.cannot_start)
        process = FakeProcess(
            script, tuple(command), max_frame_bytes=max_frame_bytes, guarded=guarded, sinks=sinks
        )
        self.processes.append(process)
        return process
