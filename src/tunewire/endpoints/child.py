"""The child's side: any asyncio program that was started by ParentEndpoint.spawn."""

from __future__ import annotations

import os
import platform
from types import TracebackType
from typing import Any, Literal, Self

from tunewire.endpoints.connection import Connection
from tunewire.endpoints.parent import EndpointStatistics, statistics_of
from tunewire.endpoints.values import receive_value, send_value
from tunewire.errors import EndpointClosed
from tunewire.runtime.claim import Claim, claim
from tunewire.runtime.memory import has_lane, map_memory
from tunewire.version import __version__
from tunewire.wire.codecs import Codec
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES
from tunewire.wire.lane import BULK
from tunewire.wire.messages import Hello, Welcome, expect, pack_message


async def say_hello(claim: Claim) -> tuple[Connection, Welcome]:
    """A connection over the claimed pipes, and the parent's welcome; EndpointClosed if it has gone."""
    connection = await Connection.open(claim.read_fd, claim.write_fd, max_frame_bytes=DEFAULT_MAX_FRAME_BYTES)
    memory = map_memory(claim.memory_fd)
    hello = Hello(
        tunewire=__version__,
        python=platform.python_version(),
        pid=os.getpid(),
        capabilities=(BULK,) if has_lane(memory) else (),
    )
    parts, size = pack_message(hello)
    connection.write([claim.cookie, *parts], size)
    welcome = expect(await connection.read_frame(), Welcome)
    connection.max_frame_bytes = welcome.max_frame_bytes
    if memory is not None and BULK in welcome.capabilities:
        connection.share(memory, is_parent=False)
    return connection, welcome


class ChildEndpoint:
    """Exchange values with the parent that spawned this process.

    Making it takes stdin and stdout for the protocol: from then on reading stdin gives the end of file, and what is
    printed is captured by the parent. Make it before you import anything that prints. Enter it to say hello.

    RuntimeError in a process that was not spawned by a ParentEndpoint:

    >>> ChildEndpoint()
    Traceback (most recent call last):
    RuntimeError: this program speaks to its parent and is not run by hand: start it with tunewire.ParentEndpoint.spawn
    """

    def __init__(self, *, codec: Literal["msgspec", "pickle"] = "msgspec") -> None:
        self._codec = Codec.named(codec)
        self._claim = claim()
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        """Say hello and wait for the parent's answer; EndpointClosed if the parent has gone."""
        self._connection, _ = await say_hello(self._claim)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the parent everything that was sent, then close. A parent that no longer reads loses it."""
        connection = self._open
        self._connection = None
        if kind is None:
            await connection.close_writing()
        connection.close()

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise EndpointClosed()
        return self._connection

    async def send(self, value: Any) -> int:
        """Send `value`; the number of bytes on the wire. Waits only while the parent reads too slowly.

        Raises EncodeError if `value` cannot be sent, EndpointClosed if the parent has gone.
        """
        if not self._open.is_writable:
            raise EndpointClosed()
        return await send_value(self._open, value, self._codec)

    async def receive(self) -> Any:
        """The next value that the parent sent; None only if it sent None. EndpointClosed when it has closed."""
        return await receive_value(self._open, self._codec)

    async def flush(self) -> None:
        """Hand everything that was sent to the pipe now, and wait while the parent reads too slowly."""
        self._open.flush()
        await self._open.drain()

    def statistics(self) -> EndpointStatistics:
        """Messages, bytes and flushes so far, both ways."""
        return statistics_of(self._open)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except EndpointClosed:
            raise StopAsyncIteration from None
