"""What a callable may know of soft interrupts (see runtime.interrupt for how they come about)."""

from __future__ import annotations

from collections.abc import Callable

_checks: list[Callable[[], bool]] = []


class CallInterrupted(BaseException):
    """Raised in a callable whose caller has gone or whose time is up. Clean up and let it pass; a callable that goes on
    is killed.

    >>> issubclass(CallInterrupted, Exception)
    False
    """


def check_after_interrupt(check: Callable[[], bool]) -> None:
    """Have `check` called after each interrupt in this process: whether what it holds of a device still works.

    >>> check_after_interrupt(lambda: True)
    """
    _checks.append(check)


def still_good() -> bool:
    """Whether every registered check passes; one that raises does not."""
    try:
        return all(check() for check in _checks)
    except Exception:  # noqa: BLE001 — a broken context raises whatever its library likes
        return False
