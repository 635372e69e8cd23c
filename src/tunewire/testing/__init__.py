"""What a test of tunewire, or of code that uses it, needs in place of the real world.

Fakes that pass the same tests as the real things (`tunewire.testing.contracts`), and misbehave on demand: connections
in memory, streams that arrive badly, processes that will not start, will not end, or end in the middle of a word. And a
clock on which an hour takes no time.

>>> from tunewire.testing import FakePool, Script, virtual_loop
>>> async def main():
...     async with FakePool(scripts=[Script(ends_in_reply=10), Script()]) as pool:
...         first = await pool.run(len, "abc")
...         return first.kind.value, await pool.call(len, "abc")
>>> with virtual_loop() as runner:
...     runner.run(main())
('crash', 3)
"""

from tunewire.testing.clock import VirtualLoop, virtual_loop
from tunewire.testing.faults import Faults, FaultyStream
from tunewire.testing.pipes import MemoryConnection, connection_pair
from tunewire.testing.pools import FakePool
from tunewire.testing.processes import FakeProcess, FakeSpawner, Script, exit_process

__all__ = [
    "FakePool",
    "FakeProcess",
    "FakeSpawner",
    "Faults",
    "FaultyStream",
    "MemoryConnection",
    "Script",
    "VirtualLoop",
    "connection_pair",
    "exit_process",
    "virtual_loop",
]
