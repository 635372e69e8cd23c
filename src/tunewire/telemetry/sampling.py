"""When a sample is due, and of which scopes it is: two tables, one on each side, which know no clock and no process.

The side that opens and closes scopes (`OpenScopes`) counts them, since a scope may be open many times at once, and tells
the other side only what has changed since it told it last. So opening a scope is a matter of a dictionary, and however
slowly the other side listens, what waits to be told is bounded: by the scopes that are open, and by `MAX_PASSED` of those
that were open in between.

The side that samples (`Sampling`) knows what is open, and says when the next sample is due:

    nothing is open                         never
    something is open                       each interval, on a grid
    a scope that has no recent sample       at once, though never sooner than a tenth of an interval after the last
                                            sample: also if it is closed again by then, so that no short scope is missed
    the sampler comes late                  the ticks that have passed are not made up for

A sample is recent for an interval, so a scope that opens and closes a thousand times in a second makes no more samples than
one that stays open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tunewire.telemetry.model import Scope, ScopeChanges

Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]

#: Scopes that were opened and closed again before that could be told; of more, the oldest are forgotten.
MAX_PASSED = 256
#: The part of an interval that two samples are apart at least.
LEAST_GAP = 0.1


class OpenScopes:
    """The scopes that this side has open, and what of it the other side was not told.

    >>> scopes = OpenScopes()
    >>> scopes.open(Scope("step"))
    >>> scopes.changes().opened
    (Scope(path='step', labels={}),)
    >>> scopes.has_changes
    False
    """

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._scopes: dict[Key, Scope] = {}
        self._opened: dict[Key, Scope] = {}
        self._closed: dict[Key, Scope] = {}
        self._passed: dict[Key, Scope] = {}

    @property
    def has_changes(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._opened or self._closed or self._passed)

    def open(self, scope: Scope) -> None:
        """One more of it is open."""
        key = scope.key
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] > 1:
            return
        self._scopes[key] = scope
        self._passed.pop(key, None)
        if self._closed.pop(key, None) is None:
            self._opened[key] = scope

    def close(self, scope: Scope) -> None:
        """One less of it is open; RuntimeError if none was."""
        key = scope.key
        if key not in self._counts:
            raise RuntimeError(f"scope {scope.path!r} is closed, and it is not open")
        self._counts[key] -= 1
        if self._counts[key]:
            return
        del self._counts[key], self._scopes[key]
        if self._opened.pop(key, None) is None:
            self._closed[key] = scope
            return
        self._passed[key] = scope
        if len(self._passed) > MAX_PASSED:
            del self._passed[next(iter(self._passed))]

    def changes(self) -> ScopeChanges:
        """What is to be told; from now on it counts as told."""
        told = ScopeChanges(*(tuple(part.values()) for part in (self._opened, self._closed, self._passed)))
        for part in (self._opened, self._closed, self._passed):
            part.clear()
        return told

    def tell_again(self) -> None:
        """Somebody else listens from now on, and knows nothing."""
        self._opened = dict(self._scopes)
        self._closed.clear()
        self._passed.clear()


class Sampling:
    """What is open on the other side, and when it is to be sampled. Every `now` is by one clock.

    >>> sampling = Sampling(interval=1.0)
    >>> sampling.change(ScopeChanges(opened=(Scope("step"),)), now=5.0)
    >>> sampling.due
    5.0
    >>> sampling.take(5.0), sampling.due
    ((Scope(path='step', labels={}),), 6.0)
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._open: dict[Key, Scope] = {}
        #: What is to be sampled though its interval is not over.
        self._unread: dict[Key, Scope] = {}
        #: When each scope was sampled last, for an interval.
        self._read: dict[Key, float] = {}
        self._last: float | None = None
        self._tick = 0.0
        self._soonest = 0.0
        self._paused = True

    @property
    def is_behind(self) -> bool:
        """Whether a scope waits for a sample of its own."""
        return bool(self._unread)

    @property
    def due(self) -> float | None:
        """When the next sample is due; None while nothing is to be sampled."""
        if self._unread:
            return self._soonest
        return self._tick if self._open else None

    def change(self, changes: ScopeChanges, now: float) -> None:
        """The other side has opened and closed scopes. What it says twice changes nothing."""
        for scope in changes.passed:
            self._want(scope, now)
        for scope in changes.opened:
            self._open[scope.key] = scope
            self._want(scope, now)
        for scope in changes.closed:
            self._open.pop(scope.key, None)
        self._paused = self._paused or not self._open

    def _want(self, scope: Scope, now: float) -> None:
        read = self._read.get(scope.key)
        if read is not None and now - read < self._interval:
            return
        if not self._unread:
            self._soonest = now if self._last is None else max(now, self._last + LEAST_GAP * self._interval)
        self._unread[scope.key] = scope

    def follows(self, now: float) -> bool:
        """Whether a sample at this moment has one before it that is near enough to compare with."""
        if self._last is None:
            return False
        return not self._paused or now - self._last <= 2 * self._interval

    def take(self, now: float) -> tuple[Scope, ...]:
        """A sample is made now: of these scopes."""
        on_grid = self._last is not None and not self._unread and now - self._tick < self._interval
        self._tick = (self._tick if on_grid else now) + self._interval
        taken = innermost({**self._open, **self._unread}.values())
        self._read = {key: read for key, read in self._read.items() if now - read < self._interval}
        for each in (*self._open, *self._unread):
            self._read[each] = now
        self._unread.clear()
        self._last = now
        self._paused = not self._open
        return taken


def innermost(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """Those of the scopes that no other of them is nested in.

    >>> [scope.path for scope in innermost([Scope("step"), Scope("step/forward"), Scope("load")])]
    ['step/forward', 'load']
    """
    scopes = tuple(scopes)
    outer: set[str] = set()
    for scope in scopes:
        path = scope.path
        while "/" in path:
            path = path.rpartition("/")[0]
            outer.add(path)
    return tuple(scope for scope in scopes if scope.path not in outer)
