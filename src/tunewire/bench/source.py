"""What can be said of a kernel's source text without compiling it: whether it speaks of a name at all.

This is not a parser. Comments are removed, since a name that only a comment mentions is not used; everything
else counts, string literals and disabled preprocessor branches included. So "not found" is certain, and
"found" means no more than that the compiler has the last word.
"""

from __future__ import annotations

import math
import re

from tunewire.bench.expressions import Value

__all__ = ["definition", "is_identifier", "mentions", "without_comments"]

# String and character literals are matched first, so that "//" inside one does not begin a comment.
_COMMENT_OR_LITERAL = re.compile(
    r"""("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z)""", re.DOTALL
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN_TEXT = re.compile(r"[^\s\"'\\]+")


def is_identifier(text: str) -> bool:
    """Whether `text` can name something in C.

    >>> is_identifier("TILE_X"), is_identifier("2D")
    (True, False)
    """
    return _IDENTIFIER.fullmatch(text) is not None


def without_comments(source: str) -> str:
    """`source` with each comment replaced by one space.

    >>> without_comments("a /* b */ = 1; // c")
    'a   = 1;  '
    """
    return _COMMENT_OR_LITERAL.sub(lambda match: match[1] or " ", source)


def mentions(code: str, name: str) -> bool:
    """Whether `code`, from which comments were taken out, has `name` as a word of its own.

    >>> mentions("x[TILE * 2]", "TILE"), mentions("x[TILE_X]", "TILE")
    (True, False)
    """
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", code) is not None


def definition(name: str, value: Value) -> str:
    """`-D name=value`, in one word, as compilers of OpenCL C and CUDA C++ take it. True is 1 and False is 0.

    ValueError for what has no spelling there: a name that is no identifier, text with white space, quotes or
    backslashes (options are one string to an OpenCL compiler, which has no quoting that all drivers share),
    infinities and NaN.

    >>> definition("TILE", 16), definition("T", "float4"), definition("UNROLL", True)
    ('-DTILE=16', '-DT=float4', '-DUNROLL=1')
    """
    if not is_identifier(name):
        raise ValueError(f"{name!r} cannot be defined: it is not an identifier")
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} cannot be defined: {value} has no spelling in C")
    if isinstance(value, str) and not _PLAIN_TEXT.fullmatch(value):
        raise ValueError(f"{name} cannot be defined as {value!r}: only one word without quotes can")
    if not isinstance(value, int | float | str):
        raise ValueError(f"{name} cannot be defined: {value!r} is not a number, text, True or False")  # noqa: TRY004
    return f"-D{name}={value}"
