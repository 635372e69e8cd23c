"""Every error that tunewire raises, in one tree.

```
TunewireError
├── WireError                      a peer broke the protocol; its connection is over
│   └── TruncatedFrame             (EOFError) the stream ended inside a frame
├── EndpointClosed                 (EOFError) the peer is gone and owes no reply
├── EncodeError                    (TypeError) a value cannot be put on the wire
├── DecodeError                    (ValueError) bytes arrived whole, their value cannot be rebuilt
├── CallTimeout                    (TimeoutError) a limit of a call was reached
├── CallCancelled                  (RuntimeError) a call was cancelled; seen in an outcome only
├── WorkerCrashed                  (ChildProcessError) the process ended, or was lost, under a call
│   └── ServiceCrashed             a service's process, and all calls that were in flight in it
├── StartError                     (ChildProcessError) a child did not become ours
├── DeviceFault                    (RuntimeError) a device or its context can no longer be used
├── RemoteError                    (RuntimeError) an exception of the child that cannot be raised as itself
├── RemoteTraceback                the cause of an exception that came from a child: where it happened there
├── InvalidService                 (TypeError) a service's definition or implementation is not one
├── InvalidValue                   (TypeError) what came in or out of a service's method is not what it declares
├── ServiceClosed                  (RuntimeError) the connection to a service was closed before the call ended
├── PoolClosed                     (RuntimeError) the pool or worker was closed before the call ended
├── PoolSaturated                  (RuntimeError) the queue is full and the caller asked not to wait
├── NoSuchDevice                   (ValueError) a device that is not there, or a mask that names none
├── InvalidKernel                  (ValueError) a kernel whose parts do not fit together
├── InvalidExpression              (ValueError) an expression that is not of the permitted form
├── InvalidSpace                   (ValueError) a space that is empty or contradicts itself
├── CompileFailed                  (RuntimeError) a compiler refused the source
├── BrokenCompiler                 (RuntimeError) a device's own compiler can build nothing at all
├── WrongResult                    (AssertionError) a kernel ran and computed something else
└── MissingExtra                   (ImportError) an optional dependency is not installed
```

Each error also is the builtin in parentheses, so that code which knows nothing of tunewire catches what it
means to catch. An error is made from keyword data alone: the data are its attributes, the sentence is composed
from them, and both survive pickling together with the cause and the notes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

#: Control characters but tab and newline, and the format characters that turn the direction of text round: what a
#: terminal would obey.
_STEERING_CHARACTERS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"


def printable(text: str) -> str:
    r"""`text` with control characters shown and not obeyed: it came from a child, and may steer a terminal.

    >>> print(printable("\x1b[31mred"))
    \x1b[31mred
    """
    return re.sub(_STEERING_CHARACTERS, lambda found: ascii(found[0])[1:-1], text)


def encodable(text: str) -> str:
    r"""`text` without lone surrogates, which is what Python makes of bytes that are not UTF-8.

    >>> encodable("\udcff")
    '\\udcff'
    """
    # Unbound: a subclass of str may have an encode of its own.
    return str.encode(text, "utf-8", "backslashreplace").decode()


def compiler_error(log: str) -> str:
    """The line of a compiler's log that says what is wrong: the first with "error" in it, else the first at all.

    >>> compiler_error("In file included from x:\\nx.h:1: error: no such thing\\n1 error generated.")
    'x.h:1: error: no such thing'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no log")[:300]


def _rebuild(
    cls: type[TunewireError],
    args: tuple[Any, ...],
    data: dict[str, Any],
    chain: tuple[BaseException | None, bool],
) -> TunewireError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(data)
    # In this order: setting the cause, even to None, hides the context that an error is raised in.
    error.__cause__, error.__suppress_context__ = chain
    return error


class TunewireError(Exception):
    """The root of the tree. Never raised itself.

    >>> from tunewire.errors import CallTimeout
    >>> error = CallTimeout(phase="run", limit=0.5, device="cuda:0")
    >>> error.phase, error.limit
    ('run', 0.5)
    >>> isinstance(error, TimeoutError)
    True
    """

    #: What may help; appended to the sentence. Empty where nothing general can be said.
    advice: ClassVar[str] = ""

    def __init__(self, **data: Any) -> None:
        self.__dict__.update(data)
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        sentence = str(self.args[0]) if self.args else ""
        return f"{sentence} {self.advice}".rstrip()

    # BaseException.__reduce__ would call the constructor with the sentence as a positional argument, and drops
    # the cause: a process in the middle (a cluster, a test runner) would then lose what happened.
    def __reduce__(self) -> tuple[Any, ...]:
        chain = (self.__cause__, self.__suppress_context__)
        return _rebuild, (type(self), self.args, dict(self.__dict__), chain)


def _on(device: str | None) -> str:
    return "" if device is None else f" on {device}"


def _tail(label: str, text: str) -> str:
    text = text.strip()
    if not text:
        return ""
    last = text.splitlines()[-1]
    return f" {label}: {last[-200:]!r}."


class WireError(TunewireError):
    """A frame was malformed, larger than agreed, or not allowed at this moment. The process that sent it is ended.

    `reason` says what was wrong; `pid` is the peer's process and `device` what it is pinned to, where they are known.
    """

    reason: str
    pid: int | None
    device: str | None

    def __init__(self, *, reason: str, pid: int | None = None, device: str | None = None) -> None:
        super().__init__(reason=reason, pid=pid, device=device)

    def _sentence(self) -> str:
        who = "" if self.pid is None else f" by process {self.pid}"
        return f"protocol broken{who}{_on(self.device)}: {self.reason}."


class TruncatedFrame(WireError, EOFError):
    """The stream ended after `received` of the `expected` bytes of a frame: the peer died while it was writing."""

    received: int
    expected: int

    def __init__(self, *, received: int, expected: int, pid: int | None = None) -> None:
        TunewireError.__init__(self, received=received, expected=expected, pid=pid, device=None)

    def _sentence(self) -> str:
        who = "the peer" if self.pid is None else f"process {self.pid}"
        return f"{who} stopped in the middle of a frame, after {self.received} of {self.expected} bytes."


class EndpointClosed(TunewireError, EOFError):
    """The peer closed its side between two frames: nothing was cut, nothing more will come.

    `exit_code` is the child's (negative: the signal that ended it), or None where it is not known (yet).
    """

    exit_code: int | None
    stderr: str

    def __init__(self, *, exit_code: int | None = None, stderr: str = "") -> None:
        super().__init__(exit_code=exit_code, stderr=stderr)

    def _sentence(self) -> str:
        how = "" if self.exit_code is None else f" (exit code {self.exit_code})"
        return f"the other side closed the connection{how}.{_tail('Its last line on stderr', self.stderr)}"


class EncodeError(TunewireError, TypeError):
    """A value cannot be put on the wire. Nothing was sent.

    `what` names the part of the call, `path` the part of the object at fault (`args[1].callback`), `reason` the
    serializer's own words.
    """

    advice = "Pass plain data, or make the object inside the callable."
    what: str
    path: str
    reason: str

    def __init__(self, *, what: str, path: str = "", reason: str) -> None:
        super().__init__(what=what, path=path, reason=reason)

    def _sentence(self) -> str:
        at = f" at {self.path}" if self.path else ""
        return f"{self.what} cannot be sent{at}: {self.reason.rstrip('.')}."


class DecodeError(TunewireError, ValueError):
    """Bytes arrived whole, and their value cannot be rebuilt here. The connection is unhurt.

    `what` names the part of the call, `path` where in the value the trouble was found, `reason` the cause's words.
    """

    what: str
    path: str
    reason: str

    def __init__(self, *, what: str, path: str = "", reason: str) -> None:
        super().__init__(what=what, path=path, reason=reason)

    def _sentence(self) -> str:
        at = f" at {self.path}" if self.path else ""
        return f"{self.what} cannot be rebuilt{at}: {self.reason.rstrip('.')}."


class CallTimeout(TunewireError, TimeoutError):
    """A call reached one of its limits, and its process was ended.

    `phase` is the stage whose limit of `limit` seconds was reached: queue, start, init, compile, check or run.
    """

    phase: str
    limit: float
    device: str | None
    callable_name: str | None

    def __init__(
        self, *, phase: str, limit: float, device: str | None = None, callable_name: str | None = None
    ) -> None:
        super().__init__(phase=phase, limit=limit, device=device, callable_name=callable_name)

    def _sentence(self) -> str:
        name = self.callable_name or "the call"
        return (
            f"{name} was still in phase {self.phase!r}{_on(self.device)} after {self.limit:g} s, its limit."
        )


class CallCancelled(TunewireError, RuntimeError):
    """What an outcome of kind `cancelled` holds. The task that awaited the call sees its own CancelledError."""

    callable_name: str | None

    def __init__(self, *, callable_name: str | None = None) -> None:
        super().__init__(callable_name=callable_name)

    def _sentence(self) -> str:
        return f"{self.callable_name or 'the call'} was cancelled."


class WorkerCrashed(TunewireError, ChildProcessError):
    """The worker's process ended, or closed its channel, while the call was running.

    `exit_code` is what the process exited with, or None; `signal` the name of the signal that ended it, or None;
    `stderr` and `stdout` the tails of its output; `phase` the stage that it was in; `pid` the process. `arguments` are
    the call's in a few words, `uptime` is the process's age in seconds, `peak_bytes` its largest resident memory, where it
    is known.
    """

    exit_code: int | None
    signal: str | None
    stderr: str
    stdout: str
    phase: str
    device: str | None
    pid: int | None
    callable_name: str | None
    reason: str | None
    arguments: str
    uptime: float | None
    peak_bytes: int | None

    def __init__(
        self,
        *,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr: str = "",
        stdout: str = "",
        phase: str = "run",
        device: str | None = None,
        pid: int | None = None,
        callable_name: str | None = None,
        reason: str | None = None,
        arguments: str = "",
        uptime: float | None = None,
        peak_bytes: int | None = None,
    ) -> None:
        super().__init__(
            exit_code=exit_code,
            signal=signal,
            stderr=stderr,
            stdout=stdout,
            phase=phase,
            device=device,
            pid=pid,
            callable_name=callable_name,
            reason=reason,
            arguments=arguments,
            uptime=uptime,
            peak_bytes=peak_bytes,
        )

    def _sentence(self) -> str:
        name = f"{self.callable_name}{self.arguments}" if self.callable_name else "the call"
        process = "its process" if self.pid is None else f"its process {self.pid}"
        return (
            f"{process} {self.how}{_on(self.device)} while {name} was in phase {self.phase!r}."
            f"{_tail('Last line on stderr', self.stderr)}"
        )

    @property
    def how(self) -> str:
        """What became of the process, in some words: "was ended by SIGKILL"."""
        if self.reason is not None:
            return self.reason
        if self.signal is not None:
            return f"was ended by {self.signal}"
        if self.exit_code is not None:
            return f"exited with code {self.exit_code}"
        return "was lost"


class ServiceCrashed(WorkerCrashed):
    """A service's process ended, and every call in flight on its connection with it; a connection is not restarted.

    The attributes are those of WorkerCrashed, and `in_flight`, how many calls there were.
    """

    advice = "Connect again."
    in_flight: int

    def __init__(
        self,
        *,
        in_flight: int,
        exit_code: int | None = None,
        signal: str | None = None,
        stderr: str = "",
        stdout: str = "",
        phase: str = "run",
        device: str | None = None,
        pid: int | None = None,
        callable_name: str | None = None,
        reason: str | None = None,
        arguments: str = "",
        uptime: float | None = None,
        peak_bytes: int | None = None,
    ) -> None:
        self.in_flight = in_flight
        super().__init__(
            exit_code=exit_code,
            signal=signal,
            stderr=stderr,
            stdout=stdout,
            phase=phase,
            device=device,
            pid=pid,
            callable_name=callable_name,
            reason=reason,
            arguments=arguments,
            uptime=uptime,
            peak_bytes=peak_bytes,
        )

    def _sentence(self) -> str:
        others = self.in_flight - 1
        also = f" {others} other calls ended with it." if others > 0 else ""
        return f"{super()._sentence()}{also}"


class StartError(TunewireError, ChildProcessError):
    """A child process did not become a peer: it could not be run, ended early, or spoke something else.

    `command` is what was started, `reason` what went wrong, `exit_code` its end if it has ended, `output` the tail
    of what it wrote.
    """

    advice = "Run the command by hand to see what it prints."
    command: tuple[str, ...]
    reason: str
    exit_code: int | None
    output: str

    def __init__(
        self, *, command: Sequence[str], reason: str, exit_code: int | None = None, output: str = ""
    ) -> None:
        super().__init__(command=tuple(command), reason=reason, exit_code=exit_code, output=output)

    def _sentence(self) -> str:
        return f"{' '.join(self.command)!r} did not start: {self.reason}.{_tail('It wrote', self.output)}"


class DeviceFault(TunewireError, RuntimeError):
    """A device, or this process's context on it, can no longer be used. The worker's process is replaced."""

    reason: str
    device: str | None

    def __init__(self, *, reason: str, device: str | None = None) -> None:
        super().__init__(reason=reason, device=device)

    def _sentence(self) -> str:
        return f"device fault{_on(self.device)}: {self.reason.rstrip('.')}."


class RemoteError(TunewireError, RuntimeError):
    """An exception of the child that cannot be raised as itself here.

    Either its type cannot be rebuilt in this process, or raising it here would mean something else (SystemExit,
    KeyboardInterrupt, CancelledError, StopIteration and their like).
    """

    type_name: str
    message: str
    traceback_text: str

    def __init__(self, *, type_name: str, message: str, traceback_text: str = "") -> None:
        super().__init__(type_name=type_name, message=message, traceback_text=traceback_text)

    def _sentence(self) -> str:
        return printable(f"{self.type_name}: {self.message}" if self.message else self.type_name)


class RemoteTraceback(TunewireError):
    """Where an exception was raised in the child. It stands as the cause of the exception that is raised here, and has
    the exception's original cause as its own."""

    text: str

    def __init__(self, *, text: str) -> None:
        super().__init__(text=text)

    def _sentence(self) -> str:
        return f"\n{printable(self.text).rstrip()}"


class InvalidService(TunewireError, TypeError):
    """A definition that no service can have, or an implementation that does not fit its definition. `service` is the name
    of the definition, `reason` what is wrong."""

    service: str
    reason: str

    def __init__(self, *, service: str, reason: str) -> None:
        super().__init__(service=service, reason=reason)

    def _sentence(self) -> str:
        return f"service {self.service}: {self.reason.rstrip('.')}."


class InvalidValue(TunewireError, TypeError):
    """A value is not what the method of a service declares. An argument is refused before the method begins.

    `method` is the method (`Scale.scale`), `part` what of it ("argument", "result", "item" of its stream, "fed item", or
    "callback" and its name), `path` where in it, `reason` what was expected and what came.
    """

    method: str
    part: str
    path: str
    reason: str

    def __init__(self, *, method: str, part: str, path: str = "", reason: str) -> None:
        super().__init__(method=method, part=part, path=path, reason=reason)

    def _sentence(self) -> str:
        at = f" {self.path}" if self.path else ""
        return printable(f"{self.method}: {self.part}{at}: {self.reason.rstrip('.')}.")


class ServiceClosed(TunewireError, RuntimeError):
    """The connection to a service is not open (any more). `service` is the name of its definition, `reason` why, where it
    was not closed on this side; its cause is then how it ended."""

    service: str
    reason: str | None

    def __init__(self, *, service: str, reason: str | None = None) -> None:
        super().__init__(service=service, reason=reason)

    def _sentence(self) -> str:
        why = f": {self.reason.rstrip('.')}" if self.reason else ""
        return f"the connection to service {self.service} is not open{why}."


class PoolClosed(TunewireError, RuntimeError):
    """The pool or worker was closed, or failed, before the call had an outcome. `reason` says which."""

    reason: str

    def __init__(self, *, reason: str = "it was closed") -> None:
        super().__init__(reason=reason)

    def _sentence(self) -> str:
        return f"the pool does not run this call: {self.reason}."


class PoolSaturated(TunewireError, RuntimeError):
    """The queue holds `max_pending` calls already, and the pool was opened with `when_full="raise"`."""

    advice = "Wait for some to end, or open the pool with when_full='wait'."
    max_pending: int

    def __init__(self, *, max_pending: int) -> None:
        super().__init__(max_pending=max_pending)

    def _sentence(self) -> str:
        return f"{self.max_pending} calls are waiting already, the most that this pool holds."


class NoSuchDevice(TunewireError, ValueError):
    """`device` names no device that may be used here; `available` lists those that may."""

    device: str
    available: tuple[str, ...]
    reason: str | None

    def __init__(self, *, device: str, available: Sequence[str] = (), reason: str | None = None) -> None:
        super().__init__(device=device, available=tuple(available), reason=reason)

    def _sentence(self) -> str:
        there = f" There is: {', '.join(self.available)}." if self.available else ""
        why = f" ({self.reason.rstrip('.')})" if self.reason else ""
        return f"no device {self.device!r} to be used here{why}.{there}"


class InvalidKernel(TunewireError, ValueError):
    """The parts of a kernel do not fit together; nothing was compiled."""

    reason: str
    kernel: str | None

    def __init__(self, *, reason: str, kernel: str | None = None) -> None:
        super().__init__(reason=reason, kernel=kernel)

    def _sentence(self) -> str:
        who = "kernel" if self.kernel is None else f"kernel {self.kernel!r}"
        return f"{who}: {self.reason.rstrip('.')}."


class InvalidExpression(TunewireError, ValueError):
    """An expression over parameters is not of the permitted form; it was not evaluated."""

    text: str
    reason: str

    def __init__(self, *, text: str, reason: str) -> None:
        super().__init__(text=text, reason=reason)

    def _sentence(self) -> str:
        return f"expression {self.text!r}: {self.reason.rstrip('.')}."


class InvalidSpace(TunewireError, ValueError):
    """A space of configurations is empty, or its parts contradict each other."""

    reason: str

    def __init__(self, *, reason: str) -> None:
        super().__init__(reason=reason)

    def _sentence(self) -> str:
        return f"space: {self.reason.rstrip('.')}."


class CompileFailed(TunewireError, RuntimeError):
    """The compiler refused the kernel. `log` is what it said, `options` what it was given."""

    log: str
    kernel: str | None
    device: str | None
    options: tuple[str, ...]

    def __init__(
        self, *, log: str, kernel: str | None = None, device: str | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(log=log, kernel=kernel, device=device, options=tuple(options))

    def _sentence(self) -> str:
        who = "the kernel" if self.kernel is None else f"kernel {self.kernel!r}"
        return f"{who} does not compile{_on(self.device)}: {compiler_error(self.log)}"


class BrokenCompiler(TunewireError, RuntimeError):
    """A device's own compiler cannot build even a trivial program, so no kernel is at fault, and none can be measured
    there.

    `reason` is what the compiler said, `name` the device's, `driver` its platform and version. PoCL is known for it: a
    release can only compile for processors that its LLVM knows.
    """

    device: str
    reason: str
    name: str | None
    driver: str | None

    def __init__(
        self, *, device: str, reason: str, name: str | None = None, driver: str | None = None
    ) -> None:
        super().__init__(device=device, reason=reason, name=name, driver=driver)

    def _sentence(self) -> str:
        details = ", ".join(each for each in (self.name, self.driver) if each)
        which = f"{self.device} ({details})" if details else self.device
        return (
            f"the compiler of {which} cannot build even a trivial program, so this says nothing about a kernel: "
            f"{self.reason.rstrip('.')}. {self._remedy()}, and see with `tunewire devices` which devices work."
        )

    def _remedy(self) -> str:
        if self.driver is not None and not self.driver.startswith("Portable Computing Language"):
            return "Repair or update that OpenCL runtime, or install another"
        return (
            "Install an OpenCL runtime that knows this processor (Debian, Ubuntu: `apt install pocl-opencl-icd`; "
            "elsewhere `conda install -c conda-forge pocl`, or its vendor's)"
        )


class WrongResult(TunewireError, AssertionError):
    """The kernel ran, and what it wrote differs from the reference by more than the tolerance.

    `argument` names the output; `mismatched` of `total` elements differ; the worst differences are absolute (in the
    output's unit) and relative to the reference.
    """

    argument: str
    mismatched: int
    total: int
    worst_absolute: float
    worst_relative: float
    rtol: float
    atol: float
    device: str | None

    def __init__(
        self,
        *,
        argument: str,
        mismatched: int,
        total: int,
        worst_absolute: float,
        worst_relative: float,
        rtol: float,
        atol: float,
        device: str | None = None,
    ) -> None:
        super().__init__(
            argument=argument,
            mismatched=mismatched,
            total=total,
            worst_absolute=worst_absolute,
            worst_relative=worst_relative,
            rtol=rtol,
            atol=atol,
            device=device,
        )

    def _sentence(self) -> str:
        return (
            f"wrong result in {self.argument}{_on(self.device)}: {self.mismatched} of {self.total} elements differ "
            f"from the reference (worst: absolute {self.worst_absolute:.3g}, relative {self.worst_relative:.3g}; "
            f"allowed: atol {self.atol:g}, rtol {self.rtol:g})."
        )


class MissingExtra(TunewireError, ImportError):
    """Something needs an optional dependency that is not installed."""

    package: str
    extra: str

    def __init__(self, *, package: str, extra: str) -> None:
        super().__init__(package=package, extra=extra)

    def _sentence(self) -> str:
        return f"{self.package} is not installed: pip install 'tunewire[{self.extra}]'."
