"""A C function and a Python function for the same sum, measured side by side on the CPU.

    python examples/cpu_ctypes.py

The C function is compiled into a shared library with `cc`, and sent to the worker as what it is there: a
path, a name and types. A crash in it would cost its own measurement, and not this process.
"""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tunewire import Pool
from tunewire.bench import Array, CFunction, Scalar, benchmark

N = 100_000
SOURCE = """
#include <stddef.h>
double sum(const double *x, size_t n) {
    double total = 0;
    for (size_t i = 0; i < n; i++) total += x[i];
    return total;
}
"""


def python_sum(x: Any, _n: Any) -> float:
    return float(sum(x))


def compiled(folder: Path) -> CFunction:
    source, library = folder / "sum.c", folder / "sum.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return CFunction(str(library), "sum", ("c_void_p", "c_size_t"), "c_double")


async def main() -> None:
    arguments = (Array(N, "float64"), Scalar(N, "int64"))
    with tempfile.TemporaryDirectory() as folder:
        async with Pool(1) as pool:
            for name, candidate in {"C": compiled(Path(folder)), "Python": python_sum}.items():
                taken = await benchmark(candidate, args=arguments, device="cpu", pool=pool, timeout=30)
                print(f"{name:6}  {taken.median_ns / 1e3:9.1f} us  spread {taken.spread:.1%}  {taken.clock}")


if __name__ == "__main__":
    asyncio.run(main())
