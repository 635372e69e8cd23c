"""Frames over a pair of asyncio pipes: `readexactly` in, writes coalesced per turn of the loop.

Writing. The first frame written in a turn of the event loop goes to the pipe at once, since whoever sends one and
waits should not wait for the loop to come round; what is written after it in the same turn is put together and
written with one system call when the turn ends, or earlier when it has grown. So there is no timer and no interval to
choose, nothing that was sent stays behind, and a thousand small messages cost a handful of writes. `drain()` is the
back-pressure: it waits while the pipe's buffer is above its high-water mark, and lets the loop go round once after
every so many frames, so that who sends without end starves nobody.

Reading. Small bodies are read whole; of a frame with large buffers each buffer is read by itself, so that none is
copied out of a larger one. What has been read of a frame is kept when a read is cancelled, and the next one goes on
with it. A clean end between frames is EndpointClosed, an end inside one is TruncatedFrame, and
bytes that are no frame are WireError: three different things for the caller.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios
from collections.abc import Sequence

from tunewire.errors import EndpointClosed, TruncatedFrame
from tunewire.wire.frames import (
    HEADER_BYTES,
    JOIN_BYTES,
    Buffer,
    Frame,
    Header,
    parse_header,
    parse_table,
    split_body,
)

#: What asyncio reads ahead before it stops reading from the pipe.
_READ_AHEAD = 1 << 18
#: Frames and bytes held in one turn of the loop before it is let round.
_TURN_FRAMES = 256
_TURN_BYTES = JOIN_BYTES
#: Turns of the loop in which a dead writer's last bytes are read: a pipe holds at most a few reads' worth.
_MAX_TURNS = 100


def _bytes_waiting(fd: int) -> int:
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"), sys.byteorder)


class _WriteSide(asyncio.BaseProtocol):
    """The write pipe's flow control, and the news of its end."""

    def __init__(self) -> None:
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)

    async def writable(self) -> None:
        await self._writable.wait()


class _Reading:
    """What has been read of the frame that is under way."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.message_bytes = 0
        self.sizes: tuple[int, ...] | None = None
        self.message: bytes | None = None
        self.buffers: list[Buffer] = []


class Connection:
    """One framed, full-duplex connection. Reading and writing are independent of each other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        read_transport: asyncio.ReadTransport,
        write_transport: asyncio.WriteTransport,
        write_side: _WriteSide,
        max_frame_bytes: int,
    ) -> None:
        self._reader = reader
        self._read_transport = read_transport
        self._transport = write_transport
        self._write_side = write_side
        self._loop = asyncio.get_running_loop()
        self.max_frame_bytes = max_frame_bytes
        self._reading: _Reading | None = None
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._turn_open = False
        self._turn_frames = 0
        self.messages_sent = 0
        self.messages_received = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.flushes = 0

    @classmethod
    async def open(cls, read_fd: int, write_fd: int, *, max_frame_bytes: int) -> Connection:
        """A connection that owns these two descriptors."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_READ_AHEAD)
        read_file, write_file = os.fdopen(read_fd, "rb", buffering=0), os.fdopen(write_fd, "wb", buffering=0)
        try:
            read_transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), read_file
            )
        except BaseException:
            read_file.close()
            write_file.close()
            raise
        try:
            write_transport, write_side = await loop.connect_write_pipe(_WriteSide, write_file)
        except BaseException:
            read_transport.close()
            write_file.close()
            raise
        return cls(reader, read_transport, write_transport, write_side, max_frame_bytes)

    async def read_until_cookie(self, cookie: bytes, limit: int) -> bytes:
        """Skip to the child's first frame; what stood before the cookie, its last `limit` bytes.

        Raises asyncio.IncompleteReadError, with what there was, if the stream ends first.
        """
        stray = b""
        while True:
            try:
                return (stray + (await self._reader.readuntil(cookie))[: -len(cookie)])[-limit:]
            except asyncio.LimitOverrunError as error:
                stray = (stray + await self._reader.readexactly(error.consumed))[-limit:]
            except asyncio.IncompleteReadError as error:
                raise asyncio.IncompleteReadError((stray + error.partial)[-limit:], error.expected) from None

    async def read_frame(self) -> Frame:
        """The next frame, whole. Cancelling loses nothing: the next call goes on where this one was."""
        if self._reading is None:
            self._reading = _Reading(parse_header(await self._header(), max_frame_bytes=self.max_frame_bytes))
        frame = await self._rest(self._reading)
        self.messages_received += 1
        self.bytes_received += HEADER_BYTES + self._reading.header.length
        self._reading = None
        return frame

    async def _header(self) -> bytes:
        try:
            return await self._reader.readexactly(HEADER_BYTES)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise TruncatedFrame(received=len(error.partial), expected=HEADER_BYTES) from None
            raise EndpointClosed() from None

    async def _rest(self, reading: _Reading) -> Frame:
        header = reading.header
        if header.length <= JOIN_BYTES:
            return split_body(header, await self._exactly(header.length))
        if reading.sizes is None:
            reading.message_bytes, reading.sizes = parse_table(
                header, await self._exactly(header.table_bytes)
            )
        if reading.message is None:
            reading.message = await self._exactly(reading.message_bytes)
        while len(reading.buffers) < len(reading.sizes):
            # A bytearray each: an array that is rebuilt on its buffer must be writable.
            reading.buffers.append(bytearray(await self._exactly(reading.sizes[len(reading.buffers)])))
        return Frame(header.kind, header.codec, header.call_id, reading.message, tuple(reading.buffers))

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as error:
            raise TruncatedFrame(received=len(error.partial), expected=count) from None

    async def end_reading(self) -> None:
        """The writer is dead: what it wrote is still read, then comes the end, whoever else holds its pipe open."""
        pipe = self._read_transport.get_extra_info("pipe")
        for _ in range(_MAX_TURNS):
            if self._read_transport.is_closing() or not _bytes_waiting(pipe.fileno()):
                break
            await asyncio.sleep(0)
        self._read_transport.close()

    def stop_reading(self) -> None:
        """Whoever reads sees the end of the stream now; what is still in the pipe is dropped."""
        self._read_transport.close()

    def write_now(self, parts: Sequence[Buffer], size: int) -> None:
        """Put one frame on its way at once: for who never has a second one in the same turn. Never waits."""
        self.messages_sent += 1
        self.bytes_sent += size
        self.flush()
        self._put(parts)

    def write(self, parts: Sequence[Buffer], size: int) -> int:
        """Put one frame on its way; `size` bytes. Never waits: see `drain`."""
        self.messages_sent += 1
        self.bytes_sent += size
        self._turn_frames += 1
        if not self._turn_open:
            self._turn_open = True
            self._loop.call_soon(self._end_turn)
            self._put(parts)
            return size
        self._held.extend(parts)
        self._held_bytes += size
        if self._held_bytes >= _TURN_BYTES:
            self._turn_frames = _TURN_FRAMES
            self.flush()
        return size

    def _end_turn(self) -> None:
        self._turn_open = False
        self._turn_frames = 0
        self.flush()

    def flush(self) -> None:
        """Hand to the pipe what this turn of the loop has written so far."""
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            self._put(held)

    def _put(self, parts: Sequence[Buffer]) -> None:
        if self._transport.is_closing():
            return  # the reading side reports the end, once, to whoever reads
        self.flushes += 1
        small: list[Buffer] = []
        for part in parts:
            if len(part) < JOIN_BYTES:
                small.append(part)
                continue
            self._transport.write(b"".join(small))
            small.clear()
            self._transport.write(part)
        if small:
            self._transport.write(b"".join(small) if len(small) > 1 else small[0])

    async def drain(self) -> None:
        """Wait until the pipe takes more, or is closed. Cancelling loses nothing that was written."""
        if self._turn_frames >= _TURN_FRAMES:
            await asyncio.sleep(0)
        await self._write_side.writable()

    @property
    def is_writable(self) -> bool:
        """Whether the peer may still read."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close both directions now; what the pipe has not taken yet is dropped."""
        self._held.clear()
        if not self._transport.is_closing():  # asyncio's abort fails on a pipe that has closed by itself
            self._transport.abort()
        self._read_transport.close()

    async def close_writing(self) -> None:
        """Tell the peer that nothing more will come, after it was given everything. Waits for it to read: give it a
        bound."""
        self.flush()
        if not self._transport.is_closing():
            self._transport.write_eof()
        await asyncio.shield(self._write_side.closed)
