"""tunewire beside its peers, in one run: a table of ratios, and what tunewire's own bars say of it.

    python benchmarks/bench.py [--quick] [--heavy] [--peers loky,pebble] [--rounds 9] [--write]

Each peer runs in a process, and where it is not Python's own in an environment, of its own. One call of it and one of
tunewire are measured in turn, parents on one core and children on another. A peer that is not to be had is one line.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from peers import bars, page, report
from peers.driving import Driver, TunewireFailed
from peers.environments import NotToBeHad, python_of
from peers.pairing import FIRST, FULL, QUICK, ROWS, Effort, Missing, Pair, Row, compared
from peers.report import Comparison
from peers.roster import OURS, PEERS, Entry

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = ROOT / ".venv" / "peers"
PAGE = ROOT / "docs" / "performance.md"
GUARANTEES = ROOT / "docs" / "guarantees.md"
COMMAND_BOUND = 60.0
"""Seconds for one measurement of one side; the longest takes three."""


def tell(line: str) -> None:
    """On stderr: stdout has the table only."""
    print(line, file=sys.stderr, flush=True)


def chosen_cores() -> list[int]:
    """The parents' first, then the children's: two at the most, one for each worker. No two are threads of one core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise SystemExit("bench: two cores are needed, one for each end")
    whole = list({siblings(core): core for core in reversed(usable)}.values())[::-1]
    return (whole if len(whole) > 1 else usable)[:3]


def siblings(core: int) -> str:
    """What names the core of which this is a thread."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else str(core)


def where(cores: Sequence[int]) -> str:
    """Which end is on which core."""
    parent, *children = cores
    return f"parents on core {parent}, children on {' and '.join(f'core {core}' for core in children)}"


class Bench:
    """The run: one tunewire for each loop, all the time, and the peers one after the other."""

    def __init__(self, effort: Effort, rows: Sequence[Row], environments: Path) -> None:
        self._effort = effort
        self._rows = rows
        self._environments = environments
        self._cores = chosen_cores()
        self._ours: dict[str, Driver] = {}

    def run(self, entries: Sequence[Entry]) -> Iterator[Comparison]:
        """Install all first, so that nothing is installed while something is measured."""
        found = {entry: self._interpreter(entry) for entry in entries}
        with ExitStack() as stack:
            for loop in {entry.against for entry in entries}:
                driver = Driver(OURS[loop], Path(sys.executable), self._cores, COMMAND_BOUND, TunewireFailed)
                self._ours[loop] = stack.enter_context(driver)
            for entry, python in found.items():
                begun = time.monotonic()
                comparison = self._comparison(entry, python)
                yield comparison
                tell(f"{entry.name}: {comparison.reason or f'{time.monotonic() - begun:.0f} s'}")

    def _interpreter(self, entry: Entry) -> Path | NotToBeHad:
        try:
            return python_of(entry, self._environments, tell)
        except NotToBeHad as error:
            return error

    def _comparison(self, entry: Entry, python: Path | NotToBeHad) -> Comparison:
        if isinstance(python, NotToBeHad):
            return Comparison(entry, "", (), str(python))
        version, results = "", list[Pair | Missing]()
        try:
            with Driver(entry, python, self._cores, COMMAND_BOUND) as peer:
                version = peer.version
                results.extend(compared(peer, self._ours[entry.against], self._effort, self._rows))
        except NotToBeHad as error:
            return Comparison(entry, version, tuple(results), str(error))
        return Comparison(entry, version, tuple(results))


def chosen(arguments: argparse.Namespace) -> list[Entry]:
    """The peers that were asked for."""
    if not arguments.peers:
        return [entry for entry in PEERS if arguments.heavy or not entry.heavy]
    wanted = [name.strip().lower() for name in arguments.peers.split(",")]
    found = [entry for entry in PEERS if any(name in entry.name.lower() for name in wanted)]
    if not found:
        raise SystemExit(f"bench: no peer is named so; there are: {', '.join(entry.name for entry in PEERS)}")
    return found


def chosen_rows(text: str | None, quick: bool) -> list[Row]:
    """The rows that were asked for. A worker's first large array takes a worker each, and so is not quick."""
    keys = [row.key for row in ROWS if not (quick and row.key == FIRST)] if text is None else text.split(",")
    if unknown := set(keys) - {row.key for row in ROWS}:
        raise SystemExit(f"bench: no row {sorted(unknown)}; there are: {', '.join(row.key for row in ROWS)}")
    return [row for row in ROWS if row.key in keys]


def measured(comparisons: Sequence[Comparison], found: Sequence[bars.Bar], machine: str, command: str) -> str:
    """What goes between the page's marks."""
    missing = [f"* {line}" for comparison in comparisons for line in comparison.missing]
    parts = [
        f"Measured by `{command}` on {machine}.",
        "## The bars",
        bars.for_page(found, GUARANTEES),
        "## The peers",
        report.peers_table(comparisons),
        *(["Not to be had:", "\n".join(missing)] if missing else []),
        "## Side by side",
        report.for_page(comparisons),
    ]
    return "\n\n".join(parts)


def effort_of(arguments: argparse.Namespace) -> Effort:
    """As asked."""
    effort = QUICK if arguments.quick else FULL
    return effort._replace(rounds=arguments.rounds or effort.rounds)


def command_of(arguments: argparse.Namespace) -> str:
    """That gives this run again."""
    given = ["--quick"] if arguments.quick else []
    for name in ("peers", "rows", "rounds"):
        if value := getattr(arguments, name):
            given += [f"--{name}", str(value)]
    return f'make bench{" PEERS=all" * arguments.heavy} ARGS="{shlex.join([*given, "--write"])}"'


def main() -> int:
    """Run, print, and write if asked to; 1 if there is nothing to show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute: fewer and shorter rounds")
    parser.add_argument("--heavy", action="store_true", help="TVM and PyTorch too")
    parser.add_argument("--peers", help="only those whose names contain one of these, divided by commas")
    parser.add_argument("--rows", help="only these, divided by commas")
    parser.add_argument("--rounds", type=int, help="of each row, or a part of them where a round is long")
    parser.add_argument(
        "--environments", type=Path, default=ENVIRONMENTS, help="where the peers are installed"
    )
    parser.add_argument("--write", action="store_true", help=f"the results into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    machine, begun = f"{report.machine()}; {where(chosen_cores())}", time.monotonic()
    bench = Bench(effort_of(arguments), chosen_rows(arguments.rows, arguments.quick), arguments.environments)
    try:
        comparisons = list(bench.run(chosen(arguments)))
    except TunewireFailed as error:
        tell(f"bench: tunewire itself failed: {error}")
        return 1
    found = bars.bars(comparisons)
    print(machine, end="\n\n")
    print(report.for_terminal(comparisons), end="\n\n")
    for line in (line for comparison in comparisons for line in comparison.missing):
        print(f"not to be had: {line}")
    print("\nbars")
    print(bars.for_terminal(found))
    tell(f"{time.monotonic() - begun:.0f} s in all")
    if arguments.write:
        page.write(PAGE, measured(comparisons, found, machine, command_of(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
