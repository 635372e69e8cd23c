"""One worker kept honest: the lifecycle as a table, its driver, and what becomes of a call."""

from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome, OutcomeKind

__all__ = ["Limits", "Outcome", "OutcomeKind"]
