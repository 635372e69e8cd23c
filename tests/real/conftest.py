"""The loops that tests with real processes run on: asyncio's, the same in its debug mode, and uvloop's.

The modules named here, which go through everything that a pool does, run on all three every time; the others on asyncio's,
and on all with `--every-loop` (the whole suite stays within minutes that way).
"""

import asyncio
from collections.abc import Callable

import pytest

ON_EVERY_LOOP = {"test_calls", "test_endpoints", "test_lifetime", "test_supervision"}


def debug_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_debug(True)
    return loop


try:
    import uvloop
except ImportError:
    uvloop = None
else:
    # libuv opens one pair of pipes for the whole process with its first loop: that is no test's doing.
    uvloop.new_event_loop().close()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.stem in ON_EVERY_LOOP or config.getoption("--every-loop"):
        factories["debug"] = debug_loop
        if uvloop is not None:
            factories["uvloop"] = uvloop.new_event_loop
    return factories
