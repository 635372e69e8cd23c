"""What every test owes the next one: no process, no open descriptor and no thread of its own is left.

Each test is compared with what stood before it, and so is each module and the whole session. A fixture of
a wider scope (a pool that a module's tests share, an event loop of theirs) may start and replace processes
in the middle of any test, which that test cannot answer for: while such a fixture is alive, the comparison
is left to the fixture's own scope.

The end of a process or thread is news that travels: asyncio's thread per child ("waitpid-N") ends a moment
after the child does. So what is left is looked at again until it is gone; after `GRACE_S` it is a failure.

A process that left our tree (a daemon that forked twice) has no parent here, but keeps its environment: the
session marks its own, and looks for the mark over all processes at the end.

It has to be cheap, since it runs for every test: no look at all processes unless this one has a child.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

# How long an example takes says something of the machine, nothing of the code.
settings.register_profile("tunewire", deadline=None)
settings.load_profile("tunewire")

GRACE_S = 1.0
SESSION_MARK = "TUNEWIRE_TEST_SESSION"
HERE = Path(__file__).parent

_shared: dict[str, str] = {}
"""The fixtures of a wider scope than one test that are alive now, and their scopes."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-loop",
        action="store_true",
        help="run tests with real processes on asyncio, its debug mode and uvloop",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs_opencl: skipped where opencl:0 cannot build a program")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Before any fixture: a module's pool would have been opened for nothing.
    if item.get_closest_marker("needs_opencl"):
        from opencl_here import opencl_problem  # not beside this file where test_leaks.py tries it out

        if problem := opencl_problem():
            pytest.skip(problem)


def _may_start_processes(fixturedef: pytest.FixtureDef[Any]) -> bool:
    if fixturedef.argname.startswith("nothing_is_left"):
        return False
    code = getattr(fixturedef.func, "__code__", None)
    ours = code is not None and Path(code.co_filename).is_relative_to(HERE)
    return ours or fixturedef.argname.endswith("_scoped_runner")


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> None:
    if fixturedef.scope != "function" and _may_start_processes(fixturedef):
        _shared[fixturedef.argname] = fixturedef.scope


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[Any]) -> None:
    _shared.pop(fixturedef.argname, None)


def _children() -> frozenset[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    return frozenset(psutil.Process().children(recursive=True))


def _descriptors() -> frozenset[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
        except FileNotFoundError:
            pass  # the descriptor that listed the folder
    return frozenset(found)


@dataclass(frozen=True)
class Standing:
    """What this process holds at one moment."""

    processes: frozenset[psutil.Process] = frozenset()
    descriptors: frozenset[tuple[str, str]] = frozenset()
    threads: frozenset[threading.Thread] = frozenset()

    @classmethod
    def now(cls) -> Standing:
        return cls(_children(), _descriptors(), frozenset(threading.enumerate()))

    def __sub__(self, other: Standing) -> Standing:
        return Standing(
            self.processes - other.processes,
            self.descriptors - other.descriptors,
            self.threads - other.threads,
        )

    def __or__(self, other: Standing) -> Standing:
        return Standing(
            self.processes | other.processes,
            self.descriptors | other.descriptors,
            self.threads | other.threads,
        )

    def __bool__(self) -> bool:
        return bool(self.processes or self.descriptors or self.threads)

    def __str__(self) -> str:
        return ", ".join(
            [_describe(process) for process in self.processes]
            + [f"descriptor {number} -> {target}" for number, target in sorted(self.descriptors)]
            + [f"thread {thread.name}" for thread in self.threads]
        )


def _describe(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({process.status()}: {' '.join(process.cmdline())})"
    except psutil.Error:
        return f"process {process.pid}"


class Ledger:
    """Demands back what was taken since a moment, and blames for each thing once: a test, or its module."""

    def __init__(self) -> None:
        self.blamed = Standing()

    def demand(self, before: Standing, whose: str) -> None:
        deadline = time.monotonic() + GRACE_S
        while left := Standing.now() - (before | self.blamed):
            if time.monotonic() > deadline:
                self.blamed |= left
                _kill(left.processes)  # neither the tests that follow nor the machine are to suffer
                pytest.fail(f"{whose} left {left}", pytrace=False)
            time.sleep(0.005)


_ledger = Ledger()


def _kill(processes: frozenset[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            pass  # it ended by itself, which is what was wanted


@pytest.fixture(autouse=True)
def nothing_is_left_by_the_test() -> Iterator[None]:
    before = Standing.now()
    yield
    if not _shared:
        _ledger.demand(before, "the test")


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_by_the_module() -> Iterator[None]:
    before = Standing.now()
    yield
    if not {"package", "session"} & set(_shared.values()):
        _ledger.demand(before, "the module's fixtures")


@pytest.fixture(autouse=True, scope="session")
def nothing_is_left_by_the_session() -> Iterator[None]:
    before = Standing.now()
    os.environ[SESSION_MARK] = mark = uuid.uuid4().hex
    yield
    del os.environ[SESSION_MARK]
    _ledger.demand(before, "the session's fixtures")
    if strays := _marked_with(mark):
        told = ", ".join(map(_describe, strays))
        _kill(strays)
        pytest.fail(f"some test left, outside of this process's tree: {told}", pytrace=False)


def _marked_with(mark: str) -> frozenset[psutil.Process]:
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(SESSION_MARK) == mark:
                found.add(process)
        except (psutil.Error, OSError):
            pass  # another user's, a zombie, or gone since: none of these is a running process of ours
    return frozenset(found)
