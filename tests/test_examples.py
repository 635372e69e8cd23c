"""Every example runs as a newcomer would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_calls():
    lines = run("calls.py").splitlines()
    assert lines[:2] == ["a value: 12586269025", "a lambda: 42"]
    assert lines[2] == "a timeout: sleep was still in phase 'run' after 0.2 s, its limit."
    assert lines[3] == "a crash: SIGABRT"
    assert lines[5:] == ["an item: 10", "an item: ZeroDivisionError('integer division or modulo by zero')", "an item: 2"]


def test_endpoints():
    assert run("endpoint_parent.py").splitlines() == [
        "{'sum': 6, 'count': 3}",
        "{'sum': 0, 'count': 0}",
        "{'sum': 4.0, 'count': 8}",
        "captured: what is printed here is captured, and touches no message",
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_each_example_is_run_by_a_test(path):
    assert f'"{path.name}"' in Path(__file__).read_text() or path.name in ("endpoint_child.py",)
