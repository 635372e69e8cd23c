"""What a service offers, read from the annotations of a class.

A method is one of three kinds, and its parameters are too:

    async def f(...) -> T                       one answer
    async def f(...) -> AsyncIterator[T]        a stream of items (`def` says the same)
    a parameter of type AsyncIterator[T]        a stream that the caller feeds; one for a method at most
    a parameter of type Callable[[A], Awaitable[R]]     a function of the caller's, which the method calls back
    any other parameter                         a value, which travels before the method begins

What the annotations say is the schema: values, items and results are checked against them where they arrive, by
msgspec. A definition is plain data. It is read once, in the process that connects, and sent to the one that implements it;
so the annotations are resolved where they were written, and both sides check by the same ones.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

import msgspec

from tunewire.errors import InvalidService

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_MARK = "__tunewire_method__"
_STREAMS = (AsyncIterator, AsyncIterable, AsyncGenerator)
_CALLBACK_FORM = "a callback is annotated Callable[[A, B], Awaitable[R]]"


class Service:
    """The base of a definition: a class whose methods, marked with `method`, are what can be called. Implementations are
    subclasses of it, or any class with the same methods.

    >>> class Scale(Service):
    ...     @method
    ...     async def scale(self, x: float, by: float = 2.0) -> float: ...
    >>> sorted(definition_of(Scale).methods)
    ['scale']
    """


@overload
def method(
    function: Callable[Concatenate[S, P], Coroutine[Any, Any, AsyncIterator[T]]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]: ...


@overload
def method(function: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]: ...


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of a Service as one that can be called from the other side.

    >>> class Clock(Service):
    ...     @method
    ...     async def ticks(self, n: int) -> AsyncIterator[int]: ...
    >>> definition_of(Clock).methods["ticks"].streams
    True
    """
    setattr(function, _MARK, True)
    return function


class CallbackDefinition(msgspec.Struct, frozen=True, dict=True):
    """A function of the caller's: the types of its arguments, in order, and of what it returns."""

    arguments: tuple[Any, ...]
    result: Any

    @functools.cached_property
    def arguments_type(self) -> Any:
        """What its arguments are as one value."""
        return tuple.__class_getitem__(self.arguments)


class MethodDefinition(msgspec.Struct, frozen=True, dict=True):
    """One method: `values` maps its value parameters to their types, `feed` is the parameter that is a stream, with the type
    of its items, and `result` the type of what it returns, or of the items that it streams."""

    name: str
    qualified_name: str
    streams: bool
    result: Any
    values: Mapping[str, Any]
    callbacks: Mapping[str, CallbackDefinition]
    feed: str | None = None
    feed_type: Any = None

    @functools.cached_property
    def values_type(self) -> type:
        """A type for its values by name: what is missing, or not known, is an error."""
        fields = [(f"v{number}", kind) for number, kind in enumerate(self.values.values())]
        rename = {f"v{number}": name for number, name in enumerate(self.values)}
        return msgspec.defstruct("Values", fields, rename=rename, forbid_unknown_fields=True)

    def by_name(self, values: Any) -> dict[str, Any]:
        """The values of a `values_type`, by the names of their parameters."""
        return dict(zip(self.values, msgspec.structs.astuple(values), strict=True))

    @property
    def parameters(self) -> Iterator[str]:
        """The names of all its parameters."""
        yield from self.values
        yield from self.callbacks
        if self.feed is not None:
            yield self.feed


class Definition(msgspec.Struct, frozen=True):
    """A service's name and its methods, as plain data that can be sent."""

    name: str
    methods: Mapping[str, MethodDefinition]


def definition_of(service: type[Service]) -> Definition:
    """The definition that a class's annotations make.

    Raises InvalidService, which names the method and the parameter, for what no definition can hold.

    >>> definition_of(Service)
    Traceback (most recent call last):
    tunewire.errors.InvalidService: service Service: no method of it is marked with @method.
    """
    if not (isinstance(service, type) and issubclass(service, Service)):
        raise TypeError(f"a service is a subclass of tunewire.Service, not {service!r}")
    methods = {
        name: _read(f"{service.__name__}.{name}", function)
        for name, function in inspect.getmembers(service, callable)
        if getattr(function, _MARK, False)
    }
    if not methods:
        raise InvalidService(service=service.__name__, reason="no method of it is marked with @method")
    return Definition(service.__name__, methods)


def _invalid(where: str, reason: str) -> InvalidService:
    service, _, at = where.partition(".")
    return InvalidService(service=service, reason=f"{at}: {reason}")


def _read(name: str, function: Callable[..., Any]) -> MethodDefinition:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise _invalid(name, f"{error}; annotations are resolved in the module that has the class") from error
    values: dict[str, Any] = {}
    callbacks: dict[str, CallbackDefinition] = {}
    feeds: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        where = f"{name}: parameter {parameter.name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise _invalid(where, f"it is {parameter.kind.description}, and a method's parameters have names")
        if parameter.name not in hints:
            raise _invalid(where, "it has no annotation")
        kind = hints[parameter.name]
        if typing.get_origin(kind) in _STREAMS:
            feeds[parameter.name] = typing.get_args(kind)[0]
        elif (callback := _callback(where, kind)) is not None:
            callbacks[parameter.name] = callback
        else:
            values[parameter.name] = _checkable(where, kind)
    if len(feeds) > 1:
        raise _invalid(name, f"{' and '.join(feeds)} are streams, and a method takes one at most")
    streams, result = _result(name, function, hints)
    feed, feed_type = next(iter(feeds.items()), (None, None))
    if feed is not None:
        _checkable(f"{name}: parameter {feed}", feed_type)
    return MethodDefinition(
        name.rpartition(".")[2], name, streams, result, values, callbacks, feed=feed, feed_type=feed_type
    )


def _checkable(where: str, kind: Any) -> Any:
    """`kind`, if msgspec can check a value against it."""
    try:
        msgspec.msgpack.Decoder(kind)
    except TypeError as error:
        raise _invalid(where, f"nothing can be checked against {kind!r}: {error}") from error
    return kind


def _callback(where: str, kind: Any) -> CallbackDefinition | None:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        return _callback(where, members[0]) if len(members) == 1 else None
    if kind is Callable or kind is typing.Callable:
        raise _invalid(where, _CALLBACK_FORM)
    if typing.get_origin(kind) is not Callable:
        return None
    arguments, result = typing.get_args(kind)
    if not isinstance(arguments, list) or typing.get_origin(result) not in (Awaitable, Coroutine):
        raise _invalid(where, f"{_CALLBACK_FORM}, not {kind!r}")
    return CallbackDefinition(
        tuple(_checkable(where, argument) for argument in arguments),
        _checkable(where, typing.get_args(result)[-1]),
    )


def _result(name: str, function: Callable[..., Any], hints: Mapping[str, Any]) -> tuple[bool, Any]:
    if "return" not in hints:
        raise _invalid(name, "what it returns has no annotation")
    kind = hints["return"]
    if typing.get_origin(kind) in _STREAMS:
        return True, _checkable(f"{name}: an item", typing.get_args(kind)[0])
    if not inspect.iscoroutinefunction(function):
        raise _invalid(name, "it is neither async nor a stream: define it with `async def`")
    return False, _checkable(f"{name}: its result", kind)
