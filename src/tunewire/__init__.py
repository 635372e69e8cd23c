"""tunewire: awaitable calls into supervised worker processes, and trustworthy kernel tuning on top of them.

>>> import asyncio
>>> from tunewire import Pool
>>> async def main():
...     async with Pool(2) as pool:
...         return await pool.call(sum, [1, 2, 3], timeout=5.0)
>>> asyncio.run(main())
6

Importing this package imports none of its parts: a name is loaded when it is first used, so that a worker process,
which imports `tunewire.runtime`, does not pay for asyncio, and a program that only calls does not pay for numpy.
"""

from __future__ import annotations

from tunewire.lazy import attach
from tunewire.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.bench import Array as Array
    from tunewire.bench import CFunction as CFunction
    from tunewire.bench import Measurement as Measurement
    from tunewire.bench import RawKernel as RawKernel
    from tunewire.bench import Scalar as Scalar
    from tunewire.bench import Work as Work
    from tunewire.bench import benchmark as benchmark
    from tunewire.bench import benchmark_outcome as benchmark_outcome
    from tunewire.endpoints import ChildEndpoint as ChildEndpoint
    from tunewire.endpoints import EndpointStatistics as EndpointStatistics
    from tunewire.endpoints import ParentEndpoint as ParentEndpoint
    from tunewire.pool import CallStream as CallStream
    from tunewire.pool import LeasedWorker as LeasedWorker
    from tunewire.pool import MapOutcomes as MapOutcomes
    from tunewire.pool import MapResults as MapResults
    from tunewire.pool import Pool as Pool
    from tunewire.pool import PoolStatistics as PoolStatistics
    from tunewire.pool import Worker as Worker
    from tunewire.pool import WorkerStatistics as WorkerStatistics
    from tunewire.runtime import current_call as current_call
    from tunewire.services import Service as Service
    from tunewire.services import ServiceConnection as ServiceConnection
    from tunewire.services import connect as connect
    from tunewire.services import method as method
    from tunewire.telemetry import Telemetry as Telemetry
    from tunewire.workers import CallLog as CallLog
    from tunewire.workers import CallPhase as CallPhase
    from tunewire.workers import CallReport as CallReport
    from tunewire.workers import Ladder as Ladder
    from tunewire.workers import Limits as Limits
    from tunewire.workers import Outcome as Outcome
    from tunewire.workers import OutcomeKind as OutcomeKind
    from tunewire.workers import Postmortem as Postmortem
    from tunewire.workers import Recycle as Recycle
    from tunewire.workers import WorkerEvent as WorkerEvent

_HOMES = {
    "Array": "bench",
    "CFunction": "bench",
    "CallLog": "workers",
    "CallPhase": "workers",
    "CallReport": "workers",
    "CallStream": "pool",
    "ChildEndpoint": "endpoints",
    "EndpointStatistics": "endpoints",
    "LeasedWorker": "pool",
    "Limits": "workers",
    "WorkerEvent": "workers",
    "Recycle": "workers",
    "Postmortem": "workers",
    "Ladder": "workers",
    "MapOutcomes": "pool",
    "MapResults": "pool",
    "Measurement": "bench",
    "Outcome": "workers",
    "OutcomeKind": "workers",
    "ParentEndpoint": "endpoints",
    "Pool": "pool",
    "PoolStatistics": "pool",
    "RawKernel": "bench",
    "Scalar": "bench",
    "Service": "services",
    "ServiceConnection": "services",
    "Telemetry": "telemetry",
    "Work": "bench",
    "Worker": "pool",
    "WorkerStatistics": "pool",
    "benchmark": "bench",
    "benchmark_outcome": "bench",
    "connect": "services",
    "current_call": "runtime",
    "method": "services",
}

__all__ = ["__version__", *_HOMES]
__getattr__, __dir__ = attach(__name__, _HOMES)
