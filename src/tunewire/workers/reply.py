"""From the frames of a child, and from the ways in which it can fail, to the outcome of a call."""

from __future__ import annotations

from typing import Any, NamedTuple

from tunewire.errors import DecodeError, DeviceFault, WireError
from tunewire.wire.codecs import Codec, decode_msgspec, decode_pickle
from tunewire.wire.exceptions import rebuild
from tunewire.wire.frames import Frame
from tunewire.wire.messages import Failure, Result, read_message
from tunewire.workers.call import PendingCall
from tunewire.workers.outcome import OutcomeKind


class Reply(NamedTuple):
    """What a reply says: how the call ended, with which value or error, and whether the process may be kept."""

    kind: OutcomeKind
    value: Any = None
    error: BaseException | None = None
    keep: bool = True


def read_reply(frame: Frame, call: PendingCall) -> Reply:
    """The reply in `frame`; WireError if it is none. With results as msgspec nothing in it is ever unpickled."""
    message = read_message(frame)
    if isinstance(message, Failure):
        return _failed(rebuild(message.exception, trusted=call.results is not Codec.MSGSPEC), message.keep)
    if not isinstance(message, Result):
        raise WireError(reason=f"a reply was expected, {type(message).__name__} came")
    try:
        return Reply(OutcomeKind.COMPLETED, value=_value(frame, call))
    except DecodeError as error:
        return Reply(OutcomeKind.ERROR, error=error)


def keeps_process(frame: Frame) -> bool:
    """Whether the late reply of a call that was given up says that its process is still good."""
    message = read_message(frame)
    return isinstance(message, Result) or (isinstance(message, Failure) and message.keep)


def _failed(error: Exception, keep: bool) -> Reply:
    if isinstance(error, DeviceFault):
        return Reply(OutcomeKind.DEVICE_FAULT, error=error, keep=False)
    return Reply(OutcomeKind.ERROR, error=error, keep=keep)


def _value(frame: Frame, call: PendingCall) -> Any:
    what = f"result of {call.name}"
    if call.results is Codec.MSGSPEC:
        if frame.codec != Codec.MSGSPEC:
            raise WireError(reason=f"a result in codec {frame.codec} came where msgspec was agreed")
        return decode_msgspec(frame.buffers, what=what, type=call.result_type)
    return decode_pickle(frame.buffers, what=what, returning=frame.codec == Codec.CLOUDPICKLE)
