"""The parent's side of a connection to any program that speaks frames over its stdin and stdout."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from tunewire.endpoints.connection import Connection
from tunewire.endpoints.process import ChildProcess
from tunewire.endpoints.values import receive_value, send_value
from tunewire.errors import EndpointClosed, TruncatedFrame, WireError
from tunewire.wire.codecs import Codec
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES

#: `aclose` asks by closing the child's stdin, waits this long, then kills.
_CLOSE_GRACE = 0.25


class EndpointStatistics(msgspec.Struct, frozen=True):
    """Counters of one endpoint since it was opened. A flush is one write to the pipe.

    >>> import asyncio, sys
    >>> program = '''
    ... import asyncio
    ... from tunewire import ChildEndpoint
    ... async def main():
    ...     async with ChildEndpoint() as child:
    ...         await child.send("ready")
    ... asyncio.run(main())
    ... '''
    >>> async def main():
    ...     async with await ParentEndpoint.spawn([sys.executable, "-c", program]) as parent:
    ...         await parent.receive()
    ...         return parent.statistics()
    >>> asyncio.run(main()).messages_received  # the hello, and one value
    2
    """

    messages_sent: int
    messages_received: int
    bytes_sent: int
    bytes_received: int
    flushes: int


def statistics_of(connection: Connection) -> EndpointStatistics:
    """The connection's counters at this moment."""
    return EndpointStatistics(
        messages_sent=connection.messages_sent,
        messages_received=connection.messages_received,
        bytes_sent=connection.bytes_sent,
        bytes_received=connection.bytes_received,
        flushes=connection.flushes,
    )


class ParentEndpoint:
    """Exchange values with a child program. Made by `spawn`; an async context manager that closes at its end.

    Open, use and close it from any task of one event loop; one task receives at a time.

    >>> import asyncio, sys
    >>> program = '''
    ... import asyncio
    ... from tunewire import ChildEndpoint
    ... async def main():
    ...     async with ChildEndpoint() as child:
    ...         async for value in child:
    ...             await child.send(value * 2)
    ... asyncio.run(main())
    ... '''
    >>> async def main():
    ...     async with await ParentEndpoint.spawn([sys.executable, "-c", program]) as parent:
    ...         await parent.send(21)
    ...         return await parent.receive()
    >>> asyncio.run(main())
    42
    """

    def __init__(self, process: ChildProcess, codec: Codec) -> None:
        self._process = process
        self._pid = process.pid
        self._codec = codec
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(
        cls,
        command: Sequence[str | os.PathLike[str]],
        *,
        codec: Literal["msgspec", "pickle"] = "msgspec",
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_timeout: float = 30.0,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> ParentEndpoint:
        """Start `command` (a program and its arguments) and wait until it has said hello.

        `codec` is how values travel: "msgspec" (plain data and Structs; safe whatever the child sends) or "pickle"
        (anything; only for a child that you trust). `env` is the child's whole environment, this process's by
        default. Cancelling kills what was started. Raises StartError if the program cannot be run, ends, speaks
        something else, or has not said hello after `start_timeout` seconds.
        """
        agreed = Codec.named(codec)
        process = await ChildProcess.spawn(
            [os.fspath(word) for word in command],
            env=os.environ if env is None else env,
            cwd=None if cwd is None else os.fspath(cwd),
            max_frame_bytes=max_frame_bytes,
            guarded=sys.platform == "linux",
        )
        endpoint = cls(process, agreed)
        try:
            async with asyncio.timeout(start_timeout):
                hello = await process.greet(max_frame_bytes=max_frame_bytes)
        except TimeoutError as error:
            failure = process.start_error(f"it did not say hello within {start_timeout:g} s")
            await process.end(0.0)
            raise failure from error
        except BaseException:
            process.kill()
            await process.end(0.0)
            raise
        endpoint._pid = hello.pid
        return endpoint

    @property
    def pid(self) -> int:
        """The child's process id, as it says itself."""
        return self._pid

    @property
    def exit_code(self) -> int | None:
        """What the child exited with (negative: the signal), None while it lives."""
        return self._process.exit_code

    @property
    def stdout(self) -> str:
        """The tail of what the child printed, its interpreter's start included."""
        return self._process.stdout.text()

    @property
    def stderr(self) -> str:
        """The tail of what the child wrote to stderr."""
        return self._process.stderr.text()

    async def send(self, value: Any) -> int:
        """Send `value`; the number of bytes on the wire. Waits only while the child reads too slowly.

        Cancelling while it waits does not take the message back. Raises EncodeError if `value` cannot be sent (nothing
        was), EndpointClosed if the child no longer reads.
        """
        if not self._process.connection.is_writable:
            raise await self._closed()
        return await send_value(self._process.connection, value, self._codec)

    async def receive(self) -> Any:
        """The next value that the child sent; None only if it sent None.

        Raises EndpointClosed when the child has ended or closed its side between messages, TruncatedFrame when it died
        inside one, WireError when it sent something that is no message (the child is killed), DecodeError when the
        value cannot be rebuilt here (the connection goes on).
        """
        try:
            return await receive_value(self._process.connection, self._codec)
        except EndpointClosed:
            raise await self._closed() from None
        except TruncatedFrame as error:
            raise TruncatedFrame(received=error.received, expected=error.expected, pid=self.pid) from None
        except WireError:
            self._process.kill()
            self._process.connection.close()
            raise

    async def _closed(self) -> EndpointClosed:
        exit_code = await self._process.exit_code_soon(_CLOSE_GRACE)
        return EndpointClosed(exit_code=exit_code, stderr=self.stderr)

    async def flush(self) -> None:
        """Hand everything that was sent to the pipe now, and wait while the child reads too slowly."""
        self._process.connection.flush()
        await self._process.connection.drain()

    def statistics(self) -> EndpointStatistics:
        """Messages, bytes and flushes so far, both ways."""
        return statistics_of(self._process.connection)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except EndpointClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the child's stdin, give it a moment to end, then kill its whole tree. Returns in bounded time.

        Cancelling does not stop the closing. Closing twice is closing once.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._process.end(_CLOSE_GRACE))
        await asyncio.shield(self._closing)
