"""How long each stage of a call may take."""

from __future__ import annotations

import msgspec


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
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise ValueError(
                    f"the limit of {name!r} is a positive number of seconds or None, not {limit!r}"
                )

    def of(self, phase: str) -> float | None:
        """The limit of the phase of this name."""
        limit: float | None = getattr(self, phase)
        return limit
