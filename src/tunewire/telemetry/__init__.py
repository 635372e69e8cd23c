"""Telemetry: what the host and its GPUs do while a piece of a program runs, sampled by a process of its own."""

from __future__ import annotations

from tunewire.lazy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.telemetry.client import Telemetry as Telemetry
    from tunewire.telemetry.model import DeviceReadings as DeviceReadings
    from tunewire.telemetry.model import HostReadings as HostReadings
    from tunewire.telemetry.model import Row as Row
    from tunewire.telemetry.model import Scope as Scope
    from tunewire.telemetry.model import Snapshot as Snapshot
    from tunewire.telemetry.store import read_rows as read_rows

_HOMES = {
    "DeviceReadings": "model",
    "HostReadings": "model",
    "Row": "model",
    "Scope": "model",
    "Snapshot": "model",
    "Telemetry": "client",
    "read_rows": "store",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
