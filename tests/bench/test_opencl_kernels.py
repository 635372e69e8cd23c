"""Kernels on PoCL, each measured in a worker process; the tests of this module share one pool."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tunewire import Pool
from tunewire.bench import Array, Measurement, RawKernel, Scalar, Work, benchmark
from tunewire.errors import CompileFailed, InvalidKernel, NoSuchDevice, WrongResult

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_opencl]

DEVICE = "opencl:0"
N = 1000
SOURCE = """
kernel void scale(global float *y, global const float *x, float by, int n) {
    int i = get_global_id(0);
    if (i < n) y[i] = by * x[i];
}
"""


def scaled(y: Any, x: Any, by: Any, n: Any) -> Any:
    return by * x


def scale(source: str = SOURCE, **changes: Any) -> RawKernel:
    parts: dict[str, Any] = {
        "entry": "scale",
        "args": [Array("N", output=True, name="y"), Array("N"), Scalar(2.5, "float32"), Scalar("N", "int32")],
        "grid": "ceil(N / BLOCK)",
        "block": "BLOCK",
        "defines": {"N": N, "BLOCK": 64},
        "reference": scaled,
    }
    return RawKernel(source, **{**parts, **changes})


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    env = {"POCL_CACHE_DIR": str(tmp_path_factory.mktemp("pocl"))}
    async with Pool(devices=[DEVICE], env=env) as opened:
        yield opened


async def measured(pool: Pool, kernel: RawKernel, **options: Any) -> Measurement:
    return await benchmark(kernel, pool=pool, **{"samples": 3, "warmup": 1, "timeout": 60, **options})


async def test_a_right_kernel_has_a_time_and_says_how_it_was_taken(pool: Pool) -> None:
    taken = await measured(pool, scale(work=Work(flops="N", bytes="8 * N")), samples=5)
    assert len(taken.samples_ns) == 5
    assert taken.check == "passed"
    assert (taken.device, taken.backend, taken.clock) == (DEVICE, "opencl", "opencl profiling events")
    assert taken.first_ns is not None
    assert taken.compile_s is not None
    assert taken.compile_s > 0
    assert taken.gbytes_per_s == 8 * N / taken.median_ns
    assert taken.driver is not None
    assert "Portable Computing Language" in taken.driver
    assert taken.library is not None
    assert taken.library.startswith("PyOpenCL 20")


async def test_a_grid_counts_blocks_in_each_dimension(pool: Pool) -> None:
    source = """
    kernel void where(global int *y) {
        int x = get_global_id(0), row = get_global_id(1), plane = get_global_id(2);
        y[(plane * get_global_size(1) + row) * get_global_size(0) + x] = get_num_groups(0) * 100
            + get_num_groups(1) * 10 + get_num_groups(2);
    }
    """

    def groups(y: Any) -> Any:
        import numpy

        return numpy.full(y.shape, 321, numpy.int32)

    kernel = RawKernel(
        source,
        "where",
        args=[Array((2, 4, 24), "int32", output=True)],
        grid=(3, 2),
        block=(8, 2, 2),
        reference=groups,
    )
    assert (await measured(pool, kernel)).check == "passed"


async def test_a_wrong_result_is_told_with_its_numbers(pool: Pool) -> None:
    with pytest.raises(WrongResult) as raised:
        await measured(pool, scale(SOURCE.replace("by * x[i]", "by * x[i] + (i % 10 == 0)")))
    error = raised.value
    assert (error.argument, error.device, error.total) == ("y", DEVICE, N)
    assert error.mismatched == N // 10
    assert error.worst_absolute == pytest.approx(1.0)


async def test_an_element_that_is_not_written_is_wrong(pool: Pool) -> None:
    with pytest.raises(WrongResult) as raised:
        await measured(pool, scale(SOURCE.replace("i < n", "i < n && i != 7")))
    assert raised.value.mismatched == 1


async def test_an_output_with_a_fill_is_read_and_checked_once(pool: Pool) -> None:
    source = "kernel void add(global float *y) { y[get_global_id(0)] += 1.0f; }"

    def reference(y: Any) -> Any:
        return y + 1

    kernel = RawKernel(
        source, "add", args=[Array(64, fill=3, output=True)], grid=1, block=64, reference=reference
    )
    assert (await measured(pool, kernel)).check == "passed"


async def test_without_a_reference_or_a_wish_nothing_is_compared(pool: Pool) -> None:
    wrong = SOURCE.replace("by * x[i]", "0")
    assert (await measured(pool, scale(wrong, reference=None))).check == "not asked"
    assert (await measured(pool, scale(wrong), check=False)).check == "not asked"


async def test_what_the_compiler_says_comes_with_the_error(pool: Pool) -> None:
    with pytest.raises(CompileFailed) as raised:
        await measured(pool, scale(SOURCE.replace("by * x[i]", "undeclared"), name="broken").bind({"T": 3}))
    error = raised.value
    assert "undeclared" in error.log
    assert (error.kernel, error.device) == ("broken", DEVICE)
    assert "-DT=3" in error.options


async def test_a_warning_of_the_compiler_is_no_failure(pool: Pool) -> None:
    warned = SOURCE.replace("if (i < n)", "#warning never mind\n    if (i < n)")
    async with Pool(devices=[DEVICE], env={"PYTHONWARNINGS": "error"}) as strict:
        assert (await measured(strict, scale(warned))).check == "passed"


async def test_an_option_that_the_compiler_does_not_know_is_its_refusal(pool: Pool) -> None:
    with pytest.raises(CompileFailed, match="cl-nonsense"):
        await measured(pool, scale(options=["-cl-nonsense"]))


async def test_an_entry_that_is_no_kernel_is_named_with_those_that_are(pool: Pool) -> None:
    with pytest.raises(InvalidKernel, match=r"no kernel 'helper' .there is: scale."):
        await measured(pool, scale(SOURCE + "float helper(float x) { return x; }", entry="helper"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"args": [Array("N", output=True)]}, "takes 4 arguments, and 1 are given"),
        ({"shared_bytes": 64}, "takes 4 arguments, and 5 are given"),
        (
            {
                "args": [
                    Array("N", output=True),
                    Scalar(1, "int64"),
                    Scalar(2.5, "float32"),
                    Scalar("N", "int32"),
                ]
            },
            r"argument 1 of scale is global float\*, not Scalar of int64",
        ),
        (
            {"args": [Array("N", output=True), Array("N"), Array("N"), Scalar("N", "int32")]},
            "argument 2 of scale is private float, not Array of float32",
        ),
        (
            {"args": [Array("N", output=True), Array("N"), Scalar(2, "int32"), Scalar("N", "int32")]},
            "argument 2 of scale is private float, not Scalar of int32",
        ),
        ({"block": (64, 64, 64)}, "refuses it: .*INVALID_WORK"),
    ],
)
async def test_what_the_kernel_does_not_take_is_one_sentence_and_no_crash(
    pool: Pool, changes: dict[str, Any], says: str
) -> None:
    before = await pool.call(os.getpid)
    with pytest.raises(InvalidKernel, match=says):
        await measured(pool, scale(**{"reference": None, **changes}))
    assert await pool.call(os.getpid) == before


async def test_shared_memory_is_one_more_argument(pool: Pool) -> None:
    source = """
    kernel void reverse(global float *y, global const float *x, local float *tile) {
        int i = get_local_id(0), base = get_group_id(0) * get_local_size(0);
        tile[i] = x[base + i];
        barrier(CLK_LOCAL_MEM_FENCE);
        y[base + i] = tile[get_local_size(0) - 1 - i];
    }
    """

    def reversed_by_64(y: Any, x: Any) -> Any:
        return x.reshape(-1, 64)[:, ::-1].reshape(-1)

    kernel = RawKernel(
        source,
        "reverse",
        args=[Array(256, output=True), Array(256)],
        grid=4,
        block=64,
        shared_bytes="4 * 64",
        reference=reversed_by_64,
    )
    assert (await measured(pool, kernel)).check == "passed"


@pytest.mark.parametrize(
    ("dtype", "in_c"),
    [
        ("int8", "char"),
        ("uint8", "uchar"),
        ("bool", "uchar"),
        ("int16", "short"),
        ("uint16", "ushort"),
        ("int32", "int"),
        ("uint32", "unsigned int"),
        ("int64", "long"),
        ("uint64", "ulong"),
        ("float32", "float"),
        ("float64", "double"),
    ],
)
async def test_every_type_arrives_as_itself(pool: Pool, dtype: str, in_c: str) -> None:
    source = "kernel void f(global T *y, global const T *x, T by) { int i = get_global_id(0); y[i] = i ? x[i] : by; }"

    def reference(y: Any, x: Any, by: Any) -> Any:
        expected = x.copy()
        expected[0] = by
        return expected

    kernel = RawKernel(
        source.replace("T", in_c),
        "f",
        args=[Array(64, dtype, output=True), Array(64, dtype), Scalar(1, dtype)],
        grid=1,
        block=64,
        reference=reference,
    )
    assert (await measured(pool, kernel)).check == "passed"


async def test_a_device_that_is_not_there_is_told_with_those_that_are(pool: Pool) -> None:
    async with Pool(1) as unpinned:
        with pytest.raises(NoSuchDevice, match=r"opencl:99.*There is: opencl:0"):
            await benchmark(scale(), pool=unpinned, device="opencl:99")


async def test_the_reference_is_computed_once_for_many_configurations(pool: Pool) -> None:
    def counting(y: Any, x: Any, by: Any, n: Any) -> Any:
        import builtins

        builtins.times = getattr(builtins, "times", 0) + 1  # type: ignore[attr-defined]
        return by * x

    def times() -> int:
        import builtins

        return builtins.times  # type: ignore[attr-defined, no-any-return]

    for block in (16, 32, 64):
        assert (await measured(pool, scale(reference=counting).bind({"BLOCK": block}))).check == "passed"
    assert await pool.call(times) == 1
