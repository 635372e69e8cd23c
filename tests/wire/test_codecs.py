"""Values as buffers: what travels by reference, what by value, what cannot and which part of it is at fault."""

import functools
import pickle
import threading

import cloudpickle
import msgspec
import numpy as np
import pytest

from tunewire.errors import DecodeError, EncodeError
from tunewire.wire.codecs import Codec, decode_msgspec, decode_pickle, encode, encode_pickle


def importable(x):
    return x + 1


def round_trip(value):
    codec, buffers = encode_pickle(value, what="value")
    return codec, decode_pickle([bytes(buffer) for buffer in buffers], what="value")


def test_plain_data_and_importable_functions_go_by_plain_pickle():
    assert round_trip({"a": [1, 2.5, "x", None]}) == (Codec.PICKLE, {"a": [1, 2.5, "x", None]})
    assert round_trip(importable) == (Codec.PICKLE, importable)


@pytest.mark.parametrize("make", [lambda: lambda x: x + 1, lambda: functools.partial(lambda a, b: a + b, 1)])
def test_what_cannot_be_imported_goes_by_value(make):
    codec, function = round_trip(make())
    assert codec is Codec.CLOUDPICKLE
    assert function(41) == 42


def test_what_lives_in_main_goes_by_value(monkeypatch):
    def function(x):
        return x + 1

    function.__module__, function.__qualname__ = "__main__", "function"
    monkeypatch.setattr("__main__.function", function, raising=False)
    assert pickle.dumps(function)  # plain pickle would have sent a reference that the child cannot follow
    codec, copy = round_trip(function)
    assert codec is Codec.CLOUDPICKLE
    assert copy is not function


def test_a_module_registered_by_value_goes_by_value():
    module = __import__(__name__, fromlist=["importable"])
    cloudpickle.register_pickle_by_value(module)
    try:
        assert round_trip(importable)[0] is Codec.CLOUDPICKLE
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_an_array_travels_out_of_band():
    array = np.arange(100_000.0)
    _codec, buffers = encode_pickle({"array": array}, what="value")
    assert len(buffers) == 2
    assert len(buffers[0]) < 1000
    assert np.shares_memory(np.frombuffer(buffers[1]), array)
    assert (decode_pickle(buffers, what="value")["array"] == array).all()


class Holder:
    def __init__(self, attribute):
        self.attribute = attribute


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (threading.Lock(), ""),
        ([1, threading.Lock()], "[1]"),
        ({"net": Holder([0, threading.Lock()])}, "['net'].attribute[1]"),
    ],
)
def test_the_part_that_cannot_be_pickled_is_named(value, path):
    with pytest.raises(EncodeError) as caught:
        encode_pickle(value, what="argument")
    assert caught.value.path == path
    assert caught.value.what == "argument"


def test_the_variable_of_a_closure_that_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(EncodeError, match="closure lock"):
        encode_pickle(lambda: lock, what="callable")


def test_an_object_whose_reduce_raises_is_an_encode_error():
    class Odd:
        def __reduce__(self):
            raise ZeroDivisionError("no")

    with pytest.raises(EncodeError, match="ZeroDivisionError: no"):
        encode_pickle(Odd(), what="argument")


class Point(msgspec.Struct):
    x: float
    y: list[int] = []


def test_msgspec_rebuilds_the_type_and_names_the_place_of_a_wrong_one():
    _, buffers = encode(Point(1.5, [2]), Codec.MSGSPEC, what="result")
    assert decode_msgspec(buffers, what="result", type=Point) == Point(1.5, [2])
    _, buffers = encode({"x": 1, "y": [1, "two"]}, Codec.MSGSPEC, what="result")
    with pytest.raises(DecodeError) as caught:
        decode_msgspec(buffers, what="result", type=Point)
    assert caught.value.path == "$.y[1]"


def test_msgspec_refuses_to_encode_other_types():
    with pytest.raises(EncodeError, match=r"\['a'\]"):
        encode({"a": threading.Lock()}, Codec.MSGSPEC, what="result")


@pytest.mark.parametrize("buffers", [[], [b"junk"], [b"\x80\x05K"]])
def test_what_is_no_pickle_is_a_decode_error_with_its_cause(buffers):
    with pytest.raises(DecodeError):
        decode_pickle(buffers, what="result")


@pytest.mark.parametrize("buffers", [[], [b"\xc1"], [b"\x91" * 5000 + b"\x01"]])
def test_what_is_no_msgpack_is_a_decode_error(buffers):
    with pytest.raises(DecodeError):
        decode_msgspec(buffers, what="result")


# Arrays in msgspec values.


class Field(msgspec.Struct):
    name: str
    values: np.ndarray


def through_msgspec(value, **kwargs):
    _, buffers = encode(value, Codec.MSGSPEC, what="result")
    return decode_msgspec([bytearray(buffer) for buffer in buffers], what="result", **kwargs)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(12, dtype=">i4").reshape(3, 4)[::2, ::-1],
        np.asfortranarray(np.ones((2, 3), np.complex64)),
        np.zeros((0, 7)),
        np.array(3),
        np.array([True, False]),
        np.array([1.5], np.float16),
    ],
    ids=str,
)
def test_an_array_of_numbers_comes_as_it_was_and_writable(array):
    (came,) = through_msgspec([array])
    assert came.dtype == array.dtype
    assert came.shape == array.shape
    np.testing.assert_array_equal(came, array)
    assert came.flags.writeable or not came.size


def test_an_arrays_elements_are_not_copied_into_the_value():
    array = np.arange(1000.0)
    _, (value, elements) = encode({"a": array}, Codec.MSGSPEC, what="result")
    assert len(value) < 50
    assert np.shares_memory(np.frombuffer(elements), array)


def test_a_field_may_be_an_array():
    field = through_msgspec(Field("x", np.arange(3)), type=Field)
    np.testing.assert_array_equal(field.values, np.arange(3))
    with pytest.raises(DecodeError) as caught:
        through_msgspec({"name": "x", "values": [1, 2]}, type=Field)
    assert caught.value.path == "$.values"


def test_numpys_scalars_become_pythons():
    assert through_msgspec([np.float32(0.5), np.int8(-3), np.bool_(True)]) == [0.5, -3, True]


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["text"]), np.zeros(2, [("a", "i4")])], ids=str)
def test_an_array_of_anything_else_is_refused_by_its_sender(array):
    with pytest.raises(EncodeError, match=r"\['a'\]\[1\]"):
        encode({"a": [1, array]}, Codec.MSGSPEC, what="result")


@pytest.mark.parametrize(
    ("code", "head"),
    [
        (2, ["<f8", [2], 1]),
        (1, ["<f8", [3], 1]),
        (1, ["<f8", [-2], 1]),
        (1, ["<f8", [-2, -1], 1]),
        (1, ["<f8", [2], 0]),
        (1, ["<f8", [2], -1]),
        (1, ["<f8", [2], 2]),
        (1, ["|O8", [2], 1]),
        (1, ["<f7", [2], 1]),
        (1, ["<U4", [1], 1]),
        (1, ["f8,f8", [1], 1]),
        (1, ["", [16], 1]),
        (1, ["<f8", [1 << 62, 1 << 62], 1]),
        (1, ["<f8", [1] * 100 + [2], 1]),
        (1, {}),
        (1, "junk"),
    ],
)
def test_an_array_that_cannot_be_is_a_decode_error(code, head):
    value = msgspec.msgpack.encode([msgspec.msgpack.Ext(code, msgspec.msgpack.encode(head))])
    with pytest.raises(DecodeError):
        decode_msgspec([value, bytearray(16)], what="result")
