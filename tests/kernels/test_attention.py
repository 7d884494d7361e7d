"""Attention on the emulated device against NumPy: many queries and few, masks, grouped heads, split keys."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.xp import NUMPY
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import replay, run_calls

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}


def attend(
    backend: CudaBackend,
    q: Shape,
    key: Shape,
    v: Shape,
    mask: Shape | None = None,
    sink: Shape | None = None,
    scale: bool = False,
    kind: Any = np.float32,
    causal: bool = False,
    hidden: bool = False,
    swapped: bool = False,
) -> list[Any]:
    """Check attention eagerly and replayed; return the recorded calls. With ``swapped``, arrays of shape
    [B, L, H, E] are read and written as [B, H, L, E]."""
    op, kind = ScaledDotProductAttention(causal=causal), np.dtype(kind)
    shapes = [q, key, v, () if mask is None else mask, () if scale else None, sink]
    while shapes[-1] is None:
        shapes.pop()
    random = np.random.default_rng(1)

    def draw(i: int, shape: Shape | None) -> Array | None:
        if shape is None:
            return None
        if i == 3 and hidden:
            visible = random.random(shape) < 0.5
            visible[..., :1] = True
            return visible
        return np.asarray(random.standard_normal(shape) * (0 if shape == () and i == 3 else 1)).astype(kind)

    draws = [[draw(i, shape) for _ in range(3)] for i, shape in enumerate(shapes)]

    def read(x: Any, i: int) -> Any:
        return x.swapaxes(1, 2) if swapped and i < 3 else x

    def wanted(n: int) -> list[Array]:
        given = [
            None if d[n] is None else d[n] if d[n].dtype == bool else read(d[n], i).astype(np.float64)
            for i, d in enumerate(draws)
        ]
        return [read(op.evaluate(NUMPY, *given)[0].astype(kind), 0)]

    inputs = [None if d[0] is None else cupy_emu.empty(d[0].shape, d[0].dtype) for d in draws]
    out = cupy_emu.empty(wanted(0)[0].shape, kind)
    recorded: list[Any] = []

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        given = [None if x is None else read(x, i) for i, x in enumerate(inputs)]
        assert op.cuda(launcher, given, [read(out, 0)], ()) is None
        recorded.extend(launcher.calls)
        return launcher.calls

    pairs = [(x, d) for x, d in zip(inputs, draws) if x is not None]
    rounds = backend.blas.tf32 and kind == np.float32
    replay(backend, record, pairs, [out], wanted, TOLERANCE["float16" if rounds else kind.name])  # as many bits
    return recorded


def attend_hidden(backend: CudaBackend, keys: int, kind: Any, lowest: bool) -> None:
    """Check 9 queries whose mask hides all keys: a boolean mask gives NaN, and a mask of the lowest number of
    ``kind``, in which scores vanish, gives the mean of the values."""
    q, key, v = (np.random.default_rng(i).standard_normal((n, 8)).astype(kind) for i, n in enumerate((9, keys, keys)))
    hidden = np.full((9, keys), ml_dtypes.finfo(kind).min) if lowest else np.zeros((9, keys), bool)
    out = cupy_emu.empty((9, 8), kind)
    launcher = Launcher(backend.stream, backend.blas)
    assert (
        ScaledDotProductAttention().cuda(launcher, [cupy_emu.asarray(x) for x in (q, key, v, hidden)], [out], ())
        is None
    )
    run_calls(launcher.calls)
    wanted = np.broadcast_to(v.astype("f4").mean(axis=0), out.shape) if lowest else np.full(out.shape, np.nan)
    np.testing.assert_allclose(out.get().astype("f4"), wanted, 1.6e-2, 1.6e-2)


def name(calls: list[Any]) -> str:
    return str(calls[-1].func.name)


MANY = [
    {"q": (2, 3, 65, 6), "key": (2, 3, 70, 6), "v": (2, 3, 70, 5)},
    {"q": (1, 9, 33), "key": (1, 7, 33), "v": (1, 7, 65)},
    {"q": (2, 2, 70, 8), "key": (2, 2, 70, 8), "v": (2, 2, 70, 8), "causal": True},
    {"q": (1, 70, 8), "key": (1, 30, 8), "v": (1, 30, 8), "causal": True, "sink": (1, 1, 1), "scale": True},
    {"q": (2, 2, 10, 8), "key": (2, 2, 66, 8), "v": (2, 2, 66, 8), "mask": (2, 1, 10, 66)},
    {"q": (2, 2, 10, 8), "key": (2, 2, 66, 8), "v": (2, 2, 66, 8), "mask": (10, 66), "hidden": True},
    {"q": (2, 2, 10, 8), "key": (2, 1, 66, 8), "v": (2, 1, 66, 8), "mask": (1, 66), "hidden": True,
     "sink": (2, 2, 10, 1)},
    {"q": (2, 10, 3, 8), "key": (2, 12, 3, 8), "v": (2, 12, 3, 8), "swapped": True},
    {"q": (1, 9, 4), "key": (1, 3, 4), "v": (1, 3, 200)},
]  # fmt: skip
FEW = [
    {"q": (2, 3, 1, 8), "key": (2, 3, 70, 8), "v": (2, 3, 70, 8)},
    {"q": (1, 1, 3, 6), "key": (1, 1, 200, 6), "v": (1, 1, 200, 5), "causal": False},
    {"q": (1, 2, 4, 1, 16), "key": (1, 2, 1, 150, 16), "v": (1, 2, 1, 150, 16), "mask": (1, 1, 1, 1, 150)},
    {"q": (1, 2, 6, 1, 16), "key": (1, 2, 1, 15, 16), "v": (1, 2, 1, 15, 16), "sink": (1, 2, 6, 1, 1), "scale": True},
    {"q": (2, 1, 130), "key": (2, 140, 130), "v": (2, 140, 256), "mask": (1, 140), "hidden": True},
    {"q": (1, 5, 128), "key": (1, 130, 128), "v": (1, 130, 72), "causal": True, "sink": (1, 5, 1)},
    {"q": (1, 1, 2, 12), "key": (1, 140, 2, 12), "v": (1, 140, 2, 12), "swapped": True},
    {"q": (3, 2, 8), "key": (3, 1, 8), "v": (3, 1, 8)},
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", MANY)
def test_many_queries(case: dict[str, Any], backend: CudaBackend) -> None:
    assert name(attend(backend, **case)).startswith("attend_tiles")


@pytest.mark.drawn(2)
@pytest.mark.parametrize("case", FEW)
def test_few_queries(case: dict[str, Any], backend: CudaBackend) -> None:
    calls = attend(backend, **case)
    assert len(calls) == 1 and name(calls).startswith("attend_split")


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("queries", [1, 3, 20])
def test_short_types(kind: Any, queries: int, backend: CudaBackend) -> None:
    attend(backend, (1, 2, queries, 32), (1, 2, 130, 32), (1, 2, 130, 16), (queries, 130), kind=kind)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", [MANY[0], MANY[3], MANY[6], MANY[8], *FEW[2:6]])
def test_f64(case: dict[str, Any], backend: CudaBackend) -> None:
    """One kernel serves any number of queries."""
    calls = attend(backend, **case, kind=np.float64)
    assert len(calls) == 1 and name(calls).startswith("attend_split<double")


def test_grouped_heads_are_queries_of_one_head(backend: CudaBackend) -> None:
    calls = attend(backend, (1, 2, 4, 1, 64), (1, 2, 1, 130, 64), (1, 2, 1, 130, 64))
    assert ", 4, 8, 4, " in name(calls)  # vectors of 4, 8 elements per lane, 4 queries
    grid, _, _ = calls[0].args[:3]
    assert grid == (2, 2)


def test_keys_without_a_unit_stride_are_copied(backend: CudaBackend) -> None:
    draws = [np.random.default_rng(i).standard_normal((1, 2, 8, 20)).astype(np.float32) for i in range(3)]
    transposed, q = cupy_emu.empty((1, 2, 8, 20), np.float32), cupy_emu.asarray(draws[0][..., :3].swapaxes(2, 3).copy())
    out = cupy_emu.empty((1, 2, 3, 8), np.float32)
    op = ScaledDotProductAttention()

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        key = transposed.swapaxes(2, 3)
        assert op.cuda(launcher, (q, key, key), [out], ()) is None
        return launcher.calls

    replay(
        backend,
        record,
        [(transposed, draws)],
        [out],
        lambda i: list(op.evaluate(NUMPY, q.get(), draws[i].swapaxes(2, 3), draws[i].swapaxes(2, 3))),
        2e-5,
    )


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
@pytest.mark.parametrize("queries", [2, 70])
def test_orders_of_threads(order: Any, queries: int, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        attend(backend, (1, queries, 40), (1, 140, 40), (1, 140, 40), sink=(1, queries, 1))


def test_a_fully_masked_row_is_nan(backend: CudaBackend) -> None:
    for queries in (1, 9):
        q, key = (cupy_emu.asarray(np.ones((1, n, 4), np.float32)) for n in (queries, 5))
        mask = cupy_emu.asarray(np.zeros((queries, 5), bool))
        out = cupy_emu.empty((1, queries, 4), np.float32)
        launcher = Launcher(backend.stream, backend.blas)
        assert ScaledDotProductAttention().cuda(launcher, (q, key, key, mask), [out], ()) is None
        run_calls(launcher.calls)
        assert np.isnan(out.get()).all()


def test_declines() -> None:
    x, wide = (cupy_emu.empty((1, 3, n), np.float32) for n in (4, _attention.MAX_WIDTH + 1))
    launcher = Launcher(None, None)
    assert ScaledDotProductAttention().cuda(launcher, (wide, wide, x), [x], ()) is NotImplemented


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"attend_tiles<{t}, {form}, {columns}, int, 2>"
        for t, form, columns in (
            ("float", "NONE", 1),
            ("float", "ADDED", 4),
            ("__half", "CAUSAL", 2),
            ("__nv_bfloat16", "BOOLEAN", 3),
        )
    ]
    for t, vector in (("float", 4), ("__half", 8), ("__nv_bfloat16", 8)):
        expressions += [
            f"attend_split<{t}, NONE, {vector}, 8, 1, int, 2>",
            f"attend_split<{t}, ADDED, {vector}, 16, 4, int, 2>",
        ]
    expressions += ["attend_split<float, BOOLEAN, 1, 32, 1, long long, 4>"]
    expressions += [
        f"attend_split<double, {form}, {vector}, {each}, 1, {index}>"
        for form, vector, each, index in (
            ("NONE", 2, 8, "int, 2"),
            ("ADDED", 2, 16, "int, 2"),
            ("CAUSAL", 1, 16, "int, 4"),
            ("BOOLEAN", 2, 16, "long long, 8"),
        )
    ]
    expressions = to_compile("attention.cu", expressions)
    usage = nvrtc.compile_file("attention.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
