"""One value for each parameter of a space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tunewire.bench.expressions import Value

__all__ = ["Configuration"]


class Configuration(Mapping[str, Value]):
    """An immutable, hashable mapping from parameters' names to their values, in the order of its space.

    It equals every mapping with the same items, in any order, as dicts do; so `True` and `1` are the same value.
    In a msgspec Struct that is written as JSON it is an object of its own names (see `TuningResult`).

    >>> configuration = Configuration({"TILE": 16, "UNROLL": True})
    >>> configuration["TILE"], str(configuration)
    (16, 'TILE=16, UNROLL=True')
    >>> configuration in {Configuration({"UNROLL": True, "TILE": 16})}
    True
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, Value] | Iterable[tuple[str, Value]]) -> None:
        self._values = dict(values)
        self._hash = hash(frozenset(self._values.items()))

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._values.items())

    def __repr__(self) -> str:
        return f"Configuration({self._values!r})"

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, Value]]]:
        return Configuration, (self._values,)
