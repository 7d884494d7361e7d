"""Copies of rows between batches: the states of sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.fused.copy_rows import MAX_PAIRS, CopyRows

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


def test_numbers_of_pages(emulated: str) -> None:
    """A pool of KV caches has more pages than 16 bits count; they are copied within it."""
    pool = np.arange(140_000, dtype=np.float32).reshape(70_000, 2)
    backend, rows = CudaBackend(), ((69_999, 65_537), (3, 4))
    wanted = pool.copy()
    wanted[[65_537, 4]] = pool[[69_999, 3]]
    with backend.active():
        array = backend.constant(pool)
        for call in backend.bind(CopyRows(axes=(0,), rows=rows), [array, array], (), (), ()):
            call()
        backend.synchronize()
        np.testing.assert_array_equal(backend.to_host(array), wanted)
    for call in CpuBackend().bind(CopyRows(axes=(0,), rows=rows), [pool, pool], (), (), ()):
        call()
    np.testing.assert_array_equal(pool, wanted)
