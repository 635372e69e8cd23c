"""How much faster one measurement is than another, and whether that can be told.

The median of a sample is known only to within an interval. The one used here rests on order alone, so it holds for
any distribution: with n independent samples, the number that fall below the true median is binomial (n, 1/2), so
that the k-th smallest and k-th largest sample enclose it with a probability that follows from k (H. A. David and
H. N. Nagaraja, "Order Statistics", 3rd edition, section 7.1). k is the largest that keeps 95 %; with fewer than
six samples even the smallest and the largest do not, and nothing can be told.

A ratio's interval divides the ends of both intervals crosswise, which is wider than 95 % calls for, never narrower.

Refused: samples of one measurement follow each other within a second, in one process, so what differs from run to run
(placement of memory, temperature) is not in the interval. And the best of many configurations looks a little better
than it is, since it was chosen for its samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tunewire.bench import Measurement

__all__ = ["Comparison", "compare", "median_interval"]

#: An interval may miss the median once in so many times: 95 % confidence.
ONE_IN = 20


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast: the ratio of the medians, and the interval from `low` to `high` that it lies in.

    >>> Comparison(ratio=1.01, low=0.98, high=1.05).can_tell
    False
    """

    ratio: float
    low: float
    high: float

    @property
    def can_tell(self) -> bool:
        """Whether the interval excludes that both are equally fast."""
        return not self.low <= 1.0 <= self.high


def compare(baseline: Measurement, candidate: Measurement) -> Comparison:
    """How many times as fast as `baseline` the candidate is: 2.0 where it takes half the time.

    >>> def measured(*samples_ns):
    ...     return Measurement(
    ...         samples_ns=samples_ns, device="cpu", backend="cpu", clock="perf_counter_ns", resolution_ns=1.0)
    >>> comparison = compare(measured(*[200.0] * 8), measured(*[100.0] * 8))
    >>> comparison.ratio, comparison.can_tell
    (2.0, True)
    """
    slow_low, slow_high = median_interval(baseline.samples_ns)
    fast_low, fast_high = median_interval(candidate.samples_ns)
    return Comparison(
        ratio=baseline.median_ns / candidate.median_ns,
        low=slow_low / fast_high,
        high=slow_high / fast_low if fast_low else math.inf,
    )


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """An interval that holds the median of what the samples are drawn from, with 95 % confidence or more.

    With fewer than six samples there is none: (0, infinity).

    >>> median_interval([5.0, 1.0, 2.0, 6.0, 3.0, 4.0])
    (1.0, 6.0)
    """
    ordered = sorted(samples)
    rank = _rank(len(ordered))
    return (0.0, math.inf) if rank == 0 else (ordered[rank - 1], ordered[-rank])


def _rank(count: int) -> int:
    """The largest k for which the k-th smallest and k-th largest of `count` samples enclose the median often
    enough; 0 where there is none."""
    # Counted in sequences of fair tosses, in whole numbers: 2**-count alone is 0.0 from 1,075 samples on.
    outside, rank = 1, 0
    while rank < count // 2 and 2 * outside * ONE_IN <= 2**count:
        rank += 1
        outside += math.comb(count, rank)
    return rank
