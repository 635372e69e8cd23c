"""Telemetry with real processes: the one that samples, and parents that die."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from simulated_gpus import GPU, OTHER, SPLIT, write
from tunewire import Telemetry
from tunewire.errors import CallTimeout, ServiceClosed, ServiceCrashed
from tunewire.telemetry import Snapshot, read_rows

SIMULATED = Path(__file__).parents[1] / "simulated_nvml"
INTERVAL = 0.01


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where a process is that is not told where its rows go; without GPUs, whatever this machine has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMULATED_NVML", str(tmp_path / "nvml.json"))
    monkeypatch.syspath_prepend(SIMULATED)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    write(tmp_path / "nvml.json", driver=False)
    return tmp_path / "out"


@pytest.fixture
def gpus(tmp_path):
    """Give the simulated NVML these GPUs."""
    return lambda *gpus, **more: write(tmp_path / "nvml.json", *gpus, **more)


def telemetry_to(path=os.devnull, **options):
    return Telemetry(**{"interval": INTERVAL, "path": path, **options})


async def some_rows(telemetry, count=1):
    """The next rows."""
    rows = []
    async with asyncio.timeout(30):
        async for row in telemetry.rows():
            rows.append(row)
            if len(rows) == count:
                return rows
    raise AssertionError("the rows have ended")


async def row_where(telemetry, condition):
    async with asyncio.timeout(30):
        async for row in telemetry.rows():
            if condition(row):
                return row
    raise AssertionError("the rows have ended")


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


# Scopes and rows.


@pytest.mark.asyncio
async def test_while_a_scope_is_open_rows_of_every_provider_come_by_themselves():
    async with telemetry_to(providers=["telemetry_providers:Counting"]) as telemetry:
        with telemetry.scope("forward", module="resnet", backend="triton"):
            rows = await some_rows(telemetry, 3)
    first, second, third = rows
    assert first.number + 2 == second.number + 1 == third.number
    assert 0 < first.seconds < second.seconds < third.seconds
    assert first.unix_time > 0
    assert first.scope == "forward"
    assert first.scopes[0].labels == {"module": "resnet", "backend": "triton"}
    for row in rows:
        assert 0 < row.host.memory_used_bytes <= row.host.memory_total_bytes
        assert row.host.cpu_percent is None or 0 <= row.host.cpu_percent <= 100
        assert row.more["telemetry_providers:Counting"]["readings"] > row.number
        assert row.more["telemetry_providers:Counting"]["nothing"] is None
        assert row.devices == ()


@pytest.mark.asyncio
async def test_nothing_is_sampled_while_no_scope_is_open():
    async with telemetry_to() as telemetry:
        assert await telemetry.rows_so_far() == []
        with telemetry.scope("a"):
            await some_rows(telemetry, 2)
        before = await telemetry.rows_so_far()
        await asyncio.sleep(10 * INTERVAL)
        assert await telemetry.rows_so_far() == before
        with telemetry.scope("b"):
            (row,) = await some_rows(telemetry)
        assert row.scope == "b"


@pytest.mark.asyncio
async def test_nested_scopes_have_paths_and_labels_and_the_outer_one_goes_on():
    async with telemetry_to() as telemetry:
        with telemetry.scope("step", run="1"):
            with telemetry.scope("forward", backend="triton"):
                inner = await row_where(telemetry, lambda row: row.scope != "step")
            outer = await row_where(telemetry, lambda row: row.scope == "step")
        assert inner.scope == "step/forward"
        assert inner.scopes[-1].labels == {"run": "1", "backend": "triton"}
        assert outer.number > inner.number


@pytest.mark.asyncio
async def test_scopes_that_are_shorter_than_an_interval_are_all_sampled():
    async with telemetry_to(interval=1.0) as telemetry:
        for step in range(20):
            with telemetry.scope(f"step {step}"):
                await asyncio.sleep(0)
        rows = await telemetry.rows_so_far()
    assert {scope.path for row in rows for scope in row.scopes} == {f"step {step}" for step in range(20)}


@pytest.mark.asyncio
async def test_scopes_of_tasks_in_parallel_are_open_side_by_side():
    async with telemetry_to() as telemetry:
        together = asyncio.Barrier(3)

        async def work(name):
            with telemetry.scope(name), telemetry.scope("inner"):
                await together.wait()
                await together.wait()

        tasks = [asyncio.ensure_future(work(name)) for name in ("left", "right")]
        await together.wait()
        row = await row_where(telemetry, lambda row: len(row.scopes) == 2)
        assert {scope.path for scope in row.scopes} == {"left/inner", "right/inner"}
        await together.wait()
        await asyncio.gather(*tasks)


@pytest.mark.asyncio
async def test_a_scope_may_be_opened_in_a_thread():
    async with telemetry_to() as telemetry:
        leave = threading.Event()

        def work():
            for _ in range(1000):
                with telemetry.scope("short"):
                    pass
            with telemetry.scope("in a thread"):
                leave.wait(30)

        with telemetry.scope("outer"):
            working = asyncio.ensure_future(asyncio.to_thread(work))
            await row_where(telemetry, lambda row: row.scope == "outer/in a thread")
            leave.set()
            await working
        before = await telemetry.rows_so_far()
        await asyncio.sleep(5 * INTERVAL)
        assert await telemetry.rows_so_far() == before


@pytest.mark.asyncio
async def test_a_scope_that_is_open_before_telemetry_is_sampled_once_it_is():
    telemetry = telemetry_to()
    with telemetry.scope("early"):
        async with telemetry:
            (row,) = await some_rows(telemetry)
    assert row.scope == "early"


@pytest.mark.asyncio
async def test_a_scope_is_closed_by_an_exception():
    async with telemetry_to() as telemetry:
        with pytest.raises(ZeroDivisionError), telemetry.scope("failing"):
            await some_rows(telemetry)
            raise ZeroDivisionError
        before = await telemetry.rows_so_far()
        assert {row.scope for row in before} == {"failing"}
        await asyncio.sleep(5 * INTERVAL)
        assert await telemetry.rows_so_far() == before


@pytest.mark.asyncio
async def test_annotated_functions_run_in_scopes_of_their_names():
    telemetry = telemetry_to()

    @telemetry.annotate
    async def search():
        here()
        return (await some_rows(telemetry))[0].scope

    @telemetry.annotate("tune", strategy="random")
    async def other():
        (row,) = await some_rows(telemetry)
        raise LookupError(row.scope, dict(row.scopes[0].labels))

    @telemetry.annotate
    def here():
        """Here."""

    async with telemetry:
        assert await search() in ("search", "search/here")
        with pytest.raises(LookupError) as caught:
            await other()
        assert caught.value.args == ("tune", {"strategy": "random"})
        rows = await telemetry.rows_so_far()
    assert "search/here" in {scope.path for row in rows for scope in row.scopes}
    assert here.__doc__ == "Here."


@pytest.mark.asyncio
async def test_rows_end_where_telemetry_is_closed():
    telemetry = telemetry_to()
    await telemetry.open()
    with telemetry.scope("a"):
        reading = asyncio.ensure_future(anext(aiter(telemetry.rows())))
        await reading

        async def all_of_them():
            return [row.number async for row in telemetry.rows()]

        rest = asyncio.ensure_future(all_of_them())
        await some_rows(telemetry, 3)
        await telemetry.aclose()
    numbers = await rest
    assert len(numbers) >= 2
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.asyncio
async def test_cancelling_a_reader_of_rows_hurts_no_other():
    async with telemetry_to() as telemetry:
        waiting = asyncio.ensure_future(some_rows(telemetry))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with telemetry.scope("a"):
            reader = asyncio.ensure_future(some_rows(telemetry, 1_000_000))
            await some_rows(telemetry, 2)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            assert len(await some_rows(telemetry, 2)) == 2


# Files.


@pytest.mark.asyncio
async def test_a_snapshot_takes_what_is_held_and_without_reset_leaves_it(folder):
    telemetry = telemetry_to()

    async def phase(name):
        with telemetry.scope(name):
            await some_rows(telemetry, 2)

    def scopes(path):
        return {row.scope for row in read_rows(path)}

    async with telemetry:
        await phase("one")
        taken = await telemetry.snapshot("1.jsonl")
        assert taken == Snapshot(
            path=str(folder / "1.jsonl"),
            rows=len(read_rows("1.jsonl")),
            reset=True,
            notes=await telemetry.notes(),
        )
        await phase("two")
        left = await telemetry.snapshot(folder / "2.jsonl", reset=False)
        assert left.rows == len(await telemetry.rows_so_far()) == len(read_rows("2.jsonl"))
        await phase("three")
        await telemetry.snapshot("3.jsonl")
        assert await telemetry.rows_so_far() == []
    assert [scopes(f"{n}.jsonl") for n in (1, 2, 3)] == [{"one"}, {"two"}, {"two", "three"}]
    numbers = [row.number for n in (1, 3) for row in read_rows(f"{n}.jsonl")]
    assert numbers == list(range(len(numbers)))


@pytest.mark.asyncio
async def test_sampling_goes_on_while_snapshots_are_taken_and_no_row_is_lost(folder):
    async with telemetry_to("rest.jsonl", interval=0.001) as telemetry:
        with telemetry.scope("a"):
            for n in range(20):
                await telemetry.snapshot(f"{n}.jsonl")
            await some_rows(telemetry)
    numbers = [row.number for n in range(20) for row in read_rows(f"{n}.jsonl")]
    numbers += [row.number for row in read_rows("rest.jsonl")]
    assert numbers == list(range(len(numbers)))


@pytest.mark.asyncio
async def test_a_snapshot_that_is_cancelled_is_written_whole_or_not_at_all(folder):
    async with telemetry_to("rest.jsonl", interval=0.001) as telemetry:
        with telemetry.scope("a"):
            await some_rows(telemetry)
            for n in range(40):
                taking = asyncio.ensure_future(telemetry.snapshot(f"{n}.jsonl"))
                for _ in range(n // 4):
                    await asyncio.sleep(0)
                taking.cancel()
                await asyncio.wait([taking])
                assert taking.cancelled() or n >= 4  # by then it may be done
            await some_rows(telemetry)
    files = [path for path in folder.iterdir() if path.name != "rest.jsonl"]
    numbers = sorted(row.number for path in [*files, Path("rest.jsonl")] for row in read_rows(path))
    assert numbers == list(range(len(numbers)))


@pytest.mark.asyncio
async def test_a_path_that_cannot_be_written_is_an_error_and_loses_no_row(folder):
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            await some_rows(telemetry, 2)
        before = await telemetry.rows_so_far()
        with pytest.raises(FileNotFoundError, match=r"no folder/rows\.jsonl"):
            await telemetry.snapshot("no folder/rows.jsonl")
        with pytest.raises(FileExistsError, match="is no file"):
            await telemetry.snapshot(folder)
        assert await telemetry.rows_so_far() == before
        await telemetry.snapshot("rows.jsonl")
    assert read_rows("rows.jsonl") == before


@pytest.mark.asyncio
async def test_a_snapshot_may_not_go_where_the_end_would_replace_it(folder):
    async with telemetry_to("rows.jsonl") as telemetry:
        with pytest.raises(ValueError, match="at the end"):
            await telemetry.snapshot(folder / "rows.jsonl")


@pytest.mark.asyncio
async def test_closing_writes_what_no_snapshot_took_to_one_file_once(folder):
    telemetry = telemetry_to(None)
    assert await telemetry.aclose() is None
    await telemetry.open()
    pid = telemetry.pid
    with telemetry.scope("a"):
        await some_rows(telemetry, 2)
        written = await telemetry.aclose()
    assert await telemetry.aclose() is None
    assert (telemetry.is_open, telemetry.pid) == (False, None)
    assert not psutil.pid_exists(pid)
    (path,) = folder.iterdir()
    assert path.match("tunewire-telemetry-*.jsonl")
    assert written == Snapshot(path=str(path), rows=len(read_rows(path)), reset=True, notes=written.notes)
    async with telemetry:
        with telemetry.scope("b"):
            (row,) = await some_rows(telemetry)
        assert (row.number, row.scope) == (0, "b")
        await telemetry.snapshot("b.jsonl")
    assert sorted(os.listdir(folder)) == ["b.jsonl", path.name]


@pytest.mark.asyncio
async def test_the_environment_may_say_where_the_rows_go(folder, monkeypatch):
    monkeypatch.setenv("TUNEWIRE_TELEMETRY_PATH", "fixed.jsonl")
    async with telemetry_to(None) as telemetry:
        with telemetry.scope("a"):
            await some_rows(telemetry)
    assert os.listdir(folder) == ["fixed.jsonl"]


@pytest.mark.asyncio
async def test_telemetry_that_sampled_nothing_writes_no_file(folder):
    async with telemetry_to(None):
        pass
    assert os.listdir(folder) == []


@pytest.mark.asyncio
async def test_what_cannot_be_written_at_the_end_goes_where_it_can_and_the_error_says_where(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "refuge"))
    (tmp_path / "refuge").mkdir()
    with pytest.raises(FileNotFoundError, match="no folder") as caught:
        async with telemetry_to("no folder/rows.jsonl") as telemetry:
            with telemetry.scope("a"):
                await some_rows(telemetry, 2)
            held = await telemetry.rows_so_far()
    (path,) = (tmp_path / "refuge").iterdir()
    assert read_rows(path)[: len(held)] == held
    assert any(str(path) in note for note in caught.value.__notes__)


@pytest.mark.asyncio
async def test_rows_that_find_no_room_are_counted(caplog):
    async with telemetry_to(max_bytes=4000, interval=0.001) as telemetry:
        with telemetry.scope("a"):
            await row_where(telemetry, lambda row: row.number >= 50)
        taken = await telemetry.snapshot("rows.jsonl")
    rows = read_rows("rows.jsonl")
    assert [row.number for row in rows] == list(range(taken.dropped, taken.dropped + len(rows)))
    assert taken.dropped > 0
    assert "no room for more rows" in " ".join(taken.notes)


# Not open, and not enabled.


@pytest.mark.asyncio
async def test_what_is_not_open_says_so(folder):
    telemetry = telemetry_to(None)
    for asked in (telemetry.snapshot("x"), telemetry.rows_so_far(), telemetry.notes()):
        with pytest.raises(RuntimeError, match="telemetry has not been opened"):
            await asked
    with pytest.raises(ServiceClosed):
        telemetry.rows()
    with telemetry.scope("a"):
        assert os.listdir(folder) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["environment", "option"])
async def test_telemetry_that_is_not_enabled_starts_nothing_and_does_nothing(
    folder, monkeypatch, caplog, how
):
    if how == "environment":
        monkeypatch.setenv("TUNEWIRE_TELEMETRY", "off")
    async with telemetry_to(None, enabled=None if how == "environment" else False) as telemetry:
        assert (telemetry.pid, telemetry.is_open, telemetry.enabled) == (None, False, False)
        assert psutil.Process().children() == []
        with telemetry.scope("a"):
            assert [row async for row in telemetry.rows()] == []
        assert await telemetry.rows_so_far() == []
        assert await telemetry.notes() == ()
        assert caplog.records == []
        assert await telemetry.snapshot("rows.jsonl") is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.listdir(folder) == []


@pytest.mark.asyncio
async def test_a_program_that_says_enabled_is_not_overruled(monkeypatch):
    monkeypatch.setenv("TUNEWIRE_TELEMETRY", "0")
    async with telemetry_to(enabled=True) as telemetry:
        assert telemetry.is_open


@pytest.mark.asyncio
async def test_opening_twice_is_opening_once():
    telemetry = telemetry_to()
    first, second = await asyncio.gather(telemetry.open(), telemetry.open())
    assert first is second is telemetry
    pid = telemetry.pid
    assert await telemetry.open() is telemetry
    assert telemetry.pid == pid
    assert len(psutil.Process().children()) == 1
    await telemetry.aclose()
    assert not psutil.pid_exists(pid)


@pytest.mark.asyncio
async def test_cancelling_an_opening_or_a_closing_leaves_nothing():
    for turns in (0, 1, 2, 5, 10, 20, 40):
        telemetry = telemetry_to()
        opening = asyncio.ensure_future(telemetry.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert psutil.Process().children() == []
        assert not telemetry.is_open
    await telemetry.open()
    closing = asyncio.ensure_future(telemetry.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: psutil.Process().children() == [])


# What goes wrong in the process that samples.


@pytest.mark.asyncio
async def test_a_process_that_is_killed_is_told_clearly_and_scopes_go_on(folder, caplog):
    telemetry = telemetry_to()
    await telemetry.open()
    pid = telemetry.pid
    with telemetry.scope("a"):
        reading = asyncio.ensure_future(some_rows(telemetry, 1_000_000))
        await some_rows(telemetry)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServiceCrashed, match="SIGKILL"):
            await reading
        assert not telemetry.is_open
        with telemetry.scope("inner"):
            await until(lambda: any("not sampled any more" in text for text in caplog.messages))
    for asked in (telemetry.snapshot("rows.jsonl"), telemetry.rows_so_far()):
        with pytest.raises(ServiceClosed, match="was ended by SIGKILL") as caught:
            await asked
        assert isinstance(caught.value.__cause__, ServiceCrashed)
    with pytest.raises(ServiceClosed, match="was ended by SIGKILL"):
        await telemetry.aclose()
    assert not psutil.pid_exists(pid)
    assert sum("not sampled any more" in text for text in caplog.messages) == 1
    assert os.listdir(folder) == []


@pytest.mark.asyncio
async def test_an_error_of_the_block_is_not_replaced_by_one_of_closing(caplog):
    with pytest.raises(ZeroDivisionError):
        async with telemetry_to() as telemetry:
            os.kill(telemetry.pid, signal.SIGKILL)
            await until(lambda: not telemetry.is_open)
            raise ZeroDivisionError
    assert any(text.startswith("closing telemetry failed: ServiceClosed") for text in caplog.messages)


@pytest.mark.asyncio
async def test_a_process_that_does_not_answer_is_a_timeout_and_closing_is_bounded(caplog):
    telemetry = telemetry_to(timeout=0.2)
    await telemetry.open()
    os.kill(telemetry.pid, signal.SIGSTOP)
    with telemetry.scope("a"), pytest.raises(CallTimeout):
        await telemetry.snapshot("rows.jsonl")
    with pytest.raises(CallTimeout):
        await telemetry.aclose()
    assert psutil.Process().children() == []


@pytest.mark.asyncio
async def test_a_provider_that_fails_costs_its_own_readings_and_is_noted_once(caplog, tmp_path):
    caplog.set_level(logging.INFO, logger="tunewire.service.TelemetryService")
    providers = [f"telemetry_providers:{name}" for name in ("Failing", "Unmakeable", "Counting")]
    env = {"TELEMETRY_TEST_CLOSED": str(tmp_path / "closed")}
    async with telemetry_to(providers=[*providers, "no_such_module:Class"], env=env) as telemetry:
        with telemetry.scope("a"):
            rows = await some_rows(telemetry, 3)
        notes = await telemetry.notes()
    assert all(row.host is not None and set(row.more) == {providers[2]} for row in rows)
    for note in ("ZeroDivisionError: no readings here", "LookupError: this cannot be made", "no_such_module"):
        assert sum(note in text for text in notes) == 1
        assert sum(note in text for text in caplog.messages) == 1
    assert (tmp_path / "closed").read_text() == "closed after True"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    ["SystemExit", "KeyboardInterrupt", "CancelledError", "StopIteration", "Unspeakable", "Undecodable"],
)
async def test_whatever_a_provider_raises_the_others_are_read_and_nothing_is_lost(folder, error):
    providers = [f"telemetry_providers:{name}" for name in ("Ill", "Counting")]
    env = {"TELEMETRY_TEST_RAISES": error}
    async with telemetry_to("rows.jsonl", providers=providers, env=env) as telemetry:
        with telemetry.scope("a"):
            rows = await some_rows(telemetry, 3)
        assert [set(row.more) for row in rows] == [{providers[1]}] * 3
        notes = await telemetry.notes()
        assert sum(f"Ill: {error}: " in note for note in notes) == 1
        assert (await telemetry.snapshot("first.jsonl")).notes == notes
        with telemetry.scope("b"):
            await some_rows(telemetry)
    assert len(read_rows("first.jsonl")) >= 3
    assert read_rows("rows.jsonl")


@pytest.mark.asyncio
async def test_readings_are_the_same_as_they_come_and_in_a_file(folder):
    name = "telemetry_providers:Odd"
    async with telemetry_to("rows.jsonl", providers=[name]) as telemetry:
        with telemetry.scope("a"):
            (row,) = await some_rows(telemetry)
    assert row.more[name] == {"\\udcff": 1.0, "nan": None, "more": None, "flag": 1.0}
    assert row in read_rows("rows.jsonl")


@pytest.mark.asyncio
async def test_a_provider_that_hangs_is_left_out_until_it_answers(tmp_path):
    hangs = tmp_path / "hangs"
    name = "telemetry_providers:Hanging"
    env = {"TELEMETRY_TEST_HANGS": str(hangs)}
    async with telemetry_to(providers=[name], env=env) as telemetry:
        with telemetry.scope("a"):
            await row_where(telemetry, lambda row: name in row.more)
            hangs.touch()
            await row_where(telemetry, lambda row: name not in row.more)
            await some_rows(telemetry, 10)
            assert (await telemetry.snapshot("rows.jsonl")).rows > 0
            assert any("took longer" in note for note in await telemetry.notes())
            hangs.unlink()
            await row_where(telemetry, lambda row: name in row.more)
            hangs.touch()
            await row_where(telemetry, lambda row: name not in row.more)


# GPUs, of a simulated NVML.


@pytest.mark.asyncio
async def test_gpus_are_read_as_far_as_the_mask_shows_them(gpus, monkeypatch):
    gpus(GPU, OTHER)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            (row,) = await some_rows(telemetry)
        (device,) = row.devices
        assert (device.id, device.uuid, device.index) == ("cuda:0", OTHER["uuid"], 1)
        assert (device.power_watts, device.memory_used_bytes) == (250.5, 20)
        assert 0 <= device.utilization_percent <= 100
        assert await telemetry.notes() == ()
    async with telemetry_to(env={"CUDA_VISIBLE_DEVICES": None}) as telemetry:
        with telemetry.scope("a"):
            (row,) = await some_rows(telemetry)
        assert [device.id for device in row.devices] == ["cuda:0", "cuda:1"]


@pytest.mark.asyncio
async def test_a_gpu_that_is_lost_is_noted_and_sampling_goes_on(gpus, caplog):
    gpus(GPU, OTHER)
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            await row_where(telemetry, lambda row: row.devices[0].power_watts == 250.5)
            gpus({**GPU, "lost": True}, OTHER)
            row = await row_where(telemetry, lambda row: row.devices[0].power_watts is None)
        assert row.devices[0].uuid == GPU["uuid"]
        assert await telemetry.notes() == (f"{GPU['uuid']}: GPU is lost",)
    assert sum("GPU is lost" in text for text in caplog.messages) == 1


@pytest.mark.asyncio
async def test_a_mig_instance_is_read(gpus, monkeypatch):
    gpus(SPLIT)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", SPLIT["instances"][0]["uuid"])
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            (row,) = await some_rows(telemetry)
    (device,) = row.devices
    assert (device.id, device.memory_total_bytes, device.utilization_percent) == ("cuda:0", 10, None)


@pytest.mark.asyncio
async def test_a_driver_that_hangs_costs_the_rows_their_devices_only(gpus):
    gpus(GPU)
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            await row_where(telemetry, lambda row: row.devices)
            gpus(GPU, hangs=True)
            row = await row_where(telemetry, lambda row: not row.devices)
            assert row.host is not None
            assert (await telemetry.snapshot("rows.jsonl")).rows > 0
            gpus(GPU)
            await row_where(telemetry, lambda row: row.devices)


@pytest.mark.asyncio
async def test_without_a_driver_or_its_module_rows_have_the_host_and_a_note(tmp_path, monkeypatch):
    async with telemetry_to() as telemetry:
        assert await telemetry.notes() == ("no NVIDIA driver to ask: Driver Not Loaded",)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "pynvml.py").write_text("raise ImportError('no such module')")
    monkeypatch.syspath_prepend(tmp_path / "none")
    async with telemetry_to() as telemetry:
        with telemetry.scope("a"):
            (row,) = await some_rows(telemetry)
        assert (row.devices, row.host is None) == ((), False)
        assert "pynvml is not installed" in " ".join(await telemetry.notes())


# How a parent may end.

PARENT = """
import asyncio, os, sys, time
from tunewire import Telemetry

async def main():
    telemetry = Telemetry(interval=0.01, path={path!r})
    await telemetry.open()
    with telemetry.scope("work"):
        async for row in telemetry.rows():
            if row.number == 3:
                break
        forked = 0
        if {forks}:
            forked = os.fork()
            if forked == 0:
                time.sleep(600)
                os._exit(0)
        print(telemetry.pid, forked, flush=True)
        if not {ends}:
            await asyncio.sleep(600)

asyncio.run(main())
"""


def runs(pid):
    """Whether it does; what has ended and waits for whoever takes orphans does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def a_parent(tmp_path, *, path=None, forks=False, ends=False):
    """Run it until it ends, or kill it; nothing of its service is left."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(path=path, forks=forks, ends=ends))
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    with parent:
        pid, forked = map(int, parent.stdout.readline().split())
        tree = [pid, psutil.Process(pid).ppid()]
        if not ends:
            parent.kill()
        elif parent.wait() != 0:
            raise AssertionError(parent.returncode)
        end = time.monotonic() + 30
        while left := [each for each in tree if runs(each)]:
            assert time.monotonic() < end, left
            time.sleep(0.005)
        if forked:
            os.kill(forked, signal.SIGKILL)


def test_when_the_parent_is_killed_its_rows_are_in_exactly_one_file(folder, tmp_path):
    a_parent(tmp_path)
    (path,) = folder.iterdir()
    rows = read_rows(path)
    assert [row.number for row in rows] == list(range(len(rows)))
    assert len(rows) >= 4
    assert {row.scope for row in rows} == {"work"}


def test_when_the_parent_is_killed_its_own_path_is_kept(folder, tmp_path):
    a_parent(tmp_path, path="fixed.jsonl")
    assert os.listdir(folder) == ["fixed.jsonl"]
    assert len(read_rows("fixed.jsonl")) >= 4


def test_when_the_parent_is_killed_and_its_path_cannot_be_written_the_rows_are_elsewhere(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(folder))
    a_parent(tmp_path, path="no folder/rows.jsonl")
    (path,) = folder.iterdir()
    assert len(read_rows(path)) >= 4


def test_whoever_the_parent_forked_holds_back_no_row_of_a_parent_that_is_killed(folder, tmp_path):
    a_parent(tmp_path, forks=True)
    (path,) = folder.iterdir()
    assert len(read_rows(path)) >= 4


def test_a_loop_that_ends_without_closing_loses_no_row(folder, tmp_path):
    a_parent(tmp_path, ends=True)
    (path,) = folder.iterdir()
    assert len(read_rows(path)) >= 4


def test_after_a_loop_that_ended_without_closing_it_may_be_opened_in_another():
    telemetry = telemetry_to()
    asyncio.run(telemetry.open())

    async def again():
        async with telemetry:
            with telemetry.scope("a"):
                return await some_rows(telemetry)

    assert asyncio.run(again())[0].number == 0
    asyncio.run(telemetry.open())
    assert asyncio.run(telemetry.aclose()) is None
