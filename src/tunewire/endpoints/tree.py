"""Processes by handle, and the trees that they grow.

A pid names a process only until it is reaped; then it may name another. asyncio reaps in a thread of its own, and its
`send_signal` polls first, which takes the exit code away from that thread (the code is then reported as 255). So a
process is signalled through a pidfd where there are such: it names one process for ever and touches no status.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

_HAS_PIDFD = hasattr(os, "pidfd_open")


class ProcessHandle:
    """One process, whatever becomes of its pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd: int | None = None
        if _HAS_PIDFD:
            with suppress(ProcessLookupError):  # it has ended, and is reaped already
                self._fd = os.pidfd_open(pid)

    def signal(self, number: int) -> None:
        """Send a signal; nothing where it has gone."""
        with suppress(ProcessLookupError):
            if self._fd is not None:
                signal.pidfd_send_signal(self._fd, number)
            elif not _HAS_PIDFD:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, nearest first, as far as they can be seen: one whose parent has ended cannot.

    >>> descendants(os.getpid())
    []
    """
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        import psutil  # an eighth of what importing a pool costs, for kernels that do not tell children

        with suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        return []
    found = _children(pid)
    for child in found:
        found.extend(_children(child))
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it ended meanwhile
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    return found
