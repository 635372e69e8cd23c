"""The calling side of a service: a process that is started for it, and an object with its methods.

A connection has one task of its own, which hears the child until it is gone, and then ends every call in flight. The proxy's
methods only post to it, so a connection may be opened in one task and closed in another one of the same loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tunewire.endpoints.connection import Connection
from tunewire.endpoints.launch import Sink, checked_environment, child_environment, descriptor_of, search_path
from tunewire.endpoints.process import ChildProcess, python_command, signal_name
from tunewire.errors import (
    CallTimeout,
    EndpointClosed,
    InvalidService,
    ServiceClosed,
    ServiceCrashed,
    TruncatedFrame,
    WireError,
)
from tunewire.services.definition import Definition, MethodDefinition, Service, definition_of
from tunewire.services.logs import handle, service_logger, wanted_level
from tunewire.services.peer import Answers, IncomingCall, OutgoingCall, Peer, awaited, checked
from tunewire.services.rules import WINDOW
from tunewire.services.serving import Offer, serve_service
from tunewire.services.streams import call_from_anywhere
from tunewire.wire.codecs import encode_pickle
from tunewire.wire.exceptions import add_note, rebuild
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.messages import Failure, Invoke, Log, Message, Open, Opened, pack_message, read_message
from tunewire.workers.limits import Limits

S = TypeVar("S", bound=Service)

#: A process whose stream has ended: how long its exit code is waited for.
_END_WAIT = 0.5
#: What a service's process is left at most to close what it opened, when this process has ended: nothing of it may be there
#: a second later.
MAX_LINGER = 0.5


class _Callbacks(Answers):
    """The functions that running calls were given to be called back."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def refuse(self, peer: Peer, call: IncomingCall) -> str | None:
        of = peer.outgoing(call.invoke.of)
        if of is None or call.invoke.name not in of.callbacks:
            return f"no call {call.invoke.of} with a callback {call.invoke.name!r} runs"
        return None

    async def answer(self, peer: Peer, call: IncomingCall) -> Any:
        of = peer.outgoing(call.invoke.of)
        if of is None:
            raise asyncio.CancelledError  # it ended in the moment in which its callback came
        task = asyncio.current_task()
        assert task is not None
        of.tasks.add(task)
        task.add_done_callback(of.tasks.discard)
        name = call.invoke.name
        callback = self._definition.methods[of.name.rpartition(".")[2]].callbacks[name]
        args = checked(call.frame, callback.arguments_type, name=of.name, part=f"callback {name}")
        return await awaited(of.callbacks[name](*args))


class ItemStream:
    """The items of a call that streams: an async iterator. The call begins with the first item that is asked for.

    Leaving it early, by `aclose`, or by letting go of it, cancels the call, and so does cancelling whoever awaits an item.
    """

    def __init__(self, begin: Callable[[], OutgoingCall], peer: Peer) -> None:
        self._begin = begin
        self._peer = peer
        self._call: OutgoingCall | None = None
        self._over = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._over:
            raise StopAsyncIteration
        try:
            if self._call is None:
                self._call = self._begin()
            return await self._peer.next_item(self._call)
        except BaseException:
            self._over = True
            raise

    async def aclose(self) -> None:
        """Cancel the call, unless it has ended."""
        self._over = True
        if self._call is not None:
            self._peer.cancel(self._call)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._call is not None and not self._over:
            call_from_anywhere(self._loop, functools.partial(self._peer.cancel, self._call))


class ServiceConnection(Generic[S]):
    """A service in a process of its own. Made by `connect`; entered, it gives an object with the service's methods.

    >>> import os
    >>> from tunewire.services import Service, connect, method
    >>> class Identity(Service):
    ...     @method
    ...     async def pid(self) -> int: ...
    >>> class IdentityHere(Identity):
    ...     async def pid(self) -> int:
    ...         return os.getpid()
    >>> async def main():
    ...     connection = connect(Identity, implementation=IdentityHere)
    ...     identity = await connection.open()
    ...     told = await identity.pid()
    ...     await connection.aclose()
    ...     return told == connection.pid
    >>> asyncio.run(main())
    True
    """

    def __init__(
        self,
        service: type[S],
        offer: Offer,
        *,
        device: str | None,
        env: Mapping[str, str | None],
        sinks: tuple[int | None, int | None],
        limits: Limits,
        cancel_grace: float | None,
        close_grace: float,
        max_frame_bytes: int,
        over: tuple[Connection, Connection] | None,
    ) -> None:
        self._service = service
        self._definition = offer.definition
        self._offer = offer
        self._device = device
        self._env = env
        self._sinks = sinks
        self._limits = limits
        self._cancel_grace = cancel_grace
        self._close_grace = close_grace
        self._max_frame_bytes = max_frame_bytes
        self._over = over
        self._process: ChildProcess | None = None
        self._pid: int | None = None
        self._peer: Peer | None = None
        self._hearing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._lost: str | None = None
        #: How it ended, where it was not closed here.
        self._end_of_it: Exception | None = None
        self._logger = service_logger(offer.definition.name)

    def late(self, name: str) -> CallTimeout | None:
        """How a call of this name ends that reaches its limit; None if it has none."""
        if self._limits.run is None:
            return None
        return CallTimeout(phase="run", limit=self._limits.run, device=self._device, callable_name=name)

    @property
    def pid(self) -> int | None:
        """The service's process; None before it is open, and where it has none."""
        return self._pid

    @property
    def stderr(self) -> str:
        """The tail of what the process wrote to stderr."""
        return "" if self._process is None else self._process.stderr.text()

    @property
    def stdout(self) -> str:
        """The tail of what the process printed."""
        return "" if self._process is None else self._process.stdout.text()

    async def open(self) -> S:
        """Start the process and make the implementation in it; an object with the service's methods.

        Cancelling leaves no process. Raises StartError if the process does not come up, CallTimeout with the phase "start"
        or "init", InvalidService if the implementation does not fit, or what making the implementation raised.
        """
        if self._peer is not None or self._closing is not None:
            raise ServiceClosed(service=self._definition.name)
        # Before anything is started: what cannot be sent is an error with nothing to undo.
        codec, buffers = encode_pickle(self._offer, what=f"service {self._definition.name}")
        self._loop = asyncio.get_running_loop()
        connection = await self._connected()
        try:
            async with self._within("init", self._limits.init):
                message = Open(self._definition.name, None if self._over else wanted_level(self._logger))
                connection.write(*pack_message(message, codec=codec, buffers=tuple(buffers)))
                while isinstance(answer := read_message(await connection.read_frame()), Log):
                    self._take_log(answer)
                self._check_opened(answer)
        except (EndpointClosed, TruncatedFrame):
            crash = await self._crash("its implementation", 1)
            await self._end(0.0)
            raise crash from None
        except BaseException:
            await self._end(0.0)
            raise
        self._peer = Peer(
            connection,
            _Callbacks(self._definition),
            first_id=1,
            cancel_grace=None if self._process is None else self._cancel_grace,
            unheard=self._give_up,
            log=self._take_log,
        )
        self._hearing = asyncio.create_task(self._hear(self._peer), name=f"service {self._definition.name}")
        return _proxy(self._service, self._definition, self._peer, self)

    def _check_opened(self, answer: Message) -> None:
        if isinstance(answer, Failure):
            error = rebuild(answer.exception, trusted=False)
            add_note(error, f"raised where service {self._definition.name} was made")
            raise error
        if not isinstance(answer, Opened):
            raise WireError(reason=f"Opened expected, {type(answer).__name__} came", pid=self._pid)

    async def _connected(self) -> Connection:
        if self._over is not None:
            connection, theirs = self._over
            self._serving = asyncio.create_task(self._serve_here(theirs))
            return connection
        process = self._process = await ChildProcess.spawn(
            python_command("import tunewire.services.__main__"),
            env=child_environment({**self._mask(), **self._env}),
            max_frame_bytes=self._max_frame_bytes,
            guarded=sys.platform == "linux",
            linger=min(self._close_grace, MAX_LINGER),
            sinks=self._sinks,
        )
        try:
            async with self._within("start", self._limits.start):
                hello = await process.greet(max_frame_bytes=self._max_frame_bytes, sys_path=search_path())
        except BaseException:
            await self._end(0.0)
            raise
        self._pid = hello.pid
        return process.connection

    def _mask(self) -> Mapping[str, str | None]:
        if self._device is None:
            return {}
        from tunewire.devices.masks import environment_for  # only who pins a device pays for it

        return environment_for(self._device)

    def _take_log(self, log: Log) -> None:
        # In a turn of its own: what a user's filter raises is no fault of the connection's.
        self._loop.call_soon(handle, self._logger, log, self._pid)

    @staticmethod
    async def _serve_here(connection: Connection) -> None:
        try:
            await serve_service(connection)
        finally:
            connection.close()

    def _within(self, phase: str, limit: float | None) -> _Within:
        return _Within(phase, limit, f"service {self._definition.name}", self._device)

    async def _hear(self, peer: Peer) -> None:
        """Until the other side is gone, or says what nobody may."""
        broken: Exception | None = None
        try:
            await peer.run()
        except (EndpointClosed, TruncatedFrame):
            pass  # it closed its side, or died: how, is told below
        except WireError as error:
            broken = WireError(reason=error.reason, pid=self._pid)
        except asyncio.CancelledError:  # the loop is ending, and nobody has closed this connection
            if (
                self._process is not None
            ):  # which has as long to close what it holds as if this process were killed
                await self._process.end(min(self._close_grace, MAX_LINGER))
            raise
        except Exception as error:  # noqa: BLE001 — a fault on this side must not leave calls without their end
            broken = error
        if broken is not None and self._process is not None:
            self._process.kill()
        end = broken if broken is not None else await self._crash("", peer.in_flight)
        self._end_of_it = end if self._closing is None else None
        peer.fail(lambda call, in_flight: self._error_for(end, call, in_flight))
        await peer.stop()
        if self._process is not None:
            await self._process.end(0.0)

    def _error_for(self, end: Exception, call: OutgoingCall, in_flight: int) -> Exception:
        if self._closing is not None:
            return ServiceClosed(service=self._definition.name)
        if isinstance(end, ServiceCrashed):
            return ServiceCrashed(
                **{**vars(end), "callable_name": call.name, "in_flight": in_flight},
            )
        return end

    async def _crash(self, name: str, in_flight: int) -> ServiceCrashed:
        """How the process ended."""
        exit_code = None
        if self._process is not None:
            exit_code = await self._process.exit_code_soon(_END_WAIT)
        return ServiceCrashed(
            in_flight=in_flight,
            exit_code=exit_code,
            signal=signal_name(exit_code),
            stdout=self.stdout,
            stderr=self.stderr,
            pid=self._pid,
            callable_name=name or None,
            reason=self._lost or (None if exit_code is not None else "closed its side"),
        )

    def _give_up(self, reason: str) -> None:
        self._lost = reason
        if self._process is not None:
            self._process.kill()

    async def aclose(self) -> None:
        """End every call with ServiceClosed, give the implementation `close_grace` seconds to close what it opened, then
        kill the whole tree. Returns in bounded time. Cancelling does not stop the closing; closing twice is closing once."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if self._peer is not None:
            self._peer.fail(lambda _call, _count: ServiceClosed(service=self._definition.name))
        await self._end(self._close_grace)
        if self._hearing is not None:
            await asyncio.wait([self._hearing])

    async def _end(self, grace: float) -> None:
        if self._process is not None:
            await self._process.end(grace)
        elif self._over is not None:
            connection, _ = self._over
            connection.close()
            await asyncio.wait([self._serving])

    @property
    def in_flight(self) -> int:
        """Calls that the child has not answered yet, cancelled ones included."""
        return 0 if self._peer is None else self._peer.in_flight

    def closed(self) -> ServiceClosed:
        """The error of a call that is made when it is not open: its cause is how the process ended, if it did by itself."""
        end = self._end_of_it
        reason = str(end).rstrip(".") if end is not None else None
        if isinstance(end, ServiceCrashed):
            reason = f"its process {end.how}"
        error = ServiceClosed(service=self._definition.name, reason=reason)
        error.__cause__ = end
        return error

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._hearing is not None and not self._hearing.done() and self._closing is None

    async def __aenter__(self) -> S:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Within:
    """A limit whose passing is a CallTimeout that names the phase."""

    def __init__(self, phase: str, limit: float | None, name: str, device: str | None) -> None:
        self._timeout = asyncio.timeout(limit)
        self._phase, self._limit, self._name, self._device = phase, limit, name, device

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            assert self._limit is not None
            raise CallTimeout(
                phase=self._phase, limit=self._limit, device=self._device, callable_name=self._name
            ) from late


def _proxy(service: type[S], definition: Definition, peer: Peer, connection: ServiceConnection[S]) -> S:
    methods = {
        method.name: _unary(service, method, peer, connection)
        if not method.streams
        else _streaming(service, method, peer, connection)
        for method in definition.methods.values()
    }
    cls = type(f"{service.__name__}Client", (service,), methods)
    proxy: S = object.__new__(cls)
    return proxy


def _begin(
    service: type[Service],
    method: MethodDefinition,
    peer: Peer,
    connection: ServiceConnection[Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Callable[[], OutgoingCall]:
    """Bind the arguments now; the rest when the call is to begin."""
    bound = inspect.signature(getattr(service, method.name)).bind(None, *args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    callbacks = {name: arguments[name] for name in method.callbacks if arguments[name] is not None}
    decode = functools.partial(checked, kind=method.result, name=method.qualified_name, part="item")

    def begin() -> OutgoingCall:
        if not connection.is_open:
            raise connection.closed()
        return peer.begin(
            method.qualified_name,
            Invoke(method.name, callbacks=tuple(callbacks), credit=WINDOW if method.streams else 0),
            {name: arguments[name] for name in method.values},
            decode=decode if method.streams else None,
            feed=None if method.feed is None else arguments[method.feed],
            callbacks=callbacks,
            late=None if method.streams else connection.late(method.qualified_name),
        )

    return begin


def _unary(
    service: type[Service], method: MethodDefinition, peer: Peer, connection: ServiceConnection[Any]
) -> Callable[..., Any]:
    async def call(_self: Any, *args: Any, **kwargs: Any) -> Any:
        reply = await peer.answer_of(_begin(service, method, peer, connection, args, kwargs)())
        return checked(reply, method.result, name=method.qualified_name, part="result")

    return functools.wraps(getattr(service, method.name))(call)


def _streaming(
    service: type[Service], method: MethodDefinition, peer: Peer, connection: ServiceConnection[Any]
) -> Callable[..., AsyncIterator[Any]]:
    def stream(_self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        return ItemStream(_begin(service, method, peer, connection, args, kwargs), peer)

    return functools.wraps(getattr(service, method.name))(stream)


def connect(
    service: type[S],
    *,
    implementation: str | type[Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: Sink = None,
    stderr: Sink = None,
    limits: Limits | None = None,
    cancel_grace: float | None = 5.0,
    close_grace: float = 0.5,
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    over: tuple[Connection, Connection] | None = None,
) -> ServiceConnection[S]:
    """A connection to a service in a process of its own, which `async with` opens and closes.

    `implementation` is "module:Class", which this process never imports, or the class itself; it is made in the child with
    `args` and `kwargs`, and entered there if it is an async context manager. `limits` bound the start of the process, the
    making of the implementation, and with `run` each call that does not stream, which is a CallTimeout after that time.
    Many calls may be in flight, and are answered in any order. Cancelling a call ends it in the child, as its limit does;
    a child that does not answer that within `cancel_grace` seconds is killed, and with it every call in flight
    (ServiceCrashed).

    `device` pins the process as a pool pins its workers (NoSuchDevice when it is opened, for one that is not to be had);
    `env` is laid over this process's environment, and None removes a variable; what the process prints and writes to stderr
    is copied to `stdout` and `stderr`. What it logs is handled here by the logger `tunewire.service.` and the service's
    name, from the level on that this logger has when the connection is opened.

    On leaving, the implementation has `close_grace` seconds to close what it opened; it has as many, and at most half a
    second, if this process is killed or its event loop ends. `over` is a pair of connections in memory: then the
    implementation runs in this process, and nothing of the two paragraphs before applies.

    Raises InvalidService for what is no definition, TypeError or ValueError for an environment that no process can have.

    >>> import asyncio
    >>> from tunewire.services import Service, connect, method
    >>> class Scale(Service):
    ...     @method
    ...     async def scale(self, x: float, by: float = 2.0) -> float: ...
    >>> class ScaleOnCpu(Scale):
    ...     async def scale(self, x: float, by: float = 2.0) -> float:
    ...         return x * by
    >>> async def main():
    ...     async with connect(Scale, implementation=ScaleOnCpu) as scale:
    ...         return await scale.scale(3.0)
    >>> asyncio.run(main())
    6.0
    """
    definition = definition_of(service)
    if isinstance(implementation, str) and not all(implementation.partition(":")):
        raise InvalidService(
            service=definition.name, reason=f"its implementation is 'module:Class', not {implementation!r}"
        )
    return ServiceConnection(
        service,
        Offer(definition, implementation, tuple(args), dict(kwargs or {})),
        device=device,
        env=checked_environment(env or {}),
        sinks=(descriptor_of(stdout), descriptor_of(stderr)),
        limits=limits or Limits(),
        cancel_grace=cancel_grace,
        close_grace=close_grace,
        max_frame_bytes=max_frame_bytes,
        over=over,
    )
