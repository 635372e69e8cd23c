"""The layout of a frame: what is on the wire, byte by byte, without any input or output.

A frame is a header of 24 bytes and what its `length` counts:

    offset size  field
         0    2  magic, the bytes "tw"
         2    1  protocol version
         3    1  kind: which message (wire.messages)
         4    1  codec of the value that the buffers carry (wire.codecs), 0 for none
         5    1  flags, 0 in this version
         6    2  buffer count, n
         8    8  call id
        16    8  length: bytes that follow the header
        24   8n  n buffer lengths
      24+8n   …  the message, a msgpack array
                 then the n buffers, one after the other

Integers are unsigned and little-endian. The message holds what the protocol needs to know; a user's value travels
in the buffers, the first being its serialized form and the others its out-of-band parts (pickle protocol 5), so
that a large array is never copied into a message.

What is guaranteed: `parse_header` and `split_body` accept whatever bytes a hostile peer sends, and either return
parts that lie within the bytes given or raise WireError. Nothing is allocated on the word of a length before that
length was compared with the limit.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from tunewire.errors import WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC: Final = b"tw"
PROTOCOL: Final = 1
HEADER: Final = struct.Struct("<2sBBBBHQQ")
HEADER_BYTES: Final = HEADER.size
#: Also the bound of a pickle that a peer may make us hold; a pool may be opened with another.
DEFAULT_MAX_FRAME_BYTES: Final = 1 << 30
MAX_BUFFERS: Final = 0xFFFF

#: Below this, parts are joined and written with one system call; above it, a copy costs more than a call.
JOIN_BYTES: Final = 1 << 16


class Header(NamedTuple):
    """A header whose fields are consistent with each other and within the limit."""

    kind: int
    codec: int
    buffer_count: int
    call_id: int
    length: int

    @property
    def table_bytes(self) -> int:
        return 8 * self.buffer_count


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


def parse_header(data: Buffer, *, max_frame_bytes: int) -> Header:
    """The header in `data`, which holds 24 bytes; WireError if no such frame may come."""
    magic, version, kind, codec, flags, count, call_id, length = HEADER.unpack(data)
    if magic != MAGIC:
        raise WireError(reason=f"a frame begins with {MAGIC!r}, not {magic!r}")
    if version != PROTOCOL:
        raise WireError(reason=f"the peer speaks protocol version {version}, this side {PROTOCOL}")
    if flags:
        raise WireError(reason=f"unknown flags {flags:#04x}")
    if length > max_frame_bytes:
        raise WireError(reason=f"a frame of {length} bytes is over the limit of {max_frame_bytes}")
    if 8 * count > length:
        raise WireError(reason=f"{count} buffer lengths do not fit into {length} bytes")
    return Header(kind, codec, count, call_id, length)


def parse_table(header: Header, table: Buffer) -> tuple[int, tuple[int, ...]]:
    """From the table of buffer lengths: how long the message is, and each buffer."""
    sizes = _table(header.buffer_count).unpack(table)
    message_bytes = header.length - header.table_bytes - sum(sizes)
    if message_bytes < 0:
        raise WireError(reason=f"buffers of {sum(sizes)} bytes do not fit into a frame of {header.length}")
    return message_bytes, sizes


def split_body(header: Header, body: Buffer) -> Frame:
    """The frame whose header was `header` and whose remaining bytes are `body`.

    The first buffer is a view of `body`. The others, on which arrays may be rebuilt, are copies: aligned, and writable.
    """
    if not header.buffer_count:
        return Frame(header.kind, header.codec, header.call_id, body)
    view = memoryview(body)
    start = header.table_bytes
    message_bytes, sizes = parse_table(header, view[:start])
    stop = start + message_bytes
    message = view[start:stop]
    buffers: list[Buffer] = []
    for size in sizes:
        part = view[stop : stop + size]
        buffers.append(bytearray(part) if buffers else part)
        stop += size
    return Frame(header.kind, header.codec, header.call_id, message, tuple(buffers))
