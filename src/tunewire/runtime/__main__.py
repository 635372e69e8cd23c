"""`python -m tunewire.runtime`: the life of a worker process, under a guard (runtime.guard) that runs it.

The order matters. Pipes first, so that nothing printed from here on touches the protocol; only then msgspec, the
hello, and, once the parent has said welcome, users' modules.
"""

from tunewire.runtime.claim import claim

_claim = claim()  # before any other import: P3 of the design rests on it

import os  # noqa: E402
import sys  # noqa: E402

from tunewire.runtime.claim import close_others  # noqa: E402


def main() -> None:
    """Say hello, and serve calls until the parent closes its side."""
    code = 1
    try:
        if sys.platform == "linux":
            close_others(_claim)
        from tunewire.runtime.serve import serve

        code = serve(_claim)
    except BaseException:  # noqa: BLE001 — whatever it is, it is told on stderr, and then this process is at its end
        sys.excepthook(*sys.exc_info())
    finally:
        # Not sys.exit: a thread or an exit handler of a user's must not keep a process alive that nobody awaits.
        os._exit(code)


main()
