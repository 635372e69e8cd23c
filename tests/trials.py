"""Trials made by hand."""

from __future__ import annotations

from tunewire.bench import Measurement
from tunewire.tune import Configuration, Failure, FailureKind, Trial


def measured(*samples_ns: float, flops: float | None = None) -> Measurement:
    return Measurement(
        samples_ns=samples_ns,
        device="opencl:0",
        backend="opencl",
        clock="opencl profiling events",
        resolution_ns=1.0,
        flops=flops,
        driver="a driver 1.0",
        library="a library 2.0",
    )


def failed(
    kind: FailureKind = FailureKind.CRASH, reason: str = "its process was ended by SIGSEGV"
) -> Failure:
    return Failure(kind=kind, phase="check", reason=reason)


def trial(
    index: int, configuration: dict[str, int | float | bool | str], outcome: Measurement | Failure
) -> Trial:
    return Trial(
        index=index,
        configuration=Configuration(configuration),
        device="opencl:0",
        seconds=0.5,
        measurement=outcome if isinstance(outcome, Measurement) else None,
        failure=outcome if isinstance(outcome, Failure) else None,
    )
