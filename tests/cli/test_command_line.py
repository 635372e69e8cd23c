"""The command line as its user has it: a process of its own, its exit code, its two streams."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tunewire.tune import TuningResult

COMMAND = [sys.executable, "-m", "tunewire"]
# What the terminal of whoever runs the tests says about itself is not to decide what is printed.
TERMINAL = {"COLUMNS", "LINES", "TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in TERMINAL}

HEAD = """
from tunewire.bench import Array, RawKernel, Work
from tunewire.tune import Space, Tunable

SOURCE = '''
kernel void scale(global const float *x, global float *y) {
#ifdef BROKEN
#error [bold]broken[/bold] kernel
#endif
    for (int i = 0; i < WORK; i++) {
        int n = get_global_id(0) * WORK + i;
        y[n] = FACTOR * x[n];
    }
}
'''


def doubled(x, _y):
    return 2 * x


def kernel(**changes):
    options = dict(
        args=[Array(4096), Array(4096, output=True)],
        grid="4096 // (64 * WORK)",
        block=64,
        defines={"FACTOR": 2},
        reference=doubled,
        work=Work(flops=4096),
        name="scaling",
    )
    return RawKernel(SOURCE, "scale", **(options | changes))
"""

GOOD = HEAD + "\nscaling = Tunable(kernel(), Space({'WORK': [1, 2, 4]}))\n"


def write(folder: Path, text: str, name: str = "kernels.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def tunewire(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tunewire: ")
    return lines[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", ["defines no Tunable"]),
        ("x = 1\ny = x +\n", ["line 2", "SyntaxError"]),
        ("def f():\n    return 1 / 0\n\nf()\n", ["line 2", "ZeroDivisionError"]),
        ("import no_such_module_here\n", ["line 1", "ModuleNotFoundError", "no_such_module_here"]),
        ("raise SystemExit(3)\n", ["line 1", "SystemExit"]),
        (HEAD + "one = Tunable(kernel(), Space({'WORK': [1]}))\ntwo = Tunable(kernel(), Space({'WORK': [2]}))\n",
         ["several", "one, two"]),
        (HEAD + "t = Tunable(kernel(), Space({'WORK': [1], 'UNROLL': [1, 2]}))\n", ["line", "'UNROLL'", "never uses"]),
        (HEAD + "t = Tunable(kernel(), Space({'WORK': [1, 2]}, ['WORK > 2']))\n", ["empty", "WORK > 2"]),
        (HEAD + "t = Tunable(kernel(), Space({'WORK': [1, 2]}, ['WIDTH > 2']))\n", ["'WIDTH'"]),
        (HEAD + "t = Tunable(kernel(language='cuda'), Space({'WORK': [1]}))\n", ["cuda", "opencl:0"]),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_and_exit_code_2(tmp_path: Path, text: str, words: list[str]) -> None:
    told = one_line(tunewire("tune", write(tmp_path, text)))
    assert all(word in told for word in ["kernels.py" if "line" in words[0] else "", *words]), told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "missing.py"], ["missing.py"]),
        (["tune", "."], ["'.'"]),
        (["tune", "kernels.py:nothing"], ["'nothing'", "scaling"]),
        (["tune", "kernels.py:SOURCE"], ["'SOURCE'", "str", "Tunable"]),
        (["tune", "kernels.py", "--device", "opencl:77"], ["opencl:77", "opencl:0"]),
        (["tune", "kernels.py", "--device", "cpu"], ["opencl", "cpu"]),
        (["tune", "kernels.py", "--strategy", "annealing"], ["annealing", "exhaustive"]),
        (["tune", "kernels.py", "--max-trials", "many"], ["many"]),
        (["tune", "kernels.py", "--max-trials", "0"], ["max-trials"]),
        (["tune", "kernels.py", "--timeout", "-1"], ["timeout"]),
        (["tune", "kernels.py", "--nonsense"], ["--nonsense"]),
        (["tune", "kernels.py", "--output", "no/such/folder.json"], ["--output", "no/such"]),
        (["tune", "kernels.py", "--output", "."], ["--output"]),
        (["tune"], ["FILE"]),
        (["tuna"], ["tuna"]),
        (["bench", "kernels.py", "--set", "WORK"], ["NAME=VALUE"]),
        (["bench", "kernels.py", "--set", "WIDTH=1"], ["'WIDTH'", "WORK"]),
        (["bench", "kernels.py", "--set", "WORK=3"], ["'3'", "1, 2, 4"]),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_2(
    tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    write(tmp_path, GOOD)
    told = one_line(tunewire(*arguments, cwd=tmp_path))
    assert all(word in told for word in words), told


@pytest.mark.needs_opencl
def test_tuning_prints_a_ranking_and_saves_the_result(tmp_path: Path) -> None:
    done = tunewire(
        "tune",
        write(tmp_path, GOOD),
        "--output",
        str(tmp_path / "out.json"),
        "--svg",
        str(tmp_path / "out.svg"),
    )
    assert done.returncode == 0, done.stderr
    assert "3 of 3 configurations measured" in done.stdout
    assert "GFLOP/s" in done.stdout
    progress = done.stderr.splitlines()
    assert "scaling (opencl) on opencl:0" in progress[0]
    assert [line.split()[0] for line in progress[1:4]] == ["1/3", "2/3", "3/3"]
    result = TuningResult.load(tmp_path / "out.json")
    assert result.complete
    assert len(result.ranking) == 3
    assert result.kernel.name == "scaling"
    picture = (tmp_path / "out.svg").read_text()
    assert "GFLOP/s" in picture
    assert re.findall(r"url\(http", picture) == []


@pytest.mark.needs_opencl
def test_json_is_the_only_thing_on_stdout_and_is_the_saved_document(tmp_path: Path) -> None:
    file = write(tmp_path, "print('hello from the file')\n" + GOOD)
    saved = tmp_path / "out.json"
    done = tunewire(
        "tune",
        file,
        "--json",
        "--output",
        str(saved),
        "--strategy",
        "random",
        "--seed",
        "2",
        "--max-trials",
        "2",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(saved.read_text())
    document = json.loads(done.stdout)
    assert document["strategy"] == {"name": "random", "seed": 2, "max_trials": 2}
    assert len(document["trials"]) == 2
    assert "hello from the file" in done.stderr


@pytest.mark.needs_opencl
def test_nothing_measured_is_exit_code_1_and_the_compilers_words_are_shown_as_they_are(
    tmp_path: Path,
) -> None:
    text = HEAD + "scaling = Tunable(kernel(defines={'FACTOR': 2, 'BROKEN': 1}), Space({'WORK': [1, 2]}))\n"
    done = tunewire("tune", write(tmp_path, text))
    assert done.returncode == 1
    assert "does not compile" in done.stdout
    assert "[bold]broken[/bold]" in done.stdout
    assert "No configuration could be measured." in done.stdout


@pytest.mark.needs_opencl
def test_some_failures_are_exit_code_0(tmp_path: Path) -> None:
    text = HEAD + "scaling = Tunable(kernel(defines={}), Space({'WORK': [1], 'FACTOR': [3, 2]}))\n"
    done = tunewire("tune", write(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert "wrong result" in done.stdout
    assert "The first configuration failed (wrong result)" in done.stdout


@pytest.mark.needs_opencl
def test_a_file_may_import_its_neighbours_and_use_its_own_functions_in_workers(tmp_path: Path) -> None:
    write(tmp_path, "FACTOR = 2\n", "neighbour.py")
    text = GOOD.replace("return 2 * x", "import neighbour\n    return neighbour.FACTOR * helped(x)")
    text += (
        "\n\ndef helped(x):\n    return x\n\n\nif __name__ == '__main__':\n    raise SystemExit('it ran')\n"
    )
    done = tunewire("tune", write(tmp_path, "import neighbour\n" + text))
    assert done.returncode == 0, done.stderr
    assert "3 of 3" in done.stdout


@pytest.mark.needs_opencl
def test_one_of_several_tunables_is_named(tmp_path: Path) -> None:
    text = GOOD + "other = Tunable(kernel(name='another'), Space({'WORK': [1]}))\nalias = other\n"
    done = tunewire("tune", write(tmp_path, text) + ":other")
    assert done.returncode == 0, done.stderr
    assert "another (opencl)" in done.stdout


@pytest.mark.needs_opencl
def test_on_a_terminal_progress_is_drawn_in_place(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        [*COMMAND, "tune", file], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        drawn = b""
        try:
            while part := os.read(ours, 4096):
                drawn += part
        except OSError:
            pass  # how Linux says that the other side is closed
        finally:
            os.close(ours)
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    assert process.returncode == 0
    text = drawn.decode()
    assert "3/3" in text
    assert "best" in text
    assert "\x1b[2K" in text  # a line is cleared to be drawn again
    assert "\x1b" not in printed


@pytest.mark.needs_opencl
def test_bench_measures_the_default_configuration_but_for_what_is_set(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    plain = tunewire("bench", file, "--set", "WORK=4")
    assert plain.returncode == 0, plain.stderr
    assert "WORK=4" in plain.stdout
    assert "opencl profiling events" in plain.stdout
    assert plain.stderr == ""
    document = json.loads(tunewire("bench", file, "--json").stdout)
    assert document["configuration"] == {"WORK": 1}
    assert document["failure"] is None
    assert document["measurement"]["check"] == "passed"


@pytest.mark.needs_opencl
def test_bench_takes_a_kernel_without_a_space(tmp_path: Path) -> None:
    done = tunewire("bench", write(tmp_path, HEAD + "scaling = kernel(defines={'FACTOR': 2, 'WORK': 2})\n"))
    assert done.returncode == 0, done.stderr
    assert "scaling (opencl) on opencl:0" in done.stdout


@pytest.mark.needs_opencl
def test_a_kernel_that_fails_its_bench_is_exit_code_1_and_one_line(tmp_path: Path) -> None:
    file = write(tmp_path, HEAD + "scaling = kernel(defines={'FACTOR': 3, 'WORK': 2})\n")
    done = tunewire("bench", file, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["failure"]["kind"] == "wrong_result"
    assert len(done.stderr.splitlines()) == 1
    assert "wrong result" in done.stderr


def test_devices_are_listed_for_people_and_for_machines() -> None:
    listed = tunewire("devices")
    assert listed.returncode == 0
    assert "opencl:0" in listed.stdout
    found = json.loads(tunewire("devices", "--json").stdout)
    assert {"cpu", "opencl:0"} <= {device["id"] for device in found["devices"]}


def test_help_and_version_are_exit_code_0() -> None:
    for arguments in ([], ["--help"], ["tune", "--help"]):
        assert "tune" in tunewire(*arguments).stdout
    assert tunewire("--version").returncode == 0


@pytest.mark.parametrize("package", ["rich", "cyclopts"])
def test_without_its_extra_the_command_line_says_how_to_get_it(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from tunewire.cli import main; sys.exit(main(['devices']))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "tunewire[cli]" in one_line(done)
