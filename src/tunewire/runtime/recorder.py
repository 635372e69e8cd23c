"""The flight recorder, the child's side: see wire.record."""

from __future__ import annotations

import mmap
import time

from tunewire.wire.record import write_record


class Recorder:
    """Writes down what the process is about to do; without a page it does nothing."""

    def __init__(self, page: mmap.mmap | None) -> None:
        self._page = page
        self._call_id = 0
        self._finished = 0

    def read(self, call_id: int) -> None:
        """The call was read; unpickling it may run code of its author's."""
        self._call_id = call_id
        self._write(0)

    def begin(self) -> None:
        """Its callable begins now."""
        self._write(time.monotonic_ns())

    def finish(self) -> None:
        """Its reply is about to be written."""
        self._finished += 1

    def _write(self, began_ns: int) -> None:
        if self._page is not None:
            write_record(self._page, 0, self._call_id, began_ns, self._finished)
