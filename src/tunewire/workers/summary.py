"""What a call was made with, in a few words: for the report of its process's death.

Shown are plain scalars and the sizes of containers. Of anything else only its type is named: a `repr` of a user's could
take seconds, fail, or be as long as a book, and it would run in the process that must not be hurt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunewire.errors import encodable

_SCALARS = (bool, int, float, complex, type(None))
_TEXT_LENGTH = 40
_MOST = 8


def summary_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The arguments, shortened, as they would stand in a call.

    >>> summary_of((3, "tile", [1, 2], object()), {"unroll": True})
    "(3, 'tile', <list of 2>, <object>, unroll=True)"
    """
    shown = [_shown(value) for value in args[:_MOST]]
    shown += [f"{name}={_shown(value)}" for name, value in list(kwargs.items())[:_MOST]]
    left = max(len(args) - _MOST, 0) + max(len(kwargs) - _MOST, 0)
    return encodable(f"({', '.join([*shown, f'and {left} more'] if left else shown)})")


def _shown(value: object) -> str:
    kind = type(value)
    if kind in _SCALARS:
        # An int has no bound either, and Python refuses to write out one of many thousand digits.
        return repr(value) if kind is not int or value.bit_length() < 200 else "<a long int>"  # type: ignore[attr-defined]
    if kind is str or kind is bytes:
        assert isinstance(value, str | bytes)
        return repr(value) if len(value) <= _TEXT_LENGTH else f"<{kind.__name__} of {len(value)}>"
    if kind in (list, tuple, dict, set, frozenset, bytearray):
        return f"<{kind.__name__} of {len(value)}>"  # type: ignore[arg-type]
    return f"<{kind.__name__}>"
