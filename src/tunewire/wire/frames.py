"""The layout of a frame: what is on the wire, byte by byte, without any input or output.

A frame is a header of 24 bytes and what its `length` counts:

    offset size  field
         0    2  magic, the bytes "tw"
         2    1  protocol version
         3    1  kind: which message (wire.messages)
         4    1  codec of the value that the buffers carry (wire.codecs), 0 for none
         5    1  flags: 1 where a buffer lies in shared memory (wire.lane), else 0
         6    2  buffer count, n
         8    8  call id
        16    8  length: bytes that follow the header
        24   8n  n buffer lengths; with the flag 16n, of each buffer its length and its place
         …   …   the message, a msgpack array
                 then the buffers, one after the other, but for those that have a place in shared memory

Integers are unsigned and little-endian. The message holds what the protocol needs to know; a user's value travels
in the buffers, the first being its serialized form and the others its out-of-band parts (pickle protocol 5), so
that a large array is never copied into a message.

What is guaranteed: `parse_header` and `split_body` accept whatever bytes a hostile peer sends, and either return
parts that lie within the bytes given or raise WireError. Nothing is allocated on the word of a length before that
length was compared with the limit, which counts what lies in shared memory too.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from tunewire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"tw"
PROTOCOL: Final = 1
HEADER: Final = struct.Struct("<2sBBBBHQQ")
HEADER_BYTES: Final = HEADER.size
#: Also the bound of a pickle that a peer may make us hold; a pool may be opened with another.
DEFAULT_MAX_FRAME_BYTES: Final = 1 << 30
MAX_BUFFERS: Final = 0xFFFF

#: The flag of a frame of which buffers lie in shared memory, and the place of a buffer of such a frame that does not.
SHARED: Final = 1
INLINE: Final = (1 << 64) - 1

#: Below this, parts are joined and written with one system call; above it, a copy costs more than a call.
JOIN_BYTES: Final = 1 << 16


class Header(NamedTuple):
    """A header whose fields are consistent with each other and within the limit."""

    kind: int
    codec: int
    flags: int
    buffer_count: int
    call_id: int
    length: int
    limit: int

    @property
    def table_bytes(self) -> int:
        return (16 if self.flags & SHARED else 8) * self.buffer_count


class Frame(NamedTuple):
    """One frame, taken apart: the bytes of its message, and the buffers of its value."""

    kind: int
    codec: int
    call_id: int
    message: Buffer
    buffers: tuple[Buffer, ...] = ()


def pack(
    kind: int, message: bytes, *, call_id: int = 0, codec: int = 0, buffers: Sequence[Buffer] = ()
) -> tuple[list[Buffer], int]:
    """The parts of a frame in the order in which they are written, and how many bytes they are.

    A small frame is one part.
    """
    count = len(buffers)
    if count > MAX_BUFFERS:
        raise WireError(reason=f"a frame carries at most {MAX_BUFFERS} buffers, not {count}")
    sizes = [
        len(buffer)
        if type(buffer) is bytes
        else memoryview(buffer).nbytes  # the cheaper, where it is the same
        for buffer in buffers
    ]
    length = 8 * count + len(message) + sum(sizes)
    head = HEADER.pack(MAGIC, PROTOCOL, kind, codec, 0, count, call_id, length)
    table = _table(count).pack(*sizes)
    if length <= JOIN_BYTES:
        return [b"".join((head, table, message, *buffers))], HEADER_BYTES + length
    return [b"".join((head, table, message)), *buffers], HEADER_BYTES + length


@functools.lru_cache(maxsize=64)
def _table(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")


def move_out(parts: Sequence[Buffer], places: Sequence[int]) -> list[Buffer]:
    """The parts of a large frame, of which each buffer was put to its place, or stays (INLINE)."""
    _, _, kind, codec, _, count, call_id, length = HEADER.unpack_from(parts[0])
    sizes = _table(count).unpack_from(parts[0], HEADER_BYTES)
    message = memoryview(parts[0])[HEADER_BYTES + 8 * count :]
    moved = sum(size for size, place in zip(sizes, places, strict=True) if place != INLINE)
    head = HEADER.pack(MAGIC, PROTOCOL, kind, codec, SHARED, count, call_id, length + 8 * count - moved)
    table = _table(2 * count).pack(*(field for pair in zip(sizes, places, strict=True) for field in pair))
    left = [part for part, place in zip(parts[1:], places, strict=True) if place == INLINE]
    first = b"".join((head, table, message))
    if length - moved <= JOIN_BYTES:
        return [b"".join((first, *left))]
    return [first, *left]


class SharedBuffers(Protocol):
    """Who finds the buffers of a frame that lie in shared memory."""

    def take(self, codec: int, sizes: Sequence[int], places: Sequence[int]) -> list[Buffer]:
        """Those buffers, in order. WireError at a place that is none."""


def parse_header(data: Buffer, *, max_frame_bytes: int, flags: int = 0) -> Header:
    """The header in `data`, which holds 24 bytes; WireError if no such frame may come. `flags` are those that may."""
    magic, version, kind, codec, given, count, call_id, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(reason=f"a frame begins with {MAGIC!r}, not {magic!r}")
    if version != PROTOCOL:
        raise WireError(reason=f"the peer speaks protocol version {version}, this side {PROTOCOL}")
    if given & ~flags:
        raise WireError(reason=f"unknown flags {given:#04x}")
    if length > max_frame_bytes:
        raise WireError(reason=f"a frame of {length} bytes is over the limit of {max_frame_bytes}")
    header = Header(kind, codec, given, count, call_id, length, max_frame_bytes)
    if header.table_bytes > length:
        raise WireError(reason=f"{count} buffer lengths do not fit into {length} bytes")
    return header


class Table(NamedTuple):
    """What follows a header: how long the message is, and each buffer; with the flag, where each one is."""

    message_bytes: int
    sizes: tuple[int, ...]
    places: tuple[int, ...] = ()

    @property
    def inline_sizes(self) -> tuple[int, ...]:
        """Of the buffers that come with the frame."""
        if not self.places:
            return self.sizes
        return tuple(size for size, place in zip(self.sizes, self.places, strict=True) if place == INLINE)

    def join(self, codec: int, inline: list[Buffer], shared: SharedBuffers | None) -> tuple[Buffer, ...]:
        """All buffers in order: `inline`, and those that are found elsewhere."""
        if not self.places:
            return tuple(inline)
        assert shared is not None
        elsewhere = [
            (size, place) for size, place in zip(self.sizes, self.places, strict=True) if place != INLINE
        ]
        found = iter(shared.take(codec, [size for size, _ in elsewhere], [place for _, place in elsewhere]))
        came = iter(inline)
        return tuple(next(came if place == INLINE else found) for place in self.places)


def parse_table(header: Header, table: Buffer) -> Table:
    """The table of buffer lengths. WireError if they do not agree with the header's length, or are over the limit."""
    fields = _table(header.table_bytes // 8).unpack(table)
    sizes, places = (fields[::2], fields[1::2]) if header.flags & SHARED else (fields, ())
    inline = sum(Table(0, sizes, places).inline_sizes)
    message_bytes = header.length - header.table_bytes - inline
    if message_bytes < 0:
        raise WireError(reason=f"buffers of {inline} bytes do not fit into a frame of {header.length}")
    if header.length + sum(sizes) - inline > header.limit:
        raise WireError(reason=f"buffers of {sum(sizes)} bytes are over the limit of {header.limit}")
    return Table(message_bytes, sizes, places)


def split_body(header: Header, body: Buffer, shared: SharedBuffers | None = None) -> Frame:
    """The frame whose header was `header` and whose remaining bytes are `body`.

    The first buffer is a view of `body`. The others, on which arrays may be rebuilt, are copies: aligned, and writable.
    """
    if not header.buffer_count:
        return Frame(header.kind, header.codec, header.call_id, body)
    view = memoryview(body)
    start = header.table_bytes
    table = parse_table(header, view[:start])
    stop = start + table.message_bytes
    message = view[start:stop]
    buffers: list[Buffer] = []
    for size in table.inline_sizes:
        part = view[stop : stop + size]
        buffers.append(bytearray(part) if buffers else part)
        stop += size
    return Frame(
        header.kind, header.codec, header.call_id, message, table.join(header.codec, buffers, shared)
    )
