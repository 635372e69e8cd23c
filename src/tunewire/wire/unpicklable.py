"""Which part of an object cannot be serialized: a search that runs only after serializing the whole has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

_MAX_DEPTH = 12
#: Objects looked at before the search gives up with the path found so far: each look serializes a part again.
_MAX_LOOKS = 400


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[{key!r}]", item
        for key in value:
            yield f".keys()[{key!r}]", key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield f"[{index}]", item
    elif isinstance(value, (set, frozenset)):
        for item in value:
            yield f"{{{item!r:.40}}}", item
    closure = getattr(value, "__closure__", None)
    if isinstance(closure, tuple):
        names = value.__code__.co_freevars  # type: ignore[attr-defined]
        for name, cell in zip(names, closure, strict=True):
            try:
                yield f".<closure {name}>", cell.cell_contents
            except ValueError:  # a cell that is not filled yet
                continue
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, type):
        for name, item in attributes.items():
            yield f".{name}", item


def locate(value: object, serialize: Callable[[object], object]) -> str:
    """The path of the deepest part of `value` that `serialize` refuses, such as `['net'].callback`; "" for the whole.

    >>> import pickle
    >>> locate({"a": 1, "b": [2, lambda: 3]}, pickle.dumps)
    "['b'][1]"
    """
    looks = _MAX_LOOKS
    path = ""
    seen: set[int] = set()
    for _ in range(_MAX_DEPTH):
        seen.add(id(value))
        for step, part in _parts(value):
            looks -= 1
            if looks < 0:
                return path
            if id(part) in seen or _serializes(part, serialize):
                continue
            path, value = path + step, part
            break
        else:
            return path
    return path


def _serializes(value: object, serialize: Callable[[object], object]) -> bool:
    try:
        serialize(value)
    except Exception:  # noqa: BLE001 — the question is whether it fails, in whatever way
        return False
    return True
