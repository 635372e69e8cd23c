"""What a pool is doing, and has done."""

from __future__ import annotations

import msgspec


class WorkerStatistics(msgspec.Struct, frozen=True):
    """One worker at this moment.

    `state` is its place in its life (empty, starting, initialising, idle, busy, ending, closing, closed); `processes`
    how many it has had; `callable_name` what it runs now, if anything.
    """

    index: int
    device: str | None
    state: str
    pid: int | None
    processes: int
    callable_name: str | None


class PoolStatistics(msgspec.Struct, frozen=True):
    """A pool at this moment: its workers, how many calls wait and run, and how many ended in each kind of outcome."""

    workers: tuple[WorkerStatistics, ...]
    waiting: int
    running: int
    outcomes: dict[str, int]
