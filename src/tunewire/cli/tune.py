"""`tunewire tune`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from tunewire.cli.exits import NOTHING, OK, BadInput, complain, note
from tunewire.cli.files import load_tunable
from tunewire.cli.interrupt import Interruptible, run_interruptibly
from tunewire.cli.output import check_writable, error_console, print_json, print_report, save_picture
from tunewire.cli.progress import progress_on
from tunewire.cli.tables import tuning_report
from tunewire.cli.targets import Target, find_target
from tunewire.pool import Pool
from tunewire.tune import Tunable, Tuning, TuningResult, tune

__all__ = ["Options", "run"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line."""

    devices: tuple[str, ...]
    strategy: str
    max_trials: int | None
    seed: int
    timeout: float | None
    top: int
    output: Path | None
    svg: Path | None
    json: bool


class _Session:
    """How far the command came: what is told after it, however it ended."""

    def __init__(self) -> None:
        self.interruptible = Interruptible()
        self.target: Target | None = None
        self.tuning: Tuning | None = None
        self.error: Exception | None = None

    @property
    def signal(self) -> signal.Signals | None:
        """What ended it early."""
        return self.interruptible.signal


def run(file: str, options: Options) -> int:
    """Search, print, save; the exit code."""
    check_writable("--output", options.output)
    check_writable("--svg", options.svg)
    if (
        options.output is not None
        and options.svg is not None
        and options.output.resolve() == options.svg.resolve()
    ):
        raise BadInput("--output and --svg name the same file")
    tunable = load_tunable(file)
    session = _Session()
    run_interruptibly(_search(tunable, options, session), session.interruptible)
    if session.error is not None and (session.tuning is None or not session.tuning.trials):
        raise session.error
    if session.target is None or session.tuning is None:
        assert session.signal is not None
        complain(f"ended by {session.signal.name} before anything was measured")
        return 128 + session.signal
    result = session.tuning.result()
    if session.signal is not None:
        complain(_interruption(session.signal, result, session.tuning.total))
    written = _tell(result, options, session.target, file)
    if session.signal is not None:
        return 128 + session.signal
    if session.error is not None:
        raise session.error
    return OK if result.ranking and written else NOTHING


async def _search(tunable: Tunable, options: Options, session: _Session) -> None:
    with session.interruptible:
        try:
            session.target = await find_target(tunable.kernels, options.devices)
            async with Pool(devices=session.target.ids, results="msgspec", spares=1) as pool:
                session.tuning = tune(
                    session.target.kernel,
                    tunable.space,
                    pool=pool,
                    strategy=options.strategy,
                    seed=options.seed,
                    max_trials=options.max_trials,
                    default=tunable.default,
                    timeout=tunable.timeout if options.timeout is None else options.timeout,
                )
                await _follow(session.tuning, session.target)
        except Exception as error:  # noqa: BLE001 - raised again when what was measured has been saved
            session.error = error


async def _follow(tuning: Tuning, target: Target) -> None:
    console = error_console()
    console.print(f"tuning {target}: {_counted(tuning)} configurations", soft_wrap=True)
    async with tuning as trials:
        with progress_on(console, tuning) as progress:
            async for trial in trials:
                progress.show(trial)


def _counted(tuning: Tuning) -> str:
    return f"{tuning.total:,}" if tuning.total_is_exact else f"at most {tuning.total:,}"


def _interruption(which: signal.Signals, result: TuningResult, total: int) -> str:
    tried, measured = len(result.trials), len(result.ranking)
    return f"ended by {which.name} after {tried} of {total:,} configurations, {measured} of them measured"


def _tell(result: TuningResult, options: Options, target: Target, file: str) -> bool:
    """Save and print; whether all that was to be saved is."""
    report = tuning_report(result, top=options.top, target=str(target))
    title = f"tunewire tune {file}"
    # Saved first: what goes wrong while printing must not cost the result.
    saved = [
        _save("--output", options.output, result.save),
        _save("--svg", options.svg, lambda path: save_picture(report, path, title=title)),
    ]
    if options.json:
        print_json(result.to_json())
    else:
        print_report(report)
    return all(saved)


def _save(option: str, path: Path | None, write: Callable[[Path], None]) -> bool:
    if path is None:
        return True
    try:
        write(path)
    except OSError as error:
        complain(f"{option}: {error}")
        return False
    note(f"written: {path}")
    return True
