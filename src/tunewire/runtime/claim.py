"""The first thing that a child does: make its protocol pipes its own.

The parent starts a child with fd 0 and fd 1 as the protocol's two pipes, fd 2 as captured output, and one more
descriptor for captured stdout. Whatever user code does with the standard descriptors afterwards (print, a C
library's write to fd 1, closing fd 0, reading stdin) must not reach the protocol. So the child takes private,
close-on-exec copies and points fd 0 at null and fd 1 at the capture before it imports anything of a user's.

What ran earlier, in the interpreter's start (a `.pth` file, sitecustomize), may already have printed into the
protocol pipe. Therefore the child's first bytes are a cookie that the parent made up for this process; what came
before it was output.
"""

from __future__ import annotations

import io
import os
import sys

#: `cookie:capture:parent:memory`: 32 hex digits, the descriptor for captured stdout, the parent's pid, and the
#: descriptor of the shared memory (wire.record, wire.lane) or nothing.
VARIABLE = "TUNEWIRE_CHANNEL"


class Claim:
    """The private descriptors of a child, and what it must say first. A plain class: what would make a shorter one
    would stay in the guard's memory."""

    __slots__ = ("cookie", "memory_fd", "read_fd", "write_fd")

    def __init__(self, read_fd: int, write_fd: int, cookie: bytes, memory_fd: int | None) -> None:
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.cookie = cookie
        self.memory_fd = memory_fd


def close_others(claim: Claim) -> None:
    """Close every descriptor but the standard ones and the claim's: what the spawner's loop left is not a worker's."""
    kept = {0, 1, 2, claim.read_fd, claim.write_fd, claim.memory_fd}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the listing's own, which is closed already
                continue


def _close_copies(kept: set[int | None]) -> None:
    """Close every other descriptor of the protocol's two pipes. A spawner may leave some (uvloop does, inheritable ones),
    and a pipe that a stranger holds open, a grandchild above all, has no end."""
    pipes = [os.fstat(fd) for fd in (0, 1)]
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if fd > 2 and fd not in kept and any(os.path.samestat(os.fstat(fd), pipe) for pipe in pipes):
                os.close(fd)
        except OSError:  # the listing's own, which is closed already
            continue


def claim() -> Claim:
    """Take the protocol's descriptors; RuntimeError in a process that was not started as a child."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        raise RuntimeError(
            "this program speaks to its parent and is not run by hand: start it with tunewire.ParentEndpoint.spawn"
        )
    cookie, capture, _parent_pid, memory = text.split(":")
    capture_fd = int(capture)
    memory_fd = int(memory) if memory else None
    if memory_fd is not None:
        os.set_inheritable(memory_fd, False)
    if os.path.isdir("/proc/self/fd"):
        _close_copies({capture_fd, memory_fd})
    mine = Claim(os.dup(0), os.dup(1), bytes.fromhex(cookie), memory_fd)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(capture_fd, 1)
    os.close(null)
    os.close(capture_fd)
    # A crash loses what is buffered, and a pipe is buffered by default; a line that was printed has been printed.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    return mine
