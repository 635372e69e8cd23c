"""How a worker process comes to see one device: an environment that is in place before it imports anything.

A mask is relative to the parent's own. CUDA_VISIBLE_DEVICES="2,0" means that this process's cuda:0 is what
its driver calls 2; so the child for cuda:0 gets "2", not "0". The entries stay opaque (an index, a GPU's
uuid, a MIG instance's uuid, each possibly abbreviated) and are handed on as they are written: an index means
the same in the child, because CUDA_DEVICE_ORDER is inherited too. Nothing is looked up, so an entry for a
device which does not exist is found out by the child's driver, not here.

CUDA itself ends the list at the first entry that it does not understand, which turns a typing error into "no
device". Here only what CUDA documents as an end (-1, and nothing at all) is one; anything else is an error
that quotes the mask.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tunewire.devices.identifiers import PINNED, parse
from tunewire.errors import NoSuchDevice

__all__ = ["CUDA_MASK", "environment_for", "visible_cuda"]

CUDA_MASK = "CUDA_VISIBLE_DEVICES"

_ENTRY = re.compile(
    r"""
    [0-9]{1,6}                                  # an index
    | GPU-[0-9a-f-]+                            # a GPU's uuid, or its beginning
    | MIG-[0-9a-f-]+                            # a MIG instance's uuid, or its beginning
    | MIG-GPU-[0-9a-f-]+/[0-9]{1,3}/[0-9]{1,3}  # a MIG instance, as drivers before 470 name it
    """,
    re.VERBOSE | re.IGNORECASE,
)
#: What Slurm writes for a job without GPUs.
_NONE = "NoDevFiles"


def visible_cuda(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """The entries of this environment's CUDA mask, in order; None where there is no mask, () where it hides
    all.

    NoSuchDevice, which quotes the mask, for an entry that is none, and for a device that is named twice.

    >>> visible_cuda({"CUDA_VISIBLE_DEVICES": "1, 0"})
    ('1', '0')
    """
    mask = environ.get(CUDA_MASK)
    if mask is None:
        return None
    if mask.strip() in ("", _NONE):
        return ()
    entries: list[str] = []
    for entry in (part.strip() for part in mask.split(",")):
        if entry == "-1":
            break
        if not _ENTRY.fullmatch(entry):
            raise _mask_error(mask, f"{entry!r} is neither an index nor the uuid of a GPU or MIG instance")
        if _normal(entry) in map(_normal, entries):
            raise _mask_error(mask, f"it names {entry!r} twice")
        entries.append(entry)
    return tuple(entries)


def _normal(entry: str) -> str:
    return str(int(entry)) if entry.isdecimal() else entry.lower()


def _mask_error(mask: str, reason: str) -> NoSuchDevice:
    return NoSuchDevice(device="cuda", reason=f"{CUDA_MASK} is {mask!r}: {reason}")


def environment_for(device: str, environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """What to lay over the environment `environ` (this process's by default) for a process that is pinned to
    `device`; a value of None removes the variable.

    A process for "cuda:N" sees that GPU alone. One for "cpu" or "opencl:N" sees what its parent sees: OpenCL
    has no mask that all drivers know, so the number says which device is meant.

    NoSuchDevice for what is no device id, for a CUDA device that the mask hides, and for a mask that is none.

    >>> environment_for("cuda:1", {"CUDA_VISIBLE_DEVICES": "2,0"})
    {'TUNEWIRE_DEVICE': 'cuda:1', 'CUDA_VISIBLE_DEVICES': '0'}
    """
    environ = os.environ if environ is None else environ
    kind, number = parse(device)
    environment: dict[str, str | None] = {PINNED: device}
    if kind == "cuda":
        environment[CUDA_MASK] = _entry(device, number, environ)
    return environment


def _entry(device: str, number: int, environ: Mapping[str, str]) -> str:
    entries = visible_cuda(environ)
    if entries is None:
        return str(number)
    if number >= len(entries):
        hidden = f"{CUDA_MASK} is {environ[CUDA_MASK]!r}"
        available = [f"cuda:{n}" for n in range(len(entries))]
        raise NoSuchDevice(device=device, available=available, reason=hidden)
    return entries[number]
