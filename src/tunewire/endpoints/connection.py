"""Frames over a pair of asyncio pipes: assembled as their bytes come in, written together per turn of the loop.

Writing. The first frame written in a turn of the event loop goes to the pipe at once, since whoever sends one and
waits should not wait for the loop to come round; what is written after it in the same turn is put together and
written with one system call when the turn ends, or earlier when it has grown. So there is no timer and no interval to
choose, nothing that was sent stays behind, and a thousand small messages cost a handful of writes. `drain()` is the
back-pressure: it waits while the pipe's buffer is above its high-water mark, and lets the loop go round once after
every so many frames, so that who sends without end starves nobody.

Reading. What the pipe gives is assembled to frames (wire.assembly) on the spot. They wait for `read_frame`, and the pipe is
not read further while more than a bound of them wait; or they are delivered in that same moment to whoever asked for
them, which saves a turn of the loop and a task's waking (a tenth of a call's time, measured against a StreamReader). A
clean end between frames is EndpointClosed, an end inside one is TruncatedFrame, and bytes that are no frame are WireError:
three different things for the caller. A read that is cancelled loses nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import sys
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from tunewire.errors import WireError
from tunewire.wire.assembly import FrameAssembler
from tunewire.wire.frames import HEADER_BYTES, JOIN_BYTES, Buffer, Frame, SharedBuffers
from tunewire.wire.lane import THRESHOLD_BYTES

if TYPE_CHECKING:
    from tunewire.runtime.bulk import BulkLane

#: Bytes that wait to be read before the pipe is not read any further.
_READ_AHEAD = 1 << 18
#: A pipe holds no more unless it was enlarged. asyncio reads with a buffer of 256 KiB, for which the allocator goes to the
#: kernel each time (4 us of a call).
_READ_BYTES = 1 << 16
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

    @property
    def has_room(self) -> bool:
        return self._writable.is_set()

    async def writable(self) -> None:
        await self._writable.wait()


class _ReadSide(asyncio.Protocol):
    """What has come in: first as bytes, then as frames, which wait to be read or are delivered at once."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._assembler = FrameAssembler(max_frame_bytes)
        self.messages = 0
        self.bytes = 0
        self._unframed: bytearray | None = bytearray()
        self._frames: list[Frame] = []
        self._waiting: deque[Frame] = deque()
        self._held = 0
        self._deliver: Callable[[Frame], None] | None = None
        self._has_ended = False
        self._end: BaseException | None = None
        self._news: asyncio.Future[None] | None = None
        self._transport: asyncio.ReadTransport | None = None
        self._paused = False
        self._last_reads = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)  # uvloop's are no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._end is not None:
            return
        if self._unframed is None:
            self._take(data)
        else:
            self._unframed += data
            self._hold_back(len(self._unframed))
            self._wake()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._has_ended = True
        if self._unframed is None:
            self._finish(self._assembler.end())
        else:
            self._wake()

    def share(self, buffers: SharedBuffers | None) -> None:
        """From here on frames may have buffers elsewhere; None: no more."""
        self._assembler.shared = buffers

    @property
    def max_frame_bytes(self) -> int:
        return self._assembler.max_frame_bytes

    @max_frame_bytes.setter
    def max_frame_bytes(self, value: int) -> None:
        self._assembler.max_frame_bytes = value

    def expect_frames(self) -> None:
        """From here on the stream is one of frames."""
        if self._unframed is not None:
            data, self._unframed = bytes(self._unframed), None
            self.go_on()
            self._take(data)
            if self._has_ended:
                self._finish(self._assembler.end())

    def _take(self, data: bytes) -> None:
        self.bytes += len(data)
        end: WireError | None = None
        try:
            self._assembler.feed(data, self._frames)
        except WireError as error:
            end = error
        self.messages += len(self._frames)
        self._give(self._frames)
        if end is not None:
            self._finish(end)

    def _give(self, frames: list[Frame]) -> None:
        """To whom they are delivered, each as if it had come alone: one may end the reading."""
        if self._deliver is not None:
            try:
                for frame in frames:
                    self._deliver(frame)
                    if self._end is not None:
                        break
            except Exception as error:  # noqa: BLE001 — it is raised where delivery was asked for
                self._finish(error)
        elif frames:
            self._waiting += frames
            self._held += sum(_size(frame) for frame in frames)
            self._hold_back(self._held)
            self._wake()
        frames.clear()

    def _hold_back(self, held: int) -> None:
        if held > _READ_AHEAD:
            self.hold()

    def hold(self) -> None:
        if self._paused or self._last_reads or self._transport is None or self._transport.is_closing():
            return
        self._paused = True
        self._transport.pause_reading()

    def read_what_is_left(self) -> None:
        self._last_reads = True
        self.go_on()

    def go_on(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _finish(self, end: BaseException) -> None:
        if self._end is None:
            self._end = end
            self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _until_news(self) -> None:
        self._news = self._loop.create_future()
        try:
            await self._news
        finally:
            self._news = None

    async def until(self, cookie: bytes, limit: int) -> bytes:
        """The bytes before `cookie`, the last `limit` of them; IncompleteReadError, with what there was, at the end."""
        assert self._unframed is not None
        stray = self._unframed
        while (found := stray.find(cookie)) < 0:
            if self._has_ended:
                raise asyncio.IncompleteReadError(bytes(stray[-limit:]), None)
            # Only a tail is worth keeping, and the cookie may have begun in it.
            del stray[: -(limit + len(cookie))]
            self.go_on()
            await self._until_news()
        text = bytes(stray[:found][-limit:])
        del stray[: found + len(cookie)]
        return text

    async def next_frame(self) -> Frame:
        """The next frame, or what the end of the stream means, again and again."""
        while not self._waiting:
            if self._end is not None:
                raise self._end.with_traceback(None)
            await self._until_news()
        frame = self._waiting.popleft()
        self._held -= _size(frame)
        if self._held <= _READ_AHEAD:
            self.go_on()
        return frame

    async def deliver(self, receive: Callable[[Frame], None]) -> None:
        """Call `receive` with every frame at the moment it is whole, until the end, which is raised."""
        while self._waiting and self._end is None:
            receive(await self.next_frame())
        self._deliver = receive
        try:
            while self._end is None:
                await self._until_news()
        finally:
            self._deliver = None
        raise self._end.with_traceback(None)


def _size(frame: Frame) -> int:
    return HEADER_BYTES + len(frame.message) + sum(map(len, frame.buffers))


class _SharedMemory(SharedBuffers):
    """The bulk lane of a connection, made when the first large buffer comes or goes: ctypes is not loaded before."""

    def __init__(self, memory: mmap.mmap, *, is_parent: bool) -> None:
        self._memory: mmap.mmap | None = memory
        self._is_parent = is_parent
        self._lane: BulkLane | None = None
        self.bytes_taken = 0

    def _lane_now(self) -> BulkLane:
        if self._lane is None:
            from tunewire.runtime.bulk import BulkLane

            assert self._memory is not None
            self._lane = BulkLane(self._memory, is_parent=self._is_parent)
        return self._lane

    def close(self) -> None:
        """Let go of the memory."""
        self._memory = self._lane = None

    def send(self, parts: Sequence[Buffer], size: int) -> tuple[Sequence[Buffer], int]:
        """What of a frame goes through the pipe, and its bytes. The frame itself stays whole: it may be sent again."""
        if self._memory is None or (self._lane is None and size < THRESHOLD_BYTES):
            return parts, size
        left = self._lane_now().send(list(parts))
        return left, sum(len(part) for part in left)

    def take(self, codec: int, sizes: Sequence[int], places: Sequence[int]) -> list[Buffer]:
        """See BulkLane."""
        self.bytes_taken += sum(sizes)
        return self._lane_now().take(codec, sizes, places)


class Connection:
    """One framed, full-duplex connection. Reading and writing are independent of each other."""

    def __init__(
        self,
        read_side: _ReadSide,
        read_transport: asyncio.ReadTransport,
        write_transport: asyncio.WriteTransport,
        write_side: _WriteSide,
    ) -> None:
        self._read_side = read_side
        self._read_transport = read_transport
        self._transport = write_transport
        self._write_side = write_side
        self._refers = not isinstance(write_transport, asyncio.WriteTransport)
        self._loop = asyncio.get_running_loop()
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._turn_open = False
        self._turn_frames = 0
        self._shared: _SharedMemory | None = None
        self.messages_sent = 0
        self.bytes_sent = 0
        self.flushes = 0

    @classmethod
    async def open(cls, read_fd: int, write_fd: int, *, max_frame_bytes: int) -> Connection:
        """A connection that owns these two descriptors."""
        loop = asyncio.get_running_loop()
        read_file, write_file = os.fdopen(read_fd, "rb", buffering=0), os.fdopen(write_fd, "wb", buffering=0)
        try:
            read_transport, read_side = await loop.connect_read_pipe(
                lambda: _ReadSide(max_frame_bytes), read_file
            )
        except BaseException:
            read_file.close()
            write_file.close()
            raise
        if hasattr(read_transport, "max_size"):
            read_transport.max_size = _READ_BYTES
        try:
            write_transport, write_side = await loop.connect_write_pipe(_WriteSide, write_file)
        except BaseException:
            read_transport.close()
            write_file.close()
            raise
        return cls(read_side, read_transport, write_transport, write_side)

    def share(self, memory: mmap.mmap, *, is_parent: bool) -> None:
        """Large buffers may travel through this memory from here on, since both sides know of it."""
        self._shared = _SharedMemory(memory, is_parent=is_parent)
        self._read_side.share(self._shared)

    async def read_until_cookie(self, cookie: bytes, limit: int) -> bytes:
        """Skip to the child's first frame; what stood before the cookie, its last `limit` bytes.

        Raises asyncio.IncompleteReadError, with what there was, if the stream ends first.
        """
        return await self._read_side.until(cookie, limit)

    async def read_frame(self) -> Frame:
        """The next frame, whole. Cancelling loses nothing: the next call goes on where this one was."""
        self._read_side.expect_frames()
        return await self._read_side.next_frame()

    async def deliver_frames(self, receive: Callable[[Frame], None]) -> None:
        """Call `receive` with each frame in the moment in which its last byte is read: no task is woken for it. Until the
        stream ends, which raises what `read_frame` would, or `receive` raises something. Cancelling ends the delivery."""
        self._read_side.expect_frames()
        await self._read_side.deliver(receive)

    @property
    def max_frame_bytes(self) -> int:
        """What a frame may be long at most, either way."""
        return self._read_side.max_frame_bytes

    @max_frame_bytes.setter
    def max_frame_bytes(self, value: int) -> None:
        self._read_side.max_frame_bytes = value

    @property
    def messages_received(self) -> int:
        """Frames that have come in whole."""
        return self._read_side.messages

    @property
    def bytes_received(self) -> int:
        """Bytes that have come in, since there are frames in the stream; what lay in shared memory counted too."""
        return self._read_side.bytes + (0 if self._shared is None else self._shared.bytes_taken)

    def hold_reading(self) -> None:
        """Read no further until `go_on_reading`: the writer is held back as soon as the pipe is full. What was read already
        is still delivered."""
        self._read_side.hold()

    def go_on_reading(self) -> None:
        """Read on."""
        self._read_side.go_on()

    async def end_reading(self) -> None:
        """The writer is dead: what it wrote is still read, then comes the end, whoever else holds its pipe open."""
        self._read_side.read_what_is_left()
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
        if self._shared is not None:
            parts, size = self._shared.send(parts, size)
        self._put(parts)

    def write(self, parts: Sequence[Buffer], size: int) -> int:
        """Put one frame on its way; `size` bytes. Never waits: see `drain`."""
        self.messages_sent += 1
        self.bytes_sent += size
        self._turn_frames += 1
        piped = size
        if self._shared is not None:
            parts, piped = self._shared.send(parts, size)
        if not self._turn_open:
            self._turn_open = True
            self._loop.call_soon(self._end_turn)
            self._put(parts)
            return size
        self._held.extend(parts)
        self._held_bytes += piped
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
            # uvloop refers to what it has not written, which may be an array that changes; asyncio copies it.
            self._transport.write(bytes(part) if self._refers else part)
        if small:
            self._transport.write(b"".join(small) if len(small) > 1 else small[0])

    async def drain(self) -> None:
        """Wait until the pipe takes more, or is closed. Cancelling loses nothing that was written."""
        if self._turn_frames >= _TURN_FRAMES:
            await asyncio.sleep(0)
        await self._write_side.writable()

    @property
    def has_room(self) -> bool:
        """Whether `drain` would not wait for the peer to read."""
        return self._write_side.has_room

    @property
    def is_writable(self) -> bool:
        """Whether the peer may still read."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """Close both directions now; what the pipe has not taken yet is dropped."""
        self._held.clear()
        if self._shared is not None:
            # What was received keeps its memory alive; this connection, which may be collected late, does not.
            self._shared.close()
            self._read_side.share(None)
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
