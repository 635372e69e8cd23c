"""What runs inside a worker process: `python -m tunewire.runtime`.

A call's own code finds itself through `current_call()`:

>>> from tunewire.runtime import current_call
>>> current_call().enter("check")  # outside of a worker: nothing to do
"""

from __future__ import annotations

from tunewire.lazy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.runtime.context import CurrentCall as CurrentCall
    from tunewire.runtime.context import current_call as current_call
    from tunewire.runtime.interruption import CallInterrupted as CallInterrupted
    from tunewire.runtime.interruption import check_after_interrupt as check_after_interrupt

_HOMES = {
    "CallInterrupted": "interruption",
    "CurrentCall": "context",
    "check_after_interrupt": "interruption",
    "current_call": "context",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = attach(__name__, _HOMES)
