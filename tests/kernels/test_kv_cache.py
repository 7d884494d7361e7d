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
from ovgpu.ops.fused.rotary_attention import RotaryAttention
from tests.emulator import cupy_emu

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
HAD = 3, 0, 5  # rows of the cache before each draw
CAPACITY = 9


def check(
    backend: CudaBackend,
    op: Op,
    shapes: list[Any],
    kind: str = "f32",
    rows: int = 1,
    tolerance: float | None = None,
    scratch: Any = None,
) -> int:
    """Check the op in an eager run and two replays of its graph, with another length each time; return the number of
    its kernels.

    Inputs are random numbers of these shapes, or absent where a shape is None, and the lengths. ``scratch`` is the
    shape of its workspace."""
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
        backend.synchronize()  # early launches read lengths before they wait, which copies write in an inference
        if outputs is None:
            outputs = [
                inputs[op.updates[i][0]] if i in op.updates else cupy_emu.empty(want.shape, dtype)
                for i, want in enumerate(wanted)
            ]
            workspace = () if scratch is None else (cupy_emu.empty(scratch, dtype),)
            assert op.cuda is not None and op.cuda(launcher, [*inputs, lengths], outputs, workspace) is None
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
    return len(launcher.calls)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3])
def test_cache_write(kind: str, rows: int, backend: CudaBackend) -> None:
    assert 1 == check(backend, CacheWrite(axis=2), [(2, 3, CAPACITY, 16), (2, 3, rows, 16)], kind, rows, 0)


@pytest.mark.parametrize(
    ("axis", "cache", "new"),
    [(1, (2, CAPACITY), (2, 1)), (3, (2, 3, 5, CAPACITY), (2, 3, 5, 2)), (1, (2, CAPACITY, 3, 7), (2, 1, 3, 7))],
)
def test_cache_write_along_other_axes(axis: int, cache: Any, new: Any, backend: CudaBackend) -> None:
    assert 1 == check(backend, CacheWrite(axis=axis), [cache, new], rows=new[axis], tolerance=0)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "op", [RotaryCacheWrite(size=16), RotaryCacheWrite(size=16, pairs=True), RotaryCacheWrite(size=8)]
)
@pytest.mark.parametrize("each", [1, 2])
def test_rotary_append(op: RotaryCacheWrite, each: int, kind: str, backend: CudaBackend) -> None:
    """Six query heads share two key heads; factors are per element or per pair."""
    factors = (2, 1, 1, op.size // each)
    assert 1 == check(
        backend,
        op,
        [(2, 6, 1, 16), (2, 2, 1, 16), (2, 2, 1, 24), factors, factors, (2, 2, CAPACITY, 16), (2, 2, CAPACITY, 24)],
        kind,
    )


@pytest.mark.parametrize("batch", [1, 2])
def test_rotary_append_of_several_rows(batch: int, backend: CudaBackend) -> None:
    """Factors are broadcast along the batch or not; rows are too short for vectors."""
    factors = (batch, 1, 3, 6)
    assert 1 == check(
        backend,
        RotaryCacheWrite(size=6),
        [(2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 3, 5), factors, factors, (2, 2, CAPACITY, 7), (2, 2, CAPACITY, 5)],
        rows=3,
    )


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("queries", "mask"), [(1, None), (1, (2, 1, 1, CAPACITY)), (3, (1, 1, 3, CAPACITY)), (9, None)]
)
@pytest.mark.parametrize("kind", ["f32", "f16", "f64"])
def test_attention(queries: int, mask: Any, kind: str, backend: CudaBackend) -> None:
    """Keys beyond the current length are not read, though the mask does not hide them."""
    cache = (2, 3, CAPACITY, 16)
    assert 1 == check(
        backend,
        CachedAttention(),
        [(2, 3, queries, 16), cache, cache, mask, None, None],
        kind,
        1,
        {"f32": 2e-6, "f16": 2e-3, "f64": 1e-6}[kind],
    )


def rotary_attention(
    batch: int = 2,
    heads: int = 6,
    groups: int = 2,
    depth: int = 64,
    width: int = 64,
    each: int = 1,
    grouped: bool = True,
    mask: bool = True,
    scale: bool = False,
    sink: bool = False,
    **rotary: Any,
) -> tuple[Op, list[Any], Any]:
    """Return the op, the shapes of its inputs but the lengths, and of its workspace."""
    op = RotaryAttention(
        rotary=RotaryCacheWrite(**{"size": depth} | rotary), attention=CachedAttention(), grouped=grouped
    )
    factors, q = (batch, 1, 1, depth // each), (batch, heads, 1, depth)
    axes = (1,) * grouped
    lead = (batch, groups, heads // groups) if grouped else (batch, heads)
    return (
        op,
        [
            q,
            (batch, groups, 1, depth),
            (batch, groups, 1, width),
            factors,
            factors,
            (batch, groups, CAPACITY, depth),
            (batch, groups, CAPACITY, width),
            (batch, *axes, 1, 1, CAPACITY) if mask else None,
            () if scale else None,
            (*(1 for _ in lead[:-1]), lead[-1], 1, 1) if sink else None,
        ],
        q,
    )


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"each": 2},
        {"depth": 128, "width": 128},
        {"width": 40},
        {"heads": 2},
        {"groups": 1, "heads": 20},
        {"grouped": False, "groups": 3, "heads": 3},
        {"batch": 1, "mask": False},
        {"scale": True},
        {"sink": True},
    ],
    ids=str,
)
def test_rotary_attention(options: dict[str, Any], kind: str, backend: CudaBackend) -> None:
    """One kernel rotates, appends and attends."""
    op, shapes, scratch = rotary_attention(**options)
    assert check(backend, op, shapes, kind, 1, {"f16": 6e-3, "bf16": 5e-2}[kind], scratch) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 32, "width": 32},
        {"depth": 96, "width": 96},
        {"size": 32},
        {"pairs": True, "each": 2},
        {"depth": 192, "width": 192},
    ],
    ids=str,
)
def test_rotary_attention_in_two_kernels(options: dict[str, Any], backend: CudaBackend) -> None:
    """Other widths, partial rotation, and neighbours as pairs."""
    op, shapes, scratch = rotary_attention(**options)
    if "size" in options:
        shapes[3] = shapes[4] = (2, 1, 1, options["size"])
    assert check(backend, op, shapes, "f16", 1, 6e-3, scratch) == 2


def test_rotary_attention_of_other_types(backend: CudaBackend) -> None:
    for kind, tolerance in (("f32", 2e-5), ("f64", 1e-6)):
        op, shapes, scratch = rotary_attention()
        assert check(backend, op, shapes, kind, 1, tolerance, scratch) == 2


def test_rotary_attention_of_several_rows(backend: CudaBackend) -> None:
    op, shapes, scratch = rotary_attention(batch=1)
    shapes = [(*s[:-2], 3, s[-1]) if i < 5 else s for i, s in enumerate(shapes)]
    assert check(backend, op, shapes, "f16", 3, 6e-3, (*scratch[:-2], 3, scratch[-1])) == 2


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_rotary_attention_in_other_orders(order: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are split among several blocks, of which one appends."""
    monkeypatch.setattr("tests.kernels.test_kv_cache.CAPACITY", 1000)
    monkeypatch.setattr("tests.kernels.test_kv_cache.HAD", (900, 127, 128))
    with cupy_emu.thread_order(order):
        op, shapes, scratch = rotary_attention(batch=1)
        assert check(backend, op, shapes, "f16", 1, 6e-3, scratch) == 1
