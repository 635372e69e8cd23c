"""What a pool is made with."""

from __future__ import annotations


def best_devices(available: tuple[str, ...]) -> tuple[str, ...]:
    """Of all devices those that `devices="auto"` takes: the GPUs, or else OpenCL's, or else the CPU.

    >>> best_devices(("cpu", "opencl:0", "cuda:0", "cuda:1"))
    ('cuda:0', 'cuda:1')
    """
    for kind in ("cuda:", "opencl:"):
        chosen = tuple(device for device in available if device.startswith(kind))
        if chosen:
            return chosen
    return ("cpu",)
