"""What a pool is doing, and has done."""

from __future__ import annotations

import msgspec


class WorkerStatistics(msgspec.Struct, frozen=True):
    """One worker at this moment.

    `state` is its place in its life (empty, starting, initialising, idle, busy, interrupting, terminating, ending,
    closing, closed); `processes`
    how many it has had; `callable_name` what it runs now, if anything; `since` the event loop's time at which it came into
    this state.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool:
    ...         await pool.call(len, "abc")
    ...         return pool.statistics().workers[0]
    >>> worker = asyncio.run(main())
    >>> worker.state, worker.processes
    ('idle', 1)
    """

    index: int
    device: str | None
    state: str
    pid: int | None
    processes: int
    callable_name: str | None
    since: float = 0.0


class PoolStatistics(msgspec.Struct, frozen=True):
    """A pool at this moment: its workers, how many calls wait and run, how many spares are ready, and how many calls ended
    in each kind of outcome.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool:
    ...         await pool.call(len, "abc")
    ...         return pool.statistics().outcomes["completed"]
    >>> asyncio.run(main())
    1
    """

    workers: tuple[WorkerStatistics, ...]
    waiting: int
    running: int
    spares: int
    outcomes: dict[str, int]
