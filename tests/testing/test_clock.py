"""The virtual clock: exact, instant, and closed to the outside."""

import asyncio
import os
import socket
import sys
import threading
import time

import anyio
import pytest

from tunewire import Pool
from tunewire.endpoints.connection import Connection
from tunewire.testing import VirtualLoop, virtual_loop


def test_hours_pass_at_once_and_exactly() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, loop.time()))

        await asyncio.gather(
            wait("hour", 3600.0), wait("minute", 60.0), wait("day", 86_400.0), wait("now", 0.0)
        )
        return seen

    begun = time.monotonic()
    with virtual_loop() as runner:
        assert runner.run(main()) == [("now", 0.0), ("minute", 60.0), ("hour", 3600.0), ("day", 86_400.0)]
    assert time.monotonic() - begun < 60.0


def test_time_stands_still_while_anything_can_run() -> None:
    async def main() -> float:
        fired = asyncio.get_running_loop().call_later(1e-6, pytest.fail, "the timer was not first")
        for _ in range(10_000):
            await asyncio.sleep(0)
        fired.cancel()
        return asyncio.get_running_loop().time()

    with virtual_loop() as runner:
        assert runner.run(main()) == 0.0


def test_the_longest_limit_can_be_waited_for() -> None:
    async def main() -> float:
        await asyncio.sleep(1e8)  # the loop looks up from its selector once a day
        return asyncio.get_running_loop().time()

    with virtual_loop() as runner:
        assert runner.run(main()) == pytest.approx(1e8)


def test_anyio_scopes_know_its_time() -> None:
    async def main() -> tuple[bool, float]:
        with anyio.move_on_after(600.0) as scope:
            await anyio.sleep_forever()
        return scope.cancelled_caught, anyio.current_time()

    with virtual_loop(debug=True) as runner:
        assert runner.run(main()) == (True, 600.0)


def test_waiting_for_ever_is_an_error() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with virtual_loop() as runner, pytest.raises(RuntimeError, match="nothing is ready and no timer is set"):
        runner.run(main())


def test_a_task_can_clean_up_after_the_error() -> None:
    cleaned = []

    async def main() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(10.0)
            cleaned.append(asyncio.get_running_loop().time())

    with virtual_loop() as runner, pytest.raises(RuntimeError, match="no timer is set"):
        runner.run(main())
    assert cleaned == [10.0]


async def open_pipes() -> None:
    reads, writes = os.pipe()
    await Connection.open(reads, writes, max_frame_bytes=1000)


async def start_a_process() -> None:
    await asyncio.create_subprocess_exec(sys.executable, "-c", "")


async def start_a_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def use_a_thread() -> None:
    await asyncio.to_thread(time.sleep, 0)


async def call_a_real_pool() -> None:
    async with Pool(1) as pool:
        (await pool.run(len, "abc")).unwrap()


@pytest.mark.parametrize("attempt", [open_pipes, start_a_process, start_a_shell, use_a_thread])
def test_what_has_a_time_of_its_own_is_refused(attempt) -> None:
    with virtual_loop() as runner, pytest.raises(RuntimeError, match="a virtual loop has no"):
        runner.run(attempt())


def test_a_real_worker_is_refused() -> None:
    with virtual_loop() as runner, pytest.raises(Exception, match="a virtual loop has no processes"):
        runner.run(call_a_real_pool())


def test_a_descriptor_that_is_watched_is_refused() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            asyncio.get_running_loop().add_reader(mine, print)

    with virtual_loop() as runner, pytest.raises(RuntimeError, match="watches no descriptor"):
        runner.run(main())


def test_a_transport_that_registers_later_is_refused_too() -> None:
    async def main() -> None:
        mine, other = socket.socketpair()
        with other:
            mine.setblocking(False)
            await asyncio.open_connection(sock=mine)
            await asyncio.sleep(1.0)

    loop = VirtualLoop()
    loop.set_exception_handler(lambda _loop, _context: None)
    with (
        asyncio.Runner(loop_factory=lambda: loop) as runner,
        pytest.raises(RuntimeError, match="watches no descriptor"),
    ):
        runner.run(main())


def test_another_thread_can_wake_it() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(woken.set))
        thread.start()
        thread.join()
        await woken.wait()
        return loop.time()

    with virtual_loop() as runner:
        assert runner.run(main()) == 0.0
