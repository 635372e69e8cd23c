"""From a specification to a process that is ready for calls: for a worker when a call needs it, for a spare before."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from tunewire.endpoints.launch import child_environment, search_path
from tunewire.endpoints.process import ChildProcess, python_command
from tunewire.errors import CallTimeout, EndpointClosed, TruncatedFrame, WireError
from tunewire.wire.codecs import Codec
from tunewire.wire.exceptions import add_note, rebuild
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES, Frame
from tunewire.wire.messages import Failure, Result, read_message
from tunewire.workers.call import PackedFrame
from tunewire.workers.ladder import Ladder
from tunewire.workers.limits import Limits
from tunewire.workers.recycle import Recycle

#: The id of the initializer's call; users' calls count from 1.
INITIALIZER = 0


class WorkerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a worker is made from."""

    device: str | None = None
    #: Over the parent's environment; None removes a variable.
    env: Mapping[str, str | None]
    #: The frame of the initializer's call.
    initializer: PackedFrame | None = None
    preload: tuple[str, ...] = ()
    results: Codec = Codec.PICKLE
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    recycle: Recycle = Recycle()
    idle_limit: float | None = None
    ladder: Ladder = Ladder()
    sinks: tuple[int | None, int | None] = (None, None)
    #: What starts a process; a test may have it started otherwise.
    spawn: Callable[..., Awaitable[ChildProcess]] = ChildProcess.spawn

    @property
    def initialises_spares(self) -> bool:
        """Whether the initializer runs in a spare in advance: not where a device is pinned, whose context it may make."""
        return self.device is None

    @property
    def on_device(self) -> str:
        """For messages."""
        return "" if self.device is None else f" on {self.device}"


class StartedProcess(NamedTuple):
    """A process that takes calls."""

    process: ChildProcess
    pid: int
    initialised: bool


async def spawn(spec: WorkerSpec) -> ChildProcess:
    """Start a process. Cancelling leaves none. StartError if it cannot be run."""
    return await spec.spawn(
        python_command("import tunewire.runtime.__main__"),
        env=child_environment(spec.env),
        max_frame_bytes=spec.max_frame_bytes,
        guarded=sys.platform == "linux",
        sinks=spec.sinks,
    )


async def greet(process: ChildProcess, spec: WorkerSpec) -> int:
    """Until it takes calls; its pid, as it says itself. StartError if it cannot."""
    hello = await process.greet_worker(
        max_frame_bytes=spec.max_frame_bytes, sys_path=search_path(), preload=spec.preload
    )
    return hello.pid


async def make_spare(process: ChildProcess, spec: WorkerSpec, limits: Limits) -> StartedProcess:
    """Bring a spawned process as far as a spare may go. StartError, CallTimeout, or what the initializer raised."""
    async with _within("start", limits.start):
        pid = await greet(process, spec)
    if spec.initializer is None or not spec.initialises_spares:
        return StartedProcess(process, pid, spec.initializer is None)
    process.connection.write_now(*spec.initializer)
    async with _within("init", limits.init):
        try:
            error = initializer_error(await process.connection.read_frame(), spec)
        except (EndpointClosed, TruncatedFrame):
            raise process.start_error("it ended in its initializer") from None
    if error is not None:
        raise error
    return StartedProcess(process, pid, True)


@asynccontextmanager
async def _within(phase: str, limit: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError as error:
        assert limit is not None
        raise CallTimeout(phase=phase, limit=limit, callable_name="a spare") from error


def initializer_error(frame: Frame, spec: WorkerSpec) -> Exception | None:
    """What the initializer raised, from its reply; None if it returned. WireError if that is no reply of its."""
    message = read_message(frame)
    if frame.call_id == INITIALIZER and isinstance(message, Result):
        return None
    if frame.call_id != INITIALIZER or not isinstance(message, Failure):
        raise WireError(reason=f"the initializer was answered with {type(message).__name__}")
    error = rebuild(message.exception, trusted=spec.results is not Codec.MSGSPEC)
    add_note(error, "raised by the initializer; the call did not begin")
    return error


async def bury(process: ChildProcess, ladder: Ladder) -> bool:
    """See that the process and its tree are gone. False if it cannot be reaped in time; then it is still waited for."""
    process.kill()
    if await process.exit_code_soon(ladder.reap) is not None:
        return True
    process.kill_group()  # a guard that was stopped, or that waits for what cannot be reaped
    return await process.exit_code_soon(ladder.reap) is not None
