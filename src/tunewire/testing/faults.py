"""A byte stream that arrives badly: in pieces, late, not to its end, changed, or twice.

Positions are counted in the stream as it was written, from 0; a worker's begins with the 16 bytes of its cookie. So
"byte 40" is the same byte whatever else is done to the stream, and with the pieces by a seed a failure can be repeated.
"""

from __future__ import annotations

import random

import msgspec


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to one direction of a connection; any of them together.

    `split`: deliver in pieces of so many bytes, each in a turn of the loop of its own; with `seed`, in pieces of 1 to
    `split` bytes by chance. `stall`: deliver nothing from this byte on until `release`. `cut`: the stream ends before
    this byte. `garble`: all bits of this byte are flipped. `duplicate`: the bytes from the first position up to the
    second come twice, one after the other.

    >>> Faults(split=1, cut=100).stall is None
    True
    """

    split: int | None = None
    seed: int | None = None
    stall: int | None = None
    cut: int | None = None
    garble: int | None = None
    duplicate: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.split is not None and self.split < 1:
            raise ValueError(f"a piece has at least one byte, not {self.split}")
        if self.duplicate is not None and not 0 <= self.duplicate[0] < self.duplicate[1]:
            raise ValueError(f"duplicate is where some bytes begin and end, not {self.duplicate}")


class FaultyStream:
    """Bytes in, and the same bytes out as `Faults` has it; pure, for a transport to pass its bytes through.

    >>> stream = FaultyStream(Faults(split=4, garble=1, cut=6))
    >>> stream.feed(b"abcdefgh")
    >>> stream.take(), stream.take(), stream.take(), stream.has_ended
    (b'a\\x9dcd', b'ef', b'', True)
    """

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self._chance = None if faults.seed is None else random.Random(faults.seed)
        self._released = False
        self._position = 0
        self._waiting = bytearray()
        self._copy = bytearray()
        self._deliverable = bytearray()

    @property
    def has_ended(self) -> bool:
        """Whether it was cut and everything before was taken."""
        return self._position == self.faults.cut and not self._deliverable

    @property
    def size(self) -> int:
        """How many bytes can be taken."""
        return len(self._deliverable)

    @property
    def held(self) -> int:
        """How many bytes are in here, those that are stalled included."""
        return len(self._deliverable) + len(self._waiting)

    def feed(self, data: bytes) -> None:
        """What was written."""
        self._waiting += data
        self._advance()

    def release(self) -> None:
        """End the stall."""
        self._released = True
        self._advance()

    def take(self) -> bytes:
        """The next piece to deliver; empty while there is none."""
        size = len(self._deliverable)
        if self.faults.split is not None:
            size = self.faults.split if self._chance is None else self._chance.randint(1, self.faults.split)
        piece = bytes(self._deliverable[:size])
        del self._deliverable[:size]
        return piece

    def _advance(self) -> None:
        stop = self._position + len(self._waiting)
        if self.faults.stall is not None and not self._released:
            stop = min(stop, max(self.faults.stall, self._position))
        if self.faults.cut is not None:
            stop = min(stop, self.faults.cut)
        chunk = self._waiting[: stop - self._position]
        del self._waiting[: stop - self._position]
        if stop == self.faults.cut:
            self._waiting.clear()
        self._pass(chunk)

    def _pass(self, chunk: bytearray) -> None:
        start, stop = self._position, self._position + len(chunk)
        self._position = stop
        garble = self.faults.garble
        if garble is not None and start <= garble < stop:
            chunk[garble - start] ^= 0xFF
        if self.faults.duplicate is None:
            self._deliverable += chunk
            return
        first, last = (max(place - start, 0) for place in self.faults.duplicate)
        self._copy += chunk[first:last]
        ends_here = start < self.faults.duplicate[1] <= stop
        self._deliverable += chunk[:last] + (self._copy if ends_here else b"") + chunk[last:]
