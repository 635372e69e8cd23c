from __future__ import annotations

import pytest

from tunewire.bench.source import definition, mentions, without_comments


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("a // b\nc", "a  \nc"),
        ("a /* b\n c */ d", "a   d"),
        ("a /* never closed", "a  "),
        ('"// no comment" // one', '"// no comment"  '),
        (r'"\"// still text" x', r'"\"// still text" x'),
        ("'/' /* b */ '*'", "'/'   '*'"),
        ("a // goes on \\\n here\nb", "a  \nb"),
        ("a / b * c", "a / b * c"),
    ],
)
def test_comments_go_and_text_stays(source: str, code: str) -> None:
    assert without_comments(source) == code


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("TILE", True),
        ("x[TILE]", True),
        ("#if TILE==3", True),
        ("TILE_X", False),
        ("MY_TILE", False),
        ("TILE2", False),
        ("tile", False),
    ],
)
def test_a_name_is_mentioned_as_a_word_of_its_own(code: str, found: bool) -> None:
    assert mentions(code, "TILE") is found


@pytest.mark.parametrize(
    ("value", "option"),
    [
        (3, "-DX=3"),
        (-3, "-DX=-3"),
        (0.25, "-DX=0.25"),
        (True, "-DX=1"),
        (False, "-DX=0"),
        ("float4", "-DX=float4"),
        ("a+b", "-DX=a+b"),
    ],
)
def test_a_parameter_becomes_a_definition(value: int | float | bool | str, option: str) -> None:
    assert definition("X", value) == option


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("2X", 1),
        ("A-B", 1),
        ("", 1),
        ("X", "two words"),
        ("X", 'quo"te'),
        ("X", "back\\slash"),
        ("X", ""),
        ("X", float("inf")),
        ("X", float("nan")),
        ("X", None),
        ("X", [1]),
    ],
)
def test_what_has_no_spelling_in_c_is_an_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="cannot be defined"):
        definition(name, value)  # type: ignore[arg-type]
