"""What is known of a device, as values."""

from __future__ import annotations

import msgspec

from tunewire.devices.identifiers import Kind

__all__ = ["Build", "Device", "Discovery", "Problem", "Report"]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device. None where its driver does not tell.

    `id` is what a pool or a benchmark is given. `compute_units` are multiprocessors of a GPU, hardware
    threads of a CPU. `compute_capability` is CUDA's, such as "9.0". `uuid` is CUDA's too, in the form in
    which CUDA_VISIBLE_DEVICES takes it.

    `problem` is why an OpenCL device is of no use: what its compiler said of a trivial program, in one line. None where it
    built that, where it was not asked in time, and for other kinds.

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
    problem: str | None = None


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


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trivial program on one device: None where it was built."""

    problem: str | None = None
