"""A call on its way: the request, encoded once, and the future that its caller awaits."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from tunewire.errors import EncodeError, encodable
from tunewire.wire.codecs import Codec, encode_pickle, pickles_by_reference
from tunewire.wire.frames import Buffer
from tunewire.wire.messages import Call, pack_message
from tunewire.workers.lifecycle import CallInfo
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome
from tunewire.workers.reports import Reports
from tunewire.workers.summary import summary_of


def callable_name(function: Callable[..., Any]) -> str:
    """What a callable is called in errors and statistics.

    >>> callable_name(functools.partial(len, "abc"))
    'len'
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return displayable(name) if isinstance(name, str) else type(function).__qualname__


def displayable(name: str) -> str:
    """A name as it can be sent and shown, whatever it was made of."""
    return encodable(name)[:_NAME_LENGTH]


_NAME_LENGTH = 200
#: The parts of a frame, and its size in bytes.
PackedFrame: TypeAlias = tuple[list[Buffer], int]


class Function:
    """A callable, encoded; made once for all the calls of a map.

    A function that the child can import is encoded once; one that must travel by value (a lambda, a closure, what is
    defined in `__main__`), some twenty microseconds each time.
    """

    _imported: ClassVar[WeakKeyDictionary[types.FunctionType, Function]] = WeakKeyDictionary()

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Function:
        """The same, from memory where that is safe: a plain function that is what its name says."""
        if type(function) is not types.FunctionType or not pickles_by_reference(function):
            return cls(function)
        known = cls._imported.get(function)
        if known is None:
            known = cls._imported[function] = cls(function)
        return known

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


_NO_LIMITS = Limits()
_NO_ARGUMENTS = encode_pickle(((), {}), what="no arguments")


class Request:
    """What is sent for one call."""

    __slots__ = ("_buffers", "args", "codec", "kwargs", "name")

    def __init__(
        self,
        function: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        name: str | None = None,
    ) -> None:
        """EncodeError if an argument cannot be sent; it names the part at fault."""
        self.name = displayable(name) if name else function.name
        self.args, self.kwargs = args, kwargs or {}
        if args or kwargs:
            codec, buffers = encode_pickle((args, dict(kwargs or {})), what=f"arguments of {function.name}")
        else:
            codec, buffers = _NO_ARGUMENTS
        self.codec = max(codec, function.codec)
        self._buffers: tuple[Buffer, ...] = (function.buffer, *buffers)

    def snapshot(self) -> Request:
        """Itself, with a copy of its out-of-band buffers: for who makes the next item while this one still waits."""
        function, pickled, *outside = self._buffers
        self._buffers = (function, pickled, *(bytes(buffer) for buffer in outside))
        return self

    def pack(
        self,
        call_id: int,
        *,
        phase: str,
        results: Codec,
        max_frame_bytes: int,
        env: dict[str, str | None] | None = None,
        limits: Limits = _NO_LIMITS,
        streams: bool = False,
    ) -> PackedFrame:
        """The frame of this call. EncodeError if it is larger than a frame may be."""
        message = Call(
            name=self.name,
            phase=phase,
            results=results,
            env=env,
            streams=streams,
            limits=(limits.compile, limits.check, limits.run),
        )
        parts, size = pack_message(message, call_id=call_id, codec=self.codec, buffers=self._buffers)
        if size > max_frame_bytes:
            reason = f"they make a frame of {size} bytes, and the limit is {max_frame_bytes}"
            raise EncodeError(what=f"arguments of {self.name}", reason=reason)
        return parts, size


class PendingCall:
    """One call from its submission to its outcome."""

    __slots__ = (
        "_decided",
        "_request",
        "frame",
        "future",
        "info",
        "name",
        "reports",
        "result_type",
        "results",
    )

    def __init__(
        self,
        request: Request,
        frame: PackedFrame,
        *,
        info: CallInfo,
        results: Codec,
        result_type: Any,
        future: asyncio.Future[Outcome[Any]],
        decided: Callable[[PendingCall, Outcome[Any]], None],
        reports: Reports | None = None,
    ) -> None:
        """`reports` is where to what it says goes before its outcome, if someone reads that."""
        self.info = info
        self.reports = reports
        self.name = request.name
        self._request = request
        self.frame = frame
        self.results = results
        self.result_type = result_type
        self.future = future
        self._decided = decided

    @property
    def id(self) -> int:
        """Unique in its pool."""
        return self.info.id

    @property
    def arguments(self) -> str:
        """What it was made with, in a few words."""
        return summary_of(self._request.args, self._request.kwargs)

    def count_repeat(self) -> None:
        """It is sent once more."""
        self.info = msgspec.structs.replace(self.info, repeats=self.info.repeats - 1)

    def decide(self, outcome: Outcome[Any]) -> None:
        """Give the caller the outcome, once; a caller that has gone needs none."""
        self._decided(self, outcome)
        if self.reports is not None:
            self.reports.finish(outcome.error)
        if not self.future.done():
            self.future.set_result(outcome)
