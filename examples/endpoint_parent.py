"""Exchange values with a child program of your own.

python examples/endpoint_parent.py
"""

import asyncio
import sys
from pathlib import Path

from tunewire import ParentEndpoint

CHILD = Path(__file__).with_name("endpoint_child.py")


async def main():
    async with await ParentEndpoint.spawn([sys.executable, CHILD]) as child:
        for numbers in ([1, 2, 3], [], [0.5] * 8):
            await child.send(numbers)
            print(await child.receive())
        print("captured:", child.stdout.strip())


asyncio.run(main())
