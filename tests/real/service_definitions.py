"""The services of the tests, and their implementations, which run in processes of their own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
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


class Process(Service):
    """What a process is told and tells besides its calls."""

    @method
    async def variable(self, name: str) -> str | None: ...

    @method
    async def say(self, out: str, err: str) -> None: ...

    @method
    async def sleep(self, seconds: float) -> str: ...

    @method
    async def stop(self) -> None: ...

    @method
    async def log(self, name: str, level: int, text: str) -> None: ...

    @method
    async def log_error(self) -> None: ...

    @method
    async def log_from_a_thread(self, n: int) -> None: ...

    @method
    async def log_about_logging(self) -> None: ...


class Talkative:
    def __str__(self):
        logging.getLogger("inner").error("logged while a record is made")
        return "outer"


class ProcessHere(Process):
    def __init__(self, closing: str | None = None, hang: bool = False) -> None:
        self.closing = closing
        self.hang = hang
        logging.getLogger("making").warning("it is made")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        logging.getLogger("closing").warning("it is closed")
        if self.closing is not None:
            _write(self.closing, "begun")
        if self.hang:
            _hold_the_loop()
        if self.closing is not None:
            await asyncio.sleep(0.05)
            _write(self.closing, "closed")

    async def variable(self, name):
        return os.environ.get(name)

    async def say(self, out, err):
        print(out)
        print(err, file=sys.stderr)

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)
        return "slept"

    async def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    async def log(self, name, level, text):
        logging.getLogger(name).log(level, "%s", text)

    async def log_error(self):
        try:
            raise KeyError("nothing of that name")
        except KeyError:
            logging.getLogger("work").exception("it failed: %s", "so")

    async def log_from_a_thread(self, n):
        def log():
            for number in range(n):
                logging.getLogger("flood").warning("record %d", number)

        await asyncio.to_thread(log)

    async def log_about_logging(self):
        logging.getLogger("outer").warning("%s", Talkative())
        logging.getLogger("outer").warning("the next")
