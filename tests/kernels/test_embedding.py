"""Embedding bags and segments on the emulated device: shares of a block, vectors, and indices out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.sparse.embedding import (
    EmbeddingBagOffsets,
    EmbeddingBagPacked,
    EmbeddingBagPackedSum,
    EmbeddingSegmentsSum,
)
from ovgpu.ops.sparse.segments import SegmentMax
from tests.emulator import cupy_emu, nvrtc
from tests.kernels.recorded import draws, replay, run_op

from .gate import ToCompile

SHAPES = [  # rows of the table, columns, bags, indices
    (9, (3,), 5, 40),
    (9, (40,), 5, 40),
    (9, (2, 6), 70, 100),
    (9, (), 300, 500),
    (9, (5,), 1, 700),
    (9, (64,), 2, 300),
    (9, (2100,), 2, 9),
    (9, (1, 1, 300), 3, 200),
]
VECTORS = [(np.float32, 4), (np.float64, 2), (np.int8, 16), (np.uint16, 8), (np.float16, 8)]


def offsets(bags: int, count: int) -> list[Any]:
    return [np.sort(x) for x in draws((bags,), np.int64, 0, count + 1)]


def ids(count: int, segments: int) -> list[Any]:
    return [np.sort(x) for x in draws((count,), np.int64, 0, segments)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shares(shape: Any, backend: CudaBackend) -> None:
    rows, columns, bags, count = shape
    table, indices = draws((rows, *columns), np.float32, -9, 9), draws((count,), np.int64, 0, rows)
    default, weights = np.array(2), draws((count,), np.float32, -3, 3)
    run_op(backend, EmbeddingBagOffsets(), [table, indices, offsets(bags, count), default, weights])
    run_op(backend, EmbeddingSegmentsSum(), [table, indices, ids(count, bags), np.array(bags + 1), default, weights])
    run_op(
        backend,
        SegmentMax(fill_mode="lowest"),
        [draws((count, *columns), np.float32, -9, 9), ids(count, bags), np.array(bags + 1)],
    )


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("kind", "vector"), VECTORS, ids=lambda v: getattr(v, "__name__", str(v)))
def test_vectors(kind: Any, vector: int, backend: CudaBackend) -> None:
    low = 0 if kind is np.uint16 else -9
    for columns, expected in ((3 * vector, vector), (3 * vector + 1, 1)):
        table, indices = draws((7, columns), kind, low, 9), draws((4, 3), np.int32, 0, 7)
        named = f"{Launcher.c_type(np.dtype(kind))}, int, {expected}>"
        assert run_op(backend, EmbeddingBagPackedSum(), [table, indices]) == [f"embedding_bag<{named}"]
        numbers = [np.array([0, 0, 1, 3, 3, 3, 5], np.int32)] * 3
        assert run_op(backend, SegmentMax(), [table, numbers, np.array(6)]) == [f"segment_max<{named}"]


@pytest.mark.parametrize("kind", [np.int64, np.uint64, np.int8, np.uint8], ids=lambda k: np.dtype(k).name)
def test_means_of_integers(kind: Any, backend: CudaBackend) -> None:
    """Sums do not overflow before they are divided."""
    low, high = np.iinfo(kind).min // 2, np.iinfo(kind).max // 2
    table = [np.random.default_rng(draw).integers(low, high, (7, 3), kind) for draw in range(3)]
    few = [np.array([[0, 1], [3, 2], [5, 5]], np.int32)] * 3
    run_op(backend, EmbeddingBagPacked(reduction="mean"), [table, few])


def on_device(backend: CudaBackend, op: Any, inputs: Any, expected: Any) -> None:
    """Check the kernel of an op where its definition raises. Inputs of rank 0 stay on the host."""
    device = [x if x.ndim == 0 else cupy_emu.asarray(x) for x in inputs]
    out, launcher = cupy_emu.empty(expected.shape, expected.dtype), Launcher(backend.stream, backend.blas)
    op.cuda(launcher, device, [out], ())
    replay(backend, lambda: launcher.calls, [], [out], lambda draw: [expected])


def test_indices_out_of_range(backend: CudaBackend) -> None:
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    far = np.array([1, 4, -1, 2, 2**40, -(2**40), 3])
    bags = np.stack([table[1], table[2] + table[3], np.zeros(3, np.float32)])
    on_device(backend, EmbeddingBagOffsets(), [table, far, np.array([0, 3, 7])], bags)
    for starts in ([-5, 2, 99], [6, 0, 3], [2**40, -(2**40), 5]):  # no index out of bounds is read
        on_device(backend, EmbeddingBagOffsets(), [np.zeros_like(table), far, np.array(starts)], np.zeros((3, 3), "f4"))
    for numbers in ([3, 0, 2, 1, 9, -4, 1], [9] * 7, [-1] * 7):
        on_device(
            backend,
            SegmentMax(),
            [np.zeros((7, 3), np.float32), np.array(numbers), np.array(4)],
            np.zeros((4, 3), np.float32),
        )


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    kinds = [("float", 4), ("double", 2), ("__half", 8), ("signed char", 16), ("long long", 2)]
    for file, kernel in (("embedding.cu", "embedding_bag"), ("segments.cu", "segment_max")):
        expressions = to_compile(file, [f"{kernel}<{kind}, long long, {v}>" for kind, v in kinds])
        usage = nvrtc.compile_file(file, architecture, expressions).usage
        assert len(usage) == len(expressions)
        assert not any(u.spill_stores or u.spill_loads for u in usage.values())
