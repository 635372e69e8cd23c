"""The bookkeeping of a search: what is tried next, and what came of it. Pure: no loop, no clock, no device."""

from __future__ import annotations

from tunewire.bench import Measurement
from tunewire.tune.configuration import Configuration
from tunewire.tune.space import Space
from tunewire.tune.strategies import Strategy
from tunewire.tune.trial import Failure, Trial

__all__ = ["Search"]


class Search:
    """A strategy over a space, begun with the default configuration and limited to `max_trials`.

    >>> from tunewire.tune.strategies import Exhaustive
    >>> space = Space({"A": [1, 2, 3]})
    >>> search = Search(space, Exhaustive(space), default=Configuration({"A": 2}), max_trials=2)
    >>> search.next(), search.next(), search.next()
    (Configuration({'A': 2}), Configuration({'A': 1}), None)
    """

    def __init__(
        self, space: Space, strategy: Strategy, *, default: Configuration, max_trials: int | None = None
    ) -> None:
        self.trials: list[Trial] = []
        self.best: Trial | None = None
        self._space = space
        self._strategy = strategy
        self._default = default
        self._max_trials = max_trials
        self._begun = 0
        self._default_asked = False

    def next(self) -> Configuration | None:
        """What to try now. None: nothing before another trial has ended; if none is out, the search is over.

        InvalidSpace where the strategy asks for what is not in the space.
        """
        if self._max_trials is not None and self._begun >= self._max_trials:
            return None
        configuration = self._default if self._begun == 0 else self._asked()
        if configuration is not None:
            self._begun += 1
        return configuration

    def _asked(self) -> Configuration | None:
        configuration = self._strategy.ask()
        if configuration == self._default and not self._default_asked:
            self._default_asked = True
            configuration = self._strategy.ask()
        return None if configuration is None else self._space.validate(configuration)

    def end(
        self,
        configuration: Configuration,
        *,
        device: str,
        seconds: float,
        measurement: Measurement | None,
        failure: Failure | None,
    ) -> Trial:
        """What was tried has ended: its trial, which the strategy has been told."""
        trial = Trial(
            index=len(self.trials),
            configuration=configuration,
            device=device,
            seconds=seconds,
            measurement=measurement,
            failure=failure,
        )
        self.trials.append(trial)
        if _is_faster(trial, self.best):
            self.best = trial
        self._strategy.tell(trial)
        return trial


def _is_faster(trial: Trial, best: Trial | None) -> bool:
    if trial.measurement is None:
        return False
    if best is None or best.measurement is None:
        return True
    return trial.measurement.median_ns < best.measurement.median_ns
