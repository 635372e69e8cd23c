"""What tunewire promises of its speed, each promise with what this run says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from peers.pairing import COLD, ECHO_64M, FLOOD, NOOP, TIMEOUT, Pair
from peers.report import MB, Comparison, duration, markdown, ratio, throughput
from peers.roster import (
    ANYIO,
    AWAITED_ECHO,
    AWAITED_ECHO_UVLOOP,
    AWAITED_EXECUTOR,
    INTERPRETERS,
    LOKY,
    PEBBLE,
    PLAIN_EXECUTOR,
    STANDARD_POOL,
)

COPIERS = (PLAIN_EXECUTOR, STANDARD_POOL, LOKY, PEBBLE, ANYIO)
MEMORY_BAR_BYTES = 25e6
UNKNOWN = "not measured in this run"


class Bar(NamedTuple):
    """One promise."""

    what: str
    bar: str
    figure: str
    met: bool | None

    def line(self) -> tuple[str, str, str, str]:
        """As a row of a table."""
        return (
            self.what,
            self.bar,
            self.figure,
            "" if self.met is None else "met" if self.met else "**not met**",
        )


def bars(comparisons: Sequence[Comparison]) -> list[Bar]:
    """Those that the comparison can judge."""
    by_name = {comparison.entry.name: comparison for comparison in comparisons}

    def pair(name: str, row: str) -> Pair | None:
        return by_name[name].pair(row) if name in by_name else None

    timed = "an awaited no-op with its timeout armed"
    return [
        _at_most(f"{timed}, against a bare asyncio echo", pair(AWAITED_ECHO, TIMEOUT), 1.3),
        _at_most(f"{timed}, on uvloop, against a bare uvloop echo", pair(AWAITED_ECHO_UVLOOP, TIMEOUT), 1.3),
        _at_most(f"{timed}, against an awaited ProcessPoolExecutor", pair(AWAITED_EXECUTOR, TIMEOUT), 0.45),
        _at_most("the same, neither with a timeout", pair(AWAITED_EXECUTOR, NOOP), 0.45),
        _at_least("many in flight, against multiprocessing.Pool.apply_async", pair(STANDARD_POOL, FLOOD), 2),
        _rate(comparisons),
        _against_the_best([(name, pair(name, ECHO_64M)) for name in COPIERS]),
        _at_most(
            "cold start to first result, against 1.5 x `import msgspec, pickle` + a bare start",
            pair(INTERPRETERS, COLD),
            1,
        ),
        _weight([found for c in comparisons if (found := c.pair("rss")) is not None]),
    ]


def _at_most(what: str, pair: Pair | None, most: float) -> Bar:
    bar = f"at most {most:g} x"
    if pair is None:
        return Bar(what, bar, UNKNOWN, None)
    return Bar(what, bar, f"{ratio(pair.inverse)}: {_both(pair)}", median(pair.inverse) <= most)


def _at_least(what: str, pair: Pair | None, least: float) -> Bar:
    bar = f"at least {least:g} x"
    if pair is None:
        return Bar(what, bar, UNKNOWN, None)
    return Bar(what, bar, f"{ratio(pair.ratios)}: {_both(pair)}", median(pair.ratios) >= least)


def _both(pair: Pair) -> str:
    return f"{duration(pair.ours.median)} to {duration(pair.peer.median)}"


def _rate(comparisons: Sequence[Comparison]) -> Bar:
    what, bar = "many in flight, calls a second", "aiming at 50,000"
    rate = throughput(comparisons)
    if rate is None:
        return Bar(what, bar, UNKNOWN, None)
    return Bar(what, bar, f"{rate:,.0f}", rate >= 50_000)


def _against_the_best(found: Sequence[tuple[str, Pair | None]]) -> Bar:
    """All of them are needed to know the best."""
    what, bar = f"echo of a warm 64 MiB, against the best of {', '.join(COPIERS)}", "at least 8 x"
    pairs = [(name, pair) for name, pair in found if pair is not None]
    if len(pairs) < len(COPIERS):
        return Bar(what, bar, UNKNOWN, None)
    name, best = min(pairs, key=lambda named: median(named[1].ratios))
    return Bar(what, bar, f"{ratio(best.ratios)}: {_both(best)}, {name}", median(best.ratios) >= 8)


def _weight(pairs: Sequence[Pair]) -> Bar:
    what, bar = "memory of a bare worker, its guard included, RSS", "at most 25 MB"
    if not pairs:
        return Bar(what, bar, UNKNOWN, None)
    weight = median(pair.ours.median for pair in pairs)
    return Bar(what, bar, f"{weight / MB:.3g} MB", weight <= MEMORY_BAR_BYTES)


def guaranteed(page: Path) -> Iterator[tuple[str, str, str, str]]:
    """The promises in time and memory that `make guarantees` has measured, out of the page that it wrote."""
    if not page.exists():
        return
    before = ""
    for line in page.read_text().splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        if not line.startswith("|") or len(columns) != 6:
            continue
        what, middle, worst, _, bar, verdict = columns
        if not re.search(r"\bmet\b", verdict):
            before = what  # which the next rows may refer to
            continue
        told = f"{before}; {what}" if re.search(r"\b(the same|that)\b", what) else what
        yield told, f"at most {bar}", f"{middle}, at worst {worst}", verdict


def for_page(found: Sequence[Bar], guarantees: Path) -> str:
    """All of them."""
    lines = [markdown(("what", "bar", "tunewire", "")), markdown(["---"] * 4)]
    lines += [markdown(bar.line()) for bar in found]
    lines += [markdown((f"{what} (`make guarantees`)", *rest)) for what, *rest in guaranteed(guarantees)]
    return "\n".join(lines)


def for_terminal(found: Sequence[Bar]) -> str:
    """Those of this run."""
    return "\n".join(
        f"  {verdict.strip('*') or '?':<8} {what}: {figure} ({bar})"
        for what, bar, figure, verdict in map(Bar.line, found)
    )
