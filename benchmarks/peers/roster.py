"""Who is compared with tunewire, and how each is set up: as its own documentation recommends."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One side of a comparison."""

    name: str
    driver: str
    """`module:class` in the folder of drivers."""

    loop: str = "none"
    """The event loop in which its callers wait: none, asyncio or uvloop."""

    setup: str = ""
    """How it is used, and what it lacks: a sentence for the page."""

    environment: str | None = None
    """The name of an environment of its own; None for the one in which tunewire is."""

    requirements: tuple[tuple[str, ...], ...] = ()
    """What pip is asked for, and what else if that is not to be had."""

    heavy: bool = False
    """Whether it takes hundreds of megabytes, and so is asked for by name."""

    against: str = "asyncio"
    """The loop of the tunewire that it is measured against."""


OURS = {loop: Entry("tunewire", "ours:Tunewire", loop) for loop in ("asyncio", "uvloop")}

AWAITED_ECHO, AWAITED_ECHO_UVLOOP, INTERPRETERS = (
    "bare asyncio echo",
    "bare uvloop echo",
    "two interpreters",
)
AWAITED_EXECUTOR, PLAIN_EXECUTOR, STANDARD_POOL = (
    "ProcessPoolExecutor, awaited",
    "ProcessPoolExecutor",
    "multiprocessing.Pool",
)
LOKY, PEBBLE, ANYIO = "loky", "pebble", "anyio.to_process"

PEERS = (
    Entry(
        "raw blocking pipe",
        "floors:RawPipe",
        setup="`writev` and `readinto` on both ends, 64 bytes for a no-op; no pickle, no call, no timeout",
    ),
    Entry(
        AWAITED_ECHO,
        "floors:BareEcho",
        "asyncio",
        "StreamReader.readexactly for header and body, the raw pipe's child; no pickle, no call; in the row with a "
        "timeout it has none, since it is that row's floor",
    ),
    Entry(AWAITED_ECHO_UVLOOP, "floors:BareEcho", "uvloop", "the same on uvloop", against="uvloop"),
    Entry(
        INTERPRETERS,
        "floors:Interpreters",
        setup="a cold start's bar as a peer: 1.5 x `python -c 'import msgspec, pickle'` and 1 x `python -c pass`, added",
    ),
    Entry(
        "tunewire on uvloop", "ours:Tunewire", "uvloop", "tunewire against itself: what the other loop gives"
    ),
    Entry(
        "AITune ipc",
        "with_aitune:Aitune",
        setup="its ipc module as published, installed without the frameworks it does not import; a flush at each message; "
        "it has messages and no calls, so a no-op is the echo of None; no timeout, one child",
        environment="aitune",
        requirements=(("--no-deps", "aitune"),),
    ),
    Entry(
        PLAIN_EXECUTOR,
        "standard:Executor",
        setup="`submit().result()`; the platform's start method; `map` with a quarter of a worker's share as chunk; the "
        "timeout ends the wait, not the work",
    ),
    Entry(
        AWAITED_EXECUTOR,
        "standard:AwaitedExecutor",
        "asyncio",
        "`loop.run_in_executor`; the timeout is `asyncio.timeout`, which ends the wait, not the work",
    ),
    Entry(
        STANDARD_POOL,
        "standard:MultiprocessingPool",
        setup="`apply`; many in flight by `apply_async`; `map` with the chunks it chooses; the timeout ends the wait, "
        "not the work",
    ),
    Entry(
        LOKY,
        "with_loky:Loky",
        setup="`get_reusable_executor`; otherwise as ProcessPoolExecutor",
        environment="loky",
        requirements=(("loky",),),
    ),
    Entry(
        PEBBLE,
        "with_pebble:Pebble",
        setup="`schedule(timeout=...)`, which ends the worker; `map` with chunks as above",
        environment="pebble",
        requirements=(("pebble",),),
    ),
    Entry(
        "mpire",
        "with_mpire:Mpire",
        setup="`keep_alive=True`; `task_timeout=`, which ends the worker; `map` with the chunks it chooses",
        environment="mpire",
        requirements=(("mpire",),),
    ),
    Entry(
        "aiomultiprocess",
        "with_aiomultiprocess:Aiomultiprocess",
        "asyncio",
        "a queue for each process; its workers poll their queues; the timeout is `asyncio.timeout`, which ends the wait, "
        "not the work; `map` has no chunks",
        environment="aiomultiprocess",
        requirements=(("aiomultiprocess",),),
    ),
    Entry(
        ANYIO,
        "with_anyio:AnyioToProcess",
        "asyncio",
        "`run_sync` with a limiter of as many as there are workers; the timeout is `fail_after` with `cancellable=True`, "
        "which ends the worker",
    ),
    Entry(
        "TVM PopenWorker",
        "with_tvm:Worker",
        setup="`send` and `recv`; `send(timeout=...)` starts a thread in the child for each call; one worker",
        environment="tvm",
        requirements=(("apache-tvm[popen-pool]",),),
        heavy=True,
    ),
    Entry(
        "TVM PopenPoolExecutor",
        "with_tvm:Executor",
        setup="`submit().result()`; the pool's timeout where one is armed; `map_with_error_catching`, which has no chunks",
        environment="tvm",
        requirements=(("apache-tvm[popen-pool]",),),
        heavy=True,
    ),
    Entry(
        "PyTorch TuningProcess",
        "with_torch:TuningProcess",
        setup="`put` and `get(timeout)`, with a callable as the request; one process",
        environment="torch",
        # A build for CPUs where pip is configured to know one; the other one measures the same, and is 3 GB.
        requirements=(("torch==2.13.0+cpu",), ("torch",)),
        heavy=True,
    ),
)
