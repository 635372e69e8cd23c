"""`python -m tunewire.devices.probe KIND`: a process that looks for devices of one kind, reports, and ends.

It exists to be lost. Loading a vendor's driver can crash, hang or leave a context behind, so this happens
here and never in the process that asks. What it sends is a `Report`; what it cannot send, its exit says.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from tunewire.devices.model import Device, Report

__all__ = ["cuda", "opencl", "opencl_devices"]

# cudaErrorInsufficientDriver, which is also what is said where there is no driver at all, and
# cudaErrorNoDevice.
_DRIVER_TOO_OLD_OR_ABSENT = 35
_NO_DEVICE = 100
_UUID_BYTES = 16


def opencl_devices() -> tuple[list[Any], list[str]]:
    """Each OpenCL device of each platform, as PyOpenCL's objects, in the order in which "opencl:N" counts
    them; and what is wrong with platforms that have none to show. ImportError where PyOpenCL is not
    installed.
    """
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
            driver=f"{device.platform.name} {device.driver_version}",
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

    asyncio.run(_tell(sys.argv[1]))


async def _tell(kind: str) -> None:
    # A worker, which asks for `opencl_devices`, needs none of asyncio.
    from tunewire.endpoints import ChildEndpoint

    async with ChildEndpoint() as parent:
        await parent.send(PROBES[kind]())
