"""`tunewire bench`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import msgspec

from tunewire.bench import Measurement, RawKernel, benchmark_outcome
from tunewire.cli.exits import NOTHING, OK, BadInput, complain
from tunewire.cli.files import load_kernel
from tunewire.cli.interrupt import Interruptible
from tunewire.cli.output import print_json, print_report
from tunewire.cli.tables import FAILURE_WORDS, measurement_report
from tunewire.cli.targets import Target, find_target
from tunewire.pool import Pool
from tunewire.tune import Configuration, Failure, KernelIdentity, Space, Tunable
from tunewire.tune.trial import failure_of
from tunewire.tune.tuning import DEFAULT_TIMEOUT
from tunewire.workers import Outcome

__all__ = ["run"]


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints: a measurement or a failure, never both."""

    kernel: KernelIdentity
    configuration: dict[str, int | float | bool | str]
    device: str
    measurement: Measurement | None
    failure: Failure | None


def run(
    file: str, *, device: str | None, settings: Sequence[str], timeout: float | None, as_json: bool
) -> int:
    """Measure, print; the exit code."""
    loaded = load_kernel(file)
    kernels = loaded.kernels if isinstance(loaded, Tunable) else (loaded,)
    configuration = _configuration(loaded, settings)
    if timeout is None and isinstance(loaded, Tunable):
        timeout = loaded.timeout
    ended = asyncio.run(_measure(kernels, configuration, () if device is None else (device,), timeout))
    if isinstance(ended, signal.Signals):
        complain(f"ended by {ended.name} before it was measured")
        return 128 + ended
    return _tell(*ended, configuration, as_json=as_json)


async def _measure(
    kernels: Sequence[RawKernel], configuration: Configuration, wanted: Sequence[str], timeout: float | None
) -> tuple[Target, Outcome[Measurement]] | signal.Signals:
    with Interruptible() as interruptible:
        target = await find_target(kernels, wanted)
        bound = target.kernel.bind(configuration)
        device = target.ids[0]
        async with Pool(devices=[device], results="msgspec") as pool:
            outcome = await benchmark_outcome(
                bound, device=device, pool=pool, timeout=DEFAULT_TIMEOUT if timeout is None else timeout
            )
        return Target(target.kernel, target.devices[:1]), outcome
    assert interruptible.signal is not None
    return interruptible.signal


def _tell(
    target: Target, outcome: Outcome[Measurement], configuration: Configuration, *, as_json: bool
) -> int:
    failure = None if outcome.ok else failure_of(outcome)
    if not outcome.ok and failure is None:
        outcome.unwrap()
    if as_json:
        report = _Report(
            kernel=KernelIdentity.of(target.kernel),
            configuration=dict(configuration),
            device=target.ids[0],
            measurement=outcome.value,
            failure=failure,
        )
        print_json(msgspec.json.format(msgspec.json.encode(report)))
    elif outcome.value is not None:
        print_report(measurement_report(outcome.value, target=str(target), configuration=configuration))
    if failure is not None:
        complain(f"{FAILURE_WORDS[failure.kind]}: {failure.reason}")
    return OK if failure is None else NOTHING


def _configuration(loaded: Tunable | RawKernel, settings: Sequence[str]) -> Configuration:
    if isinstance(loaded, RawKernel):
        if settings:
            raise BadInput(f"--set: {loaded.title!r} has no space, so it has no parameters")
        return Configuration({})
    chosen = dict(loaded.default)
    for setting in settings:
        name, value = _setting(setting, loaded.space)
        chosen[name] = value
    return loaded.space.validate(chosen)


def _setting(setting: str, space: Space) -> tuple[str, int | float | bool | str]:
    name, equals, text = setting.partition("=")
    if not equals:
        raise BadInput(f"--set is NAME=VALUE, not {setting!r}")
    parameter = next((each for each in space.parameters if each.name == name), None)
    if parameter is None:
        raise BadInput(f"--set: there is no parameter {name!r} (there is: {', '.join(space.names)})")
    for value in parameter.values:
        if str(value) == text:
            return name, value
    known = ", ".join(map(str, parameter.values))
    raise BadInput(f"--set: {text!r} is not one of the values of {name!r} ({known})")
