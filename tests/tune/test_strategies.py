"""Strategies and the bookkeeping of a search, both without a loop or a device."""

from __future__ import annotations

from collections import Counter

import pytest

from trials import failed, measured
from tunewire.errors import InvalidSpace
from tunewire.tune import Configuration, Exhaustive, Random, Space, Strategy, Trial
from tunewire.tune.search import Search

SPACE = Space({"A": range(6), "B": range(6)}, ["A <= B"])


def all_of(strategy: Strategy) -> list[Configuration]:
    return list(iter(strategy.ask, None))


def test_exhaustive_gives_every_configuration_in_order() -> None:
    assert all_of(Exhaustive(SPACE)) == list(SPACE)


def test_random_gives_every_configuration_once_in_an_order_that_the_seed_decides() -> None:
    orders = [all_of(Random(SPACE, seed)) for seed in (1, 1, 2)]
    assert all(sorted(order, key=str) == sorted(SPACE, key=str) for order in orders)
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != list(SPACE)


def test_random_finds_the_few_configurations_of_a_space_that_excludes_nearly_all() -> None:
    space = Space({"A": range(2000), "B": range(2000)}, ["A == B", "A % 500 == 0"])
    assert Counter(c["A"] for c in all_of(Random(space, 3))) == {0: 1, 500: 1, 1000: 1, 1500: 1}


def test_random_does_not_walk_a_large_space_for_its_first_configurations() -> None:
    space = Space({name: range(100) for name in "ABCDEF"})
    strategy = Random(space, 5)
    assert len({strategy.ask() for _ in range(200)}) == 200


def test_random_orders_are_equally_likely() -> None:
    space = Space({"A": [0, 1, 2]})
    orders = Counter(tuple(c["A"] for c in all_of(Random(space, seed))) for seed in range(3000))
    assert len(orders) == 6
    assert all(400 < count < 600 for count in orders.values())


class Told:
    """Gives what it was made with, and remembers what it is told."""

    def __init__(self, *configurations: Configuration | None) -> None:
        self.left = list(configurations)
        self.trials: list[Trial] = []

    def ask(self) -> Configuration | None:
        return self.left.pop(0) if self.left else None

    def tell(self, trial: Trial) -> None:
        self.trials.append(trial)


def at(a: int, b: int) -> Configuration:
    return Configuration({"A": a, "B": b})


def test_the_default_comes_first_and_once() -> None:
    search = Search(SPACE, Told(at(0, 1), at(2, 2), at(0, 0)), default=at(2, 2))
    assert [search.next() for _ in range(4)] == [at(2, 2), at(0, 1), at(0, 0), None]


def test_a_strategy_may_ask_for_the_default_again_and_gets_it() -> None:
    search = Search(SPACE, Told(at(2, 2), at(2, 2)), default=at(2, 2))
    assert [search.next() for _ in range(3)] == [at(2, 2), at(2, 2), None]


def test_no_more_than_max_trials_are_begun() -> None:
    search = Search(SPACE, Exhaustive(SPACE), default=at(0, 0), max_trials=3)
    assert [search.next() for _ in range(4)] == [at(0, 0), at(0, 1), at(0, 2), None]


def test_a_strategy_may_wait_for_a_trial_before_it_goes_on() -> None:
    strategy = Told(None, at(0, 1))
    search = Search(SPACE, strategy, default=at(0, 0))
    assert search.next() == at(0, 0)
    assert search.next() is None
    search.end(at(0, 0), device="opencl:0", seconds=1.0, measurement=measured(5.0), failure=None)
    assert search.next() == at(0, 1)


def test_trials_are_numbered_as_they_end_and_the_strategy_is_told_failures_as_failures() -> None:
    strategy = Told(at(0, 1))
    search = Search(SPACE, strategy, default=at(0, 0))
    first, second = search.next(), search.next()
    assert first is not None
    assert second is not None
    search.end(second, device="opencl:1", seconds=1.0, measurement=None, failure=failed())
    search.end(first, device="opencl:0", seconds=2.0, measurement=measured(7.0), failure=None)
    assert [(trial.index, trial.configuration, trial.ok) for trial in strategy.trials] == [
        (0, at(0, 1), False),
        (1, at(0, 0), True),
    ]
    assert strategy.trials == search.trials


def test_what_a_strategy_asks_for_must_be_in_the_space() -> None:
    search = Search(SPACE, Told(at(5, 0)), default=at(0, 0))
    search.next()
    with pytest.raises(InvalidSpace, match="A <= B"):
        search.next()
