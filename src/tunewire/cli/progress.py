"""How far a tuning is, on stderr: drawn in place on a terminal, one line per trial elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tunewire.cli.tables import FAILURE_WORDS
from tunewire.cli.text import duration, percent, printable, rate, seconds
from tunewire.tune import Trial, Tuning

__all__ = ["Progress", "progress_on"]


class Progress(Protocol):
    """A block during which trials are shown."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def show(self, trial: Trial, /) -> None:
        """A trial ended."""


def progress_on(console: Console, run: Tuning) -> Progress:
    """What suits the console."""
    # Not `is_terminal`: FORCE_COLOR makes that true of a log file, in which nothing can be drawn in place.
    drawable = console.file.isatty() and not console.is_dumb_terminal
    return _Drawn(console, run) if drawable else _Lines(console, run)


class _Lines:
    """One line per trial: for files, pipes and logs."""

    def __init__(self, console: Console, run: Tuning) -> None:
        self._console = console
        self._total = run.total

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, trial: Trial, /) -> None:
        count = f"{trial.index + 1:>{len(str(self._total))}}/{self._total}"
        line = f"{count}  {_outcome(trial)}  {trial.configuration}"
        self._console.print(Text(printable(line)), soft_wrap=True)


class _Drawn:
    """Some lines that are redrawn in place, and gone at the end."""

    def __init__(self, console: Console, run: Tuning) -> None:
        self._run = run
        self._total = run.total
        self._begin = time.monotonic()
        self._live = Live(
            console=console,
            get_renderable=self._picture,
            transient=True,
            refresh_per_second=5,
            # What the kernel's file prints is already on stderr; rich need not take the streams over.
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)

    def show(self, _trial: Trial, /) -> None:
        self._live.refresh()

    def _picture(self) -> RenderableType:
        trials = self._run.trials
        failed = Counter(trial.failure.kind for trial in trials if trial.failure is not None)
        rows = Table.grid(padding=(0, 2))
        for device, configuration in self._run.running.items():
            rows.add_row(Text(device, style="dim"), Text(printable(str(configuration))))
        if (best := self._run.best) is not None:
            rows.add_row("best", Text(printable(f"{_outcome(best)}  {best.configuration}"), style="green"))
        if failed:
            told = ", ".join(f"{count} {FAILURE_WORDS[kind]}" for kind, count in failed.items())
            rows.add_row("failed", Text(told, style="red"))
        return Group(self._bar(len(trials)), rows)

    def _bar(self, done: int) -> RenderableType:
        elapsed = time.monotonic() - self._begin
        left = f", about {seconds(elapsed / done * (self._total - done))} left" if done else ""
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._total, completed=done, width=40),
            Text(f"{done}/{self._total}"),
            Text(f"{seconds(elapsed)}{left}", style="dim"),
        )
        return bar


def _outcome(trial: Trial) -> str:
    if trial.failure is not None:
        where = "" if trial.failure.phase is None else f" ({trial.failure.phase})"
        return f"{FAILURE_WORDS[trial.failure.kind]}{where}"
    assert trial.measurement is not None
    m = trial.measurement
    speed = f", {rate(m.gflops)} GFLOP/s" if m.gflops is not None else ""
    return f"{duration(m.median_ns)}, spread {percent(m.spread)}{speed}"
