"""Workers, a bounded queue, and the rules that match calls to workers."""

from __future__ import annotations

from tunewire.lazy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.pool.driver import Pool as Pool
    from tunewire.pool.lease import LeasedWorker as LeasedWorker
    from tunewire.pool.results import MapOutcomes as MapOutcomes
    from tunewire.pool.results import MapResults as MapResults
    from tunewire.pool.statistics import PoolStatistics as PoolStatistics
    from tunewire.pool.statistics import WorkerStatistics as WorkerStatistics
    from tunewire.pool.stream import CallStream as CallStream
    from tunewire.pool.worker import Worker as Worker

_HOMES = {
    "CallStream": "stream",
    "LeasedWorker": "lease",
    "MapOutcomes": "results",
    "MapResults": "results",
    "Pool": "driver",
    "PoolStatistics": "statistics",
    "Worker": "worker",
    "WorkerStatistics": "statistics",
}

__all__ = [*_HOMES]
__getattr__, __dir__ = attach(__name__, _HOMES)
