"""Copies of rows between batches, and moves of rows in KV caches: the states of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.fused.copy_rows import MAX_PAIRS, MAX_TOKEN_ROWS, CopyRows, CopyTokens, MoveRows

Array = np.ndarray[Any, Any]
ROWS = ((2, 0), (0, 3), (1, 1))
# (shape with 3 rows, axis, dtype); the tensors of a launch have the width of the narrowest
SHAPES = {
    "16-bytes": [((3, 8), 0, np.float32)],
    "8-bytes": [((3, 2), 0, np.float32), ((2, 3, 6), 1, np.float32)],
    "4-bytes": [((3, 5), 0, np.float32)] * 3,
    "2-bytes": [((3, 5), 0, np.float16)],
    "1-byte": [((2, 3, 3, 5), 1, np.int8), ((3, 8), 0, np.float64)],
    "scalars": [((3,), 0, np.int64)],
    "many": [((3, 16), 0, np.float32)] * 7 + [((2, 3), 1, np.float32)] * 2,
    "more-than-a-launch": [((3, 2 * i), 0, np.float32) for i in range(1, 40)],
    "long": [((3, 70_000), 0, np.float32)],
    "empty": [((3, 0), 0, np.float32), ((3, 4), 0, np.float32)],
}


def pairs(shapes: Any) -> list[tuple[Array, Array]]:
    """Return sources with 3 rows and targets with 4."""
    rng = np.random.default_rng(0)
    found = []
    for shape, axis, dtype in shapes:
        wide = (*shape[:axis], 4, *shape[axis + 1 :])
        found.append((rng.integers(-99, 99, shape).astype(dtype), rng.integers(-99, 99, wide).astype(dtype)))
    return found


def expected(axes: Any, found: Any, rows: Any) -> list[Array]:
    wanted = []
    for axis, (source, target) in zip(axes, found):
        moved = np.moveaxis(target.copy(), axis, 0)
        for a, b in rows:
            moved[b] = np.moveaxis(source, axis, 0)[a]
        wanted.append(np.moveaxis(moved, 0, axis))
    return wanted


@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_copied(name: str, emulated: str) -> None:
    found, axes = pairs(SHAPES[name]), tuple(axis for _, axis, _ in SHAPES[name])
    op = CopyRows(axes=axes, rows=ROWS)
    wanted = expected(axes, found, ROWS)
    for call in CpuBackend().bind(
        op, [x.copy() if i % 2 == 0 else x for pair in found for i, x in enumerate(pair)], (), (), ()
    ):
        call()
    for (_, target), right in zip(found, wanted):
        np.testing.assert_array_equal(target, right)
    found, backend = pairs(SHAPES[name]), CudaBackend()
    with backend.active():
        arrays = [backend.constant(x) for pair in found for x in pair]
        calls = backend.bind(op, arrays, (), (), ())
        for call in calls:
            call()
        backend.synchronize()
        for target, right in zip(arrays[1::2], wanted):
            np.testing.assert_array_equal(backend.to_host(target), right)
    assert len(calls) == (2 if name == "more-than-a-launch" else 1)


def test_many_rows(emulated: str) -> None:
    count = 2 * MAX_PAIRS + 3
    rows = tuple((i, count - 1 - i) for i in range(count))
    source = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    backend = CudaBackend()
    with backend.active():
        arrays = [backend.constant(source), backend.constant(np.zeros_like(source))]
        calls = backend.bind(CopyRows(axes=(0,), rows=rows), arrays, (), (), ())
        for call in calls:
            call()
        backend.synchronize()
        np.testing.assert_array_equal(backend.to_host(arrays[1]), source[::-1])
    assert len(calls) == 3


CACHES = {
    "16-bytes": [((3, 2, 9, 8), np.float32)] * 2,
    "8-bytes": [((3, 2, 9, 6), np.float32)],
    "4-bytes": [((3, 2, 9, 5), np.float32), ((3, 1, 9, 8), np.float16)],
    "2-bytes": [((3, 1, 9, 3), np.float16)],
    "1-byte": [((3, 2, 9, 3), np.int8)],
    "many": [((3, 2, 9, 8), np.float32)] * 9,
    "more-than-a-launch": [((3, 1, 9, 4), np.float32)] * 35,
    "long": [((3, 40, 9, 1024), np.float32)],
}


@pytest.mark.parametrize(
    ("count", "moves", "cleared"),
    [
        (1, ((2, 0), (0, 4)), (1,)),
        (4, ((1, 3), (2, 0)), ()),
        (4, ((0, 4),), (1, 2)),
        (2, (), (0, 2)),
    ],
    ids=["one-row", "overlapping", "shifted-by-one", "cleared"],
)
@pytest.mark.parametrize("name", CACHES)
def test_rows_of_caches_are_moved(name: str, count: int, moves: Any, cleared: Any, emulated: str) -> None:
    rng = np.random.default_rng(0)
    caches = [rng.integers(-99, 99, shape).astype(dtype) for shape, dtype in CACHES[name]]
    wanted = [x.copy() for x in caches]
    for x, old in zip(wanted, caches):
        for slot, target in moves:
            x[slot, :, target : target + count] = old[slot, :, 5 : 5 + count]
        x[list(cleared), :, 5 : 5 + count] = 0
    op = MoveRows(axis=2, source=5, count=count, moves=moves, cleared=cleared)
    backend = CudaBackend()
    with backend.active():
        arrays = [backend.constant(x) for x in caches]
        calls = backend.bind(op, arrays, (), (), ())
        for call in calls:
            call()
        backend.synchronize()
        for x, right in zip(arrays, wanted):
            np.testing.assert_array_equal(backend.to_host(x), right)
    assert len(calls) == (2 if name == "more-than-a-launch" else 1)
    for call in CpuBackend().bind(op, caches, (), (), ()):
        call()
    for x, right in zip(caches, wanted):
        np.testing.assert_array_equal(x, right)


def larger(shape: tuple[int, ...], capacity: int) -> tuple[int, ...]:
    """Return the shape of a cache with 4 slots of another capacity."""
    return (4, shape[1], capacity, shape[3])


@pytest.mark.parametrize("capacity", [9, 12, 7], ids=["same-capacity", "larger", "smaller"])
@pytest.mark.parametrize("name", CACHES)
def test_tokens_are_copied_to_other_caches(name: str, capacity: int, emulated: str) -> None:
    rng = np.random.default_rng(0)
    sources = [rng.integers(-99, 99, shape).astype(dtype) for shape, dtype in CACHES[name]]
    targets = [rng.integers(-99, 99, larger(shape, capacity)).astype(dtype) for shape, dtype in CACHES[name]]
    slots = ((2, 0, 5, capacity), (0, 3, 0, 7), (1, 1, 7, 7))
    wanted = [x.copy() for x in targets]
    for x, old in zip(wanted, sources):
        for a, b, copied, end in slots:
            x[b, :, :copied], x[b, :, copied:end] = old[a, :, :copied], 0
    op, backend = CopyTokens(axis=2, slots=slots), CudaBackend()
    with backend.active():
        arrays = [backend.constant(x) for pair in zip(sources, targets) for x in pair]
        calls = backend.bind(op, arrays, (), (), ())
        for call in calls:
            call()
        backend.synchronize()
        for x, right in zip(arrays[1::2], wanted):
            np.testing.assert_array_equal(backend.to_host(x), right)
    assert len(calls) == (2 if name == "more-than-a-launch" else 1)
    for call in CpuBackend().bind(op, [x for pair in zip(sources, targets) for x in pair], (), (), ()):
        call()
    for x, right in zip(targets, wanted):
        np.testing.assert_array_equal(x, right)


def test_tokens_of_many_slots_are_cleared_in_place(emulated: str) -> None:
    """A launch for each `MAX_TOKEN_ROWS` slots; tokens that are kept are not written."""
    count = 2 * MAX_TOKEN_ROWS + 1
    cache = np.arange(1, 1 + count * 6, dtype=np.float32).reshape(count, 1, 6, 1)
    wanted = cache.copy()
    for i in range(count):
        wanted[i, :, i % 6 : 5] = 0
    op, backend = CopyTokens(axis=2, slots=tuple((i, i, i % 6, 5) for i in range(count))), CudaBackend()
    with backend.active():
        array = backend.constant(cache)
        calls = backend.bind(op, [array, array], (), (), ())
        for call in calls:
            call()
        backend.synchronize()
        np.testing.assert_array_equal(backend.to_host(array), wanted)
    assert len(calls) == 3
    for call in CpuBackend().bind(op, [cache, cache], (), (), ()):
        call()
    np.testing.assert_array_equal(cache, wanted)
