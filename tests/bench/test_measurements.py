from __future__ import annotations

import math
import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.bench import Measurement
from tunewire.bench.statistics import quantile, relative_spread


def measurement(**changes: Any) -> Measurement:
    parts: dict[str, Any] = {
        "samples_ns": (4.0, 2.0, 3.0),
        "device": "cpu",
        "backend": "cpu",
        "clock": "perf_counter_ns",
        "resolution_ns": 1.0,
    }
    return Measurement(**{**parts, **changes})


def test_numbers_follow_from_the_samples() -> None:
    taken = measurement(flops=6.0, bytes=12.0)
    assert taken.samples_ns == (4.0, 2.0, 3.0)
    assert (taken.min_ns, taken.median_ns) == (2.0, 3.0)
    assert taken.spread == pytest.approx(1 / 3)
    assert (taken.gflops, taken.gbytes_per_s) == (2.0, 4.0)


def test_rates_need_the_authors_count() -> None:
    assert measurement().gflops is None
    assert measurement().gbytes_per_s is None


@pytest.mark.parametrize("samples", [(), (0.0,), (1.0, -1.0), (math.nan,), (math.inf,)])
def test_a_time_that_is_none_is_no_measurement(samples: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="sample"):
        measurement(samples_ns=samples)


def test_is_plain_data_and_is_checked_where_it_arrives() -> None:
    taken = measurement()
    assert pickle.loads(pickle.dumps(taken)) == taken
    assert msgspec.json.decode(msgspec.json.encode(taken), type=Measurement) == taken
    zero = msgspec.json.encode(taken).replace(b"[4.0,2.0,3.0]", b"[4.0,0.0,3.0]")
    with pytest.raises(msgspec.ValidationError, match="not a positive finite time"):
        msgspec.json.decode(zero, type=Measurement)


@given(st.lists(st.floats(1, 1e9), min_size=1, max_size=30), st.floats(0, 1))
def test_quantiles_are_numpys(samples: list[float], share: float) -> None:
    assert quantile(samples, share) == pytest.approx(float(np.quantile(samples, share)))


def test_no_samples_have_no_quantile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)


def test_the_spread_is_of_the_middle_half() -> None:
    assert relative_spread([99.0, 100.0, 100.0, 101.0, 1e6]) == pytest.approx(0.01)
    assert relative_spread([7.0]) == 0.0
