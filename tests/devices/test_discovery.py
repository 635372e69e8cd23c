"""Discovery with true children. A vendor's library that misbehaves is a Python module that is found before
the real one, in the environment that discovery is given."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from opencl_here import opencl_problem
from tunewire import Pool
from tunewire.devices import Device, Discovery, discover

NOTHING = "raise ImportError('not here')\n"

# CuPy as the probe uses it, with as many devices as the mask has entries.
CUPY = """
import os

class CUDARuntimeError(RuntimeError):
    def __init__(self, status):
        self.status = status
        super().__init__(f"cudaError{status}")

mask = [entry for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",") if entry]
seen = mask[:1] if mask and mask[0].startswith("MIG") else mask

def getDeviceCount():
    if not seen:
        raise CUDARuntimeError(100)
    return len(seen)

def driverGetVersion():
    return 12040

def getDeviceProperties(number):
    slice_of = " MIG 1g.10gb" if seen[number].startswith("MIG") else ""
    return {
        "name": f"NVIDIA Test{slice_of} {seen[number]}".encode(),
        "totalGlobalMem": 1 << 34,
        "multiProcessorCount": 132,
        "major": 9,
        "minor": 0,
        "uuid": bytes(range(1, 17)) if number == 0 else bytes(3),
    }
"""

OPENCL = """
import os, signal, time

class Error(Exception):
    pass

class CompilerWarning(UserWarning):
    pass

class program_build_info:
    LOG = 1

class Context:
    def __init__(self, devices):
        pass

class Program:
    def __init__(self, context, source):
        pass

    def build(self, options, devices):
        if devices[0].number in BROKEN:
            exec(BROKEN[devices[0].number])

    def get_build_info(self, device, which):
        return LOG

BROKEN, LOG = {}, ""

class Device:
    def __init__(self, platform, number):
        self.platform, self.number = platform, number

    name, vendor, global_mem_size, max_compute_units, driver_version = "a device", "a vendor", 1024, 4, "1.0"

class Platform:
    def __init__(self, name, count):
        self.name, self.count = name, count

    def get_devices(self):
        if self.count is None:
            raise Error("clGetDeviceIDs failed: DEVICE_NOT_FOUND")
        return [Device(self, f"{self.name} {n}") for n in range(self.count)]

def get_platforms():
    return [Platform("first", 2), Platform("broken", None), Platform("last", 1)]
"""


def vendors(
    folder: Path, *, opencl: str = NOTHING, cupy: str = NOTHING, **environment: str
) -> dict[str, str]:
    (folder / "pyopencl.py").write_text(opencl)
    package = folder / "cupy" / "cuda"
    package.mkdir(parents=True)
    (folder / "cupy" / "__init__.py").write_text("" if cupy != NOTHING else NOTHING)
    (package / "__init__.py").write_text("")
    (package / "runtime.py").write_text(cupy)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return {**inherited, "PYTHONPATH": path, "PYTHONWARNINGS": "error", **environment}


def problems(discovery: Discovery) -> dict[str, str]:
    return {problem.kind: problem.reason for problem in discovery.problems}


def ids(discovery: Discovery) -> list[str]:
    return [device.id for device in discovery.devices]


@pytest.mark.asyncio
async def test_this_machine_has_a_cpu_and_pocl() -> None:
    pytest.importorskip("pyopencl", reason="PyOpenCL is not installed")
    discovery = await discover()
    cpu, opencl = discovery.devices[:2]
    assert (cpu.id, cpu.kind) == ("cpu", "cpu")
    assert cpu.name
    assert cpu.memory_bytes is not None
    assert cpu.memory_bytes > 1 << 20
    assert cpu.compute_units is not None
    assert 1 <= cpu.compute_units <= (os.cpu_count() or 1)
    assert (opencl.id, opencl.kind) == ("opencl:0", "opencl")
    assert opencl.driver
    assert (opencl.problem is None) == (opencl_problem() is None)
    assert "opencl" not in problems(discovery)


@pytest.mark.asyncio
async def test_libraries_that_are_missing_are_problems_with_a_remedy(tmp_path: Path) -> None:
    discovery = await discover(environ=vendors(tmp_path))
    assert ids(discovery) == ["cpu"]
    told = problems(discovery)
    assert "pip install 'tunewire[opencl]'" in told["opencl"]
    assert "tunewire[cuda12]" in told["cuda"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("opencl", "says"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("raise OSError('a broken ICD')", "a broken ICD"),
        ("import sys\nsys.exit(3)", "exited with code 3"),
        (
            "class Error(Exception): pass\ndef get_platforms(): raise Error('no ICD')",
            "no OpenCL platform: no ICD",
        ),
        ("class Error(Exception): pass\ndef get_platforms(): return [None]", "AttributeError"),
    ],
)
async def test_a_driver_that_fails_costs_its_own_kind_alone(tmp_path: Path, opencl: str, says: str) -> None:
    discovery = await discover(environ=vendors(tmp_path, opencl=opencl, cupy=CUPY))
    assert says in problems(discovery)["opencl"]
    assert ids(discovery) == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.asyncio
async def test_a_driver_that_hangs_is_ended_at_the_limit(tmp_path: Path) -> None:
    hangs = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)"
    discovery = await discover(timeout=1.0, environ=vendors(tmp_path, opencl=hangs))
    assert "took longer than 1 s" in problems(discovery)["opencl"]
    assert ids(discovery) == ["cpu"]


@pytest.mark.asyncio
async def test_a_driver_that_prints_or_lies_harms_nothing(tmp_path: Path) -> None:
    prints = f"import os\nprint('noise')\nos.write(1, b'more noise' * 100)\n{OPENCL}"
    assert ids(await discover(environ=vendors(tmp_path, opencl=prints)))[:2] == ["cpu", "opencl:0"]


@pytest.mark.asyncio
async def test_cancelling_ends_the_children(tmp_path: Path) -> None:
    started = tmp_path / "started"
    hangs = f"import pathlib, time\npathlib.Path({str(started)!r}).touch()\ntime.sleep(600)"
    looking = asyncio.create_task(discover(environ=vendors(tmp_path, opencl=hangs)))
    deadline = time.monotonic() + 20
    while not started.exists() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert started.exists()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking  # that no process is left is seen to by the suite's own fixture


@pytest.mark.asyncio
async def test_opencl_devices_are_numbered_over_all_platforms_and_a_broken_one_is_told(
    tmp_path: Path,
) -> None:
    discovery = await discover(environ=vendors(tmp_path, opencl=OPENCL))
    assert ids(discovery) == ["cpu", "opencl:0", "opencl:1", "opencl:2"]
    assert discovery.devices[3].driver == "last 1.0"
    assert "'broken'" in problems(discovery)["opencl"]
    assert "DEVICE_NOT_FOUND" in problems(discovery)["opencl"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fails", "log", "says"),
    [
        ("raise Error('it failed')", "In file x:\nerror: no such CPU\n", "error: no such CPU"),
        ("raise Error('no compiler')", "", "no compiler"),
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            "",
            "the process that built a trivial program was ended by SIGSEGV",
        ),
        ("os._exit(3)", "", "the process that built a trivial program exited with code 3"),
    ],
)
async def test_a_compiler_that_builds_nothing_is_its_own_devices_problem(
    tmp_path: Path, fails: str, log: str, says: str
) -> None:
    broken = {"first 0": fails, "first 1": "raise Error('another')" if not log else fails}
    simulated = f"{OPENCL}\nBROKEN, LOG = {broken!r}, {log!r}\n"
    discovery = await discover(environ=vendors(tmp_path, opencl=simulated))
    assert ids(discovery) == ["cpu", "opencl:0", "opencl:1", "opencl:2"]
    assert [device.problem for device in discovery.devices] == [None, says, says if log else "another", None]


@pytest.mark.asyncio
async def test_a_compiler_that_hangs_costs_no_device_that_was_found(tmp_path: Path) -> None:
    simulated = f"{OPENCL}\nBROKEN = {{'first 1': 'time.sleep(600)'}}\n"
    discovery = await discover(timeout=2.0, environ=vendors(tmp_path, opencl=simulated))
    late = "building a trivial program took longer than 2 s and was ended"
    assert [device.problem for device in discovery.devices] == [None, None, late, None]


@pytest.mark.asyncio
async def test_what_is_taken_by_default_is_what_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = f"{OPENCL}\nBROKEN, LOG = {{'first 0': \"raise Error('no')\"}}, 'error: no such CPU'\n"
    for name, value in vendors(tmp_path, opencl=simulated).items():
        monkeypatch.setenv(name, value)
    async with Pool(devices="auto") as pool:
        assert pool.devices == ("opencl:1", "opencl:2")


@pytest.mark.asyncio
async def test_cuda_devices_are_those_of_the_mask_and_have_their_properties(tmp_path: Path) -> None:
    discovery = await discover(environ=vendors(tmp_path, cupy=CUPY, CUDA_VISIBLE_DEVICES="5,3"))
    assert discovery.devices[1:] == (
        Device(
            id="cuda:0",
            kind="cuda",
            name="NVIDIA Test 5",
            vendor="NVIDIA",
            memory_bytes=1 << 34,
            compute_units=132,
            driver="CUDA 12.4",
            uuid="GPU-01020304-0506-0708-090a-0b0c0d0e0f10",
            compute_capability="9.0",
        ),
        Device(
            id="cuda:1",
            kind="cuda",
            name="NVIDIA Test 3",
            vendor="NVIDIA",
            memory_bytes=1 << 34,
            compute_units=132,
            driver="CUDA 12.4",
            compute_capability="9.0",
        ),
    )


@pytest.mark.asyncio
async def test_each_mig_instance_of_the_mask_is_a_device(tmp_path: Path) -> None:
    discovery = await discover(environ=vendors(tmp_path, cupy=CUPY, CUDA_VISIBLE_DEVICES="MIG-1a, MIG-2b"))
    assert ids(discovery) == ["cpu", "cuda:0", "cuda:1"]
    assert [device.name for device in discovery.devices[1:]] == [
        "NVIDIA Test MIG 1g.10gb MIG-1a",
        "NVIDIA Test MIG 1g.10gb MIG-2b",
    ]
    assert discovery.devices[1].uuid == "MIG-01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.mark.asyncio
@pytest.mark.parametrize("mask", ["", "-1"])
async def test_a_mask_that_hides_all_is_no_problem(tmp_path: Path, mask: str) -> None:
    discovery = await discover(environ=vendors(tmp_path, cupy=CUPY, CUDA_VISIBLE_DEVICES=mask))
    assert ids(discovery) == ["cpu"]
    assert "cuda" not in problems(discovery)


@pytest.mark.asyncio
async def test_a_mask_that_is_none_is_a_problem(tmp_path: Path) -> None:
    discovery = await discover(environ=vendors(tmp_path, cupy=CUPY, CUDA_VISIBLE_DEVICES="first"))
    assert ids(discovery) == ["cpu"]
    assert "'first' is neither an index nor the uuid" in problems(discovery)["cuda"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "says"), [(35, "no NVIDIA driver, or one that is too old"), (999, "cudaError999"), (100, None)]
)
async def test_what_the_cuda_runtime_says_is_told(tmp_path: Path, status: int, says: str | None) -> None:
    refuses = f"{CUPY}\ndef getDeviceCount(): raise CUDARuntimeError({status})"
    told = problems(await discover(environ=vendors(tmp_path, cupy=refuses)))
    assert (says is None) == ("cuda" not in told)
    assert says is None or says in told["cuda"]
