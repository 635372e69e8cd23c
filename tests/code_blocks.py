"""The fenced code blocks of a Markdown text, with what the text says about each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

FENCE = re.compile(
    r"(?:^<!-- not run: (?P<exemption>[^\n]+) -->\n+)?"
    r"^(?P<fence>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class CodeBlock:
    """One block, and where it stands."""

    path: Path
    line: int
    language: str
    code: str
    output: str | None
    """The text block that follows at once, or None: what the code prints."""
    exemption: str | None
    """Why it is not run: the reason in `<!-- not run: reason -->` right above it."""

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def code_blocks(path: Path) -> list[CodeBlock]:
    text = path.read_text()
    found = [*FENCE.finditer(text), None]
    return [
        CodeBlock(
            path,
            text.count("\n", 0, match.start("fence")) + 1,
            match["language"],
            match["code"],
            _output(text, match, following),
            match["exemption"],
        )
        for match, following in pairwise(found)
        if match is not None
    ]


def _output(text: str, block: re.Match[str], following: re.Match[str] | None) -> str | None:
    if following is None or following["language"] != "text" or following["exemption"]:
        return None
    between = text[block.end() : following.start("fence")]
    return None if between.strip() else following["code"]
