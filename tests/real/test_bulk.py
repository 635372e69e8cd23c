"""Large buffers through shared memory: the same values as through the pipe, never changed under whoever holds them."""

import asyncio
import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from tunewire import Pool, Service, connect, method
from tunewire.errors import DecodeError, WireError, WorkerCrashed

SIZE = 3 << 20

pytestmark = pytest.mark.asyncio

kept = []


def array(seed=0, size=SIZE):
    return np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8)


def echo(value):
    return value


def twice(value):
    return value, value


def part(value):
    return value[4096:-4096]


def keeps(value):
    kept.append(value)
    return value


def changes_what_was_kept():
    for value in kept:
        value[:] = 0
    return len(kept)


def makes(seed):
    return array(seed)


def writes(value):
    value[:] = 7
    return int(value.sum())


def drops_in_a_fork(value):
    context = multiprocessing.get_context("fork")
    process = context.Process(target=gc.collect)
    process.start()
    process.join()
    return value.sum()


def is_shared(value):
    """Whether it lies in a mapping of the memory file."""
    address = value.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if first <= address < last:
            return "memfd:tunewire" in line
    return False


def shared_memory_of(process):
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Shmem"))


async def test_an_array_comes_and_goes_in_shared_memory_and_is_the_callers_own():
    async with Pool(1) as pool:
        assert await pool.call(is_shared, array())
        result = await pool.call(echo, array())
        assert is_shared(result)
        assert result.flags.writeable
        np.testing.assert_array_equal(result, array())


async def test_small_values_stay_in_the_pipe():
    async with Pool(1) as pool:
        assert not await pool.call(is_shared, array(size=1000))


async def test_many_arrays_at_a_time_are_each_what_they_were():
    async with Pool(2) as pool:
        held = [await pool.call(echo, array(seed)) for seed in range(20)]
        held += [await pool.call(makes, seed) for seed in range(20, 40)]
        for seed, value in enumerate(held):
            np.testing.assert_array_equal(value, array(seed))


async def test_what_a_callable_keeps_and_changes_later_changes_no_result():
    async with Pool(1) as pool:
        results = [await pool.call(keeps, array(seed)) for seed in range(4)]
        assert await pool.call(changes_what_was_kept) == 4
        for seed, value in enumerate(results):
            np.testing.assert_array_equal(value, array(seed))


async def test_an_argument_that_is_written_changes_nothing_here():
    async with Pool(1) as pool:
        value = array()
        result = await pool.call(echo, value)
        assert await pool.call(writes, value) == 7 * SIZE
        assert await pool.call(writes, result) == 7 * SIZE
        np.testing.assert_array_equal(value, array())
        np.testing.assert_array_equal(result, array())


@pytest.mark.parametrize("function", [twice, part])
async def test_a_part_or_two_of_what_came_go_back(function):
    async with Pool(1) as pool:
        for _ in range(5):
            results = await pool.call(function, array())
            others = [await pool.call(echo, array(9)) for _ in range(3)]
            for got, expected in zip(np.atleast_2d(results), np.atleast_2d(function(array())), strict=True):
                np.testing.assert_array_equal(got, expected)
            del others


async def test_memory_is_used_again_however_many_arrays_pass():
    async with Pool(1) as pool:
        for seed in range(400):  # 1.2 GB each way, more than there is
            result = await pool.call(echo, array(1) if seed % 2 else seed)
            assert seed % 2 == 0 or is_shared(result)
        assert shared_memory_of(os.getpid()) < 16 * SIZE


async def test_a_fork_of_the_callables_gives_nothing_back():
    async with Pool(1) as pool:
        for _ in range(5):
            assert await pool.call(drops_in_a_fork, array()) == array().sum()


async def test_results_outlive_their_process():
    async with Pool(1) as pool:
        result = await pool.call(echo, array())
        with pytest.raises(WorkerCrashed):
            await pool.call(os._exit, 3)
        again = await pool.call(echo, array(1))
    np.testing.assert_array_equal(result, array())
    np.testing.assert_array_equal(again, array(1))


async def test_more_than_the_lane_holds_goes_through_the_pipe():
    async with Pool(1) as pool:
        results = [await pool.call(makes, seed) for seed in range(3)]
        large = np.zeros(300 << 20, np.uint8)
        large[::4096] = 1
        assert not await pool.call(is_shared, large)
        assert (await pool.call(np.count_nonzero, large)) == len(large) // 4096
        np.testing.assert_array_equal(results[0], array(0))


async def test_large_bytes_of_a_child_that_is_not_trusted_are_copied():
    async with Pool(1, results="msgspec") as pool:
        result = await pool.call(echo, array().tobytes(), result_type=bytes)
        assert result == array().tobytes()


async def test_an_array_of_a_child_that_is_not_trusted_is_the_callers_alone():
    async with Pool(1, results="msgspec") as pool:
        result = await pool.call(keeps, array(), result_type=np.ndarray)
        assert not is_shared(result)
        assert await pool.call(changes_what_was_kept) == 1
        np.testing.assert_array_equal(result, array())
        with pytest.raises(DecodeError, match="ndarray"):
            await pool.call(len, [1], result_type=np.ndarray)


class Images(Service):
    @method
    async def brighter(self, image: np.ndarray, by: int) -> np.ndarray: ...

    @method
    async def halves(self, images: AsyncIterator[np.ndarray]) -> AsyncIterator[np.ndarray]: ...


class ImagesHere(Images):
    async def brighter(self, image, by):
        image += by
        return image

    async def halves(self, images):
        async for image in images:
            yield image[: len(image) // 2]
            yield image[len(image) // 2 :]


async def test_a_services_arrays_travel_so_too():
    async with connect(Images, implementation=ImagesHere) as images:
        image = array() // 2
        np.testing.assert_array_equal(await images.brighter(image, 3), image + 3)
        np.testing.assert_array_equal(image, array() // 2)
        halves = [half async for half in images.halves(array(seed) for seed in range(20))]
        for seed in range(20):
            np.testing.assert_array_equal(np.concatenate(halves[2 * seed : 2 * seed + 2]), array(seed))


def sends_a_place(offset, size):
    """A frame of this process's own, with a buffer that lies nowhere."""
    from tunewire.runtime import context
    from tunewire.wire.frames import HEADER, MAGIC, PROTOCOL, SHARED

    channel = context.current_call()._teller._channel
    body = size.to_bytes(8, "little") + offset.to_bytes(8, "little") + b"\x91\x04"
    os.write(channel._write_fd, HEADER.pack(MAGIC, PROTOCOL, 4, 2, SHARED, 1, 1, len(body)) + body)


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 10), (4096, 1 << 20), ((1 << 48) - 4096, 1 << 20), (1 << 62, 5), (4096 + (512 << 20), 4096)],
)
async def test_a_place_that_was_not_given_ends_that_process_alone(offset, size):
    async with Pool(1) as pool:
        outcome = await pool.run(sends_a_place, offset, size)
        assert isinstance(outcome.error, WireError)
        np.testing.assert_array_equal(await pool.call(echo, array()), array())


async def test_where_files_may_not_be_large_arrays_go_through_the_pipe():
    program = textwrap.dedent("""
        import asyncio, resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        from tunewire import Pool
        async def main():
            async with Pool(1) as pool:
                return await pool.call(len, bytes(5 << 20))
        print(asyncio.run(main()))
    """)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed.decode() == f"{5 << 20}\n"
