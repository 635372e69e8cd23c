"""CUDA C++ to a cubin, by NVRTC. Needs no driver and no GPU, only CuPy and NVIDIA's NVRTC library.

CuPy's own helpers (RawModule(code=...), compile_using_nvrtc) ask the driver which architecture to compile
for, so they fail on a machine without one. Their thin binding of NVRTC does not, and this module calls it:
the architecture is named by the caller.

NVRTC has the language, and not the toolkit's headers: a source that includes cuda_fp16.h or the like needs an
option "-I" with the folder that has it, from a toolkit of the same version.

The entry is given to NVRTC as a name expression. So it may be a template's instance or lie in a namespace,
its mangled name comes back, and an entry that is missing, ambiguous or no `__global__` function fails the
compilation with a log that says so, instead of a load later on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tunewire.errors import CompileFailed, InvalidKernel, MissingExtra

__all__ = ["Compiled", "compile_cubin", "nvrtc_version"]

_REAL_ARCHITECTURE = re.compile(r"sm_[0-9]{2,3}[af]?")


class Compiled(msgspec.Struct, frozen=True):
    """A loadable image for one architecture: `cubin` is an ELF file, `entry` the kernel's name in it (mangled
    unless the source says extern "C"), `log` the compiler's warnings, `options` what it was given."""

    cubin: bytes
    entry: str
    arch: str
    log: str
    options: tuple[str, ...]


def nvrtc_version() -> str:
    """The compiler's version, such as "12.9"; MissingExtra where it is not installed."""
    return "{}.{}".format(*_binding().getVersion())


def compile_cubin(
    source: str,
    entry: str,
    *,
    arch: str,
    options: Sequence[str] = (),
    kernel: str | None = None,
    device: str | None = None,
) -> Compiled:
    """`source` compiled for `arch`, a real architecture such as "sm_90", with the kernel `entry` in it.

    `kernel` and `device` are what errors name. CompileFailed with the compiler's log; InvalidKernel for an
    `arch` that is no real architecture; MissingExtra where CuPy or NVRTC is not installed.

    >>> compile_cubin('extern "C" __global__ void f(float *x) { *x = 1; }', "f", arch="sm_80").entry
    'f'
    """
    if not _REAL_ARCHITECTURE.fullmatch(arch):
        raise InvalidKernel(
            reason=f"arch={arch!r} is not a real architecture, such as 'sm_90'", kernel=kernel
        )
    nvrtc = _binding()
    given = (f"-arch={arch}", *options)
    program = nvrtc.createProgram(source, f"{_file_name(kernel or entry)}.cu", (), ())
    try:
        try:
            nvrtc.addNameExpression(program, entry)
            nvrtc.compileProgram(program, given)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).strip() or str(error)
            raise CompileFailed(log=log, kernel=kernel or entry, device=device, options=given) from error
        return Compiled(
            cubin=nvrtc.getCUBIN(program),
            entry=nvrtc.getLoweredName(program, entry),
            arch=arch,
            log=nvrtc.getProgramLog(program).strip(),
            options=given,
        )
    finally:
        nvrtc.destroyProgram(program)


def _binding() -> Any:
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()  # the first call loads the library, which only then is found to be missing
    except ImportError as error:
        raise MissingExtra(package="CuPy", extra="cuda12") from error
    except RuntimeError as error:
        raise MissingExtra(package="NVRTC (nvidia-cuda-nvrtc-cu12)", extra="cuda12") from error
    return nvrtc


def _file_name(title: str) -> str:
    """What the log calls the source: `title`, without what a log's reader could take for a path or a line."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", title)
