"""The layout of frames: what comes out is what went in, and no bytes from anyone do harm."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.errors import WireError
from tunewire.wire.frames import (
    HEADER,
    HEADER_BYTES,
    JOIN_BYTES,
    MAX_BUFFERS,
    Frame,
    pack,
    parse_header,
    parse_table,
    split_body,
)

LIMIT = 1 << 20


def unpack(data: bytes) -> Frame:
    header = parse_header(data[:HEADER_BYTES], max_frame_bytes=LIMIT)
    assert len(data) == HEADER_BYTES + header.length
    return split_body(header, data[HEADER_BYTES:])


@given(
    kind=st.integers(0, 255),
    codec=st.integers(0, 255),
    call_id=st.integers(0, 2**64 - 1),
    message=st.binary(max_size=200),
    buffers=st.lists(st.binary(max_size=100), max_size=5),
)
def test_what_is_packed_is_what_is_read(kind, codec, call_id, message, buffers):
    parts, size = pack(kind, message, call_id=call_id, codec=codec, buffers=buffers)
    data = b"".join(parts)
    assert size == len(data)
    frame = unpack(data)
    assert (frame.kind, frame.codec, frame.call_id) == (kind, codec, call_id)
    assert bytes(frame.message) == message
    assert [bytes(buffer) for buffer in frame.buffers] == buffers


def test_a_small_frame_is_one_part_and_a_large_buffer_is_not_copied():
    assert len(pack(1, b"m", buffers=[b"x"])[0]) == 1
    large = bytes(JOIN_BYTES + 1)
    parts, _ = pack(1, b"m", buffers=[large])
    assert any(part is large for part in parts)


def test_the_documented_example_byte_by_byte():
    parts, _ = pack(4, b"\x91\x04", call_id=7, codec=2, buffers=[b"abc"])
    assert b"".join(parts).hex(" ") == (
        "74 77 01 04 02 00 01 00 07 00 00 00 00 00 00 00 0d 00 00 00 00 00 00 00 "
        "03 00 00 00 00 00 00 00 91 04 61 62 63"
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ((b"XX", 1, 1, 0, 0, 0, 0, 0), "begins with"),
        ((b"tw", 9, 1, 0, 0, 0, 0, 0), "version 9"),
        ((b"tw", 1, 1, 0, 3, 0, 0, 0), "flags"),
        ((b"tw", 1, 1, 0, 0, 0, 0, LIMIT + 1), "over the limit"),
        ((b"tw", 1, 1, 0, 0, 0, 0, 2**64 - 1), "over the limit"),
        ((b"tw", 1, 1, 0, 0, 2, 0, 15), "do not fit"),
    ],
)
def test_a_header_that_may_not_come_is_refused_before_anything_is_read(fields, reason):
    with pytest.raises(WireError, match=reason):
        parse_header(HEADER.pack(*fields), max_frame_bytes=LIMIT)


def test_buffer_lengths_that_exceed_the_frame_are_refused():
    header = parse_header(HEADER.pack(b"tw", 1, 1, 0, 0, 2, 0, 20), max_frame_bytes=LIMIT)
    with pytest.raises(WireError, match="do not fit"):
        parse_table(header, struct.pack("<2Q", 2**63, 2**63))


def test_too_many_buffers_are_refused_by_the_sender():
    with pytest.raises(WireError, match="at most"):
        pack(1, b"", buffers=[b""] * (MAX_BUFFERS + 1))


@given(data=st.binary(min_size=HEADER_BYTES, max_size=300))
def test_any_bytes_are_a_frame_or_a_wire_error(data):
    try:
        header = parse_header(data[:HEADER_BYTES], max_frame_bytes=LIMIT)
        if len(data) - HEADER_BYTES >= header.length:
            split_body(header, data[HEADER_BYTES : HEADER_BYTES + header.length])
    except WireError:
        pass
