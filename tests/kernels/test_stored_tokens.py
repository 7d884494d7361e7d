"""KV caches that are stored in another type than attention computes in: writes are NumPy's bit for bit; attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.attention.stored_attention import StoredAttention
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused.kv_cache import CacheWrite, QuantizeTokens
from ovgpu.ops.fused.rotary import RotaryCacheWrite
from ovgpu.ops.fused.rotary_attention import RotaryAttention
from ovgpu.ops.fused.stored_tokens import dequantize_tokens, quantize_tokens, stored
from ovgpu.spec import Spec
from ovgpu.types import Type
from tests.emulator import cupy_emu

from .recorded import kernel_name
from .test_pages import Sequences

Array = np.ndarray[Any, Any]
KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "u8": np.uint8}
LIMIT = {"f32": 2e-5, "f16": 6e-3, "bf16": 5e-2}  # of attention, as for caches of its own type
LENGTHS = (5, 0, 16, 33)  # tokens of sequences before the inference


def run(backend: CudaBackend, op: Op, inputs: Sequence[Any]) -> tuple[list[str], Any, Any]:
    """Run an op on the card, then its graph. Return the kernels, the outputs, and those of `evaluate`."""
    dtype = next(x.dtype for x in inputs if x is not None)
    kinds = [inputs[op.updates[i][0]].dtype if i in op.updates else None for i in range(3)]
    own = np.dtype(np.uint8) if isinstance(op, QuantizeTokens) else dtype
    count = len(op.updates) + (not isinstance(op, CacheWrite))
    types = [Type.of(kind or own) for kind in kinds[:count]]
    wanted = evaluate(op, NUMPY, [None if x is None else x.copy() for x in inputs], types)
    arrays = [None if x is None else cupy_emu.asarray(x) for x in inputs]
    outputs = [
        arrays[op.updates[i][0]] if i in op.updates else cupy_emu.empty(x.shape, x.dtype) for i, x in enumerate(wanted)
    ]
    launcher = Launcher(backend.stream, backend.blas)
    given, results = (
        [None if x is None else Spec(Type.of(x.dtype), x.shape) for x in each] for each in (inputs, wanted)
    )
    workspace = [cupy_emu.empty(shape, kind.storage) for kind, shape in op.workspace(given, results)]
    assert op.cuda is not None and op.cuda(launcher, arrays, outputs, workspace) is None
    backend.synchronize()
    for call in launcher.calls:
        call()
    backend.synchronize()
    first = [x.get() for x in outputs]
    backend.stream.begin_capture()
    for call in launcher.calls:
        call()
    backend.stream.end_capture().launch(backend.stream)
    backend.synchronize()
    for x, again in zip(first, outputs):
        np.testing.assert_array_equal(x.view(np.uint8), again.get().view(np.uint8))
    return [kernel_name(call) for call in launcher.calls], first, wanted


def draw(seed: int, shape: Sequence[int], kind: str) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(KINDS[kind])


def check_stored(found: Array, wanted: Array, steps: float = 0) -> None:
    """Compare caches bit for bit, or their elements up to a number of steps between codes."""
    if not steps:
        np.testing.assert_array_equal(found.view(np.uint8), wanted.view(np.uint8))
        return
    if found.dtype != np.uint8:
        np.testing.assert_allclose(found.astype("f4"), wanted.astype("f4"), 2e-2, 1e-2)
        return
    a, b = dequantize_tokens(NUMPY, found), dequantize_tokens(NUMPY, wanted)
    empty = np.isnan(b).all(axis=-1)
    assert (np.isnan(a).all(axis=-1) == empty).all()
    a, b = a[~empty], b[~empty]
    step = (b.max(axis=-1, keepdims=True) - b.min(axis=-1, keepdims=True)) / 255
    assert (abs(a - b) <= steps * step + 1e-2 * abs(b)).all()


# ---- what is stored


def test_rows_of_u8() -> None:
    x = np.array([[-1.0, 0, 1.55, 0.3], [2, 2, 2, 2], [0, 255, 1, 127.5]], np.float32)
    rows = quantize_tokens(NUMPY, x)
    np.testing.assert_array_equal(rows[:, :4], [[0, 100, 255, 130], [0, 0, 0, 0], [0, 255, 1, 128]])
    np.testing.assert_array_equal(rows[:, 4:].copy().view("f4"), np.float32([[0.01, -1], [0, 2], [1, 0]]))
    error = abs(dequantize_tokens(NUMPY, rows) - x)
    assert (error <= (x.max(axis=1, keepdims=True) - x.min(axis=1, keepdims=True)) / 510 + 1e-6).all()
    np.testing.assert_array_equal(dequantize_tokens(NUMPY, np.zeros((1, 12), np.uint8)), np.zeros((1, 4)))


def test_rows_without_numbers() -> None:
    for wrong in (np.nan, np.inf, -np.inf):
        x = np.array([[1, wrong, 2, 3], [1, 2, 3, 4]], np.float32)
        restored = dequantize_tokens(NUMPY, quantize_tokens(NUMPY, x))
        assert np.isnan(restored[0]).all() and np.isfinite(restored[1]).all()


SPECIAL = [[7.0], [1e-40, 3e-40, 0], [3e38, -3e37, 1e30], [-1e-3, 1e3, 999.999], [1e-8, -1e-8, 0]]


@pytest.mark.parametrize(
    ("kind", "to", "width"),
    [("f32", "u8", 40), ("f16", "u8", 16), ("bf16", "u8", 7), ("f32", "f16", 16), ("f32", "bf16", 5)],
)
def test_writes(kind: str, to: str, width: int, backend: CudaBackend) -> None:
    """Codes and parameters are NumPy's bit for bit, in caches and in pages."""
    new = draw(1, (5, 3, 2, width), kind)
    for i, values in enumerate(SPECIAL):
        with np.errstate(over="ignore"):
            new[i, 1, 0] = np.resize(np.array(values), width).astype(KINDS[kind])
    size = width + 8 * (to == "u8")
    cache = np.zeros((5, 3, 9, size), KINDS[to])
    kernels, (found,), (wanted,) = run(backend, CacheWrite(axis=2), [cache, new, np.array([4, 6])])
    assert len(kernels) == 1 and kernels[0].startswith("store_tokens")
    check_stored(found, wanted)
    check_stored(found[:, :, 4:6], stored(NUMPY, new, np.dtype(KINDS[to])))
    sequences = Sequences(LENGTHS, 2)
    pool = np.zeros((sequences.capacity, 3, 16, size), KINDS[to])
    kernels, (found,), (wanted,) = run(backend, CacheWrite(axis=2), [pool, new, sequences.table(0)])
    assert len(kernels) == 1
    check_stored(found, wanted)


def test_rows_without_numbers_are_written(backend: CudaBackend) -> None:
    new = draw(2, (3, 40), "f32")
    new[0, 33], new[1, 2] = np.nan, np.inf
    kernels, (found,), _ = run(backend, QuantizeTokens(), [new])
    assert len(kernels) == 1
    assert np.isnan(dequantize_tokens(NUMPY, found[:2])).all()
    check_stored(found[2], quantize_tokens(NUMPY, new[2]))


@pytest.mark.parametrize(
    ("kind", "to", "pairs", "depth", "width"),
    [
        ("f32", "u8", False, 16, 24),
        ("f16", "u8", True, 40, 40),
        ("f32", "f16", True, 16, 16),
        ("bf16", "u8", False, 6, 5),
    ],
)
def test_rotary_writes(kind: str, to: str, pairs: bool, depth: int, width: int, backend: CudaBackend) -> None:
    """One kernel rotates queries and keys and stores keys and values; values are stored as they are."""
    size = depth - depth % 4
    shapes = [(5, 6, 1, depth), (5, 2, 1, depth), (5, 2, 1, width), (5, 1, 1, size), (5, 1, 1, size)]
    given = [draw(i, shape, kind) for i, shape in enumerate(shapes)]
    sequences, extra, op = Sequences(LENGTHS, 1), 8 * (to == "u8"), RotaryCacheWrite(size=size, pairs=pairs)
    for lead, last in (((5, 2, 9), np.array([4, 5])), ((sequences.capacity, 2, 16), sequences.table(0))):
        caches = [np.zeros((*lead, n + extra), KINDS[to]) for n in (depth, width)]
        kernels, (q, *found), (wanted_q, *wanted) = run(backend, op, [*given, *caches, last])
        assert len(kernels) == 1
        np.testing.assert_allclose(q.astype("f4"), wanted_q.astype("f4"), 1e-2, 1e-2)
        check_stored(found[0], wanted[0], 1.01)
        check_stored(found[1], wanted[1])


# ---- attention


def caches(kind: str, heads: tuple[int, ...], sizes: Sequence[int], sequences: Sequences | None) -> list[Array]:
    """Return caches of 40 tokens of 4 rows, or pools, in the type ``kind``."""
    found = []
    for i, n in enumerate(sizes):
        x = draw(i + 5, (5, *heads, 40, n), "f32")
        if sequences is not None:
            random = np.random.default_rng(i)
            x = sequences.pool((1, *heads, -1, n), 1 + len(heads), random, np.float32)
        found.append(stored(NUMPY, x, np.dtype(KINDS[kind])))
    return found


@pytest.mark.parametrize(
    ("kind", "of_cache", "queries", "depth", "width", "paged", "kernels"),
    [
        ("f16", "u8", 1, 64, 64, False, ["attend_stream"]),
        ("bf16", "u8", 3, 128, 40, True, ["attend_stream"]),
        ("f32", "u8", 1, 16, 24, False, ["attend_split"]),
        ("f32", "u8", 1, 16, 24, True, ["attend_split"]),
        ("f16", "u8", 2, 20, 7, False, ["attend_split"]),
        ("bf16", "u8", 1, 192, 192, True, ["attend_split"]),
        ("f32", "f16", 3, 20, 16, False, ["attend_split"]),
        ("f32", "f16", 3, 20, 16, True, ["attend_split"]),
        ("f32", "bf16", 1, 64, 64, False, ["attend_split"]),
        ("f16", "u8", 12, 64, 64, True, ["restore_tokens", "restore_tokens", "attend_"]),
        ("f32", "f16", 9, 16, 16, False, ["restore_tokens", "restore_tokens", "attend_tiles"]),
    ],
    ids=str,
)  # fmt: skip
def test_attention(
    kind: str,
    of_cache: str,
    queries: int,
    depth: int,
    width: int,
    paged: bool,
    kernels: list[str],
    backend: CudaBackend,
) -> None:
    """Attention in pages and in caches, of which it reads only the valid tokens."""
    sequences = Sequences([n + queries for n in LENGTHS], 0) if paged else None
    keys, values = caches(of_cache, (2, 1), (depth, width), sequences)
    last = np.array([40 - 3 - queries, 37])
    if sequences is None:
        keys[..., 37:, :], values[..., 37:, :] = 255, 255
    else:
        last = sequences.table(0)
    columns = 40 if sequences is None else sequences.width * 16
    mask = draw(3, (5, 1, 1, queries, columns), kind)
    inputs = [draw(4, (5, 2, 3, queries, depth), kind), keys, values, mask, None, None, last]
    found, (out,), (wanted,) = run(backend, CachedAttention(), inputs)
    assert all(name.startswith(kernel) for name, kernel in zip(found, kernels, strict=True)), found
    np.testing.assert_allclose(out.astype("f4"), wanted.astype("f4"), LIMIT[kind], LIMIT[kind])


@pytest.mark.parametrize("past", [False, True])
def test_prompts_attend_to_what_is_not_rounded(past: bool, backend: CudaBackend) -> None:
    """Tokens without others before them are taken as they are, as in OpenVINO."""
    q, new_keys, new_values = (draw(i, (1, 2, 9, 16), "f32") for i in range(3))
    before = draw(3, (1, 2, 4 * past, 16), "f32")
    keys, values = (quantize_tokens(NUMPY, np.concatenate([before, x], axis=2)) for x in (new_keys, new_values))
    inputs = [q, keys, values, None, None, None, new_keys, new_values]
    found, (out,), (wanted,) = run(backend, StoredAttention(), inputs)
    assert len(found) == (3 if past else 1)
    np.testing.assert_allclose(out, wanted, 2e-5, 2e-5)
    if not past:
        exact = StoredAttention().evaluate(NUMPY, q, new_keys, new_values, None, None, None, new_keys, new_values)[0]
        np.testing.assert_array_equal(wanted, exact)


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize(
    ("kind", "depth", "width", "paged"), [("f16", 64, 64, False), ("f16", 64, 64, True), ("bf16", 128, 40, True)]
)
def test_rotary_attention(kind: str, depth: int, width: int, paged: bool, backend: CudaBackend) -> None:
    """One kernel rotates, quantizes the new token and attends. Blocks share the keys of a long sequence."""
    lengths = (300, 0, 16, 127)
    sequences = Sequences(lengths, 1)
    given = [draw(0, (5, 6, 1, depth), kind), draw(1, (5, 2, 1, depth), kind), draw(2, (5, 2, 1, width), kind)]
    given += [draw(i, (5, 1, 1, depth), kind) for i in (3, 4)]
    if paged:
        pools, last = caches("u8", (2,), (depth, width), sequences), sequences.table(0)
    else:
        pools = [np.repeat(x, 10, axis=2) for x in caches("u8", (2,), (depth, width), None)]
        last = np.array([300, 301])
    columns = sequences.width * 16 if paged else 400
    mask = draw(6, (5, 1, 1, 1, columns), kind)
    op = RotaryAttention(rotary=RotaryCacheWrite(size=depth), attention=CachedAttention(), grouped=True)
    inputs = [*given, *pools, mask, None, None, last]
    kernels, (out, *found), (wanted, *stored_pools) = run(backend, op, inputs)
    assert len(kernels) == 1 and kernels[0].startswith("attend_stream")
    check_stored(found[0], stored_pools[0], 1.01)
    check_stored(found[1], stored_pools[1])
    np.testing.assert_allclose(out.astype("f4"), wanted.astype("f4"), 2 * LIMIT[kind], 2 * LIMIT[kind])
