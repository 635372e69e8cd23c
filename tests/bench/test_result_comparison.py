from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tunewire.bench.comparison import compare
from tunewire.errors import WrongResult

INF, NAN = math.inf, math.nan


def wrong(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> WrongResult:
    with pytest.raises(WrongResult) as raised:
        compare(actual, expected, argument="y", rtol=rtol, atol=atol, device="opencl:0")
    return raised.value


def right(actual: Any, expected: Any, *, rtol: float = 1e-5, atol: float = 1e-8) -> None:
    compare(actual, expected, argument="y", rtol=rtol, atol=atol)


def test_an_error_has_the_numbers() -> None:
    error = wrong(np.float32([1, 2, 3, 4.5]), np.float32([1, 2, 3.5, 4]), rtol=1e-3, atol=1e-4)
    assert (error.argument, error.mismatched, error.total, error.device) == ("y", 2, 4, "opencl:0")
    assert error.worst_absolute == pytest.approx(0.5)
    assert error.worst_relative == pytest.approx(0.5 / 3.5)
    assert (error.rtol, error.atol) == (1e-3, 1e-4)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_inexact_numbers_are_right_within_either_tolerance(dtype: str) -> None:
    expected = np.array([1000, 0, -1000], dtype)
    near = expected + np.array([0.5, 0.001, -0.5], dtype)
    right(near, expected, rtol=1e-3, atol=1e-2)
    wrong(near, expected, rtol=1e-4, atol=1e-2)
    wrong(near, expected, rtol=1e-3, atol=1e-4)


def test_a_reference_may_be_more_precise_than_the_output() -> None:
    right(np.float32([0.1]), np.float64([0.1]), rtol=1e-6, atol=0)
    wrong(np.float32([0.1]), np.float64([0.1]), rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("actual", "expected", "is_right"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, 1.0, False),
        (1.0, INF, False),
        (-1.0, INF, False),
        (-0.0, 0.0, True),
    ],
)
def test_what_is_not_finite_must_be_the_same(actual: float, expected: float, is_right: bool) -> None:
    pair = np.float32([actual]), np.float32([expected])
    if is_right:
        right(*pair, rtol=1.0)
    else:
        assert wrong(*pair, rtol=1.0).worst_absolute == INF


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"])
def test_integers_must_be_equal_up_to_the_absolute_tolerance(dtype: str) -> None:
    highest = np.iinfo(dtype).max
    right(np.array([highest], dtype), np.array([highest], dtype))
    wrong(np.array([highest - 1], dtype), np.array([highest], dtype), rtol=1.0)
    right(np.array([highest - 1], dtype), np.array([highest], dtype), atol=1.0)
    assert wrong(np.array([highest - 3], dtype), np.array([highest], dtype), atol=1.0).worst_absolute == 3


@pytest.mark.parametrize(
    ("actual", "expected", "difference"),
    [
        (np.int64([-(2**63)]), np.int64([2**63 - 1]), 2.0**64),
        (np.uint64([2**64 - 1]), np.int64([-1]), 2.0**64),
        (np.int8([-128]), np.int8([127]), 255),
        (np.uint8([0]), np.uint8([255]), 255),
        (np.int64([2**62 + 1]), np.int64([2**62]), 1),
    ],
)
def test_differences_of_integers_do_not_wrap(actual: Any, expected: Any, difference: float) -> None:
    assert wrong(actual, expected).worst_absolute == difference


def test_poison_in_a_bool_is_neither_true_nor_false() -> None:
    poison = np.full(1, 0xA5, np.uint8).view(np.bool_)
    assert wrong(poison, np.array([True])).mismatched == 1
    assert wrong(poison, np.array([False])).mismatched == 1
    right(np.array([True, False]), np.array([True, False]))


def test_an_expected_zero_has_an_infinite_relative_difference() -> None:
    assert wrong(np.float32([1]), np.float32([0])).worst_relative == INF
