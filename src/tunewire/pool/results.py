"""The results of a map, as they come or in order, with a bounded number of calls under way.

No task runs for it: a call under way is a future, and the next items are taken when the reader asks for a result. So
items may be endless, a reader that stops holds the rest back, and leaving the block early cancels what is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tunewire.workers.call import PendingCall
from tunewire.workers.outcome import Outcome

T = TypeVar("T")


class _Items:
    """The items of a synchronous or asynchronous iterable, one at a time."""

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        if isinstance(items, AsyncIterable):
            self._async = aiter(items)
        else:
            self._sync = iter(items)

    async def next(self) -> tuple[bool, Any]:
        """(True, the next item), or (False, None) at the end."""
        if self._async is not None:
            try:
                return True, await anext(self._async)
            except StopAsyncIteration:
                return False, None
        assert self._sync is not None
        for item in self._sync:
            return True, item
        return False, None


class _Map:
    """Calls under way for the items of a map, within a window."""

    def __init__(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        submit: Callable[[Any], tuple[asyncio.Future[Outcome[Any]], PendingCall | None]],
        cancel: Callable[[PendingCall], None],
        *,
        window: int,
        ordered: bool,
    ) -> None:
        self._items = _Items(items)
        self._submit = submit
        self._cancel = cancel
        self._window = window
        self._ordered = ordered
        self._under_way: dict[asyncio.Future[Outcome[Any]], PendingCall | None] = {}
        self._exhausted = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def __aiter__(self) -> Self:
        return self

    def _stop(self) -> None:
        self._exhausted = True
        under_way, self._under_way = self._under_way, {}
        for call in under_way.values():
            if call is not None:
                self._cancel(call)

    async def _next_outcome(self) -> Outcome[Any]:
        await self._fill()
        if not self._under_way:
            raise StopAsyncIteration
        future = await self._next_done()
        del self._under_way[future]
        return future.result()

    async def _fill(self) -> None:
        while not self._exhausted and len(self._under_way) < self._window:
            there, item = await self._items.next()
            if not there:
                self._exhausted = True
                return
            future, call = self._submit(item)
            self._under_way[future] = call

    async def _next_done(self) -> asyncio.Future[Outcome[Any]]:
        # `asyncio.wait` and not `await future`: cancelling this wait must not cancel the call.
        if self._ordered:
            first = next(iter(self._under_way))
            if not first.done():
                await asyncio.wait([first])
            return first
        done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        return next(future for future in self._under_way if future in done)


class MapOutcomes(_Map, Generic[T]):
    """The outcomes of a map: an async context manager and an async iterator. Made by `Pool.map_outcomes`.

    At most a window's worth of calls is under way or done and unread. Leaving the block, early or by an exception,
    cancels the rest. One task iterates at a time; cancelling a wait for the next outcome loses none.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool, pool.map_outcomes(chr, [97, -1]) as outcomes:
    ...         return [(outcome.value, type(outcome.error).__name__) async for outcome in outcomes]
    >>> asyncio.run(main())
    [('a', 'NoneType'), (None, 'ValueError')]
    """

    async def __anext__(self) -> Outcome[T]:
        return await self._next_outcome()


class MapResults(_Map, Generic[T]):
    """The values of a map: the same, but the first call that fails raises its error and cancels the rest. Made by
    `Pool.map`.

    >>> import asyncio
    >>> from tunewire import Pool
    >>> async def main():
    ...     async with Pool(1) as pool, pool.map(chr, [97, 98]) as results:
    ...         return [value async for value in results]
    >>> asyncio.run(main())
    ['a', 'b']
    """

    async def __anext__(self) -> T:
        outcome: Outcome[T] = await self._next_outcome()
        if not outcome.ok:
            self._stop()
        return outcome.unwrap()
