"""One worker kept honest: the lifecycle as a table, its driver, and what becomes of a call."""

from tunewire.workers.events import WorkerEvent
from tunewire.workers.ladder import Ladder
from tunewire.workers.limits import Limits
from tunewire.workers.outcome import Outcome, OutcomeKind
from tunewire.workers.postmortem import Postmortem
from tunewire.workers.recycle import Recycle
from tunewire.workers.reports import CallLog, CallPhase, CallReport

__all__ = [
    "CallLog",
    "CallPhase",
    "CallReport",
    "Ladder",
    "Limits",
    "Outcome",
    "OutcomeKind",
    "Postmortem",
    "Recycle",
    "WorkerEvent",
]
