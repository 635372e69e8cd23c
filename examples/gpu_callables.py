"""One computation written three ways, measured on every GPU of this machine at the same time.

    python examples/gpu_callables.py

- a kernel's source, which tunewire compiles, checks against NumPy and launches;
- a callable that launches a `cupy.RawKernel` of its own;
- a callable that CuPy fuses from array expressions.

Each GPU has a worker process of its own; this process never loads CuPy. Where there is no GPU, it says so and
ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tunewire import Pool
from tunewire.bench import Array, Measurement, RawKernel, Scalar, Work, benchmark

N = 1 << 24
BLOCK = 256
SOURCE = """
extern "C" __global__ void axpy(float *out, const float *x, const float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"""


def reference(_out: Any, x: Any, y: Any, a: Any, _n: Any) -> Any:
    return a * x + y


KERNEL = RawKernel(
    SOURCE,
    entry="axpy",
    language="cuda",
    args=[Array(N, output=True, name="out"), Array(N), Array(N), Scalar(2.5, "float32"), Scalar(N, "int32")],
    grid=(N + BLOCK - 1) // BLOCK,
    block=BLOCK,
    work=Work(flops=2 * N, bytes=12 * N),
    reference=reference,
)


class Launched:
    """Compiles at its first call, in the worker; later calls only launch."""

    kernel: Any = None

    def __call__(self, out: Any, x: Any, y: Any) -> None:
        import cupy
        import numpy

        if self.kernel is None:
            self.kernel = cupy.RawKernel(SOURCE, "axpy")
        self.kernel(KERNEL.grid, KERNEL.block, (out, x, y, numpy.float32(2.5), numpy.int32(N)))


class Fused:
    """`cupy.fuse` makes one kernel of the expression at the first call."""

    fused: Any = None

    def __call__(self, out: Any, x: Any, y: Any) -> None:
        import cupy

        if self.fused is None:
            self.fused = cupy.fuse(lambda x, y: cupy.float32(2.5) * x + y)
        out[...] = self.fused(x, y)


ARRAYS = (Array(N, output=True), Array(N), Array(N))


async def measure_on(device: str, pool: Pool) -> list[str]:
    candidates: dict[str, Measurement] = {
        "source": await benchmark(KERNEL, device=device, pool=pool, timeout=30),
        "launched": await benchmark(Launched(), args=ARRAYS, device=device, pool=pool, timeout=30),
        "fused": await benchmark(Fused(), args=ARRAYS, device=device, pool=pool, timeout=30),
    }
    return [
        f"{device}  {name:8}  {taken.median_ns / 1e3:9.1f} us  spread {taken.spread:6.1%}  "
        f"{12 * N / taken.median_ns:7.1f} GB/s"
        for name, taken in candidates.items()
    ]


async def main() -> None:
    async with Pool(devices="auto") as pool:
        gpus = [device for device in pool.devices if device.startswith("cuda:")]
        if not gpus:
            sys.exit(
                "No CUDA device is to be had here, so there is nothing to measure: `tunewire devices` says why."
            )
        for lines in await asyncio.gather(*(measure_on(gpu, pool) for gpu in gpus)):
            print(*lines, sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
