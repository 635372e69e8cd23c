"""The README and docs/ say nothing that does not run; the repository says nothing of somebody's machine.

A ```python block is run as a newcomer would: from a file, by a fresh interpreter, in a folder that has
`examples/`. A ```text block right after it is what it must print (`...` stands for anything). In ```console
and ```sh blocks, `make` names a target that exists, and `tunewire` and `python` commands end with exit code
0. What cannot run here says so, and why, right above: `<!-- not run: needs an NVIDIA GPU -->`.
"""

from __future__ import annotations

import ast
import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from code_blocks import CodeBlock, code_blocks
from opencl_here import opencl_problem

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [block for page in PAGES for block in code_blocks(page)]
LIMIT_S = 240.0

SCRIPT = "import sys; sys.argv[0] = 'tunewire'; from tunewire.cli import main; sys.exit(main())"
"""What the `tunewire` command that pip writes does, also where the package was not installed by pip."""

RUNNERS = {
    "tunewire": [sys.executable, "-c", SCRIPT],
    "python": [sys.executable],
    "python3": [sys.executable],
}

MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(?:work|root|home|Users)/\w")


def of_language(*languages: str) -> list[CodeBlock]:
    return [block for block in BLOCKS if block.language in languages]


def skip_if_exempt(block: CodeBlock) -> None:
    """A skip, so that the run's summary lists what the pages show and nobody ran."""
    if block.exemption is not None:
        pytest.skip(f"{block} is not run: {block.exemption}")


def skip_without_opencl() -> None:
    if problem := opencl_problem():
        pytest.skip(problem)


@pytest.fixture
def newcomers_folder(tmp_path: Path) -> Path:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command: list[str], folder: Path) -> str:
    """What the command prints; it has to end well."""
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", of_language("python"), ids=str)
def test_a_python_block_runs_and_prints_what_is_shown(block: CodeBlock, newcomers_folder: Path) -> None:
    skip_if_exempt(block)
    if 'devices=["opencl:' in block.code:
        skip_without_opencl()
    (newcomers_folder / "snippet.py").write_text(block.code)
    printed = run([sys.executable, "snippet.py"], newcomers_folder)
    if block.output is not None:
        assert doctest.OutputChecker().check_output(block.output, printed, doctest.ELLIPSIS), printed


def commands(block: CodeBlock) -> list[str]:
    """The commands of a block, without comments: what follows `$ ` in console, every line in sh."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    words = (shlex.split(line, comments=True) for line in lines)
    return [shlex.join(each) for each in words if each]


@pytest.mark.parametrize(
    ("block", "command"),
    [
        pytest.param(block, command, id=f"{block}: {command}")
        for block in of_language("console", "sh")
        for command in commands(block)
    ],
)
def test_a_command_is_there_and_ends_well(block: CodeBlock, command: str, newcomers_folder: Path) -> None:
    skip_if_exempt(block)
    program, *arguments = shlex.split(command)
    if program == "make":
        run(["make", "-n", *arguments], ROOT)
    else:
        if program == "tunewire" and arguments[0] in ("tune", "bench"):
            skip_without_opencl()
        assert program in RUNNERS, f"nothing here runs {command!r}; if it cannot be run, say so above it"
        run([*RUNNERS[program], *arguments], newcomers_folder)


PAGE = """
```python
print(1)
```

```text
1
```

<!-- not run: needs an NVIDIA GPU -->
```console
$ tunewire bench \\
    kernel.py   # on every GPU
... progress
```

```sh
# first
make demo
```
And then:
```text
no output of that
```
"""


def test_the_blocks_of_a_page_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    python, shown, console, sh, after = code_blocks(page)
    assert (python.code, python.output, str(python)) == ("print(1)\n", "1\n", "page.md:2")
    assert [block.exemption for block in (python, shown, console, sh)] == [
        None,
        None,
        "needs an NVIDIA GPU",
        None,
    ]
    assert commands(console) == ["tunewire bench kernel.py"]
    assert commands(sh) == ["make demo"]
    assert (sh.output, after.language) == (None, "text")
    page.write_text("no blocks")
    assert code_blocks(page) == []


def test_a_block_is_of_a_language_that_is_run_or_is_no_program() -> None:
    shown = {block.language for block in BLOCKS}
    assert shown <= {"python", "console", "sh"} | {"text", "json", "toml", "c", "cpp", "mermaid"}


def test_the_readme_shows_how_to_begin() -> None:
    readme = [block for block in BLOCKS if block.path.name == "README.md"]
    shells = [block for block in readme if block.language in ("console", "sh")]
    assert {"make demo", "make test"} <= {command for block in shells for command in commands(block)}
    assert any("async with" in block.code for block in readme if block.language == "python")


def test_a_link_to_a_file_of_the_repository_leads_somewhere() -> None:
    links = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")
    dead = [
        f"{page.name}: {target}"
        for page in {*PAGES, *ROOT.glob("*.md")}
        for target in links.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert dead == []


def repository_files() -> list[Path]:
    """What is, or is about to be, in the repository; in an unpacked archive, what no tool has made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return list(_unpacked_files())
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def _unpacked_files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name == ".ci" or name[0] not in "._"]
        yield from (Path(folder, name) for name in names)


def test_no_text_names_a_place_on_somebodys_machine() -> None:
    found = []
    for path in repository_files():
        text = path.read_bytes().decode(errors="replace")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []


@pytest.mark.parametrize("text", ["{}root/x", "see {}work/main.", "'{}home/someone'", "file://{}Users/me"])
def test_a_machine_path_is_seen(text: str) -> None:
    assert MACHINE_PATH.search(text.format("/"))


@pytest.mark.parametrize("text", ["src/work/x", "~/work/x", "https://example.org/home/x", "work/root/home/"])
def test_a_relative_path_or_address_is_none(text: str) -> None:
    assert not MACHINE_PATH.search(text)


def test_every_module_opens_with_a_docstring() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert bare == []
