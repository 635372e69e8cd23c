"""The life of a service's process: like a worker's (tunewire.runtime), with an event loop from its first moment."""

from tunewire.runtime.claim import claim

_claim = claim()  # before any other import: what these print must not touch the protocol

import asyncio  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402

from tunewire.runtime.claim import close_others  # noqa: E402


async def _serve() -> None:
    from tunewire.endpoints.child import say_hello
    from tunewire.services.serving import serve_service

    connection, welcome = await say_hello(_claim)
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
