"""A kernel's arguments as NumPy values, made in the worker from their descriptions, and what they should
become.

Contents are a function of the descriptions alone: the same in every process and on every device, so that two
configurations of one kernel compute on the same inputs.

Poison. An output that is only written begins as NaN (floats and complex) or as bytes 0xA5 (integers and
bools). An element that the kernel leaves alone is then wrong, unless the reference says NaN or that very
pattern there.

Inputs and the reference's outputs are kept in the process, by content (the descriptions and the pickled
reference), because a tuning run asks for the same ones in every trial. What is kept is bounded in bytes,
least recently used first to go, and is read-only, so that a reference which writes its inputs fails loudly
instead of spoiling them. Kept values are as safe as the process: a kernel on the host's CPU that writes
through wild pointers may hit them.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tunewire.bench.kernel import Argument, Array, RawKernel, Reference, Scalar
from tunewire.errors import InvalidKernel

__all__ = ["Prepared", "PreparedCache", "argument_name", "initial_value", "poisoned", "prepare"]

POISON_BYTE = 0xA5
CACHE_BYTES = 256 << 20


class Prepared(NamedTuple):
    """Initial values in the arguments' order (read-only arrays, and scalars), and for each output, in order,
    what it should be; () where nothing is to be compared."""

    values: tuple[Any, ...]
    expected: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        """What it costs to keep."""
        return sum(int(value.nbytes) for value in (*self.values, *self.expected))


def initial_value(argument: Argument, position: int) -> Any:
    """An argument's content before the first launch: a read-only array, or a scalar. An output without a fill
    is poisoned; `position` seeds random content that has no seed of its own.

    >>> from tunewire.bench import Array, Scalar
    >>> initial_value(Array(3, fill="arange"), 0), initial_value(Scalar(2, "int32"), 1)
    (array([0., 1., 2.], dtype=float32), np.int32(2))
    """
    if isinstance(argument, Scalar):
        return np.dtype(argument.dtype).type(argument.value)
    value = poisoned(argument) if argument.output and argument.fill is None else _filled(argument, position)
    value.flags.writeable = False
    return value


def poisoned(array: Array) -> Any:
    """A NumPy array of poison, in the shape and dtype of `array`."""
    dtype = np.dtype(array.dtype)
    if dtype.kind in "fc":
        return np.full(array.bound_shape, np.nan, dtype)
    return (
        np.full(math.prod(array.bound_shape) * dtype.itemsize, POISON_BYTE, np.uint8)
        .view(dtype)
        .reshape(array.bound_shape)
    )


def _filled(array: Array, position: int) -> Any:
    match array.fill:
        case None | "random":
            seed = [position] if array.seed is None else array.seed
            return _random(np.random.default_rng(seed), array.bound_shape, np.dtype(array.dtype))
        case "zeros":
            return np.zeros(array.bound_shape, array.dtype)
        case "arange":
            return np.arange(math.prod(array.bound_shape)).astype(array.dtype).reshape(array.bound_shape)
        case number:
            return np.full(array.bound_shape, number, array.dtype)


def _random(rng: Any, shape: Any, dtype: Any) -> Any:
    if dtype.kind == "b":
        return rng.integers(0, 2, shape, np.uint8).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 100, shape, dtype)
    if dtype.kind == "c":
        part = np.dtype(f"f{dtype.itemsize // 2}")
        return (_random(rng, shape, part) + 1j * _random(rng, shape, part)).astype(dtype)
    return (rng.random(shape, np.float64 if dtype.itemsize == 8 else np.float32) * 2 - 1).astype(dtype)


class PreparedCache:
    """Prepared arguments by their key, the least recently used given up when they exceed `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[str, Prepared] = OrderedDict()
        self.nbytes = 0

    def get(self, key: str | None, make: Callable[[], Prepared]) -> Prepared:
        """What is kept under `key`, else what `make` gives, which is kept if there is a key and it fits."""
        if key is not None and key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        prepared = make()
        if key is not None and prepared.nbytes <= self._limit:
            self._kept[key] = prepared
            self.nbytes += prepared.nbytes
            while self.nbytes > self._limit:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes
        return prepared


_cache = PreparedCache(CACHE_BYTES)


def prepare(kernel: RawKernel, *, with_reference: bool, cache: PreparedCache = _cache) -> Prepared:
    """The values of a bound kernel's arguments and, if asked for and there is a reference, its expected
    outputs.

    Whatever the reference raises is raised here; InvalidKernel where it returns what cannot be compared.
    """
    reference = kernel.reference if with_reference else None
    return cache.get(_key(kernel.args, reference), lambda: _prepare(kernel, reference))


def _prepare(kernel: RawKernel, reference: Reference | None) -> Prepared:
    values = tuple(initial_value(argument, position) for position, argument in enumerate(kernel.args))
    if reference is None:
        return Prepared(values, ())
    outputs = [(position, a) for position, a in enumerate(kernel.args) if isinstance(a, Array) and a.output]
    returned = _resolve(reference, kernel)(*values)
    expected = _by_output(returned, outputs, kernel)
    return Prepared(values, tuple(expected))


def _key(arguments: Sequence[Argument], reference: Reference | None) -> str | None:
    import cloudpickle

    digest = hashlib.sha256(msgspec.json.encode(arguments))
    if reference is not None:
        try:
            digest.update(cloudpickle.dumps(reference))
        except Exception:  # noqa: BLE001 - what a reference holds may fail to pickle in any way
            # It came through a pickle, but need not go through another one: then it is computed each time.
            return None
    return digest.hexdigest()


def _resolve(reference: Reference, kernel: RawKernel) -> Callable[..., Any]:
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        reason = f"its reference {reference!r} cannot be imported: {error}"
        raise InvalidKernel(reason=reason, kernel=kernel.title) from error
    if not callable(function):
        raise InvalidKernel(reason=f"its reference {reference!r} is not callable", kernel=kernel.title)
    return function  # type: ignore[no-any-return]


def _by_output(returned: Any, outputs: Sequence[tuple[int, Array]], kernel: RawKernel) -> list[Any]:
    if isinstance(returned, Mapping):
        found = [returned.get(array.name) for _, array in outputs]
    elif isinstance(returned, tuple):
        found = list(returned)
    else:
        found = [returned]
    if len(found) != len(outputs) or any(value is None for value in found):
        names = ", ".join(argument_name(array, position) for position, array in outputs)
        reason = f"its reference must return every output ({names}), and returned {type(returned).__name__}"
        raise InvalidKernel(reason=reason, kernel=kernel.title)
    return [
        _as_expected(value, array, position, kernel)
        for value, (position, array) in zip(found, outputs, strict=True)
    ]


def _as_expected(value: Any, array: Array, position: int, kernel: RawKernel) -> Any:
    expected = np.array(value)
    if expected.shape != array.bound_shape or expected.dtype.kind not in "biufc":
        reason = (
            f"its reference gives {expected.dtype.name} of shape {expected.shape} for "
            f"{argument_name(array, position)}, which has shape {array.bound_shape}"
        )
        raise InvalidKernel(reason=reason, kernel=kernel.title)
    expected.flags.writeable = False
    return expected


def argument_name(array: Array, position: int) -> str:
    """What errors call an argument: its name, else its position, counted from 0."""
    return array.name or f"argument {position}"
