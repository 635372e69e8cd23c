"""Two connected ends in memory: the real `Connection`, on transports that are no descriptors.

Everything that frames, counts, coalesces and holds back is the real thing's own code; what is imitated is the kernel's
pipe and asyncio's two transports on it, as closely as a `Connection` can tell:

* a pipe holds so many bytes (64 KiB, as Linux's does) and no more; what it does not take waits in the writer's
  transport, which asks its writer to pause above 64 KiB and to go on when all of it is gone;
* bytes written are read in the next turn of the loop, 256 KiB at most in one, and not while the reader has paused;
* the writer's end is seen behind its last byte; `abort` loses what the pipe has not taken, and not what it has;
* a reader that has closed breaks the pipe: the writer's next turn finds it closed.

The suite `tunewire.testing.contracts.ConnectionContract` holds the two against each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tunewire.endpoints.connection import _MAX_TURNS, Connection, _ReadSide, _WriteSide
from tunewire.testing.faults import Faults, FaultyStream
from tunewire.wire.frames import DEFAULT_MAX_FRAME_BYTES

#: What a pipe of Linux holds, and asyncio's mark above which a writer is to pause.
PIPE_BYTES = 1 << 16
_HIGH_WATER = 1 << 16
#: What asyncio reads from a pipe in one turn of its loop.
_READ_BYTES = 1 << 18


class _Pipe:
    """What the kernel holds between the two ends."""

    def __init__(self, loop: asyncio.AbstractEventLoop, capacity: int, faults: Faults) -> None:
        self.loop = loop
        self.capacity = capacity
        self.stream = FaultyStream(faults)
        self.write_closed = False
        self.read_closed = False
        self.on_input: Callable[[], None] = _nothing
        self.on_room: Callable[[], None] = _nothing

    def put(self, data: memoryview) -> int:
        """How much of `data` it took."""
        room = max(self.capacity - self.stream.held, 0)
        if room:
            self.stream.feed(bytes(data[:room]))
            self.on_input()
        return min(room, len(data))

    def take(self) -> bytes:
        data = b""
        while len(data) < _READ_BYTES and (piece := self.stream.take()):
            data += piece
            if self.stream.faults.split is not None:
                break
        if data:
            self.loop.call_soon(self.on_room)
        return data

    @property
    def has_ended(self) -> bool:
        return self.stream.has_ended or (self.write_closed and not self.stream.held)

    def release(self) -> None:
        self.stream.release()
        self.on_input()

    def close_writing(self) -> None:
        self.write_closed = True
        self.on_input()

    def close_reading(self) -> None:
        self.read_closed = True
        self.loop.call_soon(self.on_room)


def _nothing() -> None:
    """Nobody is there yet."""


class _ReadTransport(asyncio.ReadTransport):
    def __init__(self, pipe: _Pipe, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._pipe = pipe
        self._protocol = protocol
        self._paused = False
        self._closing = False
        self._scheduled = False
        pipe.on_input = self._wake
        pipe.loop.call_soon(protocol.connection_made, self)
        self._wake()

    @property
    def bytes_waiting(self) -> int:
        return self._pipe.stream.size

    def release(self) -> None:
        self._pipe.release()

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._wake()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._pipe.close_reading()
            self._pipe.loop.call_soon(self._protocol.connection_lost, None)

    def _wake(self) -> None:
        if self.is_reading() and not self._scheduled and (self._pipe.stream.size or self._pipe.has_ended):
            self._scheduled = True
            self._pipe.loop.call_soon(self._read)

    def _read(self) -> None:
        self._scheduled = False
        if not self.is_reading():
            return
        data = self._pipe.take()
        if data:
            self._protocol.data_received(data)
            self._wake()
        elif self._pipe.has_ended:
            self._pipe.loop.call_soon(self._protocol.eof_received)
            self.close()


class _WriteTransport(asyncio.WriteTransport):
    def __init__(self, pipe: _Pipe, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._pipe = pipe
        self._protocol = protocol
        self._buffer = bytearray()
        self._paused = False
        self._closing = False
        self._lost = False
        pipe.on_room = self._on_room
        pipe.loop.call_soon(protocol.connection_made, self)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        view = memoryview(data).cast("B")
        taken = 0 if self._buffer or self._pipe.read_closed else self._pipe.put(view)
        self._buffer += view[taken:]
        if len(self._buffer) > _HIGH_WATER and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def _on_room(self) -> None:
        if self._lost:
            return
        if self._pipe.read_closed:
            self._close(BrokenPipeError() if self._buffer else None)
            return
        del self._buffer[: self._pipe.put(memoryview(bytes(self._buffer[: self._pipe.capacity])))]
        if self._buffer:
            return
        if self._paused:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing:
            self._close(None)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._buffer:
                self._close(None)

    def close(self) -> None:
        self.write_eof()

    def abort(self) -> None:
        self._close(None)

    def _close(self, error: Exception | None) -> None:
        self._closing = True
        if not self._lost:
            self._lost = True
            self._buffer.clear()
            self._pipe.close_writing()
            self._pipe.loop.call_soon(self._protocol.connection_lost, error)


class MemoryConnection(Connection):
    """One end of a `connection_pair`: a Connection without descriptors.

    >>> async def main():
    ...     left, right = connection_pair()
    ...     left.close()
    ...     return left.is_writable, right.is_writable
    >>> asyncio.run(main())
    (False, True)
    """

    def __init__(self, incoming: _Pipe, outgoing: _Pipe, max_frame_bytes: int) -> None:
        read_side, write_side = _ReadSide(max_frame_bytes), _WriteSide()
        self._incoming = _ReadTransport(incoming, read_side)
        super().__init__(read_side, self._incoming, _WriteTransport(outgoing, write_side), write_side)

    def release(self) -> None:
        """End the stall of what comes in."""
        self._incoming.release()

    async def end_reading(self) -> None:
        """The writer is dead: what it wrote is still read, then comes the end."""
        for _ in range(_MAX_TURNS):
            if self._incoming.is_closing() or not self._incoming.bytes_waiting:
                break
            await asyncio.sleep(0)
        self._incoming.close()


_FAULTLESS = Faults()


def connection_pair(
    *,
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    capacity: int = PIPE_BYTES,
    faults: Faults = _FAULTLESS,
) -> tuple[MemoryConnection, MemoryConnection]:
    """Two connections, each of which reads what the other writes. To be called while an event loop runs.

    A direction holds `capacity` bytes before its writer has to wait. `faults` are those of what the first reads, as a
    parent reads its child; the second reads what was written.

    >>> from tunewire.wire.messages import Data, pack_message
    >>> async def main():
    ...     parent, child = connection_pair(faults=Faults(split=1))
    ...     child.write(*pack_message(Data(), call_id=7, buffers=(b"value",)))
    ...     frame = await parent.read_frame()
    ...     parent.close(), child.close()
    ...     return frame.call_id, bytes(frame.buffers[0])
    >>> asyncio.run(main())
    (7, b'value')
    """
    loop = asyncio.get_running_loop()
    to_first, to_second = _Pipe(loop, capacity, faults), _Pipe(loop, capacity, _FAULTLESS)
    first = MemoryConnection(to_first, to_second, max_frame_bytes)
    return first, MemoryConnection(to_second, to_first, max_frame_bytes)
