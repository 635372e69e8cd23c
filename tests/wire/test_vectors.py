"""The test vectors of docs/wire.md: what each message is on the wire, byte by byte, for peers in other languages."""

import json
import mmap
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tunewire.errors import WireError
from tunewire.runtime.bulk import BulkLane
from tunewire.wire.assembly import FrameAssembler
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.lane import FILE_BYTES
from tunewire.wire.messages import Message, pack_message, read_message

VECTORS = json.loads((Path(__file__).parents[2] / "docs" / "wire-vectors.json").read_text())


def frames_of(data, shared=None):
    frames = []
    assembler = FrameAssembler(DEFAULT_MAX_FRAME_BYTES)
    assembler.shared = shared
    assembler.feed(data, frames)
    return frames


def as_json(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda vector: vector["says"])
def test_a_frame_is_read_and_written_as_the_vector_says(vector):
    data = bytes.fromhex(vector["frame"])
    (frame,) = frames_of(data)
    assert (frame.kind, frame.call_id, frame.codec) == (vector["kind"], vector["call_id"], vector["codec"])
    assert [bytes(buffer).hex() for buffer in frame.buffers] == vector["buffers"]
    assert as_json(msgspec.msgpack.decode(frame.message)) == vector["message"]
    message = read_message(frame)
    assert type(message).__name__ == vector["name"]
    parts, size = pack_message(message, call_id=frame.call_id, codec=frame.codec, buffers=frame.buffers)
    assert (b"".join(parts), size) == (data, len(data))


def test_every_message_has_a_vector():
    assert {vector["name"] for vector in VECTORS["frames"]} == {kind.__name__ for kind in get_args(Message)}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["says"])
def test_what_is_no_frame_is_refused(vector):
    with pytest.raises(WireError):
        for frame in frames_of(bytes.fromhex(vector["bytes"])):
            read_message(frame)


@pytest.mark.parametrize("vector", VECTORS["shared"], ids=lambda vector: vector["says"])
def test_a_buffer_in_shared_memory_is_read_and_given_back_as_the_vector_says(vector):
    with mmap.mmap(-1, FILE_BYTES) as memory:
        elements = bytes.fromhex(vector["memory"])
        memory[vector["offset"] : vector["offset"] + len(elements)] = elements
        (frame,) = frames_of(bytes.fromhex(vector["frame"]), BulkLane(memory, is_parent=True))
        assert [bytes(buffer).hex() for buffer in frame.buffers] == vector["buffers"]
        assert memory[vector["flag"]] == 1


@pytest.mark.parametrize("vector", VECTORS["refused_shared"], ids=lambda vector: vector["says"])
def test_a_buffer_that_lies_nowhere_is_refused(vector):
    with mmap.mmap(-1, FILE_BYTES) as memory, pytest.raises(WireError):
        frames_of(bytes.fromhex(vector["bytes"]), BulkLane(memory, is_parent=True))


@pytest.mark.parametrize("vector", VECTORS["shared"], ids=lambda vector: vector["says"])
def test_without_shared_memory_such_a_frame_is_refused(vector):
    with pytest.raises(WireError, match="flags"):
        frames_of(bytes.fromhex(vector["frame"]))


def test_missing_trailing_items_have_their_defaults_and_unknown_ones_are_passed_over():
    (call,) = (v for v in VECTORS["frames"] if v["says"].startswith("run a callable"))
    (frame,) = frames_of(bytes.fromhex(call["frame"]))
    short = read_message(frame._replace(message=msgspec.msgpack.encode([3, "axpy", "run", 2])))
    assert (short.env, short.streams, short.limits) == (None, False, (None, None, None))
    items = msgspec.msgpack.decode(frame.message)
    assert read_message(frame._replace(message=msgspec.msgpack.encode([*items, "later"]))) == read_message(
        frame
    )
