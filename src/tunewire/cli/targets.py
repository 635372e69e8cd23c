"""Which kernel is measured where: the devices that were asked for, or the ones that suit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tunewire.bench import RawKernel
from tunewire.cli.exits import BadInput
from tunewire.devices import Device, Discovery, discover
from tunewire.errors import BrokenCompiler

__all__ = ["Target", "find_target"]


class Target(msgspec.Struct, frozen=True):
    """A kernel, and the devices to measure it on: at least one, all of the kernel's language."""

    kernel: RawKernel
    devices: tuple[Device, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The devices' ids."""
        return tuple(device.id for device in self.devices)

    def __str__(self) -> str:
        names = sorted({device.name for device in self.devices})
        return f"{self.kernel.title} ({self.kernel.language}) on {', '.join(self.ids)} ({', '.join(names)})"


async def find_target(kernels: Sequence[RawKernel], wanted: Sequence[str]) -> Target:
    """The first of `kernels` (one in several languages) that runs on all the devices in `wanted`, or on any there is.

    Without `wanted`: on the first device of the kernel's language that can build something and those of the same name, so
    that times from all of them compare. BadInput where there is none; BrokenCompiler where there is, and none can build
    anything, or one in `wanted` cannot.
    """
    found = await discover()
    if wanted:
        return _target_on([_device(name, found) for name in dict.fromkeys(wanted)], kernels)
    suitable = {each.language: [d for d in found.devices if d.kind == each.language] for each in kernels}
    for kernel in kernels:
        if working := [device for device in suitable[kernel.language] if device.problem is None]:
            return Target(kernel, tuple(each for each in working if each.name == working[0].name))
    for devices in suitable.values():
        _refuse_broken(devices)
    languages = [kernel.language for kernel in kernels]
    problems = "".join(f"; {each.kind}: {each.reason}" for each in found.problems if each.kind in languages)
    raise BadInput(
        f"{_written(kernels)}, and there is no such device (there is: {_ids(found.devices)}){problems}"
    )


def _target_on(devices: Sequence[Device], kernels: Sequence[RawKernel]) -> Target:
    for kernel in kernels:
        if all(device.kind == kernel.language for device in devices):
            _refuse_broken(devices)
            return Target(kernel, tuple(devices))
    raise BadInput(f"--device: {_written(kernels)}, which does not run on {_ids(devices)}")


def _refuse_broken(devices: Sequence[Device]) -> None:
    for device in devices:
        if device.problem is not None:
            raise BrokenCompiler(
                device=device.id, reason=device.problem, name=device.name, driver=device.driver
            )


def _device(name: str, found: Discovery) -> Device:
    for device in found.devices:
        if device.id == name:
            return device
    raise BadInput(f"--device: there is no device {name!r} (there is: {_ids(found.devices)})")


def _written(kernels: Sequence[RawKernel]) -> str:
    return f"{kernels[0].title!r} is written in {' and '.join(kernel.language for kernel in kernels)}"


def _ids(devices: Sequence[Device]) -> str:
    return ", ".join(device.id for device in devices)
