"""Frames over blocking descriptors: the runtime's own, since a worker has no event loop until a call needs one.

Measured: a child that blocks in read(2) answers an echo in two thirds of the time that an asyncio child takes.
"""

from __future__ import annotations

import mmap
import os
from _thread import allocate_lock
from collections.abc import Callable

from tunewire.errors import TruncatedFrame
from tunewire.wire.assembly import parts_of
from tunewire.wire.frames import (
    HEADER_BYTES,
    JOIN_BYTES,
    SHARED,
    Buffer,
    Frame,
    Header,
    parse_header,
    split_body,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.runtime.bulk import BulkLane

#: More than most frames are; a larger one's parts are read where they are to lie.
_READ_BYTES = 1 << 14
#: Linux allows 1024 parts in one writev(2).
_MAX_PARTS = 1024


class Channel:
    """One frame at a time, both ways."""

    def __init__(self, read_fd: int, write_fd: int, max_frame_bytes: int) -> None:
        self._read_fd = read_fd
        self._write_fd = write_fd
        self.max_frame_bytes = max_frame_bytes
        # A thread of a user's may report something while the main thread writes; frames must not interleave.
        self._writing = allocate_lock()
        #: What came with the frame that was read last.
        self._ahead = b""
        #: Where large buffers may lie, once both sides have said so.
        self.memory: mmap.mmap | None = None
        self._lane: BulkLane | None = None

    def has_input(self) -> bool:
        """Whether a read would find something, or the end."""
        if self._ahead:
            return True
        import select  # for an interrupt only

        return bool(select.select([self._read_fd], [], [], 0)[0])

    def read(self) -> Frame | None:
        """The next frame; None when the parent has closed its side. Values of large frames lie in memory of their own,
        aligned and writable, as an array that is rebuilt on them must be."""
        data = self._ahead
        while len(data) < HEADER_BYTES:
            more = os.read(self._read_fd, _READ_BYTES)
            if not more:
                if not data:
                    return None
                raise TruncatedFrame(received=len(data), expected=HEADER_BYTES)
            data += more
        header = parse_header(
            data[:HEADER_BYTES],
            max_frame_bytes=self.max_frame_bytes,
            flags=0 if self.memory is None else SHARED,
        )
        lane = self._lane_now() if header.flags else None
        stop = HEADER_BYTES + header.length
        if len(data) >= stop and header.length <= JOIN_BYTES:
            self._ahead = data[stop:]
            return split_body(header, data[HEADER_BYTES:stop], lane)
        self._ahead = data[HEADER_BYTES:]
        return self._rest_of(header, lane)

    def _lane_now(self) -> BulkLane:
        """Made when the first large buffer comes or goes: ctypes is not worth its 0.3 MB before."""
        if self._lane is None:
            from tunewire.runtime.bulk import BulkLane

            assert self.memory is not None
            self._lane = BulkLane(self.memory, is_parent=False)
        return self._lane

    def _rest_of(self, header: Header, lane: BulkLane | None) -> Frame:
        parts = parts_of(header, lane)
        size = next(parts)
        while True:
            try:
                size = parts.send(self._exactly(size))
            except StopIteration as end:
                frame: Frame = end.value
                return frame

    def _exactly(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        got = min(count, len(self._ahead))
        view[:got], self._ahead = self._ahead[:got], self._ahead[got:]
        while got < count:
            n = os.readv(self._read_fd, [view[got:]])
            if n == 0:
                raise TruncatedFrame(received=got, expected=count)
            got += n
        return data

    def write(self, parts: list[Buffer], *, unless: Callable[[], bool] | None = None) -> None:
        """All of `parts`, in order; nothing, if `unless` says so when it is their turn. The list is used up. BrokenPipeError
        when the parent no longer reads."""
        with self._writing:
            if unless is not None and unless():
                return
            if self._lane is not None or (self.memory is not None and len(parts) > 1):
                parts = self._lane_now().send(parts)
            if len(parts) == 1:  # nearly always
                written = os.write(self._write_fd, parts[0])
                if written == len(parts[0]):
                    return
                parts = [memoryview(parts[0])[written:]]
            rest = [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]
            while rest:
                written = os.writev(self._write_fd, rest[:_MAX_PARTS])
                while rest and written >= rest[0].nbytes:
                    written -= rest.pop(0).nbytes
                if written:
                    rest[0] = rest[0][written:]
