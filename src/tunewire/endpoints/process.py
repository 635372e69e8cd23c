"""One child process: started, spoken with, ended, reaped. Decides nothing.

The pipes are made here and not by asyncio: then `Process.wait()` waits for the process alone (since Python 3.11 it
also waits for pipes that asyncio made, and a grandchild can hold those open for ever), uvloop's children get pipes
and not sockets, and captured output can be drained at the moment of a reply.

Two kinds of children. A *guarded* one is started by a guard (runtime.guard), which is the process that is known here: a
SIGTERM to it takes the whole tree down, and its end means that the tree is gone. Where there is no guard (elsewhere than
on Linux) it leads a process group of its own; its group and the descendants that can be found are killed one by one, which
a daemon can escape.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import anyio

from tunewire.endpoints.capture import OutputCapture
from tunewire.endpoints.connection import Connection
from tunewire.endpoints.tree import ProcessHandle, descendants
from tunewire.errors import EndpointClosed, StartError, TruncatedFrame, WireError
from tunewire.runtime.claim import VARIABLE
from tunewire.runtime.memory import has_lane
from tunewire.version import __version__
from tunewire.wire.exceptions import rebuild
from tunewire.wire.lane import BULK, FILE_BYTES
from tunewire.wire.messages import (
    Failure,
    Hello,
    Interrupt,
    Ready,
    Welcome,
    expect,
    pack_message,
    read_message,
)
from tunewire.wire.record import PAGE_BYTES, Record, read_peak, read_record

#: Kept of each output stream.
OUTPUT_TAIL_BYTES = 16 * 1024
_COOKIE_BYTES = 16
#: How long the exit code of a child is waited for that ended its stream before it said hello.
_EXIT_CODE_WAIT = 1.0
_REAP_BOUND = 5.0


def signal_name(exit_code: int | None) -> str | None:
    """The name of the signal that ended a process with this exit code, or None if none did.

    >>> signal_name(-11)
    'SIGSEGV'
    """
    if exit_code is None or exit_code >= 0:
        return None
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


class _Pipes:
    """The four pipes of a child, closed unless taken."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self.recorder: int | Literal[""] = ""
        self._memory: mmap.mmap | None = None
        try:
            self._make()
        except OSError:  # out of descriptors, half-way
            self.close()
            raise

    def _make(self) -> None:
        self.stdin, self.to_child = self._pair()
        self.from_child, self.stdout = self._pair()
        self.captured_out, self.capture_out = self._pair()
        self.captured_err, self.capture_err = self._pair()

    def _pair(self) -> tuple[int, int]:
        pair = os.pipe()
        self._open.update(pair)
        return pair

    @property
    def passed(self) -> tuple[int, ...]:
        """What the child gets besides the standard three."""
        return (self.capture_out, *([self.recorder] if isinstance(self.recorder, int) else []))

    def make_memory(self) -> None:
        """The flight recorder's page and the bulk lane (wire.lane): a memory file of fixed size, whose pages are real once
        they are written. A child that could shorten it would kill its reader with SIGBUS, so it is sealed. There is none
        where the system has none, and no lane where files or addresses are limited."""
        if not hasattr(os, "memfd_create"):
            return
        fd = os.memfd_create("tunewire", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._open.add(fd)
        try:
            os.ftruncate(fd, FILE_BYTES)
            self._memory = mmap.mmap(fd, 0)
        except OSError:
            os.ftruncate(fd, PAGE_BYTES)
            self._memory = mmap.mmap(fd, PAGE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self.recorder = fd

    def take_memory(self) -> mmap.mmap | None:
        memory, self._memory = self._memory, None
        return memory

    def take(self, fd: int) -> int:
        self._open.discard(fd)
        return fd

    def close_childs(self) -> None:
        for fd in (self.stdin, self.stdout, self.capture_err, *self.passed):
            os.close(self.take(fd))

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())
        if self._memory is not None:
            self._memory.close()


@contextmanager
def _pipes() -> Iterator[_Pipes]:
    pipes = _Pipes()
    try:
        yield pipes
    finally:
        pipes.close()


async def _end_unwanted(spawning: asyncio.Task[ChildProcess]) -> None:
    """Whoever asked for it has gone."""
    await asyncio.wait([spawning])
    if not spawning.cancelled() and spawning.exception() is None:
        await spawning.result().end(0.0)


class ChildProcess:
    """A started process and everything of ours that belongs to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        connection: Connection,
        stdout: OutputCapture,
        stderr: OutputCapture,
        command: tuple[str, ...],
        cookie: bytes,
        memory: mmap.mmap | None,
        *,
        guarded: bool,
    ) -> None:
        self._process = process
        self._handle = ProcessHandle(process.pid)
        self._below: list[ProcessHandle] = []
        self.capabilities: tuple[str, ...] = ()
        self.connection = connection
        self.stdout = stdout
        self.stderr = stderr
        self.command = command
        self._cookie = cookie
        self._memory = memory
        self._guarded = guarded

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        max_frame_bytes: int,
        guarded: bool,
        linger: float = 0.0,
        sinks: tuple[int | None, int | None] = (None, None),
    ) -> ChildProcess:
        """Start `command`; what it prints and writes to stderr is copied to `sinks`. If this process ends, a guard kills
        it when it has had `linger` seconds to end by itself.

        Cancelling in any moment leaves no process: one that was on its way is killed and reaped first.

        Raises StartError if it cannot be run.
        """
        if not command:
            raise StartError(command=(), reason="there is no program in an empty command")
        # asyncio has a live process and no owner for it between its fork and its return (cpython#103847), and uvloop a
        # descriptor between a pipe's opening and its transport: so none of it is ever cancelled half-way.
        spawning = asyncio.ensure_future(
            cls._spawn(
                command,
                env,
                cwd,
                max_frame_bytes=max_frame_bytes,
                guard=_guard_command(linger) if guarded else (),
                sinks=sinks,
            )
        )
        try:
            return await asyncio.shield(spawning)
        except asyncio.CancelledError:
            # A scope that was cancelled would cancel each further await too; who cancels twice does not wait.
            with anyio.CancelScope(shield=True):
                await asyncio.shield(_end_unwanted(spawning))
            raise
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or in the environment
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise StartError(command=command, reason=reason) from error

    @classmethod
    async def _spawn(
        cls,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        *,
        max_frame_bytes: int,
        guard: tuple[str, ...],
        sinks: tuple[int | None, int | None],
    ) -> ChildProcess:
        cookie = os.urandom(_COOKIE_BYTES)
        with _pipes() as pipes:
            if guard:
                pipes.make_memory()
            process = await asyncio.create_subprocess_exec(
                *guard,
                *command,
                stdin=pipes.stdin,
                stdout=pipes.stdout,
                stderr=pipes.capture_err,
                pass_fds=pipes.passed,
                env={**env, VARIABLE: f"{cookie.hex()}:{pipes.capture_out}:{os.getpid()}:{pipes.recorder}"},
                cwd=cwd,
                start_new_session=True,
            )
            try:
                pipes.close_childs()
                connection = await Connection.open(
                    pipes.take(pipes.from_child), pipes.take(pipes.to_child), max_frame_bytes=max_frame_bytes
                )
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
            loop = asyncio.get_running_loop()
            stdout = OutputCapture(pipes.take(pipes.captured_out), loop, OUTPUT_TAIL_BYTES, sinks[0])
            stderr = OutputCapture(pipes.take(pipes.captured_err), loop, OUTPUT_TAIL_BYTES, sinks[1])
            memory = pipes.take_memory()
        return cls(process, connection, stdout, stderr, tuple(command), cookie, memory, guarded=bool(guard))

    @property
    def pid(self) -> int:
        """Of the process that was started; of a guarded one, its guard."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it lives."""
        return self._process.returncode

    async def greet_worker(
        self, *, max_frame_bytes: int, sys_path: tuple[str, ...], preload: tuple[str, ...] = ()
    ) -> Hello:
        """`greet`, and wait until it is ready. StartError if it cannot settle in."""
        hello = await self.greet(max_frame_bytes=max_frame_bytes, sys_path=sys_path, preload=preload)
        await self._until_ready()
        return hello

    async def greet(
        self, *, max_frame_bytes: int, sys_path: tuple[str, ...] | None = None, preload: tuple[str, ...] = ()
    ) -> Hello:
        """Wait for the child's hello and answer it. StartError if it is not one of ours; no bound of its own."""
        try:
            stray = await self.connection.read_until_cookie(self._cookie, OUTPUT_TAIL_BYTES)
        except asyncio.IncompleteReadError as error:
            self.stdout.add(error.partial)
            raise await self._no_hello("it ended before it said hello") from None
        if stray:
            self.stdout.add(stray)
        try:
            hello = expect(await self.connection.read_frame(), Hello)
        except (EndpointClosed, TruncatedFrame):
            raise await self._no_hello("it ended before it said hello") from None
        except WireError as error:
            raise self.start_error(f"it is no child of this version: {error}") from error
        self.capabilities = hello.capabilities
        has_bulk = BULK in hello.capabilities and has_lane(self._memory)
        welcome = Welcome(
            tunewire=__version__,
            max_frame_bytes=max_frame_bytes,
            capabilities=(BULK,) if has_bulk else (),
            sys_path=None if sys_path is None else tuple(map(os.fsencode, sys_path)),
            preload=preload,
        )
        self.connection.write(*pack_message(welcome))
        if has_bulk:
            assert self._memory is not None
            self.connection.share(self._memory, is_parent=True)
        return hello

    async def _until_ready(self) -> None:
        try:
            message = read_message(await self.connection.read_frame())
        except (EndpointClosed, TruncatedFrame):
            raise await self._no_hello("it ended before it was ready") from None
        except WireError as broken:
            raise self.start_error(f"it is no child of this version: {broken}") from broken
        if isinstance(message, Failure):
            error = rebuild(message.exception, trusted=False)
            raise self.start_error(f"a module to preload failed: {error}") from error
        if not isinstance(message, Ready):
            raise self.start_error(f"it said {type(message).__name__} before it was ready")

    def began(self, call_id: int, now: float) -> float | None:
        """When the callable of this call began, by the clock that shows `now`; infinite while it is being unpickled; None
        where the flight recorder says nothing of this call."""
        record = self.recorded()
        if record is None or record.call_id != call_id:
            return None
        return now - self._seconds_since(record.began_ns) if record.began_ns else math.inf

    def _seconds_since(self, began_ns: int) -> float:
        return time.monotonic() - began_ns / 1e9

    def recorded(self) -> Record | None:
        """What the flight recorder says, if there is one. The child can write what it likes there."""
        return None if self._memory is None else read_record(self._memory)

    def peak_bytes(self) -> int | None:
        """The most resident memory that it held, once it has ended; None where there is no guard to tell."""
        return None if self._memory is None else read_peak(self._memory)

    async def _no_hello(self, reason: str) -> StartError:
        await self.exit_code_soon(_EXIT_CODE_WAIT)
        return self.start_error(reason)

    def start_error(self, reason: str) -> StartError:
        """`reason`, with what is known of the child."""
        name = signal_name(self.exit_code)
        if name is not None:
            reason = f"{reason} (ended by {name})"
        elif self.exit_code is not None:
            reason = f"{reason} (exit code {self.exit_code})"
        output = self.stderr.text() or self.stdout.text()
        return StartError(command=self.command, reason=reason, exit_code=self.exit_code, output=output)

    async def exit_code_soon(self, bound: float) -> int | None:
        """The exit code of a process whose stream has ended; None if it goes on living past the bound."""
        with suppress(TimeoutError):
            async with asyncio.timeout(bound):
                return await self._process.wait()
        return None

    async def wait(self) -> int:
        """Until it has ended and is reaped; of a guarded one, its whole tree. Its exit code, negative for a signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """Begin to end the process and its tree. Never waits."""
        if self.exit_code is not None:
            return
        if self._guarded:
            self._handle.signal(signal.SIGTERM)
        else:
            self.kill_group()

    def terminate(self) -> None:
        """SIGTERM to the process itself, if it is known for certain."""
        if self._guarded:
            self._handle.signal(signal.SIGUSR1)

    def interrupt(self, call_id: int, *, raises: bool = True) -> None:
        """Raise an exception in the call of this number, if it still runs, and if the process knows how; or only let it
        know that nobody waits for it."""
        if self._guarded and "interrupt" in self.capabilities:
            self.connection.write_now(*pack_message(Interrupt(raises), call_id=call_id))
            self._handle.signal(signal.SIGUSR2)

    def remember_tree(self) -> None:
        """Take hold of what lives below a process that has no guard, and may end before it can be asked."""
        for pid in descendants(self.pid):
            self._below.append(ProcessHandle(pid))

    def kill_group(self) -> None:
        """SIGKILL to the process group and to every descendant that can be found: for a child without a guard, or whose
        guard does not answer."""
        if self.exit_code is None:
            self.remember_tree()
            # The group of a process that is not reaped is its own. It names it still after a fork or an exec.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._handle.signal(signal.SIGKILL)
        for handle in self._below:
            handle.signal(signal.SIGKILL)

    async def end(self, grace: float) -> None:
        """Close its stdin, give it `grace` seconds to end by itself, then kill its whole tree and let go of its pipes.

        However this ends, the process is killed and its pipes are closed: in its grace the event loop itself may end.
        """
        try:
            self.remember_tree()
            if self.exit_code is None and grace:
                with suppress(TimeoutError):
                    async with asyncio.timeout(grace):
                        await self.connection.close_writing()
                        await self.wait()
            self.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(_REAP_BOUND):
                    await self.wait()
        finally:
            self.kill_group()
            self.close()

    def close(self) -> None:
        """Let go of its pipes. The tails of its output stay."""
        self.connection.close()
        self.stdout.close()
        self.stderr.close()
        for handle in (self._handle, *self._below):
            handle.close()
        if self._memory is not None:
            with suppress(BufferError):  # arrays lie in it: it is gone with the last of them
                self._memory.close()
            self._memory = None


def python_command(statement: str, *arguments: str) -> tuple[str, ...]:
    """What runs one statement, an import of this package, in a new interpreter.

    That is `python -m`, but for where modules are looked for. `-P` keeps the working directory out of the search path:
    a `signal.py` there must not run instead of the standard library's. And this package is found even where only this
    process's own `sys.path` knows it.
    """
    return (sys.executable, "-P", "-c", _importing(statement), *arguments)


def _guard_command(linger: float) -> tuple[str, ...]:
    """What runs the command that is put behind it under a guard: an interpreter that reads no variable and no site."""
    options = ("-I", "-S", "-B") if sys.dont_write_bytecode else ("-I", "-S")
    return (
        sys.executable,
        *options,
        "-c",
        _importing(f"from tunewire.runtime.guard import main; main({linger!r})"),
    )


def _importing(statement: str) -> str:
    home = os.path.abspath(f"{__file__}/../../..")
    return f"import sys; sys.path.append({home!r}); {statement}"
