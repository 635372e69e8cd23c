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
    environment until the call has ended (None removes a variable). `streams` says that someone reads what it reports, and
    `limits` the seconds of its phases compile, check and run."""

    kind: ClassVar[int] = 3
    name: str
    phase: str
    results: int
    env: dict[str, str | None] | None = None
    streams: bool = False
    limits: tuple[float | None, float | None, float | None] = (None, None, None)


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
    """Raise an exception in the callable of the call that this frame names, if it still runs; with `raises` False, only let
    it know that nobody waits for it any more. Followed by a signal."""

    kind: ClassVar[int] = 8
    raises: bool = True


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A worker process has settled in and takes calls."""

    kind: ClassVar[int] = 9


class Open(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The parent to a service's process: make this implementation. The buffers carry a pickle of it and its definition.
    `log_level` is the least level of log records that are wanted; None if none are."""

    kind: ClassVar[int] = 16
    service: str
    log_level: int | None = None


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """The implementation stands, and may be called. In its place, Failure: it could not be made."""

    kind: ClassVar[int] = 17


class Invoke(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Call a method of a service; or, with `of`, the callback that this call of the other side's was given as its parameter
    `name`. The buffers carry the arguments. `callbacks` names the parameters for which there is a function to call back,
    and `credit` is how much may be streamed back before more is granted."""

    kind: ClassVar[int] = 18
    name: str
    of: int = 0
    callbacks: tuple[str, ...] = ()
    credit: int = 0


class Item(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """One item of a call's stream, of the one that answers it or the one that feeds it; the buffers carry it."""

    kind: ClassVar[int] = 19


class End(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Of the stream that feeds a call: from the caller, it is over; from the other side, no more of it is wanted."""

    kind: ClassVar[int] = 20


class Credit(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """This much more of a call's stream may be sent."""

    kind: ClassVar[int] = 21
    amount: int


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Whoever made this call does not want it any more. It is still answered, once it has ended."""

    kind: ClassVar[int] = 22


class Rejected(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """The answer to a message that belongs to no call (any more), or makes one that cannot be. It is never answered."""

    kind: ClassVar[int] = 23
    reason: str


class Log(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """A record of the child's logging, as text. `created` is in seconds of the wall clock, `logger` is empty for the root's,
    `dropped` counts the records before it that were not sent."""

    kind: ClassVar[int] = 24
    level: int
    logger: str
    text: str
    created: float
    exception: str | None = None
    dropped: int = 0


class Report(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """A running call whose caller streams it has got so far. The buffers carry a value; `progress` is its own measure of how
    far it is, if it has one."""

    kind: ClassVar[int] = 32
    progress: float | None = None


class Note(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """A line of a running call's log. `level` is as in `logging`."""

    kind: ClassVar[int] = 33
    level: int
    text: str


WorkerMessage: TypeAlias = (
    Hello | Welcome | Call | Result | Failure | Phase | Data | Interrupt | Ready | Report | Note
)
ServiceMessage: TypeAlias = Open | Opened | Invoke | Item | End | Credit | Cancel | Rejected | Log
Message: TypeAlias = WorkerMessage | ServiceMessage
M = TypeVar("M", bound=Message)

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
