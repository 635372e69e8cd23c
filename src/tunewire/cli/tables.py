"""What a command prints, as rich renderables made from values. Foreign text is escaped here, and nowhere obeyed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tunewire.bench import Measurement
from tunewire.cli.text import duration, percent, printable, rate, seconds, size
from tunewire.devices import Discovery
from tunewire.tune import Configuration, Failure, FailureKind, Trial, TuningResult

__all__ = ["FAILURE_WORDS", "devices_report", "measurement_report", "tuning_report"]

#: How people are told a kind of failure.
FAILURE_WORDS = {
    FailureKind.INVALID_KERNEL: "cannot be launched",
    FailureKind.COMPILE_FAILED: "does not compile",
    FailureKind.WRONG_RESULT: "wrong result",
    FailureKind.TIMEOUT: "timeout",
    FailureKind.CRASH: "crash",
    FailureKind.DEVICE_FAULT: "device fault",
    FailureKind.ERROR: "error",
}
#: Of each kind of failure, so many are told one by one.
FAILURES_TOLD = 3


def tuning_report(result: TuningResult, *, top: int, target: str) -> RenderableType:
    """The `top` fastest configurations, the failures by kind, and the best against the first."""
    parts: list[RenderableType] = [_summary(result, target)]
    if result.ranking:
        parts += [_ranking(result, top), ""]
    if result.failures:
        parts += [_failures(result.failures), ""]
    parts.append(_gain(result))
    return Group(*parts)


def _summary(result: TuningResult, target: str) -> Text:
    took = seconds((result.finished - result.started).total_seconds())
    tried, measured = len(result.trials), len(result.ranking)
    counts = f"{measured} of {tried} configurations measured" if tried else "nothing was measured"
    early = "" if result.complete else ", and the search ended early"
    return Text.assemble((printable(target), "bold"), f"\n{counts} in {took}{early}")


def _ranking(result: TuningResult, top: int) -> Table:
    shown = [result.trials[index] for index in result.ranking[:top]]
    slower = len(result.ranking) - len(shown)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"and {slower} slower" if slower else None)
    table.caption_justify = "left"
    rates = [(title, read) for title, read in _RATES if any(read(_measured(trial)) for trial in shown)]
    table.add_column("#", justify="right", style="dim")
    for parameter in result.space.parameters:
        # A name may be broken where a terminal is narrow; a value never, since half a number is another number.
        longest = max(len(printable(str(value))) for value in parameter.values)
        table.add_column(Text(printable(parameter.name)), justify="right", overflow="fold", min_width=longest)
    for title in ("median", "spread", *(title for title, _ in rates)):
        table.add_column(title, justify="right", no_wrap=True)
    for place, trial in enumerate(shown, 1):
        cells = (_rate_cell(read(_measured(trial))) for _, read in rates)
        style = "bold green" if place == 1 else None
        table.add_row(str(place), *_configuration_cells(trial), *_time_cells(trial), *cells, style=style)
    return table


def _configuration_cells(trial: Trial) -> list[Text]:
    return [Text(printable(str(value))) for value in trial.configuration.values()]


def _time_cells(trial: Trial) -> tuple[str, str]:
    measurement = _measured(trial)
    return duration(measurement.median_ns), percent(measurement.spread)


def _gflops(measurement: Measurement) -> float | None:
    return measurement.gflops


def _gbytes_per_s(measurement: Measurement) -> float | None:
    return measurement.gbytes_per_s


_RATES = (("GFLOP/s", _gflops), ("GB/s", _gbytes_per_s))


def _rate_cell(value: float | None) -> str:
    return "" if value is None else rate(value)


def _measured(trial: Trial) -> Measurement:
    assert trial.measurement is not None
    return trial.measurement


def _failures(failures: Sequence[Trial]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=None)
    table.add_column("failed", style="red", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("configuration and reason", overflow="fold")
    for kind, trials in _by_kind(failures):
        table.add_row(FAILURE_WORDS[kind], str(len(trials)), Group(*_told(trials)))
    return table


def _by_kind(failures: Iterable[Trial]) -> list[tuple[FailureKind, list[Trial]]]:
    order = list(FailureKind)
    ordered = sorted(failures, key=lambda trial: order.index(_failure(trial).kind))
    return [(kind, list(trials)) for kind, trials in groupby(ordered, key=lambda trial: _failure(trial).kind)]


def _failure(trial: Trial) -> Failure:
    assert trial.failure is not None
    return trial.failure


def _told(trials: Sequence[Trial]) -> list[Text]:
    told = [
        Text.assemble((printable(str(trial.configuration)), "dim"), "\n", printable(_failure(trial).reason))
        for trial in trials[:FAILURES_TOLD]
    ]
    more = len(trials) - len(told)
    return [*told, Text(f"and {more} more")] if more > 0 else told


def _gain(result: TuningResult) -> RenderableType:
    best, first, gain = result.best, result.baseline, result.gain
    if best is None:
        return Text("No configuration could be measured.", style="bold red")
    if first is None:
        return Text("The first configuration has no result, so the best cannot be compared with it.")
    if first.failure is not None:
        why = FAILURE_WORDS[first.failure.kind]
        return Text(f"The first configuration failed ({why}), so the best cannot be compared with it.")
    assert gain is not None
    if best == first:
        return Text("None was faster than the first configuration.")
    interval = f"{gain.low:.2f} to {gain.high:.2f}"
    if not gain.can_tell:
        told = f"Whether the best is faster than the first cannot be told: {gain.ratio:.2f} ({interval}) times as fast."
        return Group(Text(told), _side_by_side(best, first))
    told = f"The best is {gain.ratio:.2f} times as fast as the first ({interval}, 95 % confidence within this run)."
    return Group(Text(told, style="bold green"), _side_by_side(best, first))


def _side_by_side(best: Trial, first: Trial) -> Padding:
    table = Table.grid(padding=(0, 2))
    for name, trial in (("best", best), ("first", first)):
        median, spread = _time_cells(trial)
        table.add_row(name, median, f"spread {spread}", Text(printable(str(trial.configuration))))
    return Padding(table, (0, 0, 0, 2), expand=False)


def measurement_report(
    measurement: Measurement, *, target: str, configuration: Configuration
) -> RenderableType:
    """One measurement, with what it takes to believe it."""
    table = Table.grid(padding=(0, 2))
    for name, value in _measurement_rows(measurement):
        table.add_row(Text(name, style="dim"), Text(printable(value)))
    return Group(
        Text(printable(target), style="bold"),
        *([Text(printable(str(configuration)))] if configuration else []),
        Padding(table, (0, 0, 0, 2), expand=False),
    )


def _measurement_rows(m: Measurement) -> list[tuple[str, str]]:
    batched = "" if m.launches_per_sample == 1 else f" of {m.launches_per_sample} launches each"
    rows = [
        ("median", f"{duration(m.median_ns)}, spread {percent(m.spread)}"),
        ("fastest", duration(m.min_ns)),
        ("samples", f"{len(m.samples_ns)}{batched}, after {m.warmup} launches to warm up"),
        ("clock", m.clock),
        ("check", m.check),
    ]
    optional = (
        ("rate", m.gflops, lambda value: f"{rate(value)} GFLOP/s"),
        ("bandwidth", m.gbytes_per_s, lambda value: f"{rate(value)} GB/s"),
        ("first launch", m.first_ns, duration),
        ("compiling", m.compile_s, lambda value: duration(value * 1e9)),
    )
    rows += [(name, show(value)) for name, value, show in optional if value is not None]
    rows += [(name, text) for name, text in (("driver", m.driver), ("library", m.library)) if text]
    return rows


def devices_report(found: Discovery) -> RenderableType:
    """The devices that were found, which of them cannot be used, and why others were not found."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("device", "name", "vendor", "memory", "units", "driver"):
        table.add_column(title, justify="right" if title in ("memory", "units") else "left", overflow="fold")
    for device in found.devices:
        table.add_row(
            device.id,
            Text(printable(device.name)),
            Text(printable(device.vendor or "")),
            "" if device.memory_bytes is None else size(device.memory_bytes),
            "" if device.compute_units is None else str(device.compute_units),
            Text(printable(device.driver or "")),
        )
    broken = [
        Text.assemble((f"{each.id}: ", "yellow"), printable(f"cannot build any kernel: {each.problem}"))
        for each in found.devices
        if each.problem is not None
    ]
    problems = [
        Text.assemble((f"{each.kind}: ", "yellow"), printable(each.reason)) for each in found.problems
    ]
    return Group(table, *broken, *problems)
