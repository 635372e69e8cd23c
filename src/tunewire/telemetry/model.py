"""What telemetry knows, as values: the same on the wire, in a file and in Python."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of a program: its name behind those that it is nested in, and what its caller said of it.

    >>> Scope("step/forward", {"backend": "triton"}).path
    'step/forward'
    """

    path: str
    labels: Mapping[str, str] = {}

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What makes it the same as another one."""
        return self.path, tuple(sorted(self.labels.items()))


class ScopeChanges(msgspec.Struct, frozen=True):
    """What has changed since one side told the other last. `passed` were opened and closed since."""

    opened: tuple[Scope, ...] = ()
    closed: tuple[Scope, ...] = ()
    passed: tuple[Scope, ...] = ()


class HostReadings(msgspec.Struct, frozen=True, kw_only=True):
    """The host. `cpu_percent` is the use of all its cores together since the row before; None in a row that has none, or
    none that is near enough.

    >>> HostReadings(memory_used_bytes=1 << 30, memory_available_bytes=3 << 30, memory_total_bytes=4 << 30).cpu_percent
    """

    cpu_percent: float | None = None
    memory_used_bytes: int
    memory_available_bytes: int
    memory_total_bytes: int


class DeviceReadings(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, or one MIG instance of one. None where the driver does not say.

    `index` is the driver's (NVML's) number of the GPU. `id` is what this package calls it ("cuda:1"), which counts what
    CUDA_VISIBLE_DEVICES lets a process see; None where it is not certain.

    >>> DeviceReadings(uuid="GPU-8932f937", index=3, id="cuda:0", power_watts=312.5).utilization_percent is None
    True
    """

    uuid: str
    index: int | None = None
    id: str | None = None
    name: str | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_percent: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    clock_sm_mhz: float | None = None
    clock_memory_mhz: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One sample.

    `number` counts from 0, so that a gap shows what a reader missed. `seconds` are since telemetry was opened, `unix_time`
    is the wall clock's; both are of the moment before reading. `scopes` are the innermost ones that were open then, in the
    order of opening, and those that have been open since the row before and were too short for one of their own. `host`
    is None, and `devices` is empty, where they could not be read. `more` are the readings of providers of one's own, by
    their names.

    >>> row = Row(number=0, seconds=0.5, unix_time=1.7e9, scopes=(Scope("step/forward"),))
    >>> row.scope
    'step/forward'
    """

    number: int
    seconds: float
    unix_time: float
    scopes: tuple[Scope, ...]
    host: HostReadings | None = None
    devices: tuple[DeviceReadings, ...] = ()
    more: Mapping[str, Mapping[str, float | None]] = {}

    @property
    def scope(self) -> str:
        """The path of its scope; of several, the one that was opened last."""
        return self.scopes[-1].path if self.scopes else ""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was written: where, how many rows it has, and whether they are held no more.

    `dropped` is how many rows, of all since telemetry was opened, found no room and are in no file; `notes` are what could
    not be read, and why.

    >>> Snapshot(path="rows.jsonl", rows=3, reset=True).dropped
    0
    """

    path: str
    rows: int
    reset: bool
    dropped: int = 0
    notes: tuple[str, ...] = ()
