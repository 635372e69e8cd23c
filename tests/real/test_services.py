"""Typed services in real processes, and the same over a pair in memory."""

import asyncio
import logging
import os
import subprocess
import sys
import time

import psutil
import pytest
import pytest_asyncio
from service_definitions import Process, Work

from tunewire import Limits, connect
from tunewire.errors import (
    CallTimeout,
    InvalidService,
    InvalidValue,
    NoSuchDevice,
    ServiceClosed,
    ServiceCrashed,
)
from tunewire.testing import connection_pair

IMPLEMENTATION = "service_definitions:WorkHere"
PROCESS = "service_definitions:ProcessHere"


@pytest_asyncio.fixture(params=["process", "memory"])
async def work(request):
    over = connection_pair() if request.param == "memory" else None
    async with connect(Work, implementation=IMPLEMENTATION, over=over) as proxy:
        yield proxy


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.asyncio
async def test_many_calls_are_in_flight_and_each_gets_its_own_answer(work):
    assert await work.add(1) == 3
    assert await asyncio.gather(*(work.add(n, b=n) for n in range(200))) == [2 * n for n in range(200)]


@pytest.mark.asyncio
async def test_a_wrong_argument_is_named_before_the_method_begins(work):
    with pytest.raises(InvalidValue) as caught:
        await work.add("one")
    assert (caught.value.method, caught.value.path) == ("Work.add", "a")
    with pytest.raises(TypeError):
        await work.add(1, 2, 3)
    assert await work.add(1) == 3


@pytest.mark.asyncio
async def test_a_wrong_result_is_named_where_it_arrives(work):
    with pytest.raises(InvalidValue, match=r"Work.wrong: result: Expected `int`, got `str`"):
        await work.wrong()


@pytest.mark.asyncio
async def test_what_a_method_raises_is_raised_with_its_traceback(work):
    with pytest.raises(KeyError, match="nothing of that name") as caught:
        await work.fail()
    assert "service_definitions.py" in str(caught.value.__cause__)


@pytest.mark.asyncio
async def test_a_stream_comes_whole_and_in_order(work):
    assert [tick async for tick in work.ticks(2000)] == list(range(2000))


@pytest.mark.asyncio
async def test_a_slow_reader_holds_the_writer_and_leaving_early_stops_it(work):
    ticks = work.ticks(1_000_000)
    assert await anext(ticks) == 0
    assert await anext(ticks) == 1
    before = await work.sent()
    assert before < 1000
    await ticks.aclose()
    assert await work.sent() < 1000


@pytest.mark.asyncio
async def test_streams_that_callers_feed(work):
    async def numbers():
        for n in range(1000):
            yield n

    assert await work.total(numbers()) == sum(range(1000))
    assert [x async for x in work.doubled(range(300))] == [2 * n for n in range(300)]


@pytest.mark.asyncio
async def test_a_method_that_has_enough_stops_its_feeder(work):
    ended = asyncio.Event()

    async def endless():
        try:
            while True:
                yield 1
        finally:
            ended.set()

    assert await work.total(endless(), at_most=10) == 10
    async with asyncio.timeout(30):
        await ended.wait()


@pytest.mark.asyncio
async def test_what_a_feeder_raises_is_raised_by_the_call(work):
    async def broken():
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await work.total(broken())
    assert await work.add(1) == 3


@pytest.mark.asyncio
async def test_a_method_calls_back(work):
    seen = []

    async def progress(step):
        seen.append(step)
        return step < 3

    assert await work.train(10, progress) == 3
    assert seen == [0, 1, 2, 3]

    async def failing(_step):
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        await work.train(1, failing)


@pytest.mark.asyncio
async def test_cancelling_a_call_stops_it_in_the_child(work, tmp_path):
    mark = tmp_path / "mark"
    call = asyncio.ensure_future(work.sleep(600.0, str(mark)))
    await until(lambda: mark.exists() and mark.read_text() == "began")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: mark.read_text() == "cancelled")
    assert await work.add(1) == 3


@pytest.mark.asyncio
async def test_a_cancel_that_comes_together_with_its_call_is_answered(tmp_path):
    connection = connect(Work, implementation=IMPLEMENTATION, cancel_grace=None)
    async with connection as work:
        for turns in (0, 1, 2, 3) * 10:
            call = asyncio.ensure_future(work.sleep(600.0, str(tmp_path / "mark")))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await until(lambda: connection.in_flight == 0)
        assert await work.add(1) == 3


@pytest.mark.asyncio
async def test_a_crash_ends_every_call_in_flight_and_says_so(tmp_path):
    async with connect(Work, implementation=IMPLEMENTATION) as work:
        waiting = asyncio.ensure_future(work.sleep(600.0, str(tmp_path / "mark")))
        await until((tmp_path / "mark").exists)
        with pytest.raises(ServiceCrashed) as caught:
            await work.crash()
        assert caught.value.exit_code == 3
        assert caught.value.in_flight == 2
        with pytest.raises(ServiceCrashed, match=r"Work\.sleep"):
            await waiting
        with pytest.raises(ServiceClosed):
            await work.add(1)


@pytest.mark.asyncio
async def test_a_child_that_does_not_hear_a_cancel_is_killed():
    connection = connect(Work, implementation=IMPLEMENTATION, cancel_grace=0.1)
    async with connection as work:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await work.block()
        await until(lambda: not connection.is_open)
        assert not psutil.pid_exists(connection.pid)


@pytest.mark.asyncio
async def test_closing_ends_calls_and_lets_the_implementation_close(tmp_path):
    closing = tmp_path / "closing"
    connection = connect(Work, implementation=IMPLEMENTATION, args=[str(closing)])
    work = await connection.open()
    waiting = asyncio.ensure_future(work.sleep(600.0, str(tmp_path / "mark")))
    await until((tmp_path / "mark").exists)
    await connection.aclose()
    with pytest.raises(ServiceClosed):
        await waiting
    assert closing.read_text() == "closed"
    assert not psutil.pid_exists(connection.pid)


@pytest.mark.asyncio
async def test_an_implementation_that_does_not_fit_is_an_error_at_once():
    with pytest.raises(InvalidService, match="no method add"):
        async with connect(Work, implementation="fractions:Fraction"):
            pass
    with pytest.raises(ModuleNotFoundError):
        async with connect(Work, implementation="no_such_module:Class"):
            pass
    with pytest.raises(InvalidService, match="'module:Class'"):
        connect(Work, implementation="nothing")


def test_a_loop_that_ends_under_an_open_connection_leaves_no_process():
    async def main():
        connection = connect(Work, implementation=IMPLEMENTATION)
        work = await connection.open()
        assert await work.add(1) == 3
        return connection.pid

    pid = asyncio.run(main())
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=30)
    assert not psutil.pid_exists(pid)


# What its process is made of.


@pytest.mark.asyncio
async def test_a_service_has_the_environment_that_it_was_given(monkeypatch):
    monkeypatch.setenv("TUNEWIRE_TEST_INHERITED", "from the parent")
    monkeypatch.setenv("TUNEWIRE_TEST_REMOVED", "from the parent")
    env = {"TUNEWIRE_TEST_ADDED": "for the child", "TUNEWIRE_TEST_REMOVED": None}
    async with connect(Process, implementation=PROCESS, env=env) as process:
        names = ("TUNEWIRE_TEST_INHERITED", "TUNEWIRE_TEST_ADDED", "TUNEWIRE_TEST_REMOVED")
        assert [await process.variable(name) for name in names] == ["from the parent", "for the child", None]


@pytest.mark.parametrize(
    ("env", "error"), [({"A=B": "x"}, ValueError), ({"A": "\0"}, ValueError), ({"A": 1}, TypeError)]
)
def test_an_environment_that_no_process_can_have_is_an_error_at_once(env, error):
    with pytest.raises(error, match="A"):
        connect(Process, implementation=PROCESS, env=env)


@pytest.mark.asyncio
async def test_a_service_is_pinned_as_a_pools_worker_is(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8932f937")
    async with connect(Process, implementation=PROCESS, device="cuda:1") as process:
        assert await process.variable("CUDA_VISIBLE_DEVICES") == "GPU-8932f937"
        assert await process.variable("TUNEWIRE_DEVICE") == "cuda:1"
    for device in ("cuda:2", "gpu"):
        with pytest.raises(NoSuchDevice):
            async with connect(Process, implementation=PROCESS, device=device):
                pass


@pytest.mark.asyncio
async def test_output_of_a_service_is_copied_to_files_as_it_comes(tmp_path):
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        connection = connect(Process, implementation=PROCESS, stdout=out, stderr=err.fileno())
        async with connection as process:
            await process.say("to stdout", "to stderr")
            await until(lambda: "to stdout" in connection.stdout and "to stderr" in connection.stderr)
    assert (tmp_path / "out").read_text() == "to stdout\n"
    assert "to stderr\n" in (tmp_path / "err").read_text()


# The limit of a call.


@pytest.mark.asyncio
async def test_a_call_that_takes_too_long_is_a_timeout_of_its_phase_and_ends_in_the_child(tmp_path):
    mark = tmp_path / "mark"
    connection = connect(Work, implementation=IMPLEMENTATION, limits=Limits(run=0.3))
    async with connection as work:
        with pytest.raises(CallTimeout) as caught:
            await work.sleep(600.0, str(mark))
        assert (caught.value.phase, caught.value.limit) == ("run", 0.3)
        assert caught.value.callable_name == "Work.sleep"
        await until(lambda: mark.read_text() == "cancelled" and connection.in_flight == 0)
        assert await work.add(1) == 3
        assert [tick async for tick in work.ticks(3)] == [0, 1, 2]


@pytest.mark.asyncio
@pytest.mark.parametrize("deaf", ["block", "stop"])
async def test_a_child_that_does_not_hear_that_a_limit_was_reached_is_killed(deaf):
    service, implementation = (Work, IMPLEMENTATION) if deaf == "block" else (Process, PROCESS)
    connection = connect(service, implementation=implementation, limits=Limits(run=0.1), cancel_grace=0.1)
    async with connection as proxy:
        with pytest.raises(CallTimeout):
            await getattr(proxy, deaf)()
        await until(lambda: not connection.is_open)
        assert not psutil.pid_exists(connection.pid)


@pytest.mark.asyncio
async def test_a_limit_is_kept_though_the_child_does_not_read_the_arguments():
    connection = connect(
        Process, implementation=PROCESS, limits=Limits(run=0.2), cancel_grace=None, close_grace=0.0
    )
    async with connection as process:
        stopped = asyncio.ensure_future(process.stop())
        await until(lambda: psutil.Process(connection.pid).status() == psutil.STATUS_STOPPED)
        with pytest.raises(CallTimeout):
            await process.log("work", logging.DEBUG, "x" * (1 << 22))
        with pytest.raises(CallTimeout):
            await stopped


# Its logs.


@pytest.fixture
def records(caplog):
    """What arrives, as (name, level, text)."""
    caplog.set_level(logging.INFO, logger="tunewire.service.Process")

    def arrived():
        prefix = "tunewire.service.Process"
        return [
            (record.name.removeprefix(prefix).removeprefix("."), record.levelno, record.getMessage())
            for record in caplog.records
            if record.name.startswith(prefix)
        ]

    return arrived


@pytest.mark.asyncio
async def test_what_the_child_logs_is_logged_here_from_the_level_that_is_wanted_on(records, caplog):
    connection = connect(Process, implementation=PROCESS)
    async with connection as process:
        assert records() == [("making", logging.WARNING, "it is made")]
        await process.log("work.steps", logging.INFO, "a step of 100 %")
        await process.log("work.steps", logging.DEBUG, "not wanted")
        await process.log("", logging.ERROR, "by the root logger")
        assert records()[1:] == [
            ("work.steps", logging.INFO, "a step of 100 %"),
            ("", logging.ERROR, "by the root logger"),
        ]
        assert caplog.records[-1].process == connection.pid
    assert records()[3:] == [("closing", logging.WARNING, "it is closed")]
    assert "tunewire.service.Process.work.steps" not in logging.Logger.manager.loggerDict


@pytest.mark.asyncio
async def test_an_exception_that_is_logged_comes_as_text(records, caplog):
    async with connect(Process, implementation=PROCESS) as process:
        await process.log_error()
    record = next(record for record in caplog.records if record.name.endswith("Process.work"))
    assert record.getMessage() == "it failed: so"
    assert record.exc_info is None
    assert "KeyError: 'nothing of that name'" in logging.Formatter().format(record)


@pytest.mark.asyncio
async def test_a_long_record_is_cut_and_control_characters_are_shown(records):
    async with connect(Process, implementation=PROCESS) as process:
        await process.log("work", logging.INFO, "\x1b[31m" + "x" * 100_000)
    ((_, _, text),) = [record for record in records() if record[0] == "work"]
    assert text.startswith(r"\x1b[31mxxx")
    assert 8192 < len(text) < 8300
    assert text.endswith("characters more)")


@pytest.mark.asyncio
async def test_a_flood_of_records_holds_up_no_call_and_none_is_lost_uncounted(records):
    number = 20_000
    async with connect(Process, implementation=PROCESS) as process:
        flood = asyncio.ensure_future(process.log_from_a_thread(number))
        assert await process.variable("TUNEWIRE_TEST_NOTHING") is None
        await flood
        await process.log("last", logging.INFO, "it is over")
        await until(lambda: ("last", logging.INFO, "it is over") in records())
    came = sum(name == "flood" for name, _, _ in records())
    told = [text for name, _, text in records() if not name]
    dropped = sum(int(text.split()[0]) for text in told)
    assert came + dropped == number
    assert dropped == 0 or "log records of the service's process were dropped" in told[0]


@pytest.mark.asyncio
async def test_logging_while_a_record_is_made_is_dropped_and_counted(records):
    async with connect(Process, implementation=PROCESS) as process:
        await process.log_about_logging()
    assert [record for record in records() if record[0] != "making"][:2] == [
        ("", logging.WARNING, "1 log records of the service's process were dropped"),
        ("outer", logging.WARNING, "outer"),
    ]


@pytest.mark.asyncio
async def test_a_logger_that_is_disabled_hears_nothing(records, caplog):
    caplog.set_level(logging.CRITICAL, logger="tunewire.service.Process")
    async with connect(Process, implementation=PROCESS) as process:
        await process.log("work", logging.ERROR, "not wanted")
        caplog.set_level(logging.DEBUG, logger="tunewire.service.Process")
        await process.log("work", logging.ERROR, "not wanted when it was opened")
        await process.log("work", logging.CRITICAL, "wanted")
    assert [text for _, _, text in records()] == ["wanted"]


# Its parent's death.

PARENT = """
import asyncio, sys
from service_definitions import Process
from tunewire import connect

async def main():
    connection = connect(Process, implementation="service_definitions:ProcessHere", args=[sys.argv[1], {hang}])
    process = await connection.open()
    call = asyncio.ensure_future(process.sleep(600.0))
    await process.variable("PATH")
    print(connection.pid, flush=True)
    await call

asyncio.run(main())
"""


def a_parent_that_is_killed(tmp_path, *, hang):
    """The pids of its service's tree, once it has been killed and reaped."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.replace("{hang}", str(hang)))
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "closing")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    with parent:
        pid = int(parent.stdout.readline())
        tree = [pid, psutil.Process(pid).ppid()]
        parent.kill()
    return tree


def wait_until_gone(pids):
    end = time.monotonic() + 30
    while left := [pid for pid in pids if psutil.pid_exists(pid)]:
        assert time.monotonic() < end, left
        time.sleep(0.005)


def test_when_the_parent_is_killed_the_implementation_can_close_what_it_holds(tmp_path):
    wait_until_gone(a_parent_that_is_killed(tmp_path, hang=False))
    assert (tmp_path / "closing").read_text() == "closed"


def test_when_the_parent_is_killed_a_service_that_hangs_while_it_closes_is_killed_too(tmp_path):
    wait_until_gone(a_parent_that_is_killed(tmp_path, hang=True))
    assert (tmp_path / "closing").read_text() == "begun"
