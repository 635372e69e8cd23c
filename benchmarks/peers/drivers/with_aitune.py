"""NVIDIA AITune's ParentIpc and ChildIpc: messages and no calls, so a no-op is the echo of None, pickled both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aitune_ipc import ipc
from peer import Peer

CHILD = str(Path(__file__).with_name("aitune_child.py"))


class Aitune(Peer):
    """A flush at each message: with the default, the tenth one flushes."""

    distribution = "aitune"
    parent: Any

    async def open(self, workers: int) -> None:  # noqa: ARG002 — one at a time
        self.parent = ipc.ParentIpc(CHILD, flush_interval=1)

    async def close(self) -> None:
        self.parent.child.stdin.close()
        self.parent.child.stdout.close()
        self.parent.child.wait()

    async def noop(self) -> None:  # type: ignore[override]
        self.parent.send(None)
        self.parent.receive()

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        self.parent.send(array)
        return self.parent.receive()
