"""A pool whose processes are fakes."""

from __future__ import annotations

from typing import Any

import msgspec

from tunewire.pool import Pool
from tunewire.testing.processes import FakeSpawner, Script
from tunewire.workers.start import WorkerSpec


class FakePool(Pool):
    """A `tunewire.Pool` on fake processes that follow `scripts`, one each; everything else in it is real.

    `size` and the other options are Pool's. `spawner` has the processes. On a `virtual_loop` its limits take no time.

    >>> import asyncio
    >>> from tunewire import Limits
    >>> from tunewire.testing import FakePool, Script, virtual_loop
    >>> async def main():
    ...     async with FakePool(scripts=[Script(silent=True)], limits=Limits(start=600.0)) as pool:
    ...         outcome = await pool.run(len, "abc")
    ...     return outcome.kind.value, outcome.error.phase, asyncio.get_running_loop().time() >= 600.0
    >>> with virtual_loop() as runner:
    ...     runner.run(main())
    ('timeout', 'start', True)
    """

    def __init__(
        self, size: int | None = None, *, scripts: tuple[Script, ...] | list[Script] = (), **options: Any
    ):
        if size is None and options.get("devices") is None:
            size = 1
        super().__init__(size, **options)
        self.spawner = FakeSpawner(*scripts)

    def _spec(self, *args: Any, **kwargs: Any) -> WorkerSpec:
        return msgspec.structs.replace(super()._spec(*args, **kwargs), spawn=self.spawner)
