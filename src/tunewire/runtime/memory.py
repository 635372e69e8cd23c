"""The memory that a process and its parent share: the flight recorder's page, and the bulk lane behind it."""

from __future__ import annotations

import mmap
import os

from tunewire.wire.record import PAGE_BYTES


def map_memory(fd: int | None) -> mmap.mmap | None:
    """What the descriptor, which is closed, is of: all of it, or, where addresses are limited, the page alone."""
    if fd is None:
        return None
    try:
        return _mapped(fd)
    finally:
        os.close(fd)


def _mapped(fd: int) -> mmap.mmap:
    try:
        return mmap.mmap(fd, 0)
    except OSError:
        return mmap.mmap(fd, PAGE_BYTES)


def has_lane(memory: mmap.mmap | None) -> bool:
    """Whether there is more than the page."""
    return memory is not None and len(memory) > PAGE_BYTES
