from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_c_function_is_measured_beside_a_python_one() -> None:
    done = run("cpu_ctypes.py")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["C", "Python"]


def test_gpu_callables_are_measured_or_their_absence_is_one_line() -> None:
    done = run("gpu_callables.py")
    if done.returncode == 0:
        ways = [line.split()[1] for line in done.stdout.splitlines()]
        assert ways == ["source", "launched", "fused"] * (len(ways) // 3)
    else:
        assert done.stdout == ""
        assert done.stderr.startswith("No CUDA device is to be had here")
        assert done.stderr.count("\n") == 1
