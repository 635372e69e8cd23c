"""What an import and a start cost, told by what they load: the same on every machine, as no time is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loaded_modules import loaded_modules, loaded_modules_in_a_loop
from tunewire import Pool

WORK = {"numpy", "cupy", "cupyx", "cupy_backends", "pyopencl", "pynvml", "cuda", "optuna"}
"""What only a worker's call needs, or a strategy that was asked for."""

NAMING = """
import importlib, pkgutil
import tunewire

for found in pkgutil.iter_modules(tunewire.__path__, "tunewire."):
    package = importlib.import_module(found.name)
    for name in getattr(package, "__all__", ()):
        getattr(package, name)
"""

BENCHMARK = """
import asyncio

from tunewire import Array, Pool, RawKernel, benchmark

SOURCE = '''
__kernel void twice(__global float *x) { x[get_global_id(0)] *= 2.0f; }
'''


async def main():
    kernel = RawKernel(
        SOURCE, entry="twice", language="opencl", args=[Array((1024,), output=True)], grid=(16,), block=(64,)
    )
    async with Pool(devices=["opencl:0"]) as pool:
        measurement = await benchmark(kernel, pool=pool)
    assert measurement.median_ns > 0


asyncio.run(main())
"""


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after it ran the code, and had not before."""
    told = f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", told], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = loaded_after("import tunewire")
    assert not loaded & (WORK | {"asyncio", "anyio", "rich", "cyclopts", "cloudpickle", "psutil"})


def test_a_pool_loads_no_library_of_the_work() -> None:
    loaded = loaded_after("import tunewire; tunewire.Pool")
    assert not loaded & (WORK | {"rich", "cyclopts", "cloudpickle"})


def test_telemetry_loads_no_library_of_what_it_reads() -> None:
    assert not loaded_after("import tunewire; tunewire.Telemetry()") & (WORK | {"psutil", "tempfile"})


def test_no_public_name_loads_a_library_of_the_work() -> None:
    assert not loaded_after(NAMING) & WORK


@pytest.mark.needs_opencl
def test_the_parent_of_a_benchmark_loads_no_library_of_the_work() -> None:
    assert not loaded_after(BENCHMARK) & WORK


@pytest.mark.asyncio
async def test_a_child_loads_asyncio_at_its_first_async_callable_and_little_before() -> None:
    async with Pool(1) as pool:
        at_first = set(await pool.call(loaded_modules))
        assert not at_first & (WORK | {"asyncio", "anyio", "cloudpickle", "psutil"})
        assert "asyncio" in await pool.call(loaded_modules_in_a_loop)
        assert "asyncio" in await pool.call(loaded_modules)
