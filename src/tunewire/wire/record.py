"""The layout of the flight recorder: a page of memory that a child writes and its parent reads.

The parent makes it (a memory file of fixed size, sealed) and reads it only at a deadline or when a process is lost, to
learn whether and when the call in hand had begun. It is a hint and no more: a child can write what it likes.

    offset size  field
         0    8  number of the call that was read last
         8    8  when its callable began, by the monotonic clock, in nanoseconds; 0 while it is being unpickled
        16    8  how many calls have finished
        24    8  the largest resident memory of the process, in bytes, written by its guard when it has ended; 0 before
"""

from __future__ import annotations

import mmap
import struct
from typing import Final, NamedTuple

from tunewire.wire.frames import Buffer

PAGE_BYTES: Final = mmap.PAGESIZE
_LAYOUT: Final = struct.Struct("<QQQ")


class Record(NamedTuple):
    """What the page says."""

    call_id: int
    began_ns: int
    finished: int


def read_record(page: Buffer | mmap.mmap) -> Record:
    """The record in `page`, which may be written at this moment."""
    return Record(*_LAYOUT.unpack_from(page))


_PEAK: Final = struct.Struct("<Q")
_PEAK_OFFSET: Final = 24


def read_peak(page: Buffer | mmap.mmap) -> int | None:
    """What the process's guard wrote, if it has."""
    return _PEAK.unpack_from(page, _PEAK_OFFSET)[0] or None


#: Write `call_id`, `began_ns` and `finished` into a page, from its offset 0 on: `write_record(page, 0, 7, 0, 6)`.
write_record: Final = _LAYOUT.pack_into
