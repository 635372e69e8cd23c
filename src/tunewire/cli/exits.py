"""How a command ends: its exit code, and the one line that says why."""

from __future__ import annotations

import sys

from tunewire.cli.text import printable

__all__ = ["BAD_INPUT", "NOTHING", "OK", "BadInput", "complain", "note"]

OK = 0
#: Nothing could be measured or listed.
NOTHING = 1
BAD_INPUT = 2


class BadInput(Exception):
    """The command line asks for what cannot be; its text is the whole message. Never leaves the command line."""


def note(message: object) -> None:
    """One line on stderr, whatever is in the message."""
    print(printable(" ".join(str(message).split())), file=sys.stderr)  # noqa: T201


def complain(message: object) -> None:
    """One line on stderr that says what went wrong."""
    note(f"tunewire: {message}")
