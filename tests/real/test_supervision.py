"""Supervision with real processes: the ladder, interrupts, spares, recycling, the flight recorder, what is told of it."""

import asyncio
import contextlib
import ctypes
import io
import logging
import mmap
import os
import pickle
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tunewire import Ladder, Limits, OutcomeKind, Pool, Recycle, Worker
from tunewire.errors import CallTimeout, StartError, WireError, WorkerCrashed
from tunewire.runtime import CallInterrupted, check_after_interrupt

pytestmark = pytest.mark.asyncio

SOFT = Ladder(interrupt=5.0)


def add(a, b=0):
    return a + b


def sleep_for_ever():
    time.sleep(1000)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def processes_of(caller):
    pool = getattr(caller, "_pool", caller)
    return sum(worker.processes for worker in pool.statistics().workers)


# The ladder.


async def test_a_process_may_handle_sigterm_before_it_is_killed(tmp_path):
    mark = tmp_path / "mark"

    def clean_up_on_sigterm():
        def handler(_number, _frame):
            mark.write_text("cleaned up")
            os._exit(0)

        signal.signal(signal.SIGTERM, handler)
        sleep_for_ever()

    async with Worker(ladder=Ladder(terminate=5.0)) as worker:
        await worker.call(add, 1)
        outcome = await worker.run(clean_up_on_sigterm, timeout=0.2)
        assert outcome.kind is OutcomeKind.TIMEOUT
        await worker._pool.settled()
        assert mark.read_text() == "cleaned up"
        assert await worker.call(add, 1) == 1


@pytest.mark.parametrize("how", ["ignores it", "is stopped"])
async def test_whoever_is_deaf_to_sigterm_is_given_no_time_for_it(how):
    def turn_deaf(how):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if how == "is stopped":
            signal.signal(signal.SIGTERM, lambda *_: None)
            os.kill(os.getpid(), signal.SIGSTOP)
        sleep_for_ever()

    # A grace that outlasts the test: only who does not wait it out passes.
    async with Worker(ladder=Ladder(terminate=10_000.0)) as worker:
        await worker.call(add, 1)
        assert (await worker.run(turn_deaf, how, timeout=0.2)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(add, 1) == 1


@pytest.mark.parametrize("ladder", [Ladder(), Ladder(terminate=None), Ladder(interrupt=0.05)], ids=repr)
@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
async def test_whoever_ignores_every_signal_is_killed(ladder, handler):
    def ignore():
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
            with contextlib.suppress(OSError):
                signal.signal(number, handler)
        while True:
            time.sleep(1000)

    async with Worker(ladder=ladder) as worker:
        await worker.call(add, 1)
        pid = await worker.call(os.getpid)
        assert (await worker.run(ignore, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(add, 1) == 1
        assert not psutil.pid_exists(pid)


# The soft interrupt.


@pytest.mark.parametrize("given_up", ["timeout", "cancel"])
async def test_an_interrupted_call_keeps_its_process(given_up):
    async with Worker(ladder=SOFT) as worker:
        await worker.call(add, 1)
        pid = await worker.call(os.getpid)
        if given_up == "timeout":
            with pytest.raises(CallTimeout):
                await worker.call(sleep_for_ever, timeout=0.1)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await worker.call(sleep_for_ever)
        assert await worker.call(os.getpid) == pid


class SlowToLoad:
    def __reduce__(self):
        return time.sleep, (0.3,)


async def test_an_interrupt_that_comes_while_the_call_is_unpickled_is_not_lost():
    async with Worker(ladder=SOFT) as worker:
        await worker.call(add, 1)
        pid = await worker.call(os.getpid)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await worker.call(sleep_for_ever_after, SlowToLoad())
        assert (await worker.run(sleep_for_ever, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) == pid


async def test_an_interrupt_is_an_exception_that_a_call_may_clean_up_after(tmp_path):
    mark = tmp_path / "mark"

    def clean_up():
        try:
            sleep_for_ever()
        except Exception:  # noqa: BLE001 — what an interrupt must not be
            mark.write_text("an Exception")
        except CallInterrupted:
            mark.write_text("cleaned up")
            raise

    async with Worker(ladder=SOFT) as worker:
        await worker.call(add, 1)
        assert (await worker.run(clean_up, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        await worker._pool.settled()
        assert mark.read_text() == "cleaned up"
        assert processes_of(worker) == 1


async def test_an_interrupted_coroutine_is_cancelled_and_its_loop_goes_on():
    async def forever():
        await asyncio.sleep(1000)

    async def loop_id():
        return id(asyncio.get_running_loop())

    async with Worker(ladder=SOFT) as worker:
        await worker.call(add, 1)
        loop = await worker.call(loop_id)
        assert (await worker.run(forever, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(loop_id) == loop
        assert processes_of(worker) == 1


@pytest.mark.parametrize("stubborn", ["swallows", "holds the GIL", "is stopped"])
async def test_a_call_that_goes_on_when_it_is_interrupted_is_killed(stubborn):
    def go_on():
        if stubborn == "holds the GIL":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # or sleep(3) would end early
            ctypes.PyDLL(None).sleep(1000)
        if stubborn == "is stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            with contextlib.suppress(CallInterrupted):
                sleep_for_ever()

    async with Worker(ladder=Ladder(interrupt=0.1)) as worker:
        await worker.call(add, 1)
        pid = await worker.call(os.getpid)
        assert (await worker.run(go_on, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) != pid


async def test_a_process_whose_device_does_not_work_after_an_interrupt_is_replaced():
    def break_device():
        check_after_interrupt(lambda: 1 / 0)
        sleep_for_ever()

    async with Worker(ladder=SOFT) as worker:
        await worker.call(add, 1)
        pid = await worker.call(os.getpid)
        assert (await worker.run(break_device, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) != pid


async def test_a_call_may_bring_its_own_ladder():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        assert (await worker.run(sleep_for_ever, timeout=0.1, ladder=SOFT)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) == pid
        assert (await worker.run(sleep_for_ever, timeout=0.1)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) != pid


def spin(n):
    """Some microseconds of Python code, which says which call it was."""
    total = 0
    for i in range(n % 200):
        total += i
    return n


@pytest.mark.timeout(300)
async def test_no_interrupt_lands_in_a_neighbour():
    """20,000 short calls, a third of them given up at a random moment around their end."""
    chance = random.Random(7)
    given_up = 0
    async with Pool(2, ladder=SOFT) as pool:
        await asyncio.gather(pool.call(spin, 1), pool.call(spin, 2))

        async def caller(numbers):
            nonlocal given_up
            for n in numbers:
                call = asyncio.ensure_future(pool.call(spin, n))
                if chance.random() < 0.33:
                    for _ in range(chance.randrange(1, 9)):
                        await asyncio.sleep(0)
                    call.cancel()
                try:
                    assert await call == n
                except asyncio.CancelledError:
                    given_up += 1

        await asyncio.gather(*(caller(range(start, 20_000, 4)) for start in range(4)))
        await pool.settled()
        assert processes_of(pool) == 2, "each process was kept through every interrupt"
        assert set(pool.statistics().outcomes) == {"completed", "cancelled"}
    assert given_up > 1000


# Spares.


async def test_a_spare_takes_over_after_a_timeout_and_another_is_made():
    async with Worker(spares=1, initializer=os.putenv, initargs=("READY", "1")) as worker:
        await worker.call(add, 1)
        await until(lambda: worker._pool.statistics().spares == 1)
        assert (await worker.run(sleep_for_ever, timeout=0.05)).kind is OutcomeKind.TIMEOUT
        assert await worker.call(add, 2) == 2
        assert [event.detail for event in worker._pool.events() if event.kind == "ready"][
            -1
        ] == "it was a spare"
        await until(lambda: worker._pool.statistics().spares == 1)


async def test_a_spare_is_initialised_and_has_its_modules_where_no_device_is_pinned():
    def initialise():
        os.environ["INITIALISED"] = str(os.getpid())

    def state():
        return os.environ["INITIALISED"] == str(os.getpid()), "wave" in sys.modules

    async with Worker(spares=1, initializer=initialise, preload=["wave"]) as worker:
        assert await worker.call(state) == (True, True)
        await until(lambda: worker._pool.statistics().spares == 1)
        await worker.run(os._exit, 1)
        assert await worker.call(state) == (True, True)


async def test_a_spare_that_dies_is_not_given_to_anyone():
    async with Pool(1, spares=1) as pool:
        await pool.call(add, 1)
        await until(lambda: pool.statistics().spares == 1)
        ((started, _),) = pool._spares[None]._ready
        os.kill(started.pid, signal.SIGKILL)
        await until(lambda: pool.statistics().spares == 0)
        await pool.run(os._exit, 1)
        assert await pool.call(add, 1) == 1


async def test_spares_that_cannot_start_are_no_loop(caplog):
    def refuse():
        raise LookupError("no")

    with caplog.at_level(logging.WARNING, "tunewire"):
        async with Pool(1, spares=1, initializer=refuse) as pool:
            for _ in range(6):
                with pytest.raises(LookupError):
                    await pool.call(add, 1)
            await until(lambda: pool._spares[None].alive == 0)
    assert 1 <= sum("could not start" in record.message for record in caplog.records) <= 12


async def test_draining_brings_the_process_count_to_zero_and_the_pool_goes_on():
    async with Pool(2, spares=1) as pool:
        calls = [asyncio.create_task(pool.call(time.sleep, 0.05)) for _ in range(4)]
        await asyncio.sleep(0)
        await pool.drain()
        assert all(call.done() for call in calls)
        assert psutil.Process().children() == []
        assert await pool.call(add, 1) == 1


# Recycling, shrinking, growing.


async def test_maximum_uses_counts_calls_and_not_the_initializer():
    async with Worker(maximum_uses=3, initializer=add, initargs=(1,)) as worker:
        pids = [await worker.call(os.getpid) for _ in range(7)]
        assert len(set(pids)) == 3
        assert pids[0] == pids[2] != pids[3] == pids[5] != pids[6]
        assert not psutil.pid_exists(pids[0])
        assert worker.postmortem.reason == "it has run 3 calls"


async def test_a_process_is_replaced_by_its_age():
    async with Worker(recycle=Recycle(age=0.05)) as worker:
        pid = await worker.call(os.getpid)
        await worker.call(time.sleep, 0.06)
        assert await worker.call(os.getpid) != pid


def leak(megabytes):
    kept = sys.modules.setdefault("kept", [])
    kept.append(b"x" * (megabytes << 20))
    return os.getpid()


async def test_a_process_that_leaks_is_replaced_between_calls():
    async with Worker(recycle=Recycle(tree_bytes=100 << 20)) as worker:
        # The call that crosses the limit may be seen to do so while it runs, or after it.
        outcomes = [await worker.run(leak, 20) for _ in range(12)]
    assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.COMPLETED, OutcomeKind.CRASH}
    assert len({outcome.pid for outcome in outcomes}) >= 3


def grow_in_a_child():
    subprocess.run(
        [sys.executable, "-c", "x = b'x' * (300 << 20); import time; time.sleep(1000)"], check=False
    )


async def test_a_tree_that_grows_over_its_limit_is_ended_and_its_limit_named():
    async with Pool(2, recycle=Recycle(tree_bytes=200 << 20)) as pool:
        neighbour = asyncio.create_task(pool.run(time.sleep, 0.5))
        outcomes = await asyncio.gather(*(pool.run(grow_in_a_child, timeout=30) for _ in range(2)))
        for outcome in outcomes:
            assert isinstance(outcome.error, WorkerCrashed)
            assert f"the limit is {200 << 20}" in str(outcome.error)
        assert (await neighbour).ok
        assert await pool.call(add, 1) == 1


async def test_idle_processes_shrink_and_grow_again_unseen():
    async with Pool(2, idle_timeout=0.05) as pool:
        await asyncio.gather(*(pool.call(add, i) for i in range(4)))
        await until(lambda: all(worker.state == "empty" for worker in pool.statistics().workers))
        assert psutil.Process().children() == []
        assert await pool.call(add, 1) == 1


async def test_workers_are_no_more_than_memory_has_room_for(caplog):
    with caplog.at_level(logging.WARNING, "tunewire"):
        async with Pool(8, memory_per_worker_bytes=psutil.virtual_memory().available) as pool:
            assert len(pool.statistics().workers) == 1
            assert await pool.call(add, 1) == 1
    assert "of 8 workers" in caplog.text


# The flight recorder.


async def test_a_call_that_has_not_begun_is_sent_to_another_process(tmp_path):
    """The process is stopped when the call is sent, and killed before it could read it."""
    mark = tmp_path / "mark"
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(worker.run(mark.touch))
        await until(lambda: worker._pool.statistics().running == 1)
        os.kill(pid, signal.SIGKILL)
        assert (await call).ok
        assert mark.exists()
        assert processes_of(worker) == 2


async def test_a_call_that_may_have_begun_is_sent_again_only_if_it_may_be(tmp_path):
    count = tmp_path / "count"

    def crash_twice():
        with count.open("a") as file:
            file.write("x")
        if count.stat().st_size < 3:
            os._exit(1)
        return "third"

    async with Worker() as worker:
        assert (await worker.run(crash_twice)).kind is OutcomeKind.CRASH
        assert count.read_text() == "x"
        assert await worker.call(crash_twice, idempotent=True) == "third"
        assert count.read_text() == "xxx"
        assert (await worker.run(os._exit, 1, idempotent=True)).kind is OutcomeKind.CRASH


def lie_and_die():
    """Write into every shared page that no call has begun."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        for line in maps:
            if "memfd:tunewire" in line:
                start = int(line.split("-")[0], 16)
                ctypes.memset(start, 0, mmap.PAGESIZE)
    os._exit(1)


async def test_a_child_that_lies_in_its_recorder_is_not_given_the_call_for_ever():
    async with Worker() as worker:
        outcome = await worker.run(lie_and_die)
        assert outcome.kind is OutcomeKind.CRASH
        assert processes_of(worker) == 3
        assert await worker.call(add, 1) == 1


async def test_the_recorders_page_can_be_neither_shrunk_nor_grown():
    """A page that is shorter than its mapping would kill the parent with SIGBUS when it looks."""

    def attack():
        refused = 0
        for name in os.listdir("/proc/self/fd"):
            if os.path.realpath(f"/proc/self/fd/{name}").startswith("/memfd:"):
                for size in (0, 1 << 20):
                    try:
                        os.ftruncate(int(name), size)
                    except PermissionError:
                        refused += 1
        os._exit(refused)

    async with Worker() as worker:
        assert (await worker.run(attack)).error.exit_code == 2


async def test_a_limit_counts_from_the_moment_at_which_the_callable_begins():
    async with Worker() as worker:
        await worker.call(add, 1)
        assert await worker.call(lambda _loaded: "done", SlowToLoad(), timeout=0.15) == "done"
        pid = worker.pid
        outcome = await worker.run(sleep_for_ever_after, SlowToLoad(), timeout=0.15)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.seconds > 0.3
        assert await worker.call(os.getpid) != pid


async def test_a_call_that_is_unpickled_for_ever_is_a_timeout_all_the_same():
    async with Worker() as worker:
        await worker.call(add, 1)
        outcome = await worker.run(add, NeverLoads(), limits=Limits(start=0.3, run=0.1))
        assert outcome.kind is OutcomeKind.TIMEOUT


async def test_a_process_that_is_stopped_before_it_reads_the_call_is_given_no_more_time():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        outcome = await worker.run(add, 1, timeout=0.1)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.seconds < 10


def sleep_for_ever_after(_loaded):
    time.sleep(1000)


class NeverLoads:
    def __reduce__(self):
        return time.sleep, (1000,)


# The environment of one call.


async def test_the_environment_of_a_call_is_undone_after_it(monkeypatch):
    monkeypatch.setenv("KEPT", "parent")
    async with Worker() as worker:
        overlay = {"KEPT": None, "ADDED": "call"}

        def seen():
            return os.getenv("KEPT"), os.getenv("ADDED")

        def change_and_fail():
            os.environ["ADDED"] = "changed"
            raise ValueError

        assert await worker.call(seen) == ("parent", None)
        assert await worker.call(seen, env=overlay) == (None, "call")
        assert await worker.call(seen) == ("parent", None)
        assert (await worker.run(change_and_fail, env=overlay)).kind is OutcomeKind.ERROR
        assert await worker.call(seen) == ("parent", None)
        with pytest.raises(ValueError, match="no process"):
            await worker.call(seen, env={"A=B": "x"})
    assert os.environ["KEPT"] == "parent"
    assert "ADDED" not in os.environ


# Preloading, output, what is told.


async def test_a_module_to_preload_that_is_not_there_is_a_start_error():
    async with Worker(preload=["no_such_module"]) as worker:
        with pytest.raises(StartError, match="no_such_module") as caught:
            await worker.call(add, 1)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


async def test_output_is_copied_to_a_file_as_it_comes(tmp_path):
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        async with Worker(stdout=out, stderr=err.fileno()) as worker:
            outcome = await worker.run(lambda: print("one", file=sys.stderr) or print("two"))
        assert (outcome.stdout, outcome.stderr) == ("two\n", "one\n")
    assert (tmp_path / "out").read_text() == "two\n"
    assert (tmp_path / "err").read_text() == "one\n"
    with pytest.raises(io.UnsupportedOperation):
        Worker(stdout=io.StringIO())


async def test_a_postmortem_says_how_a_process_ended_and_what_it_did_last():
    async with Worker() as worker:
        assert worker.postmortem is None
        await worker.call(add, 1)
        pid = worker.pid
        await worker.run(lambda: print("last words", file=sys.stderr, flush=True) or os.abort())
        await worker._pool.settled()
        told = worker.postmortem
    assert (told.pid, told.signal, told.exit_code) == (pid, "SIGABRT", -6)
    assert told.reason == "its call ended as crash"
    assert told.last_calls[0] == "add"
    assert "lambda" in told.last_calls[1]
    assert told.uptime > 0
    assert told.peak_bytes > 1_000_000
    assert not told.out_of_memory


async def test_a_crash_says_what_was_called_with_what_and_what_it_took():
    def fill_and_crash(megabytes, *_, **__):
        filled = bytearray(os.urandom(1 << 20) * megabytes)
        os.kill(os.getpid(), signal.SIGSEGV if filled else signal.SIGKILL)

    async with Worker() as worker:
        before = await worker.run(os.abort)
        with pytest.raises(WorkerCrashed) as caught:
            await worker.call(fill_and_crash, 64, "tile", [1, 2], kwargs={"unroll": True, "long": "x" * 1000})
    told = caught.value
    assert told.signal == "SIGSEGV"
    assert told.arguments == "(64, 'tile', <list of 2>, unroll=True, long=<str of 1000>)"
    assert f"fill_and_crash{told.arguments} was in phase 'run'" in str(told)
    assert told.uptime > 0
    assert told.peak_bytes > before.error.peak_bytes + (32 << 20)
    assert pickle.loads(pickle.dumps(told)).peak_bytes == told.peak_bytes


async def test_a_broken_protocol_names_the_process_and_its_device():
    def garble():
        for fd in range(3, 100):
            with contextlib.suppress(OSError):
                os.write(fd, b"no frame at all, and longer than a header")

    async with Worker(device="cpu") as worker:
        with pytest.raises(WireError) as caught:
            await worker.call(garble)
    assert caught.value.device == "cpu"
    assert f"by process {caught.value.pid} on cpu" in str(caught.value)


async def test_events_and_statistics_say_what_runs_where_since_when():
    async with Pool(1) as pool:
        assert repr(pool) == "<Pool 1 empty; 0 calls, 0 of them running>"
        await pool.call(add, 1)
        before = asyncio.get_running_loop().time()
        running = asyncio.create_task(pool.run(sleep_for_ever, timeout=0.2))
        await until(lambda: pool.statistics().running == 1)
        (worker,) = pool.statistics().workers
        assert worker.callable_name == "sleep_for_ever"
        assert before <= worker.since <= asyncio.get_running_loop().time()
        assert repr(pool) == "<Pool 1 busy; 1 calls, 1 of them running>"
        await running
        await pool.settled()
        kinds = [event.kind for event in pool.events()]
        assert kinds == [
            "started",
            "ready",
            "sent",
            "outcome",
            "sent",
            "outcome",
            "terminate",
            "kill",
            "gone",
        ]
        assert pool.events()[4].call == "sleep_for_ever"
    assert repr(pool) == "<Pool 1 closed; 0 calls, 0 of them running, closed: it was closed>"


async def test_limits_name_phase_limit_and_device():
    async with Worker(device="cpu", limits=Limits(run=0.1)) as worker:
        error = (await worker.run(sleep_for_ever)).error
    assert (error.phase, error.limit, error.device) == ("run", 0.1, "cpu")
    assert str(error) == "sleep_for_ever was still in phase 'run' on cpu after 0.1 s, its limit."
