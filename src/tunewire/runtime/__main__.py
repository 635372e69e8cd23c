"""`python -m tunewire.runtime`: the life of a worker process.

The order matters. Pipes first, so that nothing printed from here on touches the protocol; then the guard, forked
while this process is small; only then msgspec, the hello, and, once the parent has said welcome, users' modules.
"""

from tunewire.runtime.claim import claim

_claim = claim()  # before any other import: P3 of the design rests on it

import os  # noqa: E402
import sys  # noqa: E402

from tunewire.runtime.claim import close_others  # noqa: E402


def main() -> None:
    """Stand under a guard, say hello, and serve calls until the parent closes its side."""
    code = 1
    try:
        if sys.platform == "linux":
            from tunewire.runtime.guard import become_guarded

            close_others(_claim)
            become_guarded(_claim.parent_pid)
        from tunewire.runtime.serve import serve

        code = serve(_claim)
    except BaseException:  # noqa: BLE001 — whatever it is, it is told on stderr, and then this process is at its end
        sys.excepthook(*sys.exc_info())
    finally:
        # Not sys.exit: a thread or an exit handler of a user's must not keep a process alive that nobody awaits.
        os._exit(code)


main()
