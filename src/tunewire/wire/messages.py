"""What peers say to each other: one frozen Struct per kind of frame.

On the wire a message is a msgpack array whose first item is its kind, the same number that stands in the header
(so that a reader can route a frame without decoding it). Unknown trailing items are ignored and missing ones take
their default, which is how a field is added without a new protocol version.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias, TypeVar

import msgspec

from tunewire.errors import WireError
from tunewire.wire.exceptions import ExceptionData
from tunewire.wire.frames import Buffer, Frame, pack


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The child's first frame, right behind the cookie: what it is, and what it can do beyond the rest ("interrupt")."""

    kind: ClassVar[int] = 1
    tunewire: str
    python: str
    pid: int
    capabilities: tuple[str, ...] = ()


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The parent's answer to Hello. Only then does the child import anything of a user's.

    `sys_path` is the parent's module search path, so that what imports there imports here; None leaves the child's. Its
    entries are encoded as file names are, since one may hold any bytes. `preload` names modules to import before Ready.
    """

    kind: ClassVar[int] = 2
    tunewire: str
    max_frame_bytes: int
    capabilities: tuple[str, ...] = ()
    sys_path: tuple[bytes, ...] | None = None
    preload: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Run a callable. The buffers carry it and its arguments; `results` is the codec to answer in; `env` is laid over the
    environment until the call has ended (None removes a variable)."""

    kind: ClassVar[int] = 3
    name: str
    phase: str
    results: int
    env: dict[str, str | None] | None = None


class Result(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A call returned; the buffers carry the value."""

    kind: ClassVar[int] = 4


class Failure(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A call raised. `keep` is False where the process is no good any more; in place of Ready, a preload failed."""

    kind: ClassVar[int] = 5
    exception: ExceptionData
    keep: bool = True


class Phase(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A running call entered its next phase, whose own limit begins now."""

    kind: ClassVar[int] = 6
    name: str


class Data(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """A value sent by one endpoint's program to the other's; the buffers carry it."""

    kind: ClassVar[int] = 7


class Interrupt(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Raise an exception in the callable of the call that this frame names, if it still runs. Followed by a signal."""

    kind: ClassVar[int] = 8


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A worker process has settled in and takes calls."""

    kind: ClassVar[int] = 9


Message: TypeAlias = Hello | Welcome | Call | Result | Failure | Phase | Data | Interrupt | Ready
M = TypeVar("M", Hello, Welcome, Call, Result, Failure, Phase, Data, Interrupt, Ready)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode


def pack_message(
    message: Message, *, call_id: int = 0, codec: int = 0, buffers: tuple[Buffer, ...] = ()
) -> tuple[list[Buffer], int]:
    """The frame of `message` as parts to be written in order, and its size in bytes."""
    return pack(message.kind, _encode(message), call_id=call_id, codec=codec, buffers=buffers)


def read_message(frame: Frame) -> Message:
    """The message that `frame` carries; WireError if it is none, or another than the header says."""
    try:
        message = _decode(frame.message)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(reason=f"kind {frame.kind} with a message that is none: {error}") from error
    if message.kind != frame.kind:
        raise WireError(reason=f"header says kind {frame.kind}, message {message.kind}")
    return message


def expect(frame: Frame, kind: type[M]) -> M:
    """The message of `frame`, which must be of this kind now."""
    message = read_message(frame)
    if not isinstance(message, kind):
        raise WireError(reason=f"{kind.__name__} expected, {type(message).__name__} came")
    return message
