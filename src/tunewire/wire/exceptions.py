"""An exception as data, and back.

An exception that crosses a process boundary must never cost more than its own call: types whose constructor wants
other arguments than they store, attributes that do not pickle, classes that exist on one side only and classes that
execute code when rebuilt are all common. So an exception travels as plain data (type name, message, arguments that
are scalars, notes, traceback text, cause, members of a group), with its pickle beside it where there is one. The
receiver tries, in this order: the pickle, if it trusts the sender; the constructor of a builtin or of one of our
own errors, with scalar arguments; and else RemoteError, which carries the text.

Some exceptions would mean something else if they were raised in the receiver: those that are not `Exception`
(KeyboardInterrupt, SystemExit, asyncio's CancelledError), those that steer an iteration or a task, and those of ours
that say what became of a call (a CallTimeout of a pool inside the child is not a timeout of the call). They always
arrive as RemoteError.

Describing an exception calls code of its author's (`__str__`, `args`, `__notes__`, `__reduce__`), and so does
attaching a note or a cause to a rebuilt one (`__setattr__`). None of it may fail the description: what cannot be told
is left out. And nothing is believed of a description that came in: its depth and its lists are bounded again.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeAlias, TypeVar

import msgspec

from tunewire import errors
from tunewire.errors import (
    DecodeError,
    EncodeError,
    RemoteError,
    RemoteTraceback,
    TunewireError,
    encodable,
    printable,
)
from tunewire.wire.codecs import decode_pickle, encode_pickle

T = TypeVar("T")

Scalar: TypeAlias = bool | int | float | str | None
Datum: TypeAlias = Scalar | tuple[Scalar, ...]

_MAX_CHAIN = 16
_MAX_MEMBERS = 64
_MAX_TEXT = 1 << 16
#: Control flow of the process that raises them; not to be raised in another. By name: concurrent.futures has a
#: CancelledError of its own, and importing it to compare would cost every child its import.
_STEERING = frozenset({"CancelledError"})
#: What this process's own supervision says of a call.
_SUPERVISION = frozenset(
    {
        *("CallCancelled", "CallTimeout", "EndpointClosed", "PoolClosed", "PoolSaturated"),
        *("ServiceClosed", "ServiceCrashed", "StartError", "TruncatedFrame", "WireError", "WorkerCrashed"),
    }
)
#: Exceptions in one description, members of groups and causes together.
_MAX_NODES = 256


class ExceptionData(msgspec.Struct, frozen=True):
    """One exception, with its chain, as plain data.

    `arguments` is None where one of them is not a scalar; `data` holds the attributes of one of our own errors;
    `pickled` is the exception itself for a receiver that trusts the sender.
    """

    type_name: str
    message: str
    arguments: tuple[Scalar, ...] | None = None
    data: dict[str, Datum] | None = None
    notes: tuple[str, ...] = ()
    traceback_text: str = ""
    cause: ExceptionData | None = None
    suppress_context: bool = False
    members: tuple[ExceptionData, ...] = ()
    pickled: bytes | None = None


def _clip(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT // 2]}\n… {len(text) - _MAX_TEXT} characters left out …\n{text[-_MAX_TEXT // 2 :]}"


def _safely(describe: Callable[[], T], otherwise: T) -> T:
    """What `describe` says, or `otherwise`: it calls code of a user's, which may raise anything at all."""
    try:
        return describe()
    except BaseException:  # noqa: BLE001 — a __str__ that raises SystemExit must not end the process that reports it
        return otherwise


def _text(error: BaseException) -> str:
    return _clip(encodable(_safely(lambda: str(error), "<its text cannot be told: __str__ raised>")))


def _notes(error: BaseException) -> tuple[str, ...]:
    def read() -> tuple[str, ...]:
        return tuple(_clip(encodable(str(note))) for note in error.__notes__[:_MAX_MEMBERS])

    return _safely(read, ()) if hasattr(error, "__notes__") else ()


def _qualified_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _is_scalar(value: object) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is str:
        return len(value) <= _MAX_TEXT and value == encodable(value)
    return value is None or type(value) in (bool, float)


def _scalars(values: Sequence[object]) -> tuple[Scalar, ...] | None:
    if all(_is_scalar(value) for value in values):
        return tuple(values)  # type: ignore[arg-type]
    return None


def _own_data(error: TunewireError) -> dict[str, Datum] | None:
    data: dict[str, Datum] = {}
    for name, value in error.__dict__.items():
        if name.startswith("__"):
            continue
        if isinstance(value, tuple):
            items = _scalars(value)
            if items is None:
                return None
            data[name] = items
        elif _is_scalar(value):
            data[name] = value
        else:
            return None
    return data


def _traceback_text(error: BaseException, traceback: TracebackType | None) -> str:
    import traceback as formatter

    def read() -> str:
        if _is_larger(error, _MAX_NODES):
            # The formatter visits a member once for each way that leads to it: 8 levels of 20 shared ones never end.
            lines = formatter.format_tb(traceback)
            return "".join(
                [*lines, f"{_qualified_name(type(error))}: {error} (a group too large to be shown)\n"]
            )
        return "".join(formatter.format_exception(type(error), error, traceback))

    return _safely(lambda: _clip(encodable(read())), "<the traceback cannot be told>")


def _is_larger(error: BaseException, size: int) -> bool:
    """Whether more than `size` exceptions are met on all ways through groups and causes."""
    met = 0
    ahead = [error]
    while ahead and met <= size:
        met += 1
        one = ahead.pop()
        ahead.extend(chained for chained in (one.__cause__, one.__context__) if chained is not None)
        if isinstance(one, BaseExceptionGroup):
            ahead.extend(_members_of(one))
    return met > size


def _pickle(error: BaseException) -> bytes | None:
    try:
        _, buffers = encode_pickle(error, what="exception")
    except EncodeError:
        return None
    return bytes(buffers[0]) if len(buffers) == 1 and memoryview(buffers[0]).nbytes <= 1 << 20 else None


def capture(
    error: BaseException, *, with_pickle: bool, traceback: TracebackType | None = None
) -> ExceptionData:
    """`error` as data. `traceback` is where its text begins, so that a caller can leave out its own frames."""
    return _Capture(with_pickle=with_pickle).describe(error, traceback or error.__traceback__, depth=0)


class _Capture:
    """One description, bounded as a whole: groups may share members, and causes may be long."""

    def __init__(self, *, with_pickle: bool) -> None:
        self._with_pickle = with_pickle
        self._nodes = 0

    def describe(self, error: BaseException, traceback: TracebackType | None, depth: int) -> ExceptionData:
        self._nodes += 1
        return ExceptionData(
            type_name=encodable(_qualified_name(type(error))),
            message=_text(error),
            arguments=_safely(lambda: _arguments(error), None),
            data=_own_data(error) if isinstance(error, TunewireError) else None,
            notes=_notes(error),
            # The text of the outermost exception shows the whole chain.
            traceback_text=_traceback_text(error, traceback) if depth == 0 else "",
            cause=self._cause(error, depth),
            suppress_context=error.__cause__ is not None,
            members=self._members(error, depth),
            pickled=self._pickled(error),
        )

    def _may_go_deeper(self, depth: int) -> bool:
        return depth < _MAX_CHAIN and self._nodes < _MAX_NODES

    def _cause(self, error: BaseException, depth: int) -> ExceptionData | None:
        cause = error.__cause__
        if cause is None and not error.__suppress_context__:
            cause = error.__context__
        if cause is None or not self._may_go_deeper(depth):
            return None
        return self.describe(cause, None, depth + 1)

    def _members(self, error: BaseException, depth: int) -> tuple[ExceptionData, ...]:
        if not isinstance(error, BaseExceptionGroup):
            return ()
        members = []
        for member in _members_of(error)[:_MAX_MEMBERS]:
            if not self._may_go_deeper(depth):
                break
            members.append(self.describe(member, None, depth + 1))
        return tuple(members)

    def _pickled(self, error: BaseException) -> bytes | None:
        return _pickle(error) if self._with_pickle and _may_be_raised(error) else None


def _members_of(group: BaseExceptionGroup[BaseException]) -> tuple[BaseException, ...]:
    # Past an `exceptions` of the class's own.
    members: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(group)
    return members


def _arguments(error: BaseException) -> tuple[Scalar, ...] | None:
    return None if isinstance(error, BaseExceptionGroup) else _scalars(error.args)


def undescribed(error: BaseException) -> ExceptionData:
    """The least that can be said of an exception: for one whose description cannot be sent."""
    return ExceptionData(type_name=encodable(_qualified_name(type(error))), message=_text(error)[:1000])


def _may_be_raised(error: BaseException) -> bool:
    if not isinstance(error, Exception) or isinstance(error, (StopIteration, StopAsyncIteration)):
        return False
    name = type(error).__name__
    return name not in _STEERING and not (name in _SUPERVISION and type(error).__module__ == errors.__name__)


def _from_pickle(data: ExceptionData) -> Exception | None:
    if data.pickled is None:
        return None
    try:
        error = decode_pickle([data.pickled], what="exception", returning=True)
    except DecodeError:
        return None
    if (
        isinstance(error, Exception)
        and _may_be_raised(error)
        and _qualified_name(type(error)) == data.type_name
    ):
        return error
    return None


def _from_constructor(data: ExceptionData, depth: int) -> Exception | None:
    module, _, name = data.type_name.rpartition(".")
    if module == "tunewire.errors":
        return _own(name, data)
    cls = None if module else getattr(builtins, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        return None
    if issubclass(cls, (StopIteration, StopAsyncIteration)):
        return None
    if issubclass(cls, ExceptionGroup):
        return _group(data, depth)
    if data.arguments is None:
        return None
    arguments = data.arguments
    return _safely(lambda: cls(*arguments), None)


def _own(name: str, data: ExceptionData) -> Exception | None:
    cls = getattr(errors, name, None)
    if not (isinstance(cls, type) and issubclass(cls, TunewireError)) or cls is TunewireError:
        return None
    if data.data is None or name in _SUPERVISION:
        return None
    attributes = data.data
    return _safely(lambda: cls(**attributes), None)


def _group(data: ExceptionData, depth: int) -> Exception | None:
    if depth >= _MAX_CHAIN:
        return None
    members = [_rebuild(member, trusted=False, depth=depth + 1) for member in data.members[:_MAX_MEMBERS]]
    return ExceptionGroup(data.message.rpartition(" (")[0], members) if members else None


def _as_remote_error(data: ExceptionData) -> RemoteError:
    return RemoteError(type_name=data.type_name, message=data.message, traceback_text=data.traceback_text)


def rebuild(data: ExceptionData, *, trusted: bool) -> Exception:
    """The exception that `data` describes, to be raised here, with where it happened as its cause.

    `trusted` allows the pickle to be used; without it no code of the sender's choice runs.
    """
    return _rebuild(data, trusted=trusted, depth=0)


def _rebuild(data: ExceptionData, *, trusted: bool, depth: int) -> Exception:
    # By identity: an exception may have a length, or a truth of its own.
    error = _from_pickle(data) if trusted else None
    if error is None:
        error = _from_constructor(data, depth)
    if error is None:
        error = _as_remote_error(data)
    cause: BaseException | None = None
    if data.cause is not None and depth < _MAX_CHAIN:
        cause = _rebuild(data.cause, trusted=trusted, depth=depth + 1)
    if data.traceback_text:
        where = RemoteTraceback(text=data.traceback_text)
        where.__cause__ = cause
        cause = where
    _attach(error, data.notes[:_MAX_MEMBERS], cause)
    if isinstance(error, BaseExceptionGroup) and depth < _MAX_CHAIN:
        _complete_members(error, data, depth)
    return error


def _complete_members(group: BaseExceptionGroup[BaseException], data: ExceptionData, depth: int) -> None:
    """A pickle keeps the members of a group, and not what they were raised from."""
    for member, described in zip(_members_of(group), data.members, strict=False):
        if isinstance(member, Exception) and member.__cause__ is None and described.cause is not None:
            _attach(member, described.notes, _rebuild(described.cause, trusted=False, depth=depth + 1))
        if isinstance(member, BaseExceptionGroup) and depth < _MAX_CHAIN:
            _complete_members(member, described, depth + 1)


def _attach(error: Exception, notes: tuple[str, ...], cause: BaseException | None) -> None:
    # Past the class's own __setattr__: a frozen dataclass would refuse.
    BaseException.__cause__.__set__(error, cause)  # type: ignore[union-attr]
    known = set(_notes(error))
    for note in notes:
        if note not in known:
            add_note(error, printable(note))


def add_note(error: BaseException, note: str) -> None:
    """Add a note to a foreign exception; one whose class refuses it goes without."""
    _safely(lambda: BaseException.add_note(error, note), None)


def traceback_below(error: BaseException, frames: int) -> TracebackType | None:
    """The traceback of `error` without its outermost `frames`, which are the runner's own."""
    traceback = error.__traceback__
    for _ in range(frames):
        if traceback is None or traceback.tb_next is None:
            return traceback
        traceback = traceback.tb_next
    return traceback
