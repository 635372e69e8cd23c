"""Kernels in OpenCL C, through PyOpenCL: one command queue with profiling, times from its events.

A sample is the end of the last launch minus the start of the first, from CL_PROFILING_COMMAND_START and _END:
the device's own clock, without the time that a command waited in the host's queue. With one launch per sample
that is the kernel alone; with more, the gaps between launches count too.

Translation. A driver may translate a kernel to machine code as late as its first launch, once its work-group
size is known: PoCL does. `compile_s` is then the front end's time, and the rest passes during the first
launch, before its START, so it is in no sample and under the limit of the check.

Caches. PyOpenCL's own cache of programs is switched off: it leaves a file behind for each build that fails,
and the drivers that matter here cache by themselves. The driver's cache is left as the user has it: PoCL
keeps translated kernels under ~/.cache/pocl (POCL_CACHE_DIR moves it, POCL_KERNEL_CACHE=0 does without it).
So building a kernel a second time is quick there, and a compile limit that one run reached may not be reached
by the next.

Errors. A build that fails is CompileFailed with the log, unless the device cannot build a trivial program either:
then it is BrokenCompiler. That is asked at a process's first build that fails, once for its device, and not before it:
so it costs a device that works nothing, and is in no measurement. A launch that the device refuses is InvalidKernel;
memory that is not there is MemoryError. After any other error a probe decides, not the error's text: if a
buffer can still be written and read back, the context lives and the kernel is to blame; else it is a
DeviceFault. On PoCL the kernel runs in this process, so a wild write is not an error but a crash.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

# PyOpenCL reads this once, at its import. See "Caches" above.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")
import pyopencl as cl

from tunewire.bench.kernel import Array, RawKernel
from tunewire.bench.procedure import DeviceFacts
from tunewire.devices.identifiers import parse
from tunewire.devices.probe import build_problem, opencl_devices, opencl_driver
from tunewire.errors import BrokenCompiler, CompileFailed, DeviceFault, InvalidKernel, NoSuchDevice

__all__ = ["OpenCLBackend"]

# Taken here, before a candidate runs in this process.
_enqueue = cl.enqueue_nd_range_kernel
_copy = cl.enqueue_copy
_wait = cl.wait_for_events

_POCL_COPY = re.compile(r"\S*/tempfile_\w+\.cl")

_BUILD_ERRORS = frozenset(
    {
        cl.status_code.BUILD_PROGRAM_FAILURE,
        cl.status_code.COMPILE_PROGRAM_FAILURE,
        cl.status_code.LINK_PROGRAM_FAILURE,
        cl.status_code.INVALID_BUILD_OPTIONS,
        cl.status_code.INVALID_COMPILER_OPTIONS,
        cl.status_code.COMPILER_NOT_AVAILABLE,
    }
)
_MEMORY_ERRORS = frozenset(
    {
        cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
        cl.status_code.OUT_OF_HOST_MEMORY,
        cl.status_code.INVALID_BUFFER_SIZE,
    }
)


# The types whose names OpenCL C fixes. A scalar for any other (a typedef, a vector) is checked by its size
# only.
_SCALAR_TYPES = {
    "char": ("int8", "bool"),
    "uchar": ("uint8", "bool"),
    "short": ("int16",),
    "ushort": ("uint16",),
    "int": ("int32",),
    "uint": ("uint32",),
    "long": ("int64",),
    "ulong": ("uint64",),
    "half": ("float16",),
    "float": ("float32",),
    "double": ("float64",),
}
_SPACES = {
    cl.kernel_arg_address_qualifier.GLOBAL: "global",
    cl.kernel_arg_address_qualifier.CONSTANT: "constant",
    cl.kernel_arg_address_qualifier.LOCAL: "local",
    cl.kernel_arg_address_qualifier.PRIVATE: "private",
}
#: Stands for the `__local` pointer that a kernel with shared memory gets after its arguments.
_LOCAL = object()


class _Session(NamedTuple):
    """What a process holds of one device for as long as it lives."""

    device: Any
    context: Any
    queue: Any


@cache
def _open(device: str) -> _Session:
    devices, problems = opencl_devices()
    number = parse(device).number
    if number >= len(devices):
        available = [f"opencl:{n}" for n in range(len(devices))]
        raise NoSuchDevice(device=device, available=available, reason="; ".join(problems) or None)
    context = cl.Context([devices[number]])
    queue = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    return _Session(devices[number], context, queue)


@cache
def _compiler_problem(device: str) -> str | None:
    return build_problem(_open(device).device)


class OpenCLBackend:
    """A bound kernel on one OpenCL device; see `tunewire.bench.procedure.Backend`."""

    compiles = True

    def __init__(self, kernel: RawKernel, device: str) -> None:
        self._kernel = kernel
        self._name = device
        with self._errors():
            self._session = _open(device)
        self._program: Any = None
        self._function: Any = None
        self._buffers: list[Any] = []
        self._initial_outputs: list[tuple[Any, Any]] = []
        grid, block = kernel.dimensions
        dimensions = max(len(grid), len(block))
        self._local = (*block, 1, 1)[:dimensions]
        self._global = tuple(g * b for g, b in zip((*grid, 1, 1)[:dimensions], self._local, strict=True))

    @property
    def facts(self) -> DeviceFacts:
        """The device's clock and versions."""
        device = self._session.device
        return DeviceFacts(
            device=self._name,
            backend="opencl",
            clock="opencl profiling events",
            resolution_ns=float(device.profiling_timer_resolution),
            driver=opencl_driver(device),
            library=f"PyOpenCL {cl.VERSION_TEXT}",
        )

    def compile(self) -> None:
        """Build the program for this device and find the entry in it."""
        options = ["-cl-kernel-arg-info", *self._kernel.definitions(), *self._kernel.options]
        with self._errors():
            program = cl.Program(self._session.context, self._kernel.source)
            self._program = program
            self._build(program, options)
            self._function = self._find_entry(program)

    def _build(self, program: Any, options: Sequence[str]) -> None:
        try:
            with warnings.catch_warnings():
                # A compiler that has something to say of a good program is no news, a thousand times over.
                warnings.simplefilter("ignore", cl.CompilerWarning)
                program.build(list(options), devices=[self._session.device])
        except cl.Error as error:
            if error.code in _BUILD_ERRORS:
                raise self._to_blame(program, error, options) from error
            raise

    def _find_entry(self, program: Any) -> Any:
        names = program.get_info(cl.program_info.KERNEL_NAMES).split(";")
        if self._kernel.entry not in names:
            there = ", ".join(name for name in names if name) or "none"
            reason = f"the source compiles, and has no kernel {self._kernel.entry!r} (there is: {there})"
            raise InvalidKernel(reason=reason, kernel=self._kernel.title)
        function = cl.Kernel(program, self._kernel.entry)
        self._check_signature(function)
        return function

    def _check_signature(self, function: Any) -> None:
        """Compare the kernel's own parameters with the arguments, as far as the driver tells of them.

        A pointer passed for a number of the same size, or a float for an int, is not an error to OpenCL: it
        is a crash or a wrong result later.
        """
        arguments: list[Any] = [*self._kernel.args, *([_LOCAL] if self._kernel.shared_bytes else [])]
        wanted = function.get_info(cl.kernel_info.NUM_ARGS)
        if wanted != len(arguments):
            local = " (its local memory is one)" if self._kernel.shared_bytes else ""
            reason = f"{self._kernel.entry} takes {wanted} arguments, and {len(arguments)} are given{local}"
            raise InvalidKernel(reason=reason, kernel=self._kernel.title)
        for position, argument in enumerate(arguments):
            parameter = _parameter(function, position)
            if parameter is not None and not _fits(argument, *parameter):
                given = (
                    "local memory" if argument is _LOCAL else f"{type(argument).__name__} of {argument.dtype}"
                )
                reason = f"argument {position} of {self._kernel.entry} is {' '.join(parameter)}, not {given}"
                raise InvalidKernel(reason=reason, kernel=self._kernel.title)

    def _to_blame(self, program: Any, error: Any, options: Sequence[str]) -> BrokenCompiler | CompileFailed:
        problem = _compiler_problem(self._name)
        if problem is None:
            return self._compile_failed(program, error, options)
        device = self._session.device
        return BrokenCompiler(
            device=self._name, reason=problem, name=device.name, driver=opencl_driver(device)
        )

    def _compile_failed(self, program: Any, error: Any, options: Sequence[str]) -> CompileFailed:
        log = program.get_build_info(self._session.device, cl.program_build_info.LOG).strip()
        # PoCL compiles a temporary copy, whose place on this machine tells nothing.
        log = _POCL_COPY.sub(f"{self._kernel.entry}.cl", log)
        return CompileFailed(
            log=log or str(error), kernel=self._kernel.title, device=self._name, options=tuple(options)
        )

    def unload(self) -> None:
        """Give up the program; PyOpenCL releases it with its last reference."""
        self._function = None
        self._program = None

    def allocate(self, values: Sequence[Any]) -> None:
        """A buffer for each array, with its content where it is an input, and the kernel's arguments set."""
        with self._errors():
            arguments = [self._argument(a, value) for a, value in zip(self._kernel.args, values, strict=True)]
            if self._kernel.shared_bytes:
                arguments.append(cl.LocalMemory(int(self._kernel.shared_bytes)))
            self._set_arguments(arguments)
            self._session.queue.finish()

    def _argument(self, argument: Any, value: Any) -> Any:
        if not isinstance(argument, Array):
            # A bool scalar has no size that OpenCL defines; kernels take a char or an int in its place.
            return value.astype(np.uint8) if value.dtype.kind == "b" else value
        buffer = cl.Buffer(self._session.context, cl.mem_flags.READ_WRITE, value.nbytes)
        self._buffers.append(buffer)
        if argument.output:
            self._initial_outputs.append((buffer, value))
        else:
            _copy(self._session.queue, buffer, value)
        return buffer

    def _set_arguments(self, arguments: Sequence[Any]) -> None:
        for position, argument in enumerate(arguments):
            try:
                self._function.set_arg(position, argument)
            except cl.Error as error:
                reason = f"argument {position} of {self._kernel.entry} is refused: {_first_line(error)}"
                raise InvalidKernel(reason=reason, kernel=self._kernel.title) from error

    def free(self) -> None:
        """Release the buffers now, not when the collector finds them."""
        self._initial_outputs.clear()
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            buffer.release()

    def poison(self) -> None:
        """Write each output's initial content."""
        with self._errors():
            for buffer, value in self._initial_outputs:
                _copy(self._session.queue, buffer, value)
            self._session.queue.finish()

    def launch(self, launches: int) -> float:
        """Launch and wait; device time in ns."""
        queue, function, global_size, local_size = (
            self._session.queue,
            self._function,
            self._global,
            self._local,
        )
        with self._errors():
            first = last = _enqueue(queue, function, global_size, local_size)
            for _ in range(launches - 1):
                last = _enqueue(queue, function, global_size, local_size)
            _wait([last])
            return float(last.profile.end - first.profile.start)

    def outputs(self) -> list[Any]:
        """Each output, downloaded."""
        with self._errors():
            downloaded = []
            for buffer, initial in self._initial_outputs:
                host = np.empty_like(initial)
                _copy(self._session.queue, host, buffer)
                downloaded.append(host)
            return downloaded

    def device_work(self) -> bool | None:
        """Not looked into: a kernel's launch is device work by its nature."""
        return None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """The seam where PyOpenCL's errors become ours."""
        try:
            yield
        except cl.Error as error:
            raise self._translated(error) from error

    def _translated(self, error: Any) -> Exception:
        text = _first_line(error)
        if error.code in _MEMORY_ERRORS:
            return MemoryError(f"{self._name} has not the memory for kernel {self._kernel.title!r}: {text}")
        if self._lives():
            return InvalidKernel(reason=f"{self._name} refuses it: {text}", kernel=self._kernel.title)
        return DeviceFault(reason=text, device=self._name)

    def _lives(self) -> bool:
        sent = np.arange(4, dtype=np.int32)
        received = np.zeros_like(sent)
        try:
            session = _open(self._name)
            buffer = cl.Buffer(session.context, cl.mem_flags.READ_WRITE, sent.nbytes)
            _copy(session.queue, buffer, sent)
            _copy(session.queue, received, buffer)
            buffer.release()
        except cl.Error:
            return False
        return bool((sent == received).all())


def _parameter(function: Any, position: int) -> tuple[str, str] | None:
    """A parameter's address space and type name; None where the driver does not tell."""
    try:
        space = function.get_arg_info(position, cl.kernel_arg_info.ADDRESS_QUALIFIER)
        name = function.get_arg_info(position, cl.kernel_arg_info.TYPE_NAME)
    except cl.Error:
        return None
    return _SPACES[space], name


def _fits(argument: Any, space: str, type_name: str) -> bool:
    if argument is _LOCAL:
        return space == "local"
    if isinstance(argument, Array):
        return space in ("global", "constant")
    return space == "private" and argument.dtype in _SCALAR_TYPES.get(type_name, (argument.dtype,))


def _first_line(error: Any) -> str:
    return str(error).strip().splitlines()[0]
