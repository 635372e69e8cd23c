"""The rows that are held, and the files that they are written to.

Each row is made one line of JSON when it is sampled, and held so. Then the bound is one in bytes, which says what memory
is taken; and to write them at the end takes no more than the disk does, since a parent that is killed leaves half a second
for it.

The bound is for a program that samples for hours and never takes a snapshot. Where there is no room the oldest row is
dropped, and counted. It could go to a file instead, but a file that grows unasked until the disk is full is the worse
surprise.

A file is written beside its place and then renamed: whoever looks finds the old one or the new one, whole. What cannot
be written is an error, and the rows are held as before. It is not synced: it survives a process, not a loss of power.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from tunewire.telemetry.model import Row

#: A line's object in CPython's memory, beside the line.
_OVERHEAD = 33 + 8

_decode = msgspec.json.Decoder(Row).decode


class Store:
    """Rows as lines, the oldest first.

    >>> store = Store(max_bytes=1 << 20)
    >>> store.add(b"{}")
    >>> lines, end = store.held()
    >>> store.forget(end)
    >>> lines, len(store)
    ([b'{}'], 0)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        #: The number of the oldest line that is held.
        self._first = 0
        #: How many found no room.
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: bytes) -> None:
        """Hold one more; the oldest go where there is no room. The newest is always held."""
        self._lines.append(line)
        self._bytes += len(line) + _OVERHEAD
        while self._bytes > self._max_bytes and len(self._lines) > 1:
            self._pop()
            self.dropped += 1

    def _pop(self) -> None:
        self._bytes -= len(self._lines.popleft()) + _OVERHEAD
        self._first += 1

    def held(self) -> tuple[list[bytes], int]:
        """All lines, and the number at which they end."""
        return list(self._lines), self._first + len(self._lines)

    def forget(self, end: int) -> None:
        """Hold no line before this number."""
        while self._lines and self._first < end:
            self._pop()

    def rows(self) -> Iterator[Row]:
        """The rows that were held when it was asked."""
        yield from map(_decode, list(islice(self._lines, len(self._lines))))


def line_of(row: Row) -> bytes:
    """A row as it is held and written."""
    return msgspec.json.encode(row) + b"\n"


def write_lines(path: str, lines: Sequence[bytes]) -> None:
    """Write a file of these lines in place of what is there, as a whole or not at all; a device, such as os.devnull, is
    written to. OSError if it cannot be."""
    place = Path(path).resolve()
    if place.is_char_device():
        with place.open("wb") as file:
            file.writelines(lines)
        return
    if place.exists() and not place.is_file():
        raise OSError(errno.EEXIST, f"rows cannot be written to {path!r}: it is there, and is no file")
    beside = place.with_name(f".{place.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with beside.open("xb") as file:
            try:
                file.writelines(lines)
                file.flush()
                beside.replace(place)
            except BaseException:  # half a file is nothing to leave, whatever stops it
                beside.unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = f"rows cannot be written to {path!r}: {error.strerror}"
        raise OSError(error.errno, reason) from error


def timestamped_name() -> str:
    """The name of a file that no other process writes to."""
    return f"tunewire-telemetry-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"


def read_rows(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a file that telemetry wrote. Raises msgspec.ValidationError or msgspec.DecodeError for another file.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "rows.jsonl")
    ...     write_lines(path, [line_of(Row(number=0, seconds=0.1, unix_time=1.7e9, scopes=()))])
    ...     read_rows(path)[0].seconds
    0.1
    """
    with Path(path).open("rb") as file:
        return [_decode(line) for line in file]
