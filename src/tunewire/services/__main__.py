"""The life of a service's process: like a worker's (tunewire.runtime), with an event loop from its first moment."""

import os

from tunewire.runtime.claim import VARIABLE, claim

_said = os.environ.get(VARIABLE, "")
_claim = claim()  # before any other import: what these print must not touch the protocol

import asyncio  # noqa: E402
import sys  # noqa: E402

from tunewire.endpoints.connection import Connection  # noqa: E402
from tunewire.runtime.claim import close_others  # noqa: E402


def _watch_parent(connection: Connection) -> None:
    """The parent's end is that of its stream, though somebody whom it forked may hold its end of the pipe open."""
    _, _, parent_pid, *_ = _said.split(":")
    try:
        pidfd = os.pidfd_open(int(parent_pid))
    except (AttributeError, OSError):  # not on Linux; or it has gone, and then the guard ends this process
        return
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(pidfd)
        connection.stop_reading()

    loop.add_reader(pidfd, end)


async def _serve() -> None:
    from tunewire.endpoints.child import say_hello
    from tunewire.services.serving import serve_service

    connection, welcome = await say_hello(_claim)
    _watch_parent(connection)
    if welcome.sys_path is not None:
        sys.path[:] = map(os.fsdecode, welcome.sys_path)
    try:
        await serve_service(connection)
        await connection.close_writing()
    finally:
        connection.close()


def main() -> None:
    """Serve one connection, until the parent closes it or is gone."""
    code = 1
    try:
        if sys.platform == "linux":
            close_others(_claim)
        asyncio.run(_serve())
        code = 0
    except BaseException:  # noqa: BLE001 — whatever it is, it is told on stderr, and then this process is at its end
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # the parent, who read it, has gone; or it was closed here
                code = 1
        # Not sys.exit: a thread or an exit handler of a user's must not keep a process alive that nobody awaits.
        os._exit(code)


main()
