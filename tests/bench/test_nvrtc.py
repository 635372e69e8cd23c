"""CUDA C++ is really compiled here, by NVRTC, for a named architecture and without a driver."""

from __future__ import annotations

import pytest

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")

from tunewire.bench.backends.nvrtc import compile_cubin, nvrtc_version
from tunewire.errors import CompileFailed, InvalidKernel, MissingExtra

ELF = b"\x7fELF"
SOURCE = """
extern "C" __global__ void plain(float *y) { y[threadIdx.x] = SCALE; }
__global__ void mangled(float *y) { y[threadIdx.x] = SCALE; }
namespace inner { template <class T, int N> __global__ void generic(T *y) { y[threadIdx.x] = N; } }
extern "C" __device__ float helper(float x) { return x; }
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_a_cubin_is_an_image_for_the_named_architecture(arch: str) -> None:
    compiled = compile_cubin(SOURCE, "plain", arch=arch, options=["-DSCALE=2"])
    assert compiled.cubin.startswith(ELF)
    assert compiled.entry == "plain"
    assert compiled.options == (f"-arch={arch}", "-DSCALE=2")


def test_architectures_differ() -> None:
    images = {
        compile_cubin(SOURCE, "plain", arch=arch, options=["-DSCALE=2"]).cubin for arch in ("sm_80", "sm_90")
    }
    assert len(images) == 2


@pytest.mark.parametrize(
    ("entry", "name_in_it"),
    [
        ("plain", "plain"),
        ("mangled", "_Z7mangledPf"),
        ("inner::generic<float, 4>", "_ZN5inner7genericIfLi4EEEvPT_"),
    ],
)
def test_the_entrys_name_in_the_image_comes_back(entry: str, name_in_it: str) -> None:
    compiled = compile_cubin(SOURCE, entry, arch="sm_80", options=["-DSCALE=2"])
    assert compiled.entry == name_in_it
    assert b".text." + name_in_it.encode() in compiled.cubin


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("missing", '"missing" is undefined'),
        ("helper", "non-__global__"),
        ("inner::generic", "cannot determine which instance"),
    ],
)
def test_an_entry_that_is_missing_ambiguous_or_no_kernel_is_found_by_the_compiler(
    entry: str, says: str
) -> None:
    with pytest.raises(CompileFailed) as raised:
        compile_cubin(SOURCE, entry, arch="sm_80", options=["-DSCALE=2"], device="cuda:1")
    assert says in raised.value.log
    assert (raised.value.kernel, raised.value.device) == (entry, "cuda:1")


def test_a_bad_source_fails_with_the_compilers_log() -> None:
    with pytest.raises(CompileFailed, match='identifier "SCALE" is undefined') as raised:
        compile_cubin(SOURCE, "plain", arch="sm_80", kernel="my kernel / no path")
    error = raised.value
    assert error.log.startswith("my_kernel_no_path.cu(2): error:")
    assert error.options == ("-arch=sm_80",)
    assert error.__cause__ is not None


def test_warnings_are_kept() -> None:
    source = 'extern "C" __global__ void f(float *y) { int never_read; y[0] = 1; }'
    assert "never_read" in compile_cubin(source, "f", arch="sm_80").log


def test_an_option_that_the_compiler_does_not_know_is_its_refusal() -> None:
    with pytest.raises(CompileFailed, match="nonsense"):
        compile_cubin(SOURCE, "plain", arch="sm_80", options=["--nonsense"])


def test_an_architecture_that_the_compiler_does_not_know_is_its_refusal() -> None:
    with pytest.raises(CompileFailed, match="arch"):
        compile_cubin(SOURCE, "plain", arch="sm_10", options=["-DSCALE=2"])


@pytest.mark.parametrize("arch", ["compute_90", "90", "sm_", "", "sm_90 --ptx"])
def test_an_architecture_is_a_real_one(arch: str) -> None:
    with pytest.raises(InvalidKernel, match="is not a real architecture"):
        compile_cubin(SOURCE, "plain", arch=arch)


def test_the_compilers_version_is_known() -> None:
    major, minor = nvrtc_version().split(".")
    assert int(major) >= 12
    assert int(minor) >= 0


def test_a_library_that_is_missing_is_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_backends.cuda.libs import nvrtc

    def no_library() -> tuple[int, int]:
        raise RuntimeError("libnvrtc.so.12: cannot open shared object file")

    monkeypatch.setattr(nvrtc, "getVersion", no_library)
    with pytest.raises(MissingExtra, match=r"tunewire\[cuda12\]"):
        compile_cubin(SOURCE, "plain", arch="sm_80")
