"""The commands, their options, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from tunewire.cli import bench, devices, tune
from tunewire.cli.exits import BAD_INPUT, NOTHING, OK, BadInput, complain
from tunewire.errors import (
    InvalidExpression,
    InvalidKernel,
    InvalidSpace,
    MissingExtra,
    NoSuchDevice,
    TunewireError,
)
from tunewire.version import __version__
from tunewire.workers.limits import MAX_SECONDS

__all__ = ["run"]

app = App(
    name="tunewire",
    version=__version__,
    suppress_keyboard_interrupt=False,  # `run` says what was interrupted
    help="Find the fastest configuration of a kernel. One that crashes, hangs or is wrong costs itself alone.",
)

File = Annotated[
    str, Parameter(name="FILE[:NAME]", help="A Python file, and which of the tunables in it.", negative=())
]
Devices = Annotated[
    list[str],
    Parameter(
        name="--device",
        help="A device id, such as opencl:0; may be repeated. All like the first that suits, where none is named.",
        negative=(),
        show_default=False,
    ),
]
Timeout = Annotated[
    float,
    Parameter(
        help="Seconds for a configuration's check, and again for its measurement; the file's, or 10.",
        validator=Number(gt=0, lte=MAX_SECONDS),
    ),
]
Json = Annotated[
    bool,
    Parameter(
        name="--json", help="One JSON document on stdout instead of text.", negative=(), show_default=False
    ),
]


@app.command(name="tune")
def tune_command(
    file: File,
    /,
    *,
    device: Devices = [],  # noqa: B006 - cyclopts makes no use of the default but to show it
    strategy: Annotated[
        Literal["exhaustive", "random"], Parameter(help="In which order the space is searched.")
    ] = "exhaustive",
    max_trials: Annotated[
        int | None, Parameter(help="Stop after so many configurations.", validator=Number(gte=1))
    ] = None,
    seed: Annotated[int, Parameter(help="Decides the order of a random search.")] = 0,
    timeout: Timeout | None = None,
    top: Annotated[int, Parameter(help="How many configurations to print.", validator=Number(gte=1))] = 10,
    output: Annotated[Path | None, Parameter(help="Write the result, all samples included, as JSON.")] = None,
    svg: Annotated[Path | None, Parameter(help="Write what is printed as a picture, too.")] = None,
    json: Json = False,
) -> int:
    """Search a space for the fastest configuration of a kernel.

    Exit code 0 where at least one configuration was measured, 1 where none could be, 2 for bad input. Ctrl-C ends the
    search and keeps what was measured.
    """
    return tune.run(
        file,
        tune.Options(
            devices=tuple(device),
            strategy=strategy,
            max_trials=max_trials,
            seed=seed,
            timeout=timeout,
            top=top,
            output=output,
            svg=svg,
            json=json,
        ),
    )


@app.command(name="bench")
def bench_command(
    file: File,
    /,
    *,
    device: Annotated[str | None, Parameter(help="A device id, such as opencl:0.")] = None,
    set: Annotated[
        list[str],
        Parameter(
            name="--set",
            help="NAME=VALUE: a parameter that differs from the default.",
            negative=(),
            show_default=False,
        ),
    ] = [],  # noqa: B006
    timeout: Timeout | None = None,
    json: Json = False,
) -> int:
    """Measure one configuration of a kernel: the default one, but for what is set."""
    return bench.run(file, device=device, settings=tuple(set), timeout=timeout, as_json=json)


@app.command(name="devices")
def devices_command(*, json: Json = False) -> int:
    """List the devices of this machine."""
    return devices.run(as_json=json)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    if sys.stdout is None:  # it was closed by whoever started this
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - it stays open to the end
    try:
        code = _run(arguments)
        sys.stdout.flush()  # here, where what fails can be told, and not at the interpreter's end
    except BrokenPipeError:
        # Whoever read our stdout has gone; the interpreter must not try to flush it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOTHING
    except OSError as error:
        complain(f"stdout: {error}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOTHING
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        code = app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except (CycloptsError, BadInput) as error:
        complain(error)
        return BAD_INPUT
    except (InvalidExpression, InvalidKernel, InvalidSpace, MissingExtra, NoSuchDevice) as error:
        complain(error)
        return BAD_INPUT
    except TunewireError as error:
        complain(error)
        return NOTHING
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    return code if isinstance(code, int) else OK
