"""Where readings come from: the host by psutil, NVIDIA's GPUs by NVML, and what a user adds.

A provider is an object with `read()`, which is called in a thread, never twice at once, and with `close()`. It raises
Unavailable where there is nothing of its kind to read here. What goes wrong with a part of its readings it leaves out, and
says so through `note`; what it raises costs its readings of one row.

GPUs are told apart by their uuids. NVML knows nothing of CUDA_VISIBLE_DEVICES and numbers all GPUs in the order of the bus.
CUDA counts what the mask shows, and an index in a mask is one of an order of CUDA's own, "fastest first" where
CUDA_DEVICE_ORDER does not say PCI_BUS_ID. The two orders are sure to be the same only where that is set, or where all
GPUs are of one kind. Where they may differ, and the mask has an index, every GPU is read, none gets an `id`, and a note
says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from tunewire.devices.masks import visible_cuda
from tunewire.errors import NoSuchDevice
from tunewire.telemetry.model import DeviceReadings, HostReadings

#: Told once of what cannot be read, with a level of logging.
Note = Callable[[int, str], None]


class Unavailable(Exception):
    """There is nothing of a provider's kind to read on this machine."""


class Closing(Protocol):
    """What every provider can do."""

    def close(self) -> None:
        """Let go of what it holds."""
        ...


class Provider(Closing, Protocol):
    """A user's own: named "module:Class", made without arguments in the process that samples."""

    def read(self) -> Mapping[str, float | None]:
        """What it reads, by name; None for what cannot be read now."""
        ...


class HostProvider:
    """The processor and the memory, as psutil knows them.

    >>> HostProvider().read(follows=False).memory_total_bytes > 0
    True
    """

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        self._before: tuple[float, float] | None = None

    def read(self, *, follows: bool) -> HostReadings:
        """`follows` says whether the time since the reading before belongs to what is sampled."""
        memory = self._psutil.virtual_memory()
        now = _busy_and_all(self._psutil.cpu_times())
        before, self._before = self._before, now
        return HostReadings(
            cpu_percent=_percent(before, now) if follows and before is not None else None,
            memory_used_bytes=memory.used,
            memory_available_bytes=memory.available,
            memory_total_bytes=memory.total,
        )

    def close(self) -> None:
        """It holds nothing."""


def _busy_and_all(times: Any) -> tuple[float, float]:
    spent = times._asdict()
    # Linux counts a guest's time in `user` and `nice` too.
    everything = sum(spent.values()) - spent.get("guest", 0.0) - spent.get("guest_nice", 0.0)
    return everything - spent["idle"] - spent.get("iowait", 0.0), everything


def _percent(before: tuple[float, float], now: tuple[float, float]) -> float | None:
    """None where the kernel's clock, of a hundred ticks in a second, has not moved."""
    busy, everything = (b - a for a, b in zip(before, now, strict=True))
    return min(max(100 * busy / everything, 0.0), 100.0) if everything > 0 else None


class _Gpu(msgspec.Struct, frozen=True):
    handle: Any
    uuid: str
    index: int | None
    name: str | None
    id: str | None = None


class NvmlProvider:
    """NVIDIA's GPUs that the mask in `environ` lets a process see, read through the module `nvml` (pynvml)."""

    def __init__(self, nvml: Any, environ: Mapping[str, str], note: Note) -> None:
        self._nvml = nvml
        self._note = note
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise Unavailable(f"no NVIDIA driver to ask: {error}") from error
        try:
            self._gpus = tuple(self._visible(environ))
        except BaseException:
            self.close()
            raise

    @classmethod
    def here(cls, environ: Mapping[str, str], note: Note) -> NvmlProvider:
        """For this machine; Unavailable without pynvml or a driver."""
        try:
            import pynvml
        except ImportError as error:
            raise Unavailable("no GPU is read, since pynvml is not installed (nvidia-ml-py)") from error
        return cls(pynvml, environ, note)

    def read(self) -> tuple[DeviceReadings, ...]:
        """Of each GPU, in the order of their ids; of one that is lost, its names and no reading."""
        return tuple(map(self._read, self._gpus))

    def close(self) -> None:
        """Let go of the driver."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError as error:
            self._note(logging.WARNING, f"NVML was not let go of: {error}")

    def _read(self, gpu: _Gpu) -> DeviceReadings:
        nvml, handle = self._nvml, gpu.handle

        def ask(function: Callable[..., Any], *args: Any) -> Any:
            return self._ask(gpu.uuid, function, handle, *args)

        memory = ask(nvml.nvmlDeviceGetMemoryInfo)
        use = ask(nvml.nvmlDeviceGetUtilizationRates)
        milliwatts = ask(nvml.nvmlDeviceGetPowerUsage)
        return DeviceReadings(
            uuid=gpu.uuid,
            index=gpu.index,
            id=gpu.id,
            name=gpu.name,
            memory_used_bytes=None if memory is None else memory.used,
            memory_free_bytes=None if memory is None else memory.free,
            memory_total_bytes=None if memory is None else memory.total,
            utilization_percent=None if use is None else use.gpu,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            temperature_celsius=ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            clock_sm_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            clock_memory_mhz=ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        )

    def _ask(self, who: str, function: Callable[..., Any], *args: Any) -> Any:
        """None for what the driver does not say; why is noted, unless that is a matter of the device's kind."""
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            if error.value not in (
                self._nvml.NVML_ERROR_NOT_SUPPORTED,
                self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
                self._nvml.NVML_ERROR_INVALID_ARGUMENT,  # what a MIG instance says of some
            ):
                self._note(logging.WARNING, f"{who}: {error}")
            return None

    # Which GPUs.

    def _visible(self, environ: Mapping[str, str]) -> Iterator[_Gpu]:
        gpus = list(self._gpus_there())
        instances = [instance for gpu in gpus for instance in self._instances(gpu)]
        try:
            entries = visible_cuda(environ)
        except NoSuchDevice as error:
            self._note(logging.WARNING, f"{error} All GPUs are read.")
            yield from (*gpus, *instances)
            return
        same_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1
        by_index = entries is None or any(entry.isdecimal() for entry in entries)
        if by_index and not same_order:
            self._note(
                logging.INFO,
                "the GPUs are of different kinds and CUDA_DEVICE_ORDER is not PCI_BUS_ID, so that CUDA's order is not "
                "known: all GPUs are read, and have no id",
            )
        if entries is None or (by_index and not same_order):
            # With instances, CUDA sees the first of them only, and counts differently.
            named = same_order and not instances
            yield from (replace(gpu, id=f"cuda:{gpu.index}") if named else gpu for gpu in gpus)
            yield from instances
            return
        for number, entry in enumerate(entries):
            gpu = self._named(entry, gpus, instances)
            if gpu is None:
                self._note(
                    logging.WARNING, f"CUDA_VISIBLE_DEVICES names {entry!r}, and NVML knows no such GPU"
                )
                return  # CUDA ends the list there too
            yield replace(gpu, id=f"cuda:{number}")

    @staticmethod
    def _named(entry: str, gpus: list[_Gpu], instances: list[_Gpu]) -> _Gpu | None:
        if entry.isdecimal():
            return next((gpu for gpu in gpus if gpu.index == int(entry)), None)
        found = [gpu for gpu in (*gpus, *instances) if gpu.uuid.lower().startswith(entry.lower())]
        return found[0] if len(found) == 1 else None

    def _gpus_there(self) -> Iterator[_Gpu]:
        nvml = self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                yield _Gpu(handle, _text(nvml.nvmlDeviceGetUUID(handle)), index, self._name(handle))
            except nvml.NVMLError as error:
                self._note(logging.WARNING, f"GPU {index} of NVML is not read: {error}")

    def _instances(self, gpu: _Gpu) -> Iterator[_Gpu]:
        """The MIG instances of a GPU."""
        nvml = self._nvml
        for number in range(self._ask(gpu.uuid, nvml.nvmlDeviceGetMaxMigDeviceCount, gpu.handle) or 0):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, number)
                yield _Gpu(handle, _text(nvml.nvmlDeviceGetUUID(handle)), gpu.index, self._name(handle))
            except nvml.NVMLError:  # there is room for more instances than there are
                continue

    def _name(self, handle: Any) -> str | None:
        name = self._ask("a GPU's name", self._nvml.nvmlDeviceGetName, handle)
        return None if name is None else _text(name)


def _text(value: str | bytes) -> str:
    """Before version 12, pynvml gave bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
