"""A space: what is in it, in which order, and what is wrong with one that cannot be."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.errors import InvalidSpace
from tunewire.tune import Configuration, Space

TILES = {"TILE": [8, 16, 32], "WORK": [1, 16]}


def told(*arguments: Any) -> str:
    with pytest.raises(InvalidSpace) as caught:
        Space(*arguments)
    return caught.value.reason


def test_configurations_come_in_order_the_last_parameter_fastest() -> None:
    space = Space({"B": [2, 1], "A": ["x", "y"]})
    assert [dict(each) for each in space] == [
        {"B": 2, "A": "x"},
        {"B": 2, "A": "y"},
        {"B": 1, "A": "x"},
        {"B": 1, "A": "y"},
    ]
    assert list(space.first) == ["B", "A"]
    assert space.first == {"B": 2, "A": "x"}


def test_restrictions_are_expressions_or_callables_and_all_must_hold() -> None:
    space = Space(
        {
            "TILE": [8, 16, 32],
            "WORK": [1, 16],
            "UNROLL": [True, False],
            "TYPE": ["float", "half"],
            "SCALE": [0.5],
        },
        ["TILE % WORK == 0", "UNROLL or TYPE == 'float'", lambda c: c["TILE"] * c["SCALE"] > 4],
    )
    expected = [
        (tile, work, unroll, kind)
        for tile, work, unroll, kind in itertools.product(
            [8, 16, 32], [1, 16], [True, False], ["float", "half"]
        )
        if tile % work == 0 and (unroll or kind == "float") and tile * 0.5 > 4
    ]
    assert [(c["TILE"], c["WORK"], c["UNROLL"], c["TYPE"]) for c in space] == expected
    assert len(space) == len(expected)
    assert space.combinations == 24


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    modulus=st.integers(1, 4),
    rest=st.integers(0, 1),
)
def test_numbered_combinations_and_iteration_agree(sizes: list[int], modulus: int, rest: int) -> None:
    names = [f"P{place}" for place in range(len(sizes))]
    restriction = f"({' + '.join(names)}) % {modulus} == {rest % modulus}"
    parameters = {name: list(range(size)) for name, size in zip(names, sizes, strict=True)}
    try:
        space = Space(parameters, [restriction])
    except InvalidSpace:
        assert all(sum(each) % modulus != rest % modulus for each in itertools.product(*map(range, sizes)))
        return
    numbered = [space.at(number) for number in range(space.combinations)]
    assert list(space) == [each for each in numbered if each is not None]
    for values in itertools.product(*map(range, sizes)):
        candidate = dict(zip(names, values, strict=True))
        assert (candidate in space) == (candidate in list(space))


def test_a_space_is_not_walked_before_it_must_be() -> None:
    seen = []

    def restriction(configuration: Mapping[str, Any]) -> bool:
        seen.append(configuration)
        return True

    space = Space({name: range(100) for name in "ABCDEF"}, ["A == B", restriction])
    assert space.combinations == 10**12
    some = list(itertools.islice(space, 3))
    assert [each["F"] for each in some] == [0, 1, 2]
    assert len(seen) <= 5
    assert space.at(10**12 - 1) == dict.fromkeys("ABCDEF", 99)
    assert space.at(10**10) is None


def test_what_an_expression_excludes_is_skipped_before_parameters_that_it_does_not_read() -> None:
    # A walk through all 10**12 combinations would not end.
    space = Space({name: range(1000) for name in "ABCD"}, ["A == 999", "B == 999", "C == 999"])
    assert len(space) == 1000


def test_membership() -> None:
    space = Space(TILES, ["TILE % WORK == 0"])
    assert {"WORK": 16, "TILE": 32} in space
    assert {"TILE": 8, "WORK": 16} not in space
    assert {"TILE": 7, "WORK": 1} not in space
    assert {"TILE": 8} not in space
    assert {"TILE": 8, "WORK": 1, "MORE": 1} not in space
    assert "TILE=8" not in space


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"TILE": 8}, "'WORK' has no value"),
        ({"TILE": 7, "WORK": 1}, "7 is not one of the values of 'TILE'"),
        ({"TILE": 8, "WORK": 1, "MORE": 1}, "no parameter 'MORE'"),
        ({"TILE": 8, "WORK": 16}, "'TILE % WORK == 0' does not hold"),
    ],
)
def test_validating_says_why_not(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSpace) as caught:
        Space(TILES, ["TILE % WORK == 0"]).validate(values)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({}, "no parameters"),
        ({"TILE": []}, "'TILE' has no values"),
        ({"TILE": [8, 8]}, "'TILE' has the value 8 twice"),
        ({"TILE": [1, True]}, "'TILE' has the value True twice"),
        ({"TILE": "abc"}, "'TILE' needs a list"),
        ({"TILE": 8}, "'TILE' needs a list"),
        ({"TILE": [None]}, "'TILE' has None of type NoneType"),
        ({"TILE": [float("nan")]}, "'TILE' has nan"),
        ({"TILE SIZE": [1]}, "'TILE SIZE'"),
        ([("TILE", [8])], "no mapping"),
    ],
)
def test_parameters_that_cannot_be(parameters: Any, reason: str) -> None:
    assert reason in told(parameters)


@pytest.mark.parametrize(
    ("restrictions", "reasons"),
    [
        (["TILE % WIDTH == 0"], ["'TILE % WIDTH == 0'", "'WIDTH'", "TILE, WORK"]),
        (["TILE %"], ["'TILE %'"]),
        (["TILE.real > 0"], ["'TILE.real > 0'"]),
        (["TILE / (WORK - 1) > 0"], ["'TILE / (WORK - 1) > 0'", "TILE=8, WORK=1", "zero"]),
        (["TILE > 8", "TILE < 16"], ["empty", "'TILE < 16'"]),
        (["TILE > 99", "WORK > 99"], ["empty", "'TILE > 99'"]),
        ("TILE > 8", ["list"]),
        ([3], ["3"]),
    ],
)
def test_restrictions_that_cannot_be(restrictions: Any, reasons: list[str]) -> None:
    reason = told(TILES, restrictions)
    assert all(part in reason for part in reasons), reason


def test_a_callable_that_raises_is_named_with_the_configuration_and_kept_as_the_cause() -> None:
    def wide_enough(configuration: Mapping[str, Any]) -> bool:
        return bool(configuration["WIDTH"])

    with pytest.raises(InvalidSpace) as caught:
        Space(TILES, [wide_enough])
    assert "wide_enough" in caught.value.reason
    assert "TILE=8, WORK=1" in caught.value.reason
    assert "KeyError" in caught.value.reason
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_restriction_that_raises_later_is_an_error_of_the_walk() -> None:
    space = Space({"A": [1, 0]}, ["1 / A > 0"])
    walk = iter(space)
    assert next(walk) == {"A": 1}
    with pytest.raises(InvalidSpace, match="A=0"):
        next(walk)


def test_a_callable_cannot_change_what_is_being_walked() -> None:
    def meddle(configuration: Any) -> bool:
        with pytest.raises(TypeError):
            configuration["TILE"] = 99
        return True

    assert len(Space(TILES, [meddle])) == 6


def test_a_configuration_is_a_value() -> None:
    one, other = Configuration({"A": 1, "B": "x"}), Configuration({"B": "x", "A": 1})
    assert one == other == {"A": 1, "B": "x"}
    assert hash(one) == hash(other)
    assert list(one) == ["A", "B"]
    assert pickle.loads(pickle.dumps(one)) == one
    assert list(pickle.loads(pickle.dumps(other))) == ["B", "A"]
    assert str(other) == "B=x, A=1"
    with pytest.raises(TypeError):
        one["A"] = 2  # type: ignore[index]


def test_a_configuration_stands_in_a_struct() -> None:
    class Holder(msgspec.Struct, frozen=True):
        configuration: Configuration

    assert {Holder(Configuration({"A": 1})): 1}[Holder(Configuration({"A": 1}))] == 1
