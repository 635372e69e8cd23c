"""Framed, full-duplex connections between this process and its children."""

from __future__ import annotations

from tunewire.lazy import attach

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tunewire.endpoints.child import ChildEndpoint as ChildEndpoint
    from tunewire.endpoints.parent import EndpointStatistics as EndpointStatistics
    from tunewire.endpoints.parent import ParentEndpoint as ParentEndpoint

_HOMES = {"ChildEndpoint": "child", "EndpointStatistics": "parent", "ParentEndpoint": "parent"}

__all__ = [*_HOMES]
__getattr__, __dir__ = attach(__name__, _HOMES)
