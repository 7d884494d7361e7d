"""Memory of KV caches in pages: its bytes, its growth, what happens if it runs out, and batchers that share it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching import pools as pools_module
from ovgpu.batching.pools import Pools, SharedPools
from tests.batching import nets
from tests.batching.test_decoders import alone, frames, nearly, paged
from tests.emulator import cupy_emu
from tests.harness.models.drive import DATA

PAGE = 16 * nets.SIZE * 4  # bytes of a page of one of the two caches
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}


def bytes_of(pools: Pools) -> int:
    return sum(pool.nbytes for pool in pools.arrays)


@contextmanager
def little_memory(nbytes: int) -> Iterator[None]:
    """Leave ``nbytes`` of free device memory within the block."""
    gc.collect()
    pool = cupy_emu.get_default_memory_pool()
    with pytest.MonkeyPatch.context() as patch, cupy_emu.memory_limit(pool.used_bytes() + nbytes):
        patch.setattr(pool, "free_bytes", lambda: 0)  # the emulator's memGetInfo counts freed blocks already
        yield


def test_a_limit_is_exact(device: str) -> None:
    """Pools have its pages from the first step on, which no later step copies."""
    with ov.SequenceBatcher(nets.decoder(), 4, device, EXACT, max_wait_ms=0, max_tokens=20 * 16) as batcher:
        with batcher.open() as sequence:
            sequence.infer(frames(1, 0))
            arrays = paged(batcher).pools.arrays
            assert bytes_of(paged(batcher).pools) == 2 * 21 * PAGE  # and the null page
            sequence.infer(frames(319, 1))
            assert all(a is b for a, b in zip(arrays, paged(batcher).pools.arrays, strict=True))
            with pytest.raises(ov.PoolFullError):
                sequence.infer(frames(1, 320))
        assert batcher.reserve(100 * 16) == 20 * 16
        batcher.max_tokens = 30 * 16
        assert batcher.reserve(0) == 20 * 16 and batcher.reserve(21 * 16) == 30 * 16
        assert bytes_of(paged(batcher).pools) == 2 * 31 * PAGE


@pytest.mark.parametrize("limit, missing, fits", [(127, 0, 127), (127, 1, 95), (None, 1, 95)])
def test_pools_grow_one_after_the_other(limit: int | None, missing: int, fits: int, emulated: str) -> None:
    """Beside the added pages, there is memory for one old pool, and without a limit half of the rest stays free. With
    less, fewer pages are added."""
    with ov.SequenceBatcher(nets.decoder(), 4, emulated, EXACT, max_wait_ms=0) as batcher, batcher.open() as sequence:
        sequence.infer(frames(40 * 16, 0))
        assert paged(batcher).pools.allocator.capacity == 64
        paged(batcher).forget()  # growth drops the graphs as well, and what they hold
        with little_memory((2 * 64 + 64) * PAGE + (0 if limit else 2 * 64 * PAGE) - missing * PAGE):
            batcher.max_tokens = limit and limit * 16
            assert batcher.reserve(64 * 16) == fits * 16
        assert bytes_of(paged(batcher).pools) == 2 * (1 + fits) * PAGE
        nearly(sequence.infer(frames(1, 640)).to_tuple(), alone(nets.decoder(), [frames(640, 0), frames(1, 640)])[1])


def test_memory_that_runs_out_between_two_pools(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step fails, and the next one runs in the old pools. A later one adds pages where there are too few."""
    past = (62 if device == "CPU" else 15) * 16 - 2
    inputs = [frames(past, 0), frames(20, past), frames(1, past), frames(20, past + 1)]
    wanted = alone(nets.decoder(), [inputs[0], *inputs[2:]])
    with ov.SequenceBatcher(nets.decoder(), 4, device, EXACT, max_wait_ms=0) as batcher, batcher.open() as sequence:
        nearly(sequence.infer(inputs[0]).to_tuple(), wanted[0])
        owner, name = (pools_module, "host_pool") if device == "CPU" else (paged(batcher).session.backend.xp, "empty")
        pools, make = paged(batcher).pools, getattr(owner, name)
        old, shapes = pools.allocator.capacity, list[tuple[int, ...]]()

        def fail(shape: Any, *arguments: Any) -> Any:
            if shape[1:] == (1, 16, nets.SIZE):
                shapes.append(shape)
                if len(shapes) > 1:
                    raise MemoryError("out of memory: by the test")
            return make(shape, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(ov.Error, match="out of memory"):
                sequence.infer(inputs[1])
        assert shapes and pools.allocator.capacity == old and {len(pool) for pool in pools.arrays} == {old}
        nearly(sequence.infer(inputs[2]).to_tuple(), wanted[1])
        nearly(sequence.infer(inputs[3]).to_tuple(), wanted[2])
        assert {len(pool) for pool in pools.arrays} == {pools.allocator.capacity} and pools.allocator.capacity > old


def test_batchers_that_share_pools(device: str) -> None:
    """Sequences of one begin with pages of the other, and both go on when the pools of both grow."""
    more = 1000 if device == "CPU" else 300  # beyond the pages that are there
    shared, data = SharedPools(), [frames(20, 0), *(frames(1, 20 + n) for n in range(4)), frames(more, 24)]
    wanted = alone(nets.decoder(), data)
    with (
        ov.SequenceBatcher(nets.decoder(), 4, device, EXACT, max_wait_ms=0, pools=shared) as first,
        ov.SequenceBatcher(nets.decoder(), 4, device, EXACT, max_wait_ms=0, pools=shared) as second,
        ov.SequenceBatcher(nets.decoder(), 4, device, EXACT, max_wait_ms=0) as other,
    ):
        a = first.open()
        nearly(a.infer(data[0]).to_tuple(), wanted[0])
        b = second.fork(a)
        assert paged(first).pools is paged(second).pools and paged(first).held[0] == paged(second).held[0]
        for number in range(1, 5):  # the graphs of both are captured
            for sequence in a, b:
                nearly(sequence.infer(data[number]).to_tuple(), wanted[number])
        before = bytes_of(paged(first).pools)
        nearly(b.infer(data[5]).to_tuple(), wanted[5])
        assert bytes_of(paged(first).pools) > before
        nearly(a.infer(data[5]).to_tuple(), wanted[5])
        with pytest.raises(ov.Error, match="does not share its memory"):
            other.fork(a)
        with pytest.raises(ov.Error, match="the KV caches differ"):
            ov.SequenceBatcher(ov.Core().read_model(DATA / "llama" / "model.xml"), 4, device, pools=shared)


@pytest.mark.parametrize("gone", [False, True])
def test_pages_of_closed_sequences_are_free_for_others(gone: bool) -> None:
    """A batcher that runs no step any more gives them back, and one that is gone as well."""
    shared, wanted = SharedPools(), alone(nets.decoder(), [frames(40, 0)])[0]
    first = ov.SequenceBatcher(nets.decoder(), 2, "CPU", EXACT, max_wait_ms=0, max_tokens=64, pools=shared)
    with ov.SequenceBatcher(nets.decoder(), 2, "CPU", EXACT, max_wait_ms=0, pools=shared) as second:
        a, b, request = first.open(), second.open(), ref(paged(first))
        a.infer(frames(40, 0))
        with pytest.raises(ov.PoolFullError):
            b.infer(frames(40, 0))
        if gone:
            first.close()
            del first, a
            gc.collect()
            assert request() is None
        else:
            a.close()
        nearly(b.infer(frames(40, 0)).to_tuple(), wanted)
        assert paged(second).pools.allocator.capacity == 1 + 4


def test_one_of_two_batchers_leaves_the_range_of_f16(emulated: str) -> None:
    """The caches of both are converted."""
    inputs, large = [frames(2, 0), frames(1, 2), frames(1, 3)], frames(1, 2, 1)
    large["x"] *= np.float32(1e6)
    wanted, shared, config = alone(nets.decoder(), inputs), SharedPools(), {"EXECUTION_MODE_HINT": "PERFORMANCE"}
    with (
        ov.SequenceBatcher(nets.decoder(), 2, emulated, config, max_wait_ms=0, pools=shared) as first,
        ov.SequenceBatcher(nets.decoder(), 2, emulated, config, max_wait_ms=0, pools=shared) as second,
    ):
        a, b = first.open(), second.open()
        a.infer(frames(2, 0, 1))
        found = [b.infer(inputs[0])["y"], b.infer(inputs[1])["y"]]
        assert np.isfinite(a.infer(large)["y"]).all()
        found.append(b.infer(inputs[2])["y"])
        for y, results in zip(found, wanted, strict=True):
            assert np.abs(y - results[0]).max() <= 0.02 * np.abs(results[0]).max()
        assert paged(first).pools.types[0] == ov.Type.bf16
        assert {cache.type for request in (paged(first), paged(second)) for cache in request._caches} == {
            paged(first).pools.types[0]
        }
