"""Ctrl-C and SIGTERM, sent to a real process that is in the middle of its work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tunewire.tune import TuningResult

COMMAND = [sys.executable, "-m", "tunewire"]
PATIENCE_S = 60

# The second configuration does not end: without a signal, the run lasts for its whole limit of ten minutes.
FILE = """
from tunewire.bench import Array, RawKernel
from tunewire.tune import Space, Tunable

SOURCE = '''
kernel void wait(volatile global float *y) {
    while (ENDLESS && y[0] != 1e30f) ;
    y[get_global_id(0)] = 1.0f;
}
'''
KERNEL = RawKernel(SOURCE, "wait", args=[Array(64, output=True)], block=64)
waiting = Tunable(KERNEL, Space({"ENDLESS": [0, 1]}), timeout=600.0)
"""


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a session of its own; killed where the test fails, which would else wait for its end."""
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def to_the_process(process: subprocess.Popen[str], which: signal.Signals) -> None:
    process.send_signal(which)


def to_its_group(process: subprocess.Popen[str], which: signal.Signals) -> None:
    """As a terminal does it."""
    os.killpg(process.pid, which)


@pytest.mark.needs_opencl
@pytest.mark.parametrize(
    ("which", "send", "code"),
    [
        (signal.SIGINT, to_the_process, 130),
        (signal.SIGINT, to_its_group, 130),
        (signal.SIGTERM, to_the_process, 143),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_it_ends_says_what_was_done_keeps_the_results_and_leaves_no_process(
    tmp_path: Path,
    which: signal.Signals,
    send: Callable[[subprocess.Popen[str], signal.Signals], None],
    code: int,
    as_json: bool,
) -> None:
    (tmp_path / "waiting.py").write_text(FILE)
    output = tmp_path / "out.json"
    arguments = ["tune", str(tmp_path / "waiting.py"), "--output", str(output), *["--json"] * as_json]
    with running(*arguments) as process:
        assert process.stderr is not None
        while "1/2" not in process.stderr.readline():
            assert process.poll() is None
        descendants = _descendants(process.pid)
        assert descendants
        send(process, which)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert psutil.wait_procs(descendants, timeout=PATIENCE_S)[1] == []
    told = stderr.splitlines()
    assert told[1:] == [f"written: {output}"]
    assert which.name in told[0]
    assert "after 1 of 2 configurations, 1 of them measured" in told[0]
    result = TuningResult.load(output)
    assert not result.complete
    assert [trial.ok for trial in result.trials] == [True]
    if as_json:
        assert json.loads(stdout) == json.loads(output.read_text())
    else:
        assert "1 of 1 configurations measured" in stdout


@pytest.mark.needs_opencl
def test_a_bench_that_is_interrupted_says_so(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(FILE)
    with running("bench", str(tmp_path / "waiting.py"), "--set", "ENDLESS=1") as process:
        # Its worker's process burns a core once the kernel runs; looking for devices takes a second of one at most.
        while not any(_user_seconds(child) > 2.0 for child in _descendants(process.pid)):
            assert process.poll() is None
        descendants = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert stdout == ""
    assert len(stderr.splitlines()) == 1
    assert psutil.wait_procs(descendants, timeout=PATIENCE_S)[1] == []


def _descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def _user_seconds(process: psutil.Process) -> float:
    try:
        return float(process.cpu_times().user)
    except psutil.NoSuchProcess:
        return 0.0  # one that only looked for devices


def test_a_file_that_is_interrupted_while_it_loads_is_exit_code_130(tmp_path: Path) -> None:
    text = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(text)
    command = [*COMMAND, "tune", str(tmp_path / "slow.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 130
    assert done.stderr == "tunewire: interrupted\n"


BUSY = """
import time
from tunewire.bench import Array, RawKernel
from tunewire.tune import Space, Tunable

NAMES = [f"P{i}" for i in range(10)]
SOURCE = "kernel void f(global int *y) { y[get_global_id(0)] = " + " + ".join(NAMES) + "; }"

def slow(configuration):
    # Nothing but the first configuration is allowed: whoever asks for the next one walks 8^10 combinations.
    return all(value == 0 for value in configuration.values())

large = Tunable(
    RawKernel(SOURCE, "f", args=[Array(64, "int32", output=True)], block=64),
    Space({name: list(range(8)) for name in NAMES}, restrictions=[slow]),
)
"""


@pytest.mark.needs_opencl
@pytest.mark.parametrize("strategy", ["exhaustive", "random"])
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_while_a_large_space_is_walked_and_keeps_what_it_has(
    tmp_path: Path, which: signal.Signals, strategy: str
) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    output = tmp_path / "out.json"
    with running(
        "tune", str(tmp_path / "busy.py"), "--strategy", strategy, "--output", str(output)
    ) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert "at most 1,073,741,824 configurations" in told
        # From here on only the walk through the space uses this much of a processor.
        busy = psutil.Process(process.pid)
        begun = busy.cpu_times().user
        while busy.cpu_times().user < begun + 1.0:
            assert process.poll() is None
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(which)
        _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + which
    assert f"ended by {which.name} after 1 of 1,073,741,824 configurations, 1 of them measured" in told
    assert len(TuningResult.load(output).trials) == 1
    psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
