"""One call: take its request apart, run it, put its outcome together. Whatever the callable does short of ending the
process, the reply is one frame."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Generator
from types import AsyncGeneratorType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

from tunewire.errors import DecodeError, EncodeError
from tunewire.runtime import context
from tunewire.runtime.context import Teller
from tunewire.runtime.interrupt import Interrupts
from tunewire.runtime.interruption import still_good
from tunewire.wire.codecs import Codec, decode_pickle, encode
from tunewire.wire.exceptions import capture, traceback_below, undescribed
from tunewire.wire.frames import Buffer
from tunewire.wire.messages import Call, Failure, Result, pack_message

if TYPE_CHECKING:
    import asyncio

#: Frames of ours between a callable and the `except` below: `_run` and `_invoke`.
_OWN_FRAMES = 2

_Request: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Executor:
    """Runs calls on this thread, one after the other; keeps one event loop for the asynchronous ones."""

    def __init__(self, max_frame_bytes: int, interrupts: Interrupts) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._interrupts = interrupts
        self._pid = os.getpid()
        self._runner: asyncio.Runner | None = None

    def execute(
        self,
        call_id: int,
        buffers: list[Buffer],
        call: Call,
        teller: Teller,
        begins: Callable[[], None] = lambda: None,
    ) -> list[Buffer]:
        """The reply to `call` as parts of a frame. `buffers` are used up: the reply may be made of what came, and then
        nothing else may refer to it. `begins` is called when it is unpickled and its callable begins."""
        current = context.begin(call.phase, teller, call.limits)
        restore = _overlay(call.env)
        try:
            request = [_read_request(buffers, call.name)]
            begins()
            current.begins()
            value = [self._run(call_id, request, streams=call.streams)]
            reply = self._result(call_id, value, Codec(call.results))
        except BaseException as error:  # noqa: BLE001 — SystemExit and KeyboardInterrupt are the call's, too
            reply = self._failure(call_id, error, Codec(call.results))
        finally:
            context.end()
            _restore(restore)
        flush_output()
        if os.getpid() != self._pid:
            os._exit(0)  # a fork of the callable's that came back: one reply is enough
        return reply

    def _run(self, call_id: int, request: list[_Request], *, streams: bool) -> Any:
        """Run the callable, open to its interrupt. One that comes within the `finally` itself is raised from there, and
        the handler has disarmed itself by then: so nothing is raised outside of this function."""
        try:
            self._interrupts.arm(call_id)
            value = self._invoke(*request.pop(), streams=streams)
        finally:
            self._interrupts.disarm()
        self._interrupts.raise_if_swallowed()
        return value

    def _invoke(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, streams: bool
    ) -> Any:
        value = function(*args, **kwargs)
        if hasattr(type(value), "__await__"):
            return self._run_awaitable(value)
        if streams and isinstance(value, GeneratorType):
            return _report_each(value)
        if streams and isinstance(value, AsyncGeneratorType):
            return self._run_awaitable(_report_each_of(value))
        return value

    def _result(self, call_id: int, value: list[object], codec: Codec) -> list[Buffer]:
        if codec is Codec.NONE:  # nobody wants it
            return pack_message(Result(), call_id=call_id)[0]
        used, buffers = encode(value.pop(), codec, what="result")
        parts, size = pack_message(Result(), call_id=call_id, codec=used, buffers=tuple(buffers))
        if size > self._max_frame_bytes:
            reason = f"it is {size} bytes long, and the limit is {self._max_frame_bytes}"
            raise EncodeError(what="result", reason=reason)
        return parts

    def _failure(self, call_id: int, error: BaseException, codec: Codec) -> list[Buffer]:
        keep = not self._interrupts.interrupted or (not self._interrupts.in_import and still_good())
        ours = isinstance(error, (DecodeError, EncodeError))
        traceback = None if ours else traceback_below(error, _OWN_FRAMES + 1)
        try:
            data = capture(error, with_pickle=codec is not Codec.MSGSPEC, traceback=traceback)
            parts, size = pack_message(Failure(data, keep), call_id=call_id)
            if size <= self._max_frame_bytes:
                return parts
        except Exception:  # noqa: BLE001, S110 — whatever it is, what is left is enough for the least
            pass
        return pack_message(Failure(undescribed(error), keep), call_id=call_id)[0]

    def _run_awaitable(self, awaitable: Awaitable[Any]) -> Any:
        if self._runner is None:
            import asyncio

            self._runner = asyncio.Runner()
        try:
            return self._runner.run(_with_its_tasks(awaitable, self._interrupts))
        finally:
            self._interrupts.cancel_with(None)


def _report_each(values: Generator[Any, Any, Any]) -> Any:
    """What a generator gives is reported, and what it returns is the result."""
    report = context.current_call().report
    while True:
        try:
            value = next(values)
        except StopIteration as end:
            return end.value
        report(value)


async def _report_each_of(values: AsyncIterable[Any]) -> None:
    report = context.current_call().report
    async for value in values:
        report(value)


def _read_request(buffers: list[Buffer], name: str) -> _Request:
    function_buffer, *argument_buffers = buffers
    buffers.clear()
    function = decode_pickle([function_buffer], what=f"callable {name}")
    args, kwargs = decode_pickle(argument_buffers, what=f"arguments of {name}")
    return function, args, kwargs


async def _with_its_tasks(awaitable: Awaitable[Any], interrupts: Interrupts) -> Any:
    """A call ends with all that it started on the loop, as under asyncio.run: a task left over would run on in the
    next call's time and print into its text."""
    import asyncio

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def cancel() -> None:
        assert task is not None
        # Called in a signal's handler, which may interrupt the loop itself: only the thread-safe way wakes it.
        loop.call_soon_threadsafe(task.cancel)

    interrupts.cancel_with(cancel)
    try:
        return await awaitable
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _overlay(env: dict[str, str | None] | None) -> dict[str, str | None]:
    """Lay `env` over the environment; what has to be set again afterwards."""
    before = {name: os.environ.get(name) for name in env or ()}
    _restore(env or {})
    return before


def _restore(env: dict[str, str | None]) -> None:
    for name, value in env.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_own_modules = 0
_flush_c_streams: Callable[[None], object] | None = None


def note_own_modules() -> None:
    """What is loaded now is the runtime's: none of it prints through C's streams."""
    global _own_modules  # of the process, as the modules are
    _own_modules = len(sys.modules)


def flush_output() -> None:
    """What the call printed, from Python or from C, is in its pipe before its outcome is on the wire.

    A callable may have closed or replaced the streams; that is its own affair, and no reason to lose its result.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    if _flush_c_streams is not None or len(sys.modules) != _own_modules:
        _flush_c()


def _flush_c() -> None:
    """Where a library that prints may have been loaded, which is not without a module: until then, ctypes is not worth
    its 0.3 MB."""
    global _flush_c_streams  # of the process, as the streams are
    if _flush_c_streams is None:
        import ctypes

        _flush_c_streams = ctypes.CDLL(None).fflush
    _flush_c_streams(None)
