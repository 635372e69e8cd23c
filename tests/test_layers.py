"""The floors of the house: who may import whom, as a table, and a check that reads the source.

Every import counts, wherever it stands: at the top, inside a function, under TYPE_CHECKING, relative, or by
`importlib.import_module` with a literal name. The text is read and nothing is imported, so that an arrow is
seen even where it would never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tunewire import errors

SOURCE = Path(errors.__file__).parent
DOOR = "__init__"
"""What `import tunewire` loads: the public door. It opens onto every floor; no floor goes through it."""

GROUND = frozenset({"errors", "lazy", "version"})
"""What every floor stands on."""

# A row names a package or module directly under tunewire, and what it may import besides itself and the
# ground. "pool.protocol" permits that one module of pool alone, so that another can stand in a pool's place.
ALLOWED: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "lazy": frozenset(),
    "version": frozenset(),
    "wire": frozenset(),
    "runtime": frozenset({"wire"}),  # runs in the child, where each module that is loaded delays a start
    "endpoints": frozenset(
        {"wire", "runtime.claim", "runtime.memory", "runtime.bulk"}
    ),  # what every child does
    "workers": frozenset({"wire", "endpoints", "runtime"}),
    "devices": frozenset({"wire", "endpoints", "workers"}),
    "services": frozenset({"wire", "endpoints", "runtime.claim", "workers.limits", "devices.masks"}),
    "telemetry": frozenset({"services", "devices.masks", "workers.limits", "wire.exceptions"}),
    "pool": frozenset({"wire", "endpoints", "runtime", "workers", "devices"}),
    "bench": frozenset({"wire", "runtime", "workers", "devices", "pool.protocol"}),
    "tune": frozenset({"wire", "runtime", "workers", "devices", "pool.protocol", "bench"}),
    "__main__": frozenset({"cli"}),
    "cli": frozenset({"workers", "devices", "pool", "bench", "tune"}),
    "testing": frozenset({"wire", "endpoints", "runtime", "workers", "pool"}),
    DOOR: frozenset(
        {"endpoints", "services", "telemetry", "runtime", "workers", "devices", "pool", "bench", "tune"}
    ),
}

# Frames, messages and errors know no descriptor, process, loop or clock.
SANS_IO = frozenset({"errors", "wire"})
IO = frozenset(
    {"anyio", "asyncio", "multiprocessing", "os", "select", "signal", "socket", "subprocess", "time"}
)


class Import(NamedTuple):
    target: str
    line: int


def modules(source: Path) -> dict[str, str]:
    """The text of every module in the folder, by its full name, a package's by `name.__init__`."""
    return {
        ".".join(("tunewire", *path.relative_to(source).with_suffix("").parts)): path.read_text()
        for path in sorted(source.rglob("*.py"))
    }


def imports(name: str, text: str) -> Iterator[Import]:
    """What a module imports. `from a import b` gives `a.b`, of which b may be a module or a name in one."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (Import(each.name, node.lineno) for each in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                above = name.split(".")[:-level] if level else []
                start = [*above, module] if module else above
                yield from (Import(".".join([*start, each.name]), node.lineno) for each in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield Import(target, node.lineno)


def resolve(target: str, known: Mapping[str, str]) -> str | None:
    """The module of ours that a dotted name lies in; None for what is not ours."""
    parts = target.split(".")
    if parts[0] != "tunewire":
        return None
    ends = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((each for end in ends for each in (end, f"{end}.{DOOR}") if each in known), target)


def permitted(module: str, floor: str) -> bool:
    allowed = {floor, *GROUND, *ALLOWED[floor]}
    return any(f"{module}.".startswith(f"tunewire.{each}.") for each in allowed)


def objection(floor: str, found: Import, known: Mapping[str, str]) -> str | None:
    module = resolve(found.target, known)
    if module is not None:
        return None if permitted(module, floor) else f"may not import {module}"
    foreign = found.target.split(".")[0]
    return f"does no input or output, and imports {foreign}" if floor in SANS_IO and foreign in IO else None


def violations(known: Mapping[str, str]) -> list[str]:
    found = []
    for name, text in known.items():
        floor = name.split(".")[1]
        if floor not in ALLOWED:
            found.append(f"{name} stands on no floor of the table")
            continue
        for each in imports(name, text):
            if why := objection(floor, each, known):
                found.append(f"{name}:{each.line} {why}")
    return found


def cycle(known: Mapping[str, str]) -> list[str]:
    """Some modules that import each other in a ring, or nothing."""
    arrows = {
        name: {resolve(each.target, known) for each in imports(name, text)} - {None, name}
        for name, text in known.items()
    }
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_imports_go_down_only() -> None:
    assert violations(modules(SOURCE)) == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert cycle(modules(SOURCE)) == []


def test_each_row_of_the_table_is_a_floor_that_stands() -> None:
    assert set(ALLOWED) <= {name.split(".")[1] for name in modules(SOURCE)}


EMPTY = (
    "__init__",
    "errors",
    "wire.__init__",
    "workers.__init__",
    "workers.driver",
    "pool.__init__",
    "pool.protocol",
    "pool.driver",
    "bench.__init__",
)


def house(changed: Mapping[str, str]) -> dict[str, str]:
    """The modules of a small house, with nothing in them but what is given."""
    return {f"tunewire.{name}": text for name, text in {**dict.fromkeys(EMPTY, ""), **changed}.items()}


@pytest.mark.parametrize(
    ("where", "text", "objection"),
    [
        ("wire.frames", "from tunewire.pool import Pool", "may not import tunewire.pool.__init__"),
        ("wire.frames", "import tunewire.pool.driver", "may not import tunewire.pool.driver"),
        ("wire.frames", "import tunewire", "may not import tunewire.__init__"),
        ("wire.frames", "from tunewire import Pool", "may not import tunewire.__init__"),
        ("workers.process", "from ..pool import driver", "may not import tunewire.pool.driver"),
        ("workers.process", "from .. import pool", "may not import tunewire.pool.__init__"),
        (
            "workers.process",
            "from .driver import x\nfrom ..pool.driver import y",
            "may not import tunewire.pool.driver",
        ),
        ("workers.__init__", "from ..pool import Pool", "may not import tunewire.pool.__init__"),
        ("workers.process", "def f():\n    import tunewire.pool", "may not import tunewire.pool.__init__"),
        (
            "workers.process",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tunewire.pool import Pool",
            "may not import tunewire.pool.__init__",
        ),
        (
            "workers.process",
            "import importlib\nimportlib.import_module('tunewire.pool')",
            "may not import tunewire.pool.__init__",
        ),
        ("bench.measure", "from tunewire.pool import Pool", "may not import tunewire.pool.__init__"),
        ("bench.measure", "from tunewire.pool.driver import x", "may not import tunewire.pool.driver"),
        ("wire.frames", "def f():\n    import asyncio", "does no input or output, and imports asyncio"),
        ("extra.module", "", "stands on no floor of the table"),
        ("extra", "", "stands on no floor of the table"),
    ],
)
def test_an_arrow_upwards_is_seen(where: str, text: str, objection: str) -> None:
    (found,) = violations(house({where: text}))
    assert found.endswith(objection)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("wire.frames", "from tunewire.errors import WireError\nfrom tunewire import errors\nimport struct"),
        ("bench.measure", "from tunewire.pool.protocol import Caller\nfrom tunewire.pool import protocol"),
        ("workers.process", "from . import driver\nfrom .driver import x\nimport asyncio"),
        ("__init__", "from tunewire.pool import Pool"),
    ],
)
def test_an_arrow_downwards_is_let_pass(where: str, text: str) -> None:
    assert violations(house({where: text})) == []


def test_a_ring_is_seen() -> None:
    ring = house(
        {"workers.process": "from tunewire.workers import driver", "workers.driver": "from . import process"}
    )
    assert set(cycle(ring)) == {"tunewire.workers.process", "tunewire.workers.driver"}
    assert cycle(house({})) == []
