"""Devices: which there are, and how a worker is made to see one of them only.

>>> from tunewire.devices import environment_for
>>> environment_for("cuda:0", {"CUDA_VISIBLE_DEVICES": "GPU-8932f937"})["CUDA_VISIBLE_DEVICES"]
'GPU-8932f937'

`discover` is loaded when it is first used: a worker process needs the names of devices, and not the asyncio
of looking for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunewire.devices.identifiers import DeviceId, parse
from tunewire.devices.masks import environment_for
from tunewire.devices.model import Device, Discovery, Problem

if TYPE_CHECKING:
    from tunewire.devices.discovery import discover as discover

__all__ = ["Device", "DeviceId", "Discovery", "Problem", "discover", "environment_for", "parse"]


def __getattr__(name: str) -> Any:
    if name != "discover":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tunewire.devices.discovery import discover

    globals()[name] = discover
    return discover
