"""Callables on the CPU, measured in this process: the function that a worker runs is a plain one."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunewire.bench import Array, CFunction, Measurement, Scalar
from tunewire.bench.procedure import MIN_STEPS, Plan
from tunewire.bench.worker import measure_callable, seal
from tunewire.errors import EncodeError, InvalidKernel, NoSuchDevice


def run(
    function: Any, *args: Any, samples: int = 3, warmup: int = 1, device: str = "cpu", **kwargs: Any
) -> Measurement:
    return measure_callable(seal(function, args, kwargs), device, Plan(samples=samples, warmup=warmup))


def busy(ns: int) -> None:
    end = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < end:
        pass


def test_a_callable_is_timed_by_the_wall_clock() -> None:
    taken = run(busy, 200_000)
    assert len(taken.samples_ns) == 3
    assert taken.min_ns >= 200_000
    assert taken.launches_per_sample == 1
    assert (taken.device, taken.backend, taken.clock) == ("cpu", "cpu", "perf_counter_ns")
    assert (taken.check, taken.compile_s, taken.device_work) == ("not asked", None, None)


def test_a_call_that_is_shorter_than_the_clocks_step_is_timed_many_at_once() -> None:
    taken = run(int)
    assert taken.launches_per_sample > 1
    assert taken.min_ns > 0
    assert max(taken.samples_ns) * taken.launches_per_sample >= taken.resolution_ns * MIN_STEPS / 2
    assert taken.first_ns is None or taken.first_ns > 0


def test_arguments_that_are_described_are_made_here_and_others_are_passed() -> None:
    def candidate(x: Any, n: Any, plain: Any, *, out: Any) -> None:
        assert isinstance(x, np.ndarray)
        assert list(x) == [0, 1, 2]
        assert n == np.float32(2)
        assert plain == "as it is"
        out[...] = x * n

    run(
        candidate,
        Array(3, fill="arange"),
        Scalar("1 + 1", "float32"),
        "as it is",
        out=Array("1 + 2", output=True),
    )


def test_what_a_callable_raises_is_raised() -> None:
    def candidate() -> None:
        raise KeyError("from the candidate")

    with pytest.raises(KeyError, match="from the candidate"):
        run(candidate)


def test_what_cannot_be_sent_is_named() -> None:
    with pytest.raises(EncodeError, match="busy"):
        seal(busy, [ctypes.pointer(ctypes.c_int(1))], {})


def test_a_callable_has_no_opencl_device() -> None:
    with pytest.raises(NoSuchDevice, match="'cpu' or on a CUDA device"):
        run(busy, 1, device="opencl:0")


@pytest.fixture
def untouched_clock() -> Iterator[None]:
    original = time.perf_counter_ns
    yield
    time.perf_counter_ns = original


@pytest.mark.usefixtures("untouched_clock")
def test_a_candidate_that_replaces_the_clock_does_not_change_its_time() -> None:
    def candidate() -> None:
        time.perf_counter_ns = lambda: 1  # type: ignore[assignment]
        busy_until = time.monotonic() + 0.001
        while time.monotonic() < busy_until:
            pass

    assert run(candidate).min_ns >= 1_000_000


SOURCE = """
#include <stddef.h>
#include <stdint.h>
void scale(double *y, const float *x, double by, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = by * x[i];
}
int32_t add(int32_t a, int32_t b) { return a + b; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("library")
    (folder / "candidate.c").write_text(SOURCE)
    built = folder / "candidate.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(built), str(folder / "candidate.c")]
    subprocess.run(command, check=True, timeout=60)
    return str(built)


def test_a_c_function_is_a_callable_like_any_other(library: str) -> None:
    add = CFunction(library, "add", ("c_int32", "c_int32"), "c_int32")
    assert add(2, 3) == 5
    assert run(add, 2, 3).min_ns > 0


def test_arrays_are_given_to_c_by_their_address(library: str) -> None:
    scale = CFunction(library, "scale", ("c_void_p", "c_void_p", "c_double", "c_size_t"))
    y, x = np.empty(4), np.arange(4, dtype=np.float32)
    assert scale(y, x, np.float64(2.5), 4) is None
    assert list(y) == [0.0, 2.5, 5.0, 7.5]
    taken = run(
        scale, Array(4096, "float64", output=True), Array(4096), Scalar(2.5, "float64"), Scalar(4096, "int64")
    )
    assert taken.median_ns > 0


def test_a_c_function_travels_and_is_looked_up_where_it_runs(library: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidKernel, match="cannot be loaded"):
        CFunction(str(tmp_path / "missing.so"), "add")()
    with pytest.raises(InvalidKernel, match="has no function of that name"):
        CFunction(library, "missing")()


@pytest.mark.parametrize("name", ["c_nonsense", "py_object", "Structure", "POINTER", ""])
def test_a_type_that_ctypes_does_not_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidKernel, match="is not one of ctypes' types"):
        CFunction("libm.so.6", "f", (name,))
    with pytest.raises(InvalidKernel, match="is not one of ctypes' types"):
        CFunction("libm.so.6", "f", (), name)


def test_arguments_that_do_not_fit_are_refused_before_c_sees_them(library: str) -> None:
    scale = CFunction(library, "scale", ("c_void_p", "c_void_p", "c_double", "c_size_t"))
    with pytest.raises(InvalidKernel, match="takes 4 arguments, and 1 are given"):
        scale(1)
    with pytest.raises(InvalidKernel, match="not C-contiguous"):
        scale(np.empty((4, 4))[:, 1], np.empty(4), 1.0, 4)
    with pytest.raises(ctypes.ArgumentError):
        scale("text", "text", "text", 4)
