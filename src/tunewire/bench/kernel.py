"""Kernels as values: the source, what it is given, how it is launched, and what it should compute.

A kernel is checked where it is made, in the parent, before any process is asked to compile it: what can be
known from its parts alone (an entry that the source never mentions, a grid of four dimensions, an expression
over an unknown parameter) is an InvalidKernel with one sentence. What only a compiler or a device can know is
not guessed.

Parameters are names with values. `bind` turns a configuration of them into a kernel without any: each becomes
a preprocessor definition, and each expression (grid, block, shapes, scalars, shared memory, work) becomes its
number. A bound kernel is what a worker gets; binding is pure and needs nothing but this module.

No data is in a kernel. An `Array` says how the worker makes it, from a seed, so a gigabyte of input costs a
few bytes on the wire.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import force_setattr, replace

from tunewire.bench.expressions import Expression, Value
from tunewire.bench.source import definition, is_identifier, mentions, without_comments
from tunewire.errors import InvalidExpression, InvalidKernel

__all__ = ["Argument", "Array", "Language", "RawKernel", "Reference", "Scalar", "Size", "Work"]

Language = Literal["opencl", "cuda"]
#: A number, or the text of an expression over parameters that gives one.
Size = int | str
Reference = Callable[..., Any] | str

#: Bytes of one element, by the names that NumPy and CuPy share.
ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
FILLS = ("random", "zeros", "arange")


class _ArrayParts(msgspec.Struct, frozen=True):
    shape: Size | tuple[Size, ...]
    dtype: str = "float32"


class Array(_ArrayParts, frozen=True, kw_only=True, tag="array"):
    """An array argument, made in the worker: C-contiguous, of `shape` elements of `dtype`.

    `shape` is one extent or several, each a number or an expression over parameters. `fill` is the content
    before the first launch: "random" (floats and complex parts uniform in [-1, 1), integers in [0, 100),
    bools even odds), "zeros", "arange" (0, 1, 2, ... along the flattened array) or one number for every
    element. `seed` chooses other random content; without it, each argument's content follows from its
    position, and is the same in every process.

    `output=True` says that the kernel writes it. An output without `fill` is written only: before the checked
    launch it is poisoned, so that an element which the kernel does not write is found. An output with `fill`
    is read as well, and begins with that content at the checked launch. `name` is what errors call it.

    >>> Array((1024, "N"), fill="arange").expressions()
    ('N',)
    >>> Array(256, "int32", output=True).output
    True
    """

    fill: Literal["random", "zeros", "arange"] | int | float | None = None
    seed: int | None = None
    output: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "shape", _as_tuple(self.shape, "an array's shape"))
        for extent in self.extents:
            _check_size(extent, "an array's extent", least=1)
        _check_dtype(self.dtype)
        if isinstance(self.fill, str) and self.fill not in FILLS:
            raise InvalidKernel(
                reason=f"fill={self.fill!r} is neither a number nor one of {', '.join(FILLS)}"
            )
        if self.seed is not None and self.seed < 0:
            raise InvalidKernel(reason=f"seed={self.seed} is negative")

    @property
    def extents(self) -> tuple[Size, ...]:
        """The shape, always as a tuple."""
        return cast(tuple[Size, ...], self.shape)

    @property
    def bound_shape(self) -> tuple[int, ...]:
        """The shape in numbers. InvalidKernel where an expression in it was not evaluated yet."""
        for extent in self.extents:
            if not isinstance(extent, int):
                raise InvalidKernel(reason=f"{extent!r} in a shape has no value yet: bind its parameters")
        return cast(tuple[int, ...], self.extents)

    def expressions(self) -> tuple[str, ...]:
        """The texts that must be evaluated before this array can be made."""
        return tuple(extent for extent in self.extents if isinstance(extent, str))

    def bind(self, parameters: Mapping[str, Value]) -> Array:
        """The same array with numbers in the place of its expressions."""
        extents = tuple(
            _evaluate_size(extent, parameters, "an array's extent", least=1) for extent in self.extents
        )
        return replace(self, shape=extents)


class Scalar(msgspec.Struct, frozen=True, tag="scalar"):
    """A scalar argument, passed by value as `dtype`. `value` is a number or an expression over parameters.

    >>> Scalar("N * 2", "int32").bind({"N": 8})
    Scalar(value=16, dtype='int32', name=None)
    """

    value: int | float | bool | str
    dtype: str
    name: str | None = None

    def __post_init__(self) -> None:
        _check_dtype(self.dtype)
        if isinstance(self.value, str):
            _check_expression(self.value, "a scalar's value")
        elif not isinstance(self.value, int | float):
            raise InvalidKernel(
                reason=f"a scalar's value {self.value!r} is neither a number nor an expression"
            )

    def expressions(self) -> tuple[str, ...]:
        """The texts that must be evaluated before this scalar has a value."""
        return (self.value,) if isinstance(self.value, str) else ()

    def bind(self, parameters: Mapping[str, Value]) -> Scalar:
        """The same scalar with a number in the place of its expression."""
        if not isinstance(self.value, str):
            return self
        value = _evaluate(self.value, parameters, "a scalar's value")
        if isinstance(value, str):
            raise InvalidKernel(reason=f"a scalar's value {self.value!r} is the text {value!r}, not a number")
        return replace(self, value=value)


Argument = Array | Scalar


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch does, by its author's count: `flops` floating-point operations, `bytes` moved to and
    from memory. Numbers or expressions over parameters. A measurement turns them into rates.

    >>> Work(flops="2 * N ** 3").bind({"N": 512}).flops
    268435456
    """

    flops: int | float | str | None = None
    bytes: int | float | str | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "bytes"):
            amount = getattr(self, name)
            if isinstance(amount, str):
                _check_expression(amount, f"work's {name}")
            elif amount is not None and not amount > 0:
                raise InvalidKernel(reason=f"work's {name}={amount!r} is not positive")

    def expressions(self) -> tuple[str, ...]:
        """The texts that must be evaluated before rates can be given."""
        return tuple(amount for amount in (self.flops, self.bytes) if isinstance(amount, str))

    def bind(self, parameters: Mapping[str, Value]) -> Work:
        """The same work in numbers."""
        return Work(
            flops=_evaluate_amount(self.flops, parameters, "work's flops"),
            bytes=_evaluate_amount(self.bytes, parameters, "work's bytes"),
        )


class _KernelParts(msgspec.Struct, frozen=True):
    source: str
    entry: str
    language: Language = "opencl"


class RawKernel(_KernelParts, frozen=True, kw_only=True):
    """A kernel in source form, ready to be compiled, checked and measured on a device.

    `source` is OpenCL C or CUDA C++ by `language`, `entry` the kernel's name in it; for CUDA it may be a name
    expression of a template, such as `"axpy<float>"`. `args` are its arguments in order. `grid` counts blocks
    (work-groups) and `block` threads (work-items), in one to three dimensions, so that an OpenCL global size
    is grid * block. `shared_bytes` is dynamic shared memory; an OpenCL kernel gets it as one more argument, a
    `__local` pointer, after `args`. `defines` are preprocessor definitions, `options` goes to the compiler as
    it is.

    Entries of `grid` and `block`, shapes, scalars, `shared_bytes` and `work` may be expressions over
    parameters and defines.

    `reference` says what is right: a callable, or `"module:function"`, that gets the arguments as NumPy
    arrays and scalars, before the launch, and returns the expected outputs: an array where there is one
    output, else a tuple in the arguments' order or a dict by argument name. It runs in the worker, once for
    each set of arguments. An element is right when it differs from the reference by at most `atol + rtol *
    abs(reference)`.

    InvalidKernel when the parts do not fit together.

    >>> kernel = RawKernel(
    ...     "kernel void twice(global float *y) { int i = get_global_id(0); y[i] = 2 * y[i]; }",
    ...     "twice",
    ...     args=[Array("N", fill=1, output=True)],
    ...     grid="N / BLOCK",
    ...     block="BLOCK",
    ...     defines={"N": 1024},
    ... )
    >>> bound = kernel.bind({"BLOCK": 64})
    >>> bound.grid, bound.block, bound.args[0].shape
    ((16,), (64,), (1024,))
    """

    args: tuple[Argument, ...] = ()
    grid: Size | tuple[Size, ...] = (1,)
    block: Size | tuple[Size, ...] = (1,)
    defines: dict[str, Value] = {}
    options: tuple[str, ...] = ()
    shared_bytes: Size = 0
    work: Work | None = None
    reference: Reference | None = None
    rtol: float = 1e-5
    atol: float = 1e-8
    name: str | None = None

    def __post_init__(self) -> None:
        try:
            self._normalise()
            self._check_source()
            self._check_parts()
        except InvalidKernel as error:
            if error.kernel is None:
                raise InvalidKernel(reason=error.reason, kernel=self.title) from error.__cause__
            raise

    def _normalise(self) -> None:
        force_setattr(self, "args", _as_tuple(self.args, "args"))
        force_setattr(self, "options", _as_tuple(self.options, "options"))
        force_setattr(self, "defines", dict(self.defines))
        for name in ("grid", "block"):
            force_setattr(self, name, _as_tuple(getattr(self, name), name))

    def _check_source(self) -> None:
        if self.language not in ("opencl", "cuda"):
            raise InvalidKernel(reason=f"language={self.language!r} is neither 'opencl' nor 'cuda'")
        if not isinstance(self.source, str) or not self.source.strip():
            raise InvalidKernel(reason="source is empty")
        function = self.entry.split("<", 1)[0].strip().rsplit("::", 1)[-1]
        if not is_identifier(function) or (self.language == "opencl" and function != self.entry):
            raise InvalidKernel(reason=f"entry={self.entry!r} is not a kernel's name")
        if not mentions(without_comments(self.source), function):
            raise InvalidKernel(reason=f"the source has no {function!r}, which is its entry")

    def _check_parts(self) -> None:
        for argument in self.args:
            if not isinstance(argument, Array | Scalar):
                raise InvalidKernel(reason=f"argument {argument!r} is neither an Array nor a Scalar")
        for option in self.options:
            if not isinstance(option, str):
                raise InvalidKernel(reason=f"option {option!r} is not text")
        for name in ("grid", "block"):
            _check_dimensions(getattr(self, name), name)
        _check_size(self.shared_bytes, "shared_bytes", least=0)
        self.definitions()
        if self.reference is not None:
            self._check_reference()
        if not (self.rtol >= 0 and self.atol >= 0):
            raise InvalidKernel(reason=f"rtol={self.rtol!r} and atol={self.atol!r} must not be negative")

    def _check_reference(self) -> None:
        if not any(isinstance(argument, Array) and argument.output for argument in self.args):
            raise InvalidKernel(reason="it has a reference, but none of its arguments is an output")
        if isinstance(self.reference, str):
            module, _, function = self.reference.partition(":")
            if not (function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
                raise InvalidKernel(
                    reason=f"reference={self.reference!r} is not of the form 'module:function'"
                )
        elif not callable(self.reference):
            raise InvalidKernel(
                reason=f"reference={self.reference!r} is neither a callable nor 'module:function'"
            )

    @property
    def title(self) -> str:
        """What errors and tables call it: its name, else its entry."""
        return self.name or self.entry

    @property
    def dimensions(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Grid and block in numbers. InvalidKernel where the kernel is not bound."""
        for extent in (*cast(tuple[Size, ...], self.grid), *cast(tuple[Size, ...], self.block)):
            if not isinstance(extent, int):
                raise InvalidKernel(
                    reason=f"{extent!r} has no value yet: bind its parameters", kernel=self.title
                )
        return cast(tuple[int, ...], self.grid), cast(tuple[int, ...], self.block)

    def expressions(self) -> Iterator[str]:
        """Each expression's text, wherever in the kernel it stands."""
        for size in (
            *cast(tuple[Size, ...], self.grid),
            *cast(tuple[Size, ...], self.block),
            self.shared_bytes,
        ):
            if isinstance(size, str):
                yield size
        for argument in self.args:
            yield from argument.expressions()
        if self.work is not None:
            yield from self.work.expressions()

    def definitions(self) -> tuple[str, ...]:
        """The defines as compiler options, in the order in which they were given."""
        try:
            return tuple(definition(name, value) for name, value in self.defines.items())
        except ValueError as error:
            raise InvalidKernel(reason=str(error), kernel=self.title) from None

    def bind(self, configuration: Mapping[str, Value]) -> RawKernel:
        """This kernel with `configuration` as its parameters' values: all are defines, all expressions
        numbers.

        A parameter replaces a define of the same name, so defines are also defaults. InvalidKernel where an
        expression reads a name that has no value, or gives one that cannot be (a grid of 0, an extent of
        2.5).

        >>> kernel = RawKernel("kernel void f() {}", "f", grid="N // B", block="B")
        >>> kernel.bind({"N": 64, "B": 16}).definitions()
        ('-DN=64', '-DB=16')
        """
        parameters = {**self.defines, **configuration}
        try:
            return replace(
                self,
                defines=parameters,
                args=tuple(argument.bind(parameters) for argument in self.args),
                grid=_evaluate_dimensions(self.grid, parameters, "grid"),
                block=_evaluate_dimensions(self.block, parameters, "block"),
                shared_bytes=_evaluate_size(self.shared_bytes, parameters, "shared_bytes", least=0),
                work=None if self.work is None else self.work.bind(parameters),
            )
        except InvalidKernel as error:
            raise InvalidKernel(reason=error.reason, kernel=self.title) from error.__cause__

    def unused_parameters(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of `names` that nothing in the kernel reads: not the source (comments aside), no expression,
        no option and no define's text. Their values cannot matter.

        >>> kernel = RawKernel("kernel void f() { /* UNROLL */ int x = TILE; }", "f", grid="N")
        >>> kernel.unused_parameters(["TILE", "N", "UNROLL"])
        ('UNROLL',)
        """
        code = without_comments(self.source)
        read = frozenset[str]().union(*(Expression.parse(text).names for text in self.expressions()))
        texts = (
            code,
            self.entry,
            *self.options,
            *(value for value in self.defines.values() if isinstance(value, str)),
        )
        return tuple(
            name for name in names if name not in read and not any(mentions(text, name) for text in texts)
        )

    def digest(self) -> str:
        """A SHA-256, in hex, of all that decides what runs: equal for kernels that compile and launch alike.

        The name, the reference and its tolerances are not part of it.
        """
        what_runs = (
            self.language,
            self.source,
            self.entry,
            self.args,
            self.grid,
            self.block,
            sorted(self.defines.items()),
            self.options,
            self.shared_bytes,
        )
        return hashlib.sha256(msgspec.json.encode(what_runs)).hexdigest()


def _as_tuple(value: Any, what: str) -> tuple[Any, ...]:
    if isinstance(value, int | str):
        return (value,)
    if not isinstance(value, Sequence):
        raise InvalidKernel(reason=f"{what} {value!r} is not a sequence")
    return tuple(value)


def _check_dtype(dtype: str) -> None:
    if dtype not in ITEM_BYTES:
        raise InvalidKernel(reason=f"dtype={dtype!r} is not one of {', '.join(ITEM_BYTES)}")


def _check_expression(text: str, what: str) -> None:
    try:
        Expression.parse(text)
    except InvalidExpression as error:
        raise InvalidKernel(reason=f"{what}: {error}") from error


def _check_size(size: Size, what: str, *, least: int) -> None:
    if isinstance(size, str):
        _check_expression(size, what)
    elif isinstance(size, bool) or not isinstance(size, int):
        raise InvalidKernel(reason=f"{what} {size!r} is neither a whole number nor an expression")
    elif size < least:
        raise InvalidKernel(reason=f"{what} is {size}, and must be at least {least}")


def _check_dimensions(sizes: tuple[Size, ...], what: str) -> None:
    if not 1 <= len(sizes) <= 3:
        raise InvalidKernel(reason=f"{what} has {len(sizes)} dimensions, and must have 1 to 3")
    for size in sizes:
        _check_size(size, what, least=1)


def _evaluate(text: str, parameters: Mapping[str, Value], what: str) -> Value:
    try:
        return Expression.parse(text).evaluate(parameters)
    except InvalidExpression as error:
        raise InvalidKernel(reason=f"{what}: {error}") from error


def _evaluate_size(size: Size, parameters: Mapping[str, Value], what: str, *, least: int) -> int:
    if not isinstance(size, str):
        return size
    value = _evaluate(size, parameters, what)
    # Python's own division gives 32.0 where the parameters divide evenly; that is the whole number 32.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidKernel(
            reason=f"{what} {size!r} is {value!r}, and must be a whole number of at least {least}"
        )
    return value


def _evaluate_dimensions(
    sizes: Size | tuple[Size, ...], parameters: Mapping[str, Value], what: str
) -> tuple[int, ...]:
    return tuple(_evaluate_size(size, parameters, what, least=1) for size in cast(tuple[Size, ...], sizes))


def _evaluate_amount(
    amount: int | float | str | None, parameters: Mapping[str, Value], what: str
) -> int | float | None:
    if not isinstance(amount, str):
        return amount
    value = _evaluate(amount, parameters, what)
    if isinstance(value, str) or not value > 0:
        raise InvalidKernel(reason=f"{what} {amount!r} is {value!r}, and must be a positive number")
    return value
