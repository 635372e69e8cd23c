from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.bench import Expression
from tunewire.errors import InvalidExpression

PARAMETERS = {"N": 100, "TILE": 16, "HALF": 0.5, "MODE": "fast", "ON": True}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N", 100),
        ("ceil(N / TILE)", 7),
        ("N // TILE", 6),
        ("-N % 7", 5),
        ("N * HALF", 50.0),
        ("2 ** 10", 1024),
        ("pow(2, -1)", 0.5),
        ("1 << 5 | 3", 35),
        ("~0 ^ 6 & 3 >> 1", -1 ^ 6 & 3 >> 1),
        ("min(N, TILE, 3) + max(1, 2) - abs(-4)", 1),
        ("floor(2.7)", 2),
        ("N if TILE > 8 else 0", 100),
        ("N if TILE < 8 else 0", 0),
        ("1 < TILE <= 16", True),
        ("1 < TILE < 16", False),
        ("TILE in (8, 16)", True),
        ("TILE not in (8, 16)", False),
        ("TILE in [N, 3]", False),
        ("MODE == 'fast'", True),
        ("MODE in ('slow', 'fast') and ON", True),
        ("not ON or N == 100", True),
        ("not ON", False),
        ("'text'", "text"),
        (" N ", 100),
    ],
)
def test_evaluates_as_python_does(text: str, value: object) -> None:
    assert Expression.parse(text).evaluate(PARAMETERS) == value


def test_boolean_operators_stop_where_the_answer_is_known() -> None:
    assert Expression.parse("N == 0 or 100 // N == 1").evaluate({"N": 0}) is True
    assert Expression.parse("N != 0 and 100 // N == 1").evaluate({"N": 0}) is False


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("1 + 2", set()),
        ("ceil(N / TILE) if ON else M", {"N", "TILE", "ON", "M"}),
        ("A in (B, C)", {"A", "B", "C"}),
        ("min", {"min"}),
    ],
)
def test_names_are_the_parameters_that_it_reads(text: str, names: set[str]) -> None:
    assert Expression.parse(text).names == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "x := 3",
        "N.real",
        "N[0]",
        "[N]",
        "(1, 2)",
        "{1: 2}",
        "lambda: 1",
        "(lambda: 1)()",
        "[x for x in N]",
        "__import__('os')",
        "N()",
        "min(1, 2, key=3)",
        "max(*N)",
        "abs(1, 2)",
        "min(1)",
        "N @ TILE",
        "N is TILE",
        "N in TILE",
        "None",
        "1j",
        "b'x'",
        "...",
        "f'{N}'",
        "await N",
        "yield",
        "1 +" * 900 + "1",
        "(" * 999 + "1" + ")" * 999,
        "-" * 400 + "1",
        "(" + "1 + " * 400 + "1).x",
        "N" * 3000,
        "\x00",
    ],
)
def test_everything_else_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(InvalidExpression):
        Expression.parse(text)


def test_what_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidExpression, match="is text"):
        Expression.parse(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("N / 0", "division by zero"),
        ("N % 0", "by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("pow(9, 387420489)", "too large"),
        ("1 << 100000", "too large"),
        ("1 << -1", "negative shift"),
        ("10.0 ** 400", "too large"),
        ("(-8) ** 0.5", "not a real number"),
        ("ceil(1e400)", "infinity"),
        ("MODE * 1000000000", "only numbers"),
        ("-MODE", "only numbers"),
        ("MODE % 3", "only numbers"),
        ("MODE < 3", "not supported"),
        ("HALF << 2", "whole number"),
        ("MISSING + 1", "no parameter 'MISSING' .there is: HALF, MODE, N, ON, TILE."),
    ],
)
def test_values_that_cannot_be_combined_are_an_error_with_the_text(text: str, says: str) -> None:
    with pytest.raises(InvalidExpression, match=says) as raised:
        Expression.parse(text).evaluate(PARAMETERS)
    assert raised.value.text == text
    assert isinstance(raised.value, ValueError)


def test_travels_and_compares_by_its_text() -> None:
    expression = Expression.parse("N * 2")
    copy = pickle.loads(pickle.dumps(expression))
    assert copy == expression
    assert hash(copy) == hash(expression)
    assert copy.evaluate({"N": 4}) == 8
    assert expression != Expression.parse("N * 3")
    assert repr(copy) == "Expression('N * 2')"


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_an_invalid_one(text: str) -> None:
    try:
        expression = Expression.parse(text)
    except InvalidExpression:
        return
    assert isinstance(expression.names, frozenset)


NUMBERS = st.integers(-50, 50)


@given(NUMBERS, NUMBERS, st.sampled_from(["+", "-", "*", "//", "%", "<", "<=", "==", "!=", "&", "|", "^"]))
def test_agrees_with_python_on_integers(a: int, b: int, operator: str) -> None:
    text = f"A {operator} B"
    try:
        wanted = eval(text, {"A": a, "B": b})
    except ZeroDivisionError:
        with pytest.raises(InvalidExpression):
            Expression.parse(text).evaluate({"A": a, "B": b})
    else:
        assert Expression.parse(text).evaluate({"A": a, "B": b}) == wanted
