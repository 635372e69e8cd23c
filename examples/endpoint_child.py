"""A program that serves its parent over its stdin and stdout. Started by endpoint_parent.py."""

import asyncio

from tunewire import ChildEndpoint


async def main():
    async with ChildEndpoint() as parent:
        print("what is printed here is captured, and touches no message")
        async for numbers in parent:
            await parent.send({"sum": sum(numbers), "count": len(numbers)})


asyncio.run(main())
