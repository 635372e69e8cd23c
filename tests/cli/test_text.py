"""What is printed, as text: numbers people can read, and nothing that a terminal obeys."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console, RenderableType

from trials import failed, measured, trial
from tunewire.bench import RawKernel
from tunewire.cli.tables import devices_report, measurement_report, tuning_report
from tunewire.cli.text import duration, percent, printable, rate, seconds, size
from tunewire.devices import Device, Discovery, Problem
from tunewire.tune import (
    Configuration,
    Environment,
    FailureKind,
    KernelIdentity,
    Space,
    SpaceRecord,
    StrategyRecord,
    Trial,
    TuningResult,
    ranked,
)

HOSTILE = "[bold]red[/bold] \x1b[2J\x07\u202e\x9b :smile:"
SHOWN = "[bold]red[/bold] \\x1b[2J\\x07\\u202e\\x9b :smile:"


def rendered(report: RenderableType, width: int = 200) -> str:
    """As on a terminal without colours."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system=None,
        markup=False,
        highlight=False,
        _environ={},
    )
    console.print(report)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def tuned(*trials: Trial, values: tuple[int | str, ...] = (8, 16, 32)) -> TuningResult:
    space = Space({"TILE": values})
    return TuningResult(
        kernel=KernelIdentity.of(RawKernel("kernel void f() {}", "f")),
        space=SpaceRecord.of(space),
        strategy=StrategyRecord(name="exhaustive"),
        devices=("opencl:0",),
        environment=Environment.of(["opencl:0"], trials),
        default=space.first,
        complete=len(trials) >= len(space),
        started=datetime(2025, 1, 1, 12, 0, 0, tzinfo=UTC),
        finished=datetime(2025, 1, 1, 12, 1, 15, tzinfo=UTC),
        ranking=tuple(each.index for each in ranked(trials)),
        trials=trials,
    )


def report(result: TuningResult, top: int = 10) -> str:
    return rendered(tuning_report(result, top=top, target="f on opencl:0"))


FAST = measured(*[1_000_000.0 + n for n in range(20)], flops=2e6)
SLOW = measured(*[8_000_000.0 + n for n in range(20)], flops=2e6)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.500 ns"),
        (98.7, "98.70 ns"),
        (1_000.0, "1.000 µs"),
        (7_852_123.0, "7.852 ms"),
        (123_456_789.0, "123.5 ms"),
        (2.5e9, "2.500 s"),
        (9.99996e5, "1000.0 µs"),
    ],
)
def test_durations(value: float, text: str) -> None:
    assert duration(value) == text


def test_other_numbers() -> None:
    assert (percent(0.0123), rate(31.987), rate(12345.6)) == ("1.2 %", "31.99", "12346")
    assert (seconds(59.94), seconds(75), seconds(3700)) == ("59.9 s", "1 min 15 s", "1 h 1 min")
    assert (size(100), size(3 << 20), size(5 << 40)) == ("100 B", "3.0 MiB", "5.0 TiB")


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable("é 漢字\ttab\nline") == "é 漢字\\ttab\\nline"
    assert printable("tab\t\nline", lines=True) == "tab\t\nline"


def test_the_ranking_shows_the_fastest_first_and_says_how_many_more_there_are() -> None:
    text = report(
        tuned(trial(0, {"TILE": 8}, SLOW), trial(1, {"TILE": 16}, FAST), trial(2, {"TILE": 32}, SLOW)), top=2
    )
    assert "3 of 3 configurations measured in 1 min 15 s\n" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "16", "1.000", "ms", "0.0", "%", "2.000"] in lines
    assert ["2", "8", "8.000", "ms", "0.0", "%", "0.250"] in lines
    assert "and 1 slower" in text
    assert (
        "The best is 8.00 times as fast as the first (8.00 to 8.00, 95 % confidence within this run)." in text
    )


def test_a_search_that_was_left_says_so() -> None:
    assert "1 of 1 configurations measured in 1 min 15 s, and the search ended early" in report(
        tuned(trial(0, {"TILE": 8}, FAST))
    )


def test_failures_are_counted_by_kind_with_their_reasons() -> None:
    failures = [trial(n, {"TILE": 8}, failed(FailureKind.TIMEOUT, f"reason {n}")) for n in range(5)]
    wrong = trial(5, {"TILE": 16}, failed(FailureKind.WRONG_RESULT, "64 of 64 differ"))
    text = report(tuned(*failures, wrong))
    line = next(line for line in text.splitlines() if "timeout" in line)
    assert line.split() == ["timeout", "5", "TILE=8"]
    assert "reason 2" in text
    assert "reason 3" not in text
    assert "and 2 more" in text
    assert "wrong result" in text
    assert "64 of 64 differ" in text
    assert "No configuration could be measured." in text


@pytest.mark.parametrize(
    ("trials", "told"),
    [
        ([trial(0, {"TILE": 8}, failed(FailureKind.CRASH)), trial(1, {"TILE": 16}, FAST)], "failed (crash)"),
        ([trial(0, {"TILE": 16}, FAST)], "The first configuration has no result"),
        ([trial(0, {"TILE": 8}, FAST), trial(1, {"TILE": 16}, SLOW)], "None was faster than the first"),
        (
            [
                trial(0, {"TILE": 8}, measured(*range(90, 110))),
                trial(1, {"TILE": 16}, measured(*range(89, 109))),
            ],
            "cannot be told",
        ),
        ([], "nothing was measured"),
    ],
)
def test_no_more_is_claimed_of_the_best_than_is_known(trials: list[Trial], told: str) -> None:
    text = report(tuned(*trials))
    assert told in text
    assert "The best is" not in text


def test_foreign_text_is_shown_and_never_obeyed() -> None:
    hostile = failed(FailureKind.COMPILE_FAILED, HOSTILE)
    text = report(tuned(trial(0, {"TILE": HOSTILE}, hostile), values=(HOSTILE,)))
    assert text.count(SHOWN) == 2
    assert "\x1b" not in text
    measurement = measured(5.0)
    shown = rendered(
        measurement_report(measurement, target=HOSTILE, configuration=Configuration({"TILE": HOSTILE}))
    )
    assert shown.count(SHOWN) == 2
    assert "\x1b" not in shown
    found = Discovery(
        devices=(Device(id="opencl:0", kind="opencl", name=HOSTILE, vendor=HOSTILE, driver=HOSTILE),),
        problems=(Problem(kind="cuda", reason=HOSTILE),),
    )
    shown = rendered(devices_report(found), width=400)
    assert shown.count(SHOWN) == 4
    assert "\x1b" not in shown


def test_a_narrow_terminal_folds_and_loses_nothing() -> None:
    trials: Any = [trial(0, {"TILE": 8}, SLOW), trial(1, {"TILE": 16}, FAST)]
    text = rendered(tuning_report(tuned(*trials), top=10, target="f on opencl:0"), width=60)
    assert all(len(line) <= 60 for line in text.splitlines())
    assert "8.000 ms" in text
    assert "…" not in text
