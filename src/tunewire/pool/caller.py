"""`call` and `run`, written once for everything that runs calls, with the types of the callable carried through."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, TypeVar, TypeVarTuple, overload

import msgspec

from tunewire.pool.stream import CallStream
from tunewire.workers.ladder import Ladder
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How one call is to be run."""

    timeout: float | None = None
    limits: Limits | None = None
    result_type: Any = Any
    phase: str = "run"
    name: str | None = None
    env: Mapping[str, str | None] | None = None
    idempotent: bool = False
    ladder: Ladder | None = None


class BaseCaller(ABC):
    """Runs callables in worker processes."""

    @abstractmethod
    async def _run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> Outcome[Any]: ...

    @abstractmethod
    def _stream(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        options: CallOptions,
    ) -> CallStream[Any]: ...

    @overload
    async def call(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> T: ...

    @overload
    async def call(
        self,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> T: ...

    @overload
    async def call(
        self,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> T: ...

    @overload
    async def call(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> T: ...

    async def call(
        self,
        function: Callable[..., Any],
        /,
        *args: object,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        result_type: Any = Any,
        phase: str = "run",
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        idempotent: bool = False,
        ladder: Ladder | None = None,
    ) -> Any:
        """Run `function(*args, **kwargs)` in a worker process and return what it returns.

        `function` may be anything that pickle or cloudpickle can take along: an importable function, a lambda, a
        closure, what is defined in `__main__` or in a notebook's cell; if it is a coroutine function, its result is
        awaited in the worker. `timeout` seconds count from the start of execution and are short for `limits.run`;
        `limits` replaces the pool's. With results as msgspec the value is checked against, and rebuilt as,
        `result_type`. `phase` is the stage that the call starts in. `name` is what errors and statistics call it, the
        callable's own name by default. `env` is laid over the process's environment while the call runs (None removes a
        variable) and undone after it. `ladder` replaces the pool's way of ending work that is given up.

        Large buffers (arrays) among the arguments are sent from where they are: do not change them before the outcome.
        A call begins at most once: one that may have begun is never run again, unless `idempotent` says that it may be.

        Cancelling the awaiting task stops the work: the caller has control back at once, the process is ended, and
        the worker takes no other call until the old work is gone.

        Raises what the callable raised, with the traceback in the child as its cause; RemoteError where that cannot be
        raised here; CallTimeout, naming the phase; WorkerCrashed; StartError; EncodeError before anything was sent,
        DecodeError for a result; PoolClosed, PoolSaturated.

        >>> import asyncio
        >>> from tunewire import Pool
        >>> async def main():
        ...     async with Pool(1) as pool:
        ...         return await pool.call(pow, 2, 10, timeout=5.0)
        >>> asyncio.run(main())
        1024
        """
        outcome = await self._run(
            function,
            args,
            kwargs,
            CallOptions(
                timeout=timeout,
                limits=limits,
                result_type=result_type,
                phase=phase,
                name=name,
                env=env,
                idempotent=idempotent,
                ladder=ladder,
            ),
        )
        try:
            return outcome.unwrap()
        finally:
            del outcome  # see Outcome.unwrap

    @overload
    async def run(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> Outcome[T]: ...

    @overload
    async def run(
        self,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> Outcome[T]: ...

    @overload
    async def run(
        self,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> Outcome[T]: ...

    @overload
    async def run(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        idempotent: bool = ...,
        ladder: Ladder | None = ...,
    ) -> Outcome[T]: ...

    async def run(
        self,
        function: Callable[..., Any],
        /,
        *args: object,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        result_type: Any = Any,
        phase: str = "run",
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        idempotent: bool = False,
        ladder: Ladder | None = None,
    ) -> Outcome[Any]:
        """Like `call`, with what became of the call as a value: never raises for what the call did.

        What the caller did wrong is still raised (EncodeError, PoolSaturated, PoolClosed at submission), and
        cancelling is as for `call`.

        >>> import asyncio, os
        >>> from tunewire import Pool
        >>> async def main():
        ...     async with Pool(1) as pool:
        ...         outcome = await pool.run(os._exit, 3)
        ...         return outcome.kind.value, outcome.error.exit_code
        >>> asyncio.run(main())
        ('crash', 3)
        """
        return await self._run(
            function,
            args,
            kwargs,
            CallOptions(
                timeout=timeout,
                limits=limits,
                result_type=result_type,
                phase=phase,
                name=name,
                env=env,
                idempotent=idempotent,
                ladder=ladder,
            ),
        )

    @overload
    def stream(
        self,
        function: Callable[[*Ts], Generator[Any, Any, T]],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    @overload
    def stream(
        self,
        function: Callable[[*Ts], AsyncIterator[Any]],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[None]: ...

    @overload
    def stream(
        self,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    @overload
    def stream(
        self,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    @overload
    def stream(
        self,
        function: Callable[..., Generator[Any, Any, T]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    @overload
    def stream(
        self,
        function: Callable[..., AsyncIterator[Any]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[None]: ...

    @overload
    def stream(
        self,
        function: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    @overload
    def stream(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = ...,
        timeout: float | None = ...,
        limits: Limits | None = ...,
        result_type: Any = ...,
        phase: str = ...,
        name: str | None = ...,
        env: Mapping[str, str | None] | None = ...,
        ladder: Ladder | None = ...,
    ) -> CallStream[T]: ...

    def stream(
        self,
        function: Callable[..., Any],
        /,
        *args: object,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        result_type: Any = Any,
        phase: str = "run",
        name: str | None = None,
        env: Mapping[str, str | None] | None = None,
        ladder: Ladder | None = None,
    ) -> CallStream[Any]:
        """Like `call`, with what the callable says on the way: an async context manager and iterator of events.

        The callable says it by `current_call().report` and `.log`, and by entering phases; or it is a generator function,
        plain or asynchronous, each of whose values is a report, and whose return value is the result. A reader that falls
        behind by more than about 256 KiB holds the callable up in its next report, and the callable's time goes on.

        The call begins with the block and is cancelled where the block is left before it has ended. Values on the way are
        sent as results are, by pickle or by msgspec. Iterating raises what the call failed with, after its last event;
        `await call.result()` does too, and `await call.outcome()` does not.

        >>> import asyncio
        >>> from tunewire import Pool
        >>> def halves(value):
        ...     while value > 1:
        ...         value /= 2
        ...         yield value
        ...     return "small"
        >>> async def main():
        ...     async with Pool(1) as pool, pool.stream(halves, 4.0) as call:
        ...         return [event.value async for event in call], await call.result()
        >>> asyncio.run(main())
        ([2.0, 1.0], 'small')
        """
        return self._stream(
            function,
            args,
            kwargs,
            CallOptions(
                timeout=timeout,
                limits=limits,
                result_type=result_type,
                phase=phase,
                name=name,
                env=env,
                ladder=ladder,
            ),
        )
