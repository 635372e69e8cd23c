"""Whether OpenCL can be used here: asked of PyOpenCL in a child, by a real build, and not of what is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache

BUILD = """
import json, warnings
warnings.simplefilter("ignore")
import pyopencl as cl

told = []
for platform in cl.get_platforms():
    for device in platform.get_devices():
        try:
            cl.Program(cl.Context([device]), "kernel void k(global int *x) { x[0] = 1; }").build()
            told.append(None)
        except cl.Error as error:
            told.append(str(error))
print(json.dumps(told))
"""


def build_errors(environ: Mapping[str, str]) -> list[str | None]:
    """What each OpenCL device that this environment shows says of a good program: None where it builds it."""
    with tempfile.TemporaryDirectory() as cache:  # nothing rests on what an earlier run has left
        done = subprocess.run(
            [sys.executable, "-c", BUILD],
            env={**environ, "POCL_CACHE_DIR": cache, "PYOPENCL_NO_CACHE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip() or 'nothing on stderr'}")
    return json.loads(done.stdout)


def only_pyopencls_own(environ: Mapping[str, str], empty: str) -> dict[str, str]:
    """The environment without the platforms that the system has: PyOpenCL's wheel finds those that came with it in its
    own folder, and looks into OPENCL_VENDOR_PATH for others. (OCL_ICD_VENDORS takes its own away, too.)"""
    return {**environ, "OPENCL_VENDOR_PATH": empty}


@cache
def opencl_problem() -> str | None:
    """Why tests that need OpenCL cannot run here, once for a session; None where they can. They use the first device."""
    try:
        errors = build_errors(os.environ)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"no OpenCL device here can build a program: {_last_line(str(error))}"
    if errors and errors[0] is None:
        return None
    which = "opencl:0, which the tests use, cannot" if None in errors else "no OpenCL device here can"
    return f"{which} build a program: {_telling_line(errors[0] or '') if errors else 'there is none'}"


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def _telling_line(text: str) -> str:
    lines = text.splitlines()
    return next((line for line in lines if line.startswith("error")), lines[0])
