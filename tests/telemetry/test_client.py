"""The side that is sampled, against a fake of the other one; and what it refuses at once."""

import asyncio
import os

import pytest

from tunewire import Telemetry
from tunewire.telemetry import Row, Scope, Snapshot, client
from tunewire.telemetry.model import ScopeChanges
from tunewire.telemetry.serving import MAX_BEHIND, Reader


class FakeService:
    """Stands for the service and its connection: notes what it is asked, in order, and answers when it is let."""

    is_open = True
    pid = 1

    def __init__(self):
        self.asked = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def open(self):
        return self

    async def aclose(self):
        self.asked.append("closed")

    async def change(self, changes):
        self.asked.append(changes)
        await self.answers.wait()

    async def snapshot(self, path, reset):
        self.asked.append((path, reset))
        return Snapshot(path=path, rows=0, reset=reset)

    async def finish(self):
        self.asked.append("finish")


@pytest.fixture
def service(monkeypatch):
    services = []

    def connect(*_args, **_kwargs):
        services.append(FakeService())
        return services[-1]

    monkeypatch.setattr(client, "connect", connect)
    return services


@pytest.mark.asyncio
async def test_a_snapshot_is_one_call_that_is_awaited(service, tmp_path):
    async with Telemetry(path=os.devnull) as telemetry:
        path = str(tmp_path / "rows.jsonl")
        assert await telemetry.snapshot(path, reset=False) == Snapshot(path=path, rows=0, reset=False)
    assert service[0].asked == [(path, False), "finish", "closed"]


@pytest.mark.asyncio
async def test_what_was_opened_and_closed_before_is_told_before_a_snapshot(service, tmp_path):
    async with Telemetry(path=os.devnull) as telemetry:
        with telemetry.scope("a"):
            pass
        await telemetry.snapshot(tmp_path / "rows.jsonl")
    assert service[0].asked[:2] == [
        ScopeChanges(passed=(Scope("a"),)),
        (str(tmp_path / "rows.jsonl"), True),
    ]


@pytest.mark.asyncio
async def test_while_the_service_is_slow_changes_wait_together_and_none_is_lost(service):
    async with Telemetry(path=os.devnull) as telemetry:
        service[0].answers.clear()
        with telemetry.scope("a"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert service[0].asked == [ScopeChanges(opened=(Scope("a"),))]
            for _ in range(1000):
                with telemetry.scope("b"):
                    await asyncio.sleep(0)
        assert len(service[0].asked) == 1
        service[0].answers.set()
    assert service[0].asked[1:] == [
        ScopeChanges(closed=(Scope("a"),), passed=(Scope("a/b"),)),
        "finish",
        "closed",
    ]


def test_a_scope_is_of_one_block_and_has_a_name():
    telemetry = Telemetry(enabled=False)
    for missing in ("", None):
        with pytest.raises(ValueError, match="has a name"):
            telemetry.scope(missing)
    with pytest.raises(TypeError, match="text"):
        telemetry.scope("a", number=1)
    scope = telemetry.scope("a")
    with pytest.raises(RuntimeError, match="not open"):
        scope.__exit__(None, None, None)
    with scope, pytest.raises(RuntimeError, match="opened before"):
        scope.__enter__()


def test_closing_a_scope_twice_is_an_error():
    scope = Telemetry(enabled=True).scope("a")
    with scope:
        pass
    with pytest.raises(RuntimeError, match="not open"):
        scope.__exit__(None, None, None)


def test_a_generator_cannot_be_annotated_since_it_runs_later():
    telemetry = Telemetry(enabled=False)

    async def later():
        yield 1

    with pytest.raises(TypeError, match="generator"):
        telemetry.annotate(later)
    with pytest.raises(ValueError, match="has a name"):
        telemetry.annotate("")(int)


def test_two_telemetries_do_not_nest_in_each_other():
    one, other = Telemetry(enabled=True), Telemetry(enabled=True)
    with one.scope("a"), other.scope("b"), one.scope("c"):
        told = [telemetry._scopes.changes() for telemetry in (one, other)]
    assert [[scope.path for scope in changes.opened] for changes in told] == [["a", "a/c"], ["b"]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"interval": -1.0},
        {"interval": float("inf")},
        {"interval": float("nan")},
        {"max_bytes": 0},
        {"providers": ["module"]},
        {"timeout": 0},
    ],
)
def test_what_cannot_be_asked_for_is_refused_at_once(wrong):
    with pytest.raises(ValueError):
        Telemetry(**wrong)


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("1", True),
        ("yes", True),
        ("True", True),
        ("YES", True),
        ("on", True),
        ("0", False),
        ("No", False),
        ("", False),
    ],
)
def test_the_environment_says_whether_to_sample(monkeypatch, text, enabled):
    monkeypatch.setenv("TUNEWIRE_TELEMETRY", text)
    assert Telemetry().enabled is enabled


def test_what_the_environment_says_is_understood_or_refused(monkeypatch):
    monkeypatch.setenv("TUNEWIRE_TELEMETRY", "maybe")
    with pytest.raises(ValueError, match=r"TUNEWIRE_TELEMETRY is .* not 'maybe'"):
        Telemetry()
    assert Telemetry(enabled=True).enabled


@pytest.mark.asyncio
async def test_a_reader_that_is_far_behind_misses_the_oldest_rows():
    reader = Reader()
    for number in range(MAX_BEHIND + 5):
        reader.put(Row(number=number, seconds=0.0, unix_time=0.0, scopes=()))
    reader.finish()
    assert [row.number async for row in reader.rows()] == list(range(5, MAX_BEHIND + 5))
