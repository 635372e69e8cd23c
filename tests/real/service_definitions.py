"""The services of the tests, and their implementations, which run in processes of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from tunewire import Service, method


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


def _hold_the_loop() -> None:
    time.sleep(600)


class Work(Service):
    @method
    async def add(self, a: int, b: int = 2) -> int: ...

    @method
    async def wrong(self) -> int: ...

    @method
    async def fail(self) -> None: ...

    @method
    async def ticks(self, n: int) -> AsyncIterator[int]: ...

    @method
    async def sent(self) -> int: ...

    @method
    async def total(self, xs: AsyncIterator[int], at_most: int = 1_000_000) -> int: ...

    @method
    async def doubled(self, xs: AsyncIterator[int]) -> AsyncIterator[int]: ...

    @method
    async def train(self, n: int, progress: Callable[[int], Awaitable[bool]]) -> int: ...

    @method
    async def sleep(self, seconds: float, mark: str) -> None: ...

    @method
    async def block(self) -> None: ...

    @method
    async def crash(self) -> None: ...


class WorkHere(Work):
    def __init__(self, closing: str | None = None) -> None:
        self.closing = closing
        self.count = 0

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        if self.closing is not None:
            _write(self.closing, "closed")

    async def add(self, a, b=2):
        return a + b

    async def wrong(self):
        return "no number"

    async def fail(self):
        raise KeyError("nothing of that name")

    async def ticks(self, n):
        for tick in range(n):
            self.count += 1
            yield tick

    async def sent(self):
        return self.count

    async def total(self, xs, at_most=1_000_000):
        total = 0
        async for x in xs:
            total += x
            if total >= at_most:
                break
        return total

    async def doubled(self, xs):
        async for x in xs:
            yield 2 * x

    async def train(self, n, progress):
        for step in range(n):
            if not await progress(step):
                return step
        return n

    async def sleep(self, seconds, mark):
        try:
            _write(mark, "began")
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            _write(mark, "cancelled")
            raise

    async def block(self):
        _hold_the_loop()

    async def crash(self):
        os._exit(3)
