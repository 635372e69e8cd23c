"""What may be said when: the rules of a service connection as a table, and the credit of a stream.

Many calls are in flight on one connection, and the two sides never agree about them at one moment: a cancel crosses a
result, items are on their way for a call that has ended. So for each message that names a call there are four answers:

    TAKE    it belongs to the call, and does what it says
    DROP    it is late, as it may well be: nothing happens
    REJECT  it belongs to no call, and its sender should know: it is answered with Rejected, and the connection goes on
    BREAK   no peer that keeps the rules can have sent it: the connection is over

The caller's side and the answering side each know a call in few states; what is in no row of a table is BREAK.

Ids. The parent's calls have odd numbers and the child's even ones, so an id says whose call it is. A number is used once.

Credit. Whoever reads a stream grants its writer an amount, and more as it reads. An item costs its size, and at least
`LEAST_COST`; it may be sent while the credit is above zero, which it may so overdraw once. So an item of any size can be
sent, and a reader holds at most what it granted and one item more, whatever the other side does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from tunewire.wire.messages import Cancel, Credit, End, Failure, Invoke, Item, Message, Rejected, Result

#: What a reader grants before it has read anything.
WINDOW = 1 << 18
#: So at most 128 items of a stream are ahead of its reader, however small they are.
LEAST_COST = 1 << 11


class Verdict(Enum):
    """What becomes of a message."""

    TAKE = auto()
    DROP = auto()
    REJECT = auto()
    BREAK = auto()


class Asked(Enum):
    """A call, as the side knows it that made it."""

    #: Never made, or answered.
    UNKNOWN = auto()
    UNARY = auto()
    STREAM = auto()
    #: Of either kind; cancelled, and not answered yet.
    CANCELLED = auto()


class Answering(Enum):
    """A call, as the side knows it that answers."""

    #: Not made yet.
    UNKNOWN = auto()
    #: Answered; its number has been used.
    OVER = auto()
    RUNNING = auto()
    #: Its caller feeds it a stream, which has not ended.
    FED = auto()
    CANCELLED = auto()


_TAKE, _DROP, _REJECT = Verdict.TAKE, Verdict.DROP, Verdict.REJECT

#: What the other side says of a call that this side made.
OF_MINE: Mapping[tuple[Asked, type[Message]], Verdict] = {
    (Asked.UNKNOWN, Result): _REJECT,
    (Asked.UNKNOWN, Failure): _REJECT,
    (Asked.UNKNOWN, Item): _REJECT,
    (Asked.UNKNOWN, End): _DROP,
    (Asked.UNKNOWN, Credit): _DROP,
    (Asked.UNKNOWN, Rejected): _DROP,
    (Asked.UNARY, Result): _TAKE,
    (Asked.UNARY, Failure): _TAKE,
    (Asked.UNARY, End): _TAKE,
    (Asked.UNARY, Credit): _TAKE,
    (Asked.UNARY, Rejected): _TAKE,
    (Asked.STREAM, Result): _TAKE,
    (Asked.STREAM, Failure): _TAKE,
    (Asked.STREAM, Item): _TAKE,
    (Asked.STREAM, End): _TAKE,
    (Asked.STREAM, Credit): _TAKE,
    (Asked.STREAM, Rejected): _TAKE,
    (Asked.CANCELLED, Result): _TAKE,
    (Asked.CANCELLED, Failure): _TAKE,
    (Asked.CANCELLED, Rejected): _TAKE,
    (Asked.CANCELLED, Item): _DROP,
    (Asked.CANCELLED, End): _DROP,
    (Asked.CANCELLED, Credit): _DROP,
}

#: What the other side says of a call that it made.
OF_THEIRS: Mapping[tuple[Answering, type[Message]], Verdict] = {
    (Answering.UNKNOWN, Invoke): _TAKE,
    (Answering.UNKNOWN, Item): _REJECT,
    (Answering.UNKNOWN, End): _REJECT,
    (Answering.UNKNOWN, Credit): _REJECT,
    (Answering.UNKNOWN, Cancel): _REJECT,
    (Answering.UNKNOWN, Rejected): _DROP,
    (Answering.OVER, Invoke): _REJECT,
    (Answering.OVER, Item): _DROP,
    (Answering.OVER, End): _DROP,
    (Answering.OVER, Credit): _DROP,
    (Answering.OVER, Cancel): _DROP,
    (Answering.OVER, Rejected): _DROP,
    (Answering.RUNNING, Invoke): _REJECT,
    # Of a stream that this side wanted no more of.
    (Answering.RUNNING, Item): _DROP,
    (Answering.RUNNING, End): _DROP,
    (Answering.RUNNING, Credit): _TAKE,
    (Answering.RUNNING, Cancel): _TAKE,
    (Answering.RUNNING, Rejected): _DROP,
    (Answering.FED, Invoke): _REJECT,
    (Answering.FED, Item): _TAKE,
    (Answering.FED, End): _TAKE,
    (Answering.FED, Credit): _TAKE,
    (Answering.FED, Cancel): _TAKE,
    (Answering.FED, Rejected): _DROP,
    (Answering.CANCELLED, Invoke): _REJECT,
    (Answering.CANCELLED, Item): _DROP,
    (Answering.CANCELLED, End): _DROP,
    (Answering.CANCELLED, Credit): _DROP,
    (Answering.CANCELLED, Cancel): _DROP,
    (Answering.CANCELLED, Rejected): _DROP,
}


def verdict(state: Asked | Answering, message: Message) -> Verdict:
    """What becomes of `message`, which names a call in this state.

    >>> verdict(Asked.UNARY, Result()), verdict(Asked.UNARY, Item())
    (<Verdict.TAKE: 1>, <Verdict.BREAK: 4>)
    """
    if isinstance(state, Asked):
        return OF_MINE.get((state, type(message)), Verdict.BREAK)
    return OF_THEIRS.get((state, type(message)), Verdict.BREAK)


def cost(size: int) -> int:
    """What an item of so many bytes takes of a credit.

    >>> cost(10), cost(5000)
    (2048, 5000)
    """
    return max(size, LEAST_COST)


class ReadWindow:
    """The reader's account of one stream: what the writer may still send, and when to grant more.

    >>> window = ReadWindow(4096)
    >>> window.take(10), window.take(10), window.take(10)
    (True, True, False)
    """

    def __init__(self, size: int = WINDOW) -> None:
        self._size = size
        self._granted = size
        self._read = 0

    def take(self, size: int) -> bool:
        """An item of so many bytes has come: whether it was allowed to."""
        allowed = self._granted > 0
        self._granted -= cost(size)
        return allowed

    def read(self, size: int) -> int:
        """An item of so many bytes has been read: how much to grant for it now, or 0 while that is not worth a message."""
        self._read += cost(size)
        if self._read < self._size // 2:
            return 0
        amount, self._read = self._read, 0
        self._granted += amount
        return amount


class WriteWindow:
    """The writer's account of one stream.

    >>> window = WriteWindow(2048)
    >>> window.is_open, window.spend(10), window.is_open, window.grant(2048), window.is_open
    (True, None, False, None, True)
    """

    def __init__(self, credit: int) -> None:
        self._credit = credit

    @property
    def is_open(self) -> bool:
        """Whether an item may be sent."""
        return self._credit > 0

    def spend(self, size: int) -> None:
        """An item of so many bytes is sent."""
        self._credit -= cost(size)

    def grant(self, amount: int) -> None:
        """The reader has read. An amount below zero takes nothing away."""
        self._credit += max(amount, 0)
