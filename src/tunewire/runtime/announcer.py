"""What a running call says to its parent before it is over: phases, reports, lines of its log.

They are frames like its reply, and what must hold is that each is whole, and that none comes when the call has ended:

    a thread that the call left behind    finds, with the channel's lock in hand, that another call runs or none, and
                                          says nothing
    a fork of the process                 shares the pipe, and would write into the middle of a frame: it says nothing
    a soft interrupt while one is written is held until it is written, and raised then
    a signal's handler of the call's own  may raise in the middle of a write. The kernel takes up to PIPE_BUF bytes whole or
                                          not at all; more are written by another thread, where no handler ever runs

Nothing limits how much is said but the pipe: when its reader falls behind, the parent reads no further, and writing waits.
The parent reads on as soon as nobody waits for the call any more.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable

from tunewire.errors import EncodeError
from tunewire.runtime.channel import Channel
from tunewire.runtime.interrupt import Interrupts
from tunewire.wire.codecs import Codec, encode
from tunewire.wire.frames import Buffer
from tunewire.wire.messages import Call, Note, Phase, Report, pack_message

#: What Linux writes into a pipe whole or not at all. POSIX promises 512.
_PIPE_BUF = 4096

#: How often a thread is started in vain, by a handler that raises or for want of threads, before the report is given up.
_STARTS = 100


class Announcer:
    """Speaks for one call at a time; from any thread."""

    def __init__(self, channel: Channel, interrupts: Interrupts) -> None:
        self._channel = channel
        self._interrupts = interrupts
        self._pid = os.getpid()
        self._main = get_ident()
        self._call_id: int | None = None
        self._call: Call | None = None

    def begin(self, call_id: int, call: Call) -> None:
        """This call runs now."""
        self._call_id, self._call = call_id, call

    def end(self) -> None:
        """It has ended."""
        self._call_id = self._call = None

    def phase(self, name: str) -> None:
        """The call enters a phase."""
        self._send(self._call_id, *pack_message(Phase(name), call_id=self._call_id or 0))

    def report(self, value: object, progress: float | None) -> None:
        """A value on the way, if someone reads it. EncodeError if it cannot be sent."""
        call_id, call = self._call_id, self._call
        if call is None or call_id is None or not call.streams:
            return
        codec, buffers = encode(value, Codec(call.results), what="report")
        parts, size = pack_message(Report(progress), call_id=call_id, codec=codec, buffers=tuple(buffers))
        if size > self._channel.max_frame_bytes:
            limit = self._channel.max_frame_bytes
            raise EncodeError(what="report", reason=f"it is {size} bytes long, and the limit is {limit}")
        self._send(call_id, parts, size)

    def note(self, level: int, text: str) -> None:
        """A line of its log, if someone reads it."""
        call_id, call = self._call_id, self._call
        if call is not None and call_id is not None and call.streams:
            self._send(call_id, *pack_message(Note(level, text), call_id=call_id))

    def _send(self, call_id: int | None, parts: list[Buffer], size: int) -> None:
        if call_id is None or os.getpid() != self._pid:
            return
        if get_ident() != self._main:
            self._write(call_id, parts)
            return
        with self._interrupts.held():
            if size <= _PIPE_BUF:
                self._write(call_id, parts)
            else:
                _in_another_thread(lambda: self._write(call_id, parts))

    def _write(self, call_id: int, parts: list[Buffer]) -> None:
        self._channel.write(parts, unless=lambda: self._call_id != call_id)


def _in_another_thread(write: Callable[[], None]) -> None:
    """Until it is done, whatever is raised here meanwhile; that, then.

    `threading` cannot do it: a handler that raises in a `Condition`'s wait, which starts a thread too, leaves a lock that is
    released twice. A bare lock is taken or not. Nobody knows whether a thread was started when its start raises, so another
    may be, and only the first to make the claim writes.
    """
    claim, over = allocate_lock(), allocate_lock()
    over.acquire()
    failures: list[BaseException] = []
    done: list[bool] = []

    def run() -> None:
        if claim.acquire(blocking=False):
            try:
                write()
            except BaseException as error:  # noqa: BLE001 — it is raised below
                failures.append(error)
            done.append(True)
            over.release()

    tries = 0
    while not done:
        try:
            if not claim.locked():
                tries += 1
                start_new_thread(run, ())
            over.acquire()
        except BaseException as error:  # raised below too, when the frame is whole
            if tries >= _STARTS and claim.acquire(blocking=False):
                raise
            if not failures:
                failures.append(error)
    if failures:
        raise failures[0]
