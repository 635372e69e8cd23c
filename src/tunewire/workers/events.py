"""What happened to a worker, as records that can be read back."""

from __future__ import annotations

import msgspec


class WorkerEvent(msgspec.Struct, frozen=True):
    """One thing that happened: `at`, the event loop's time in seconds; `worker`, its index (None: a spare); `kind`, one of
    started, ready, sent, returned, outcome, interrupt, terminate, kill, recycle, gone; `pid`; `call`, its callable's name;
    `detail`.

    >>> WorkerEvent(at=1.0, worker=0, kind="started", pid=7).kind
    'started'
    """

    at: float
    worker: int | None
    kind: str
    pid: int | None = None
    call: str | None = None
    detail: str = ""
