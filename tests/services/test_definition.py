"""Definitions: what annotations make, and what is refused."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tunewire.errors import InvalidService
from tunewire.services.definition import Service, definition_of, method


class Whole(Service):
    @method
    async def unary(self, x: int, *, by: float = 1.0) -> str: ...

    @method
    async def stream(self) -> AsyncIterator[int]: ...

    @method
    def plain_stream(self) -> AsyncIterator[int]: ...

    @method
    async def fed(
        self, xs: AsyncIterator[bytes], then: Callable[[int], Awaitable[str]] | None = None
    ) -> None: ...

    async def unmarked(self) -> int: ...


def test_annotations_are_the_schema():
    methods = definition_of(Whole).methods
    assert sorted(methods) == ["fed", "plain_stream", "stream", "unary"]
    assert methods["unary"].values == {"x": int, "by": float}
    assert methods["stream"].streams
    assert methods["plain_stream"].streams
    assert not methods["unary"].streams
    assert (methods["fed"].feed, methods["fed"].feed_type) == ("xs", bytes)
    assert methods["fed"].callbacks["then"].arguments == (int,)
    assert methods["fed"].callbacks["then"].result is str


class NoAnnotation(Service):
    @method
    async def f(self, x) -> int: ...


class NoResult(Service):
    @method
    async def f(self, x: int): ...


class NotAsync(Service):
    @method
    def f(self) -> int: ...


class TwoFeeds(Service):
    @method
    async def f(self, a: AsyncIterator[int], b: AsyncIterator[int]) -> int: ...


class Variadic(Service):
    @method
    async def f(self, *xs: int) -> int: ...


class BareCallback(Service):
    @method
    async def f(self, done: Callable[[int], int]) -> int: ...


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (NoAnnotation, "f: parameter x: it has no annotation"),
        (NoResult, "f: what it returns has no annotation"),
        (NotAsync, "f: it is neither async nor a stream"),
        (TwoFeeds, "a and b are streams"),
        (Variadic, "variadic positional"),
        (BareCallback, "a callback is annotated"),
    ],
)
def test_what_no_definition_can_hold_is_refused_by_name(service, words):
    with pytest.raises(InvalidService, match=words) as caught:
        definition_of(service)
    assert caught.value.service == service.__name__
