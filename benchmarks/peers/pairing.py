"""Two sides measured in turn, so that what slows the machine for a moment slows both.

A round is one measurement of each side, the second of which goes first in the next round; its ratio is that of the two
medians. A row is given by the median and the quartiles of its rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from peers.driving import Driver
from peers.environments import NotToBeHad

KIB, MIB = 2**10, 2**20
PROBE_ITEMS = 2_000


class Effort(NamedTuple):
    """How much is measured."""

    rounds: int
    seconds: float
    """Of one measurement of one side, where calls are made one at a time."""

    in_flight: int
    items: int
    """Of a map, and the seconds that one may take: the slow are given fewer items."""
    map_seconds: float


FULL = Effort(rounds=9, seconds=0.08, in_flight=1_000, items=100_000, map_seconds=3.0)
QUICK = Effort(rounds=2, seconds=0.03, in_flight=300, items=100_000, map_seconds=0.2)


class Row(NamedTuple):
    """One kind of measurement."""

    key: str
    title: str
    needs: str
    """What a peer must offer."""

    command: str
    arguments: dict[str, Any]
    workers: int = 1
    """How many are open before; 0 where the measurement is of opening."""

    share: float = 1.0
    """Of the effort's rounds."""

    timed: bool = True
    """Whether a measurement lasts as long as the effort says."""


COLD, FIRST = "cold", "first_64m"
NOOP, TIMEOUT, FLOOD, MAP, ECHO_64M = "noop", "noop_within", "flood", "map", "echo_64m"
MEMORY = {
    "rss": "memory of a worker and its helpers, RSS: what processes share is counted for each",
    "pss": "memory of a worker and its helpers, PSS: what processes share is divided among them",
    "uss": "memory of a worker and its helpers, USS: what they do not share",
}

ROWS = (
    Row(COLD, "cold start to first result, in a program that runs", "cold", "cold", {}, 0, 0.5, False),
    Row(NOOP, "no-op, one at a time", "noop", "noop", {}),
    Row(TIMEOUT, "no-op, one at a time, a timeout armed", "noop_within", "noop_within", {}),
    Row(
        "noop_on_one_core",
        "no-op, one at a time, both ends on one core",
        "noop",
        "noop_on_one_core",
        {},
        share=0.6,
    ),
    Row("echo_1k", "echo of 1 KiB", "echo", "echo", {"size": KIB}, share=0.6),
    Row("echo_1m", "echo of 1 MiB", "echo", "echo", {"size": MIB}, share=0.6),
    Row(ECHO_64M, "echo of 64 MiB, after a first one", "echo", "echo", {"size": 64 * MIB}, share=0.5),
    Row(FIRST, "echo of 64 MiB, a worker's first", "echo", "first", {"size": 64 * MIB}, 0, 0.34, False),
    Row(FLOOD, "many in flight, 2 workers, each awaited: for each", "flood", "flood", {}, 2, 1.0, False),
    Row(
        MAP, "map of 100,000 no-ops, 2 workers, results in order: for each", "map", "map", {}, 2, 0.34, False
    ),
)


class Side(NamedTuple):
    """What one side gave: one value a round, in nanoseconds or bytes, and CPU nanoseconds of parent and children."""

    values: list[float]
    cpu: list[tuple[float, float]]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def cpu_median(self) -> tuple[float, float] | None:
        """Of each end by itself."""
        if not self.cpu:
            return None
        return statistics.median(p for p, _ in self.cpu), statistics.median(c for _, c in self.cpu)


class Pair(NamedTuple):
    """A row of the table."""

    row: str
    peer: Side
    ours: Side
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Peer to tunewire, round by round: above 1, tunewire takes less."""
        return [peer / ours for peer, ours in zip(self.peer.values, self.ours.values, strict=True)]

    @property
    def inverse(self) -> list[float]:
        """tunewire to peer."""
        return [1 / ratio for ratio in self.ratios]


class Missing(NamedTuple):
    """A row that a peer offers and did not give."""

    row: str
    reason: str


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Quartile, median, quartile."""
    if len(values) == 1:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compared(peer: Driver, ours: Driver, effort: Effort, rows: Sequence[Row]) -> Iterator[Pair | Missing]:
    """All that both can do."""
    offered = peer.offers & ours.offers
    for workers in (0, 1, 2):
        chosen = [row for row in rows if row.workers == workers and row.needs in offered]
        if not chosen:
            continue
        if workers:
            for driver in (peer, ours):
                driver.ask("open", workers=workers)
        for row in chosen:
            try:
                yield from _measured(row, peer, ours, effort)
            except NotToBeHad as error:
                yield Missing(row.key, str(error))
        if workers:
            for driver in (peer, ours):
                driver.ask("close")


def _measured(row: Row, peer: Driver, ours: Driver, effort: Effort) -> Iterator[Pair]:
    arguments, note = _arguments(row, peer, ours, effort)
    answers: dict[Driver, list[dict[str, Any]]] = {peer: [], ours: []}
    for driver in (peer, ours) if row.workers else ():
        driver.ask(row.command, **arguments[driver])  # thrown away: the first of its kind
    for number in range(max(1, round(effort.rounds * row.share))):
        for driver in (peer, ours) if number % 2 else (ours, peer):
            answers[driver].append(driver.ask(row.command, **arguments[driver]))
    sides = [_side(answers[driver]) for driver in (peer, ours)]
    yield Pair(row.key, *sides, note)
    for key in MEMORY if row.key == COLD else ():
        if all(answer["memory"]["rss"] for answer in answers[peer]):
            peers, mine = ([answer["memory"][key] for answer in answers[driver]] for driver in (peer, ours))
            yield Pair(key, Side(peers, []), Side(mine, []))


def _side(answers: list[dict[str, Any]]) -> Side:
    return Side(
        [statistics.median(answer["samples"]) for answer in answers],
        [tuple(answer["cpu"]) for answer in answers if "cpu" in answer],
    )


def _arguments(
    row: Row, peer: Driver, ours: Driver, effort: Effort
) -> tuple[dict[Driver, dict[str, Any]], str]:
    """Of the row's command, for each side, and what is to be said about it."""
    both = dict(row.arguments)
    if row.timed:
        both["seconds"] = effort.seconds
    if row.key == FLOOD:
        both["count"] = effort.in_flight
    if row.key != MAP:
        return {peer: both, ours: both}, ""
    counts = {driver: _affordable(driver, effort) for driver in (peer, ours)}
    fewer = [
        f"{name}: {counts[driver]:,} items"
        for name, driver in (("peer", peer), ("tunewire", ours))
        if counts[driver] < effort.items
    ]
    return {driver: {"count": count} for driver, count in counts.items()}, ", ".join(fewer)


def _affordable(driver: Driver, effort: Effort) -> int:
    """The items that a map of this side can have in its time; what one costs is known from a small map."""
    (each,) = driver.ask("map", count=PROBE_ITEMS)["samples"]
    affordable = int(effort.map_seconds * 1e9 / each)
    return min(effort.items, max(PROBE_ITEMS, affordable // 1_000 * 1_000))
