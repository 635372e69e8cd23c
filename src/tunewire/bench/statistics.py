"""Order statistics of samples: pure functions, no third-party library, so that the parent can use them too.

Times of a kernel are not normally distributed: a floor set by the hardware, and a tail of interruptions. So
what is reported rests on order (minimum, median, quartiles), which one interrupted sample cannot move.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["quantile", "relative_spread"]


def quantile(samples: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the samples lie, interpolated linearly between neighbours.

    Definition 7 of R. J. Hyndman and Y. Fan, "Sample Quantiles in Statistical Packages", The American
    Statistician 50 (1996), the default of NumPy. ValueError where there are no samples.

    >>> quantile([4.0, 1.0, 2.0, 3.0], 0.5)
    2.5
    """
    if not samples:
        raise ValueError("no samples have no quantile")
    ordered = sorted(samples)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def relative_spread(samples: Sequence[float]) -> float:
    """The interquartile range as a share of the median: 0.01 says that the middle half lies within 1 %.

    >>> relative_spread([99.0, 100.0, 100.0, 101.0, 900.0])
    0.01
    """
    return (quantile(samples, 0.75) - quantile(samples, 0.25)) / quantile(samples, 0.5)
