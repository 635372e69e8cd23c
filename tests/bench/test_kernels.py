from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from tunewire.bench import Array, RawKernel, Scalar, Work
from tunewire.errors import InvalidExpression, InvalidKernel

SOURCE = """
// UNUSED is only spoken of
kernel void scale(global float *y, global const float *x, float by) {
    int i = get_global_id(0);
    for (int u = 0; u < UNROLL; u++) y[i * UNROLL + u] = by * x[i * UNROLL + u];
}
"""


def double(y: Any, x: Any, by: Any) -> Any:
    return by * x


def kernel(**changes: Any) -> RawKernel:
    parts: dict[str, Any] = {
        "source": SOURCE,
        "entry": "scale",
        "args": [Array("N", output=True, name="y"), Array("N"), Scalar("N * 2", "float32")],
        "grid": "ceil(N / (BLOCK * UNROLL))",
        "block": "BLOCK",
        "defines": {"N": 1000},
        "work": Work(flops="N", bytes="8 * N"),
        "reference": double,
    }
    return RawKernel(**{**parts, **changes})


CONFIGURATION = {"BLOCK": 64, "UNROLL": 4}


def test_binding_makes_numbers_of_expressions_and_definitions_of_parameters() -> None:
    bound = kernel().bind(CONFIGURATION)
    assert bound.dimensions == ((4,), (64,))
    assert [argument.bound_shape for argument in bound.args if isinstance(argument, Array)] == [
        (1000,),
        (1000,),
    ]
    assert bound.args[2] == Scalar(2000, "float32")
    assert bound.work == Work(flops=1000, bytes=8000)
    assert bound.definitions() == ("-DN=1000", "-DBLOCK=64", "-DUNROLL=4")
    assert list(bound.expressions()) == []


def test_a_parameter_replaces_a_define_of_its_name_and_leaves_the_kernel_as_it_was() -> None:
    original = kernel()
    assert original.bind({**CONFIGURATION, "N": 256}).dimensions == ((1,), (64,))
    assert original.defines == {"N": 1000}
    assert original.grid == ("ceil(N / (BLOCK * UNROLL))",)


def test_a_bound_kernel_binds_to_itself() -> None:
    bound = kernel().bind(CONFIGURATION)
    assert bound.bind({}) == bound


def test_whole_quotients_are_whole_numbers() -> None:
    assert kernel(grid="N / 10").bind(CONFIGURATION).dimensions[0] == (100,)


def test_travels_by_pickle() -> None:
    assert pickle.loads(pickle.dumps(kernel())) == kernel()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"source": "  "}, "source is empty"),
        ({"language": "metal"}, "neither 'opencl' nor 'cuda'"),
        ({"entry": "missing"}, "no 'missing', which is its entry"),
        ({"entry": "UNUSED"}, "no 'UNUSED', which is its entry"),
        ({"entry": "scale<float>"}, "is not a kernel's name"),
        ({"entry": "not a name"}, "is not a kernel's name"),
        ({"entry": ""}, "is not a kernel's name"),
        ({"grid": ()}, "grid has 0 dimensions"),
        ({"grid": (1, 1, 1, 1)}, "grid has 4 dimensions"),
        ({"block": (64, 0)}, "block is 0"),
        ({"block": -1}, "block is -1"),
        ({"block": 2.5}, "is not a sequence"),
        ({"block": (2.5,)}, "neither a whole number nor an expression"),
        ({"grid": True}, "neither a whole number nor an expression"),
        ({"grid": "N +"}, "grid: expression 'N [+]'"),
        ({"shared_bytes": -4}, "shared_bytes is -4"),
        ({"shared_bytes": "import os"}, "shared_bytes: expression"),
        ({"args": [3]}, "neither an Array nor a Scalar"),
        ({"args": "N"}, "neither an Array nor a Scalar"),
        ({"options": [3]}, "option 3 is not text"),
        ({"defines": {"A B": 3}}, "'A B' cannot be defined"),
        ({"defines": {"T": "unsigned int"}}, "T cannot be defined"),
        ({"rtol": -1}, "must not be negative"),
        ({"atol": float("nan")}, "must not be negative"),
        ({"reference": "no colon"}, "not of the form 'module:function'"),
        ({"reference": "module:"}, "not of the form 'module:function'"),
        ({"reference": 3}, "neither a callable nor"),
        ({"args": [Array("N"), Array("N"), Scalar(1, "float32")]}, "none of its arguments is an output"),
    ],
)
def test_parts_that_do_not_fit_are_found_when_the_kernel_is_made(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidKernel, match=says) as raised:
        kernel(**changes)
    assert raised.value.kernel == changes.get("entry", "scale")
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Array(0), "extent is 0"),
        (lambda: Array((4, -1)), "extent is -1"),
        (lambda: Array(4, "float31"), "dtype='float31' is not one of"),
        (lambda: Array(4, fill="ones"), "fill='ones' is neither a number nor one of"),
        (lambda: Array(4, seed=-1), "seed=-1 is negative"),
        (lambda: Array("4 +"), "extent: expression"),
        (lambda: Scalar(1, "int128"), "dtype='int128'"),
        (lambda: Scalar(None, "int32"), "neither a number nor an expression"),
        (lambda: Scalar("1 +", "int32"), "value: expression"),
        (lambda: Work(flops=0), "flops=0 is not positive"),
        (lambda: Work(bytes="8 *"), "bytes: expression"),
    ],
)
def test_arguments_and_work_are_checked_when_they_are_made(make: Any, says: str) -> None:
    with pytest.raises(InvalidKernel, match=says):
        make()


@pytest.mark.parametrize(
    ("changes", "configuration", "says"),
    [
        ({}, {"UNROLL": 4}, "no parameter 'BLOCK'"),
        ({"grid": "N - 1000"}, CONFIGURATION, "grid 'N - 1000' is 0, and must be"),
        ({"grid": "N / 3"}, CONFIGURATION, "is 333.3"),
        ({"grid": "N > 3"}, CONFIGURATION, "is True"),
        ({"grid": "'x'"}, CONFIGURATION, "is 'x'"),
        ({"grid": "N // (BLOCK - 64)"}, CONFIGURATION, "zero"),
        ({"shared_bytes": "BLOCK - 65"}, CONFIGURATION, "is -1, and must be a whole number of at least 0"),
        ({"work": Work(flops="N - 1000")}, CONFIGURATION, "is 0, and must be a positive number"),
        (
            {"args": [Array("N", output=True), Scalar("'x'", "int32")]},
            CONFIGURATION,
            "the text 'x', not a number",
        ),
        ({}, {**CONFIGURATION, "T": "two words"}, "T cannot be defined"),
    ],
)
def test_values_that_cannot_be_are_found_when_it_is_bound(
    changes: dict[str, Any], configuration: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidKernel, match=says) as raised:
        kernel(**changes).bind(configuration)
    assert raised.value.kernel == "scale"


def test_an_invalid_expression_is_the_cause() -> None:
    with pytest.raises(InvalidKernel) as raised:
        kernel(grid="N +")
    assert isinstance(raised.value.__cause__, InvalidExpression)
    with pytest.raises(InvalidKernel) as raised:
        kernel().bind({"UNROLL": 1})
    assert isinstance(raised.value.__cause__, InvalidExpression)


def test_numbers_are_asked_for_only_when_they_are_there() -> None:
    with pytest.raises(InvalidKernel, match="bind its parameters"):
        _ = kernel().dimensions
    with pytest.raises(InvalidKernel, match="bind its parameters"):
        _ = Array("N").bound_shape


@pytest.mark.parametrize(
    ("changes", "unused"),
    [
        ({}, ("UNUSED",)),
        ({"options": ("-DALIAS=UNUSED",)}, ()),
        ({"shared_bytes": "4 * UNUSED"}, ()),
        ({"args": [Array(("N", "UNUSED"), output=True)]}, ()),
        ({"work": Work(flops="UNUSED")}, ()),
        ({"defines": {"N": 1000, "ALIAS": "UNUSED"}}, ()),
    ],
)
def test_a_parameter_that_nothing_reads_is_told(changes: dict[str, Any], unused: tuple[str, ...]) -> None:
    assert kernel(**changes).unused_parameters(["BLOCK", "UNROLL", "UNUSED", "N"]) == unused


def test_templates_and_namespaces_name_a_cuda_entry() -> None:
    source = "namespace fast { template <class T> __global__ void axpy(T *y) {} }"
    assert RawKernel(source, "fast::axpy<float>", "cuda").entry == "fast::axpy<float>"


def test_the_digest_is_of_what_runs() -> None:
    bound = kernel().bind(CONFIGURATION)
    assert bound.digest() == kernel(name="another", reference=None, rtol=1).bind(CONFIGURATION).digest()
    assert bound.digest() == kernel(defines={}).bind({"UNROLL": 4, "BLOCK": 64, "N": 1000}).digest()
    others = [
        kernel(source=SOURCE + " ").bind(CONFIGURATION),
        kernel().bind({**CONFIGURATION, "UNROLL": 2}),
        kernel(options=("-cl-fast-relaxed-math",)).bind(CONFIGURATION),
        kernel(shared_bytes=4).bind(CONFIGURATION),
        kernel(),
    ]
    assert len({bound.digest(), *(other.digest() for other in others)}) == 6


def test_arguments_are_plain_data() -> None:
    arguments = kernel().args
    assert msgspec.json.decode(msgspec.json.encode(arguments), type=tuple[Array | Scalar, ...]) == arguments
