"""In which order a space is searched.

A strategy is asked for the next configuration and told each trial; it awaits nothing, measures nothing and knows
no device. Several configurations may be out at the same time, and their trials are told in the order in which they
end. A failed one is told as what it is. The default configuration is tried first, whatever the strategy: it is told of
that trial too, and when it first asks for that configuration it is not tried again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Protocol

from tunewire.tune.configuration import Configuration
from tunewire.tune.space import Space
from tunewire.tune.trial import Trial

__all__ = ["STRATEGIES", "Exhaustive", "Random", "Strategy"]

STRATEGIES = ("exhaustive", "random")


class Strategy(Protocol):
    """What a search must be able to do.

    >>> class Backwards:
    ...     def __init__(self, space):
    ...         self.left = list(space)
    ...     def ask(self):
    ...         return self.left.pop() if self.left else None
    ...     def tell(self, trial):
    ...         pass
    >>> strategy: Strategy = Backwards(Space({"A": [1, 2]}))
    >>> strategy.ask()
    Configuration({'A': 2})
    """

    def ask(self) -> Configuration | None:
        """What to try next. None: nothing until another trial has been told; where none is out, the search ends."""

    def tell(self, trial: Trial) -> None:
        """A trial ended. `trial.ok` says whether it has a measurement."""


class _Listed:
    """Gives the configurations of an iterator, whatever their trials say."""

    def __init__(self, configurations: Iterator[Configuration]) -> None:
        self._configurations = configurations

    def ask(self) -> Configuration | None:
        """The next configuration; None when all have been given."""
        return next(self._configurations, None)

    def tell(self, trial: Trial) -> None:
        """Nothing depends on it."""


class Exhaustive(_Listed):
    """Every configuration, in the space's order.

    >>> strategy = Exhaustive(Space({"A": [1, 2]}))
    >>> strategy.ask(), strategy.ask(), strategy.ask()
    (Configuration({'A': 1}), Configuration({'A': 2}), None)
    """

    def __init__(self, space: Space) -> None:
        super().__init__(iter(space))


class Random(_Listed):
    """Every configuration once, in a random order that `seed` decides: the same one in every run.

    >>> space = Space({"A": [1, 2, 3], "B": [1, 2, 3]})
    >>> one, other = Random(space, seed=7), Random(space, seed=7)
    >>> [one.ask() for _ in range(9)] == [other.ask() for _ in range(9)]
    True
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(_shuffled(space, random.Random(seed)))


#: So many draws in a row that gave nothing new mean that what is left is few and far between.
FRUITLESS_DRAWS = 1_000


def _shuffled(space: Space, generator: random.Random) -> Iterator[Configuration]:
    """The space in random order, each order equally likely.

    Drawn from the numbered combinations, so that the first few hundred of a large space cost no walk through it.
    When most draws hit what was drawn before or is excluded, the rest is listed and shuffled.
    """
    given: set[Configuration] = set()
    fruitless = 0
    while fruitless < min(FRUITLESS_DRAWS, space.combinations):
        configuration = space.at(generator.randrange(space.combinations))
        if configuration is None or configuration in given:
            fruitless += 1
            continue
        fruitless = 0
        given.add(configuration)
        yield configuration
    rest = [configuration for configuration in space if configuration not in given]
    generator.shuffle(rest)
    yield from rest


def strategy_named(name: str, space: Space, seed: int) -> Strategy:
    """The strategy of that name over `space`; ValueError where there is none."""
    if name == "exhaustive":
        return Exhaustive(space)
    if name == "random":
        return Random(space, seed)
    raise ValueError(f"there is no strategy {name!r} (there is: {', '.join(STRATEGIES)})")
