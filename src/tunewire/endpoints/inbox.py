"""Frames that have come, each with something for one reader, and were not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tunewire.wire.frames import Frame

T = TypeVar("T")


class FrameQueue(Generic[T]):
    """What has come, in order, and the end. It has no bound: whoever puts sees to that. One task reads."""

    def __init__(self, decode: Callable[[Frame], T], taken: Callable[[Frame], None]) -> None:
        """`decode` makes of a frame what its reader gets, when it is read; `taken` is told first."""
        self._decode = decode
        self._taken = taken
        self._frames: deque[Frame] = deque()
        self._has_ended = False
        self._error: BaseException | None = None
        self._news: asyncio.Future[None] | None = None

    def put(self, frame: Frame) -> None:
        """One more has come."""
        self._frames.append(frame)
        self._wake()

    def finish(self, error: BaseException | None = None) -> None:
        """No more will come; when what has come is read, the reader is told so, or sees `error`."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._wake()

    def drop(self) -> None:
        """Nobody reads any more: what waits is forgotten."""
        self._frames.clear()

    async def get(self) -> T:
        """The next one; StopAsyncIteration at the end. Cancelling loses none."""
        while not self._frames:
            if self._has_ended:
                if self._error is not None:
                    raise self._error.with_traceback(None)
                # Made anew each time: one that is kept would keep, by its traceback, its reader's frame and all in it.
                raise StopAsyncIteration
            self._news = asyncio.get_running_loop().create_future()
            try:
                await self._news
            finally:
                self._news = None
        frame = self._frames.popleft()
        self._taken(frame)
        return self._decode(frame)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
