"""What is known of a device, as values."""

from __future__ import annotations

import msgspec

from tunewire.devices.identifiers import Kind

__all__ = ["Device", "Discovery", "Problem", "Report"]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device. None where its driver does not tell.

    `id` is what a pool or a benchmark is given. `compute_units` are multiprocessors of a GPU, hardware
    threads of a CPU. `compute_capability` is CUDA's, such as "9.0". `uuid` is CUDA's too, in the form in
    which CUDA_VISIBLE_DEVICES takes it.

    >>> Device(id="cpu", kind="cpu", name="a processor").uuid is None
    True
    """

    id: str
    kind: Kind
    name: str
    vendor: str | None = None
    memory_bytes: int | None = None
    compute_units: int | None = None
    driver: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why devices of one kind could not be looked for, or not all of them: one sentence.

    >>> Problem(kind="cuda", reason="no NVIDIA driver").kind
    'cuda'
    """

    kind: Kind
    reason: str


class Discovery(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that were found, in the order cpu, opencl, cuda, each kind by its number; and what went
    wrong.

    >>> Discovery(devices=(Device(id="cpu", kind="cpu", name="a processor"),)).problems
    ()
    """

    devices: tuple[Device, ...] = ()
    problems: tuple[Problem, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found, and what kept it from finding more."""

    devices: tuple[Device, ...] = ()
    problem: str | None = None
