"""Connections between two processes of a server, and the memory that they share. Here, both ends are in one process."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.serve.arena import ALIGNMENT, Arena, memory_file
from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.serve.link import SHARED, Link

SIZE = 1 << 20  # bytes of shared memory in each direction
TYPES = [ov.Type.f32, ov.Type.f16, ov.Type.bf16, ov.Type.boolean, ov.Type.i64, ov.Type.u8, ov.Type.string]


async def echo(value: Any) -> Any:
    return value


def run(main: Callable[[Link, Link], Coroutine[Any, Any, None]], **functions: Callable[..., Any]) -> None:
    """Run a test of a link, and of the link to it, which has functions."""

    async def connected() -> None:
        loop, sockets = asyncio.get_running_loop(), socket.socketpair()
        files = [memory_file(SIZE) for _ in range(2)]
        copies = [os.dup(file) for file in files]
        ends = Link({}, Arena(files[0]), Arena(files[1])), Link(functions, Arena(copies[1]), Arena(copies[0]))
        for end, connection in zip(ends, sockets):
            await loop.create_connection(lambda end=end: end, sock=connection)
        try:
            await asyncio.wait_for(main(*ends), 60)
        finally:
            for end in ends:
                end.close()
            await ends[0].lost.wait()

    asyncio.run(connected())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_arrays_come_back_as_they_are(dtype: ov.Type) -> None:
    numbers = (np.arange(3 * SHARED) % 1000).reshape(3, -1)
    if dtype is ov.Type.string:
        numbers = np.array([[str(x).encode() for x in row] for row in numbers[:, :100]], object)
    arrays = [numbers[:, :0], numbers[:1, :1].reshape(()), numbers[:, :5].T, numbers[:, ::-1], numbers[0]]

    async def main(link: Link, other: Link) -> None:
        given = [array.astype(dtype.storage) for array in arrays]
        for array, found in zip(given, await link.call("echo", given), strict=True):
            assert found.dtype is array.dtype or dtype is ov.Type.string
            np.testing.assert_array_equal(found, array)

    run(main, echo=echo)


def test_large_arrays_are_shared_until_nobody_refers_to_them() -> None:
    """If there is no room, they are part of the frame."""

    async def main(link: Link, other: Link) -> None:
        x = np.arange(SIZE // 16, dtype=np.float32)  # a quarter of the memory
        kept = [await link.call("echo", x) for _ in range(5)]
        assert (link.shared, other.shared) == (5, 4) and other._sending.free == 0
        parts = [array[1:].view(np.uint32) for array in kept]
        del kept
        gc.collect()
        await asyncio.sleep(0.05)
        assert other._sending.free == 0
        np.testing.assert_array_equal([part.view(np.float32) for part in parts], [x[1:]] * 5)
        parts.clear()
        while other._sending.free < SIZE or link._sending.free < SIZE:
            await asyncio.sleep(0.001)

    run(main, echo=echo)


def test_arrays_of_calls_that_fail_are_free_without_garbage_collection() -> None:
    async def refuse(array: Any) -> None:
        raise invalid("no")

    async def main(link: Link, other: Link) -> None:
        gc.disable()
        try:
            for _ in range(3):
                with pytest.raises(ServeError, match="no"):
                    await link.call("refuse", np.ones(SHARED, np.uint8))
            assert link.shared == 3
            while link._sending.free < SIZE:
                await asyncio.sleep(0.001)
        finally:
            gc.enable()

    run(main, refuse=refuse)


def test_frames_arrive_in_any_pieces() -> None:
    async def main(link: Link, other: Link) -> None:
        written = list[bytes]()
        transport, link._transport = link._transport, type("Taken", (), {"is_closing": bool, "write": written.append})()
        calls = [asyncio.create_task(link.call("echo", np.full(i, i))) for i in range(50)]
        await asyncio.sleep(0)
        link._transport = transport
        data, source = b"".join(written), random.Random(0)
        while data:
            size = source.choice((1, 2, 40, 1000, 5000))
            other.data_received(data[:size])
            data = data[size:]
        for i, found in enumerate(await asyncio.gather(*calls)):
            np.testing.assert_array_equal(found, np.full(i, i))

    run(main, echo=echo)


def test_errors_and_cancellation() -> None:
    ended = list[str]()

    async def fail(error: Exception) -> None:
        raise error

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("wait")

    async def main(link: Link, other: Link) -> None:
        for error, wanted in ((invalid("no"), "no"), (ValueError("secret"), "internal error of the server")):
            with pytest.raises(ServeError, match=wanted):
                await link.call("fail", error)
        waiting = asyncio.create_task(link.call("wait"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        while not ended:
            await asyncio.sleep(0.001)
        large = asyncio.create_task(link.call("echo", np.ones(SIZE // 8)))
        await asyncio.sleep(0)
        large.cancel()  # while it is copied
        while link._sending.free < SIZE:
            await asyncio.sleep(0.001)
        assert not link._waiting and not other._running
        waiting = asyncio.create_task(link.call("wait"))
        await asyncio.sleep(0.01)
        other.close()
        for lost in (waiting, link.call("echo", 1)):
            with pytest.raises(ServeError, match="has ended") as error:
                await lost
            assert error.value.status is Status.UNAVAILABLE
        assert ended == ["wait", "wait"]

    run(main, echo=echo, fail=fail, wait=wait)


def test_blocks_do_not_overlap_and_become_one_again() -> None:
    source, arena, blocks = random.Random(0), Arena(memory_file(SIZE)), dict[int, int]()
    for _ in range(2000):
        if source.random() < 0.6 and (begin := arena.allocate(size := source.randrange(1, SIZE // 8))) is not None:
            blocks[begin] = size
        elif blocks:
            arena.release(begin := source.choice(list(blocks)), blocks.pop(begin))
        ordered = sorted(blocks.items())
        assert all(begin + size <= after for (begin, size), (after, _) in pairwise(ordered))
        assert arena.free == SIZE - sum(-(-size // ALIGNMENT) * ALIGNMENT for size in blocks.values())
    for begin, size in blocks.items():
        arena.release(begin, size)
    assert arena.allocate(SIZE) == 0 and arena.allocate(1) is None
