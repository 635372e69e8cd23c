"""The bulk lane: large buffers in memory that both sides of a connection have mapped, and who may use which part of it.

The parent makes one file of memory for each process, behind the flight recorder's page (wire.record), of a fixed size,
sealed against changes of it: a child that could shorten it would kill its reader with SIGBUS. The file has no name, so
nothing of it is left when the last process that has it is gone. Behind the page lie two halves. Each side writes into its
own and reads in the other's:

    the page             the parent's half             the child's half
    recorder  flags      regions that the parent       regions that the child
              of both    writes                        writes

A buffer is put into a region of its writer's half, and the frame says where (a *place*: the region's number, and the
offset in the file). The region belongs to whoever reads from then on. When nothing refers to it there any more, a flag in
the page says so, one byte for each region of each half, which its reader sets and its writer reads when it needs room: so
giving back costs no message, and may happen in any thread at any moment.

    writer                                  reader
    takes a region and a number
    clears the number's flag
    copies, sends the place ------------->  makes a view of it, or copies it
                                            the last view is gone: sets the flag
    needs room, sees the flag: free again

What was received and is sent back unchanged need not be copied. A reader that has nothing left that refers to the region
*hands it over*: it sends its place back and sets no flag, and the region is its writer's alone again, until the view that
is made of it there is gone too.

What a hostile peer can do: it writes what it likes, wherever and whenever it likes, and sets flags. A flag for a region of
ours has it used again, for what is sent to that peer; a place that it sends is checked against the halves and, in our
own, against the regions that it was given. So it changes its own arguments and its own results, and what must not change
while it is looked at is copied first. How much of the memory is real is bounded by the size of the file.

The page's own pages are kept and used again: filling 64 MiB that nobody had touched took 40 ms on a machine where filling
them again took 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tunewire.errors import WireError
from tunewire.wire.record import PAGE_BYTES

#: What a child says in its hello, and its parent in the answer, that has the memory for it.
BULK: Final = "bulk"
#: Of each side. Larger values, and more at a time, go through the pipe.
HALF_BYTES: Final = 256 << 20
FILE_BYTES: Final = PAGE_BYTES + 2 * HALF_BYTES
#: How many regions a half has at most.
SLOTS: Final = 1024
#: Where in the page the flags of the parent's and of the child's regions begin.
PARENT_FLAGS: Final = 1024
CHILD_FLAGS: Final = 2048
#: Smaller buffers go with their frame.
THRESHOLD_BYTES: Final = 1 << 17
#: Regions begin and end where pages do, so that what is not needed can be given back to the system.
_ALIGNMENT: Final = 4096
_OFFSET_BITS: Final = 48


def place(slot: int, offset: int) -> int:
    """Region and offset in the file, as a frame has them.

    >>> split_place(place(3, 4096))
    (3, 4096)
    """
    return slot << _OFFSET_BITS | offset


def split_place(value: int) -> tuple[int, int]:
    """The number of the region, and the offset."""
    return value >> _OFFSET_BITS, value & (1 << _OFFSET_BITS) - 1


class Region:
    """A part of a half that is in use."""

    __slots__ = ("holds", "is_theirs", "size", "slot", "start")

    def __init__(self, slot: int, start: int, size: int) -> None:
        self.slot = slot
        self.start = start
        self.size = size
        #: Whether the reader may still refer to it.
        self.is_theirs = True
        #: Views of it on its writer's own side.
        self.holds = 0

    @property
    def stop(self) -> int:
        return self.start + self.size


class Regions:
    """The regions of a half, for the side that writes it. The lowest room that is large enough is taken, so that the same
    memory is used again.

    >>> regions = Regions(4096, 1 << 20)
    >>> first, second = regions.take(5000), regions.take(10)
    >>> first.start, first.size, second.start
    (4096, 8192, 12288)
    >>> regions.collect({first.slot}.__contains__)
    >>> regions.take(1 << 20) is None, regions.take(4096).start
    (True, 4096)
    """

    def __init__(self, start: int, size: int) -> None:
        self.start = start
        self.stop = start + size
        self._in_use: list[Region] = []  # by their start
        self._slots = list(range(SLOTS - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._in_use)

    @property
    def top(self) -> int:
        """The end of the last one."""
        return self._in_use[-1].stop if self._in_use else self.start

    def take(self, size: int) -> Region | None:
        """A region for so many bytes; None if there is no room."""
        if not self._slots:
            return None
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        start = self.start
        for index, region in enumerate(self._in_use):
            if region.start - start >= size:
                return self._insert(index, start, size)
            start = region.stop
        return self._insert(len(self._in_use), start, size) if self.stop - start >= size else None

    def _insert(self, index: int, start: int, size: int) -> Region:
        region = Region(self._slots.pop(), start, size)
        self._in_use.insert(index, region)
        return region

    def collect(self, is_given_back: Callable[[int], bool]) -> None:
        """Free the regions whose reader has given them back, as `is_given_back` says of a number, and that nothing here
        refers to either."""
        for region in self._in_use:
            if region.is_theirs and is_given_back(region.slot):
                region.is_theirs = False
        self._free()

    def _free(self) -> None:
        self._slots += [region.slot for region in self._in_use if not (region.is_theirs or region.holds)]
        self._in_use = [region for region in self._in_use if region.is_theirs or region.holds]

    def theirs(self, slot: int, offset: int, size: int) -> Region:
        """The region of this number, which the reader still has and these bytes lie in. WireError if there is none."""
        for region in self._in_use:
            if region.slot == slot and region.is_theirs:
                if region.start <= offset and offset + size <= region.stop:
                    return region
                break
        raise WireError(reason=f"{size} bytes at {offset} of region {slot} were not given to the peer")

    def hand_over(self, region: Region, *, holds: int) -> None:
        """The reader has sent it back; here are so many views of it now."""
        region.is_theirs = False
        region.holds += holds
        self._free()

    def let_go(self, region: Region) -> None:
        """One of those views is gone."""
        region.holds -= 1
        self._free()
