"""What the workers are asked to do: as little as can be, so that what is measured is the way there and back."""

from __future__ import annotations

from typing import Any


def nothing(_item: object = None) -> None:
    """A no-op; with an argument for those that map."""


def same(value: Any) -> Any:
    """An echo."""
    return value


async def nothing_awaited(_item: object = None) -> None:
    """A no-op for workers that run coroutines only."""


async def same_awaited(value: Any) -> Any:
    """An echo for workers that run coroutines only."""
    return value
