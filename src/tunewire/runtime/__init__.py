"""What runs inside a worker process: `python -m tunewire.runtime`.

A call's own code finds itself through `current_call()`:

>>> from tunewire.runtime import current_call
>>> current_call().enter("check")  # outside of a worker: nothing to do
"""

from tunewire.runtime.context import CurrentCall, current_call

__all__ = ["CurrentCall", "current_call"]
