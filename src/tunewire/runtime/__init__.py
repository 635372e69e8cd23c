"""What runs inside a worker process: `python -m tunewire.runtime`.

A call's own code finds itself through `current_call()`:

>>> from tunewire.runtime import current_call
>>> current_call().enter("check")  # outside of a worker: nothing to do
"""

from tunewire.runtime.context import CurrentCall, current_call
from tunewire.runtime.interruption import CallInterrupted, check_after_interrupt

__all__ = ["CallInterrupted", "CurrentCall", "check_after_interrupt", "current_call"]
