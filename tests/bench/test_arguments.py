from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tunewire.bench import Array, RawKernel, Scalar
from tunewire.bench.arguments import Prepared, PreparedCache, initial_value, prepare
from tunewire.bench.kernel import ITEM_BYTES
from tunewire.errors import InvalidKernel

SOURCE = "kernel void f(global float *y, global const float *x, int n) {}"


def kernel(reference: Any, *args: Any) -> RawKernel:
    given = args or (Array(4, output=True, name="y"), Array(4, fill="arange"), Scalar(3, "int32"))
    return RawKernel(SOURCE, "f", args=given, reference=reference)


def expected(reference: Any, *args: Any) -> tuple[Any, ...]:
    return prepare(kernel(reference, *args), with_reference=True, cache=PreparedCache(0)).expected


@pytest.mark.parametrize("dtype", ITEM_BYTES)
@pytest.mark.parametrize("fill", ["random", "zeros", "arange", 1])
def test_every_dtype_can_be_filled(dtype: str, fill: Any) -> None:
    value = initial_value(Array((3, 5), dtype, fill=fill), 0)
    assert (value.shape, value.dtype.name) == ((3, 5), dtype)
    assert value.nbytes == 15 * ITEM_BYTES[dtype]
    assert not value.flags.writeable


def test_random_content_is_in_its_range() -> None:
    floats = initial_value(Array(1000), 0)
    assert floats.min() < -0.9
    assert floats.max() < 1
    assert set(initial_value(Array(100, "bool"), 0)) == {False, True}
    integers = initial_value(Array(1000, "int8"), 0)
    assert (integers.min(), integers.max()) == (0, 99)
    assert np.abs(initial_value(Array(100, "complex64"), 0).imag).max() > 0.5


def test_content_follows_from_the_description_alone() -> None:
    def content(position: int = 0, **changes: Any) -> bytes:
        return bytes(initial_value(Array(64, **changes), position).tobytes())

    assert content() == content()
    assert content(1) != content()
    assert content(seed=7) != content()
    assert content(1, seed=7) == content(seed=7)


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_an_output_that_is_only_written_is_poisoned(dtype: str) -> None:
    value = initial_value(Array(3, dtype, output=True), 0)
    if value.dtype.kind in "fc":
        assert np.isnan(value).all()
    else:
        assert set(value.tobytes()) == {0xA5}


def test_an_output_with_a_fill_begins_with_it() -> None:
    assert list(initial_value(Array(3, output=True, fill=2), 0)) == [2, 2, 2]


@pytest.mark.parametrize(("value", "dtype"), [(3, "int32"), (0.5, "float16"), (True, "bool"), (7, "uint64")])
def test_a_scalar_is_of_its_dtype(value: Any, dtype: str) -> None:
    scalar = initial_value(Scalar(value, dtype), 0)
    assert (scalar, scalar.dtype.name) == (value, dtype)


@pytest.mark.parametrize(
    "reference",
    [
        lambda y, x, n: x * n,
        lambda y, x, n: (x * n,),
        lambda y, x, n: {"y": x * n},
        lambda y, x, n: [0.0, 3.0, 6.0, 9.0],
    ],
)
def test_a_reference_may_return_its_outputs_in_any_of_these_forms(reference: Any) -> None:
    (y,) = expected(reference)
    assert list(y) == [0, 3, 6, 9]


def test_several_outputs_come_in_the_arguments_order() -> None:
    args = (Array(2, output=True, name="a"), Array(2), Array(3, output=True, name="b"))
    for reference in (
        lambda a, x, b: (np.zeros(2), np.ones(3)),
        lambda a, x, b: {"b": np.ones(3), "a": np.zeros(2)},
    ):
        a, b = expected(reference, *args)
        assert (list(a), list(b)) == ([0, 0], [1, 1, 1])


def reference_in_a_module(y: Any, x: Any, n: Any) -> Any:
    return x + n


def test_a_reference_may_be_named() -> None:
    (y,) = expected(f"{__name__}:reference_in_a_module")
    assert list(y) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (lambda y, x, n: None, "must return every output .y., and returned NoneType"),
        (lambda y, x, n: (x, x), "must return every output"),
        (lambda y, x, n: {"z": x}, "must return every output"),
        (lambda y, x, n: x[:2], "of shape .2,. for y, which has shape .4,."),
        (lambda y, x, n: np.array(["a"] * 4), "for y"),
        ("no_such_module_of_ours:f", "cannot be imported"),
        ("math:no_such_function", "cannot be imported"),
        ("math:pi", "is not callable"),
    ],
)
def test_a_reference_that_cannot_be_compared_is_an_invalid_kernel(reference: Any, says: str) -> None:
    with pytest.raises(InvalidKernel, match=says) as raised:
        expected(reference)
    assert raised.value.kernel == "f"


def test_what_a_reference_raises_is_raised() -> None:
    def reference(y: Any, x: Any, n: Any) -> Any:
        raise ArithmeticError("in the reference")

    with pytest.raises(ArithmeticError, match="in the reference"):
        expected(reference)


def test_a_reference_that_writes_its_inputs_fails() -> None:
    def reference(y: Any, x: Any, n: Any) -> Any:
        x *= n
        return x

    with pytest.raises(ValueError, match="read-only"):
        expected(reference)


_calls: list[str] = []


def counted(y: Any, x: Any, n: Any) -> Any:
    _calls.append("counted")
    return x


def test_inputs_and_reference_are_computed_once_for_the_same_content() -> None:
    cache = PreparedCache(1 << 20)
    _calls.clear()
    first = prepare(kernel(counted), with_reference=True, cache=cache)
    again = prepare(kernel(counted).bind({"TILE": 8}), with_reference=True, cache=cache)
    assert again is first
    assert len(_calls) == 1
    other = prepare(
        kernel(counted, Array(4, output=True), Array(4, fill=1), Scalar(3, "int32")),
        with_reference=True,
        cache=cache,
    )
    assert other is not first
    assert len(_calls) == 2
    assert prepare(kernel(counted), with_reference=False, cache=cache).expected == ()
    assert len(_calls) == 2


def test_another_reference_is_another_content() -> None:
    cache = PreparedCache(1 << 20)
    doubled = prepare(kernel(lambda y, x, n: x * 2), with_reference=True, cache=cache)
    halved = prepare(kernel(lambda y, x, n: x / 2), with_reference=True, cache=cache)
    assert doubled.expected[0][1] == 4 * halved.expected[0][1]


def test_a_reference_that_cannot_be_pickled_is_computed_each_time() -> None:
    import threading

    lock = threading.Lock()

    def reference(y: Any, x: Any, n: Any) -> Any:
        with lock:
            return x

    cache = PreparedCache(1 << 20)
    assert prepare(kernel(reference), with_reference=True, cache=cache).expected
    assert cache.nbytes == 0


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes() -> None:
    def prepared(name: str) -> Prepared:
        made.append(name)
        return Prepared((np.zeros(40, np.uint8),), ())

    made: list[str] = []
    cache = PreparedCache(100)
    for name in ("a", "b", "a", "c"):  # with c, b has to go
        cache.get(name, lambda name=name: prepared(name))
    assert cache.nbytes == 80
    made.clear()
    for name in ("a", "c", "b"):
        cache.get(name, lambda name=name: prepared(name))
    assert made == ["b"]


def test_what_is_larger_than_the_bound_is_not_kept() -> None:
    cache = PreparedCache(10)
    cache.get("a", lambda: Prepared((np.zeros(11, np.uint8),), ()))
    assert cache.nbytes == 0
