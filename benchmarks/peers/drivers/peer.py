"""What a peer is to the bench: some of these methods, each written as the peer's own documentation would have it.

A peer offers the rows whose methods it has. All are coroutines, so that one measuring loop serves all: those of a peer
without an event loop never suspend, and cost some 0.1 us for being coroutines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

TIMEOUT = 30.0
"""Armed where a timeout is armed; it never fires."""


class Peer:
    """One side of a comparison."""

    distribution: str | None = None
    """Whose version to tell; None for what comes with Python."""

    noop: Callable[[], Awaitable[Any]] | None = None
    """One call of `calls.nothing`, one at a time."""

    noop_within: Callable[[], Awaitable[Any]] | None = None
    """The same, with a timeout armed that never fires."""

    echo: Callable[[Any], Awaitable[Any]] | None = None
    """One call of `calls.same` with an array, or the echo of its bytes."""

    flood: Callable[[int], Awaitable[Any]] | None = None
    """So many calls of `calls.nothing` in flight, each awaited on its own."""

    map: Callable[[int], Awaitable[Any]] | None = None
    """`calls.nothing` over so many items, the results read in order."""

    workers = 0

    async def open(self, workers: int) -> None:
        """Have workers, or be ready to have them at the first call."""
        raise NotImplementedError

    async def close(self) -> None:
        """Have none."""
        raise NotImplementedError

    async def cold(self) -> int:
        """Nanoseconds from no worker to the first result. What came of it is left open."""
        assert self.noop is not None
        begun = time.perf_counter_ns()
        await self.open(1)
        await self.noop()
        return time.perf_counter_ns() - begun

    @classmethod
    def version(cls) -> str:
        """Of the distribution, or of Python."""
        if cls.distribution is None:
            return f"Python {sys.version.split()[0]}"
        try:
            return version(cls.distribution)
        except PackageNotFoundError:
            return "?"
