"""An exception as data, and back.

An exception that crosses a process boundary must never cost more than its own call: types whose constructor wants
other arguments than they store, attributes that do not pickle, classes that exist on one side only and classes that
execute code when rebuilt are all common. So an exception travels as plain data (type name, message, arguments that
are scalars, notes, traceback text, cause, members of a group), with its pickle beside it where there is one. The
receiver tries, in this order: the pickle, if it trusts the sender; the constructor of a builtin or of one of our
own errors, with scalar arguments; and else RemoteError, which carries the text.

Some exceptions would mean something else if they were raised in the receiver: those that are not `Exception`
(KeyboardInterrupt, SystemExit, asyncio's CancelledError), and those that steer an iteration or a task. They always
arrive as RemoteError.
"""

from __future__ import annotations

import builtins
import contextlib
import pickle
from collections.abc import Sequence
from types import TracebackType
from typing import TypeAlias

import msgspec

from tunewire import errors
from tunewire.errors import EncodeError, RemoteError, RemoteTraceback, TunewireError
from tunewire.wire.codecs import encode_pickle

Scalar: TypeAlias = bool | int | float | str | None
Datum: TypeAlias = Scalar | tuple[Scalar, ...]

_MAX_CHAIN = 16
_MAX_MEMBERS = 64
_MAX_TEXT = 1 << 16
#: Control flow of the process that raises them; not to be raised in another. By name: concurrent.futures has a
#: CancelledError of its own, and importing it to compare would cost every child its import.
_STEERING = frozenset({"StopIteration", "StopAsyncIteration", "GeneratorExit", "CancelledError", "Cancelled"})


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


def _safe_text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 — a user's __str__ may raise anything
        text = f"<its __str__ raised {type(failure).__name__}>"
    return _clip(_encodable(text))


def _encodable(text: str) -> str:
    """`text` without lone surrogates, which is what Python makes of a path that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _qualified_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _is_scalar(value: object) -> bool:
    if type(value) is int:
        return -(2**63) <= value < 2**63
    if type(value) is str:
        return len(value) <= _MAX_TEXT and value == _encodable(value)
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

    try:
        return _clip(_encodable("".join(formatter.format_exception(type(error), error, traceback))))
    except Exception as failure:  # noqa: BLE001 — formatting calls user code (__str__, __notes__)
        return f"<the traceback could not be formatted: {type(failure).__name__}>"


def _pickle(error: BaseException) -> bytes | None:
    try:
        _, buffers = encode_pickle(error, what="exception")
    except EncodeError:
        return None
    return bytes(buffers[0]) if len(buffers) == 1 and memoryview(buffers[0]).nbytes <= 1 << 20 else None


def capture(
    error: BaseException, *, with_pickle: bool, traceback: TracebackType | None = None, depth: int = 0
) -> ExceptionData:
    """`error` as data. `traceback` is where its own text begins, so that a caller can leave out its own frames."""
    notes = tuple(str(note) for note in getattr(error, "__notes__", ()))[:_MAX_MEMBERS]
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    members: tuple[ExceptionData, ...] = ()
    if isinstance(error, BaseExceptionGroup) and depth < _MAX_CHAIN:
        members = tuple(
            capture(member, with_pickle=False, depth=depth + 1) for member in error.exceptions[:_MAX_MEMBERS]
        )
    return ExceptionData(
        type_name=_qualified_name(type(error)),
        message=_safe_text(error),
        arguments=None if isinstance(error, BaseExceptionGroup) else _scalars(error.args),
        data=_own_data(error) if isinstance(error, TunewireError) else None,
        notes=tuple(_clip(_encodable(note)) for note in notes),
        # The text of the outermost exception shows the whole chain.
        traceback_text=_traceback_text(error, traceback or error.__traceback__) if depth == 0 else "",
        cause=None
        if cause is None or depth >= _MAX_CHAIN
        else capture(cause, with_pickle=with_pickle, depth=depth + 1),
        suppress_context=error.__cause__ is not None,
        members=members,
        pickled=_pickle(error) if with_pickle and _may_be_raised(error) else None,
    )


def _may_be_raised(error: BaseException) -> bool:
    return isinstance(error, Exception) and type(error).__name__ not in _STEERING


def _from_pickle(data: ExceptionData) -> Exception | None:
    if data.pickled is None:
        return None
    try:
        error = pickle.loads(data.pickled)
    except Exception:  # noqa: BLE001 — a constructor that wants other arguments raises whatever it likes
        return None
    if (
        isinstance(error, Exception)
        and _may_be_raised(error)
        and _qualified_name(type(error)) == data.type_name
    ):
        return error
    return None


def _from_constructor(data: ExceptionData) -> Exception | None:
    module, _, name = data.type_name.rpartition(".")
    if module == "tunewire.errors":
        cls = getattr(errors, name, None)
        if not (isinstance(cls, type) and issubclass(cls, TunewireError)) or cls is TunewireError:
            return None
        if data.data is None:
            return None
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            return cls(**data.data)
        return None
    cls = None if module else getattr(builtins, name, None)
    if not (isinstance(cls, type) and issubclass(cls, Exception)) or name in _STEERING:
        return None
    if issubclass(cls, ExceptionGroup):
        members = [rebuild(member, trusted=False) for member in data.members]
        exceptions = [member for member in members if isinstance(member, Exception)]
        return ExceptionGroup(data.message.rpartition(" (")[0], exceptions) if exceptions else None
    if data.arguments is None:
        return None
    with contextlib.suppress(TypeError, ValueError):
        return cls(*data.arguments)
    return None


def _as_remote_error(data: ExceptionData) -> RemoteError:
    return RemoteError(type_name=data.type_name, message=data.message, traceback_text=data.traceback_text)


def rebuild(data: ExceptionData, *, trusted: bool) -> Exception:
    """The exception that `data` describes, to be raised here, with where it happened as its cause.

    `trusted` allows the pickle to be used; without it no code of the sender's choice runs.
    """
    error = (_from_pickle(data) if trusted else None) or _from_constructor(data) or _as_remote_error(data)
    for note in data.notes:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    original = None if data.cause is None else rebuild(data.cause, trusted=trusted)
    if data.traceback_text:
        cause = RemoteTraceback(text=data.traceback_text)
        cause.__cause__ = original
        error.__cause__ = cause
    else:
        error.__cause__ = original
    return error


def traceback_below(error: BaseException, frames: int) -> TracebackType | None:
    """The traceback of `error` without its outermost `frames`, which are the runner's own."""
    traceback = error.__traceback__
    for _ in range(frames):
        if traceback is None or traceback.tb_next is None:
            return traceback
        traceback = traceback.tb_next
    return traceback
