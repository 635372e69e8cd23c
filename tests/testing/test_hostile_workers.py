"""A worker that says what it likes loses its process, and its call at most: well-formed frames at wrong moments, changed
ones, and noise, into a real pool on a virtual clock. What a child sent is never unpickled."""

import asyncio
import pickle
import random

import msgspec
import pytest

from tunewire import Ladder
from tunewire.testing import FakePool, virtual_loop
from tunewire.wire.exceptions import ExceptionData
from tunewire.wire.messages import (
    Call,
    Credit,
    Data,
    Failure,
    Hello,
    Interrupt,
    Invoke,
    Item,
    Log,
    Note,
    Open,
    Phase,
    Ready,
    Rejected,
    Report,
    Result,
    Welcome,
    pack_message,
)

UNPICKLED = []


class Bomb:
    def __reduce__(self):
        return UNPICKLED.append, ("boom",)


BOMB = pickle.dumps(Bomb())
ERRORS = [
    ExceptionData("ValueError", "no", ("no",)),
    ExceptionData("os.system", "no", ("true",), pickled=BOMB),
    ExceptionData("tunewire.errors.CallTimeout", "no", None, {"phase": "run", "limit": "much"}),
    ExceptionData("ExceptionGroup", "no", members=(ExceptionData("KeyboardInterrupt", ""),)),
    ExceptionData("tunewire.errors.DeviceFault", "no", None, {"device": 3}),
]
MESSAGES = [
    *(
        Result(),
        Result(),
        Result(),
        Report(0.5),
        Report(float("nan")),
        Note(1 << 60, "\x1b[2J"),
        Ready(),
        Data(),
    ),
    *(
        Phase("run"),
        Phase("check"),
        Phase("compile"),
        Phase("queue"),
        Phase(""),
        Interrupt(),
        Item(),
        Credit(-1),
    ),
    *(Hello("0", "0", -1), Welcome("0", 1 << 62), Call("a", "run", 2), Open("a"), Invoke("a"), Rejected("a")),
    *(Log(20, "root", "text", 0.0), *map(Failure, ERRORS), *(Failure(error, keep=False) for error in ERRORS)),
]
VALUES = [*map(msgspec.msgpack.encode, [None, -1, "text", [[1]], {"a": b"\0" * 9}]), BOMB, b"", b"\xc1"]


def some_bytes(rng: random.Random, ids: range) -> bytes:
    """Mostly a frame, for a call that runs or one that does not; one in four is changed, one in twenty is noise."""
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(1, 60))
    parts, _ = pack_message(
        rng.choice(MESSAGES),
        call_id=rng.choice(ids),
        codec=rng.choice([0, 1, 1, 1, 2, 3, 77]),
        buffers=(rng.choice(VALUES),) * rng.choice([0, 1, 1, 1, 2]),
    )
    frame = bytearray(b"".join(parts))
    if rng.random() < 0.25:
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    return bytes(frame)


async def for_ever():
    await asyncio.get_running_loop().create_future()


async def read(pool):
    async with pool.stream(for_ever, timeout=5.0) as call:
        async for _ in call:
            pass
        return await call.result()


async def attacked(rng: random.Random) -> None:
    """One pool, one attack on each of its two workers, and a call that shows that the pool is none the worse."""
    ladder = rng.choice([Ladder(), Ladder(interrupt=0.5), Ladder(interrupt=0.5, cooperative=True)])
    async with FakePool(2, results="msgspec", ladder=ladder) as pool:
        calls = [
            asyncio.ensure_future(pool.call(for_ever, timeout=5.0)),
            asyncio.ensure_future(read(pool)),
        ]
        while any(worker.state != "busy" for worker in pool.statistics().workers):
            await asyncio.sleep(0.001)
        if rng.random() < 0.2:
            calls[rng.randrange(2)].cancel()
        for _ in range(20):
            for process in pool.spawner.processes[:2]:
                data = some_bytes(rng, range(5))
                if not process.has_ended:
                    process._program.connection.write_now([data], len(data))
            if rng.random() < 0.3:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(
            isinstance(end, (Exception, asyncio.CancelledError, int, str, list, dict, type(None)))
            for end in ends
        ), ends
        for process in pool.spawner.processes[:2]:
            process.die(-9)
        await pool.settled()
        assert await pool.call(len, "four") == 4
        assert not pool._calls
    assert pool.spawner.living == 0


@pytest.mark.parametrize("seed", range(8))
def test_a_worker_that_says_what_it_likes_costs_its_own_call_at_most(seed):
    rng = random.Random(seed)
    with virtual_loop() as runner:
        for _ in range(30):
            runner.run(attacked(rng))
    assert UNPICKLED == []
