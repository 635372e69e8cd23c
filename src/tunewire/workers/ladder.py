"""How work that was given up is ended: a value, and not code."""

from __future__ import annotations

import msgspec

from tunewire.workers.limits import check_seconds


class Ladder(msgspec.Struct, frozen=True):
    """The rungs by which a call's process is ended after a timeout or a cancel, each with its seconds.

    `interrupt`: first raise an exception in the call's Python code, and keep the process, and with it a warm device
    context, if the call ends within this time; None (the default) leaves this rung out, since an interrupted call may
    leave locks and half-made imports behind; with `cooperative`, nothing is raised, and the callable is expected to look at
    `current_call().cancelled` and to return. `terminate`: SIGTERM to the process, for handlers of its own, which have
    this time (a process that ignores SIGTERM, or is stopped, has none to use it, and gets none); None leaves it out. Then
    SIGKILL to the whole tree; after `reap` seconds more the process group is killed by other means, and what still cannot
    be reaped is reported. The caller waits for none of this.

    Closing a pool goes straight to SIGKILL.

    >>> Ladder(interrupt=0.2).terminate
    0.02
    """

    interrupt: float | None = None
    terminate: float | None = 0.02
    reap: float = 0.4
    cooperative: bool = False

    def __post_init__(self) -> None:
        for name in ("interrupt", "terminate", "reap"):
            check_seconds(name, getattr(self, name))
        if self.cooperative and self.interrupt is None:
            raise ValueError(
                "a cooperative ladder says with interrupt= how many seconds the callable has to return"
            )
