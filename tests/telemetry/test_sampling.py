"""When a sample is due, and of what: two tables, without a clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunewire.telemetry.model import Scope, ScopeChanges
from tunewire.telemetry.sampling import MAX_PASSED, OpenScopes, Sampling, innermost

A, B, C = Scope("a"), Scope("b"), Scope("c")
INNER = Scope("a/inner")


def opened(*scopes):
    return ScopeChanges(opened=scopes)


def closed(*scopes):
    return ScopeChanges(closed=scopes)


def passed(*scopes):
    return ScopeChanges(passed=scopes)


# The side that opens them.


def test_what_has_changed_is_told_once():
    scopes = OpenScopes()
    scopes.open(A)
    scopes.open(INNER)
    assert scopes.changes() == opened(A, INNER)
    assert scopes.changes() == ScopeChanges()
    scopes.close(INNER)
    scopes.close(A)
    assert scopes.changes() == closed(INNER, A)
    assert not scopes.has_changes


def test_a_scope_is_open_until_it_is_closed_as_often_as_it_was_opened():
    scopes = OpenScopes()
    scopes.open(A)
    scopes.changes()
    scopes.open(A)
    scopes.close(A)
    assert not scopes.has_changes
    scopes.close(A)
    assert scopes.changes() == closed(A)


def test_closing_what_is_not_open_is_an_error():
    scopes = OpenScopes()
    with pytest.raises(RuntimeError, match="'a'"):
        scopes.close(A)
    scopes.open(A)
    scopes.close(A)
    with pytest.raises(RuntimeError, match="not open"):
        scopes.close(A)


def test_scopes_of_one_path_with_other_labels_are_others():
    scopes = OpenScopes()
    scopes.open(Scope("a", {"x": "1"}))
    with pytest.raises(RuntimeError):
        scopes.close(Scope("a", {"x": "2"}))


def test_what_was_open_in_between_is_told_as_that_and_bounded():
    scopes = OpenScopes()
    for number in range(MAX_PASSED + 10):
        scopes.open(Scope(f"step {number}"))
        scopes.close(Scope(f"step {number}"))
    told = scopes.changes()
    assert (told.opened, told.closed) == ((), ())
    assert [scope.path for scope in told.passed] == [f"step {n}" for n in range(10, MAX_PASSED + 10)]


def test_what_passed_and_is_open_again_is_open():
    scopes = OpenScopes()
    scopes.open(A)
    scopes.close(A)
    scopes.open(A)
    assert scopes.changes() == opened(A)


def test_what_was_told_and_is_closed_and_opened_in_between_has_not_changed():
    scopes = OpenScopes()
    scopes.open(A)
    scopes.changes()
    scopes.close(A)
    scopes.open(A)
    assert not scopes.has_changes


def test_a_new_listener_is_told_what_is_open():
    scopes = OpenScopes()
    scopes.open(A)
    scopes.open(B)
    scopes.changes()
    scopes.close(B)
    scopes.open(C)
    scopes.close(C)
    scopes.tell_again()
    assert scopes.changes() == opened(A)


@given(st.lists(st.sampled_from("oOcCt"), max_size=60))
def test_whoever_is_told_of_changes_knows_what_is_open(steps):
    """o, c: open and close A; O, C: B; t: tell."""
    scopes, counts, told = OpenScopes(), {"a": 0, "b": 0}, set()
    for step in [*steps, "t"]:
        scope = A if step.islower() else B
        if step in "oO":
            scopes.open(scope)
            counts[scope.path] += 1
        elif step in "cC" and counts[scope.path]:
            scopes.close(scope)
            counts[scope.path] -= 1
        elif step == "t":
            changes = scopes.changes()
            assert not {s.path for s in changes.opened} & told
            assert {s.path for s in changes.closed} <= told
            told |= {s.path for s in changes.opened}
            told -= {s.path for s in changes.closed}
            assert not {s.path for s in changes.passed} & told
            assert told == {path for path, count in counts.items() if count}


# The side that samples.


def test_nothing_is_due_while_nothing_is_open():
    sampling = Sampling(1.0)
    assert sampling.due is None
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.change(closed(A), 0.5)
    assert sampling.due is None


def test_a_new_scope_is_due_at_once_and_then_each_interval():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 10.0)
    assert sampling.due == 10.0
    assert sampling.take(10.0) == (A,)
    assert sampling.due == 11.0
    assert sampling.take(11.25) == (A,)
    assert sampling.due == 12.0


def test_nesting_keeps_sampling_and_a_new_inner_scope_is_due_at_once():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.change(opened(INNER), 0.5)
    assert sampling.due == 0.5
    assert sampling.take(0.5) == (INNER,)
    sampling.change(closed(INNER), 0.75)
    assert sampling.due == 1.5
    assert sampling.take(1.5) == (A,)
    sampling.change(closed(A), 1.75)
    assert sampling.due is None


def test_ticks_that_have_passed_are_not_made_up_for():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.take(7.25)
    assert sampling.due == 8.25


def test_a_scope_that_is_closed_already_is_sampled_once():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.change(closed(A), 0.0)
    assert (sampling.due, sampling.is_behind) == (0.0, True)
    assert sampling.take(0.0) == (A,)
    assert (sampling.due, sampling.is_behind) == (None, False)


def test_a_scope_that_passed_is_sampled_once_beside_what_is_open():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.change(passed(B), 0.5)
    assert sampling.take(sampling.due) == (A, B)
    assert sampling.take(sampling.due) == (A,)


def test_a_scope_that_opens_again_and_again_makes_no_more_samples_than_one_that_is_open():
    sampling = Sampling(1.0)
    taken = []
    for step in range(400):
        now = step / 100
        sampling.change(opened(A), now)
        if sampling.due is not None and sampling.due <= now:
            taken.append(now)
            sampling.take(now)
        sampling.change(closed(A), now)
    assert taken == [0.0, 1.0, 2.0, 3.0]


def test_new_scopes_are_not_sampled_sooner_than_a_tenth_of_an_interval_after_the_last():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.change(passed(B), 0.0625)
    sampling.change(passed(C), 0.078125)
    assert sampling.due == pytest.approx(0.1)
    assert sampling.take(0.1) == (A, B, C)


def test_what_is_said_twice_changes_nothing():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    sampling.change(opened(A), 0.0)
    sampling.take(0.0)
    sampling.change(closed(A, B), 0.5)
    sampling.change(closed(A), 0.5)
    assert sampling.due is None


def test_a_sample_follows_another_unless_nothing_was_open_for_long():
    sampling = Sampling(1.0)
    sampling.change(opened(A), 0.0)
    assert not sampling.follows(0.0)
    sampling.take(0.0)
    assert sampling.follows(9.0)
    sampling.change(closed(A), 9.0)
    sampling.change(opened(A), 9.0)
    assert not sampling.follows(9.0)
    sampling.take(9.0)
    sampling.change(closed(A), 9.5)
    sampling.change(opened(A), 10.0)
    assert sampling.follows(10.0)


def test_of_scopes_in_parallel_each_innermost_one_is_sampled():
    assert innermost([A, Scope("a/x"), B, Scope("a/x/y"), Scope("ab")]) == (B, Scope("a/x/y"), Scope("ab"))


@given(
    st.lists(
        st.tuples(
            st.floats(0, 3), st.sampled_from(["open", "close", "pass"]), st.sampled_from([A, B, C, INNER])
        ),
        max_size=60,
    )
)
def test_every_scope_is_sampled_and_no_two_samples_are_too_near(steps):
    interval, now = 1.0, 0.0
    sampling, opening, sampled, takes = Sampling(interval), {}, {}, []

    def run_until(moment):
        while (due := sampling.due) is not None and due <= moment:
            at = max(due, now)
            takes.append(at)
            for scope in sampling.take(at):
                sampled[scope.path] = sampled[scope.path.split("/")[0]] = at

    for pause, what, scope in steps:
        run_until(now + pause)
        now += pause
        changes = {"open": opened, "close": closed, "pass": passed}[what](scope)
        sampling.change(changes, now)
        if what != "close":
            opening[scope.path] = now
    run_until(now + interval)
    assert all(sampled[path] > moment - interval for path, moment in opening.items())
    assert all(later - earlier > 0.09 * interval for earlier, later in pairwise(takes))
