"""Which devices there are, found out without touching a driver in this process.

Each kind is looked for by a short-lived child of its own (`tunewire.devices.probe`), all at once: a driver
that crashes, hangs or raises costs its own kind, which is then a `Problem`, and nothing else. The child is
killed at the limit, and when the caller is cancelled. The CPU needs no driver and is always found.

OpenCL's child also has each device build a trivial program. A compiler that crashes there is its device's problem
alone: another child goes on with the next device. One that hangs until the limit leaves the devices after it unasked.

CUDA devices are numbered as this process may see them. A process sees at most one MIG instance, so where the
mask names several, each gets a child of its own.
"""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil

from tunewire.devices.identifiers import Kind
from tunewire.devices.masks import CUDA_MASK, visible_cuda
from tunewire.devices.model import Build, Device, Discovery, Problem, Report
from tunewire.endpoints import ParentEndpoint
from tunewire.endpoints.process import python_command, signal_name
from tunewire.errors import EndpointClosed, NoSuchDevice, TunewireError

__all__ = ["discover"]


class _Probe(NamedTuple):
    """One child to be: what it looks for, with which mask, and the number of the first device that it
    finds."""

    kind: Kind
    environ: Mapping[str, str]
    first: int = 0


async def discover(*, timeout: float = 20.0, environ: Mapping[str, str] | None = None) -> Discovery:
    """The devices of this machine that `environ` (this process's environment by default) lets a process see.

    Takes as long as the slowest kind, at most `timeout` seconds and the moment that killing takes. What keeps
    a kind from being looked for is a problem in the result and not an error; so is, of a device, a compiler that
    can build nothing. Cancelling kills the children.

    >>> import asyncio
    >>> asyncio.run(discover()).devices[0].id
    'cpu'
    """
    environ = dict(os.environ if environ is None else environ)
    try:
        cuda = list(_cuda_probes(environ))
        mask_problem: tuple[Problem, ...] = ()
    except NoSuchDevice as error:
        cuda = []
        mask_problem = (Problem(kind="cuda", reason=str(error)),)
    probes = [_Probe("opencl", environ), *cuda]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_report(probe, timeout)) for probe in probes]
    found = [_numbered(probe, task.result()) for probe, task in zip(probes, tasks, strict=True)]
    return Discovery(
        devices=(_cpu(), *(device for report in found for device in report.devices)),
        problems=mask_problem
        + tuple(
            Problem(kind=probe.kind, reason=report.problem)
            for probe, report in zip(probes, found, strict=True)
            if report.problem is not None
        ),
    )


def _cuda_probes(environ: Mapping[str, str]) -> Iterator[_Probe]:
    entries = visible_cuda(environ)
    if (
        entries is not None
        and len(entries) > 1
        and all(entry.upper().startswith("MIG-") for entry in entries)
    ):
        for number, entry in enumerate(entries):
            yield _Probe("cuda", {**environ, CUDA_MASK: entry}, number)
    elif entries != ():
        yield _Probe("cuda", environ)


def _numbered(probe: _Probe, report: Report) -> Report:
    if not probe.first:
        return report
    devices = tuple(
        msgspec.structs.replace(device, id=f"{probe.kind}:{number}")
        for number, device in enumerate(report.devices, start=probe.first)
    )
    return msgspec.structs.replace(report, devices=devices)


async def _report(probe: _Probe, timeout: float) -> Report:
    found = _Found()
    try:
        async with asyncio.timeout(timeout):
            while not found.complete:
                await _ask(probe, found, timeout)
    except TimeoutError:
        late = f"took longer than {timeout:g} s and was ended"
        if found.report is None:
            return Report(problem=f"looking for {probe.kind} devices {late}")
        found.builds.append(f"building a trivial program {late}")
    except EndpointClosed as error:
        return Report(problem=f"the process that looked for {probe.kind} devices {_end(error)}")
    except (TunewireError, msgspec.ValidationError) as error:
        return Report(problem=f"looking for {probe.kind} devices failed: {error}")
    return found.judged()


class _Found:
    """What one kind's children have told so far."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.builds: list[str | None] = []

    @property
    def complete(self) -> bool:
        """Whether every device that can be asked to build something has been."""
        return self.report is not None and len(self.builds) >= len(self._asked())

    def judged(self) -> Report:
        """The report, with each device's problem."""
        assert self.report is not None
        told = zip_longest(self.report.devices, self.builds[: len(self.report.devices)])
        devices = tuple(msgspec.structs.replace(device, problem=problem) for device, problem in told)
        return msgspec.structs.replace(self.report, devices=devices)

    def _asked(self) -> tuple[Device, ...]:
        assert self.report is not None
        return tuple(device for device in self.report.devices if device.kind == "opencl")


async def _ask(probe: _Probe, found: _Found, timeout: float) -> None:
    """Start a child, and take what it tells, to its end or to the end of what is asked."""
    first = str(len(found.builds))
    command = python_command("from tunewire.devices.probe import main; main()", probe.kind, first)
    child = await ParentEndpoint.spawn(command, env=probe.environ, start_timeout=timeout)
    async with child:
        found.report = msgspec.convert(await child.receive(), Report)
        while not found.complete:
            try:
                build = msgspec.convert(await child.receive(), Build)
            except EndpointClosed as error:
                found.builds.append(f"the process that built a trivial program {_end(error)}")
                return
            found.builds.append(build.problem)


def _end(error: EndpointClosed) -> str:
    name = signal_name(error.exit_code)
    how = f"was ended by {name}" if name else f"exited with code {error.exit_code}"
    lines = error.stderr.strip().splitlines()
    return f"{how}: {lines[-1]}" if lines else how


def _cpu() -> Device:
    return Device(
        id="cpu",
        kind="cpu",
        name=_processor_name() or platform.processor() or platform.machine(),
        memory_bytes=psutil.virtual_memory().total,
        compute_units=_usable_threads(),
    )


def _processor_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _usable_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
