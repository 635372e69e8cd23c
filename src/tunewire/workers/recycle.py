"""When a process that works is ended all the same."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from tunewire.endpoints.tree import descendants
from tunewire.workers.limits import check_seconds

_PAGE_BYTES = os.sysconf("SC_PAGESIZE")


class Recycle(msgspec.Struct, frozen=True):
    """Limits of one process, after which a new one takes its place; None for none.

    `uses`: calls that it has run (the initializer is none). `age`: seconds since it started, looked at between calls.
    `tree_bytes`: resident memory of the process and all its descendants, compilers included; looked at ten times a
    second while a call runs (then the call is lost with WorkerCrashed, whose reason names the limit) and after it.
    Pages that processes share count for each.

    >>> Recycle(uses=100).age is None
    True
    """

    uses: int | None = None
    age: float | None = None
    tree_bytes: int | None = None

    def __post_init__(self) -> None:
        check_seconds("age", self.age)
        for name in ("uses", "tree_bytes"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} is a positive number or None, not {value!r}")

    def due(self, *, uses: int, age: float, tree_bytes: int | None) -> str | None:
        """Why a process with these figures is to be replaced, or None.

        >>> Recycle(uses=2).due(uses=2, age=0.5, tree_bytes=None)
        'it has run 2 calls'
        """
        if self.uses is not None and uses >= self.uses:
            return f"it has run {uses} calls"
        if self.age is not None and age >= self.age:
            return f"it is {age:.0f} s old"
        if self.tree_bytes is not None and tree_bytes is not None and tree_bytes > self.tree_bytes:
            return f"its tree holds {tree_bytes} bytes, more than its limit of {self.tree_bytes}"
        return None


def tree_bytes(pid: int) -> int:
    """Resident memory of a process and all its descendants, in bytes; 0 where it has gone.

    >>> tree_bytes(os.getpid()) > 1_000_000
    True
    """
    total = 0
    for one in (pid, *descendants(pid)):
        with suppress(OSError), open(f"/proc/{one}/statm", "rb") as file:  # it ended meanwhile
            total += int(file.read().split()[1]) * _PAGE_BYTES
    return total
