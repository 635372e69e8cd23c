"""What is known of a process that has ended."""

from __future__ import annotations

import msgspec


class Postmortem(msgspec.Struct, frozen=True):
    """How a worker's process ended, and what it did last.

    `exit_code` (negative: the signal) and `signal`, its name; None where the process was lost sight of. `reason`: who
    ended it, in words. `out_of_memory`: whether the kernel's out-of-memory killer was counted in this control group
    while it died of SIGKILL. `last_calls`: names of its last callables, the latest last. `uptime` in seconds. `peak_bytes`:
    the most resident memory that it held itself, None where that is not told.
    `stdout`, `stderr`: tails of what it wrote since its last outcome.

    >>> Postmortem(pid=7, exit_code=-11, signal="SIGSEGV", reason="it crashed", uptime=1.5).signal
    'SIGSEGV'
    """

    pid: int
    exit_code: int | None
    signal: str | None
    reason: str
    uptime: float
    out_of_memory: bool = False
    peak_bytes: int | None = None
    last_calls: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""


def out_of_memory_kills() -> int:
    """How often the kernel has killed for memory in this process's control group (version 2); 0 where that is not told."""
    try:
        with open("/proc/self/cgroup") as groups:
            path = next((line.rstrip("\n")[3:] for line in groups if line.startswith("0::")), None)
        if path is not None:
            with open(f"/sys/fs/cgroup{path}/memory.events") as events:
                return int(dict(entry.split() for entry in events).get("oom_kill", 0))
    except (OSError, ValueError):
        return 0
    return 0
