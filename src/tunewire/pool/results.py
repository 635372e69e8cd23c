"""The results of a map, as they come or in order, with a bounded number of calls under way.

A call under way is a future, and the next items are taken when the reader asks for a result. So items may be endless, a
reader that stops holds the rest back, and leaving the block early cancels what is under way. Results of items that came
are given before the end or an error of the items themselves.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from tunewire.workers.call import PendingCall
from tunewire.workers.outcome import Outcome

T = TypeVar("T")


class _Source:
    """The items of a synchronous or asynchronous iterable, one at a time.

    An asynchronous one is asked in a task of its own, one item ahead: it may itself wait for results, and a reader that
    is cancelled while it waits must not throw its cancellation into it.
    """

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._sync: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        if isinstance(items, AsyncIterable):
            self._async = aiter(items)
        else:
            self._sync = iter(items)
        self.asking: asyncio.Task[Any] | None = None
        self.exhausted = False
        self.error: Exception | None = None

    def ask(self) -> tuple[Any, ...]:
        """(the next item,) if there is one now; () if one must be waited for, or there will be none."""
        if self._async is not None:
            return self._ask_asynchronous(self._async)
        assert self._sync is not None
        try:
            for item in self._sync:
                return (item,)
        except Exception as error:  # noqa: BLE001 — it is the reader's, after the results of the items before it
            self.error = error
        self.exhausted = True
        return ()

    def _ask_asynchronous(self, items: AsyncIterator[Any]) -> tuple[Any, ...]:
        if self.asking is None:
            self.asking = asyncio.ensure_future(_next(items))
        if not self.asking.done():
            return ()
        asked, self.asking = self.asking, None
        try:
            return (asked.result(),)
        except _EndOfItems:
            self.exhausted = True
        except Exception as error:  # noqa: BLE001 — likewise
            self.error = error
            self.exhausted = True
        except asyncio.CancelledError:  # the items' own doing
            self.error = RuntimeError("the items of a map were cancelled from elsewhere")
            self.exhausted = True
        return ()

    async def close(self) -> None:
        """Ask no more."""
        self.exhausted = True
        if self.asking is not None:
            self.asking.cancel()
            await asyncio.wait([self.asking])


class _Queue(Protocol):
    """The pool's queue, which has a bound."""

    def is_full(self) -> bool: ...

    async def admit(self) -> bool: ...


class _EndOfItems(Exception):
    """StopAsyncIteration, which a task cannot raise."""


async def _next(items: AsyncIterator[Any]) -> Any:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _EndOfItems from None


class _Map:
    """Calls under way for the items of a map, within a window."""

    def __init__(
        self,
        items: Iterable[Any] | AsyncIterable[Any],
        submit: Callable[[Any], tuple[asyncio.Future[Outcome[Any]], PendingCall | None]],
        cancel: Callable[[PendingCall], None],
        queue: _Queue,
        *,
        window: int,
        ordered: bool,
    ) -> None:
        self._source = _Source(items)
        self._submit = submit
        self._cancel = cancel
        self._queue = queue
        self._window = window
        self._ordered = ordered
        self._under_way: dict[asyncio.Future[Outcome[Any]], PendingCall | None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()
        await self._source.close()

    def __aiter__(self) -> Self:
        return self

    def _stop(self) -> None:
        self._source.exhausted = True
        under_way, self._under_way = self._under_way, {}
        for call in under_way.values():
            if call is not None:
                self._cancel(call)

    async def _next_outcome(self) -> Outcome[Any]:
        while True:
            self._fill()
            ready = self._ready()
            if ready is not None:
                del self._under_way[ready]
                return ready.result()
            if not self._under_way and self._source.exhausted:
                error, self._source.error = self._source.error, None
                raise StopAsyncIteration if error is None else error
            if self._queue.is_full() and not self._under_way:
                await self._queue.admit()  # other calls fill it, and there is nothing of its own to wait for
            else:
                await self._wait()

    def _has_room(self) -> bool:
        return len(self._under_way) < self._window and not self._queue.is_full()

    def _fill(self) -> None:
        while not self._source.exhausted and self._has_room():
            asked = self._source.ask()
            if not asked:
                return
            future, call = self._submit(asked[0])
            self._under_way[future] = call

    def _ready(self) -> asyncio.Future[Outcome[Any]] | None:
        for future in self._under_way:
            if future.done():
                return future
            if self._ordered:
                return None
        return None

    async def _wait(self) -> None:
        """Until there may be something new. `asyncio.wait` cancels nothing of what it waits for."""
        news: list[asyncio.Future[Any]] = list(
            itertools.islice(self._under_way, 1 if self._ordered else None)
        )
        if self._source.asking is not None:
            news.append(self._source.asking)
        await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)


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
        try:
            return outcome.unwrap()
        finally:
            del outcome  # see Outcome.unwrap
