"""Ctrl-C, SIGTERM and SIGHUP as a cancellation: the command leaves its blocks in order, and keeps what it has.

The first signal cancels the task. The event loop may be busy at that moment (a space that is counted, a user's own
restriction), and then hears nothing: so an alarm follows, and if the block has not been left by then, KeyboardInterrupt
is raised wherever the main thread is. A second signal does the same at once. (asyncio's own handling of SIGINT cancels
the task too, but does not say why, waits for the loop, and knows nothing of the other two.)
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

__all__ = ["Interruptible", "run_interruptibly"]

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long the loop may take to hear of the signal.
PATIENCE = 0.3


class Interruptible:
    """A block that the first signal cancels, and that then ends quietly; `signal` is which one came.

    Enter it in the task that is to be cancelled, on the main thread. Where the loop was too busy to be told,
    KeyboardInterrupt leaves the loop, and `signal` says all the same which one came.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        for each in SIGNALS:
            self._before[each] = signal.signal(each, self._interrupt)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in self._before.items():
            signal.signal(each, handler)
        task, self._task = self._task, None
        if task is None or self.signal is None or not isinstance(error, asyncio.CancelledError):
            return False
        task.uncancel()
        return True

    def _interrupt(self, which: int, _frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(which)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)  # the loop has heard of it
        if self._task is not None:
            self._task.cancel()


def run_interruptibly(main: Coroutine[Any, Any, T], interruptible: Interruptible) -> T | None:
    """asyncio.run, which a signal may leave: then None, and `interruptible.signal` says which one."""
    try:
        return asyncio.run(main)
    except KeyboardInterrupt:
        if interruptible.signal is None:
            raise
        return None
