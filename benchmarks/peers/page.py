"""docs/performance.md: what is measured stands between two marks, and what people wrote around them stays."""

from __future__ import annotations

from pathlib import Path

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def replaced(page: str, measured: str) -> str:
    """The page with that between its marks; a page without them has it at its end."""
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if begun and not ended:
        raise ValueError(f"the page has {BEGIN} and not {END}")
    if not begun:
        before, after = before.rstrip("\n") + "\n\n" if before else "", "\n"
    return f"{before}{BEGIN}\n{measured.strip()}\n{END}{after}"


def write(path: Path, measured: str) -> None:
    """Into the file."""
    path.write_text(replaced(path.read_text() if path.exists() else "", measured))
