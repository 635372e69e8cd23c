"""The stages of a call, in their order. Each has a limit of its own, so that an outcome says which was too slow."""

from __future__ import annotations

from typing import Final

#: Passed before the callable begins: waiting for a worker, a process coming up, its initializer.
BEFORE: Final = ("queue", "start", "init")
#: Passed by the callable itself, forward only. A plain call is in `run` from its beginning.
INSIDE: Final = ("compile", "check", "run")


def next_phases(phase: str) -> tuple[str, ...]:
    """The phases that a running call may enter from `phase`.

    >>> next_phases("compile")
    ('check', 'run')
    """
    return INSIDE[INSIDE.index(phase) + 1 :]
