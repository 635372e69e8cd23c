"""What a child is started with: its environment, what it imports from, where its output is copied to."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import IO, Any, TypeAlias

#: Where a process's output is copied to: a descriptor or an open file.
Sink: TypeAlias = int | IO[Any] | None


def descriptor_of(sink: Sink) -> int | None:
    """The descriptor of a file that output is copied to."""
    return sink if sink is None or isinstance(sink, int) else sink.fileno()


def checked_environment(env: Mapping[str, str | None]) -> dict[str, str | None]:
    """`env` if a process can have it; TypeError or ValueError that names the variable."""
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise TypeError(f"env maps names to text or None, not {name!r} to {value!r}")
        if not name or "=" in name or "\0" in name or "\0" in (value or ""):
            raise ValueError(f"no process can have the variable {name!r} with the value {value!r}")
        try:
            os.fsencode(name + (value or ""))
        except UnicodeEncodeError as error:
            raise ValueError(f"no process can have the variable {name!r} with the value {value!r}") from error
    return dict(env)


def child_environment(env: Mapping[str, str | None]) -> dict[str, str]:
    """This process's environment with `env` laid over it; None removes a variable."""
    environment = dict(os.environ)
    for name, value in env.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def search_path() -> tuple[str, ...]:
    """What this process imports from. Python passes over entries that are not text, so does a child."""
    return tuple(entry for entry in sys.path if isinstance(entry, str))
