"""The results as a table for a terminal, and as the tables of a page."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from peers.pairing import COLD, FLOOD, MEMORY, ROWS, Missing, Pair, Side, spread
from peers.roster import Entry

TITLES = {row.key: row.title for row in ROWS} | MEMORY
SCALES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"), (0.0, "ns"))
MB = 1e6
HEADINGS = ("peer", "loops", "peer's", "tunewire's", "peer / tunewire", "CPU, peer", "CPU, tunewire")


class Comparison(NamedTuple):
    """One peer's part of the run."""

    entry: Entry
    version: str
    results: tuple[Pair | Missing, ...]
    reason: str = ""
    """Why it ended early, or was not to be had at all."""

    def pair(self, row: str) -> Pair | None:
        """Of that row, if there is one."""
        return next((pair for pair in self.pairs if pair.row == row), None)

    @property
    def pairs(self) -> list[Pair]:
        return [result for result in self.results if isinstance(result, Pair)]

    @property
    def missing(self) -> list[str]:
        """A sentence for each thing that was not to be had."""
        rows = [
            f"{self.entry.name}, {TITLES[r.row]}: {r.reason}" for r in self.results if isinstance(r, Missing)
        ]
        return [*rows, *([f"{self.entry.name}: {self.reason}"] if self.reason else [])]


def duration(ns: float) -> str:
    """With the unit that makes it readable."""
    size, unit = next((size, unit) for size, unit in SCALES if ns >= size)
    return f"{ns / (size or 1):.3g} {unit}"


def ratio(values: Sequence[float]) -> str:
    """The median and the quartiles."""
    low, middle, high = spread(values)
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"


def cells(comparison: Comparison, pair: Pair) -> tuple[str, ...]:
    """A line of the table."""
    entry = comparison.entry
    shown = (lambda value: f"{value / MB:.3g} MB") if pair.row in MEMORY else duration
    return (
        entry.name,
        f"{entry.loop} / {entry.against}",
        shown(pair.peer.median),
        shown(pair.ours.median),
        ratio(pair.ratios),
        cpu(pair.peer),
        cpu(pair.ours),
    )


def cpu(side: Side) -> str:
    """Parent's and child's, for each call."""
    if side.cpu_median is None:
        return ""
    parent, child = side.cpu_median
    return f"{duration(parent)} + {duration(child)}"


class Section(NamedTuple):
    """A row of the bench: a line for each peer, and what is to be said about some of them."""

    title: str
    lines: list[tuple[str, ...]]
    notes: list[str]


def sections(comparisons: Sequence[Comparison]) -> Iterable[Section]:
    """In the order in which a reader asks."""
    for key in [row.key for row in ROWS if row.key != COLD] + [COLD, *MEMORY]:
        found = [(c, pair) for c in comparisons if (pair := c.pair(key)) is not None]
        if found:
            notes = [f"{c.entry.name}: {pair.note}" for c, pair in found if pair.note]
            yield Section(TITLES[key], [cells(*line) for line in found], notes)


def for_terminal(comparisons: Sequence[Comparison]) -> str:
    """One table, in columns."""
    parts = list(sections(comparisons))
    lines = [HEADINGS, *(line for section in parts for line in section.lines)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]

    def aligned(line: Sequence[str]) -> str:
        columns = [
            f"{c:<{w}}" if n < 2 else f"{c:>{w}}" for n, (c, w) in enumerate(zip(line, widths, strict=True))
        ]
        return "  " + "  ".join(columns).rstrip()

    found = [aligned(HEADINGS)]
    for title, section, notes in parts:
        found += ["", title, *map(aligned, section), *(f"  ({note})" for note in notes)]
    return "\n".join(found)


def for_page(comparisons: Sequence[Comparison]) -> str:
    """A table for each row."""
    found = []
    for title, section, notes in sections(comparisons):
        found += [
            "",
            f"### {title[0].upper()}{title[1:]}",
            "",
            markdown(HEADINGS),
            markdown(["---"] * len(HEADINGS)),
        ]
        found += map(markdown, section)
        found += ["", f"{'; '.join(notes)}."] if notes else []
    return "\n".join(found).strip()


def markdown(line: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(line)} |"


def machine() -> str:
    """Where it ran, in one sentence."""
    described = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in described if line.startswith("model name")), "")
    return (
        f"{os.cpu_count()} cores ({model or platform.machine()}), Linux {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}, load average {os.getloadavg()[0]:.2f} at the start"
    )


def peers_table(comparisons: Sequence[Comparison]) -> str:
    """Who was compared, in what version, used how."""
    found = [markdown(("peer", "version", "used how")), markdown(["---"] * 3)]
    for entry, version, _, reason in comparisons:
        found.append(markdown((entry.name, version or f"not to be had: {reason}", entry.setup)))
    return "\n".join(found)


def throughput(comparisons: Sequence[Comparison], row: str = FLOOD) -> float | None:
    """Calls a second of tunewire on asyncio, over all its rounds."""
    values = [
        value
        for c in comparisons
        if c.entry.against == "asyncio" and (pair := c.pair(row)) is not None
        for value in pair.ours.values
    ]
    return 1e9 / spread(values)[1] if values else None
