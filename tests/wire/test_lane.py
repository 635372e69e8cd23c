"""Who may use which part of a half: no two regions overlap, and none is used again while either side refers to it."""

import mmap
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunewire.errors import WireError
from tunewire.runtime.bulk import BulkLane
from tunewire.wire.assembly import FrameAssembler
from tunewire.wire.frames import HEADER, INLINE, SHARED, pack
from tunewire.wire.lane import SLOTS, THRESHOLD_BYTES, Regions, place, split_place
from tunewire.wire.record import PAGE_BYTES

START, SIZE = 8192, 1 << 20


@given(st.integers(0, SLOTS - 1), st.integers(0, (1 << 48) - 1))
def test_a_place_is_a_region_and_an_offset_and_never_means_inline(slot, offset):
    assert split_place(place(slot, offset)) == (slot, offset)
    assert place(slot, offset) != INLINE


@given(st.lists(st.tuples(st.integers(1, SIZE // 3), st.booleans(), st.booleans()), max_size=60))
def test_regions_never_overlap_whatever_is_given_back_or_handed_over(steps):
    regions, given_back, ours = Regions(START, SIZE), set(), []
    live = []
    for size, gives_back, hands_over in steps:
        region = regions.take(size)
        if region is not None:
            given_back.discard(region.slot)
            assert region.start >= START
            assert region.stop <= START + SIZE
            assert region.size >= size
            assert all(region.stop <= other.start or other.stop <= region.start for other in live)
            assert region.slot not in {other.slot for other in live}
            live.append(region)
        if gives_back and live:
            oldest = live[0]
            if oldest.is_theirs:
                given_back.add(oldest.slot)
                live.pop(0)
            regions.collect(given_back.__contains__)
        if hands_over and live and live[-1].is_theirs:
            regions.hand_over(live[-1], holds=1)
            ours.append(live[-1])
        elif ours:
            regions.let_go(ours[0])
            live.remove(ours.pop(0))
        assert len(regions) == len(live)


def test_memory_that_was_given_back_is_used_again():
    regions = Regions(START, SIZE)
    first, second = regions.take(100), regions.take(100)
    regions.collect({first.slot}.__contains__)
    assert regions.take(100).start == first.start
    assert regions.top == second.stop


def test_what_does_not_fit_gets_no_region():
    regions = Regions(START, SIZE)
    assert regions.take(SIZE + 1) is None
    assert regions.take(SIZE) is not None
    assert regions.take(1) is None


def test_there_are_only_so_many_regions():
    regions = Regions(0, 1 << 30)
    assert all(regions.take(1) is not None for _ in range(SLOTS))
    assert regions.take(1) is None


def test_only_what_the_peer_was_given_is_taken_back():
    regions = Regions(START, SIZE)
    region = regions.take(5000)
    assert regions.theirs(region.slot, region.start + 1000, 4000) is region
    for slot, offset, size in [
        (region.slot, region.start, region.size + 1),
        (region.slot, region.start - 1, 10),
        (region.slot + 1, region.start, 10),
        (region.slot - 1, region.start, 10),
    ]:
        with pytest.raises(WireError, match="were not given to the peer"):
            regions.theirs(slot, offset, size)


def test_what_was_handed_over_twice_is_refused_and_what_is_viewed_here_is_kept():
    regions = Regions(START, SIZE)
    region = regions.take(5000)
    regions.hand_over(region, holds=2)
    with pytest.raises(WireError):
        regions.theirs(region.slot, region.start, 10)
    regions.let_go(region)
    assert regions.take(10).start != region.start
    regions.let_go(region)
    assert regions.take(10).start == region.start


PLACES = st.one_of(
    st.just(INLINE),
    st.integers(0, (1 << 64) - 1),
    st.builds(place, st.integers(0, 2 * SLOTS), st.integers(0, PAGE_BYTES + 3 * SIZE)),
)


@settings(max_examples=500)
@given(
    kind=st.sampled_from([1, 2, 3]),
    table=st.lists(st.tuples(st.one_of(st.integers(0, 100), st.integers(0, 1 << 64)), PLACES), max_size=5),
    given_to_it=st.integers(0, 3),
)
def test_any_place_is_in_what_the_peer_may_name_or_a_wire_error(kind, table, given_to_it):
    with mmap.mmap(-1, PAGE_BYTES + 2 * SIZE) as memory:
        lane = BulkLane(memory, is_parent=True)
        for _ in range(given_to_it):
            lane.send(pack(4, b"\x91\x04", buffers=[bytes(THRESHOLD_BYTES)])[0])
        table = [(size & (1 << 64) - 1, at) for size, at in table]
        body = struct.pack(f"<{2 * len(table)}Q", *(field for pair in table for field in pair))
        body += b"\x91\x04" + bytes(min(sum(size for size, at in table if at == INLINE), 1000))
        data = HEADER.pack(b"tw", 1, 4, kind, SHARED, len(table), 7, len(body)) + body
        frames, assembler = [], FrameAssembler(1 << 30)
        assembler.shared = lane
        try:
            assembler.feed(data, frames)
        except WireError:
            return
        for frame in frames:
            assert [len(buffer) for buffer in frame.buffers] == [size for size, _ in table]
            assert all(bytes(buffer).count(0) == len(buffer) for buffer in frame.buffers)
        del frames, frame
