"""What a streamed call says before its outcome, on its way to its reader.

Its bound is the child's pipe: when more has come than a reader who keeps up would leave, the worker's driver reads that pipe
no further, and the callable waits in its next report. One call has the pipe at a time, so nobody else is held up. Its reply
stands behind the reports: so the driver reads on before it decides that a limit was reached; and whoever awaits the reply
and does not read would wait for ever, so what he cannot hold is dropped, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from tunewire.endpoints.inbox import FrameQueue
from tunewire.errors import WireError
from tunewire.wire.codecs import Codec, decode_msgspec, decode_pickle
from tunewire.wire.frames import HEADER_BYTES, Frame
from tunewire.wire.messages import Note, Phase, Report, read_message

#: Bytes that wait for a reader before the child is held back.
_READ_AHEAD = 1 << 18
#: What each costs besides its bytes, in this process.
_LEAST_COST = 1 << 9


class CallReport(msgspec.Struct, frozen=True):
    """What the callable gave to `current_call().report`, or yielded.

    >>> CallReport({"loss": 0.25}, progress=0.5).value
    {'loss': 0.25}
    """

    value: Any = None
    progress: float | None = None


class CallLog(msgspec.Struct, frozen=True):
    """A line that the callable gave to `current_call().log`; `level` as `logging` has them.

    >>> CallLog(20, "compiled").message
    'compiled'
    """

    level: int
    message: str


class CallPhase(msgspec.Struct, frozen=True):
    """The callable entered a phase: compile, check or run.

    >>> CallPhase("check").phase
    'check'
    """

    phase: str


CallEvent: TypeAlias = CallReport | CallLog | CallPhase

#: The kinds of frames that are one.
KINDS = frozenset({Report.kind, Note.kind})


class Reports(FrameQueue[CallEvent]):
    """The reports of one call, which were not read yet."""

    def __init__(self, name: str, results: Codec) -> None:
        super().__init__(self._event, self._forget)
        self._what = f"a report of {name}"
        self._results = results
        self._held = 0
        self._unheard_of = 0
        #: What came while the queue was full and only the call's end was waited for.
        self.dropped = 0
        #: Called when there is room again: whoever runs the call says how.
        self.read_on: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        """Whether no more is kept."""
        return self._held > _READ_AHEAD

    @property
    def holds_back(self) -> bool:
        """Whether no more should be read for the time being."""
        return self.is_full and not self._unheard_of

    @contextmanager
    def skipped(self) -> Iterator[None]:
        """The call's end is waited for, and must not wait for a reader: what does not fit is dropped."""
        self._unheard_of += 1
        self.read_on()
        try:
            yield
        finally:
            self._unheard_of -= 1

    def put(self, frame: Frame) -> None:
        """The call has said this. WireError for a value in a codec that was not agreed."""
        agreed = (Codec.MSGSPEC,) if self._results is Codec.MSGSPEC else (Codec.PICKLE, Codec.CLOUDPICKLE)
        if frame.kind == Report.kind and frame.codec not in agreed:
            raise WireError(
                reason=f"a report in codec {frame.codec} came where {self._results.name} was agreed"
            )
        if self.is_full and self._unheard_of:
            self.dropped += 1
            return
        self._held += _cost(frame)
        super().put(frame)

    def drop(self) -> None:
        """Nobody reads any more."""
        super().drop()
        self._held = 0

    def _forget(self, frame: Frame) -> None:
        was_full = self.is_full
        self._held -= _cost(frame)
        if was_full and not self.is_full:
            self.read_on()

    def _event(self, frame: Frame) -> CallEvent:
        message = read_message(frame)
        if isinstance(message, Note):
            return CallLog(message.level, message.text)
        if isinstance(message, Phase):
            return CallPhase(message.name)
        assert isinstance(message, Report)
        return CallReport(self._value(frame), message.progress)

    def _value(self, frame: Frame) -> Any:
        if self._results is Codec.MSGSPEC:
            return decode_msgspec(frame.buffers, what=self._what)
        return decode_pickle(frame.buffers, what=self._what, returning=frame.codec == Codec.CLOUDPICKLE)


def _cost(frame: Frame) -> int:
    return _LEAST_COST + HEADER_BYTES + len(frame.message) + sum(map(len, frame.buffers))
