"""Limits, ladders and recycling as values: what they accept, and what they say."""

import os
import subprocess

import pytest

from tunewire import Ladder, Limits, Recycle
from tunewire.workers.limits import with_run
from tunewire.workers.recycle import tree_bytes


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), 10**400])
@pytest.mark.parametrize(
    "make", [lambda x: Limits(run=x), lambda x: Ladder(terminate=x), lambda x: Recycle(age=x)]
)
def test_a_number_of_seconds_that_no_clock_reaches_is_refused(make, wrong):
    with pytest.raises(ValueError, match="more than 0"):
        make(wrong)


@pytest.mark.parametrize("wrong", ["1", True, (1,)])
@pytest.mark.parametrize(
    "make", [lambda x: Limits(queue=x), lambda x: Ladder(interrupt=x), lambda x: Recycle(age=x)]
)
def test_what_is_no_number_of_seconds_is_refused(make, wrong):
    with pytest.raises(TypeError, match="number of seconds"):
        make(wrong)


def test_a_cooperative_ladder_gives_time():
    with pytest.raises(ValueError, match="interrupt="):
        Ladder(cooperative=True)


def test_limits_with_another_limit_for_run_keep_the_others():
    assert with_run(Limits(check=3.0, run=1.0), 2.0) == Limits(check=3.0, run=2.0)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2"])
@pytest.mark.parametrize("name", ["uses", "tree_bytes"])
def test_recycling_counts_in_whole_positive_numbers(name, wrong):
    with pytest.raises(ValueError, match=name):
        Recycle(**{name: wrong})


@pytest.mark.parametrize(
    ("recycle", "figures", "reason"),
    [
        (Recycle(), {"uses": 10**6, "age": 1e6, "tree_bytes": 1 << 40}, None),
        (Recycle(uses=3), {"uses": 2, "age": 0.0, "tree_bytes": None}, None),
        (Recycle(uses=3), {"uses": 3, "age": 0.0, "tree_bytes": None}, "it has run 3 calls"),
        (Recycle(age=60.0), {"uses": 1, "age": 59.9, "tree_bytes": None}, None),
        (Recycle(age=60.0), {"uses": 1, "age": 60.0, "tree_bytes": None}, "it is 60 s old"),
        (Recycle(tree_bytes=100), {"uses": 1, "age": 0.0, "tree_bytes": 100}, None),
        (
            Recycle(tree_bytes=100),
            {"uses": 1, "age": 0.0, "tree_bytes": 101},
            "its tree holds 101 bytes, more than its limit of 100",
        ),
    ],
)
def test_when_a_process_is_to_be_replaced(recycle, figures, reason):
    assert recycle.due(**figures) == reason


def test_the_memory_of_a_tree_counts_descendants_and_a_process_that_has_gone_counts_nothing():
    alone = tree_bytes(os.getpid())
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            assert tree_bytes(os.getpid()) > tree_bytes(child.pid) > 0
            assert tree_bytes(os.getpid()) - alone < 64 << 20
        finally:
            child.kill()
    assert tree_bytes(child.pid) == 0
