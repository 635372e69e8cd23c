"""A device that is there, and whose compiler can build nothing: said as that, once, and passed over where another works.

Real where the PoCL that PyOpenCL brings does not know this machine's processor; simulated by an option that the compiler
refuses with each build, on any machine whose OpenCL works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opencl_here import build_errors, only_pyopencls_own, opencl_problem
from tunewire import Array, Pool, RawKernel, benchmark, benchmark_outcome
from tunewire.devices import discover
from tunewire.errors import BrokenCompiler
from tunewire.tune import Space, tune

MATMUL = Path(__file__).parents[2] / "examples" / "matmul" / "matmul.py"
KERNEL = RawKernel(
    "kernel void fill(global int *y) { y[get_global_id(0)] = VALUE; }",
    "fill",
    args=[Array(64, "int32", output=True)],
    block=64,
    defines={"VALUE": 1},
)
SPACE = Space({"VALUE": [1, 2, 3]})


@pytest.fixture(params=["real", "simulated"])
def broken_opencl(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str | None:
    """Makes opencl:0 one that can build nothing, here and in every child; gives what its compiler says, in part."""
    if request.param == "simulated":
        if problem := opencl_problem():
            pytest.skip(problem)
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-no-such-processor")
        return "-no-such-processor"
    (tmp_path / "vendors").mkdir()
    hidden = only_pyopencls_own(os.environ, str(tmp_path / "vendors"))
    try:
        errors = build_errors(hidden)
    except RuntimeError as error:
        pytest.skip(f"PyOpenCL has no platform of its own here: {str(error).splitlines()[-1]}")
    if not errors or errors[0] is None:
        pytest.skip(
            "the PoCL that PyOpenCL brings knows this processor, so no compiler here is really broken"
        )
    monkeypatch.setenv("OPENCL_VENDOR_PATH", hidden["OPENCL_VENDOR_PATH"])
    return None


@pytest.mark.asyncio
@pytest.mark.parametrize("results", ["pickle", "msgspec"])
async def test_a_kernel_is_not_blamed_for_its_devices_compiler(
    broken_opencl: str | None, results: str
) -> None:
    typo = RawKernel("kernel void fill(global int *y) { y[0] = undeclared; }", "fill", args=KERNEL.args)
    async with Pool(devices=["opencl:0"], results=results) as pool:
        for kernel in (KERNEL, typo):
            with pytest.raises(BrokenCompiler) as raised:
                await benchmark(kernel, pool=pool, timeout=30)
            error = raised.value
            assert error.device == "opencl:0"
            assert (broken_opencl or "error") in error.reason
            assert error.name
            assert error.driver
            assert all(word in str(error) for word in (error.name, error.driver, "pocl-opencl-icd"))
        # The process is sound, and is kept: it knows of its device now.
        pids = {(await benchmark_outcome(KERNEL, pool=pool, timeout=30)).pid for _ in range(2)}
        assert len(pids) == 1


@pytest.mark.asyncio
async def test_a_tuning_run_ends_at_its_first_trial(broken_opencl: str | None) -> None:
    async with Pool(devices=["opencl:0"]) as pool:
        with pytest.raises(BrokenCompiler):
            async with tune(KERNEL, SPACE, pool=pool) as run:
                async for _ in run:
                    pass
    assert run.trials == ()


@pytest.mark.asyncio
async def test_where_no_device_works_the_kernel_is_told_why(broken_opencl: str | None) -> None:
    if any(device.kind == "cuda" for device in (await discover()).devices):
        pytest.skip("this machine has a CUDA device, which is taken first")
    async with Pool(devices="auto") as pool:
        assert set(pool.devices) >= {"opencl:0"}
        with pytest.raises(BrokenCompiler):
            await benchmark(KERNEL, pool=pool, timeout=30)


def tunewire(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tunewire", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("arguments", [["tune"], ["bench"], ["tune", "--device", "opencl:0"]])
def test_a_command_ends_with_one_line_that_says_what_to_do(
    broken_opencl: str | None, arguments: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "matmul.py"
    file.write_text(
        MATMUL.read_text()
        .replace("Path(__file__).parent", f"Path({str(MATMUL.parent)!r})")
        .replace('kernel("cuda", "matmul.cu"), ', "")  # so that a GPU is no way out
    )
    done = tunewire(arguments[0], str(file), *arguments[1:])
    assert done.returncode == 1, done
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tunewire: the compiler of opencl:0 (")
    assert "apt install pocl-opencl-icd" in line
    assert "conda install -c conda-forge pocl" in line


def test_devices_are_listed_with_what_is_wrong(broken_opencl: str | None) -> None:
    listed = tunewire("devices")
    assert listed.returncode == 0
    assert "opencl:0: cannot build any kernel: " in listed.stdout
    found = {each["id"]: each for each in json.loads(tunewire("devices", "--json").stdout)["devices"]}
    assert (broken_opencl or "error") in found["opencl:0"]["problem"]
    assert found["cpu"]["problem"] is None


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_of_two_platforms_with_one_cpu_the_one_that_works_is_taken() -> None:
    found = (await discover()).devices
    broken = [device.id for device in found if device.problem is not None]
    if not broken:
        pytest.skip("each OpenCL device here can build a program")
    if any(device.kind == "cuda" for device in found):
        pytest.skip("this machine has a CUDA device, which is taken first")
    async with Pool(devices="auto") as pool:
        assert "opencl:0" in pool.devices
        assert not set(broken) & set(pool.devices)
        assert (await benchmark(KERNEL, pool=pool, timeout=30)).median_ns > 0
