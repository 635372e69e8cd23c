"""The worker's loop: read a call, run it, write its reply; blocking, on the main thread."""

from __future__ import annotations

import importlib
import os
import platform
import sys

from tunewire.errors import TruncatedFrame, WireError
from tunewire.runtime.announcer import Announcer
from tunewire.runtime.channel import Channel
from tunewire.runtime.claim import Claim
from tunewire.runtime.execute import Executor, flush_output, note_own_modules
from tunewire.runtime.interrupt import Interrupts
from tunewire.runtime.memory import has_lane, map_memory
from tunewire.runtime.recorder import Recorder
from tunewire.version import __version__
from tunewire.wire.exceptions import capture
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.lane import BULK
from tunewire.wire.messages import (
    Call,
    Failure,
    Hello,
    Interrupt,
    Ready,
    Welcome,
    expect,
    pack_message,
    read_message,
)

#: What a parent may ask of this process beyond running calls.
_CAPABILITIES = ("interrupt",)


def serve(claim: Claim) -> int:
    """Serve until the parent closes its side; the exit code."""
    note_own_modules()
    memory = map_memory(claim.memory_fd)
    channel = Channel(claim.read_fd, claim.write_fd, DEFAULT_MAX_FRAME_BYTES)
    hello = Hello(
        tunewire=__version__,
        python=platform.python_version(),
        pid=os.getpid(),
        capabilities=(*_CAPABILITIES, *([BULK] if has_lane(memory) else [])),
    )
    try:
        channel.write([claim.cookie, *pack_message(hello)[0]])
        frame = channel.read()
        if frame is None:
            return 0
        welcome = expect(frame, Welcome)
        if BULK in welcome.capabilities:
            channel.memory = memory
        _settle_in(channel, welcome)
        _serve_calls(channel, Recorder(memory))
    except (BrokenPipeError, TruncatedFrame):
        # The parent has gone, or has given this process up: nobody is left to tell.
        return 0
    finally:
        flush_output()
    return 0


def _settle_in(channel: Channel, welcome: Welcome) -> None:
    channel.max_frame_bytes = welcome.max_frame_bytes
    if welcome.sys_path is not None:
        sys.path[:] = map(os.fsdecode, welcome.sys_path)
    try:
        for name in welcome.preload:
            importlib.import_module(name)
    except BaseException as error:
        channel.write(pack_message(Failure(capture(error, with_pickle=False)))[0])
        raise
    channel.write(pack_message(Ready())[0])


def _serve_calls(channel: Channel, recorder: Recorder) -> None:
    interrupts = Interrupts(channel)
    announcer = Announcer(channel, interrupts)
    executor = Executor(channel.max_frame_bytes, interrupts)
    while (frame := channel.read()) is not None:
        message = read_message(frame)
        if isinstance(message, Interrupt):
            continue  # for a call that is over
        if not isinstance(message, Call):
            raise WireError(reason=f"Call expected, {type(message).__name__} came")
        call_id, buffers = frame.call_id, list(frame.buffers)
        # Nothing here refers to what came any more when the reply is written: see BulkLane.send.
        del frame
        recorder.read(call_id)
        announcer.begin(call_id, message)
        reply = executor.execute(call_id, buffers, message, announcer, recorder.begin)
        announcer.end()
        recorder.finish()
        channel.write(reply)
