"""Exceptions as data and back: what an exception is must survive, and never cost more than its own call."""

import asyncio
import subprocess

import msgspec
import pytest

from tunewire.errors import BrokenCompiler, CompileFailed, RemoteError, RemoteTraceback, WrongResult
from tunewire.wire.exceptions import ExceptionData, capture, rebuild


class TwoArguments(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class WithLambda(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.callback = lambda: None


class BadStr(Exception):
    def __str__(self):
        raise ZeroDivisionError


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 — any exception is what is being tested
        return caught


def through_the_wire(error: BaseException, *, trusted: bool) -> Exception:
    data = capture(raised(error), with_pickle=trusted)
    packed = msgspec.msgpack.encode(data)
    return rebuild(msgspec.msgpack.decode(packed, type=ExceptionData), trusted=trusted)


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        KeyError("k"),
        ValueError("a", 1, None),
        OSError(2, "gone"),
        CompileFailed(log="error: x", kernel="k", device="opencl:0", options=("-DX=1",)),
        BrokenCompiler(device="opencl:0", reason="error: unknown target CPU", name="a CPU"),
        WrongResult(
            argument="c", mismatched=1, total=4, worst_absolute=1.0, worst_relative=0.5, rtol=1e-5, atol=0.0
        ),
    ],
)
def test_builtins_and_our_own_come_back_as_themselves(error, trusted):
    copy = through_the_wire(error, trusted=trusted)
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert {**vars(copy), "__notes__": None} == {**vars(error), "__notes__": None}


def test_where_it_happened_is_the_cause():
    cause = through_the_wire(ValueError("here"), trusted=True).__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in raised" in cause.text
    assert "ValueError: here" in cause.text


def test_trusted_keeps_types_attributes_and_arguments():
    error = through_the_wire(subprocess.CalledProcessError(3, ["cc"], output=b"x"), trusted=True)
    assert (error.returncode, error.cmd, error.output) == (3, ["cc"], b"x")
    assert isinstance(
        through_the_wire(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), trusted=True), ValueError
    )


@pytest.mark.parametrize("error", [TwoArguments(7, "seven"), WithLambda("x")])
def test_an_exception_that_cannot_be_rebuilt_keeps_its_name_message_and_traceback(error):
    trusted = through_the_wire(error, trusted=True)
    copy = through_the_wire(error, trusted=False)
    assert isinstance(copy, RemoteError)
    assert copy.type_name == f"{__name__}.{type(error).__qualname__}"
    assert copy.message == str(error)
    assert copy.type_name in copy.traceback_text
    if isinstance(error, TwoArguments):
        assert isinstance(trusted, RemoteError)
    else:
        assert isinstance(trusted, WithLambda)  # cloudpickle takes the lambda along


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        StopIteration(1),
        StopAsyncIteration(),
        GeneratorExit(),
    ],
)
def test_what_steers_a_process_or_a_task_is_not_raised_in_another(error):
    for trusted in (True, False):
        copy = through_the_wire(error, trusted=trusted)
        assert isinstance(copy, RemoteError)
        assert copy.type_name.rpartition(".")[2] == type(error).__name__


@pytest.mark.parametrize("trusted", [True, False])
def test_chain_notes_and_groups_survive(trusted):
    inner = ValueError("inner")
    inner.add_note("a note")
    group = ExceptionGroup("several", [inner, KeyError("k")])
    group.__cause__ = OSError(5, "first")
    group.add_note("of the group")
    copy = through_the_wire(group, trusted=trusted)
    assert isinstance(copy, ExceptionGroup)
    assert copy.message == "several"
    assert [type(member) for member in copy.exceptions] == [ValueError, KeyError]
    assert copy.exceptions[0].__notes__ == ["a note"]
    assert copy.__notes__ == ["of the group"]
    original = copy.__cause__.__cause__
    assert isinstance(original, OSError)
    assert original.args == (5, "first")


def test_an_exception_whose_text_raises_still_arrives():
    copy = through_the_wire(BadStr(), trusted=False)
    assert "__str__ raised" in copy.message


def test_text_that_is_not_unicode_arrives():
    assert through_the_wire(OSError("\udcff"), trusted=False) is not None


def test_an_endless_chain_and_endless_text_are_bounded():
    error = ValueError("x" * 1_000_000)
    for depth in range(100):
        outer = ValueError(str(depth))
        outer.__cause__ = error
        error = outer
    assert len(msgspec.msgpack.encode(capture(error, with_pickle=False))) < 1_000_000


def test_without_trust_nothing_is_unpickled():
    class Bomb(Exception):
        def __reduce__(self):
            return (pytest.fail, ("a pickle was executed",))

    data = capture(raised(Bomb("x")), with_pickle=True)
    assert data.pickled is not None
    assert isinstance(rebuild(data, trusted=False), RemoteError)


@pytest.mark.parametrize(
    "name", ["tunewire.errors.TunewireError", "tunewire.errors.Any", "eval", "ValueError.x", "exec", ""]
)
def test_a_hostile_type_name_is_only_a_name(name):
    data = ExceptionData(type_name=name, message="m", arguments=("1+1",), data={"a": 1})
    assert isinstance(rebuild(data, trusted=False), RemoteError)
