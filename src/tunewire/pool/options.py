"""What a pool is made with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunewire.devices import Device


def best_devices(available: Sequence[Device]) -> tuple[str, ...]:
    """The ids of those devices that `devices="auto"` takes: the GPUs, or else OpenCL's, or else the CPU.

    A device with a problem is left out where another of its kind has none. Where all of OpenCL's have one, they are
    taken still: a kernel is then told what is wrong with them, instead of that there is no such device.

    >>> from tunewire.devices import Device
    >>> broken = Device(id="opencl:0", kind="opencl", name="a CPU", problem="error: unknown target CPU")
    >>> working = Device(id="opencl:1", kind="opencl", name="a CPU")
    >>> best_devices([broken, working]), best_devices([broken])
    (('opencl:1',), ('opencl:0',))
    """
    for kind in ("cuda", "opencl"):
        of_kind = [device for device in available if device.kind == kind]
        if chosen := [device for device in of_kind if device.problem is None] or of_kind:
            return tuple(device.id for device in chosen)
    return ("cpu",)
