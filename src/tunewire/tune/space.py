"""The configurations that may be tried: parameters with their values, less what restrictions exclude.

A space is enumerated as a tree, one parameter per level in the order given, and never held in memory. A
restriction that is an expression is tested at the level where the last of its names gets a value, so that all
combinations below a contradiction are skipped together; one that is a callable sees whole configurations only,
since nobody can tell which names it reads. What a restriction raises is an error of the space, which names the
restriction and the configuration: a combination that cannot be judged is neither in nor out.

`at` numbers all combinations, excluded ones too, so that a search can draw from a space without walking it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tunewire.bench.expressions import Expression, Value
from tunewire.errors import InvalidExpression, InvalidSpace
from tunewire.tune.configuration import Configuration

__all__ = ["Parameter", "Restriction", "Space"]

#: What holds of a configuration: an expression, its text, or a callable that gets the configuration.
Restriction = str | Expression | Callable[[Mapping[str, Value]], object]


class Parameter(msgspec.Struct, frozen=True):
    """One name and the values that it takes, in the order in which they are tried.

    >>> Space({"TILE": [8, 16]}).parameters
    (Parameter(name='TILE', values=(8, 16)),)
    """

    name: str
    values: tuple[Value, ...]


class Space:
    """Ordered parameters with their values, and what must hold between them.

    `parameters` maps each name (an identifier) to its values: whole numbers, floats, text, booleans.
    `restrictions` are expressions over the names, as in `"TILE % WORK == 0"`, or callables that are given the
    configuration; each must be true. Iteration gives the `Configuration`s in order, the last parameter changing
    fastest; `len` counts them (it walks the space once); `in` says whether a mapping is one of them.

    InvalidSpace, naming the parameter or restriction, where values are missing, repeated or of another type,
    where a restriction reads a name that is no parameter or raises, and where nothing is left.

    >>> space = Space({"TILE": [8, 16, 32], "WORK": [1, 16]}, ["TILE % WORK == 0"])
    >>> len(space), space.combinations
    (5, 6)
    >>> [str(configuration) for configuration in space][:2]
    ['TILE=8, WORK=1', 'TILE=16, WORK=1']
    >>> {"TILE": 8, "WORK": 16} in space
    False
    """

    def __init__(
        self, parameters: Mapping[str, Iterable[Value]], restrictions: Iterable[Restriction] = ()
    ) -> None:
        self._parameters = _parameters(parameters)
        if isinstance(restrictions, str):
            raise InvalidSpace(reason=f"restrictions are a list, and {restrictions!r} is one text")
        self._rules = tuple(_rule(restriction, self.names) for restriction in restrictions)
        self._levels = self._arranged(self._rules)
        self._length: int | None = None
        self._first = next(iter(self), None)
        if self._first is None:
            raise InvalidSpace(reason=self._why_empty())

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters, in order."""
        return self._parameters

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(parameter.name for parameter in self._parameters)

    @property
    def restrictions(self) -> tuple[str, ...]:
        """The restrictions as text; of a callable, its name and where it is defined."""
        return tuple(rule.text for rule in self._rules)

    @property
    def combinations(self) -> int:
        """How many combinations of values there are, those that restrictions exclude among them."""
        return math.prod(len(parameter.values) for parameter in self._parameters)

    @property
    def first(self) -> Configuration:
        """The first configuration in order."""
        assert self._first is not None
        return self._first

    def at(self, number: int) -> Configuration | None:
        """Combination `number` of `range(combinations)`, in order; None where a restriction excludes it.

        >>> Space({"A": [1, 2], "B": [1, 2]}, ["A <= B"]).at(3)
        Configuration({'A': 2, 'B': 2})
        """
        if not 0 <= number < self.combinations:
            raise IndexError(f"there is no combination {number} of {self.combinations}")
        chosen: list[tuple[str, Value]] = []
        for parameter in reversed(self._parameters):
            number, place = divmod(number, len(parameter.values))
            chosen.append((parameter.name, parameter.values[place]))
        configuration = Configuration(reversed(chosen))
        return None if self._broken(configuration) else configuration

    def validate(self, values: Mapping[str, Value]) -> Configuration:
        """`values` as a configuration of this space, in its order. InvalidSpace with the reason if it is none.

        Its values are the space's own, where another type's equal was given (8.0 for 8).

        >>> Space({"A": [1, 2], "B": [1, 2]}).validate({"B": 1.0, "A": 2})
        Configuration({'A': 2, 'B': 1})
        """
        if (why := self._objection(values)) is not None:
            raise InvalidSpace(reason=f"{why} ({Configuration(values)})")
        return Configuration(
            (parameter.name, parameter.values[parameter.values.index(values[parameter.name])])
            for parameter in self._parameters
        )

    def __iter__(self) -> Iterator[Configuration]:
        return self._walk(self._levels)

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(1 for _ in self)
        return self._length

    def __contains__(self, values: object) -> bool:
        return isinstance(values, Mapping) and self._objection(values) is None

    def __repr__(self) -> str:
        sizes = ", ".join(f"{parameter.name}: {len(parameter.values)}" for parameter in self._parameters)
        return f"<Space {{{sizes}}}, {len(self._rules)} restrictions>"

    def _arranged(self, rules: Iterable[_Rule]) -> tuple[tuple[_Rule, ...], ...]:
        """The rules by the level at which each can be tested."""
        level_of = {name: level for level, name in enumerate(self.names)}
        levels: list[list[_Rule]] = [[] for _ in self._parameters]
        for rule in rules:
            if rule.names is None:
                levels[-1].append(rule)
            else:
                levels[max((level_of[name] for name in rule.names), default=0)].append(rule)
        return tuple(map(tuple, levels))

    def _walk(
        self, levels: tuple[tuple[_Rule, ...], ...], chosen: dict[str, Value] | None = None
    ) -> Iterator[Configuration]:
        chosen = {} if chosen is None else chosen
        level = len(chosen)
        if level == len(self._parameters):
            yield Configuration(chosen)
            return
        parameter = self._parameters[level]
        for value in parameter.values:
            chosen[parameter.name] = value
            if all(rule.holds(chosen) for rule in levels[level]):
                yield from self._walk(levels, chosen)
        del chosen[parameter.name]

    def _broken(self, values: Mapping[str, Value]) -> _Rule | None:
        return next((rule for level in self._levels for rule in level if not rule.holds(values)), None)

    def _objection(self, values: Mapping[str, Value]) -> str | None:
        for parameter in self._parameters:
            if parameter.name not in values:
                return f"parameter {parameter.name!r} has no value"
            if values[parameter.name] not in parameter.values:
                return f"{values[parameter.name]!r} is not one of the values of {parameter.name!r}"
        if unknown := [name for name in values if name not in self.names]:
            return f"there is no parameter {unknown[0]!r} (there is: {', '.join(self.names)})"
        broken = self._broken(values)
        return None if broken is None else f"restriction {broken.text!r} does not hold"

    def _why_empty(self) -> str:
        # Restrictions are added one by one: the first that leaves nothing is what to look at.
        for count, rule in enumerate(self._rules, 1):
            if next(self._walk(self._arranged(self._rules[:count])), None) is None:
                others = " and the restrictions before it" if count > 1 else ""
                return f"it is empty: no combination of the values fulfils {rule.text!r}{others}"
        raise AssertionError("a space without restrictions has combinations")


class _Rule(msgspec.Struct, frozen=True):
    """A restriction made ready: its text for people, the names that it reads (None: unknown), its test."""

    text: str
    names: frozenset[str] | None
    test: Callable[[Mapping[str, Value]], object]

    def holds(self, values: Mapping[str, Value]) -> bool:
        try:
            return bool(self.test(values if self.names is not None else Configuration(values)))
        except Exception as error:
            told = error.reason if isinstance(error, InvalidExpression) else str(error)
            why = f"{type(error).__name__}: {told}"
            raise InvalidSpace(
                reason=f"restriction {self.text!r} cannot be judged at {Configuration(values)}: {why}"
            ) from error


def _rule(restriction: Restriction, names: tuple[str, ...]) -> _Rule:
    if isinstance(restriction, str):
        try:
            restriction = Expression.parse(restriction)
        except InvalidExpression as error:
            reason = f"restriction {error.text!r}: {error.reason}"
            raise InvalidSpace(reason=reason) from error
    if isinstance(restriction, Expression):
        if unknown := sorted(restriction.names.difference(names)):
            reason = (
                f"restriction {restriction.text!r} reads {unknown[0]!r}, which is no parameter "
                f"(there is: {', '.join(names)})"
            )
            raise InvalidSpace(reason=reason)
        return _Rule(restriction.text, restriction.names, restriction.evaluate)
    if not callable(restriction):
        raise InvalidSpace(reason=f"restriction {restriction!r} is neither an expression nor a callable")
    return _Rule(_callable_text(restriction), None, restriction)


def _callable_text(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} (line {code.co_firstlineno})"


def _parameters(parameters: Mapping[str, Iterable[Value]]) -> tuple[Parameter, ...]:
    if not isinstance(parameters, Mapping):
        raise InvalidSpace(reason=f"parameters map names to values, and {parameters!r} is no mapping")
    if not parameters:
        raise InvalidSpace(reason="it is empty: it has no parameters")
    return tuple(_parameter(name, values) for name, values in parameters.items())


def _parameter(name: str, values: Iterable[Value]) -> Parameter:
    if not (isinstance(name, str) and name.isidentifier()):
        raise InvalidSpace(reason=f"a parameter's name is an identifier, and {name!r} is none")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidSpace(reason=f"parameter {name!r} needs a list of values, and has {values!r}")
    known: dict[Value, None] = {}
    for value in values:
        _check_value(name, value)
        if value in known:
            raise InvalidSpace(reason=f"parameter {name!r} has the value {value!r} twice")
        known[value] = None
    if not known:
        raise InvalidSpace(reason=f"it is empty: parameter {name!r} has no values")
    return Parameter(name, tuple(known))


def _check_value(name: str, value: object) -> None:
    # Exact types: a numpy.float64 is a float too, but neither pickles nor prints as one.
    if type(value) not in (int, float, bool, str):
        reason = (
            f"parameter {name!r} has {value!r} of type {type(value).__name__}; "
            "a value is an int, a float, a bool or a str"
        )
        raise InvalidSpace(reason=reason)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidSpace(reason=f"parameter {name!r} has {value!r}; a value is finite")
