"""The two ends of one stream of items: what has come and waits to be read, and what may be sent.

A stream is bounded by credit (see services.rules), so neither end ever waits for the other to take what it was not
promised. Whoever stops reading early says so at once, and its writer stops too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tunewire.endpoints.inbox import FrameQueue
from tunewire.errors import WireError
from tunewire.services.rules import ReadWindow, WriteWindow
from tunewire.wire.frames import Buffer, Frame

T = TypeVar("T")


def size_of(buffers: tuple[Buffer, ...] | list[Buffer]) -> int:
    """The bytes of an item, by which it is paid for."""
    return sum(memoryview(buffer).nbytes for buffer in buffers)


class Inbox(FrameQueue[T]):
    """What has come of a stream and was not read yet, bounded by credit. One task reads."""

    def __init__(self, decode: Callable[[Frame], T], grant: Callable[[int], None]) -> None:
        """`decode` makes an item of a frame, when it is read; `grant` tells the writer that it may send so much more."""
        super().__init__(decode, self._pay)
        self._grant = grant
        self._window = ReadWindow()

    def put(self, frame: Frame) -> None:
        """An item has come; WireError if it was not allowed to."""
        if not self._window.take(size_of(frame.buffers)):
            raise WireError(reason="an item of a stream came that was not granted")
        super().put(frame)

    def _pay(self, frame: Frame) -> None:
        if amount := self._window.read(size_of(frame.buffers)):
            self._grant(amount)


class Outbox:
    """What may be sent of a stream. One task writes."""

    def __init__(self, credit: int) -> None:
        self._window = WriteWindow(credit)
        self._open = asyncio.Event()
        self._wanted = True
        self.grant(0)

    def grant(self, amount: int) -> None:
        """The reader takes so much more."""
        self._window.grant(amount)
        if self._window.is_open:
            self._open.set()

    def end(self) -> None:
        """The reader wants no more."""
        self._wanted = False
        self._open.set()

    async def room(self) -> bool:
        """Wait until an item may be sent; False if none is wanted any more."""
        await self._open.wait()
        return self._wanted

    def spend(self, buffers: list[Buffer]) -> None:
        """An item of these buffers is sent."""
        self._window.spend(size_of(buffers))
        if not self._window.is_open and self._wanted:
            self._open.clear()


class Feed(Generic[T]):
    """The stream that a caller feeds, as the method sees it: an async iterator. Leaving it early, or letting go of it, tells
    the caller to stop."""

    def __init__(self, inbox: Inbox[T], stop: Callable[[], None]) -> None:
        self._inbox = inbox
        self._stop = stop
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> T:
        return await self._inbox.get()

    async def aclose(self) -> None:
        """Want no more."""
        self._stop()

    def __del__(self) -> None:
        call_from_anywhere(self._loop, self._stop)


def call_from_anywhere(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    """Call it on the loop's thread, soon: for a finalizer, which runs wherever the last reference goes, or never."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function)
