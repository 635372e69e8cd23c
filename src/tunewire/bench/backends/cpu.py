"""Python callables, and C functions bound through ctypes, on the host's CPU; wall time from perf_counter_ns.

A sample is the time of a loop of calls, the loop's own cost (some 20 ns a call) included. The clock's
resolution is measured and not asked for: the system reports 1 ns, while two consecutive readings are never
less than some 40 ns apart, and that is the shortest time that can be told from none.

Not known here: what else ran on the machine meanwhile. A garbage collection in the callable's time is its
time.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise, repeat
from typing import Any

from tunewire.bench.cfunction import CFunction
from tunewire.bench.kernel import Array
from tunewire.bench.procedure import DeviceFacts

__all__ = ["CpuBackend"]

# Taken here, before a candidate is unpickled: a candidate that replaces time.perf_counter_ns changes its own
# clock.
_now_ns = time.perf_counter_ns


@cache
def clock_resolution_ns() -> float:
    """The smallest difference of two readings that differ, over a thousand of them."""
    readings = [_now_ns() for _ in range(1000)]
    return float(min(later - earlier for earlier, later in pairwise(readings) if later > earlier))


class CpuBackend:
    """A callable on this process's CPU; see `tunewire.bench.procedure.Backend`."""

    compiles = False

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._call: Callable[[], Any] | None = None
        self._values: list[Any] = []
        self._initial_outputs: list[tuple[Any, Any]] = []

    @property
    def facts(self) -> DeviceFacts:
        """The clock and the interpreter."""
        return DeviceFacts(
            device="cpu",
            backend="cpu",
            clock="perf_counter_ns",
            resolution_ns=clock_resolution_ns(),
            library=f"{platform.python_implementation()} {platform.python_version()}",
        )

    def compile(self) -> None:
        """Nothing to build."""

    def unload(self) -> None:
        """Nothing was built."""

    def allocate(self, values: Sequence[Any]) -> None:
        """Copies of the arrays that are described, so that the callable may write them; and the call
        itself."""
        described = [*self._args, *self._kwargs.values()]
        self._values = [
            value.copy() if isinstance(argument, Array) else value
            for argument, value in zip(described, values, strict=True)
        ]
        self._initial_outputs = [
            (mine, initial)
            for argument, mine, initial in zip(described, self._values, values, strict=True)
            if isinstance(argument, Array) and argument.output
        ]
        args, kwargs = self._values[: len(self._args)], self._values[len(self._args) :]
        if isinstance(self._function, CFunction):
            self._call = self._function.bind(args)
        else:
            self._call = partial(self._function, *args, **dict(zip(self._kwargs, kwargs, strict=True)))

    def free(self) -> None:
        """Drop the arrays."""
        self._call = None
        self._values = []
        self._initial_outputs = []

    def poison(self) -> None:
        """Give the outputs their initial content."""
        for mine, initial in self._initial_outputs:
            mine[...] = initial

    def launch(self, launches: int) -> float:
        """Call that many times; wall time in ns."""
        call = self._call
        assert call is not None
        begin = _now_ns()
        for _ in repeat(None, launches):
            call()
        return float(_now_ns() - begin)

    def outputs(self) -> list[Any]:
        """The outputs themselves."""
        return [mine for mine, _ in self._initial_outputs]

    def device_work(self) -> bool | None:
        """Nothing is launched on a device."""
        return None
