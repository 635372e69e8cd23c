"""The command line: `tunewire tune`, `tunewire bench`, `tunewire devices`.

Results go to stdout, progress and errors to stderr. Exit codes: 0 where something was measured or listed, 1 where
nothing could be, 2 for bad input (always one line on stderr), 130 and 143 after Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tunewire.errors import MissingExtra

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (this process's own where `arguments` is None); its exit code.

    >>> main(["tune", "missing.py"])
    2
    """
    try:
        from tunewire.cli.app import run
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("cyclopts", "rich"):
            raise
        print(f"tunewire: {MissingExtra(package=package, extra='cli')}", file=sys.stderr)  # noqa: T201
        return 2
    return run(sys.argv[1:] if arguments is None else arguments)
