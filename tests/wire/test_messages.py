"""Messages: tagged Structs that agree with their header."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.errors import WireError
from tunewire.wire.frames import HEADER_BYTES, Frame, parse_header, split_body
from tunewire.wire.messages import (
    Call,
    Cancel,
    Credit,
    Data,
    End,
    Hello,
    Invoke,
    Item,
    Open,
    Opened,
    Phase,
    Rejected,
    Result,
    Welcome,
    expect,
    pack_message,
    read_message,
)

MESSAGES = [
    Hello(tunewire="1.0", python="3.11.2", pid=5, capabilities=("a",)),
    Welcome(tunewire="1.0", max_frame_bytes=99, sys_path=(b"/a", b"\xff")),
    Call(name="f", phase="run", results=2),
    Result(),
    Phase("check"),
    Data(),
    Open("Scale"),
    Opened(),
    Invoke("scale", of=3, callbacks=("progress",), credit=4096),
    Item(),
    End(),
    Credit(2048),
    Cancel(),
    Rejected("why"),
]


def through_the_wire(message) -> Frame:
    data = b"".join(pack_message(message, call_id=3)[0])
    header = parse_header(data[:HEADER_BYTES], max_frame_bytes=1000)
    return split_body(header, data[HEADER_BYTES:])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_equal(message):
    frame = through_the_wire(message)
    assert frame.kind == message.kind
    assert expect(frame, type(message)) == message


def test_a_message_may_have_items_that_this_version_does_not_know():
    assert expect(Frame(4, 0, 0, msgspec.msgpack.encode([4, "new", 7])), Result) == Result()


def test_a_header_that_names_another_kind_is_refused():
    with pytest.raises(WireError, match="header says kind 5, message 4"):
        read_message(Frame(5, 0, 0, msgspec.msgpack.encode([4])))


def test_another_message_than_expected_is_refused():
    with pytest.raises(WireError, match="Call expected, Result came"):
        expect(through_the_wire(Result()), Call)


@given(kind=st.integers(0, 255), data=st.binary(max_size=64))
def test_any_bytes_are_a_message_or_a_wire_error(kind, data):
    try:
        assert read_message(Frame(kind, 0, 0, data)).kind == kind
    except WireError:
        pass
