"""loky's reusable executor, which its documentation recommends over the plain one."""

from __future__ import annotations

from typing import Any

from loky import get_reusable_executor

from standard import Executor


class Loky(Executor):
    """As ProcessPoolExecutor is used."""

    distribution = "loky"

    def make(self, workers: int) -> Any:
        return get_reusable_executor(max_workers=workers)

    async def close(self) -> None:
        self.executor.shutdown(wait=True, kill_workers=True)
