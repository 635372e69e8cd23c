"""Awaitable calls into worker processes: values, failures, timeouts and cancellation.

python examples/calls.py
"""

import asyncio
import os
import time

from tunewire import Pool
from tunewire.errors import CallTimeout, WorkerCrashed


def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


async def main():
    async with Pool(2) as pool:
        print("a value:", await pool.call(fibonacci, 50))
        print("a lambda:", await pool.call(lambda x: x + 1, 41))

        try:
            await pool.call(time.sleep, 60, timeout=0.2)
        except CallTimeout as error:
            print("a timeout:", error)

        try:
            await pool.call(os.abort)
        except WorkerCrashed as error:
            print("a crash:", error.signal)

        try:
            async with asyncio.timeout(0.2):
                await pool.call(time.sleep, 60)
        except TimeoutError:
            await pool.settled()
            print("a cancelled call: its process has ended")

        async with pool.map_outcomes(lambda x: 10 // x, [1, 0, 5]) as outcomes:
            async for outcome in outcomes:
                print("an item:", outcome.value if outcome.ok else repr(outcome.error))


asyncio.run(main())
