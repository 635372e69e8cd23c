"""The answering side of a service: the implementation is made here, and its methods run here."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec

from tunewire.endpoints.connection import Connection
from tunewire.errors import EndpointClosed, InvalidService, TruncatedFrame
from tunewire.services.definition import CallbackDefinition, Definition, MethodDefinition
from tunewire.services.logs import forwarded_logs
from tunewire.services.peer import Answers, IncomingCall, Peer, checked
from tunewire.services.streams import Feed, Outbox
from tunewire.wire.codecs import decode_pickle
from tunewire.wire.exceptions import capture
from tunewire.wire.messages import Failure, Invoke, Open, Opened, expect, pack_message


class Offer(msgspec.Struct, frozen=True):
    """What a connecting side sends: the definition, what implements it, and what to make that with."""

    definition: Definition
    implementation: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


async def serve_service(connection: Connection) -> None:
    """Serve one connection until the other side closes it or is gone. What the implementation opened is closed then."""
    frame = await connection.read_frame()
    opening = expect(frame, Open)
    async with AsyncExitStack() as stack:
        if opening.log_level is not None:
            await stack.enter_async_context(forwarded_logs(connection, opening.log_level))
        try:
            offer = decode_pickle(frame.buffers, what="service")
            implementation = await _made(offer, stack)
        except BaseException as error:
            connection.write(*pack_message(Failure(capture(error, with_pickle=False))))
            if isinstance(error, Exception):
                return
            raise
        peer = Peer(connection, _Methods(offer.definition, implementation), first_id=2)
        connection.write(*pack_message(Opened()))
        try:
            await peer.run()
        except (EndpointClosed, TruncatedFrame):
            return
        finally:
            await peer.stop()


async def _made(offer: Offer, stack: AsyncExitStack) -> Any:
    cls = offer.implementation
    if isinstance(cls, str):
        module, _, name = cls.partition(":")
        cls = getattr(importlib.import_module(module), name)
    implementation = cls(*offer.args, **offer.kwargs)
    if hasattr(implementation, "__aenter__"):
        implementation = await stack.enter_async_context(implementation)
    for method in offer.definition.methods.values():
        _check(offer.definition.name, method, implementation)
    return implementation


def _check(service: str, method: MethodDefinition, implementation: Any) -> None:
    who = f"its implementation {type(implementation).__qualname__}"
    function = getattr(implementation, method.name, None)
    if function is None:
        raise InvalidService(service=service, reason=f"{who} has no method {method.name}")
    fits = inspect.isasyncgenfunction(function) if method.streams else inspect.iscoroutinefunction(function)
    if not fits:
        form = "an async generator" if method.streams else "a coroutine function"
        raise InvalidService(service=service, reason=f"{method.name} of {who} is not {form}")
    try:
        inspect.signature(function).bind(**dict.fromkeys(method.parameters))
    except TypeError as error:
        raise InvalidService(service=service, reason=f"{method.name} of {who}: {error}") from error


class _Methods(Answers):
    """The methods of an implementation."""

    def __init__(self, definition: Definition, implementation: Any) -> None:
        self._definition = definition
        self._implementation = implementation

    def refuse(self, peer: Peer, call: IncomingCall) -> str | None:
        method = self._definition.methods.get(call.invoke.name)
        if method is None:
            return f"service {self._definition.name} has no method {call.invoke.name!r}"
        if method.streams:
            call.outbox = Outbox(call.invoke.credit)
        if method.feed is not None:
            peer.open_feed(
                call,
                lambda frame: checked(
                    frame, method.feed_type, name=method.qualified_name, part=f"fed item of {method.feed}"
                ),
            )
        return None

    async def answer(self, peer: Peer, call: IncomingCall) -> Any:
        method = self._definition.methods[call.invoke.name]
        values = checked(call.frame, method.values_type, name=method.qualified_name, part="argument")
        arguments = method.by_name(values)
        for name, callback in method.callbacks.items():
            given = name in call.invoke.callbacks
            arguments[name] = _callback(peer, call.id, method, name, callback) if given else None
        if method.feed is not None:
            assert call.inbox is not None
            arguments[method.feed] = Feed(call.inbox, lambda: peer.want_no_more(call))
        function = getattr(self._implementation, method.name)
        if not method.streams:
            return await function(**arguments)
        async with aclosing(function(**arguments)) as items:
            await peer.stream(call, items)
        return None


def _callback(
    peer: Peer, of: int, method: MethodDefinition, name: str, callback: CallbackDefinition
) -> Callable[..., Awaitable[Any]]:
    """What the method is given for a function of its caller's."""
    where = f"{method.qualified_name}: {name}"

    async def call_back(*args: Any) -> Any:
        call = peer.begin(where, Invoke(name, of=of), args)
        return checked(await peer.answer_of(call), callback.result, name=where, part="result")

    return call_back
