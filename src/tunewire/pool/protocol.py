"""What benchmarks and tuning need of a pool, so that something else (a cluster) can stand in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome

T = TypeVar("T")


class Caller(Protocol):
    """Whatever runs calls: a pool, a worker, a leased worker."""

    async def call(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        result_type: Any = Any,
        phase: str = "run",
        name: str | None = None,
    ) -> T:
        """Run `function(*args, **kwargs)` in a worker process: its result, or its error is raised."""
        ...

    async def run(
        self,
        function: Callable[..., T],
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        result_type: Any = Any,
        phase: str = "run",
        name: str | None = None,
    ) -> Outcome[T]:
        """The same, with whatever the call did as a value."""
        ...


class PoolLike(Caller, Protocol):
    """A caller with devices of its own, each of which can be had exclusively."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that its workers are pinned to, in order; empty where none are."""
        ...

    @property
    def limits(self) -> Limits:
        """The limits of a call that brings none of its own."""
        ...

    def lease(self, device: str) -> AbstractAsyncContextManager[Caller]:
        """The exclusive right to `device` until the block ends."""
        ...
