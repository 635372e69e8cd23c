"""Runs one peer in the peer's own environment, and does what it is told in JSON lines.

    python drive.py MODULE:CLASS LOOP PARENT_CORE CHILD_CORE...

A line on stdin is a command, `{"do": NAME, ...}`; a line on the first stdout is its answer. What the peer prints goes
to stderr. Between two commands nothing runs here, an event loop included: it is blocked in reading the next line, so
that the other side of the comparison has the machine.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from importlib import import_module
from typing import IO, Any

import process_tree
from peer import Peer

PAGE = 4096
WARM_UP_CALLS = 3
LARGE = 2**24


async def samples_of(operation: Callable[[], Awaitable[Any]], seconds: float) -> list[int]:
    """Nanoseconds of each of the calls that fit into the time, and one at least."""
    clock = time.perf_counter_ns
    end = clock() + int(seconds * 1e9)
    found = []
    while True:
        begun = clock()
        await operation()
        ended = clock()
        found.append(ended - begun)
        if ended >= end:
            return found


class Driver:
    """One peer, and the commands."""

    def __init__(self, peer: Peer, parent_core: int, children_cores: list[int]) -> None:
        self.peer = peer
        self.cores = parent_core, children_cores
        self._arrays: dict[int, Any] = {}

    async def hello(self) -> dict[str, Any]:
        """Who this is."""
        methods = ("cold", "noop", "noop_within", "echo", "flood", "map")
        return {
            "version": self.peer.version(),
            "offers": [name for name in methods if getattr(self.peer, name) is not None],
        }

    async def open(self, workers: int) -> dict[str, Any]:
        """Workers that have done their first call, each end on its own cores."""
        process_tree.unpin()
        await self.peer.open(workers)
        if workers == 1 and self.peer.noop is not None:
            await self.peer.noop()
        elif self.peer.flood is not None:
            await self.peer.flood(100 * workers)
        process_tree.pin_all(*self.cores)
        return {}

    async def close(self) -> dict[str, Any]:
        await self.peer.close()
        return {}

    async def cold(self) -> dict[str, Any]:
        """A first result, and what the worker then weighs. Nothing is pinned."""
        process_tree.unpin()
        samples = [await self.peer.cold()]
        memory = process_tree.memory_bytes(process_tree.descendants())
        await self.peer.close()
        return {"samples": samples, "memory": memory}

    async def noop(self, seconds: float) -> dict[str, Any]:
        return await self._metered(self.peer.noop, seconds)

    async def noop_within(self, seconds: float) -> dict[str, Any]:
        return await self._metered(self.peer.noop_within, seconds)

    async def noop_on_one_core(self, seconds: float) -> dict[str, Any]:
        """What is left when no end has to wake another core."""
        parent, children = self.cores
        process_tree.pin_all(parent, [parent])
        answer = await self.noop(seconds)
        process_tree.pin_all(parent, children)
        return answer

    async def echo(self, size: int, seconds: float) -> dict[str, Any]:
        warm_up = (
            WARM_UP_CALLS if size < LARGE else 0
        )  # the large one's was a measurement that the bench threw away
        return await self._metered(partial(self._echo, size), seconds, warm_up)

    async def first(self, size: int) -> dict[str, Any]:
        """The first large array of a new worker that has numpy already."""
        process_tree.unpin()
        await self.peer.open(1)
        await self._echo(64)
        process_tree.pin_all(*self.cores)
        samples = await samples_of(partial(self._echo, size), 0)
        await self.peer.close()
        return {"samples": samples}

    async def flood(self, count: int) -> dict[str, Any]:
        return await self._whole(self.peer.flood, count)

    async def map(self, count: int) -> dict[str, Any]:
        return await self._whole(self.peer.map, count)

    async def _echo(self, size: int) -> None:
        """There and back, and one byte of each page read: a mapping that nobody has looked at is no array yet."""
        array = self._array(size)
        result = await self.peer.echo(array)  # type: ignore[misc]
        if not (result[::PAGE] == array[::PAGE]).all() or len(result) != size:
            raise AssertionError("an echo is not what was sent")

    def _array(self, size: int) -> Any:
        import numpy as np  # not before it is needed: a forked worker would weigh it

        if size not in self._arrays:
            self._arrays[size] = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        return self._arrays[size]

    async def _metered(self, operation: Any, seconds: float, warm_up: int = WARM_UP_CALLS) -> dict[str, Any]:
        """With the CPU time of both sides."""
        children = process_tree.descendants()
        gc.collect()
        for _ in range(warm_up):
            await operation()
        before = time.process_time_ns(), process_tree.cpu_ns(children)
        samples = await samples_of(operation, seconds)
        after = time.process_time_ns(), process_tree.cpu_ns(children)
        cpu = [(later - earlier) / len(samples) for later, earlier in zip(after, before, strict=True)]
        return {"samples": samples, "cpu": cpu}

    async def _whole(self, operation: Any, count: int) -> dict[str, Any]:
        """Many together: one sample, nanoseconds for each."""
        children = process_tree.descendants()
        gc.collect()
        before = time.perf_counter_ns(), time.process_time_ns(), process_tree.cpu_ns(children)
        await operation(count)
        after = time.perf_counter_ns(), time.process_time_ns(), process_tree.cpu_ns(children)
        wall, *cpu = [(later - earlier) / count for later, earlier in zip(after, before, strict=True)]
        return {"samples": [wall], "cpu": cpu}


async def serve(driver: Driver, commands: IO[str], answers: IO[str]) -> None:
    """Until there are no more commands. What a command raises is its answer; the bench knows what to do without it."""
    for line in commands:
        command = json.loads(line)
        try:
            answer = await getattr(driver, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001 — whatever a peer raises is one line of the table
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def run_without_loop(coroutine: Coroutine[Any, Any, None]) -> None:
    """A coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a peer without an event loop has suspended")


def run(coroutine: Coroutine[Any, Any, None], loop: str) -> None:
    """On the loop of that name."""
    if loop == "none":
        run_without_loop(coroutine)
    elif loop == "asyncio":
        asyncio.run(coroutine)
    else:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(coroutine)


def main() -> None:
    """The first stdin and stdout are kept from the peer and its children."""
    commands, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    name, loop, parent_core, *children_cores = sys.argv[1:]
    module, _, kind = name.partition(":")
    peer = getattr(import_module(module), kind)()
    run(serve(Driver(peer, int(parent_core), [*map(int, children_cores)]), commands, answers), loop)


if __name__ == "__main__":
    main()
