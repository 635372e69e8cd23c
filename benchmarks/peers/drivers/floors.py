"""What no framework can be faster than: bytes over pipes, with no call in them."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peer import Peer

ECHO_CHILD = str(Path(__file__).with_name("echo_child.py"))
HEADER = struct.Struct("<I")
MESSAGE = bytes(60)
"""About what a no-op's call takes on the wire."""


class EchoPeer(Peer):
    """A child that blocks in `read` and writes the frame back."""

    child: subprocess.Popen[bytes]

    async def open(self, workers: int) -> None:  # noqa: ARG002 — one at a time
        # -I -S: no search path to set up, no site
        command = [sys.executable, "-I", "-S", ECHO_CHILD]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    async def close(self) -> None:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.close()
        self.child.stdout.close()
        self.child.wait()


class RawPipe(EchoPeer):
    """Two blocking ends."""

    def _exchange(self, parts: list[Any]) -> bytearray:
        """`writev` and `readinto` until all has gone and come."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        writes, reads = self.child.stdin.fileno(), self.child.stdout
        unsent = [memoryview(part) for part in parts]
        while unsent:
            sent = os.writev(writes, unsent)
            while unsent and sent >= len(unsent[0]):
                sent -= len(unsent.pop(0))
            if sent:
                unsent[0] = unsent[0][sent:]
        (size,) = HEADER.unpack(reads.read(HEADER.size))
        answer = bytearray(size)
        room = memoryview(answer)
        while room:
            room = room[reads.readinto(room) :]  # type: ignore[attr-defined]
        return answer

    async def noop(self) -> None:  # type: ignore[override]
        self._exchange([HEADER.pack(len(MESSAGE)), MESSAGE])

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        import numpy as np

        return np.frombuffer(self._exchange([HEADER.pack(len(array)), array]), np.uint8)


class BareEcho(EchoPeer):
    """An asyncio parent, a `readexactly` for the header and one for the body; the child blocks as before."""

    async def open(self, workers: int) -> None:
        await super().open(workers)
        loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(limit=2**20)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self.reader), self.child.stdout)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), self.child.stdin
        )
        self.writer = asyncio.StreamWriter(transport, protocol, None, loop)

    async def close(self) -> None:
        self.writer.close()
        await self.reader.read()
        await asyncio.sleep(0)  # the transports close their pipes in a callback
        self.child.wait()

    async def noop(self) -> None:  # type: ignore[override]
        self.writer.write(HEADER.pack(len(MESSAGE)) + MESSAGE)
        (size,) = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        await self.reader.readexactly(size)

    noop_within = noop
    """Without a timeout: it is the floor of calls that have one."""

    async def echo(self, array: Any) -> Any:  # type: ignore[override]
        import numpy as np

        self.writer.writelines([HEADER.pack(len(array)), array.data])
        await self.writer.drain()
        (size,) = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        return np.frombuffer(await self.reader.readexactly(size), np.uint8)


class Interpreters(Peer):
    """The bar of a cold start: one and a half times an interpreter that imports two modules, and one that does not."""

    async def open(self, workers: int) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """Nor to close."""

    async def cold(self) -> int:
        return int(1.5 * self._run("import msgspec, pickle") + self._run("pass"))

    def _run(self, code: str) -> int:
        begun = time.perf_counter_ns()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter_ns() - begun
