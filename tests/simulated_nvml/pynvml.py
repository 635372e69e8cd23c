"""A fake of NVML's module, for machines without a GPU: what it answers stands in the JSON file that SIMULATED_NVML names,
which a test may change at any time. It has the names, the units and the errors of nvidia-ml-py that telemetry uses.

    {"gpus": [{"uuid": "GPU-1", "name": "A", "memory": [used, free, total], "utilization": 37, "milliwatts": 250000,
               "temperature": 60, "clocks": [1980, 2619], "lost": false, "instances": [{"uuid": "MIG-1", ...}]}],
     "driver": true, "hangs": false}

What a GPU's entry lacks, it does not support.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15

_WORDS = {
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NOT_FOUND: "Not Found",
    NVML_ERROR_DRIVER_NOT_LOADED: "Driver Not Loaded",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
}


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return _WORDS.get(self.value, f"error {self.value}")


def _state():
    while (state := json.loads(Path(os.environ["SIMULATED_NVML"]).read_text())).get("hangs"):
        time.sleep(0.005)
    return state


def _device(handle):
    number, instance = handle
    gpu = _state()["gpus"][number]
    device = gpu if instance is None else gpu["instances"][instance]
    if gpu.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return device


def _said(handle, name):
    device = _device(handle)
    if name not in device:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return device[name]


def nvmlInit():
    if not _state().get("driver", True):
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_state()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    _device((index, None))
    return index, None


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7 if "instances" in _device(handle) else 0


def nvmlDeviceGetMigDeviceHandleByIndex(handle, number):
    if number >= len(_device(handle)["instances"]):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return handle[0], number


def nvmlDeviceGetUUID(handle):
    return _said(handle, "uuid")


def nvmlDeviceGetName(handle):
    return _said(handle, "name")


def nvmlDeviceGetMemoryInfo(handle):
    used, free, total = _said(handle, "memory")
    return SimpleNamespace(used=used, free=free, total=total)


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_said(handle, "utilization"), memory=0)


def nvmlDeviceGetPowerUsage(handle):
    return _said(handle, "milliwatts")


def nvmlDeviceGetTemperature(handle, _sensor):
    return _said(handle, "temperature")


def nvmlDeviceGetClockInfo(handle, clock):
    return _said(handle, "clocks")[clock - NVML_CLOCK_SM]
