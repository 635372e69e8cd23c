"""A function of a C library as a value that can be sent to a worker and is looked up there.

A ctypes function pointer is an address in one process and cannot be pickled. A `CFunction` is the library's
path, the function's name and its types; the worker loads the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from tunewire.errors import InvalidKernel

__all__ = ["CFunction"]

_POINTER = "c_void_p"
_TYPES = frozenset(
    name
    for name in vars(ctypes)
    if name.startswith("c_")
    and isinstance(getattr(ctypes, name), type)
    and hasattr(getattr(ctypes, name), "_type_")
)


class CFunction(msgspec.Struct, frozen=True):
    """`name` of the shared library `library`, a callable like any other.

    `argtypes` and `restype` are names of ctypes' types, such as "c_double", "c_size_t" or "c_void_p";
    `restype=None` is void. An array passed for a "c_void_p" becomes the address of its first element, which
    must be C-contiguous. A C function may write its arrays, and crash the process that calls it. ctypes
    releases the GIL during the call.

    InvalidKernel for a type that ctypes does not have; and, when it is called, for a library that cannot be
    loaded or has no such function.

    >>> CFunction("libm.so.6", "sqrt", ("c_double",), "c_double")(9.0)
    3.0
    """

    library: str
    name: str
    argtypes: tuple[str, ...] = ()
    restype: str | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "argtypes", tuple(self.argtypes))
        for name in (*self.argtypes, *(() if self.restype is None else (self.restype,))):
            if name not in _TYPES:
                raise InvalidKernel(
                    reason=f"{name!r} is not one of ctypes' types: {', '.join(sorted(_TYPES))}"
                )

    def __call__(self, *args: Any) -> Any:
        return self.bind(args)()

    def bind(self, args: Sequence[Any]) -> Callable[[], Any]:
        """The call with these arguments converted, ready to be made many times; valid while the arrays
        live."""
        if len(args) != len(self.argtypes):
            reason = f"{self.name} takes {len(self.argtypes)} arguments, and {len(args)} are given"
            raise InvalidKernel(reason=reason, kernel=self.name)
        converted = [_converted(value, name) for value, name in zip(args, self.argtypes, strict=True)]
        return partial(_load(self), *converted)


def _converted(value: Any, argtype: str) -> Any:
    if argtype == _POINTER and hasattr(value, "__array_interface__"):
        if not value.flags.c_contiguous:
            raise InvalidKernel(reason="an array that is not C-contiguous has no single address")
        return value.ctypes.data
    return value.item() if hasattr(value, "item") else value


@cache
def _load(function: CFunction) -> Any:
    try:
        pointer = getattr(ctypes.CDLL(function.library), function.name)
    except OSError as error:
        reason = f"library {function.library!r} cannot be loaded: {error}"
        raise InvalidKernel(reason=reason, kernel=function.name) from error
    except AttributeError as error:
        reason = f"library {function.library!r} has no function of that name"
        raise InvalidKernel(reason=reason, kernel=function.name) from error
    pointer.argtypes = [getattr(ctypes, name) for name in function.argtypes]
    pointer.restype = None if function.restype is None else getattr(ctypes, function.restype)
    return pointer
