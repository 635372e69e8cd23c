"""The example's kernel, its planted mistakes among them, in real processes on a real OpenCL device."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path

import pytest

from tunewire import Pool
from tunewire.errors import CompileFailed
from tunewire.tune import Configuration, FailureKind, Trial, Tunable, TuningResult, tune

EXAMPLE = Path(__file__).parents[2] / "examples" / "matmul" / "matmul.py"


@pytest.fixture(scope="module")
def tunable() -> Tunable:
    found = runpy.run_path(str(EXAMPLE))["matmul"]
    assert isinstance(found, Tunable)
    return found


class Some:
    """A strategy of one's own: these, and no others."""

    def __init__(self, configurations: Iterable[Configuration]) -> None:
        self.left = list(configurations)

    def ask(self) -> Configuration | None:
        return self.left.pop(0) if self.left else None

    def tell(self, trial: Trial) -> None:
        pass


def of_variant(tunable: Tunable, variant: str) -> list[Configuration]:
    return [each for each in tunable.space if each["VARIANT"] == variant]


def test_the_space_is_as_the_example_says(tunable: Tunable) -> None:
    assert len(of_variant(tunable, "tiled")) >= 60
    assert tunable.default["VARIANT"] == "naive"
    for planted in ("naive", "undeclared_name", "wild_write", "endless_wait", "skipped_tile"):
        assert len(of_variant(tunable, planted)) == 1


@pytest.mark.needs_opencl
@pytest.mark.asyncio
async def test_every_mistake_costs_itself_alone_and_is_told_as_what_it_is(
    tunable: Tunable, tmp_path: Path
) -> None:
    kernel = tunable.kernel_in("opencl")
    assert kernel is not None
    planted = ("undeclared_name", "wild_write", "endless_wait", "skipped_tile")
    good = of_variant(tunable, "tiled")
    chosen = [
        each
        for variant, sound in zip(planted, good, strict=False)
        for each in [*of_variant(tunable, variant), sound]
    ]
    async with (
        Pool(devices=["opencl:0"]) as pool,
        tune(
            kernel, tunable.space, pool=pool, strategy=Some(chosen), default=tunable.default, timeout=5.0
        ) as run,
    ):
        async for trial in run:
            assert trial.ok == (trial.configuration["VARIANT"] in ("naive", "tiled"))
    failures = {
        trial.configuration["VARIANT"]: trial.failure for trial in run.failures if trial.failure is not None
    }
    assert {name: failure.kind for name, failure in failures.items()} == {
        "undeclared_name": FailureKind.COMPILE_FAILED,
        "wild_write": FailureKind.CRASH,
        "endless_wait": FailureKind.TIMEOUT,
        "skipped_tile": FailureKind.WRONG_RESULT,
    }
    assert "BANK_PADDING" in failures["undeclared_name"].details
    assert "SIGSEGV" in failures["wild_write"].reason
    assert failures["endless_wait"].phase == "check"
    assert len(run.trials) == 9
    result = run.result()
    assert result.best is not None
    assert result.gain is not None
    assert result.baseline is run.trials[0]
    assert result.environment.devices[0].driver is not None
    result.save(tmp_path / "tuning.json")
    assert TuningResult.load(tmp_path / "tuning.json") == result


def test_the_kernel_in_cuda_compiles_but_where_it_is_not_to(tunable: Tunable) -> None:
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="CuPy is not installed")
    from tunewire.bench.backends.nvrtc import compile_cubin

    kernel = tunable.kernel_in("cuda")
    assert kernel is not None
    for configuration in [*of_variant(tunable, "tiled")[::20], *of_variant(tunable, "skipped_tile")]:
        bound = kernel.bind(configuration)
        assert compile_cubin(bound.source, bound.entry, arch="sm_90", options=bound.definitions()).cubin
    broken = kernel.bind(of_variant(tunable, "undeclared_name")[0])
    with pytest.raises(CompileFailed, match="BANK_PADDING"):
        compile_cubin(broken.source, broken.entry, arch="sm_90", options=broken.definitions())
