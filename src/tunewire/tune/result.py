"""A whole tuning as one value, and that value as a JSON file.

The file is the value's own form: each Struct an object of its fields, a configuration an object of its parameters,
in the space's order. `format` and `format_version` come first; a reader refuses what it does not know.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import msgspec

from tunewire.bench import RawKernel
from tunewire.errors import DecodeError
from tunewire.tune.comparison import Comparison, compare
from tunewire.tune.configuration import Configuration
from tunewire.tune.space import Parameter, Space
from tunewire.tune.trial import Trial
from tunewire.version import __version__

__all__ = [
    "DeviceVersions",
    "Environment",
    "KernelIdentity",
    "SpaceRecord",
    "StrategyRecord",
    "TuningResult",
    "ranked",
]

FORMAT = "tunewire tuning"
FORMAT_VERSION = 1


class KernelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which kernel was tuned. `source_sha256` is of the source's UTF-8, in hex; `digest` is `RawKernel.digest`.

    >>> identity = KernelIdentity.of(RawKernel("kernel void f() {}", "f"))
    >>> identity.name, identity.language, len(identity.source_sha256)
    ('f', 'opencl', 64)
    """

    name: str
    language: str
    entry: str
    source_sha256: str
    digest: str

    @classmethod
    def of(cls, kernel: RawKernel) -> Self:
        """The identity of a kernel whose parameters have no values yet."""
        return cls(
            name=kernel.title,
            language=kernel.language,
            entry=kernel.entry,
            source_sha256=hashlib.sha256(kernel.source.encode()).hexdigest(),
            digest=kernel.digest(),
        )


class SpaceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The space that was searched. Of a restriction that is a callable, there is only the name. `combinations` counts
    those that restrictions exclude, too: counting the others can take longer than the search did.

    >>> SpaceRecord.of(Space({"A": [1, 2], "B": [1, 2]}, ["A <= B"])).combinations
    4
    """

    parameters: tuple[Parameter, ...]
    restrictions: tuple[str, ...]
    combinations: int

    @classmethod
    def of(cls, space: Space) -> Self:
        """The record of a space."""
        return cls(
            parameters=space.parameters, restrictions=space.restrictions, combinations=space.combinations
        )


class StrategyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How it was searched: the strategy's name, its seed where it has one, and the most trials that were allowed.

    >>> StrategyRecord(name="random", seed=7).max_trials is None
    True
    """

    name: str
    seed: int | None = None
    max_trials: int | None = None


class DeviceVersions(msgspec.Struct, frozen=True, kw_only=True):
    """What measured on a device, as its measurements say; None before the first.

    >>> DeviceVersions(device="cuda:0", driver="550.54").library is None
    True
    """

    device: str
    driver: str | None = None
    library: str | None = None


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured: the Python version, the platform, and each device's driver and library.

    >>> Environment.of(["opencl:0"], trials=[]).devices
    (DeviceVersions(device='opencl:0', driver=None, library=None),)
    """

    python: str
    platform: str
    devices: tuple[DeviceVersions, ...]

    @classmethod
    def of(cls, devices: Iterable[str], trials: Iterable[Trial]) -> Self:
        """This interpreter and machine, and what the trials' measurements know of the devices."""
        measured = {trial.device: trial.measurement for trial in trials if trial.measurement is not None}
        return cls(
            python=platform.python_version(),
            platform=platform.platform(),
            devices=tuple(
                DeviceVersions(device=device, driver=found.driver, library=found.library)
                if (found := measured.get(device)) is not None
                else DeviceVersions(device=device)
                for device in devices
            ),
        )


class TuningResult(msgspec.Struct, frozen=True, kw_only=True):
    """A tuning as it stands: what was tuned, where, and every trial that ended, with all samples.

    `trials` are in the order of completion; `ranking` holds the indices of those that were measured, the fastest by
    median first. `default` is the configuration to beat. `complete` is False where it was left before its end.
    `started` and `finished` are UTC.

    >>> import tempfile, pathlib
    >>> from tunewire.bench import RawKernel
    >>> kernel, space = RawKernel("kernel void f() { int tile[TILE]; }", "f"), Space({"TILE": [8]})
    >>> from datetime import UTC
    >>> result = TuningResult(
    ...     kernel=KernelIdentity.of(kernel), space=SpaceRecord.of(space), strategy=StrategyRecord(name="exhaustive"),
    ...     devices=("opencl:0",), environment=Environment.of(["opencl:0"], []), default=space.first, trials=(),
    ...     ranking=(), complete=False, started=datetime.now(UTC), finished=datetime.now(UTC))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "tuning.json")
    ...     result.save(path)
    ...     TuningResult.load(path) == result
    True
    """

    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    tunewire: str = __version__
    kernel: KernelIdentity
    space: SpaceRecord
    strategy: StrategyRecord
    devices: tuple[str, ...]
    environment: Environment
    default: Configuration
    complete: bool
    started: datetime
    finished: datetime
    ranking: tuple[int, ...]
    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        measured = {number for number, trial in enumerate(self.trials) if trial.ok}
        if len(self.ranking) != len(measured) or set(self.ranking) != measured:
            raise ValueError("the ranking is not made of the trials that have a measurement")

    @property
    def best(self) -> Trial | None:
        """The fastest trial by median; never one that failed."""
        return self.trials[self.ranking[0]] if self.ranking else None

    @property
    def failures(self) -> tuple[Trial, ...]:
        """The trials without a measurement, in the order of completion."""
        return tuple(trial for trial in self.trials if not trial.ok)

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default configuration, measured or failed; None before it ended."""
        return next((trial for trial in self.trials if trial.configuration == self.default), None)

    @property
    def gain(self) -> Comparison | None:
        """How many times as fast the best is as the default configuration; None where one of them has no
        measurement, so that nothing can be said."""
        best, baseline = self.best, self.baseline
        if best is None or baseline is None or best.measurement is None or baseline.measurement is None:
            return None
        return compare(baseline.measurement, best.measurement)

    def to_json(self) -> bytes:
        """One JSON document, in UTF-8, indented for people."""
        return msgspec.json.format(_encoder.encode(self), indent=2) + b"\n"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON. Whoever reads `path`, at whatever moment, finds the old file or the whole new one.

        A link is followed, and a file keeps its mode. What is no file (a pipe, a device) is written to as it is.
        OSError where that cannot be done.
        """
        path = Path(path).resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(self.to_json())
            return
        part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
        try:
            with part.open("xb") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, part)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The result that was saved at `path`. DecodeError, saying where in it, if that is something else."""
        what = f"tuning result {os.fspath(path)!r}"
        data = Path(path).read_bytes()
        try:
            head = msgspec.json.decode(data, type=_Head)
        except msgspec.DecodeError as error:
            raise DecodeError(what=what, reason=str(error)) from error
        if head.format != FORMAT or head.format_version != FORMAT_VERSION:
            known = f"{FORMAT!r} version {FORMAT_VERSION}"
            reason = f"it is of format {head.format!r} version {head.format_version}, and {known} is read"
            raise DecodeError(what=what, reason=reason)
        try:
            return msgspec.json.decode(data, type=cls, dec_hook=_decode)
        except msgspec.DecodeError as error:
            reason, _, where = str(error).partition(" - at ")
            raise DecodeError(what=what, path=where.strip("`"), reason=reason) from error


def ranked(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The trials that were measured, the fastest by median first; of equals, the first that ended.

    >>> from tunewire.bench import Measurement
    >>> def trial(index, time_ns):
    ...     measurement = Measurement(
    ...         samples_ns=(time_ns,), device="cpu", backend="cpu", clock="perf_counter_ns", resolution_ns=1.0)
    ...     return Trial(index=index, configuration=Configuration({"A": index}), device="cpu", seconds=0.1,
    ...                  measurement=measurement)
    >>> [each.index for each in ranked([trial(0, 300.0), trial(1, 100.0), trial(2, 200.0)])]
    [1, 2, 0]
    """
    measured = [(trial.measurement.median_ns, trial.index, trial) for trial in trials if trial.measurement]
    return tuple(trial for _, _, trial in sorted(measured, key=lambda each: each[:2]))


class _Head(msgspec.Struct):
    format: str = ""
    format_version: int = 0


def _encode(value: Any) -> Any:
    if isinstance(value, Configuration):
        return dict(value)
    raise NotImplementedError(f"a tuning's result holds no {type(value).__name__}")


def _decode(wanted: type, value: Any) -> Any:
    if wanted is not Configuration:
        raise NotImplementedError(f"a tuning's result holds no {wanted.__name__}")
    return Configuration(msgspec.convert(value, dict[str, int | float | bool | str]))


_encoder = msgspec.json.Encoder(enc_hook=_encode)
