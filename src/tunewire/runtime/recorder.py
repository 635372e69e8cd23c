"""The flight recorder, the child's side: see wire.record."""

from __future__ import annotations

import mmap
import os
import time

from tunewire.wire.record import PAGE_BYTES, Record, write_record


class Recorder:
    """Writes down what the process is about to do; without a page it does nothing."""

    def __init__(self, fd: int | None) -> None:
        self._page: mmap.mmap | None = None
        self._finished = 0
        if fd is not None:
            self._page = mmap.mmap(fd, PAGE_BYTES)
            os.close(fd)

    def begin(self, call_id: int) -> None:
        """The call is about to begin."""
        self._write(call_id)

    def finish(self, call_id: int) -> None:
        """Its reply is about to be written."""
        self._finished += 1
        self._write(call_id)

    def _write(self, call_id: int) -> None:
        if self._page is not None:
            write_record(self._page, Record(call_id, time.monotonic_ns(), self._finished))
