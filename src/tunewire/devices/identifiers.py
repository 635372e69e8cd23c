"""Device ids: "cpu", "opencl:N", "cuda:N".

The N of an OpenCL id counts the devices of all platforms, in the order of the platforms and of each one's
devices. The N of a CUDA id counts the devices that the parent process may see, so it is relative to the
parent's own CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from tunewire.errors import NoSuchDevice

__all__ = ["PINNED", "DeviceId", "Kind", "local_index", "parse"]

Kind = Literal["cpu", "opencl", "cuda"]

#: The environment variable that tells a worker process which device it was pinned to.
PINNED = "TUNEWIRE_DEVICE"

_INDEXED = re.compile(r"(opencl|cuda):(0|[1-9][0-9]{0,5})")


class DeviceId(NamedTuple):
    """A device id in parts; `number` is 0 for the CPU.

    >>> DeviceId("opencl", 0)
    DeviceId(kind='opencl', number=0)
    """

    kind: Kind
    number: int


def parse(device: str) -> DeviceId:
    """The parts of a device id; NoSuchDevice for anything else.

    >>> parse("cuda:1")
    DeviceId(kind='cuda', number=1)
    """
    if device == "cpu":
        return DeviceId("cpu", 0)
    match = _INDEXED.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise NoSuchDevice(device=device, reason="a device is named 'cpu', 'opencl:N' or 'cuda:N'")
    return DeviceId(cast(Kind, match[1]), int(match[2]))


def local_index(device: str, environ: Mapping[str, str]) -> int:
    """The index under which this process, whose environment is `environ`, sees `device`.

    A process that was pinned to a CUDA device sees that one alone, as its first. NoSuchDevice where it was
    pinned to another.

    >>> local_index("cuda:1", {}), local_index("cuda:1", {"TUNEWIRE_DEVICE": "cuda:1"})
    (1, 0)
    """
    kind, number = parse(device)
    pinned = environ.get(PINNED)
    if kind != "cuda" or pinned is None:
        return number
    if pinned != device:
        raise NoSuchDevice(
            device=device, available=[pinned], reason="this process was started for another device"
        )
    return 0
