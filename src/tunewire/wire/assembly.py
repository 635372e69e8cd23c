"""From a byte stream that comes in any pieces to whole frames; no input or output.

Most frames are small and come in one piece; such a one is cut out of the piece, and nothing else happens. Of any other
frame the parts are filled one after the other: the table of lengths, the message, each buffer. A buffer has memory of its
own, aligned and writable, since an array that is rebuilt on it must be; so nothing is copied out of a larger whole.

What a hostile peer can make this hold: one frame within the limit. Memory for a buffer is asked for when its turn has
come, and a page of it becomes a real one only when bytes for it arrive. A frame that comes byte by byte costs no more
than one that comes at once.
"""

from __future__ import annotations

from collections.abc import Generator

from tunewire.errors import EndpointClosed, TruncatedFrame
from tunewire.wire.frames import (
    HEADER_BYTES,
    JOIN_BYTES,
    SHARED,
    Buffer,
    Frame,
    Header,
    SharedBuffers,
    parse_header,
    parse_table,
    split_body,
)


def parts_of(header: Header, shared: SharedBuffers | None) -> Generator[int, bytearray, Frame]:
    """The rest of a frame, part by part: asks for so many bytes, is sent them, and returns the frame. WireError if its
    lengths do not agree with each other."""
    if header.length <= JOIN_BYTES:
        return split_body(header, (yield header.length), shared)
    table = parse_table(header, (yield header.table_bytes))
    message = yield table.message_bytes
    buffers: list[Buffer] = []
    for size in table.inline_sizes:
        buffers.append((yield size))
    return Frame(
        header.kind, header.codec, header.call_id, message, table.join(header.codec, buffers, shared)
    )


class _Incomplete:
    """A frame whose end has not come yet: the part that is being filled."""

    def __init__(self, header: Header, shared: SharedBuffers | None) -> None:
        self.expected = HEADER_BYTES + header.length
        self.received = HEADER_BYTES
        self._parts = parts_of(header, shared)
        self._part = bytearray(next(self._parts))
        self._filled = 0

    def fill(self, data: memoryview) -> tuple[int, Frame | None]:
        """How much of `data` it took, and the frame if that was the last of it."""
        taken = 0
        while True:
            count = min(len(self._part) - self._filled, len(data) - taken)
            memoryview(self._part)[self._filled : self._filled + count] = data[taken : taken + count]
            self._filled += count
            taken += count
            self.received += count
            if self._filled < len(self._part):
                return taken, None
            try:
                self._part, self._filled = bytearray(self._parts.send(self._part)), 0
            except StopIteration as end:
                return taken, end.value


class FrameAssembler:
    """Pieces in, frames out, in order.

    >>> from tunewire.wire.messages import Data, pack_message
    >>> data = b"".join(pack_message(Data(), call_id=7)[0])
    >>> assembler, frames = FrameAssembler(1000), []
    >>> assembler.feed(data[:10], frames), assembler.feed(data[10:] + data[:3], frames), len(frames)
    (None, None, 1)
    >>> assembler.end()
    TruncatedFrame('the peer stopped in the middle of a frame, after 3 of 24 bytes.')
    """

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        #: Finds buffers that lie in shared memory; without it no frame may have any.
        self.shared: SharedBuffers | None = None
        self._head = b""
        self._incomplete: _Incomplete | None = None

    def feed(self, data: bytes, frames: list[Frame]) -> None:
        """Append to `frames` what is whole now. WireError at bytes that are no frame; those before it were appended."""
        start = 0
        if self._incomplete is not None:
            start = self._go_on(self._incomplete, data, 0, frames)
        elif self._head:
            data, self._head = self._head + data, b""
        while (left := len(data) - start) >= HEADER_BYTES:
            header = parse_header(
                data[start : start + HEADER_BYTES],
                max_frame_bytes=self.max_frame_bytes,
                flags=0 if self.shared is None else SHARED,
            )
            start += HEADER_BYTES
            if header.length <= JOIN_BYTES and header.length <= left - HEADER_BYTES:
                frames.append(split_body(header, data[start : start + header.length], self.shared))
                start += header.length
            else:
                start = self._go_on(_Incomplete(header, self.shared), data, start, frames)
        if start < len(data):
            self._head = data[start:]

    def _go_on(self, incomplete: _Incomplete, data: bytes, start: int, frames: list[Frame]) -> int:
        taken, frame = incomplete.fill(memoryview(data)[start:])
        self._incomplete = incomplete if frame is None else None
        if frame is not None:
            frames.append(frame)
        return start + taken

    def end(self) -> EndpointClosed | TruncatedFrame:
        """What it means that the stream ends here."""
        if self._incomplete is not None:
            return TruncatedFrame(received=self._incomplete.received, expected=self._incomplete.expected)
        if self._head:
            return TruncatedFrame(received=len(self._head), expected=HEADER_BYTES)
        return EndpointClosed()
