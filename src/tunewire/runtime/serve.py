"""The worker's loop: read a call, run it, write its reply; blocking, on the main thread."""

from __future__ import annotations

import os
import platform
import sys

from tunewire.errors import TruncatedFrame
from tunewire.runtime.channel import Channel
from tunewire.runtime.claim import Claim
from tunewire.runtime.execute import Executor, flush_output
from tunewire.version import __version__
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.messages import Call, Hello, Phase, Welcome, expect, pack_message


def serve(claim: Claim) -> int:
    """Serve until the parent closes its side; the exit code."""
    channel = Channel(claim.read_fd, claim.write_fd, DEFAULT_MAX_FRAME_BYTES)
    hello = Hello(tunewire=__version__, python=platform.python_version(), pid=os.getpid())
    try:
        channel.write([claim.cookie, *pack_message(hello)[0]])
        frame = channel.read()
        if frame is None:
            return 0
        _settle_in(channel, expect(frame, Welcome))
        executor = Executor(channel.max_frame_bytes)
        while (frame := channel.read()) is not None:
            call_id, call = frame.call_id, expect(frame, Call)

            def announce(phase: str, call_id: int = call_id) -> None:
                channel.write(pack_message(Phase(phase), call_id=call_id)[0])

            channel.write(executor.execute(frame, call, announce))
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
