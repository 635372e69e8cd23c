"""The rules of a connection, and the credit of a stream."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.services.rules import (
    LEAST_COST,
    WINDOW,
    Answering,
    Asked,
    ReadWindow,
    Verdict,
    WriteWindow,
    cost,
    verdict,
)
from tunewire.wire.messages import Cancel, Credit, Hello, Invoke, Item, Rejected, Result


@pytest.mark.parametrize("state", [*Asked, *Answering])
def test_what_is_no_word_about_a_call_breaks_the_connection(state):
    assert verdict(state, Hello(tunewire="1", python="3", pid=1)) is Verdict.BREAK


@pytest.mark.parametrize("state", [*Asked, *Answering])
def test_a_rejection_is_never_answered(state):
    assert verdict(state, Rejected("why")) in (Verdict.TAKE, Verdict.DROP)


@pytest.mark.parametrize(
    ("state", "message", "expected"),
    [
        (Asked.UNKNOWN, Result(), Verdict.REJECT),
        (Asked.UNARY, Item(), Verdict.BREAK),
        (Asked.CANCELLED, Item(), Verdict.DROP),
        (Asked.CANCELLED, Result(), Verdict.TAKE),
        (Answering.OVER, Invoke("f"), Verdict.REJECT),
        (Answering.OVER, Cancel(), Verdict.DROP),
        (Answering.UNKNOWN, Credit(1), Verdict.REJECT),
        (Answering.RUNNING, Item(), Verdict.DROP),
    ],
)
def test_races_of_a_call(state, message, expected):
    assert verdict(state, message) is expected


@given(sizes=st.lists(st.integers(0, 2 * WINDOW), max_size=60), reads=st.lists(st.booleans(), max_size=120))
def test_a_writer_that_keeps_to_its_credit_is_never_over_it_and_never_stuck(sizes, reads):
    reader, writer = ReadWindow(), WriteWindow(WINDOW)
    held: list[int] = []
    ahead = list(sizes)
    choices = iter(reads)
    while ahead or held:
        if ahead and writer.is_open and (not held or next(choices, True)):
            size = ahead.pop()
            writer.spend(size)
            assert reader.take(size)
            held.append(size)
            assert sum(map(cost, held[:-1])) <= WINDOW
        else:
            assert held, "nothing may be sent and nothing is there to be read"
            writer.grant(reader.read(held.pop(0)))


def test_a_flood_is_noticed_at_the_credit_and_one_item():
    reader = ReadWindow()
    taken = 0
    while reader.take(1):
        taken += 1
    assert taken == WINDOW // LEAST_COST
