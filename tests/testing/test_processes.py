"""What a fake process does by itself: speaks, dies, ignores signals, keeps to itself."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tunewire.errors import EndpointClosed, StartError, TruncatedFrame
from tunewire.runtime import current_call
from tunewire.testing import FakePool, FakeProcess, FakeSpawner, Script, exit_process, virtual_loop
from tunewire.testing.work import last, say

PID_MAX = int(Path("/proc/sys/kernel/pid_max").read_text())


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with virtual_loop(debug=True) as runner:
        runner.run(main())


@contextlib.asynccontextmanager
async def spawned(script: Script, *, guarded: bool = True) -> AsyncIterator[FakeProcess]:
    process = await FakeSpawner(script)(["program"], env={}, max_frame_bytes=1 << 20, guarded=guarded)
    try:
        yield process
    finally:
        process.release()
        process.kill_group()
        await process.wait()
        process.close()


def test_no_real_process_has_its_id() -> None:
    async def main() -> None:
        async with spawned(Script()) as process:
            hello = await process.greet_worker(max_frame_bytes=1000, sys_path=())
            assert hello.pid == process.pid
            assert process.pid > PID_MAX

    run(main)


@pytest.mark.parametrize(
    ("number", "guarded", "exit_code"),
    [
        (signal.SIGTERM, True, -signal.SIGKILL),  # the guard kills its tree
        (signal.SIGUSR1, True, -signal.SIGTERM),  # the guard passes a SIGTERM on
        (signal.SIGTERM, False, -signal.SIGTERM),
        (signal.SIGINT, False, -signal.SIGINT),
    ],
)
def test_a_signal_ends_it_as_it_ends_a_real_one(number: int, guarded: bool, exit_code: int) -> None:
    async def main() -> None:
        async with spawned(Script(reap_seconds=60.0), guarded=guarded) as process:
            if guarded:
                await process.greet_worker(max_frame_bytes=1000, sys_path=())
            process._process.send_signal(number)
            assert process.exit_code is None, "it is not reaped yet"
            assert await process.wait() == exit_code == process.exit_code
            assert asyncio.get_running_loop().time() == 60.0
            assert process.signals == [number]
            with pytest.raises(ProcessLookupError):
                process._process.send_signal(number)

    run(main)


def test_what_it_had_written_can_be_read_after_its_death() -> None:
    async def main() -> None:
        async with spawned(Script(ends_at_byte=30, exit_code=-11)) as process:
            assert await process.wait() == -11
            assert await process.connection.read_until_cookie(process.pid.to_bytes(16), 100) == b""
            with pytest.raises(TruncatedFrame) as caught:
                await process.connection.read_frame()
            assert caught.value.received == 14

    run(main)


def test_one_that_dies_before_its_hello_says_how() -> None:
    async def main() -> None:
        async with spawned(Script(ends_at_byte=0, exit_code=7)) as process:
            with pytest.raises(StartError, match="exit code 7"):
                await process.greet_worker(max_frame_bytes=1000, sys_path=())

    run(main)


def test_one_that_hangs_up_lives_on() -> None:
    async def main() -> None:
        async with spawned(Script(hangs_up="start")) as process:
            await process.greet_worker(max_frame_bytes=1000, sys_path=())
            with pytest.raises(EndpointClosed):
                await process.connection.read_frame()
            assert await process.exit_code_soon(3600.0) is None

    run(main)


def test_an_unreapable_one_ends_when_it_is_released() -> None:
    async def main() -> None:
        async with spawned(Script(unreapable=True)) as process:
            await process.greet_worker(max_frame_bytes=1000, sys_path=())
            process.kill()
            process.kill_group()
            assert await process.exit_code_soon(3600.0) is None
            process.release()
            assert await process.wait() == -signal.SIGKILL

    run(main)


def test_it_ends_when_its_parent_closes() -> None:
    async def main() -> None:
        async with spawned(Script()) as process:
            await process.greet_worker(max_frame_bytes=1000, sys_path=())
            await process.connection.close_writing()
            assert await process.wait() == 0

    run(main)


def test_a_module_that_cannot_be_preloaded_is_told() -> None:
    async def main() -> None:
        async with FakePool(preload=["no_such_module"]) as pool:
            error = (await pool.run(len, "abc")).error
            assert isinstance(error, StartError)
            assert "no_such_module" in str(error)

    run(main)


# Several share a thread, and none sees another.


async def through_phases(name: str, seconds: float) -> list[str]:
    seen = []
    for phase in ("compile", "check", "run"):
        current_call().enter(phase)
        await asyncio.sleep(seconds)
        seen += [current_call().phase, os.environ["TUNEWIRE_NAME"]]
        print(name, phase)
    return seen


def test_calls_side_by_side_have_their_own_phase_output_and_environment() -> None:
    async def main() -> None:
        async with FakePool(3) as pool:
            outcomes = await asyncio.gather(
                *(
                    pool.run(through_phases, name, 1.0 + number, phase="compile", env={"TUNEWIRE_NAME": name})
                    for number, name in enumerate("abc")
                )
            )
        for name, outcome in zip("abc", outcomes, strict=True):
            assert outcome.unwrap() == ["compile", name, "check", name, "run", name]
            assert outcome.stdout == f"{name} compile\n{name} check\n{name} run\n"
        assert "TUNEWIRE_NAME" not in os.environ
        assert current_call().phase == "run"

    run(main)


def test_what_it_prints_is_not_printed_here(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        async with FakePool() as pool:
            assert (await pool.run(say, "told")).stdout == "told\n"

    run(main)
    assert capsys.readouterr() == ("", "")


async def clean_up_then_exit() -> None:
    await asyncio.sleep(1.0)
    exit_process(5)


def test_it_can_end_itself_in_a_coroutine() -> None:
    async def main() -> None:
        async with FakePool() as pool:
            outcome = await pool.run(clean_up_then_exit)
            assert outcome.error.exit_code == 5  # type: ignore[union-attr]
            assert (await pool.run(last, 1.0)).ok

    run(main)


def test_the_scripts_are_followed_in_order_and_the_last_one_for_ever() -> None:
    async def main() -> None:
        spawner = FakeSpawner(Script(cannot_start="no"), Script(exit_code=1), Script(exit_code=2))
        with pytest.raises(StartError):
            await spawner(["program"], env={}, max_frame_bytes=1000, guarded=True)
        for _ in range(3):
            await spawner(["program"], env={}, max_frame_bytes=1000, guarded=True)
        assert [process.script.exit_code for process in spawner.processes] == [1, 2, 2]
        assert (spawner.attempts, spawner.living) == (4, 3)
        for process in spawner.processes:
            process.kill_group()
            await process.wait()
            process.close()
        assert spawner.living == 0

    run(main)
