"""NumPy arrays in msgspec values: an extension type of msgpack, whose elements travel in a buffer of their own.

Where the array stands in the value there is extension 1 of msgpack, with [the elements' type, the shape, the number of
the buffer]. The type is NumPy's own short word for it (`<f4`), and must be one of plain numbers: an array of objects is a
pickle in disguise, and what a peer sends is never unpickled. So an array is neither copied into the value nor out of it,
and a large one lies in shared memory (wire.lane) for its way.

What is read may come from anyone: a type that is not plain, a shape whose elements are not exactly the bytes of the
buffer, a buffer that did not come, each is a ValueError. NumPy is imported by whoever has an array in hand, or reads one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tunewire.wire.frames import Buffer

#: The number of the extension.
ARRAY: Final = 1
#: NumPy's letters for booleans, integers with and without sign, and real and complex floating-point numbers.
_KINDS: Final = "biufc"


class _Head(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    buffer: int


def take_out(buffers: list[Buffer]) -> Callable[[Any], Any]:
    """For `msgspec.msgpack.encode`, as `enc_hook`: the elements of the arrays in a value go to the end of `buffers`. NumPy's
    scalars become Python's."""

    def hook(value: Any) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in _KINDS:
            return value.item()
        if numpy is None or not isinstance(value, numpy.ndarray):
            # In the words that msgspec itself has for it.
            raise TypeError(f"Encoding objects of type {type(value).__qualname__} is unsupported")
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {value.dtype} is not one of plain numbers")
        head = msgspec.msgpack.encode(_Head(value.dtype.str, value.shape, len(buffers)))
        buffers.append(memoryview(numpy.ascontiguousarray(value)).cast("B") if value.size else b"")
        return msgspec.msgpack.Ext(ARRAY, head)

    return hook


def put_back(buffers: Sequence[Buffer]) -> Callable[[int, memoryview], Any]:
    """For `msgspec.msgpack.decode`, as `ext_hook`: the arrays of a value, whose elements lie in these buffers."""

    def hook(code: int, data: memoryview) -> Any:
        if code != ARRAY:
            raise ValueError(f"there is no extension {code}")
        head = msgspec.msgpack.decode(data, type=_Head)
        import numpy as np

        dtype = np.dtype(head.dtype) if head.dtype[1:2] in _KINDS and head.dtype[2:].isdecimal() else None
        if dtype is None:
            raise ValueError(f"{head.dtype!r:.40} is no type of plain numbers")
        if not 1 <= head.buffer < len(buffers):
            raise ValueError(f"an array refers to buffer {head.buffer} of {len(buffers)}")
        elements = buffers[head.buffer]
        if min(head.shape, default=0) < 0 or math.prod(head.shape) * dtype.itemsize != len(elements):
            raise ValueError(f"an array of shape {head.shape!r:.80} has {len(elements)} bytes")
        return np.frombuffer(elements, dtype).reshape(head.shape)

    return hook
