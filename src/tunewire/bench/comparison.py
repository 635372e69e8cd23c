"""Whether an output is right: element by element against the reference, in a type wide enough for both.

Floats and complex numbers: right when `|actual - expected| <= atol + rtol * |expected|`, when both are NaN,
or when both are the same infinity. Integers and bools: right when `|actual - expected| <= atol`, with the
difference taken exactly; a relative tolerance would let a wrong index pass for being large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tunewire.bench.arguments import argument_name
from tunewire.bench.kernel import Array, RawKernel
from tunewire.errors import WrongResult

__all__ = ["compare", "compare_outputs"]

_EXACT_BELOW = 2.0**63


def compare_outputs(
    kernel: RawKernel, actual: Sequence[Any], expected: Sequence[Any], *, device: str | None = None
) -> None:
    """WrongResult, with the numbers, for the first output of a kernel that differs from the reference."""
    outputs = [(position, a) for position, a in enumerate(kernel.args) if isinstance(a, Array) and a.output]
    for (position, array), got, wanted in zip(outputs, actual, expected, strict=True):
        compare(
            got,
            wanted,
            argument=argument_name(array, position),
            rtol=kernel.rtol,
            atol=kernel.atol,
            device=device,
        )


def compare(
    actual: Any, expected: Any, *, argument: str, rtol: float, atol: float, device: str | None = None
) -> None:
    """WrongResult where an element of `actual` is not within the tolerance of `expected` (arrays of one
    shape).

    >>> import numpy as np
    >>> compare(np.float32([1, 2]), np.float64([1, 2.00001]), argument="y", rtol=1e-4, atol=0)
    """
    with np.errstate(all="ignore"):
        if actual.dtype.kind in "fc" or expected.dtype.kind in "fc":
            wrong, absolute, size = _inexact(actual, expected, rtol, atol)
        else:
            wrong, absolute, size = _exact(actual, expected, atol)
        mismatched = int(np.count_nonzero(wrong))
        if not mismatched:
            return
        absolute = absolute[wrong]
        relative = absolute / size[wrong]
    raise WrongResult(
        argument=argument,
        mismatched=mismatched,
        total=int(actual.size),
        worst_absolute=_worst(absolute),
        worst_relative=_worst(relative),
        rtol=rtol,
        atol=atol,
        device=device,
    )


def _inexact(actual: Any, expected: Any, rtol: float, atol: float) -> tuple[Any, Any, Any]:
    wide = np.complex128 if "c" in actual.dtype.kind + expected.dtype.kind else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    size = np.abs(e)
    absolute = np.abs(a - e)
    right = (absolute <= atol + rtol * size) & np.isfinite(e)
    right |= (a == e) | (np.isnan(a) & np.isnan(e))
    return ~right, absolute, size


def _exact(actual: Any, expected: Any, atol: float) -> tuple[Any, Any, Any]:
    # A bool is compared as its byte: poison is neither True nor False there, and would pass for True.
    a, e = (array.view(np.uint8) if array.dtype.kind == "b" else array for array in (actual, expected))
    # A difference below 2^63 is exact in uint64, whatever the signs; a larger one may wrap there, and is far
    # beyond what a float64 cannot tell from its neighbours.
    above = a > e
    a64, e64 = a.astype(np.uint64), e.astype(np.uint64)
    exact = np.where(above, a64, e64) - np.where(above, e64, a64)
    rough = np.abs(a.astype(np.float64) - e.astype(np.float64))
    wrong = np.where(rough < _EXACT_BELOW, exact > atol, rough > atol)
    return wrong, np.where(rough < _EXACT_BELOW, exact, rough), np.abs(e.astype(np.float64))


def _worst(differences: Any) -> float:
    """The largest difference; infinity where one is not a number, as the difference to a NaN is."""
    worst = float(np.max(differences))
    return math.inf if math.isnan(worst) else worst
