"""The processes under this one: which they are, where they run, and what they use.

It reads /proc itself, since a peer's environment holds the peer and numpy and nothing more.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PROC = Path("/proc")
ANYWHERE = os.sched_getaffinity(0)
"""Where this process might run before it was pinned."""

SCHEDULED = 2
"""The kernel's number for a process's clock of CPU time, in nanoseconds, all of its threads that ever were."""


def descendants() -> list[int]:
    """Of this process, in no order."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone since
            children.setdefault(int(after_name[1]), []).append(int(entry.name))
    found: list[int] = []
    heads = [os.getpid()]
    while heads:
        under = children.get(heads.pop(), [])
        found += under
        heads += under
    return found


def pin(process: int, cores: set[int]) -> None:
    """Every thread of the process onto these cores."""
    try:
        for thread in (PROC / str(process) / "task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has ended, and runs nowhere


def pin_all(parent: int, children: list[int]) -> None:
    """This process onto one core; those under it onto the others, in turn."""
    pin(os.getpid(), {parent})
    for number, process in enumerate(sorted(descendants())):
        pin(process, {children[number % len(children)]})


def unpin() -> None:
    """This process may run anywhere again, and so may what it starts from now on."""
    pin(os.getpid(), ANYWHERE)


def cpu_ns(processes: list[int]) -> int:
    """What they have used up to now."""
    total = 0
    for process in processes:
        try:
            total += time.clock_gettime_ns(~process << 3 | SCHEDULED)
        except OSError:
            pass  # it has ended
    return total


def memory_bytes(processes: list[int]) -> dict[str, int]:
    """Of all of them together, in the three ways of counting what processes share."""
    sums = {"rss": 0, "pss": 0, "uss": 0}
    for process in processes:
        try:
            text = (PROC / str(process) / "smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
        sums["rss"] += kib["Rss"] * 1024
        sums["pss"] += kib["Pss"] * 1024
        sums["uss"] += (kib["Private_Clean"] + kib["Private_Dirty"]) * 1024
    return sums
