"""Faults that users of neighbouring systems reported, each as the smallest case, and what must be true here.

`test_coverage_of_reports` says which report each test stands for; those not here are elsewhere in `tests/`.
"""

import asyncio
import ctypes
import fcntl
import functools
import os
import resource
import signal
import subprocess
import sys
import termios
import textwrap
import threading
import time

import numpy as np
import psutil
import pytest

from tunewire import Ladder, Limits, OutcomeKind, Pool, Recycle, Worker, current_call
from tunewire.errors import CallTimeout, DeviceFault, RemoteError, RemoteTraceback, WireError, WorkerCrashed

GONE_S = 10.0


def identity(x):
    return x


def sleep_for_ever():
    time.sleep(1000)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def wait_for(path):
    while not path.exists():
        time.sleep(0.001)
    return path.name


# Many calls, some of which end badly.


@pytest.mark.asyncio
async def test_a_hang_a_fault_and_an_exit_among_a_hundred_cost_three_and_keep_the_order():
    def one_of_a_hundred(n):
        if n == 30:
            time.sleep(1000)
        if n == 50:
            raise DeviceFault(reason="illegal address", device="cuda:0")
        if n == 70:
            os._exit(3)
        return n * n

    async with Pool(4) as pool, pool.map_outcomes(one_of_a_hundred, range(100), timeout=1.0) as results:
        outcomes = [outcome async for outcome in results]
    bad = {n: outcome.kind for n, outcome in enumerate(outcomes) if not outcome.ok}
    assert bad == {30: OutcomeKind.TIMEOUT, 50: OutcomeKind.DEVICE_FAULT, 70: OutcomeKind.CRASH}
    good = [outcome.value for outcome in outcomes if outcome.ok]
    assert good == [n * n for n in range(100) if n not in bad]


@pytest.mark.asyncio
async def test_of_calls_in_flight_and_queued_only_the_one_that_crashed_is_blamed(tmp_path):
    """The three others are in flight when its outcome is known: they wait for a file that is made after it."""
    go = tmp_path / "go"
    async with Pool(4) as pool:
        in_flight = [asyncio.create_task(pool.run(wait_for, go)) for _ in range(3)]
        await until(lambda: [worker.state for worker in pool.statistics().workers].count("busy") == 3)
        crashing = asyncio.create_task(pool.run(os.abort))
        await until(lambda: pool.statistics().running == 4)
        queued = [asyncio.create_task(pool.run(identity, n)) for n in range(3)]
        assert (await crashing).kind is OutcomeKind.CRASH
        go.touch()
        assert [outcome.value for outcome in await asyncio.gather(*in_flight)] == ["go"] * 3
        assert [outcome.value for outcome in await asyncio.gather(*queued)] == [0, 1, 2]


@pytest.mark.asyncio
async def test_timeout_crash_broken_protocol_and_exception_are_told_apart():
    def break_the_protocol():
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2:
                try:
                    os.write(int(name), b"none of the bytes that a frame begins with")
                except OSError:
                    continue
        sleep_for_ever()

    def fail():
        sys.exit("an exit that is raised")

    async with Worker(device="cpu") as worker:
        errors = [
            (await worker.run(function, timeout=limit)).error
            for function, limit in (
                (sleep_for_ever, 0.1),
                (os.abort, 20.0),
                (break_the_protocol, 20.0),
                (fail, 20.0),
            )
        ]
    kinds = [CallTimeout, WorkerCrashed, WireError, RemoteError]
    assert [[isinstance(error, kind) for kind in kinds].index(True) for error in errors] == [0, 1, 2, 3]
    assert [sum(isinstance(error, kind) for kind in kinds) for error in errors] == [1, 1, 1, 1]
    assert (errors[0].limit, errors[0].device, errors[1].device) == (0.1, "cpu", "cpu")


@pytest.mark.asyncio
async def test_crashes_that_write_a_megabyte_each_keep_their_own_end_of_it_and_the_console_stays_empty(capfd):
    def complain_and_crash(n):
        os.write(2, f"{n} ".encode() * 200_000 + f"last line of {n}\n".encode())
        os.abort()

    async with Pool(2, spares=1) as pool:
        outcomes = await asyncio.gather(*(pool.run(complain_and_crash, n) for n in range(50)))
    for n, outcome in enumerate(outcomes):
        assert outcome.error.signal == "SIGABRT"
        assert outcome.error.stderr.endswith(f"{n} last line of {n}\n")
        assert len(outcome.error.stderr) <= 16 * 1024
    assert capfd.readouterr() == ("", "")


# What a process is given, and keeps.


@pytest.mark.asyncio
async def test_environment_and_initializer_reach_every_later_process(tmp_path):
    """After a timeout, a crash, a recycling and a kill; an initializer is no use."""
    count = tmp_path / "count"

    def initialise(a, b, c):
        with count.open("a") as file:
            file.write("x")
        os.environ["INITIALISED"] = a + b + c

    def state():
        return os.environ["INITIALISED"], os.environ["GIVEN"], os.getpid()

    async with Worker(
        initializer=initialise, initargs="abc", env={"GIVEN": "environment"}, maximum_uses=3
    ) as worker:
        states = [await worker.call(state) for _ in range(4)]
        await worker.run(sleep_for_ever, timeout=0.1)
        states.append(await worker.call(state))
        await worker.run(os.abort)
        states.append(await worker.call(state))
        await worker.kill()
        states.append(await worker.call(state))
    assert {seen[:2] for seen in states} == {("abc", "environment")}
    pids = [pid for *_, pid in states]
    assert len(set(pids[:3])) == 1, "three calls in one process"
    assert len(set(pids)) == 5
    assert count.read_text() == "x" * 5


@pytest.mark.asyncio
async def test_a_slow_initializer_is_under_its_own_limit_in_every_process():
    """Slower than the limits of a start and of a run, in the first process and in those that follow it."""
    limits = Limits(start=20.0, init=None, run=0.2)
    async with Worker(initializer=time.sleep, initargs=(0.5,), limits=limits) as worker:
        for _ in range(3):
            assert await worker.call(abs, -1) == 1
            assert (await worker.run(os._exit, 1)).kind is OutcomeKind.CRASH


@pytest.mark.asyncio
async def test_a_spare_of_a_pinned_device_is_not_initialised_before_it_is_needed(tmp_path):
    """An initializer there may take the device's memory, which a spare must not hold."""

    def initialise():
        (tmp_path / str(os.getpid())).touch()

    async with Worker(device="cpu", spares=1, initializer=initialise) as worker:
        first = await worker.call(os.getpid)
        await until(lambda: worker._pool.statistics().spares == 1)
        assert os.listdir(tmp_path) == [str(first)]
        await worker.run(os._exit, 1)
        second = await worker.call(os.getpid)
        assert sorted(os.listdir(tmp_path)) == sorted([str(first), str(second)])


@pytest.mark.asyncio
@pytest.mark.parametrize("recycle", [Recycle(uses=3), Recycle(tree_bytes=150 << 20)], ids=["uses", "memory"])
async def test_memory_stays_flat_though_every_call_leaks(recycle):
    """A call that is seen above a limit of memory while it still runs is ended; after it, its process is replaced."""

    def leak():
        sys.modules.setdefault("leaked", []).append(b"x" * (20 << 20))
        return os.getpid(), psutil.Process().memory_info().rss

    async with Worker(recycle=recycle) as worker:
        outcomes = [await worker.run(leak) for _ in range(30)]
    assert {outcome.kind for outcome in outcomes} <= {OutcomeKind.COMPLETED, OutcomeKind.CRASH}
    pids, sizes = zip(*(outcome.value for outcome in outcomes if outcome.ok), strict=True)
    assert len(set(pids)) > 3
    first_life = max(size for pid, size in zip(pids, sizes, strict=True) if pid == pids[0])
    assert max(sizes) < first_life + 1.5 * (20 << 20)


@pytest.mark.asyncio
async def test_an_idle_process_and_its_guard_do_not_wake_up(tmp_path):
    """Between two looks, a neighbour worked for as long as it takes to start an interpreter three times."""

    def work():
        for _ in range(3):
            subprocess.run([sys.executable, "-c", "pass"], check=True)

    def wake_ups(process):
        switches = [one.num_ctx_switches() for one in (process, process.parent())]
        return [count.voluntary + count.involuntary for count in switches]

    async with Pool(2) as pool, pool.lease("one") as idle, pool.lease("other") as busy:
        await busy.call(identity, 1)
        process = psutil.Process(await idle.call(os.getpid))
        while process.status() != psutil.STATUS_SLEEPING:
            await asyncio.sleep(0.001)
        before = wake_ups(process)
        await busy.call(work)
        assert wake_ups(process) == before


# Stages.


@pytest.mark.asyncio
async def test_an_abort_in_the_compile_stage_is_a_crash_there_and_the_sweep_goes_on():
    def stages(n):
        if n == 1:
            os.abort()
        current_call().enter("run")
        if n == 3:
            ctypes.memset(0, 0, 1)
        return n

    async with Pool(2) as pool:
        outcomes = [await pool.run(stages, n, phase="compile") for n in range(5)]
    assert [outcome.value for outcome in outcomes] == [0, None, 2, None, 4]
    told = [(outcome.error.phase, outcome.error.signal) for outcome in outcomes if not outcome.ok]
    assert told == [("compile", "SIGABRT"), ("run", "SIGSEGV")]


@pytest.mark.asyncio
async def test_a_slow_compilation_before_a_fast_run_is_not_under_the_limit_of_the_run():
    def stages():
        time.sleep(0.6)
        current_call().enter("run")
        return "measured"

    async with Worker(limits=Limits(compile=30.0, run=0.3)) as worker:
        assert await worker.call(stages, phase="compile") == "measured"


# Output.


@pytest.mark.asyncio
async def test_a_standard_output_that_is_closed_and_opened_again_is_captured_again():
    def reopen():
        kept = os.dup(1)
        os.close(1)
        os.dup2(kept, 1)
        os.close(kept)
        os.write(1, b"x" * 1_000_000)
        os.write(1, b"again")
        return "result"

    async with Worker() as worker:
        outcome = await worker.run(reopen)
        assert outcome.value == "result"
        assert outcome.stdout.endswith("xagain")
        assert (await worker.run(os.write, 1, b"next")).stdout == "next"


@pytest.mark.asyncio
async def test_what_a_grandchild_prints_is_output_of_the_call():
    def run():
        subprocess.run(["sh", "-c", "echo out; echo err >&2"], check=True)

    async with Worker() as worker:
        outcome = await worker.run(run)
    assert (outcome.stdout, outcome.stderr) == ("out\n", "err\n")


@pytest.mark.asyncio
async def test_what_c_writes_to_stderr_before_it_aborts_is_in_the_error():
    def complain_and_abort():
        libc = ctypes.CDLL(None)
        libc.fprintf(ctypes.c_void_p.in_dll(libc, "stderr"), b"assertion %s failed\n", b"n > 0")
        libc.abort()

    async with Worker() as worker:
        with pytest.raises(WorkerCrashed, match="assertion n > 0 failed") as caught:
            await worker.call(complain_and_abort)
    assert caught.value.stderr == "assertion n > 0 failed\n"


@pytest.mark.asyncio
async def test_binary_junk_that_looks_like_frames_stays_output():
    def junk():
        piece = b"tw\x01\x07" + bytes(20) + bytes(range(256)) * 250
        for _ in range(400):
            os.write(1, piece)
            os.write(2, piece)
        return "result"

    async with Pool(2) as pool:
        flooding = [asyncio.create_task(pool.run(junk)) for _ in range(2)]
        between = [asyncio.create_task(pool.run(identity, n)) for n in range(50)]
        for outcome in await asyncio.gather(*flooding):
            assert outcome.value == "result"
            assert outcome.stdout.endswith("\x7f" + "\N{REPLACEMENT CHARACTER}" * 128)
        assert [outcome.value for outcome in await asyncio.gather(*between)] == list(range(50))
        assert sum(worker.processes for worker in pool.statistics().workers) == 2


# Exceptions.


class TwoArgumentsAndALock(Exception):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")
        self.lock = threading.Lock()


@pytest.mark.asyncio
async def test_an_exception_that_cannot_travel_is_told_with_type_message_and_traceback():
    def compile_badly():
        raise TwoArgumentsAndALock(7, "expected ';'")

    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        error = (await worker.run(compile_badly)).error
        assert isinstance(error, RemoteError)
        assert error.type_name.endswith("TwoArgumentsAndALock")
        assert error.message == "expected ';' (7)"
        assert "in compile_badly" in error.traceback_text
        assert await worker.call(os.getpid) == pid


@pytest.mark.asyncio
async def test_exceptions_whose_constructors_take_more_than_a_message_come_back_as_themselves():
    def fail_to_decode():
        b"\xff".decode("utf-8")

    def fail_to_run():
        subprocess.run([sys.executable, "-c", "raise SystemExit(4)"], check=True)

    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        with pytest.raises(UnicodeDecodeError) as undecoded:
            await worker.call(fail_to_decode)
        assert (undecoded.value.object, undecoded.value.start) == (b"\xff", 0)
        with pytest.raises(subprocess.CalledProcessError) as failed:
            await worker.call(fail_to_run)
        assert failed.value.returncode == 4
        assert await worker.call(os.getpid) == pid


@pytest.mark.asyncio
@pytest.mark.parametrize("results", ["pickle", "msgspec"])
async def test_a_cause_and_notes_within_a_group_arrive(results):
    def fail():
        try:
            raise KeyError("cause")
        except KeyError as cause:
            error = ValueError("member")
            error.add_note("a note")
            try:
                raise error from cause
            except ValueError as raised:
                raise ExceptionGroup("group", [raised, OSError(2, "gone")]) from None

    async with Worker(results=results) as worker:
        with pytest.raises(ExceptionGroup, match="group") as caught:
            await worker.call(fail)
    member, other = caught.value.exceptions
    assert isinstance(member, ValueError)
    assert member.__notes__ == ["a note"]
    cause = member.__cause__
    while isinstance(cause, RemoteTraceback):
        cause = cause.__cause__
    assert isinstance(cause, KeyError)
    assert cause.args == ("cause",)
    assert (other.errno, other.strerror) == (2, "gone")


# Death.


def overflow_the_stack():
    sys.setrecursionlimit(10**9)

    @ctypes.CFUNCTYPE(None)
    def deeper():
        deeper()

    deeper()


ENDS = {
    "SIGSEGV": functools.partial(ctypes.string_at, 0),
    "SIGABRT": os.abort,
    "SIGKILL": functools.partial(signal.raise_signal, signal.SIGKILL),
    "SIGBUS": functools.partial(signal.raise_signal, signal.SIGBUS),
    "exited with code 3": functools.partial(os._exit, 3),
    "overflow_the_stack": overflow_the_stack,
}


@pytest.mark.asyncio
async def test_six_ways_to_die_are_six_sentences():
    async with Pool(2, spares=1) as pool:
        outcomes = await asyncio.gather(*(pool.run(end, timeout=60.0) for end in ENDS.values()))
    sentences = [str(outcome.error).replace(str(outcome.pid), "PID") for outcome in outcomes]
    assert [words in sentence for words, sentence in zip(ENDS, sentences, strict=True)] == [True] * 6
    assert len(set(sentences)) == 6
    assert outcomes[-1].error.signal == "SIGSEGV"


@pytest.mark.asyncio
async def test_however_often_and_whenever_it_is_killed_the_signal_is_known():
    """Forty kills from outside, at whatever moment the call has reached by then."""
    async with Pool(2, spares=1) as pool:

        async def killed(turns):
            call = asyncio.create_task(pool.run(sleep_for_ever, name=f"call {turns}"))
            while not (
                pids := [
                    worker.pid
                    for worker in pool.statistics().workers
                    if worker.callable_name == f"call {turns}" and worker.state == "busy"
                ]
            ):
                await asyncio.sleep(0)
            for _ in range(turns % 10):
                await asyncio.sleep(0)
            os.kill(pids[0], signal.SIGKILL)
            # A call that it had not begun is given to another process, and killed there.
            while not call.done():
                again = [
                    worker.pid
                    for worker in pool.statistics().workers
                    if worker.callable_name == f"call {turns}" and worker.state == "busy"
                ]
                if again and again != pids:
                    os.kill(again[0], signal.SIGKILL)
                    pids = again
                await asyncio.sleep(0.001)
            return call.result()

        outcomes = [
            outcome
            for first in range(0, 40, 2)
            for outcome in await asyncio.gather(killed(first), killed(first + 1))
        ]
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.CRASH}
    assert {outcome.error.signal for outcome in outcomes} == {"SIGKILL"}


def bytes_waiting_in_pipes():
    waiting = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("pipe:"):
                answer = fcntl.ioctl(int(name), termios.FIONREAD, bytes(4))
                waiting.append(int.from_bytes(answer, sys.byteorder))
        except OSError:
            continue
    return max(waiting, default=0)


def die_in_mid_reply():
    """More is in a pipe than a header has, and the body does not fit into any; no part of it is for shared memory."""

    def watch():
        while bytes_waiting_in_pipes() < 4096:
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    return [np.zeros(100_000, np.uint8) for _ in range(640)]


@pytest.mark.asyncio
async def test_a_worker_that_dies_again_and_again_in_the_middle_of_its_reply_hurts_no_neighbour():
    async with Pool(2, spares=1) as pool, pool.lease("neighbour") as neighbour:
        pid = await neighbour.call(os.getpid)
        dying = asyncio.create_task(asyncio.wait_for(die_repeatedly(pool, 6), 60))
        answered = 0
        while not dying.done():
            assert await neighbour.call(identity, answered) == answered
            answered += 1
        assert await dying == [(OutcomeKind.CRASH, "next")] * 6
        assert answered > 10
        assert await neighbour.call(os.getpid) == pid


async def die_repeatedly(pool, times):
    return [
        ((await pool.run(die_in_mid_reply)).kind, await pool.call(identity, "next")) for _ in range(times)
    ]


@pytest.mark.asyncio
async def test_a_worker_that_dies_while_it_reads_a_call_has_not_begun_it():
    """It is stopped with most of the call still on its way, and then killed."""
    payload = [np.zeros(100_000, np.uint8) for _ in range(640)]  # none of them is for shared memory
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(worker.run(len, payload))
        await until(lambda: worker._pool.statistics().running == 1)
        os.kill(pid, signal.SIGKILL)
        assert (await call).value == len(payload)


@pytest.mark.asyncio
async def test_closing_does_not_wait_for_a_worker_that_stopped_reading():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(worker.run(len, bytes(64 << 20)))
        await until(lambda: worker._pool.statistics().running == 1)
        await worker.aclose()
        assert (await call).kind is OutcomeKind.CANCELLED
        assert not psutil.pid_exists(pid)


@pytest.mark.asyncio
async def test_after_sigterm_a_worker_gets_no_other_call_though_it_answers():
    """Its handler raises, so that the callable ends and a reply is made after the deadline."""

    def raise_when_terminated(mark):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        mark()
        sleep_for_ever()

    async with Worker(ladder=Ladder(terminate=20.0)) as worker:
        pid = await worker.call(os.getpid)
        outcome = await worker.run(raise_when_terminated, int, timeout=0.2)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert await worker.call(os.getpid) != pid
        assert not psutil.pid_exists(pid)


# Large values.


@pytest.mark.asyncio
async def test_a_frame_of_three_hundred_megabytes_arrives():
    async with Worker() as worker:
        assert len(await worker.call(bytes, 300_000_000)) == 300_000_000


@pytest.mark.asyncio
async def test_a_large_array_is_in_a_workers_memory_once():
    def peak(array):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    async with Worker(preload=["numpy"]) as worker:
        before = await worker.call(peak, np.zeros(1))
        array = np.ones(25_000_000)
        after = await worker.call(peak, array)
    assert after - before < 1.1 * array.nbytes


# Clocks.


@pytest.mark.asyncio
async def test_a_step_of_the_wall_clock_is_no_timeout_and_no_age(monkeypatch, tmp_path):
    go = tmp_path / "go"
    now = time.time
    async with Worker(limits=Limits(queue=60.0, run=60.0), recycle=Recycle(age=600.0)) as worker:
        pid = await worker.call(os.getpid)
        for step in (3600.0, -3600.0):
            go.unlink(missing_ok=True)
            running = asyncio.create_task(worker.run(wait_for, go))
            waiting = asyncio.create_task(worker.call(os.getpid))
            await until(lambda: worker._pool.statistics().running == 1)
            monkeypatch.setattr(time, "time", lambda step=step: now() + step)
            go.touch()
            assert (await running).ok
            assert await waiting == pid


# Parents.


PARENT = """
import asyncio, ctypes, os, pathlib, sys
from tunewire import Pool

kind, folder = sys.argv[1:]
here = pathlib.Path(folder, "here")

def hold():
    here.touch()
    ctypes.PyDLL(None).sleep(1000)

async def main():
    env = {"PYTHONPATH": folder, "FOLDER": folder} if kind == "starting" else None
    async with Pool(1, spares=kind == "spare", env=env) as pool:
        call = asyncio.ensure_future(pool.call(hold if kind == "holds the GIL" else os.getpid))
        if kind in ("idle", "spare"):
            await call
        while kind == "spare" and not pool.statistics().spares:
            await asyncio.sleep(0.001)
        while kind in ("holds the GIL", "starting") and not here.exists():
            await asyncio.sleep(0.001)
        print("ready", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""
#: Runs where an interpreter starts, before anything of ours does.
START = """
import os, pathlib, time
if "FOLDER" in os.environ:
    pathlib.Path(os.environ["FOLDER"], "here").touch()
    while not pathlib.Path(os.environ["FOLDER"], "go on").exists():
        time.sleep(0.001)
"""


@pytest.mark.parametrize("kind", ["idle", "spare", "holds the GIL", "starting"])
def test_a_parent_that_is_killed_leaves_no_worker(tmp_path, kind):
    """One that is starting ends when it has come so far that code of ours runs in it."""
    (tmp_path / "sitecustomize.py").write_text(START)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout.readline() == "ready\n"
            descendants = psutil.Process(parent.pid).children(recursive=True)
            assert descendants
        finally:
            parent.kill()
            parent.wait()
            (tmp_path / "go on").touch()
    assert psutil.wait_procs(descendants, timeout=GONE_S)[1] == []


def run_script(source, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_leaving_with_many_busy_workers_takes_less_than_starting_them():
    printed = run_script(
        """
        import asyncio, atexit, os, time
        from tunewire import Pool

        async def main():
            begun = time.monotonic()
            pool = await Pool(16).open()
            calls = [asyncio.ensure_future(pool.run(time.sleep, 1000)) for _ in range(16)]
            while any(worker.state != "busy" for worker in pool.statistics().workers):
                await asyncio.sleep(0.001)
            now = time.monotonic()
            atexit.register(lambda: print(time.monotonic() - now < now - begun))

        asyncio.run(main())
        """
    )
    assert printed == ["True"]


def test_ctrl_c_at_a_terminal_cancels_what_the_parent_cancels_and_hurts_no_worker():
    """The signal goes to the whole group in the foreground; who decides what it means is the parent."""
    printed = run_script(
        """
        import asyncio, os, signal, time
        from tunewire import Pool

        async def main():
            async with Pool(2) as pool, pool.lease("idle") as idle:
                pid = await idle.call(os.getpid)
                cell = asyncio.ensure_future(pool.call(time.sleep, 1000))
                asyncio.get_running_loop().add_signal_handler(signal.SIGINT, cell.cancel)
                while pool.statistics().running < 1:
                    await asyncio.sleep(0.001)
                os.killpg(0, signal.SIGINT)
                try:
                    await cell
                except asyncio.CancelledError:
                    print("cancelled")
                print(await idle.call(os.getpid) == pid)
                print(await pool.call(abs, -1))

        asyncio.run(main())
        """
    )
    assert printed == ["cancelled", "True", "1"]


def test_a_worker_outlives_the_thread_that_started_it():
    """A loop that is run in a thread, which ends, and then in another."""
    pool = Pool(1)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        pids = []

        def begin():
            loop.run_until_complete(pool.open())
            pids.append(loop.run_until_complete(pool.call(os.getpid)))

        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
        pids.append(loop.run_until_complete(pool.call(os.getpid)))
        loop.run_until_complete(pool.aclose())
    assert pids[0] == pids[1]


@pytest.mark.needs_opencl
def test_a_parent_that_has_used_its_device_has_workers_that_can_use_it_too():
    """A context is not inherited, since a worker is no fork of the parent."""
    printed = run_script(
        """
        import asyncio, sys, warnings
        warnings.simplefilter("ignore")
        import pyopencl
        from tunewire import Pool

        def add_up():
            loaded = "pyopencl" in sys.modules
            import numpy, pyopencl, pyopencl.array
            queue = pyopencl.CommandQueue(pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]]))
            return loaded, float(pyopencl.array.to_device(queue, numpy.ones(8)).get().sum())

        def before():
            return "pyopencl" in sys.modules

        async def main():
            print(add_up()[1])
            async with Pool(1) as pool:
                print(await pool.call(before))
                print((await pool.call(add_up))[1])

        asyncio.run(main())
        """
    )
    assert printed == ["8.0", "False", "8.0"]
