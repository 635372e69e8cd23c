"""Endpoints: any program that speaks frames, and many that do not."""

import asyncio
import os
import sys
import textwrap

import psutil
import pytest

from tunewire import ChildEndpoint, ParentEndpoint, Worker
from tunewire.errors import DecodeError, EncodeError, EndpointClosed, StartError, TruncatedFrame, WireError

pytestmark = pytest.mark.asyncio

ECHO = """
import asyncio
from tunewire import ChildEndpoint

async def main():
    async with ChildEndpoint(codec={codec!r}) as child:
        async for value in child:
            await child.send(value)

asyncio.run(main())
"""


def program(source):
    return [sys.executable, "-c", textwrap.dedent(source)]


def child_that(body, codec="msgspec"):
    """A child that says hello and then runs `body`, in which `child` is its endpoint."""
    lines = textwrap.indent(textwrap.dedent(body), " " * 8)
    return [
        sys.executable,
        "-c",
        "import asyncio, os, signal, sys, time\n"
        "from tunewire import ChildEndpoint\n"
        "async def main():\n"
        f"    async with ChildEndpoint(codec={codec!r}) as child:\n"
        f"{lines}\n"
        "asyncio.run(main())\n",
    ]


@pytest.mark.parametrize("codec", ["msgspec", "pickle"])
async def test_values_go_both_ways_and_are_counted(codec):
    async with await ParentEndpoint.spawn(program(ECHO.format(codec=codec)), codec=codec) as parent:
        for value in [1, "text", None, [1.5, {"a": None}], b"x" * 1_000_000]:
            sent = await parent.send(value)
            assert sent > 0
            assert await parent.receive() == value
        statistics = parent.statistics()
        assert statistics.messages_sent == 6, "five values and the welcome"
        assert statistics.messages_received == 6
        assert statistics.bytes_received > 1_000_000


async def test_many_small_messages_are_put_together_and_none_stays_behind():
    async with await ParentEndpoint.spawn(program(ECHO.format(codec="msgspec"))) as parent:
        before = parent.statistics().flushes
        for i in range(1000):
            await parent.send(i)
        assert [await parent.receive() for _ in range(1000)] == list(range(1000))
        assert parent.statistics().flushes - before < 20


async def test_a_value_that_cannot_be_sent_leaves_the_connection_unhurt():
    async with await ParentEndpoint.spawn(program(ECHO.format(codec="msgspec"))) as parent:
        with pytest.raises(EncodeError):
            await parent.send(object())
        await parent.send("next")
        assert await parent.receive() == "next"


async def test_prints_and_reads_in_the_child_touch_nothing():
    command = child_that(
        """
        print("printed")
        os.write(1, b"raw")
        print("err", file=sys.stderr)
        await child.send(sys.stdin.read())
        sys.stdout.flush()
        """
    )
    async with await ParentEndpoint.spawn(command) as parent:
        assert await parent.receive() == ""
        with pytest.raises(EndpointClosed):
            await parent.receive()
        assert sorted(parent.stdout.split()) == ["printed", "raw"] or "printed" in parent.stdout
        assert parent.stderr == "err\n"


async def test_end_death_in_mid_frame_and_none_are_different():
    async with await ParentEndpoint.spawn(child_that("await child.send(None)")) as parent:
        assert await parent.receive() is None
        with pytest.raises(EndpointClosed) as closed:
            await parent.receive()
        assert closed.value.exit_code == 0
    half = """
        child._connection._transport.write(b"tw\\x01\\x07" + bytes(10))
        await asyncio.sleep(0)
        os._exit(3)
        """
    async with await ParentEndpoint.spawn(child_that(half)) as parent:
        with pytest.raises(TruncatedFrame) as cut:
            await parent.receive()
        assert cut.value.received == 14
        assert cut.value.pid == parent.pid


async def test_iteration_ends_with_the_child():
    async with await ParentEndpoint.spawn(child_that("for i in range(3): await child.send(i)")) as parent:
        assert [value async for value in parent] == [0, 1, 2]
        with pytest.raises(EndpointClosed):
            for _ in range(100):
                await parent.send(b"x" * 100_000)


async def test_garbage_is_a_wire_error():
    garbage = (
        "child._connection._transport.write(b'garbage, at least as long as a header'); await asyncio.sleep(9)"
    )
    async with await ParentEndpoint.spawn(child_that(garbage)) as parent:
        with pytest.raises(WireError, match="begins with"):
            await parent.receive()


async def test_a_child_cannot_choose_to_be_unpickled():
    async with await ParentEndpoint.spawn(child_that("await child.send(1)", codec="pickle")) as parent:
        with pytest.raises(WireError, match="where msgspec was agreed"):
            await parent.receive()


async def test_a_value_that_cannot_be_rebuilt_leaves_the_connection_unhurt():
    body = """
        class FailsToLoad:
            def __reduce__(self):
                return int, ("no number",)
        await child.send(FailsToLoad())
        await child.send(2)
        """
    async with await ParentEndpoint.spawn(child_that(body, codec="pickle"), codec="pickle") as parent:
        with pytest.raises(DecodeError, match="no number"):
            await parent.receive()
        assert await parent.receive() == 2


@pytest.mark.parametrize(
    ("command", "reason", "output"),
    [
        (["/bin/true"], "exit code 0", ""),
        (["/bin/echo", "hello"], "exit code 0", "hello"),
        (program("raise SystemExit('oops')"), "exit code 1", "oops"),
        (program("import os; os.abort()"), "SIGABRT", ""),
        (["/no/such/program"], "No such file", ""),
        (["/etc/passwd"], "Permission denied", ""),
    ],
)
async def test_a_program_that_is_none_of_ours_is_a_clear_error(command, reason, output):
    with pytest.raises(StartError, match=reason) as caught:
        await ParentEndpoint.spawn(command)
    assert output in caught.value.output
    assert caught.value.command == tuple(command)


@pytest.mark.parametrize(
    "command", [["/bin/sleep", "1000"], ["/bin/cat"], program("while True: print('junk' * 99)")]
)
async def test_a_program_that_never_says_hello_is_ended_at_its_limit(command):
    with pytest.raises(StartError, match=r"within 0\.3 s"):
        await ParentEndpoint.spawn(command, start_timeout=0.3)


async def test_another_protocol_version_is_a_clear_error():
    source = """
        import os
        from tunewire.runtime.claim import claim
        mine = claim()
        os.write(mine.write_fd, mine.cookie + b"tw\\x63" + bytes(21))
        os.read(mine.read_fd, 1)
        """
    with pytest.raises(StartError, match="protocol version 99"):
        await ParentEndpoint.spawn(program(source))


async def test_cancelling_a_spawn_at_any_instant_leaves_nothing():
    for turns in range(12):
        spawning = asyncio.create_task(ParentEndpoint.spawn(program(ECHO.format(codec="msgspec"))))
        for _ in range(turns * turns):
            await asyncio.sleep(0)
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning


@pytest.mark.parametrize(
    "body",
    [
        "await asyncio.sleep(1000)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(1000)",
        "while True: await child.send('flood' * 1000)",
    ],
)
async def test_closing_is_bounded_whatever_the_child_does(body):
    parent = await ParentEndpoint.spawn(child_that(body))
    writing = asyncio.create_task(parent.send(b"x" * 5_000_000))
    await asyncio.sleep(0)
    pid = parent.pid
    await parent.aclose()
    await parent.aclose()
    await asyncio.gather(writing, return_exceptions=True)
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("ending", ["it is closed", "it ends by itself", "it is killed"])
async def test_no_daemon_of_a_child_stays_behind(ending):
    body = """
        listening, speaking = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.write(speaking, str(os.getpid()).encode())
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        await child.send(int(os.read(listening, 100)))
        if await child.receive() == "it is closed":
            await asyncio.sleep(1000)
    """
    async with await ParentEndpoint.spawn(child_that(body)) as parent:
        daemon = await parent.receive()
        assert psutil.pid_exists(daemon)
        await parent.send(ending)
        if ending == "it is killed":
            os.kill(parent.pid, 9)
        if ending != "it is closed":
            with pytest.raises(EndpointClosed):
                await parent.receive()
    assert not psutil.pid_exists(daemon)


async def test_a_child_has_its_three_descriptors_and_the_protocols():
    source = """
        import os
        from tunewire.runtime.claim import claim
        mine = claim()
        pipes = [os.fstat(fd).st_ino for fd in (mine.read_fd, mine.write_fd)]
        found = [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}")]
        print(sorted(fd for fd in found if os.fstat(fd).st_ino in pipes) == [mine.read_fd, mine.write_fd], flush=True)
        """
    with pytest.raises(StartError) as caught:
        await ParentEndpoint.spawn(program(source))
    assert caught.value.output == "True\n", "nobody else in it holds the protocol's pipes"


async def test_a_worker_has_its_three_descriptors_and_the_protocols():
    def descriptors():
        return sorted(
            os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        )

    async with Worker() as worker:
        assert await worker.call(descriptors) == ["/dev/null", "/memfd", *["pipe"] * 4]


async def test_a_child_endpoint_outside_of_a_child_says_how_it_is_meant():
    assert "TUNEWIRE_CHANNEL" not in os.environ
    with pytest.raises(RuntimeError, match=r"ParentEndpoint\.spawn"):
        ChildEndpoint()
