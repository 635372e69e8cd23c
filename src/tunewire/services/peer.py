"""One side of a service connection: many calls in flight, in both directions, over one stream of frames.

What a message means for a call is said by a table (services.rules); this is what is done about it. Frames are handled in
the moment in which they come; a task is started for each call that this side answers, and for each stream that it feeds.

At each await of a call that this side made, cancelled there:
    the pipe takes the arguments    they are on their way: the call is cancelled like any other
    its answer                      the other side is told, and answers when the work has ended; until then the call is known
    an item of its stream           the same: who waited for it has gone, and so would the stream's other items
The caller has control back at once. An answer to a cancel that does not come within a bound means that the other side does
not hear: then `unheard` is called, which a parent answers by ending the process.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from tunewire.endpoints.connection import Connection
from tunewire.errors import CallTimeout, DecodeError, EncodeError, InvalidValue, RemoteError, WireError
from tunewire.services.rules import WINDOW, Answering, Asked, Verdict, verdict
from tunewire.services.streams import Inbox, Outbox
from tunewire.wire.codecs import Codec, decode_msgspec, encode_msgspec
from tunewire.wire.exceptions import capture, rebuild, undescribed
from tunewire.wire.frames import Buffer, Frame
from tunewire.wire.messages import (
    Cancel,
    Credit,
    End,
    Failure,
    Invoke,
    Item,
    Log,
    Message,
    Rejected,
    Result,
    pack_message,
    read_message,
)

#: Calls of the other side's that run at once, and the bytes of their arguments: a child could flood its parent otherwise.
MAX_ANSWERING = 256
MAX_ANSWERING_BYTES = 1 << 26


class OutgoingCall:
    """A call that this side made."""

    def __init__(self, call_id: int, name: str, state: Asked) -> None:
        self.id = call_id
        #: `Scale.scale`, for errors.
        self.name = name
        self.state = state
        self.reply: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.inbox: Inbox[Any] | None = None
        self.outbox: Outbox | None = None
        self.callbacks: Mapping[str, Callable[..., Any]] = {}
        #: What ends with it: the task that feeds it, the callbacks that run for it.
        self.tasks: set[asyncio.Task[None]] = set()
        self.unheard: asyncio.TimerHandle | None = None
        self.deadline: asyncio.TimerHandle | None = None

    def settle(self, frame: Frame | None, error: BaseException | None = None) -> None:
        """It has been answered, with a frame or with an error."""
        if self.inbox is not None:
            self.inbox.finish(error)
        if not self.reply.done():
            if error is None:
                assert frame is not None
                self.reply.set_result(frame)
            else:
                self.reply.set_exception(error)
                self.reply.exception()  # whoever has gone does not need it
        for timer in (self.unheard, self.deadline):
            if timer is not None:
                timer.cancel()
        for task in self.tasks:
            task.cancel()


class IncomingCall:
    """A call that this side answers."""

    def __init__(self, call_id: int, invoke: Invoke, frame: Frame) -> None:
        self.id = call_id
        self.invoke = invoke
        self.frame = frame
        self.bytes = sum(map(len, frame.buffers))
        self.state = Answering.RUNNING
        self.inbox: Inbox[Any] | None = None
        self.outbox: Outbox | None = None
        self.task: asyncio.Task[None] | None = None


class Answers(Protocol):
    """Who answers the other side's calls."""

    def refuse(self, peer: Peer, call: IncomingCall) -> str | None:
        """Why there is nothing to answer, or None."""
        ...

    async def answer(self, peer: Peer, call: IncomingCall) -> Any:
        """The value to answer with."""
        ...


class Peer:
    """One side of a connection; `run` hears the other."""

    def __init__(
        self,
        connection: Connection,
        answers: Answers,
        *,
        first_id: int,
        cancel_grace: float | None = None,
        unheard: Callable[[str], None] | None = None,
        log: Callable[[Log], None] | None = None,
    ) -> None:
        """`first_id` is 1 for a parent and 2 for a child. `unheard` is told of a call whose cancel has not been answered
        for `cancel_grace` seconds, `log` of a log record of the other side's."""
        self._connection = connection
        self._answers = answers
        self._next_id = first_id
        self._parity: Final = first_id % 2
        self._last_theirs = 0
        self._outgoing: dict[int, OutgoingCall] = {}
        self._incoming: dict[int, IncomingCall] = {}
        self._incoming_bytes = 0
        self._cancel_grace = cancel_grace
        self._unheard = unheard
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        """Calls of this side's that have not been answered."""
        return len(self._outgoing)

    @property
    def answering(self) -> int:
        """Calls of the other side's that run."""
        return len(self._incoming)

    async def run(self) -> None:
        """Hear the other side until the connection ends, which is raised as `Connection.read_frame` would raise it."""
        await self._connection.deliver_frames(self._receive)

    def fail(self, error_for: Callable[[OutgoingCall, int], BaseException]) -> None:
        """The connection is over: every call of this side's ends with the error that is made for it."""
        calls, self._outgoing = self._outgoing, {}
        for call in calls.values():
            call.settle(None, error_for(call, len(calls)))

    async def stop(self) -> None:
        """End what runs here: the other side's calls, and what feeds this side's. Returns when it has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    # What this side asks.

    def begin(
        self,
        name: str,
        invoke: Invoke,
        value: Any,
        *,
        decode: Callable[[Frame], Any] | None = None,
        feed: AsyncIterable[Any] | Iterable[Any] | None = None,
        callbacks: Mapping[str, Callable[..., Any]] | None = None,
        late: CallTimeout | None = None,
    ) -> OutgoingCall:
        """Put a call on its way; with `decode`, one whose answer is a stream of what it makes of a frame. With `late`, one
        that ends so, and is cancelled on the other side, if it has not been answered within the limit that `late` names.
        EncodeError if `value` cannot be sent: then nothing was."""
        buffers = self._encoded(value, f"arguments of {name}")
        call = OutgoingCall(self._next_id, name, Asked.UNARY if decode is None else Asked.STREAM)
        self._send(invoke, call.id, buffers, f"arguments of {name}")
        self._next_id += 2
        self._outgoing[call.id] = call
        call.callbacks = callbacks or {}
        if decode is not None:
            call.inbox = Inbox(decode, lambda amount: self._grant(call.id, amount))
        if feed is not None:
            call.outbox = Outbox(WINDOW)
            self._start(self._feed(call, call.outbox, feed), call.tasks)
        if late is not None:
            # A timer that settles the call, and no scope around the await: an answer that was read before it is the answer.
            call.deadline = self._loop.call_later(late.limit, self._give_up, call, late)
        return call

    async def answer_of(self, call: OutgoingCall) -> Frame:
        """The frame of its result; what it raised is raised. Cancelling cancels the call."""
        try:
            if self._connection.has_room:
                await self._connection.drain()
            else:
                await self._room_or_end(call)
            return await call.reply
        except asyncio.CancelledError:
            self.cancel(call)
            raise

    async def _room_or_end(self, call: OutgoingCall) -> None:
        """Until the pipe has taken the arguments, or the call has ended without that: the other side may never read."""
        room = self._loop.create_task(self._connection.drain())
        either: list[asyncio.Future[Any]] = [room, call.reply]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()

    async def next_item(self, call: OutgoingCall) -> Any:
        """The next item of its stream; StopAsyncIteration at its end. Cancelling cancels the call."""
        assert call.inbox is not None
        try:
            return await call.inbox.get()
        except (asyncio.CancelledError, InvalidValue):
            self.cancel(call)
            raise

    def cancel(self, call: OutgoingCall) -> None:
        """Nobody waits for it any more: the other side is told. A call that was answered, or cancelled, is not cancelled."""
        if self._outgoing.get(call.id) is not call or call.state is Asked.CANCELLED:
            return
        call.state = Asked.CANCELLED
        if call.deadline is not None:
            call.deadline.cancel()
        if call.inbox is not None:
            call.inbox.drop()
        for task in call.tasks:
            task.cancel()
        self._send(Cancel(), call.id)
        if self._cancel_grace is not None:
            call.unheard = self._loop.call_later(self._cancel_grace, self._say_unheard, call)

    def _give_up(self, call: OutgoingCall, error: BaseException) -> None:
        """End a call with an error of this side's; the other side is told as if it had been cancelled."""
        if self._outgoing.get(call.id) is call and call.state is not Asked.CANCELLED:
            call.settle(None, error)
            self.cancel(call)

    def _say_unheard(self, call: OutgoingCall) -> None:
        assert self._unheard is not None
        self._unheard(f"did not answer the cancel of {call.name} within {self._cancel_grace:g} s")

    def _grant(self, call_id: int, amount: int) -> None:
        if call_id in self._outgoing or call_id in self._incoming:
            self._send(Credit(amount), call_id)

    async def _feed(
        self, call: OutgoingCall, outbox: Outbox, values: AsyncIterable[Any] | Iterable[Any]
    ) -> None:
        """Send what the caller's stream gives, as fast as it is read. What it raises ends the call, and is raised there."""
        try:
            if isinstance(values, AsyncIterable):
                async for value in values:
                    if not await self._put(call.id, outbox, value, f"an item fed to {call.name}"):
                        return
            else:
                for value in values:
                    if not await self._put(call.id, outbox, value, f"an item fed to {call.name}"):
                        return
            self._send(End(), call.id)
        except Exception as error:  # noqa: BLE001 — the caller's own code, which may raise anything
            call.tasks.discard(asyncio.current_task())  # it goes on to its own end
            self._give_up(call, error)
        finally:
            # Whoever made an async generator to feed from expects it to be closed where it is left.
            if (close := getattr(values, "aclose", None)) is not None:
                with suppress(RuntimeError):  # it is running: the cancel has reached it by itself
                    await close()

    async def _put(self, call_id: int, outbox: Outbox, value: Any, what: str) -> bool:
        """Send one item; False if no more are wanted."""
        buffers = self._encoded(value, what)
        if not await outbox.room():
            return False
        self._send(Item(), call_id, buffers, what)
        outbox.spend(buffers)
        await self._connection.drain()
        return True

    # What the other side says.

    def _receive(self, frame: Frame) -> None:
        message = read_message(frame)
        call_id = frame.call_id
        if isinstance(message, Log) and self._log is not None:
            self._log(message)
            return
        outgoing = incoming = None
        state: Asked | Answering
        if call_id % 2 == self._parity:
            outgoing = self._outgoing.get(call_id)
            state = Asked.UNKNOWN if outgoing is None else outgoing.state
        else:
            incoming = self._incoming.get(call_id)
            if incoming is not None:
                state = incoming.state
            else:
                state = Answering.OVER if call_id <= self._last_theirs else Answering.UNKNOWN
        match verdict(state, message):
            case Verdict.TAKE if outgoing is not None:
                self._take_of_mine(outgoing, message, frame)
            case Verdict.TAKE if incoming is not None:
                self._take_of_theirs(incoming, message, frame)
            case Verdict.TAKE:
                assert isinstance(message, Invoke)
                self._admit(message, frame)
            case Verdict.REJECT:
                self._reject(
                    call_id, f"{type(message).__name__} came for call {call_id}, which is {state.name}"
                )
            case Verdict.BREAK:
                raise WireError(
                    reason=f"{type(message).__name__} came for call {call_id}, which is {state.name}"
                )

    def _take_of_mine(self, call: OutgoingCall, message: Message, frame: Frame) -> None:
        match message:
            case Item():
                assert call.inbox is not None
                call.inbox.put(frame)
            case Credit(amount):
                if call.outbox is not None:
                    call.outbox.grant(amount)
            case End():
                if call.outbox is not None:
                    call.outbox.end()
            case Failure(exception):
                self._settle(call, None, rebuild(exception, trusted=False))
            case Rejected(reason):
                self._settle(call, None, RemoteError(type_name="Rejected", message=reason))
            case _:
                self._settle(call, frame)

    def _settle(self, call: OutgoingCall, frame: Frame | None, error: BaseException | None = None) -> None:
        del self._outgoing[call.id]
        call.settle(frame, error)

    def _take_of_theirs(self, call: IncomingCall, message: Message, frame: Frame) -> None:
        match message:
            case Item():
                assert call.inbox is not None
                call.inbox.put(frame)
            case End():
                assert call.inbox is not None
                call.state = Answering.RUNNING
                call.inbox.finish()
            case Credit(amount):
                if call.outbox is not None:
                    call.outbox.grant(amount)
            case _:
                call.state = Answering.CANCELLED
                assert call.task is not None
                call.task.cancel()

    def _admit(self, invoke: Invoke, frame: Frame) -> None:
        call = IncomingCall(frame.call_id, invoke, frame)
        self._last_theirs = call.id
        if (why := self._no_room() or self._answers.refuse(self, call)) is not None:
            self._reject(call.id, why)
            return
        self._incoming[call.id] = call
        self._incoming_bytes += call.bytes
        call.task = self._start(self._answer(call))
        call.task.add_done_callback(lambda _task: self._answer_unbegun(call))

    def _no_room(self) -> str | None:
        if len(self._incoming) >= MAX_ANSWERING or self._incoming_bytes >= MAX_ANSWERING_BYTES:
            return f"{len(self._incoming)} calls with {self._incoming_bytes} bytes are being answered already"
        return None

    def _reject(self, call_id: int, reason: str) -> None:
        """Not where the other side does not read: what it is to be told would pile up here."""
        if self._connection.has_room:
            self._send(Rejected(reason), call_id)

    # What this side answers.

    async def _answer(self, call: IncomingCall) -> None:
        try:
            await self._reply(call, await self._answers.answer(self, call))
        except BaseException as error:  # noqa: BLE001 — a SystemExit of one method's is not the end of the others
            self._fail(call, error)
        finally:
            self._forget(call)
        await self._connection.drain()

    def _forget(self, call: IncomingCall) -> None:
        del self._incoming[call.id]
        self._incoming_bytes -= call.bytes

    def _answer_unbegun(self, call: IncomingCall) -> None:
        """A task that is cancelled before its first step takes none: the call came together with its cancel."""
        if self._incoming.get(call.id) is call:
            self._fail(call, asyncio.CancelledError())
            self._forget(call)

    async def _reply(self, call: IncomingCall, value: Any) -> None:
        what = f"result of {call.invoke.name}"
        self._send(Result(), call.id, self._encoded(value, what), what)

    def _fail(self, call: IncomingCall, error: BaseException) -> None:
        # The outermost frame is this class's.
        traceback = None if error.__traceback__ is None else error.__traceback__.tb_next
        try:
            self._send(Failure(capture(error, with_pickle=False, traceback=traceback)), call.id)
        except EncodeError:
            self._send(Failure(undescribed(error)), call.id)

    async def stream(self, call: IncomingCall, items: AsyncIterable[Any]) -> None:
        """Answer with a stream of items, as fast as it is read."""
        assert call.outbox is not None
        what = f"an item of {call.invoke.name}"
        async for item in items:
            await self._put(call.id, call.outbox, item, what)

    def open_feed(self, call: IncomingCall, decode: Callable[[Frame], Any]) -> None:
        """Its caller feeds this call."""
        call.inbox = Inbox(decode, lambda amount: self._grant(call.id, amount))
        call.state = Answering.FED

    def want_no_more(self, call: IncomingCall) -> None:
        """The stream that feeds this call is not read any more."""
        if call.state is Answering.FED and self._incoming.get(call.id) is call:
            call.state = Answering.RUNNING
            self._send(End(), call.id)

    # Frames and tasks.

    @staticmethod
    def _encoded(value: Any, what: str) -> list[Buffer]:
        return encode_msgspec(value, what=what)[1]

    def _send(
        self, message: Message, call_id: int, buffers: list[Buffer] | None = None, what: str = "a message"
    ) -> None:
        codec = Codec.NONE if buffers is None else Codec.MSGSPEC
        parts, size = pack_message(message, call_id=call_id, codec=codec, buffers=tuple(buffers or ()))
        if size > self._connection.max_frame_bytes:
            limit = self._connection.max_frame_bytes
            raise EncodeError(what=what, reason=f"it makes a frame of {size} bytes, and the limit is {limit}")
        self._connection.write(parts, size)

    def _start(
        self, work: Coroutine[Any, Any, None], also: set[asyncio.Task[None]] | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        for tasks in (self._tasks, *(() if also is None else (also,))):
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    def start_for(self, call: OutgoingCall, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that ends with `call`."""
        return self._start(work, call.tasks)

    def outgoing(self, call_id: int) -> OutgoingCall | None:
        """A call of this side's that has not been answered."""
        return self._outgoing.get(call_id)


def checked(frame: Frame, kind: Any, *, name: str, part: str) -> Any:
    """The value in a frame, which is of this type; else InvalidValue."""
    if frame.codec != Codec.MSGSPEC:
        raise WireError(reason=f"{part} of {name} came in codec {frame.codec}, and services speak msgspec")
    try:
        return decode_msgspec(frame.buffers, what=part, type=kind)
    except DecodeError as error:
        path = error.path.removeprefix("$").removeprefix(".")
        raise InvalidValue(method=name, part=part, path=path, reason=error.reason) from None


async def awaited(value: Any) -> Any:
    """What a function gave, awaited where it has to be."""
    return await value if inspect.isawaitable(value) else value
