"""Telemetry: what the host and its GPUs do while pieces of this program run.

python examples/telemetry.py
"""

import asyncio
import tempfile
from pathlib import Path

from tunewire import Telemetry
from tunewire.telemetry import read_rows


async def main(folder):
    async with Telemetry(interval=0.02, path=folder / "rest.jsonl") as telemetry:

        @telemetry.annotate
        async def train(step):
            with telemetry.scope("forward", step=str(step)):
                await asyncio.sleep(0.1)

        async def watch():
            async for row in telemetry.rows():
                if row.devices:
                    print(row.scope, row.devices[0].name, row.devices[0].power_watts, "W")

        watching = asyncio.create_task(watch())
        await train(1)
        first = await telemetry.snapshot(folder / "first.jsonl")
        await train(2)
        for note in await telemetry.notes():
            print("note:", note)
    await watching

    for path in (Path(first.path), folder / "rest.jsonl"):
        rows = read_rows(path)
        steps = sorted(
            {scope.labels["step"] for row in rows for scope in row.scopes if "step" in scope.labels}
        )
        print(path.name, "has scopes", sorted({row.scope for row in rows}), "of steps", steps)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder)))
