"""What the calls of the guarantees do in a worker: tell who they are, and then be hard to end.

A module of its own, and a small one: a worker imports it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import time

#: When the callable began, by the clock that all processes share; the guard, the worker, a grandchild.
REPORT = struct.Struct("<dqqq")
_FOR_EVER = 100_000


def grandchild() -> int:
    """A process below this one, in a session of its own."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(_FOR_EVER)
        os._exit(0)
    return pid


def hang(station: str, how: str) -> None:
    """Report to the socket at `station`, and never end."""
    began = time.monotonic()
    if how == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "handles SIGTERM, and goes on":
        signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    report = REPORT.pack(began, os.getppid(), os.getpid(), grandchild())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
        speaker.sendto(report, station)
    if how == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while how == "computes":
        pass
    sleep = ctypes.PyDLL(None).sleep if how == "holds the GIL" else time.sleep
    while True:
        sleep(_FOR_EVER)
