"""From the first process to the last: opening, closing, and that nothing is left behind whatever ends."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import pytest_asyncio

from tunewire import OutcomeKind, Pool, Worker
from tunewire.errors import CallTimeout, PoolClosed, StartError

GONE_S = 5.0


def sleep_for_ever():
    time.sleep(1000)


def wait_until_gone(pids):
    """Each of these processes has ended and is reaped, in bounded time."""
    end = time.monotonic() + GONE_S
    left = [pid for pid in pids if psutil.pid_exists(pid)]
    while left and time.monotonic() < end:
        time.sleep(0.005)
        left = [pid for pid in left if psutil.pid_exists(pid)]
    assert not left


def grow_a_tree(path):
    """A child, one in a session of its own, and a daemon that forked twice and has an empty environment."""
    child = subprocess.Popen(["sleep", "1000"])
    session = subprocess.Popen(["setsid", "sleep", "1000"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        daemon = os.fork()
        if daemon:
            write_whole(path, str(daemon))
            os._exit(0)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os.wait3(0)
    while not path.exists():
        time.sleep(0.001)
    return [os.getpid(), child.pid, session.pid, int(path.read_text())]


def write_whole(path, text):
    """Whoever sees the file sees all of it."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def grow_and(path, pids_path, then):
    write_whole(pids_path, " ".join(map(str, grow_a_tree(path))))
    then()


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["timeout", "crash", "cancel", "close"])
async def test_no_descendant_is_left(tmp_path, ending):
    pids_path = tmp_path / "pids"
    then = os.abort if ending == "crash" else sleep_for_ever
    async with Pool(1) as pool:
        call = asyncio.create_task(
            pool.run(
                grow_and, tmp_path / "daemon", pids_path, then, timeout=2.0 if ending == "timeout" else None
            )
        )
        while not pids_path.exists():
            assert not call.done(), call.result()
            await asyncio.sleep(0.005)
        if ending == "cancel":
            call.cancel()
        elif ending == "close":
            await pool.aclose()
        expected = {
            "timeout": OutcomeKind.TIMEOUT,
            "crash": OutcomeKind.CRASH,
            "close": OutcomeKind.CANCELLED,
        }
        if ending == "cancel":
            with pytest.raises(asyncio.CancelledError):
                await call
        else:
            assert (await call).kind is expected[ending]
    assert not [pid for pid in map(int, pids_path.read_text().split()) if psutil.pid_exists(pid)]


@pytest.mark.asyncio
async def test_a_grandchild_that_holds_the_pipes_hides_nothing():
    def crash():
        if os.fork() == 0:  # holds every descriptor of the worker, the protocol's too
            time.sleep(1000)
        os._exit(5)

    async with Worker() as worker:
        outcome = await worker.run(crash)
        assert outcome.error.exit_code == 5
        assert await worker.call(len, "abc") == 3


@pytest.mark.asyncio
async def test_a_guard_that_is_stopped_or_killed_saves_nobody():
    def attack(number):
        os.kill(os.getppid(), number)
        time.sleep(1000)

    async with Worker() as worker:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            pid = await worker.call(os.getpid)
            outcome = await worker.run(attack, number, timeout=0.3)
            assert outcome.kind in (OutcomeKind.TIMEOUT, OutcomeKind.CRASH)
            assert await worker.call(os.getpid) != pid
            # Its reaper is gone with the guard; init is the next one, in its own time.
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.asyncio
async def test_a_callables_own_children_keep_their_exit_codes():
    def run():
        return [subprocess.run([sys.executable, "-c", f"raise SystemExit({n})"]).returncode for n in range(3)]

    async with Worker() as worker:
        assert await worker.call(run) == [0, 1, 2]


@pytest.mark.asyncio
async def test_the_death_of_an_idle_process_costs_no_call():
    async with Worker() as worker:
        pid = await worker.call(os.getpid)
        os.kill(pid, signal.SIGKILL)
        await worker.join(GONE_S)
        assert await worker.call(os.getpid) != pid


@pytest.mark.asyncio
async def test_closing_kills_what_runs_and_tells_what_waits():
    pool = Pool(2)
    await pool.open()
    calls = [asyncio.create_task(pool.run(sleep_for_ever)) for _ in range(6)]
    while [worker.state for worker in pool.statistics().workers] != ["busy", "busy"]:
        await asyncio.sleep(0.001)
    pids = [worker.pid for worker in pool.statistics().workers]
    await pool.aclose()
    outcomes = await asyncio.gather(*calls)
    assert sorted(outcome.kind for outcome in outcomes) == ["cancelled"] * 2 + ["rejected"] * 4
    assert all(isinstance(outcome.error, PoolClosed) for outcome in outcomes)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    with pytest.raises(PoolClosed):
        await pool.call(len, "")
    await pool.aclose()


@pytest.mark.asyncio
async def test_a_pool_is_opened_in_one_task_and_closed_in_another():
    pool = Pool(1)
    await asyncio.create_task(pool.open())
    assert await asyncio.create_task(pool.call(len, "abc")) == 3
    await asyncio.create_task(pool.aclose())
    with pytest.raises(RuntimeError, match="once"):
        await pool.open()


@pytest.mark.asyncio
async def test_a_pool_that_is_not_open_says_so():
    with pytest.raises(PoolClosed, match="not open"):
        await Pool(1).call(len, "")
    await Pool(1).aclose()


def test_a_pool_belongs_to_its_loop():
    with asyncio.Runner() as first, asyncio.Runner() as second:
        pool = first.run(Pool(1).open())
        with pytest.raises(RuntimeError, match="event loop"):
            second.run(pool.call(len, ""))
        first.run(pool.aclose())


def test_a_loop_that_ends_without_closing_leaves_nothing():
    pids = []

    async def main():
        pool = await Pool(2).open()
        pids.append(await pool.call(os.getpid))
        asyncio.create_task(pool.run(sleep_for_ever))
        await pool.call(len, "")

    asyncio.run(main())
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest_asyncio.fixture
async def pool():
    async with Pool(1) as pool:
        yield pool


@pytest.mark.asyncio
async def test_a_fixture_gives_a_pool(pool):
    assert await pool.call(len, "abc") == 3


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_pool():
    async with Pool(1) as pool:
        yield pool


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("n", [1, 2])
async def test_a_module_shares_a_pool(shared_pool, n):
    assert await shared_pool.call(abs, -n) == n
    assert shared_pool.statistics().workers[0].processes == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(5))
async def test_cancelling_at_random_instants_leaves_nothing(seed):
    """During spawn, greeting, run, reply: descriptors and processes are checked for every test by the suite."""
    chance = random.Random(seed)
    async with Pool(2) as pool:
        for _ in range(15):
            tasks = [asyncio.create_task(pool.call(os.getpid)) for _ in range(3)]
            await asyncio.wait(tasks, timeout=chance.uniform(0, 0.08))
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, (int, asyncio.CancelledError))
        assert await pool.call(len, "abc") == 3


@pytest.mark.asyncio
async def test_cancelling_an_opening_or_a_closing_leaves_nothing():
    for turns in range(4):
        pool = Pool(1)
        opening = asyncio.create_task(pool.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await pool.aclose()
    pool = await Pool(1).open()
    pid = await pool.call(os.getpid)
    closing = asyncio.create_task(pool.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await pool.aclose()
    assert not psutil.pid_exists(pid)


@pytest.mark.asyncio
async def test_a_process_that_cannot_start_gives_its_error_to_the_call():
    async with Worker(env={"PYTHONHOME": "/nonexistent"}) as worker:
        with pytest.raises(StartError) as caught:
            await worker.call(len, "")
    assert caught.value.exit_code == 1
    assert "PYTHONHOME" in caught.value.output or "encodings" in caught.value.output


@pytest.mark.asyncio
async def test_a_process_that_never_says_hello_is_a_timeout_of_its_phase(tmp_path):
    from tunewire import Limits

    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(1000)")
    async with Worker(env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}) as worker:
        with pytest.raises(CallTimeout) as caught:
            await worker.call(len, "", limits=Limits(start=0.3))
    assert caught.value.phase == "start"


@pytest.mark.asyncio
async def test_text_printed_before_the_runtime_began_is_output(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('tw early\\n' * 20_000, flush=True)")
    async with Worker(env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}) as worker:
        assert await worker.call(len, "abc") == 3


SCRIPT = """
import asyncio, os, subprocess, sys, time
from tunewire import Pool

def busy():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    time.sleep(1000)

async def main():
    pool = await Pool(2).open()
    calls = [asyncio.create_task(pool.run(busy)) for _ in range(2)]
    while [worker.state for worker in pool.statistics().workers] != ["busy", "busy"]:
        await asyncio.sleep(0.001)
    print(*[worker.pid for worker in pool.statistics().workers], flush=True)
    {ending}

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "ending",
    [
        "await asyncio.sleep(1000)",  # the test kills it
        "return",
        "sys.exit(0)",
        "os._exit(0)",
        "raise ZeroDivisionError",
    ],
)
def test_nothing_outlives_the_parent_however_it_ends(tmp_path, ending):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{ending}", ending))
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        tree = {*workers, *(child.pid for pid in workers for child in children_of(pid))}
        if "sleep" in ending:
            parent.kill()
        parent.wait()
    wait_until_gone(tree)


HANGING_START = """
import os, time

daemon = os.fork()
if daemon == 0:
    os.setsid()
else:
    with open(os.environ["STATION"], "w") as station:
        station.write(f"{os.getpid()} {daemon}")
time.sleep(1000)
"""

STARTING = """
import asyncio, sys
from tunewire import Pool

async def main(site):
    async with Pool(1, env={"PYTHONPATH": site}) as pool:
        await pool.call(len, "")

asyncio.run(main(sys.argv[1]))
"""


def test_a_process_whose_interpreter_never_starts_does_not_outlive_the_parent(tmp_path):
    station = tmp_path / "station"
    os.mkfifo(station)
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HANGING_START)
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTING, str(site)], env={**os.environ, "STATION": str(station)}
    )
    with parent:
        tree = {int(pid) for pid in station.read_text().split()}
        parent.kill()
    assert len(tree) == 2
    wait_until_gone(tree)


def children_of(pid):
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def run_script(source, *options, stdin=None):
    done = subprocess.run(
        [sys.executable, "-W", "error", *options],
        input=textwrap.dedent(source),
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.split()


def test_lambdas_closures_and_functions_of_main_work_from_a_script_without_a_guard():
    """Read from stdin, so that nothing could import it a second time."""
    printed = run_script(
        """
        import asyncio, dataclasses, enum
        from tunewire import Pool

        print("executed")

        @dataclasses.dataclass
        class Point:
            x: int

        class Colour(enum.Enum):
            RED = 1

        def double(point):
            print("printed in a worker")
            return Point(2 * point.x), Colour.RED

        async def main():
            offset = 40
            async with Pool(2) as pool:
                print(await pool.call(lambda: 1))
                print(await pool.call(lambda x: x + offset, 2))
                point, colour = await pool.call(double, Point(3))
                print(isinstance(point, Point), point.x, colour is Colour.RED)

        asyncio.run(main())
        """,
        "-",
    )
    assert printed == ["executed", "1", "42", "True", "6", "True"]


def test_under_asyncios_debug_mode_and_with_warnings_as_errors():
    printed = run_script(
        """
        import asyncio, os, time
        from tunewire import Pool

        async def main():
            async with Pool(2) as pool:
                print(await pool.call(abs, -1))
                print((await pool.run(os._exit, 1)).kind.value)
                print((await pool.run(time.sleep, 100, timeout=0.05)).kind.value)

        asyncio.run(main(), debug=True)
        """,
        "-X",
        "dev",
        "-",
    )
    assert printed == ["1", "crash", "timeout"]


def test_on_uvloop():
    pytest.importorskip("uvloop")
    printed = run_script(
        """
        import asyncio, os, time, uvloop
        from tunewire import Pool

        async def main():
            async with Pool(2) as pool:
                print(await pool.call(abs, -1))
                print((await pool.run(os._exit, 1)).kind.value)
                print((await pool.run(time.sleep, 100, timeout=0.05)).kind.value)
                print(len(await pool.call(bytes, 10_000_000)))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
        """,
        "-",
    )
    assert printed == ["1", "crash", "timeout", "10000000"]
