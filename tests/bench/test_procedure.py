"""The order of one measurement, against a backend that records what it is told and fails where it is told
to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tunewire.bench import Measurement, Work
from tunewire.bench.procedure import MAX_LAUNCHES, DeviceFacts, Plan, measure
from tunewire.errors import DeviceFault, WrongResult

WRONG = WrongResult(
    argument="y", mismatched=1, total=2, worst_absolute=1.0, worst_relative=1.0, rtol=0.0, atol=0.0
)


class Broken(Exception):
    pass


class RecordingBackend:
    """Launches take `ns` each by a clock with a step of `resolution_ns`; `fails` is the step that raises."""

    compiles = True

    def __init__(
        self,
        *,
        fails: str | None = None,
        ns: float = 1000.0,
        resolution_ns: float = 1.0,
        clock: Callable[[float], float] | None = None,
    ) -> None:
        self.steps: list[str] = []
        self.allocated: Sequence[Any] = ()
        self._fails = fails
        self._ns = ns
        self._clock = clock or (lambda ns: ns // resolution_ns * resolution_ns)
        self.facts = DeviceFacts(
            device="fake:0", backend="opencl", clock="opencl profiling events", resolution_ns=resolution_ns
        )

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if self._fails is not None and name.startswith(self._fails):
            raise Broken(name)

    def compile(self) -> None:
        self._step("compile")

    def unload(self) -> None:
        self._step("unload")

    def allocate(self, values: Sequence[Any]) -> None:
        self.allocated = values
        self._step("allocate")

    def free(self) -> None:
        self._step("free")

    def poison(self) -> None:
        self._step("poison")

    def launch(self, launches: int) -> float:
        self._step(f"launch {launches}")
        return self._clock(self._ns * launches)

    def outputs(self) -> Sequence[Any]:
        self._step("outputs")
        return ["out"]

    def device_work(self) -> bool | None:
        self._step("device_work")
        return None


def run(backend: RecordingBackend, *, check: bool = True, wrong: bool = False, **plan: Any) -> Measurement:
    def prepare() -> list[str]:
        backend._step("prepare")
        return ["in"]

    def compare(outputs: Sequence[Any]) -> None:
        backend._step("compare")
        assert outputs == ["out"]
        if wrong:
            raise WRONG

    asked = compare if check else None
    return measure(backend, Plan(**plan), prepare=prepare, check=asked, work=Work(flops=4000, bytes=2000))


def test_one_measurement_goes_through_its_steps_in_order() -> None:
    backend = RecordingBackend()
    taken = run(backend, warmup=2, samples=3)
    assert backend.steps == [
        "compile",
        "prepare",
        "allocate",
        "poison",
        "launch 1",
        "outputs",
        "compare",
        *["launch 1"] * 2,  # warm-up
        "launch 1",  # which finds that one launch fills a sample
        *["launch 1"] * 3,
        "device_work",
        "free",
        "unload",
    ]
    assert backend.allocated == ["in"]
    assert taken.samples_ns == (1000.0,) * 3
    assert taken.warmup == 4
    assert taken.first_ns == 1000.0
    assert taken.check == "passed"
    assert taken.compile_s is not None
    assert taken.device == "fake:0"
    assert (taken.gflops, taken.gbytes_per_s) == (4.0, 2.0)


def test_without_a_check_nothing_is_compared_and_the_first_launch_is_a_warm_up() -> None:
    backend = RecordingBackend()
    taken = run(backend, check=False, warmup=1, samples=1)
    assert backend.steps == [
        "compile",
        "prepare",
        "allocate",
        "poison",
        *["launch 1"] * 3,
        "device_work",
        "free",
        "unload",
    ]
    assert taken.check == "not asked"
    assert taken.first_ns == 1000.0
    assert taken.warmup == 2


STEPS = ("compile", "prepare", "allocate", "poison", "launch", "outputs", "compare", "device_work")


@pytest.mark.parametrize("step", STEPS)
def test_whatever_fails_the_cleanups_that_were_armed_run_once_and_in_reverse(step: str) -> None:
    backend = RecordingBackend(fails=step)
    with pytest.raises(Broken, match=step):
        run(backend)
    failed = next(at for at, name in enumerate(backend.steps) if name.startswith(step))
    armed = ["unload"] if step in ("compile", "prepare") else ["free", "unload"]
    assert backend.steps[failed + 1 :] == armed


@pytest.mark.parametrize("cleanup", ["free", "unload"])
def test_a_failing_cleanup_hinders_no_other_and_is_the_error_where_there_is_none(cleanup: str) -> None:
    backend = RecordingBackend(fails=cleanup)
    with pytest.raises(Broken, match=cleanup):
        run(backend)
    assert backend.steps[-2:] == ["free", "unload"]


def test_a_failing_cleanup_does_not_hide_what_went_wrong_before_it() -> None:
    backend = RecordingBackend(fails="free")
    with pytest.raises(WrongResult) as raised:
        run(backend, wrong=True)
    assert raised.value is WRONG
    assert raised.value.__notes__ == ["While cleaning up after it: Broken: free"]
    assert backend.steps[-2:] == ["free", "unload"]


def test_a_wrong_result_is_not_measured() -> None:
    backend = RecordingBackend()
    with pytest.raises(WrongResult):
        run(backend, wrong=True)
    assert backend.steps == [
        "compile",
        "prepare",
        "allocate",
        "poison",
        "launch 1",
        "outputs",
        "compare",
        "free",
        "unload",
    ]


def test_a_sample_spans_a_hundred_steps_of_the_clock() -> None:
    backend = RecordingBackend(ns=3.0, resolution_ns=10.0)
    taken = run(backend, warmup=1, samples=2)
    # 100 steps of 10 ns are 1000 ns, which 512 launches of 3 ns exceed and 256 do not.
    assert taken.launches_per_sample == 512
    assert [step for step in backend.steps if step.startswith("launch")][-2:] == ["launch 512"] * 2
    assert taken.samples_ns == pytest.approx((3.0, 3.0), rel=0.01)
    assert taken.warmup == 1 + 1 + sum(2**power for power in range(10))


def test_a_launch_below_the_clocks_step_is_never_a_time_of_zero() -> None:
    taken = run(RecordingBackend(ns=3.0, resolution_ns=10.0))
    assert taken.first_ns is None
    assert taken.min_ns > 0


def test_a_sample_that_falls_below_a_step_begins_the_series_again_with_more_launches() -> None:
    times = iter([500.0, 500.0, 500.0, 500.0, 0.0, *[1000.0] * 3])
    backend = RecordingBackend(clock=lambda _: next(times))
    taken = run(backend, check=False, warmup=1, samples=3)
    assert [step for step in backend.steps if step.startswith("launch")] == [
        *["launch 1"] * 2,  # warm-up, sizing
        *["launch 1"] * 3,  # of which the third is none
        *["launch 2"] * 3,
    ]
    assert taken.samples_ns == (500.0,) * 3
    assert taken.launches_per_sample == 2
    assert taken.warmup == 5


@pytest.mark.parametrize("reading", [0.0, -1.0])
def test_a_clock_that_does_not_move_is_a_fault_of_the_device(reading: float) -> None:
    backend = RecordingBackend(clock=lambda _: reading)
    with pytest.raises(DeviceFault, match=f"{MAX_LAUNCHES} launches") as raised:
        run(backend)
    assert raised.value.device == "fake:0"
    assert backend.steps[-2:] == ["free", "unload"]


@pytest.mark.parametrize("plan", [{"warmup": 0}, {"samples": 0}, {"samples": -3}])
def test_a_plan_asks_for_at_least_one_of_each(plan: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="less than 1"):
        Plan(**plan)
