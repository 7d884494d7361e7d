"""KV cache writes of a decode step on the emulated device, at a position that only the device knows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import Op
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused.kv_cache import CacheWrite
from ovgpu.ops.fused.rotary import RotaryCacheWrite
from tests.emulator import cupy_emu

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
HAD = 3, 0, 5  # rows of the cache before each draw
CAPACITY = 9


def check(backend: CudaBackend, op: Op, shapes: list[Any], kind: str = "f32", rows: int = 1,
          tolerance: float | None = None) -> None:
    """Check the op, which is one kernel, in an eager run and two replays of its graph, with another length each time.

    Inputs are random numbers of these shapes, or absent where a shape is None, and the lengths."""
    dtype, random = np.dtype(KINDS[kind]), np.random.default_rng(1)
    limit = TOLERANCE[dtype.name] if tolerance is None else tolerance
    inputs = [None if s is None else cupy_emu.empty(s, dtype) for s in shapes]
    lengths, launcher = cupy_emu.empty((2,), np.int64), Launcher(backend.stream, backend.blas)
    graph = outputs = None
    for had in HAD:
        values = [None if s is None else random.standard_normal(s).astype(dtype) for s in shapes]
        counts = np.array([had, had + rows])
        wanted = op.evaluate(NUMPY, *(None if v is None else v.astype(np.float64) for v in values), counts)
        for array, value in [*zip(inputs, values), (lengths, counts)]:
            if array is not None:
                array[...] = cupy_emu.asarray(value)
        if outputs is None:
            outputs = [inputs[op.updates[i][0]] if i in op.updates else cupy_emu.empty(want.shape, dtype)
                       for i, want in enumerate(wanted)]
            assert op.cuda is not None and op.cuda(launcher, [*inputs, lengths], outputs, ()) is None
            for call in launcher.calls:
                call()
        else:
            if graph is None:
                backend.stream.begin_capture()
                for call in launcher.calls:
                    call()
                graph = backend.stream.end_capture()
            graph.launch(backend.stream)
        backend.synchronize()
        for out, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(out.get().astype(np.float64), want, limit, limit)
    assert len(launcher.calls) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_cache_write(kind: str, rows: int, backend: CudaBackend) -> None:
    check(backend, CacheWrite(axis=2), [(2, 3, CAPACITY, 16), (2, 3, rows, 16)], kind, rows, 0)


@pytest.mark.parametrize(("axis", "cache", "new"), [
    (1, (2, CAPACITY), (2, 1)), (3, (2, 3, 5, CAPACITY), (2, 3, 5, 2)), (1, (2, CAPACITY, 3, 7), (2, 1, 3, 7))])
def test_cache_write_along_other_axes(axis: int, cache: Any, new: Any, backend: CudaBackend) -> None:
    check(backend, CacheWrite(axis=axis), [cache, new], rows=new[axis], tolerance=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [RotaryCacheWrite(size=16), RotaryCacheWrite(size=16, pairs=True),
                                RotaryCacheWrite(size=8)])
@pytest.mark.parametrize("each", [1, 2])
def test_rotary_append(op: RotaryCacheWrite, each: int, kind: str, backend: CudaBackend) -> None:
    """Six query heads share two key heads; factors are per element or per pair."""
    factors = (2, 1, 1, op.size // each)
    check(backend, op, [(2, 6, 1, 16), (2, 2, 1, 16), (2, 2, 1, 24), factors, factors, (2, 2, CAPACITY, 16),
                        (2, 2, CAPACITY, 24)], kind)


@pytest.mark.parametrize("batch", [1, 2])
def test_rotary_append_of_several_rows(batch: int, backend: CudaBackend) -> None:
    """Factors are broadcast along the batch or not; rows are too short for vectors."""
    factors = (batch, 1, 3, 6)
    check(backend, RotaryCacheWrite(size=6), [(2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 3, 5), factors, factors,
                                              (2, 2, CAPACITY, 7), (2, 2, CAPACITY, 5)], rows=3)


@pytest.mark.parametrize(("queries", "mask"), [
    (1, None), (1, (2, 1, 1, CAPACITY)), (3, (1, 1, 3, CAPACITY)), (9, None)])
@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_attention(queries: int, mask: Any, kind: str, backend: CudaBackend) -> None:
    """Keys beyond the current length are not read, though the mask does not hide them."""
    cache = (2, 3, CAPACITY, 16)
    check(backend, CachedAttention(), [(2, 3, queries, 16), cache, cache, mask, None, None], kind, 1,
          {"f32": 2e-6, "f16": 2e-3, "f64": 1e-6}[kind])
