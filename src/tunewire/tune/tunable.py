"""A kernel with its space, as a file defines it for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunewire.bench import RawKernel
from tunewire.bench.expressions import Value
from tunewire.bench.kernel import Language
from tunewire.errors import InvalidKernel
from tunewire.tune.configuration import Configuration
from tunewire.tune.space import Space
from tunewire.workers.limits import check_seconds

__all__ = ["Tunable", "check_parameters"]


class Tunable:
    """What `tunewire tune FILE` looks for in a file: a kernel and the space that it is tuned over.

    `kernel` may be several, one for each language, the preferred first: the same kernel for different devices.
    `default` is the configuration to beat, the space's first where none is given; it is measured before any other.
    `timeout` is as for `tune`.

    InvalidKernel where a parameter is read by nothing in a kernel, or two kernels are in one language; InvalidSpace
    where the default is not in the space.

    >>> from tunewire.bench import RawKernel
    >>> kernel = RawKernel("kernel void f() { int tile[TILE]; }", "f")
    >>> tunable = Tunable(kernel, Space({"TILE": [8, 16]}), default={"TILE": 16})
    >>> tunable.default, tunable.languages
    (Configuration({'TILE': 16}), ('opencl',))
    """

    def __init__(
        self,
        kernel: RawKernel | Sequence[RawKernel],
        space: Space,
        *,
        default: Mapping[str, Value] | None = None,
        timeout: float | None = None,
    ) -> None:
        self.kernels = (kernel,) if isinstance(kernel, RawKernel) else tuple(kernel)
        if not all(isinstance(each, RawKernel) for each in self.kernels):
            raise TypeError("a tunable is made of a RawKernel, or one for each language")
        if not isinstance(space, Space):
            raise TypeError(f"the space is a tunewire.tune.Space, not {type(space).__name__}: Space({{...}})")
        check_seconds("timeout", timeout)
        self.space = space
        self.default: Configuration = space.first if default is None else space.validate(default)
        self.timeout = timeout
        if not self.kernels:
            raise InvalidKernel(reason="a tunable needs at least one kernel")
        if len(set(self.languages)) < len(self.languages):
            raise InvalidKernel(reason="of its kernels, two are in one language", kernel=self.title)
        for each in self.kernels:
            check_parameters(each, space)

    @property
    def languages(self) -> tuple[Language, ...]:
        """The languages that the kernel is written in, the preferred first."""
        return tuple(kernel.language for kernel in self.kernels)

    @property
    def title(self) -> str:
        """The kernel's name."""
        return self.kernels[0].title

    def kernel_in(self, language: str) -> RawKernel | None:
        """The kernel in that language, if there is one."""
        return next((kernel for kernel in self.kernels if kernel.language == language), None)

    def __repr__(self) -> str:
        return f"<Tunable {self.title!r} in {', '.join(self.languages)} over {self.space!r}>"


def check_parameters(kernel: RawKernel, space: Space) -> None:
    """InvalidKernel where a parameter of the space is read by nothing in the kernel: its values cannot matter."""
    if unused := kernel.unused_parameters(space.names):
        names = ", ".join(map(repr, unused))
        word = "parameter" if len(unused) == 1 else "parameters"
        raise InvalidKernel(
            reason=f"its source never uses the {word} {names}, nor does an expression of it",
            kernel=kernel.title,
        )
