"""The process in which PyTorch's Inductor times its kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch._inductor.autotune_process import TuningProcess as Inductor

from calls import nothing, same
from peer import TIMEOUT, Peer


class TuningProcess(Peer):
    """It runs any callable without arguments; `get` always has a timeout, of 120 s unless told otherwise."""

    distribution = "torch"
    process: Any

    async def open(self, workers: int) -> None:  # noqa: ARG002 — one at a time
        self.process = Inductor(device=None)

    async def close(self) -> None:
        self.process.shutdown(wait=True)

    async def noop(self) -> None:  # type: ignore[override]
        self.process.put(nothing)
        self.process.get()

    async def noop_within(self) -> None:  # type: ignore[override]
        self.process.put(nothing)
        self.process.get(TIMEOUT)

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        self.process.put(partial(same, array))
        return self.process.get()
