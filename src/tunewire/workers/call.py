"""A call on its way: the request, encoded once, and the future that its caller awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tunewire.errors import EncodeError
from tunewire.wire.codecs import Codec, encode_pickle
from tunewire.wire.frames import Buffer
from tunewire.wire.phases import INSIDE
from tunewire.workers.lifecycle import CallInfo
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome


def callable_name(function: Callable[..., Any]) -> str:
    """What a callable is called in errors and statistics.

    >>> callable_name(len)
    'len'
    """
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name)


class Function:
    """A callable, encoded; made once for all the calls of a map.

    A function that the child can import costs about a microsecond; one that must travel by value (a lambda, a
    closure, what is defined in `__main__`) some twenty.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"a callable is wanted, not {type(function).__name__}")
        self.name = callable_name(function)
        self.codec, buffers = encode_pickle(function, what=f"callable {self.name}")
        if len(buffers) != 1:
            raise EncodeError(
                what=f"callable {self.name}", reason="it holds buffers of its own; pass them as arguments"
            )
        self.buffer = buffers[0]


class Request:
    """What is sent for one call."""

    __slots__ = ("buffers", "codec", "name")

    def __init__(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        name: str | None = None,
    ) -> None:
        """EncodeError if an argument cannot be sent; it names the part at fault."""
        self.name = name or function.name
        codec, buffers = encode_pickle((args, dict(kwargs or {})), what=f"arguments of {function.name}")
        self.codec = max(codec, function.codec)
        self.buffers: tuple[Buffer, ...] = (function.buffer, *buffers)


class PendingCall:
    """One call from its submission to its outcome."""

    __slots__ = ("_decided", "future", "info", "request", "result_type", "results")

    def __init__(
        self,
        call_id: int,
        request: Request,
        *,
        phase: str,
        limits: Limits,
        results: Codec,
        result_type: Any,
        future: asyncio.Future[Outcome[Any]],
        decided: Callable[[PendingCall, Outcome[Any]], None],
    ) -> None:
        if phase not in INSIDE:
            raise ValueError(f"a call starts in one of the phases {INSIDE}, not {phase!r}")
        self.info = CallInfo(id=call_id, phase=phase, limits=limits)
        self.request = request
        self.results = results
        self.result_type = result_type
        self.future = future
        self._decided = decided

    @property
    def id(self) -> int:
        """Unique in its pool."""
        return self.info.id

    def decide(self, outcome: Outcome[Any]) -> None:
        """Give the caller the outcome, once; a caller that has gone needs none."""
        self._decided(self, outcome)
        if not self.future.done():
            self.future.set_result(outcome)
