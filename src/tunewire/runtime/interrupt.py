"""The soft interrupt: an exception in the Python code of one call, and of no other.

The parent writes an Interrupt frame, which names the call, into the process's pipe, and then has the guard send a
signal. While a callable runs, the main thread does not read the pipe, so the signal's handler may: it takes the frame
if there is one, and raises CallInterrupted if the frame names the call that runs. What can come at a wrong moment:

    the call has ended before the signal   nobody is armed, the handler does nothing; the loop finds the frame of a call
                                           that is over, and drops it
    ... and the next one runs already      the loop has taken the old frame before the next call's, so the handler finds
                                           the pipe empty, and does nothing
    the callable is still being unpickled  the signal is remembered, and the frame looked for when the callable is armed
    the handler runs in the runtime        it is armed only around the callable, in a block whose `except` makes a reply;
                                           it disarms itself before it raises
    the callable is in C code              the handler runs when it returns; the parent's ladder does not wait for that
    the call says something on the way     the frame that it writes is finished first
    the callable is a coroutine            its task is cancelled instead: an exception out of a handler would break the
                                           event loop, which is kept

After an interrupt whatever the process holds of a device is suspect: an extension registers a check, which must return
in bounded time (the ladder bounds it), and a process that fails it says so in its reply. So does a process in which an
import was interrupted: Python takes the module itself out of sys.modules again, but not those that it had imported, nor
what half of a module in C has registered, and whoever imports it next meets what no test has seen.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tunewire.runtime import context
from tunewire.runtime.channel import Channel
from tunewire.runtime.interruption import CallInterrupted
from tunewire.runtime.signals import INTERRUPT_SIGNAL
from tunewire.wire.messages import Interrupt, expect

#: The module whose code calls the callable.
_CALLER = "tunewire.runtime.execute"


class Interrupts:
    """The handler, armed for one call at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._call_id: int | None = None
        #: Whether the call in hand was interrupted.
        self.interrupted = False
        #: Whether it was importing something at that moment.
        self.in_import = False
        self._missed = False
        self._held = False
        self._taking = False
        self._cancel: Callable[[], None] | None = None
        signal.signal(INTERRUPT_SIGNAL, self._on_signal)

    def arm(self, call_id: int) -> None:
        """From here to `disarm` an interrupt for this call is raised; now, if it came a little earlier."""
        self.interrupted = self.in_import = False
        self._call_id = call_id
        if self._missed:
            self._missed = False
            self._take(None)

    def cancel_with(self, cancel: Callable[[], None] | None) -> None:
        """Call this instead of raising, while a coroutine runs."""
        self._cancel = cancel

    def disarm(self) -> None:
        """Nothing is raised any more."""
        self._call_id = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """On the main thread: one that comes meanwhile is raised at the end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._missed and self._call_id is not None:
            self._missed = False
            self._take(sys._getframe(3))

    def raise_if_swallowed(self) -> None:
        """The callable has returned. If it swallowed an interrupt, nobody waits for its value."""
        if self.interrupted:
            raise CallInterrupted

    def _on_signal(self, _number: int, running: FrameType | None) -> None:
        if self._call_id is None or self._held:
            self._missed = True
        else:
            self._take(running)

    def _take(self, running: FrameType | None) -> None:
        """Read the frame that came with a signal, if it is still there, and do what it says to what is running.

        A second signal may come while the first one's frame is being read, and must not read in the middle of it.
        """
        if self._taking or not self._channel.has_input():
            return
        self._taking = True
        try:
            frame = self._channel.read()
        finally:
            self._taking = False
        if frame is None:
            return  # the parent has gone; the loop will see it
        message = expect(frame, Interrupt)
        if frame.call_id != self._call_id:
            return
        self._call_id = None
        context.current_call().cancel()
        if not message.raises:
            return
        self.interrupted = True
        if self._cancel is not None:
            self._cancel()
        else:
            self.in_import = _is_importing(running)
            raise CallInterrupted


def _is_importing(running: FrameType | None) -> bool:
    """Whether the callable was importing something. Above it there always is an import: the runtime's own."""
    while running is not None and running.f_globals.get("__name__") != _CALLER:
        if running.f_code.co_filename.startswith("<frozen importlib."):
            return True
        running = running.f_back
    return False
