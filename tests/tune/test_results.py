"""What is said of a tuning after it: failures, ranking, comparison, and the file."""

from __future__ import annotations

import json
import math
import os
import random
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from trials import failed, measured, trial
from tunewire.bench import RawKernel
from tunewire.errors import (
    CallTimeout,
    CompileFailed,
    DecodeError,
    DeviceFault,
    InvalidKernel,
    PoolClosed,
    WorkerCrashed,
    WrongResult,
)
from tunewire.tune import (
    Environment,
    FailureKind,
    KernelIdentity,
    Space,
    SpaceRecord,
    StrategyRecord,
    Trial,
    TuningResult,
    compare,
    ranked,
)
from tunewire.tune.comparison import median_interval
from tunewire.tune.trial import failure_of
from tunewire.version import __version__
from tunewire.workers import Outcome, OutcomeKind

KERNEL = RawKernel("kernel void f() { int tile[TILE]; }", "f")
SPACE = Space({"TILE": [8, 16, 32], "TYPE": ["float"], "SCALE": [0.5], "FAST": [True]}, ["TILE < 64"])


def configuration(tile: int) -> dict[str, Any]:
    return {"TILE": tile, "TYPE": "float", "SCALE": 0.5, "FAST": True}


def result(*trials: Trial, complete: bool = True) -> TuningResult:
    return TuningResult(
        kernel=KernelIdentity.of(KERNEL),
        space=SpaceRecord.of(SPACE),
        strategy=StrategyRecord(name="random", seed=3),
        devices=("opencl:0",),
        environment=Environment.of(["opencl:0"], trials),
        default=SPACE.first,
        complete=complete,
        started=datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        finished=datetime(2025, 1, 2, 3, 5, 5, tzinfo=UTC),
        ranking=tuple(each.index for each in ranked(trials)),
        trials=trials,
    )


WRONG = WrongResult(
    argument="C", mismatched=1, total=4, worst_absolute=1.0, worst_relative=1.0, rtol=0.0, atol=0.0
)


@pytest.mark.parametrize(
    ("kind", "error", "failure_kind", "phase"),
    [
        (OutcomeKind.ERROR, CompileFailed(log="x.cl:1: error: no"), FailureKind.COMPILE_FAILED, "compile"),
        (OutcomeKind.ERROR, WRONG, FailureKind.WRONG_RESULT, "check"),
        (OutcomeKind.ERROR, InvalidKernel(reason="the grid is 0"), FailureKind.INVALID_KERNEL, None),
        (OutcomeKind.ERROR, ZeroDivisionError("division by zero"), FailureKind.ERROR, None),
        (OutcomeKind.TIMEOUT, CallTimeout(phase="run", limit=2.0), FailureKind.TIMEOUT, "run"),
        (OutcomeKind.CRASH, WorkerCrashed(signal="SIGSEGV", phase="check"), FailureKind.CRASH, "check"),
        (OutcomeKind.DEVICE_FAULT, DeviceFault(reason="lost"), FailureKind.DEVICE_FAULT, None),
    ],
)
def test_a_failure_has_its_kind_its_phase_and_the_errors_words(
    kind: OutcomeKind, error: Exception, failure_kind: FailureKind, phase: str | None
) -> None:
    failure = failure_of(Outcome(kind=kind, error=error))
    assert failure is not None
    assert (failure.kind, failure.phase) == (failure_kind, phase)
    assert str(error) in failure.reason


def test_a_foreign_error_is_named_with_its_type() -> None:
    failure = failure_of(Outcome(kind=OutcomeKind.ERROR, error=KeyError("x")))
    assert failure is not None
    assert failure.reason == "KeyError: 'x'"


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(kind=OutcomeKind.COMPLETED, value=measured(1.0)),
        Outcome(kind=OutcomeKind.REJECTED, error=PoolClosed()),
        Outcome(kind=OutcomeKind.CANCELLED, error=PoolClosed()),
    ],
)
def test_what_says_nothing_about_a_configuration_is_no_failure_of_it(outcome: Outcome[Any]) -> None:
    assert failure_of(outcome) is None


def test_details_are_the_compilers_log_or_what_was_written_to_stderr() -> None:
    log = failure_of(Outcome(kind=OutcomeKind.ERROR, error=CompileFailed(log="the log"), stderr="noise"))
    crash = WorkerCrashed(signal="SIGABRT", stderr="assertion failed")
    stderr = failure_of(Outcome(kind=OutcomeKind.CRASH, error=crash))
    error = failure_of(Outcome(kind=OutcomeKind.ERROR, error=ValueError("no"), stderr="a warning"))
    assert log is not None
    assert stderr is not None
    assert error is not None
    assert [log.details, stderr.details, error.details] == ["the log", "assertion failed", "a warning"]


def test_text_of_any_size_and_content_can_be_kept(tmp_path: Path) -> None:
    text = "\udcff\x1b" + "x" * 100_000
    failure = failure_of(Outcome(kind=OutcomeKind.ERROR, error=ValueError(text), stderr=text))
    assert failure is not None
    kept = result(trial(0, configuration(8), failure))
    kept.save(tmp_path / "r.json")
    assert TuningResult.load(tmp_path / "r.json") == kept
    assert (tmp_path / "r.json").stat().st_size < 20_000


def test_a_trial_is_either_measured_or_failed() -> None:
    with pytest.raises(ValueError, match="either"):
        Trial(index=0, configuration=SPACE.first, device="d", seconds=0.1)
    with pytest.raises(ValueError, match="either"):
        Trial(
            index=0,
            configuration=SPACE.first,
            device="d",
            seconds=0.1,
            measurement=measured(1.0),
            failure=failed(),
        )


def test_ranking_is_by_median_and_has_no_failures() -> None:
    wrong = failed(FailureKind.WRONG_RESULT)
    tuned = result(
        trial(0, configuration(8), measured(10.0, 10.0, 11.0)),
        trial(1, configuration(16), wrong),
        trial(2, configuration(32), measured(1.0, 12.0, 12.0)),
        trial(3, configuration(8), measured(9.0, 9.0, 90.0)),
    )
    assert tuned.ranking == (3, 0, 2)
    assert tuned.best is tuned.trials[3]
    assert tuned.failures == (tuned.trials[1],)
    assert tuned.baseline is tuned.trials[0]


def test_nothing_measured_has_no_best_and_no_gain() -> None:
    assert result().best is None
    assert result().gain is None
    assert result(trial(0, configuration(8), failed())).best is None


def test_a_first_configuration_that_failed_leaves_nothing_to_compare_with() -> None:
    tuned = result(
        trial(0, configuration(8), failed(FailureKind.TIMEOUT)), trial(1, configuration(16), measured(5.0))
    )
    assert tuned.best is not None
    assert tuned.baseline is not None
    assert tuned.gain is None


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    generator = random.Random(1)
    held = 0
    for _ in range(2000):
        low, high = median_interval([generator.expovariate(1.0) for _ in range(20)])
        held += low <= math.log(2) <= high
    assert 0.94 < held / 2000 < 0.985  # 95.9 % by the binomial distribution


@pytest.mark.parametrize(("count", "rank"), [(6, 1), (8, 1), (9, 2), (20, 6), (25, 8), (100, 40)])
def test_the_interval_has_the_ranks_of_the_published_tables(count: int, rank: int) -> None:
    assert median_interval([float(n) for n in range(1, count + 1)]) == (rank, count + 1 - rank)


def test_many_samples_are_no_trouble() -> None:
    low, high = median_interval([float(n) for n in range(2001)])
    assert 950 < low < 1000 < high < 1050


def test_a_clear_difference_is_told_and_an_unclear_one_is_not() -> None:
    base = [100.0 + n for n in range(20)]
    clear = compare(measured(*base), measured(*(value / 2 for value in base)))
    assert clear.ratio == pytest.approx(2.0)
    assert 1.0 < clear.low < 2.0 < clear.high
    assert clear.can_tell
    unclear = compare(measured(*base), measured(*(value - 1 for value in base)))
    assert unclear.ratio > 1.0
    assert not unclear.can_tell


def test_too_few_samples_tell_nothing() -> None:
    assert not compare(measured(100.0, 100.0, 100.0), measured(1.0, 1.0, 1.0)).can_tell


def full_result() -> TuningResult:
    return result(
        trial(0, configuration(8), measured(10.0, 11.0, flops=100.0)),
        trial(1, configuration(16), failed(reason="[bold]\x1b[31m")),
    )


def test_a_result_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    full_result().save(tmp_path / "tuning.json")
    read = TuningResult.load(tmp_path / "tuning.json")
    assert read == full_result()
    assert list(read.trials[0].configuration) == ["TILE", "TYPE", "SCALE", "FAST"]
    assert read.trials[0].configuration["FAST"] is True
    assert read.best is not None
    assert read.best.measurement is not None
    assert read.best.measurement.gflops == full_result().trials[0].measurement.gflops  # type: ignore[union-attr]


def test_the_file_says_what_another_program_needs(tmp_path: Path) -> None:
    full_result().save(tmp_path / "tuning.json")
    document = json.loads((tmp_path / "tuning.json").read_text())
    assert list(document)[:3] == ["format", "format_version", "tunewire"]
    assert (document["format"], document["format_version"]) == ("tunewire tuning", 1)
    assert document["tunewire"] == __version__
    assert document["kernel"]["language"] == "opencl"
    assert len(document["kernel"]["source_sha256"]) == 64
    assert document["space"]["parameters"][0] == {"name": "TILE", "values": [8, 16, 32]}
    assert document["space"]["restrictions"] == ["TILE < 64"]
    assert document["strategy"] == {"name": "random", "seed": 3, "max_trials": None}
    assert document["environment"]["devices"] == [
        {"device": "opencl:0", "driver": "a driver 1.0", "library": "a library 2.0"}
    ]
    assert document["started"] == "2025-01-02T03:04:05Z"
    assert document["ranking"] == [0]
    assert document["trials"][0]["configuration"] == configuration(8)
    assert document["trials"][0]["measurement"]["samples_ns"] == [10.0, 11.0]
    assert document["trials"][1]["failure"]["kind"] == "crash"


def test_saving_replaces_a_file_whole_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_text("the old one")
    full_result().save(path)
    assert TuningResult.load(path) == full_result()
    assert [each.name for each in tmp_path.iterdir()] == ["tuning.json"]


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "tuning.json").mkdir()  # which no file can replace
    with pytest.raises(OSError, match=r"tuning\.json"):
        full_result().save(tmp_path / "tuning.json")
    assert [each.name for each in tmp_path.iterdir()] == ["tuning.json"]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"format_version": 1', '"format_version": 2', "version 2"),
        ('"tunewire tuning"', '"something else"', "something else"),
        ('"samples_ns": [', '"samples_ns": ["x", ', "samples_ns"),
        ('"TILE": 8', '"TILE": null', "null"),
        ('"ranking": [', '"ranking": [7, ', "ranking"),
        ("{", "", "rebuilt"),
    ],
)
def test_another_file_is_refused_with_the_reason(tmp_path: Path, old: str, new: str, reason: str) -> None:
    path = tmp_path / "tuning.json"
    full_result().save(path)
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DecodeError, match=r"tuning\.json") as caught:
        TuningResult.load(path)
    assert reason in str(caught.value)


def test_saving_follows_links_keeps_modes_and_writes_into_what_is_no_file(tmp_path: Path) -> None:
    saved = full_result()
    target = tmp_path / "target.json"
    target.write_text("{}")
    target.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(target)
    saved.save(link)
    assert link.is_symlink()
    assert TuningResult.load(target) == saved
    assert target.stat().st_mode & 0o777 == 0o600
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as threads:
        read = threads.submit(pipe.read_bytes)
        saved.save(pipe)
        assert read.result(timeout=60) == saved.to_json()
    assert pipe.is_fifo()
