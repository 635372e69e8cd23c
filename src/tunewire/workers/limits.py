"""How long each stage of a call may take."""

from __future__ import annotations

import functools
from typing import Final

import msgspec

#: Some three hundred years.
MAX_SECONDS: Final = 1e10


def check_seconds(name: str, limit: object) -> None:
    """TypeError or ValueError unless `limit` is None or a positive number of seconds that a clock can reach."""
    if limit is None:
        return
    if not isinstance(limit, (int, float)) or isinstance(limit, bool):
        raise TypeError(f"the limit of {name!r} is a number of seconds or None, not {limit!r}")
    if not 0 < limit <= MAX_SECONDS:
        raise ValueError(f"the limit of {name!r} is more than 0 and at most {MAX_SECONDS:g} s, not {limit!r}")


class Limits(msgspec.Struct, frozen=True):
    """Limits of a call's stages, in seconds; None for none. Each counts from the beginning of its own stage.

    `queue`: waiting for a worker. `start`: a process coming up until it says hello. `init`: the pool's initializer.
    `compile`, `check`, `run`: the stages that a callable goes through; a plain call is in `run` from its first moment,
    and `timeout=` is short for that limit.

    >>> Limits(run=2.0).run
    2.0
    """

    queue: float | None = None
    start: float | None = 30.0
    init: float | None = 60.0
    compile: float | None = 60.0
    check: float | None = 30.0
    run: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_seconds(name, getattr(self, name))

    def of(self, phase: str) -> float | None:
        """The limit of the phase of this name."""
        limit: float | None = getattr(self, phase)
        return limit


@functools.lru_cache(maxsize=64)
def with_run(limits: Limits, run: float) -> Limits:
    """`limits` with another limit for `run`; made once for the calls that share it.

    >>> with_run(Limits(check=1.0), 2.0).run
    2.0
    """
    return msgspec.structs.replace(limits, run=run)
