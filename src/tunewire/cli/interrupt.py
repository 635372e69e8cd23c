"""Ctrl-C and SIGTERM as a cancellation: the command leaves its blocks in order, and keeps what it has.

The first signal cancels the task; the second meets Python's own handlers again, so that a command that is slow to
leave can still be ended. (asyncio's own handling of SIGINT cancels the task too, but does not say why, and knows
nothing of SIGTERM.)
"""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

__all__ = ["Interruptible"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruptible:
    """A block that the first SIGINT or SIGTERM cancels, and that then ends quietly; `signal` is which one came.

    Enter it in the task that is to be cancelled.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        for each in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(each, self._interrupt, each)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._restore()
        task, self._task = self._task, None
        if task is None or self.signal is None or not isinstance(error, asyncio.CancelledError):
            return False
        task.uncancel()
        return True

    def _interrupt(self, which: signal.Signals) -> None:
        if self._task is None:
            return  # the signal came in the last moment of the block, and the loop told it after
        self._restore()
        self.signal = which
        self._task.cancel()

    def _restore(self) -> None:
        for each in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(each)
