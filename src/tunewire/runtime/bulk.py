"""One side's end of the bulk lane (wire.lane): copies large buffers into shared memory, and makes views of what came.

A view must tell when it is gone, and so must everything that was made of it: a slice, an array on it, a slice of that. They
all keep alive the object that exported the memory, which is a ctypes array, since of the standard library's exporters only
that one can cover a part of a mapping and be referred to weakly. (A memoryview can be, but a slice of it does not keep it
alive.)

A fork of this process has copies of the views, and their end there says nothing of those here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple
from weakref import ref

from tunewire.errors import WireError
from tunewire.wire.codecs import Codec
from tunewire.wire.frames import INLINE, Buffer, move_out
from tunewire.wire.lane import (
    CHILD_FLAGS,
    PARENT_FLAGS,
    SLOTS,
    THRESHOLD_BYTES,
    Region,
    Regions,
    place,
    split_place,
)
from tunewire.wire.record import PAGE_BYTES

#: Memory of a half that is kept, though it is not needed, and after how many frames that did not need it the rest is given
#: back to the system.
_KEPT_BYTES = 64 << 20
_PATIENCE = 8


class _View(NamedTuple):
    """What was made of a region of the other side's."""

    exporter: ref[Any]
    offset: int
    size: int


class BulkLane:
    """The lane as one side sees it. For one writer and one reader at a time; views may end in any thread."""

    def __init__(self, memory: mmap.mmap, *, is_parent: bool) -> None:
        self._half = (len(memory) - PAGE_BYTES) // 2
        parents, childs = PAGE_BYTES, PAGE_BYTES + self._half
        mine, self._theirs = (parents, childs) if is_parent else (childs, parents)
        self._my_flags, self._their_flags = (
            (PARENT_FLAGS, CHILD_FLAGS) if is_parent else (CHILD_FLAGS, PARENT_FLAGS)
        )
        self._memory = memory
        self._pid = os.getpid()
        self._regions = Regions(mine, self._half)
        #: Regions of ours of which a view has gone.
        self._let_go: deque[Region] = deque()
        self._held: dict[int, ref[Any]] = {}  # a ctypes array cannot be hashed, nor a reference to it
        self._numbers = count()
        #: Of regions of theirs, by number.
        self._views: dict[int, _View] = {}
        #: The end of what was ever written and not given back to the system, of what was lately, and for how long less.
        self._touched = self._lately = mine
        self._unneeded = 0

    # Writing.

    def send(self, parts: list[Buffer]) -> list[Buffer]:
        """The frame `parts` without the buffers that went into shared memory. Its list is used up: where nothing else holds
        a buffer that was received here, it is handed over uncopied."""
        if all(len(part) < THRESHOLD_BYTES for part in parts):
            if self._touched - self._regions.start > _KEPT_BYTES:
                self._give_back()
            return parts
        self._collect()
        places = [INLINE] * (len(parts) - 1)
        for index in range(1, len(parts)):
            if len(parts[index]) >= THRESHOLD_BYTES:
                places[index - 1] = self._put(parts, index)
        return parts if all(at == INLINE for at in places) else move_out(parts, places)

    def _put(self, parts: list[Buffer], index: int) -> int:
        if (known := self._known(parts[index])) is None:
            return self._copy(parts[index])
        slot, offset = known
        view = self._views.pop(slot)
        start, size = view.offset, view.size
        # With its watch gone, nothing tells of its end while that is looked for: what is handed over is not given back.
        probe = ref(view.exporter())
        del view
        length = len(parts[index])
        parts[index] = b""
        exporter = probe()
        if exporter is None:
            return place(slot, offset)
        self._watch(exporter, slot, start, size)
        parts[index] = memoryview(exporter).cast("B")[offset - start :][:length]
        del exporter
        return self._copy(parts[index])

    def _copy(self, part: Buffer) -> int:
        size = len(part)
        region = self._regions.take(size)
        if region is None:
            return INLINE
        self._memory[self._my_flags + region.slot] = 0
        self._memory[region.start : region.start + size] = part
        self._touched = max(self._touched, region.stop)
        self._lately = max(self._lately, region.stop)
        return place(region.slot, region.start)

    def _collect(self) -> None:
        while self._let_go:
            self._regions.let_go(self._let_go.popleft())
        flags, memory = self._my_flags, self._memory
        self._regions.collect(lambda slot: memory[flags + slot] != 0)

    def _give_back(self) -> None:
        """One of a few small frames after large ones; the last gives back what is not needed any more."""
        self._unneeded += 1
        if self._unneeded < _PATIENCE:
            return
        self._unneeded = 0
        self._collect()
        keep = max(self._lately, self._regions.top, self._regions.start + _KEPT_BYTES)
        self._lately = self._regions.top
        if keep < self._touched and hasattr(mmap, "MADV_REMOVE"):
            start = -(-keep // mmap.PAGESIZE) * mmap.PAGESIZE
            self._memory.madvise(mmap.MADV_REMOVE, start, self._touched - start)
            self._touched = keep

    # Reading.

    def take(self, codec: int, sizes: Sequence[int], places: Sequence[int]) -> list[Buffer]:
        """Views of what lies at these places; copies, if it is to be checked and must not change meanwhile."""
        copied = codec not in (Codec.PICKLE, Codec.CLOUDPICKLE)
        found = [self._find(*split_place(at), size) for at, size in zip(places, sizes, strict=True)]
        buffers: list[Buffer] = []
        handed_over: dict[Region, int] = {}
        for (slot, offset, region), size in zip(found, sizes, strict=True):
            if region is not None:
                handed_over[region] = handed_over.get(region, 0) + (not copied)
            if copied:
                buffers.append(bytearray(memoryview(self._memory)[offset : offset + size]))
            else:
                buffers.append(self._view(slot, offset, size, region))
            if copied and region is None:
                self._memory[self._their_flags + slot] = 1
        for region, holds in handed_over.items():
            self._regions.hand_over(region, holds=holds)
        return buffers

    def _find(self, slot: int, offset: int, size: int) -> tuple[int, int, Region | None]:
        """Number, offset, and the region, if it is one of ours."""
        if size == 0:
            raise WireError(reason="a buffer of no bytes has a place in shared memory")
        if slot < SLOTS and self._theirs <= offset and offset + size <= self._theirs + self._half:
            return slot, offset, None
        return slot, offset, self._regions.theirs(slot, offset, size)

    def _view(self, slot: int, offset: int, size: int, region: Region | None) -> memoryview:
        exporter = (ctypes.c_char * size).from_buffer(self._memory, offset)
        if region is None:
            self._watch(exporter, slot, offset, size)
        else:
            self._hold(exporter, region)
        return memoryview(exporter).cast("B")

    def _watch(self, exporter: Any, slot: int, offset: int, size: int) -> None:
        views, memory, flag, pid = self._views, self._memory, self._their_flags + slot, self._pid

        def give_back(_: ref[Any]) -> None:
            # First forgotten: as soon as the flag is set, another may come under this number.
            views.pop(slot, None)
            if os.getpid() == pid:
                memory[flag] = 1

        views[slot] = _View(ref(exporter, give_back), offset, size)

    def _hold(self, exporter: Any, region: Region) -> None:
        held, let_go, number = self._held, self._let_go, next(self._numbers)

        def forget(_: ref[Any]) -> None:
            held.pop(number, None)
            let_go.append(region)

        held[number] = ref(exporter, forget)

    def _known(self, part: Buffer) -> tuple[int, int] | None:
        """The number of the region of the other side's that `part` lies in, and where in the file it begins."""
        if not self._views or memoryview(part).readonly:
            return None
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        offset = ctypes.addressof(ctypes.c_char.from_buffer(part)) - start
        for slot, view in list(self._views.items()):
            if view.offset <= offset and offset + len(part) <= view.offset + view.size:
                return slot, offset
        return None
