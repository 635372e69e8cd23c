"""What a child prints: read as it comes, bounded, its tail kept as text.

The pipe is drained for as long as the child lives, so that no amount of output can block it, and only the last
`limit` bytes are held. `take()` reads what lies in the pipe at this moment before it answers: a child flushes before
it replies, so what a call printed is there when its reply is.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque

_READ_BYTES = 1 << 16
#: Reads of one `take()`: a pipe holds 64 KiB unless enlarged, and a child that floods it must not hold the loop.
_MAX_READS = 4


class OutputCapture:
    """The reading end of one captured stream."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, limit: int, sink: int | None = None) -> None:
        """`sink` is a descriptor that everything is copied to as it comes; what it does not take at once is dropped."""
        self._fd = fd
        self._loop = loop
        self._limit = limit
        self._sink = sink
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._open = True
        os.set_blocking(fd, False)
        self._input = select.poll()
        self._input.register(fd, select.POLLIN)
        loop.add_reader(fd, self._read_once)

    def _read_once(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self.close()
            return False
        self.add(data)
        return True

    def add(self, data: bytes) -> None:
        """Append to the tail, and copy to the sink; also what was read elsewhere."""
        if self._sink is not None:
            self._copy(self._sink, data)
        self._chunks.append(data)
        self._held += len(data)
        while self._held - len(self._chunks[0]) >= self._limit:
            self._held -= len(self._chunks.popleft())

    def _copy(self, sink: int, data: bytes) -> None:
        """To the sink, as much as it takes at once: a full pipe must not hold the loop. The rest of it is dropped."""
        room = select.poll()
        room.register(sink, select.POLLOUT)
        for start in range(0, len(data), select.PIPE_BUF):
            ready = room.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                return
            try:
                os.write(
                    sink, data[start : start + select.PIPE_BUF]
                )  # a pipe that is ready takes this much whole
            except OSError:  # its reader has gone, or it was closed
                self._sink = None
                return

    def _drain(self) -> None:
        for _ in range(_MAX_READS):
            # Asked first: a read that finds nothing costs four times as much, and most calls print nothing.
            if not self._open or not self._input.poll(0) or not self._read_once():
                return

    def text(self) -> str:
        """The tail of all output since the last `take()`."""
        self._drain()
        return b"".join(self._chunks)[-self._limit :].decode("utf-8", "replace")

    def take(self) -> str:
        """The same, and begin anew: the next text belongs to the next call."""
        self._drain()
        if not self._chunks:
            return ""
        text = b"".join(self._chunks)[-self._limit :].decode("utf-8", "replace")
        self.forget()
        return text

    def forget(self) -> None:
        """Begin anew without looking into the pipe: what came so far belongs to no call."""
        self._chunks.clear()
        self._held = 0

    def close(self) -> None:
        """Stop reading; what was read stays."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
