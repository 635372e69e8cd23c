"""How a user's value becomes buffers, and comes back.

Three codecs: msgspec (msgpack of plain data, Structs and arrays of numbers: the only one that is safe to read from a
child that is not trusted), pickle protocol 5, and cloudpickle, which writes functions and classes that cannot be
imported elsewhere by value. Reading the last two is the same `pickle.loads`; a child never imports cloudpickle until a
pickle asks for it.

When is cloudpickle needed? Plain pickle is some ten times faster, so it is tried first. It fails by itself on
lambdas and local functions. It does *not* fail on what lives in `__main__` (a script, a notebook's cells), and the
child's `__main__` is another module; but every such reference puts the word `__main__` into the stream, so one
substring search finds them all, and a false find costs only time. The third case is a module that the user
registered with `cloudpickle.register_pickle_by_value`.

A class that travels by value and comes back is recognised by cloudpickle, which then sets its attributes and methods
again from the copy: one round trip would give the sender's own class the receiver's state. So where a value comes
back, classes that are known already are taken as they are (`_Returning`).
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from tunewire.errors import DecodeError, EncodeError
from tunewire.wire.arrays import put_back, take_out
from tunewire.wire.frames import MAX_BUFFERS, Buffer
from tunewire.wire.unpicklable import locate

T = TypeVar("T")


class Codec(IntEnum):
    """The number of a codec in a frame's header.

    >>> Codec.named("msgspec").name
    'MSGSPEC'
    """

    NONE = 0
    MSGSPEC = 1
    PICKLE = 2
    CLOUDPICKLE = 3

    @classmethod
    def named(cls, name: str) -> Codec:
        """The codec that a public option names: "msgspec" or "pickle"; ValueError for anything else."""
        if name == "msgspec":
            return cls.MSGSPEC
        if name == "pickle":
            return cls.PICKLE
        raise ValueError(f"a codec is 'msgspec' or 'pickle', not {name!r}")


def _pickled_by_value_on_request() -> bool:
    module = sys.modules.get("cloudpickle.cloudpickle")
    return module is not None and bool(module.list_registry_pickle_by_value())


def _dump(dumps: Callable[..., bytes], value: object) -> list[Buffer]:
    outside: list[pickle.PickleBuffer] = []
    body = dumps(value, protocol=5, buffer_callback=outside.append)
    if len(outside) >= MAX_BUFFERS:
        return [dumps(value, protocol=5)]
    return [body, *(buffer.raw() for buffer in outside)]


def _dump_by_value(value: object, what: str) -> list[Buffer]:
    import cloudpickle

    try:
        return _dump(cloudpickle.dumps, value)
    except Exception as error:  # __reduce__ of any object in the value may raise anything
        path = locate(value, cloudpickle.dumps)
        raise EncodeError(what=what, path=path, reason=f"{type(error).__name__}: {error}") from error


def pickles_by_reference(function: Callable[..., Any]) -> bool:
    """Whether a function's pickle is its name and nothing else, so that it says the same as long as this holds."""
    if _pickled_by_value_on_request() or function.__module__ == "__main__":
        return False
    module = sys.modules.get(function.__module__)
    return module is not None and getattr(module, function.__qualname__, None) is function


def encode_pickle(value: object, *, what: str) -> tuple[Codec, list[Buffer]]:
    """`value` as pickle buffers: the pickle itself, then the buffers that it refers to, uncopied.

    Raises EncodeError, which names the part of `value` that cannot be pickled.
    """
    if not _pickled_by_value_on_request():
        try:
            buffers = _dump(pickle.dumps, value)
        except Exception:  # noqa: BLE001 — cloudpickle decides, and reports, whether it is an error
            return Codec.CLOUDPICKLE, _dump_by_value(value, what)
        if b"__main__" not in bytes(buffers[0]):
            return Codec.PICKLE, buffers
    return Codec.CLOUDPICKLE, _dump_by_value(value, what)


def encode_msgspec(value: object, *, what: str) -> tuple[Codec, list[Buffer]]:
    """`value` as a msgpack buffer, and one for each of its arrays; EncodeError if it is not made of msgspec's types and
    arrays of plain numbers."""
    buffers: list[Buffer] = [b""]
    try:
        buffers[0] = msgspec.msgpack.encode(value, enc_hook=take_out(buffers))
    except Exception as error:  # a Struct's property or hook may raise anything
        path = locate(value, lambda part: msgspec.msgpack.encode(part, enc_hook=take_out([b""])))
        raise EncodeError(what=what, path=path, reason=str(error)) from error
    return Codec.MSGSPEC, buffers


def encode(value: object, codec: Codec, *, what: str) -> tuple[Codec, list[Buffer]]:
    """`value` in the family of `codec`: the codec used in the end, and its buffers."""
    if codec is Codec.MSGSPEC:
        return encode_msgspec(value, what=what)
    return encode_pickle(value, what=what)


class _Returning(pickle.Unpickler):
    """Reads cloudpickle's pickles without touching classes that this process knows already."""

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._known: set[type] = set()

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if module == "cloudpickle.cloudpickle":
            if name in ("_make_skeleton_class", "_make_skeleton_enum"):
                return lambda *arguments: self._skeleton(found, *arguments)
            if name == "_class_setstate":
                return lambda cls, state: cls if cls in self._known else found(cls, state)
        return found

    def _skeleton(self, make: Callable[..., type], *arguments: Any) -> type:
        from cloudpickle import cloudpickle

        # The tracker maps a class to the id under which it was sent, and stands next to last in both argument lists.
        was_known = arguments[-2] in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
        cls = make(*arguments)
        if was_known:
            self._known.add(cls)
        return cls


def decode_pickle(buffers: Sequence[Buffer], *, what: str, returning: bool = False) -> Any:
    """The value of pickle buffers. Runs whatever the pickle says: for trusted peers only.

    `returning` says that the peer may have got classes by value from this process. Raises DecodeError, with the
    foreign error as its cause.
    """
    if not buffers:
        raise DecodeError(what=what, reason="no pickle came with it")
    try:
        if returning:
            return _Returning(buffers[0], buffers[1:]).load()
        return pickle.loads(buffers[0], buffers=buffers[1:])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a constructor in the pickle may raise anything, SystemExit too
        raise DecodeError(what=what, reason=f"{type(error).__name__}: {error}") from error


def decode_msgspec(buffers: Sequence[Buffer], *, what: str, type: type[T] | Any = Any) -> Any:
    """The value of a msgpack buffer, checked against `type`, with the arrays that lie in the others. Safe for bytes from
    anyone."""
    if not buffers:
        raise DecodeError(what=what, reason="no value came with it")
    try:
        return msgspec.msgpack.decode(buffers[0], type=type, ext_hook=put_back(buffers))
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise DecodeError(what=what, path=path.strip("`"), reason=reason) from error
    except Exception as error:  # a type that msgspec refuses, a hook of a Struct that raises
        raise DecodeError(what=what, reason=f"{error.__class__.__name__}: {error}") from error
