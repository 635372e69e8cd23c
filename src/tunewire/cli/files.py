"""The kernel that `FILE[:NAME]` names: a Python file is run in this process, and looked through.

It is run as a script would be, its folder first on the module path, but not as `__main__`, so that a guarded main
part does not run. What it prints goes to stderr: stdout is the command's. Its functions travel to workers by value:
no worker can import this file by a name that is sure to mean it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

import cloudpickle

from tunewire.bench import RawKernel
from tunewire.cli.exits import BadInput
from tunewire.tune import Tunable

__all__ = ["load_kernel", "load_tunable"]


def load_tunable(where: str) -> Tunable:
    """The Tunable at `FILE[:NAME]`; BadInput, in one sentence, for everything that can be wrong there."""
    file, name = _parts(where)
    found = _named(_loaded(file), file, name, Tunable)
    assert isinstance(found, Tunable)
    return found


def load_kernel(where: str) -> Tunable | RawKernel:
    """The Tunable or, where the file has none or it is the one named, the RawKernel at `FILE[:NAME]`."""
    file, name = _parts(where)
    module = _loaded(file)
    kinds = (Tunable, RawKernel) if name or not _of_kind(module, Tunable) else (Tunable,)
    found = _named(module, file, name, *kinds)
    assert isinstance(found, Tunable | RawKernel)
    return found


def _parts(where: str) -> tuple[Path, str | None]:
    file, colon, name = where.rpartition(":")
    if colon and name.isidentifier() and not Path(where).exists():
        return Path(file), name
    return Path(where), None


def _loaded(file: Path) -> ModuleType:
    if not file.exists():
        raise BadInput(f"there is no file {str(file)!r}")
    if not file.is_file():
        raise BadInput(f"{str(file)!r} is not a file")
    path = file.resolve()
    module = ModuleType(f"tunewire_file_{path.stem}")
    module.__file__ = str(path)
    sys.path.insert(0, str(path.parent))
    sys.modules[module.__name__] = module  # dataclasses look their module up while it runs
    try:
        with contextlib.redirect_stdout(sys.stderr):
            exec(compile(path.read_bytes(), str(path), "exec"), vars(module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = _line_in(str(path), error)
        raise BadInput(f"{file}{where}: {type(error).__name__}: {_sentence(error)}") from error
    cloudpickle.register_pickle_by_value(module)
    return module


def _sentence(error: BaseException) -> str:
    return str(error.msg if isinstance(error, SyntaxError) else error)


def _line_in(path: str, error: BaseException) -> str:
    """Where in the file the error came from: the innermost line of it that was running, or that cannot be parsed."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""


def _of_kind(module: ModuleType, *kinds: type) -> dict[str, object]:
    """What the module defines of these kinds, by name; of one thing with several names, the first."""
    found: dict[str, object] = {}
    for name, value in vars(module).items():
        if isinstance(value, kinds) and not any(value is other for other in found.values()):
            found[name] = value
    return found


def _named(module: ModuleType, file: Path, name: str | None, *kinds: type) -> object:
    known = _of_kind(module, *kinds)
    words = " or ".join(kind.__name__ for kind in kinds)
    if name is not None:
        if not hasattr(module, name):
            raise BadInput(f"{file} has no {name!r}{_there_is(known)}")
        value = getattr(module, name)
        if not isinstance(value, kinds):
            raise BadInput(
                f"{name!r} in {file} is of type {type(value).__name__}, not {words}{_there_is(known)}"
            )
        return value
    if not known:
        raise BadInput(f"{file} defines no {words}")
    if len(known) > 1:
        raise BadInput(
            f"{file} defines several: say which, as in {file}:{next(iter(known))}{_there_is(known)}"
        )
    return next(iter(known.values()))


def _there_is(known: dict[str, object]) -> str:
    return f" (there is: {', '.join(known)})" if known else ""
