"""What the process that samples offers. Its other side imports this, and nothing of what it is made of."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from tunewire.services import Service, method
from tunewire.telemetry.model import Row, ScopeChanges, Snapshot

#: Never imported where `Telemetry` is.
IMPLEMENTATION = "tunewire.telemetry.serving:TelemetryHere"


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How it samples: each `interval` seconds. `path` is where the rows go that are held at the end; without one they
    go to a file in `folder` whose name has the time."""

    interval: float
    path: str | None
    folder: str
    max_bytes: int
    providers: tuple[str, ...] = ()


class TelemetryService(Service):
    """Samples while a scope is open. What its methods do is said where they are implemented."""

    @method
    async def change(self, changes: ScopeChanges) -> None: ...

    @method
    async def rows(self) -> AsyncIterator[Row]: ...

    @method
    async def held(self) -> AsyncIterator[Row]: ...

    @method
    async def snapshot(self, path: str, reset: bool) -> Snapshot: ...

    @method
    async def finish(self) -> Snapshot | None: ...

    @method
    async def notes(self) -> tuple[str, ...]: ...
