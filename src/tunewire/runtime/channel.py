"""Frames over blocking descriptors: the runtime's own, since a worker has no event loop until a call needs one.

Measured: a child that blocks in read(2) answers an echo in two thirds of the time that an asyncio child takes.
"""

from __future__ import annotations

import os
import select
from _thread import allocate_lock
from collections.abc import Sequence

from tunewire.errors import TruncatedFrame
from tunewire.wire.assembly import parts_of
from tunewire.wire.frames import HEADER_BYTES, Buffer, Frame, parse_header

#: Linux allows 1024 parts in one writev(2).
_MAX_PARTS = 1024


class Channel:
    """One frame at a time, both ways."""

    def __init__(self, read_fd: int, write_fd: int, max_frame_bytes: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self.max_frame_bytes = max_frame_bytes
        # A thread of a user's may announce a phase while the main thread writes; frames must not interleave.
        self._writing = allocate_lock()

    def has_input(self) -> bool:
        """Whether a read would find something, or the end."""
        return bool(select.select([self._read_fd], [], [], 0)[0])

    def read(self) -> Frame | None:
        """The next frame; None when the parent has closed its side. Values of large frames lie in memory of their own,
        aligned and writable, as an array that is rebuilt on them must be."""
        head = self._read_exactly(HEADER_BYTES, may_end=True)
        if head is None:
            return None
        parts = parts_of(parse_header(head, max_frame_bytes=self.max_frame_bytes))
        size = next(parts)
        while True:
            try:
                size = parts.send(self._exactly(size))
            except StopIteration as end:
                frame: Frame = end.value
                return frame

    def _exactly(self, count: int) -> bytearray:
        data = self._read_exactly(count, may_end=False)
        assert data is not None
        return data

    def _read_exactly(self, count: int, *, may_end: bool) -> bytearray | None:
        data = bytearray(count)
        view = memoryview(data)
        got = 0
        while got < count:
            n = os.readv(self._read_fd, [view[got:]])
            if n == 0:
                if may_end and got == 0:
                    return None
                raise TruncatedFrame(received=got, expected=count)
            got += n
        return data

    def write(self, parts: Sequence[Buffer]) -> None:
        """All of `parts`, in order. BrokenPipeError when the parent no longer reads."""
        with self._writing:
            rest = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
            while rest:
                written = os.writev(self._write_fd, rest[:_MAX_PARTS])
                while rest and written >= rest[0].nbytes:
                    written -= rest.pop(0).nbytes
                if written:
                    rest[0] = rest[0][written:]
