"""`make bench` with what can go wrong in it: the pages it writes into, and peers that are not to be had."""

import os
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CORE = min(os.sched_getaffinity(0))


@pytest.fixture
def peers(monkeypatch):
    """The bench's own modules, forgotten again: their names are not tunewire's."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(BENCHMARKS):
            del sys.modules[name]


@pytest.fixture
def small_bench(peers, tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("the bench needs two cores")
    import bench
    from peers.pairing import NOOP, ROWS, Effort

    effort = Effort(rounds=2, seconds=0.01, in_flight=10, items=10, map_seconds=0.1)
    return bench.Bench(effort, [row for row in ROWS if row.key == NOOP], tmp_path)


def entry(name, driver, **options):
    from peers.roster import Entry

    return Entry(name, driver, **options)


def test_what_people_wrote_around_the_marks_stays(peers):
    from peers.page import BEGIN, END, replaced

    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nWhat was tried.\n"
    assert replaced(page, "new\n") == f"# Title\n\n{BEGIN}\nnew\n{END}\n\nWhat was tried.\n"
    assert replaced(replaced(page, "new"), "old") == page
    assert replaced("Text.\n", "new") == f"Text.\n\n{BEGIN}\nnew\n{END}\n"
    assert replaced("", "new") == f"{BEGIN}\nnew\n{END}\n"
    with pytest.raises(ValueError, match="end"):
        replaced(f"{BEGIN}\nold\n", "new")


def test_the_bars_are_judged_by_the_median_of_the_rounds(peers):
    from peers.bars import bars
    from peers.pairing import TIMEOUT, Pair, Side
    from peers.report import Comparison, for_page, for_terminal
    from peers.roster import AWAITED_ECHO, PEERS

    echo = next(found for found in PEERS if found.name == AWAITED_ECHO)

    def judged(*ours):
        sides = Side([100.0] * len(ours), [(40.0, 30.0)]), Side([*ours], [(60.0, 40.0)])
        comparison = Comparison(echo, "1", (Pair(TIMEOUT, *sides),))
        assert "100 ns" in for_terminal([comparison])
        assert "| 100 ns |" in for_page([comparison])
        return next(bar for bar in bars([comparison]) if "bare asyncio echo" in bar.what)

    assert judged(120.0, 125.0, 500.0).met is True
    assert judged(120.0, 135.0, 140.0).met is False
    assert [bar.met for bar in bars([])] == [None] * len(bars([]))


def test_a_page_of_guarantees_is_read_for_its_bars(peers, tmp_path):
    from peers.bars import guaranteed

    page = tmp_path / "guarantees.md"
    assert list(guaranteed(page)) == []
    page.write_text(
        "| what | median | worst | of | bar | |\n|---|---|---|---|---|---|\n"
        "| closing | 30 ms | 40 ms | 30 | 100 ms | met |\n| a start | 9 ms | 9 ms | 30 | | |\n"
        "| the same, as a part of that | 2 x | 3 x | 30 | 1 x | **not met** |\n"
    )
    assert list(guaranteed(page)) == [
        ("closing", "at most 100 ms", "30 ms, at worst 40 ms", "met"),
        ("a start; the same, as a part of that", "at most 1 x", "2 x, at worst 3 x", "**not met**"),
    ]


def test_a_peer_that_is_not_to_be_had_is_one_line_and_the_table_goes_on(small_bench, tmp_path):
    from peers.pairing import NOOP
    from peers.report import for_terminal

    comparisons = list(
        small_bench.run(
            [
                entry("nowhere", "with_nothing:Nobody"),
                entry("broken", "builtins:object"),
                entry(
                    "absent",
                    "floors:RawPipe",
                    environment="absent",
                    requirements=((str(tmp_path / "no-such-package"),),),
                ),
                entry("pipe", "floors:RawPipe"),
            ]
        )
    )
    nowhere, broken, absent, pipe = comparisons
    assert "with_nothing" in nowhere.reason
    assert "version" in broken.reason
    assert absent.reason.startswith("not installed: ERROR")
    assert pipe.missing == []
    pair = pipe.pair(NOOP)
    assert len(pair.ratios) == 2
    assert min(pair.peer.values + pair.ours.values) > 0
    assert all(parent > 0 and child > 0 for parent, child in pair.peer.cpu + pair.ours.cpu)
    assert for_terminal(comparisons).count("\n  pipe ") == 1


def test_a_driver_that_does_not_answer_or_has_gone_says_so(peers):
    from peers.driving import Driver
    from peers.environments import NotToBeHad

    with Driver(entry("pipe", "floors:RawPipe"), Path(sys.executable), (CORE, CORE), bound=30) as driver:
        driver.ask("open", workers=1)
        driver.bound = 0.1
        with pytest.raises(NotToBeHad, match=r"no answer to 'noop' within 0\.1 s"):
            driver.ask("noop", seconds=30)
        with pytest.raises(NotToBeHad):
            driver.ask("noop", seconds=0)


def test_a_row_that_fails_is_one_line_and_its_peer_goes_on(peers):
    from peers.driving import Driver
    from peers.environments import NotToBeHad

    with Driver(entry("pipe", "floors:RawPipe"), Path(sys.executable), (CORE, CORE), bound=30) as driver:
        with pytest.raises(NotToBeHad, match="AttributeError"):
            driver.ask("noop", seconds=0)  # nothing is open
        driver.ask("open", workers=1)
        assert len(driver.ask("noop", seconds=0)["samples"]) == 1
        driver.ask("close")
