"""A virtual clock: an event loop on which timeouts of minutes pass in microseconds.

The loop's time stands still while anything can run, and jumps to the next timer when nothing can. So what is measured
with `loop.time()` is exact and the same in each run, and a test that waits an hour takes no longer than one that does
not. Nothing global is touched: no policy, no patched module; `time.monotonic` goes on as ever.

What it refuses to know is the world outside. A descriptor, a process or a thread has a time of its own, and the loop
would jump over timers while they work: a test that passes here would say nothing. Each of them is a RuntimeError at
once. And where a real loop would wait for ever (nothing can run, no timer is set) it raises, and says so.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from typing import Any, NoReturn

#: Of the clock that asyncio thinks it has, in seconds.
_RESOLUTION = time.get_clock_info("monotonic").resolution
_REAL = "of the real world, which has a time of its own: use fakes, or a loop with a real clock"


class _Idle(selectors.SelectSelector):
    """Waits by passing virtual time. It knows one descriptor, by which the loop wakes itself."""

    def __init__(self, elapse: Callable[[float], None]) -> None:
        super().__init__()
        self._elapse = elapse
        self._refused: RuntimeError | None = None

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.get_map():
            # Some transports register in a callback, where an exception would only be logged; so it is raised again.
            self._refused = RuntimeError(f"a virtual loop watches no descriptor; {fileobj!r} is {_REAL}")
            raise self._refused
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            raise refused
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise RuntimeError(
                "every task waits for something that cannot come: nothing is ready and no timer is set"
            )
        self._elapse(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0.0 and passes only when nothing can run.

    RuntimeError for descriptors, processes and threads, and where it would wait for ever.

    >>> async def main():
    ...     await asyncio.sleep(3600.0)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(main())
    3600.0
    """

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_Idle(self._elapse))

    def _elapse(self, seconds: float) -> None:
        self._now += seconds
        if self._now + _RESOLUTION == self._now:
            # asyncio fires timers that are due before now plus the clock's resolution. After half a year that sum is now
            # itself, and a timer for this moment would be waited for without end.
            self._now = math.nextafter(self._now, math.inf)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeError(f"a virtual loop has no {what}, {_REAL}")

    async def connect_read_pipe(self, *_args: Any, **_options: Any) -> Any:
        """Refused."""
        self._refuse("pipes")

    async def connect_write_pipe(self, *_args: Any, **_options: Any) -> Any:
        """Refused."""
        self._refuse("pipes")

    async def subprocess_exec(self, *_args: Any, **_options: Any) -> Any:
        """Refused."""
        self._refuse("processes")

    async def subprocess_shell(self, *_args: Any, **_options: Any) -> Any:
        """Refused."""
        self._refuse("processes")

    def run_in_executor(self, *_args: Any, **_options: Any) -> Any:  # type: ignore[override]  # never returns
        """Refused."""
        self._refuse("threads")


def virtual_loop(*, debug: bool | None = None) -> asyncio.Runner:
    """A runner on a new `VirtualLoop`; a context manager, as every asyncio.Runner is.

    >>> async def main():
    ...     async with asyncio.timeout(300.0):
    ...         await asyncio.sleep(10_000.0)
    >>> with virtual_loop() as runner:
    ...     runner.run(main())
    Traceback (most recent call last):
    TimeoutError
    """
    return asyncio.Runner(debug=debug, loop_factory=VirtualLoop)
