"""Tuning: the search over a space of configurations for the fastest one.

>>> from tunewire.tune import Space
>>> len(Space({"TILE": [8, 16, 32], "WORK": [1, 2, 4]}, ["TILE // WORK >= 8"]))
6
"""

from tunewire.tune.comparison import Comparison, compare
from tunewire.tune.configuration import Configuration
from tunewire.tune.result import (
    DeviceVersions,
    Environment,
    KernelIdentity,
    SpaceRecord,
    StrategyRecord,
    TuningResult,
    ranked,
)
from tunewire.tune.space import Parameter, Restriction, Space
from tunewire.tune.strategies import STRATEGIES, Exhaustive, Random, Strategy
from tunewire.tune.trial import Failure, FailureKind, Trial
from tunewire.tune.tunable import Tunable
from tunewire.tune.tuning import Tuning, tune

__all__ = [
    "STRATEGIES",
    "Comparison",
    "Configuration",
    "DeviceVersions",
    "Environment",
    "Exhaustive",
    "Failure",
    "FailureKind",
    "KernelIdentity",
    "Parameter",
    "Random",
    "Restriction",
    "Space",
    "SpaceRecord",
    "Strategy",
    "StrategyRecord",
    "Trial",
    "Tunable",
    "Tuning",
    "TuningResult",
    "compare",
    "ranked",
    "tune",
]
