"""What has been tried against the core, each as the smallest case, kept so that it stays without effect.

An attack may cost its own call and its own process: never the pool, a neighbour, the next call, or an outcome.
"""

import asyncio
import ctypes
import dataclasses
import decimal
import functools
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import unittest.mock

import msgspec
import numpy as np
import pytest

from tunewire import Limits, OutcomeKind, ParentEndpoint, Pool, Worker, current_call
from tunewire.errors import (
    CallTimeout,
    DecodeError,
    EncodeError,
    EndpointClosed,
    PoolSaturated,
    RemoteError,
    StartError,
    WireError,
    WorkerCrashed,
)
from tunewire.wire.exceptions import ExceptionData
from tunewire.wire.messages import Failure, Phase, pack_message

pytestmark = pytest.mark.asyncio


def identity(x):
    return x


async def next_call_is_served(caller):
    assert await caller.call(identity, "next") == "next"


# Exceptions.


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen(Exception):
    x: int


class RefusesAttributes(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(name)


class RefusesNotes(Exception):
    def add_note(self, note):
        raise RuntimeError("no notes")


class LoadsBadly(Exception):
    def __reduce__(self):
        return sys.exit, (3,)


def raise_frozen():
    raise Frozen(3)


def raise_refusing():
    raise RefusesAttributes("x")


def raise_with_notes_that_are_none():
    error = RefusesNotes("x")
    error.__notes__ = 5
    raise error


def raise_with_notes_in_a_tuple():
    error = ValueError("x")
    error.__notes__ = (1,)
    raise error


def raise_with_arguments_that_are_none():
    class Odd(Exception):
        args = 5

    raise Odd


def raise_with_text_that_interrupts():
    class Odd(Exception):
        def __str__(self):
            raise KeyboardInterrupt

    raise Odd


def raise_what_loads_badly():
    raise LoadsBadly("x")


def raise_a_web_of_groups():
    members = [ValueError(str(i)) for i in range(20)]
    for level in range(8):
        members = [ExceptionGroup(f"{level}.{i}", members) for i in range(20)]
    raise members[0]


ODD = [
    raise_frozen,
    raise_refusing,
    raise_with_notes_that_are_none,
    raise_with_notes_in_a_tuple,
    raise_with_arguments_that_are_none,
    raise_with_text_that_interrupts,
    raise_what_loads_badly,
    raise_a_web_of_groups,
]


@pytest.mark.parametrize("results", ["pickle", "msgspec"])
async def test_odd_exceptions_are_errors_of_their_call(results):
    async with Worker(results=results) as worker:
        pid = await worker.call(os.getpid)
        for odd in ODD:
            outcome = await worker.run(odd, timeout=30)
            assert outcome.kind is OutcomeKind.ERROR, odd
        assert await worker.call(os.getpid) == pid


@pytest.mark.parametrize("odd", [raise_frozen, raise_with_notes_in_a_tuple])
async def test_odd_exceptions_of_an_initializer_are_the_calls(odd):
    async with Worker(initializer=odd) as worker:
        for _ in range(2):
            outcome = await worker.run(identity, 1)
            assert type(outcome.error) in (Frozen, ValueError)


async def test_what_supervision_says_of_a_call_cannot_be_said_by_the_call():
    def lie():
        raise CallTimeout(phase="run", limit=1.0)

    for results in ("pickle", "msgspec"):
        async with Worker(results=results) as worker:
            outcome = await worker.run(lie)
            assert outcome.kind is OutcomeKind.ERROR
            assert isinstance(outcome.error, RemoteError)


async def test_text_of_a_child_does_not_steer_a_terminal():
    class Red(Exception):
        def __init__(self, a, b):
            super().__init__("\x1b[31mred")
            self.add_note("\x1b[5mnote")

    def fail():
        raise Red(1, 2)

    async with Worker() as worker:
        error = (await worker.run(fail)).error
    assert "\x1b" not in str(error) + str(error.__cause__) + "".join(error.__notes__)
    assert "\\x1b[31mred" in str(error)
    assert "\x1b[31mred" in error.message


# Frames from a hostile child. It finds its channel, and writes what it likes.


def write_frames(*frames):
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        if int(name) > 2 and os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
            for frame in frames:
                try:
                    os.write(int(name), frame)
                except OSError:
                    break
    time.sleep(1000)


def failure(data, call_id):
    return b"".join(pack_message(Failure(data), call_id=call_id)[0])


def nested(depth):
    data = ExceptionData(type_name="ValueError", message="m", arguments=())
    for _ in range(depth):
        data = ExceptionData(type_name="ExceptionGroup", message="m", members=(data,))
    return data


HOSTILE = {
    "deep groups": nested(400),
    "an argument that overflows": ExceptionData(
        type_name="UnicodeEncodeError", message="m", arguments=("u", "x", 2**63 - 1, 2, "r")
    ),
    "many notes": ExceptionData(
        type_name="ValueError", message="m", arguments=(), notes=tuple(map(str, range(50_000)))
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_description_costs_its_own_call_only(name):
    async with Pool(2, results="msgspec") as pool:
        neighbour = asyncio.create_task(pool.run(time.sleep, 0.3))
        outcome = await pool.run(write_frames, failure(HOSTILE[name], 2), timeout=20)
        assert outcome.kind in (OutcomeKind.ERROR, OutcomeKind.CRASH)
        assert (await neighbour).ok
        await next_call_is_served(pool)


async def test_phases_without_end_are_a_broken_protocol():
    stray = b"".join(pack_message(Phase("run"), call_id=999)[0])
    async with Worker() as worker:
        outcome = await worker.run(write_frames, *[stray] * 500)
        assert isinstance(outcome.error, WireError)
        await next_call_is_served(worker)


async def test_phases_of_a_thread_that_was_left_over_hurt_no_one():
    def leave_a_thread():
        call = current_call()

        def announce():
            for phase in ("check", "run"):
                time.sleep(0.01)
                call.enter(phase)

        threading.Thread(target=announce).start()

    async with Worker() as worker:
        for _ in range(5):
            await worker.call(leave_a_thread, phase="compile")
            await worker.call(time.sleep, 0.02)
        assert worker._pool.statistics().workers[0].processes == 1


# Arguments that are wrong, or only unusual.


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": decimal.Decimal(1)}, TypeError),
        ({"timeout": 10**400}, ValueError),
        ({"timeout": float("nan")}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"limits": 0.5}, TypeError),
        ({"limits": {}}, TypeError),
        ({"phase": "queue"}, ValueError),
    ],
)
async def test_a_wrong_option_is_refused_and_wedges_nothing(options, error, warm):
    async with Worker() as worker:
        if warm:
            await next_call_is_served(worker)
        with pytest.raises(error):
            await worker.call(identity, 1, **options)
        await next_call_is_served(worker)


async def test_more_buffers_than_a_frame_has_room_for_travel_within_the_pickle():
    arrays = [np.zeros(1) for _ in range(70_000)]
    async with Worker() as worker:
        assert await worker.call(len, arrays) == 70_000


@pytest.mark.parametrize("result_type", [list[int] | tuple[int], threading.Lock, "NoSuchType"])
async def test_a_result_type_that_cannot_be_is_an_error_of_its_call(result_type):
    async with Worker(results="msgspec") as worker:
        outcome = await worker.run(identity, 1, result_type=result_type)
        assert isinstance(outcome.error, DecodeError)
        await next_call_is_served(worker)


class Refuses(msgspec.Struct):
    a: int

    def __post_init__(self):
        raise RuntimeError("refused")


async def test_a_result_whose_type_refuses_it_is_an_error_of_its_call():
    async with Worker(results="msgspec") as worker:
        outcome = await worker.run(dict, kwargs={"a": 1}, result_type=Refuses)
        assert isinstance(outcome.error, DecodeError)
        await next_call_is_served(worker)


async def test_a_result_that_exits_when_it_is_loaded_is_an_error_of_its_call():
    class Exits:
        def __reduce__(self):
            return sys.exit, (3,)

    async with Worker() as worker:
        outcome = await worker.run(lambda: Exits())
        assert isinstance(outcome.error, DecodeError)
        await next_call_is_served(worker)


@pytest.mark.parametrize("env", [{"A": 5}, {5: "x"}, {"A": "x\0y"}, {"A=B": ""}, {"": "x"}])
async def test_an_environment_that_no_process_can_have_is_refused(env):
    with pytest.raises((TypeError, ValueError)):
        Pool(1, env=env)


async def test_odd_entries_of_the_search_path_do_no_harm(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, pathlib.Path("/x"), "/\udcff"])
    async with Worker() as worker:
        await next_call_is_served(worker)


async def test_a_callable_with_every_attribute_has_a_name():
    with pytest.raises(EncodeError):
        async with Worker() as worker:
            await worker.call(unittest.mock.MagicMock(__reduce__=None, func=threading.Lock()))
    async with Worker() as worker:
        assert await worker.call(functools.partial(identity, 1)) == 1


async def test_a_name_that_is_not_unicode_does_no_harm():
    def function():
        return 1

    function.__qualname__ = "f\udcff"
    async with Worker() as worker:
        assert await worker.call(function) == 1


async def test_without_descriptors_a_call_gets_a_start_error():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Worker() as worker:
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 6, hard))
            with pytest.raises(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(3):
                os.close(taken.pop())
            with pytest.raises(StartError, match="Too many open files"):
                await worker.call(identity, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        await next_call_is_served(worker)


@pytest.mark.parametrize("command", [[], ["/bin/echo", "a\0b"]])
async def test_a_command_that_cannot_be_is_a_start_error(command):
    with pytest.raises(StartError):
        await ParentEndpoint.spawn(command)


async def test_a_frame_is_measured_whole():
    async with Worker(max_frame_bytes=65_536) as worker:
        for size in (65_000, 65_460, 65_500, 65_536):
            outcome = None
            try:
                outcome = await worker.run(len, bytes(size))
            except EncodeError:
                continue
            assert outcome.ok

        def fail():
            raise ValueError("x" * 200_000)

        outcome = await worker.run(fail)
        assert outcome.kind is OutcomeKind.ERROR


# Callables that leave something behind.


async def test_a_fork_that_comes_back_answers_nothing():
    async with Worker() as worker:
        for _ in range(5):
            assert isinstance(await worker.call(os.fork), int)
            await next_call_is_served(worker)
        assert worker._pool.statistics().workers[0].processes == 1


async def test_tasks_of_one_async_call_end_with_it():
    async def leave_a_task():
        async def chatter():
            while True:
                print("chatter")
                await asyncio.sleep(0)

        asyncio.create_task(chatter())
        await asyncio.sleep(0)

    async def quiet():
        for _ in range(10):
            await asyncio.sleep(0)

    async with Worker() as worker:
        assert "chatter" in (await worker.run(leave_a_task)).stdout
        assert (await worker.run(quiet)).stdout == ""


async def test_what_c_code_prints_belongs_to_its_call():
    def from_c(text):
        ctypes.CDLL(None).printf(b"%s", text)

    async with Worker() as worker:
        assert (await worker.run(from_c, b"one")).stdout == "one"
        assert (await worker.run(from_c, b"two")).stdout == "two"


async def test_a_thread_or_an_exit_handler_does_not_keep_a_worker_that_nobody_awaits():
    def leave():
        import atexit

        atexit.register(time.sleep, 1000)
        threading.Thread(target=time.sleep, args=(1000,)).start()

    worker = Worker()
    await worker.open()
    await worker.call(leave)
    await worker.aclose()


class Counter:
    total = 0

    @classmethod
    def add(cls):
        cls.total += 1
        return cls


async def test_a_class_that_goes_by_value_comes_back_as_it_was(monkeypatch):
    monkeypatch.setattr(Counter, "__module__", "__main__")
    monkeypatch.setattr("__main__.Counter", Counter, raising=False)
    before = Counter.add
    async with Worker() as worker:
        returned = await worker.call(Counter.add)
        again = await worker.call(lambda counter: counter(), Counter)
    assert returned is Counter
    assert isinstance(again, Counter)
    assert Counter.total == 0
    assert Counter.add.__func__ is before.__func__


# The parent's own loop.


async def test_a_reply_that_came_in_time_counts_though_the_loop_was_late():
    async with Worker() as worker:
        await next_call_is_served(worker)
        call = asyncio.create_task(worker.run(time.sleep, 0.01, timeout=0.2))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251 — the late loop is what is tested
        assert (await call).ok


async def test_killing_a_worker_that_starts_ends_it():
    async with Worker() as worker:
        call = asyncio.create_task(worker.run(identity, 1))
        await asyncio.sleep(0)
        await worker.kill()
        outcome = await call
        assert outcome.kind is OutcomeKind.CRASH
        assert isinstance(outcome.error, WorkerCrashed)
        await next_call_is_served(worker)


async def test_sending_without_end_starves_nobody():
    source = """
import asyncio
from tunewire import ChildEndpoint
async def main():
    async with ChildEndpoint() as child:
        async for value in child:
            pass
asyncio.run(main())
"""
    async with await ParentEndpoint.spawn([sys.executable, "-c", source]) as parent:
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await parent.send("x" * 1000)
                    sent += 1
        assert sent < parent.statistics().messages_sent + 2
        assert parent.statistics().flushes > 1


async def test_cancelled_receives_keep_their_place_in_the_stream():
    source = """
import asyncio
from tunewire import ChildEndpoint
async def main():
    async with ChildEndpoint() as child:
        for size in (10, 1_000_000, 3_000_000, 20):
            await child.send(bytes([size % 251]) * size)
        await child.receive()
asyncio.run(main())
"""
    chance = random.Random(1)
    async with await ParentEndpoint.spawn([sys.executable, "-c", source]) as parent:
        for size in (10, 1_000_000, 3_000_000, 20):
            while True:
                receiving = asyncio.create_task(parent.receive())
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if receiving.done():
                    break
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
                if not receiving.cancelled():
                    break
            assert receiving.result() == bytes([size % 251]) * size
        await parent.send("done")


async def test_a_send_that_waits_when_the_endpoint_is_closed_says_so():
    source = """
import asyncio, time
from tunewire import ChildEndpoint
async def main():
    async with ChildEndpoint():
        time.sleep(1000)
asyncio.run(main())
"""
    parent = await ParentEndpoint.spawn([sys.executable, "-c", source])
    sending = asyncio.create_task(parent.send([np.zeros(100_000, np.uint8) for _ in range(50)]))
    await asyncio.sleep(0)
    await parent.aclose()
    with pytest.raises(EndpointClosed):
        await sending


# Maps and queues.


async def test_a_map_waits_for_its_items_and_its_results_alike():
    fed: asyncio.Queue[int] = asyncio.Queue()

    async def items():
        while (item := await fed.get()) is not None:
            yield item

    async with Pool(1) as pool, pool.map(identity, items()) as results:
        await fed.put(1)
        assert await anext(results) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(results), 0.05)
        await fed.put(2)
        assert await anext(results) == 2
        await fed.put(None)
        with pytest.raises(StopAsyncIteration):
            await anext(results)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_results_of_items_that_came_are_given_before_the_error_of_the_items(asynchronous):
    def items():
        yield 1
        yield 2
        raise KeyError("items")

    async def async_items():
        for item in items():
            yield item

    got = []
    async with Pool(1) as pool:
        with pytest.raises(KeyError):
            async with pool.map(identity, async_items() if asynchronous else items()) as results:
                async for value in results:
                    got.append(value)
    assert got == [1, 2]


async def test_the_bound_of_the_queue_holds_for_leases():
    async with Pool(1, max_pending=2, when_full="raise") as pool, pool.lease("cpu") as worker:
        calls = [asyncio.create_task(worker.run(time.sleep, 0.05)) for _ in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, PoolSaturated) for result in results) == 3


async def test_a_leases_calls_do_not_wait_for_those_that_wait_for_its_worker():
    async with Pool(1, max_pending=1) as pool:
        async with pool.lease("cpu") as worker:
            waiting = [asyncio.create_task(pool.run(identity, i)) for i in range(3)]
            await asyncio.sleep(0)
            await next_call_is_served(worker)
        assert [outcome.value for outcome in await asyncio.gather(*waiting)] == [0, 1, 2]


async def test_waiting_for_a_place_in_the_queue_is_under_the_queues_limit():
    async with Pool(1, max_pending=1, limits=Limits(queue=0.1)) as pool:
        calls = [asyncio.create_task(pool.run(time.sleep, 0.6)) for _ in range(4)]
        outcomes = await asyncio.gather(*calls)
        assert [outcome.kind for outcome in outcomes] == ["completed", "timeout", "timeout", "timeout"]
        assert {outcome.error.phase for outcome in outcomes[1:]} == {"queue"}


# Where a child starts.


def run_in(directory, source):
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", source],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def test_modules_in_the_working_directory_are_not_the_runtimes(tmp_path):
    source_folder = pathlib.Path(__file__).parents[2] / "src"
    for name in ("signal", "platform", "ctypes", "select"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    source = f"""
import sys
sys.path = [entry for entry in sys.path if entry] + [{str(source_folder)!r}]
import asyncio
from tunewire import Pool
async def main():
    async with Pool(1) as pool:
        print(await pool.call(len, "abc"))
asyncio.run(main())
"""
    assert run_in(tmp_path, source) == "3"


async def test_exit_codes_are_kept_where_the_parent_ignores_its_children():
    def run():
        return subprocess.call([sys.executable, "-c", "raise SystemExit(7)"]), signal.getsignal(
            signal.SIGCHLD
        )

    async with Worker() as worker:
        assert await worker.call(run) == (7, signal.SIG_DFL)
