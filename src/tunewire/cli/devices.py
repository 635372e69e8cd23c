"""`tunewire devices`."""

from __future__ import annotations

import asyncio

import msgspec

from tunewire.cli.exits import OK
from tunewire.cli.output import print_json, print_report
from tunewire.cli.tables import devices_report
from tunewire.devices import discover

__all__ = ["run"]


def run(*, as_json: bool) -> int:
    """Print the devices; the exit code."""
    found = asyncio.run(discover())
    if as_json:
        print_json(msgspec.json.format(msgspec.json.encode(found)))
    else:
        print_report(devices_report(found))
    return OK
