"""The soak in short: as `make soak` runs it, with fewer calls."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_nothing_is_lost_or_doubled_and_everything_comes_back(loop):
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    done = subprocess.run(
        [sys.executable, str(SOAK), "--calls", "1500", "--loop", loop],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "violations: 0" in done.stdout
