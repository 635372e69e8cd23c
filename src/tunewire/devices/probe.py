"""`python -m tunewire.devices.probe KIND FIRST`: a process that looks for devices of one kind, reports, and ends.

It exists to be lost. Loading a vendor's driver can crash, hang or leave a context behind, so this happens
here and never in the process that asks. What it sends is a `Report`; what it cannot send, its exit says.

An OpenCL device may be there and of no use: the compiler is a part of its driver, and PoCL's knows only the
processors that its LLVM knows (on any newer one, each build ends with "unknown target CPU"). No property of a device
tells of it, so it is asked to build something. A `Build` follows the report for each device from the FIRST
on, in order; a compiler that takes this process with it is the one of the first device without a `Build`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from tunewire.devices.model import Build, Device, Report
from tunewire.errors import compiler_error

__all__ = ["build_problem", "cuda", "opencl", "opencl_devices", "opencl_driver"]

# cudaErrorInsufficientDriver, which is also what is said where there is no driver at all, and
# cudaErrorNoDevice.
_DRIVER_TOO_OLD_OR_ABSENT = 35
_NO_DEVICE = 100
_UUID_BYTES = 16
#: It writes to memory, so that there is code to be generated.
_TRIVIAL = "kernel void trivial(global int *x) { x[get_global_id(0)] = 1; }"


def opencl_devices() -> tuple[list[Any], list[str]]:
    """Each OpenCL device of each platform, as PyOpenCL's objects, in the order in which "opencl:N" counts
    them; and what is wrong with platforms that have none to show. ImportError where PyOpenCL is not
    installed.
    """
    # PyOpenCL reads this once, at its import: its own cache leaves a file behind for each build that fails.
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
    import pyopencl as cl

    devices: list[Any] = []
    problems: list[str] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return [], [f"no OpenCL platform: {error}"]
    for platform in platforms:
        try:
            devices.extend(platform.get_devices())
        except cl.Error as error:
            problems.append(f"platform {platform.name!r}: {error}")
    return devices, problems


def opencl_driver(device: Any) -> str:
    """Whose driver a device has, and which version of it."""
    return f"{device.platform.name} {device.driver_version}"


def build_problem(device: Any) -> str | None:
    """Have `device`, one of PyOpenCL's objects, build a trivial program in a context of its own: None where it does, else
    the line in which it says why not. Takes what the compiler takes: with PoCL some 0.1 s, and 1 s where nothing of
    LLVM is in memory.
    """
    import pyopencl as cl

    program = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program = cl.Program(cl.Context([device]), _TRIVIAL)
            program.build([], devices=[device])
    except cl.Error as error:
        log = "" if program is None else _build_log(program, device)
        return compiler_error(log or str(error))
    return None


def _build_log(program: Any, device: Any) -> str:
    import pyopencl as cl

    try:
        return str(program.get_build_info(device, cl.program_build_info.LOG)).strip()
    except cl.Error:
        return ""  # a driver without a compiler keeps no log; what it raised says enough


def opencl() -> Report:
    """What is known of each OpenCL device."""
    try:
        found, problems = opencl_devices()
    except ImportError as error:
        return Report(problem=f"PyOpenCL cannot be imported ({error}): pip install 'tunewire[opencl]'")
    devices = tuple(
        Device(
            id=f"opencl:{number}",
            kind="opencl",
            name=device.name,
            vendor=device.vendor,
            memory_bytes=device.global_mem_size,
            compute_units=device.max_compute_units,
            driver=opencl_driver(device),
        )
        for number, device in enumerate(found)
    )
    return Report(devices=devices, problem="; ".join(problems) or None)


def cuda() -> Report:
    """Each CUDA device that this process may see. Properties are read without making a context."""
    try:
        from cupy.cuda import runtime
    except ImportError as error:
        return Report(
            problem=f"CuPy cannot be imported ({error}): pip install 'tunewire[cuda12]' (or cuda13)"
        )
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _NO_DEVICE:
            return Report()
        if error.status == _DRIVER_TOO_OLD_OR_ABSENT:
            return Report(problem="no NVIDIA driver, or one that is too old for the CUDA runtime of CuPy")
        return Report(problem=str(error))
    version = runtime.driverGetVersion()
    driver = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return Report(
        devices=tuple(
            _cuda_device(number, runtime.getDeviceProperties(number), driver) for number in range(count)
        )
    )


def _cuda_device(number: int, properties: Mapping[str, Any], driver: str) -> Device:
    name = properties["name"].decode(errors="replace")
    return Device(
        id=f"cuda:{number}",
        kind="cuda",
        name=name,
        vendor="NVIDIA",
        memory_bytes=properties["totalGlobalMem"],
        compute_units=properties["multiProcessorCount"],
        driver=driver,
        uuid=_uuid(properties.get("uuid", b""), name),
        compute_capability=f"{properties['major']}.{properties['minor']}",
    )


def _uuid(raw: bytes, name: str) -> str | None:
    # CuPy reads the 16 bytes as a C string, which ends at a zero: then the rest is lost, and with it the
    # uuid.
    if len(raw) != _UUID_BYTES:
        return None
    return f"{'MIG' if ' MIG ' in name else 'GPU'}-{UUID(bytes=raw)}"


PROBES: Mapping[str, Callable[[], Report]] = {"opencl": opencl, "cuda": cuda}


def main() -> None:
    """Tell the parent what there is of the kind that the command line names."""
    import asyncio

    asyncio.run(_tell(sys.argv[1], int(sys.argv[2])))


async def _tell(kind: str, first: int) -> None:
    # A worker, which asks for `opencl_devices`, needs none of asyncio.
    from tunewire.endpoints import ChildEndpoint

    async with ChildEndpoint() as parent:
        report = PROBES[kind]()
        await parent.send(report)
        if kind == "opencl" and len(report.devices) > first:
            for device in opencl_devices()[0][first:]:
                # What is known reaches the parent, whatever the compiler does to this process.
                await parent.flush()
                await parent.send(Build(problem=build_problem(device)))
