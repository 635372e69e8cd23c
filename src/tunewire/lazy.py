"""Packages that load their parts when these are first named (PEP 562).

So a worker process, which imports `tunewire.runtime`, does not pay for asyncio, a program that only calls does not pay
for numpy, and the guard, which is forked early and keeps for its life what was loaded before, stays small. For the guard's
sake this module itself imports next to nothing, typing least of all (2 MB).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live in these modules of it.

    >>> get, names = attach("tunewire", {"Pool": "pool"})
    >>> get("Pool").__module__, "Pool" in names()
    ('tunewire.pool.driver', True)
    """

    def get(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{package}.{home}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
