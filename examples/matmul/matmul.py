"""A tiled matrix product to tune: `tunewire tune examples/matmul/matmul.py`.

The same kernel in OpenCL C and in CUDA C++; the CUDA one is taken where there is a CUDA device. The first configuration
is the naive product, the one to beat. Four of the configurations are planted mistakes: each shows what the tuner makes
of a kernel that does not compile, one that crashes its process, one that never ends and one that is wrong.
"""

from pathlib import Path

from tunewire.bench import Array, RawKernel, Work
from tunewire.tune import Space, Tunable

HERE = Path(__file__).parent
M = N = K = 256

SPACE = Space(
    {
        "TILE_M": [16, 32],
        "TILE_N": [16, 32, 64],
        "TILE_K": [8, 16],
        "WPT": [1, 2],
        "VECTOR": [1, 4, 8, 16],
        "VARIANT": ["naive", "tiled", "undeclared_name", "wild_write", "endless_wait", "skipped_tile"],
    },
    restrictions=[
        # The work-items of a work-group.
        "32 <= (TILE_M // WPT) * (TILE_N // VECTOR) <= 256",
        "VECTOR > 1 or WPT == 1 and TILE_K == 8",
        # The naive product has one element per work-item and no tiles; each mistake stands in one place.
        "VARIANT != 'naive' or TILE_M == 16 and TILE_N == 16 and VECTOR == 1",
        "VARIANT != 'undeclared_name' or TILE_M == 16 and TILE_N == 32 and TILE_K == 8 and WPT == 1 and VECTOR == 4",
        "VARIANT != 'wild_write' or TILE_M == 16 and TILE_N == 64 and TILE_K == 8 and WPT == 1 and VECTOR == 8",
        "VARIANT != 'endless_wait' or TILE_M == 32 and TILE_N == 32 and TILE_K == 8 and WPT == 1 and VECTOR == 8",
        "VARIANT != 'skipped_tile' or TILE_M == 32 and TILE_N == 64 and TILE_K == 8 and WPT == 2 and VECTOR == 8",
    ],
)


def product(a, b, _c):
    """What C must be."""
    return a @ b


def kernel(language: str, file: str) -> RawKernel:
    """The product in one of the languages."""
    return RawKernel(
        (HERE / file).read_text(),
        entry="matmul",
        language=language,
        args=[
            Array((M, K), name="A"),
            Array((K, N), name="B"),
            Array((M, N), output=True, name="C"),
        ],
        grid=("N // TILE_N", "M // TILE_M"),
        block=("TILE_N // VECTOR", "TILE_M // WPT"),
        defines={"M": M, "N": N, "K": K},
        work=Work(flops="2 * M * N * K"),
        reference=product,
        rtol=1e-4,
        atol=1e-4,
    )


matmul = Tunable([kernel("cuda", "matmul.cu"), kernel("opencl", "matmul.cl")], SPACE, timeout=3.0)
