"""A call whose caller hears of it while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from tunewire.wire.codecs import Codec
from tunewire.workers.call import PendingCall
from tunewire.workers.outcome import Outcome
from tunewire.workers.reports import CallEvent, Reports

T = TypeVar("T")

#: The future of an outcome; and the call, unless it ended before it was one.
BegunCall: TypeAlias = tuple[asyncio.Future[Outcome[Any]], PendingCall | None]


class CallStream(Generic[T]):
    """One call, as an async iterator of what it says and a context manager. Made by `Pool.stream`.

    It begins with the block, and the block owns it: leaving it before the call has ended, in whatever way, cancels the
    call. Iterating gives `CallReport`, `CallLog` and `CallPhase`, in the order in which the callable said them; after the
    last the iteration ends, or raises what the call failed with. Cancelling an `await` inside the block, as a timeout for
    one event does, loses nothing.

    >>> import asyncio
    >>> from tunewire import CallReport, Pool, current_call
    >>> def search(rounds):
    ...     for i in range(rounds):
    ...         current_call().report({"best": 10 - i}, progress=(i + 1) / rounds)
    ...     return "found"
    >>> async def main():
    ...     async with Pool(1) as pool, pool.stream(search, 2) as call:
    ...         async for event in call:
    ...             if isinstance(event, CallReport):
    ...                 print(event.progress, event.value)
    ...         return await call.result()
    >>> asyncio.run(main())
    0.5 {'best': 10}
    1.0 {'best': 9}
    'found'
    """

    def __init__(
        self,
        begin: Callable[[Reports], Awaitable[BegunCall]],
        cancel: Callable[[PendingCall], None],
        name: str,
        results: Codec,
    ) -> None:
        self._begin = begin
        self._cancel = cancel
        self._reports = Reports(name, results)
        self._call: PendingCall | None = None
        self._future: asyncio.Future[Outcome[T]] | None = None

    async def __aenter__(self) -> Self:
        if self._future is not None:
            raise RuntimeError("a stream is one call, and is entered once")
        self._future, self._call = await self._begin(self._reports)
        if self._call is None:
            self._reports.finish(self._future.result().error)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._call is not None and not self._call.future.done():
            self._cancel(self._call)
        self._reports.drop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CallEvent:
        self._begun()
        return await self._reports.get()

    async def outcome(self) -> Outcome[T]:
        """What became of the call, when it has ended: a value, whatever that is.

        What was not read before may be read afterwards, up to some 256 KiB of it: while the outcome is awaited, what does
        not fit is not waited for, but dropped and counted in `dropped`."""
        begun = self._begun()
        if not begun.done():
            with self._reports.skipped():
                await asyncio.wait([begun])
        return begun.result()

    @property
    def dropped(self) -> int:
        """How many events were lost since nobody read them while the outcome was awaited."""
        return self._reports.dropped

    async def result(self) -> T:
        """What the call returned; what `Pool.call` would raise is raised."""
        return (await self.outcome()).unwrap()

    def _begun(self) -> asyncio.Future[Outcome[T]]:
        if self._future is None:
            raise RuntimeError("a stream begins with its block: async with pool.stream(...) as call")
        return self._future
