"""What a pool is made with, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any, TypeAlias

#: Where a process's output is copied to: a descriptor or an open file.
Sink: TypeAlias = int | IO[Any] | None


def descriptor_of(sink: Sink) -> int | None:
    """The descriptor of a file that output is copied to."""
    return sink if sink is None or isinstance(sink, int) else sink.fileno()


def checked_environment(env: Mapping[str, str | None]) -> dict[str, str | None]:
    """`env` if a process can have it; TypeError or ValueError that names the variable."""
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise TypeError(f"env maps names to text or None, not {name!r} to {value!r}")
        if not name or "=" in name or "\0" in name or "\0" in (value or ""):
            raise ValueError(f"no process can have the variable {name!r} with the value {value!r}")
        try:
            os.fsencode(name + (value or ""))
        except UnicodeEncodeError as error:
            raise ValueError(f"no process can have the variable {name!r} with the value {value!r}") from error
    return dict(env)


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
