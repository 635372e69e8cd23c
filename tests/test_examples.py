"""Every example runs as a newcomer would run it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def start(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def run(name: str) -> str:
    done = start(name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls():
    lines = run("calls.py").splitlines()
    assert lines[:2] == ["a value: 12586269025", "a lambda: 42"]
    assert lines[2] == "a timeout: sleep was still in phase 'run' after 0.2 s, its limit."
    assert lines[3] == "a crash: SIGABRT"
    assert lines[5:] == [
        "an item: 10",
        "an item: ZeroDivisionError('integer division or modulo by zero')",
        "an item: 2",
    ]


def test_endpoints():
    assert run("endpoint_parent.py").splitlines() == [
        "{'sum': 6, 'count': 3}",
        "{'sum': 0, 'count': 0}",
        "{'sum': 4.0, 'count': 8}",
        "captured: what is printed here is captured, and touches no message",
    ]


def test_cpu_ctypes():
    c, python = (line.split() for line in run("cpu_ctypes.py").splitlines())
    assert (c[0], python[0]) == ("C", "Python")
    assert 0 < float(c[1]) < float(python[1])


def test_telemetry():
    lines = [line for line in run("telemetry.py").splitlines() if " has scopes " in line]
    assert lines == [
        "first.jsonl has scopes ['train/forward'] of steps ['1']",
        "rest.jsonl has scopes ['train/forward'] of steps ['2']",
    ]


def test_gpu_callables_says_that_there_is_no_gpu():
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has an NVIDIA driver: tests/gpu runs it")
    done = start("gpu_callables.py")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_each_example_is_run_by_a_test():
    text = Path(__file__).read_text()
    names = {path.name for path in EXAMPLES.glob("*.py")} - {"endpoint_child.py"}
    assert all(f'"{name}"' in text for name in names)
