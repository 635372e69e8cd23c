"""Typed services in real processes, and the same over a pair in memory."""

import asyncio

import psutil
import pytest
import pytest_asyncio
from service_definitions import Work

from tunewire import connect
from tunewire.errors import InvalidService, InvalidValue, ServiceClosed, ServiceCrashed
from tunewire.testing import connection_pair

IMPLEMENTATION = "service_definitions:WorkHere"


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
