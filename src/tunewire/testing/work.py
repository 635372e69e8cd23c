"""Callables for the contract suites: what a call may do, in a real process and in a fake one."""

from __future__ import annotations

import asyncio

from tunewire.runtime import current_call


def echo(value: object) -> object:
    """What it was given."""
    return value


def fail(text: str) -> None:
    """Raise an error that can be rebuilt."""
    raise ValueError(text)


def say(text: str) -> None:
    """Print."""
    print(text)  # noqa: T201 — it is what is captured


async def last(seconds: float) -> float:
    """Take so long."""
    await asyncio.sleep(seconds)
    return seconds


async def go_through(phases: list[str], seconds: float) -> str:
    """Stay so long in the first phase and in each of these."""
    await asyncio.sleep(seconds)
    for phase in phases:
        current_call().enter(phase)
        await asyncio.sleep(seconds)
    return current_call().phase
