"""Workers, a bounded queue, and the rules that match calls to workers."""

from tunewire.pool.driver import Pool
from tunewire.pool.lease import LeasedWorker
from tunewire.pool.results import MapOutcomes, MapResults
from tunewire.pool.statistics import PoolStatistics, WorkerStatistics
from tunewire.pool.worker import Worker

__all__ = [
    "LeasedWorker",
    "MapOutcomes",
    "MapResults",
    "Pool",
    "PoolStatistics",
    "Worker",
    "WorkerStatistics",
]
