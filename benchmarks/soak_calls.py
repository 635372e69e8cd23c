"""What the soak's calls do in a worker: record that they ran, and then what their kind says.

A module of its own, and a small one: a worker imports it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time

RECORD = struct.Struct("<Q")
#: Longer than any run; a call that sleeps so long ends only by being ended.
FOR_EVER = 100_000
EXIT_CODE = 7
#: One value in this many is too long for a pipe to take at once.
_LONG_EVERY = 50
_LONG_BYTES = 200_000
_MOST_SHORT_BYTES = 200


def payload_of(number: int) -> bytes:
    """What the call of this number returns beside its number: its own, and of a length of its own."""
    length = _LONG_BYTES if number % _LONG_EVERY == 0 else number % _MOST_SHORT_BYTES
    return (number * 2_654_435_761 % 2**64).to_bytes(8, "little") * (length // 8)


def record(path: str, number: int) -> None:
    """Say that this call has begun: one appending write, which the kernel does not mix with another's."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, RECORD.pack(number))
    finally:
        os.close(fd)


def leave_daemon() -> None:
    """A process in a session of its own, forked twice, that holds every descriptor of this one."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        time.sleep(FOR_EVER)
    os._exit(0)


def value(path: str, number: int) -> tuple[int, bytes]:
    """The short call."""
    record(path, number)
    return number, payload_of(number)


def value_after(path: str, number: int, seconds: float) -> tuple[int, bytes]:
    """A call that takes a moment: whoever cancels it may come too late."""
    record(path, number)
    time.sleep(seconds)
    return number, payload_of(number)


def crash(path: str, number: int, how: str, daemon: bool) -> None:
    """End this process: "exit", or by the signal of this name."""
    record(path, number)
    if daemon:
        leave_daemon()
    if how == "exit":
        os._exit(EXIT_CODE)
    if how == "SIGABRT":
        os.abort()
    if how == "SIGSEGV":
        ctypes.string_at(0)
    os.kill(os.getpid(), signal.SIGKILL)


def hang(path: str, number: int, how: str, daemon: bool) -> None:
    """Never end: "sleep", or "hold": inside C code that never gives the interpreter's lock back."""
    record(path, number)
    if daemon:
        leave_daemon()
    sleep = time.sleep if how == "sleep" else ctypes.PyDLL(None).sleep
    while True:
        sleep(FOR_EVER)
