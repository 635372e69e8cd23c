"""What a running call may say about itself to the process that awaits it."""

from __future__ import annotations

from collections.abc import Callable

from tunewire.wire.phases import next_phases


class CurrentCall:
    """The call that runs in this process, as its own code sees it.

    >>> from tunewire.runtime import current_call
    >>> current_call().phase
    'run'
    """

    def __init__(self, phase: str, announce: Callable[[str], None] | None = None) -> None:
        self._phase = phase
        self._announce = announce

    @property
    def phase(self) -> str:
        """The phase that the call is in: compile, check or run."""
        return self._phase

    def end(self) -> None:
        """The runtime's: what the call left running has nothing to announce any more."""
        self._announce = None

    def enter(self, phase: str) -> None:
        """Begin the next phase: from now on its limit counts, and a timeout or crash names it.

        Phases go forward only: compile, check, run. ValueError for any other step. Outside of a worker (a function
        under test, called directly) there is no limit to restart and nothing happens.
        """
        if self._announce is None or phase == self._phase:
            return
        if phase not in next_phases(self._phase):
            raise ValueError(
                f"a call goes from {self._phase!r} to one of {next_phases(self._phase)}, not {phase!r}"
            )
        self._phase = phase
        self._announce(phase)


_outside = CurrentCall("run")
_current = _outside


def current_call() -> CurrentCall:
    """The call that is running in this process; outside of a worker a stand-in whose methods do nothing.

    >>> def compile_and_run(source):
    ...     program = compile(source, "kernel", "eval")
    ...     current_call().enter("run")
    ...     return eval(program)
    >>> compile_and_run("6 * 7")
    42
    """
    return _current


def begin(phase: str, announce: Callable[[str], None]) -> None:
    """The runtime's: a call begins."""
    global _current  # one call at a time is what a worker process is
    _current = CurrentCall(phase, announce)


def end() -> None:
    """The runtime's: the call has ended; what it left running finds no call."""
    global _current
    _current.end()
    _current = _outside
