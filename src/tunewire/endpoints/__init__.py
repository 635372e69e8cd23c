"""Framed, full-duplex connections between this process and its children."""

from tunewire.endpoints.child import ChildEndpoint
from tunewire.endpoints.parent import EndpointStatistics, ParentEndpoint

__all__ = ["ChildEndpoint", "EndpointStatistics", "ParentEndpoint"]
