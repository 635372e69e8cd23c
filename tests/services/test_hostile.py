"""A child that says what it likes: it loses its connection at most, and every call of its parent's still ends."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from tunewire import Service, connect, method
from tunewire.testing import connection_pair
from tunewire.wire.messages import (
    Cancel,
    Credit,
    Data,
    End,
    Invoke,
    Item,
    Log,
    Opened,
    Ready,
    Rejected,
    Result,
    pack_message,
)


class Work(Service):
    @method
    async def add(self, a: int) -> int: ...

    @method
    async def ticks(self, n: int) -> AsyncIterator[int]: ...

    @method
    async def train(self, n: int, progress: Callable[[int], Awaitable[None]]) -> int: ...

    @method
    async def total(self, xs: AsyncIterator[int]) -> int: ...


class WorkHere(Work):
    async def add(self, a):
        await asyncio.sleep(0)
        return a

    async def ticks(self, n):
        for tick in range(n):
            yield tick

    async def train(self, n, progress):
        for step in range(n):
            await progress(step)
        return n

    async def total(self, xs):
        return sum([x async for x in xs])


MESSAGES = [
    *(Result(), Item(), End(), Opened(), Ready(), Data(), Cancel(), Rejected("why")),
    *(Credit(-5), Credit(1 << 62), Invoke("progress", of=5), Invoke("progress", of=7), Invoke("add")),
    *(Log(1 << 62, "a\x1b", "text", float("nan")), Log(-1, "", "text", float("inf"), "exception", -7)),
]
VALUES = [None, -1, 7, "text", [1], [[]], {"a": 1}, b"\0" * 5000]


def a_frame(rng: random.Random) -> bytes:
    """One well-formed frame at a wrong moment; one in four has a byte changed behind its header."""
    value = msgspec.msgpack.encode(rng.choice(VALUES))
    parts, _ = pack_message(
        rng.choice(MESSAGES),
        call_id=rng.randrange(12),
        codec=rng.choice([0, 1, 1, 1, 2]),
        buffers=(value,) * rng.choice([0, 1, 1, 1, 2]),
    )
    frame = bytearray(b"".join(parts))
    if rng.random() < 0.25:
        frame[rng.randrange(24, len(frame))] = rng.randrange(256)
    return bytes(frame)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(8))
async def test_every_call_ends_whatever_the_child_says(seed):
    rng = random.Random(seed)
    for _ in range(60):
        mine, theirs = connection_pair()
        connection = connect(Work, implementation=WorkHere, over=(mine, theirs))
        work = await connection.open()

        async def progress(_step):
            await asyncio.sleep(0)

        calls = [
            asyncio.ensure_future(work.add(1)),
            asyncio.ensure_future(anext(work.ticks(50))),
            asyncio.ensure_future(work.train(3, progress)),
            asyncio.ensure_future(work.total(range(100))),
        ]
        await asyncio.sleep(0)
        for _ in range(20):
            frame = a_frame(rng)
            theirs.write([frame], len(frame))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        theirs.close()
        async with asyncio.timeout(30):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, (int, Exception)) for end in ends), ends
        await connection.aclose()
