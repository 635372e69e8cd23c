"""An environment for each peer that is not Python's own, made once and kept until what it needs changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from shutil import rmtree

from peers.roster import Entry

INSTALL_BOUND = 900.0
"""Seconds for one installation; PyTorch is large."""


class NotToBeHad(Exception):
    """A peer that could not be installed or run, and why."""


def python_of(entry: Entry, folder: Path, tell: Callable[[str], None]) -> Path:
    """The interpreter to run the peer with, its environment made if need be."""
    if entry.environment is None:
        return Path(sys.executable)
    place = folder / entry.environment
    python = place / "bin" / "python"
    stamp = place / "installed"
    wanted = f"{sys.version}\n{entry.requirements}\nnumpy {version('numpy')}\n"
    if not (stamp.exists() and stamp.read_text() == wanted):
        tell(f"installing {entry.environment} into an environment of its own")
        rmtree(place, ignore_errors=True)
        _run(sys.executable, "-m", "venv", "--without-pip", str(place))
        _install_first(python, entry.requirements)
        _install(python, f"numpy=={version('numpy')}")
        stamp.write_text(wanted)
    return python


def _install_first(python: Path, alternatives: tuple[tuple[str, ...], ...]) -> None:
    """The last one's failure is the one that counts."""
    *others, last = alternatives
    for requirements in others:
        try:
            _install(python, *requirements)
        except NotToBeHad:
            continue
        return
    _install(python, *last)


def _install(python: Path, *requirements: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    _run(sys.executable, "-m", "pip", "--python", str(python), "install", *quiet, *requirements)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_BOUND)
    except subprocess.TimeoutExpired:
        raise NotToBeHad(f"not installed within {INSTALL_BOUND:g} s") from None
    if done.returncode:
        errors = [
            line for line in done.stderr.splitlines() if line.startswith("ERROR")
        ] or done.stderr.splitlines()
        raise NotToBeHad(f"not installed: {errors[-1] if errors else f'exit code {done.returncode}'}")
