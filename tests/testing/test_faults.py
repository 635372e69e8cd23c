"""What is done to a stream, as bytes in and bytes out, and on a connection."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.errors import EndpointClosed, TruncatedFrame, WireError
from tunewire.testing import Faults, FaultyStream, connection_pair, virtual_loop
from tunewire.wire.frames import HEADER_BYTES
from tunewire.wire.messages import Data, pack_message


def pieces(stream: FaultyStream) -> list[bytes]:
    return list(iter(stream.take, b""))


def expected(data: bytes, faults: Faults) -> bytes:
    """The same in the plainest way: byte by byte."""
    out, copy = bytearray(), bytearray()
    for place, byte in enumerate(data):
        if place == faults.cut:
            break
        passed = byte ^ 0xFF if place == faults.garble else byte
        out.append(passed)
        if faults.duplicate is not None:
            first, stop = faults.duplicate
            if first <= place < stop:
                copy.append(passed)
            if place == stop - 1:
                out += copy
    return bytes(out)


POSITIONS = st.none() | st.integers(0, 60)


@given(
    chunks=st.lists(st.binary(max_size=20), max_size=6),
    split=st.none() | st.integers(1, 9),
    seed=st.none() | st.integers(0, 3),
    cut=POSITIONS,
    garble=POSITIONS,
    stall=POSITIONS,
    duplicate=st.none() | st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda p: (p[0], sum(p))),
    early=st.booleans(),
)
def test_however_the_bytes_come_what_is_delivered_is_the_same(
    chunks: list[bytes],
    split: int | None,
    seed: int | None,
    cut: int | None,
    garble: int | None,
    stall: int | None,
    duplicate: tuple[int, int] | None,
    early: bool,
) -> None:
    faults = Faults(split=split, seed=seed, cut=cut, garble=garble, stall=stall, duplicate=duplicate)
    stream = FaultyStream(faults)
    got = []
    for chunk in chunks:
        stream.feed(chunk)
        if early:
            got += pieces(stream)
    data = b"".join(chunks)
    before = b"".join([*got, *(late := pieces(stream))])
    if stall is not None:
        held_back = Faults(cut=min(place for place in (stall, cut) if place is not None))
        held_back = Faults(cut=held_back.cut, garble=garble, duplicate=duplicate)
        assert before == expected(data, held_back)
    stream.release()
    after = pieces(stream)
    assert before + b"".join(after) == expected(data, faults)
    assert all(len(piece) <= (split or 1000) for piece in [*got, *late, *after])
    assert stream.has_ended == (cut is not None and cut <= len(data))
    assert stream.held == 0


def test_pieces_by_a_seed_are_the_same_each_time() -> None:
    def cut_up(seed: int) -> list[bytes]:
        stream = FaultyStream(Faults(split=7, seed=seed))
        stream.feed(bytes(100))
        return pieces(stream)

    assert cut_up(1) == cut_up(1) != cut_up(2)


@pytest.mark.parametrize("faults", [{"split": 0}, {"duplicate": (3, 3)}, {"duplicate": (-1, 2)}])
def test_nonsense_is_refused(faults) -> None:
    with pytest.raises(ValueError):
        Faults(**faults)


def frame(call_id: int, value: bytes = b"value"):
    return pack_message(Data(), call_id=call_id, buffers=(value,))


async def received(faults: Faults, *, release_after: float | None = None) -> list[object]:
    """What the first end reads of three frames that the second one sends: call ids, and then how it ended."""
    first, second = connection_pair(faults=faults)
    for call_id in (1, 2, 3):
        second.write(*frame(call_id))
    closing = asyncio.ensure_future(second.close_writing())
    if release_after is not None:
        asyncio.get_running_loop().call_later(release_after, first.release)
    seen: list[object] = []
    try:
        async with asyncio.timeout(3600.0):
            while True:
                seen.append((await first.read_frame()).call_id)
    except (EndpointClosed, TruncatedFrame, WireError, TimeoutError) as error:
        seen.append(type(error))
    first.close()
    await closing
    return seen


SIZE = frame(1)[1]


@pytest.mark.parametrize(
    ("faults", "seen"),
    [
        (Faults(split=1), [1, 2, 3, EndpointClosed]),
        (Faults(split=9, seed=5), [1, 2, 3, EndpointClosed]),
        (Faults(cut=0), [EndpointClosed]),
        (Faults(cut=SIZE), [1, EndpointClosed]),
        (Faults(cut=SIZE + 1), [1, TruncatedFrame]),
        (Faults(cut=2 * SIZE - 1), [1, TruncatedFrame]),
        (Faults(cut=100 * SIZE), [1, 2, 3, EndpointClosed]),
        (Faults(garble=0), [WireError]),
        (Faults(garble=SIZE + 1), [1, WireError]),
        (Faults(garble=SIZE - 1), [1, 2, 3, EndpointClosed]),
        (Faults(stall=SIZE), [1, TimeoutError]),
        (Faults(stall=2 * SIZE + HEADER_BYTES), [1, 2, TimeoutError]),
        (Faults(duplicate=(0, SIZE)), [1, 1, 2, 3, EndpointClosed]),
        (Faults(duplicate=(SIZE, 3 * SIZE), split=11), [1, 2, 3, 2, 3, EndpointClosed]),
    ],
)
def test_a_connection_tells_what_befell_its_stream(faults: Faults, seen: list[object]) -> None:
    with virtual_loop() as runner:
        assert runner.run(received(faults)) == seen


def test_a_stall_ends_when_it_is_released() -> None:
    with virtual_loop() as runner:
        assert runner.run(received(Faults(stall=SIZE + 3), release_after=60.0)) == [1, 2, 3, EndpointClosed]
        assert runner.get_loop().time() == 60.0


def test_a_stalled_stream_holds_its_writer_back() -> None:
    async def main() -> None:
        first, second = connection_pair(capacity=1000, faults=Faults(stall=10))
        second.write(*frame(1, bytes(200_000)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await second.drain()
        first.release()
        assert len((await first.read_frame()).buffers[0]) == 200_000
        await second.drain()
        first.close()
        second.close()

    with virtual_loop() as runner:
        runner.run(main())
