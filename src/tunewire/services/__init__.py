"""Typed services: a class whose annotated async methods are the schema, implemented in a process of its own."""

from __future__ import annotations

from tunewire.lazy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.services.client import ServiceConnection as ServiceConnection
    from tunewire.services.client import connect as connect
    from tunewire.services.definition import Service as Service
    from tunewire.services.definition import method as method

_HOMES = {
    "Service": "definition",
    "ServiceConnection": "client",
    "connect": "client",
    "method": "definition",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = attach(__name__, _HOMES)
