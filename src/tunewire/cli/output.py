"""Where a command writes: results on stdout, progress on stderr, pictures in a file."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType

from tunewire.cli.exits import BadInput

__all__ = ["check_writable", "error_console", "print_json", "print_report", "save_picture"]

#: Columns where there is no terminal to ask: wide enough that tables do not wrap, and reasons still do.
PIPE_WIDTH = 160
PICTURE_WIDTH = 110


def print_report(report: RenderableType) -> None:
    """A report on stdout."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    Console(width=width, markup=False, highlight=False, emoji=False).print(report)


def error_console() -> Console:
    """For progress, on stderr."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def print_json(document: bytes) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(document.decode().rstrip("\n") + "\n")


def save_picture(report: RenderableType, path: Path, *, title: str) -> None:
    """The report as an SVG file that asks the network for nothing."""
    console = Console(
        record=True,
        file=io.StringIO(),
        width=PICTURE_WIDTH,
        force_terminal=True,
        markup=False,
        highlight=False,
    )
    console.print(report)
    picture = console.export_svg(title=title)
    # rich names web fonts; a viewer without them uses the monospaced font that it has.
    path.write_text(re.sub(r"@font-face\s*{[^}]*}", "", picture))


def check_writable(option: str, path: Path | None) -> None:
    """BadInput where a file could not be written there; asked before hours of work, not after."""
    if path is None:
        return
    path = path.resolve()
    if path.exists() and not path.is_file() and not path.is_dir():
        return  # a pipe or a device is written to as it is
    folder = path.parent
    if not folder.is_dir():
        raise BadInput(f"{option}: there is no folder {str(folder)!r}")
    if path.is_dir():
        raise BadInput(f"{option}: {str(path)!r} is a folder")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise BadInput(f"{option}: {str(path)!r} cannot be written")
