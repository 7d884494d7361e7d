"""Attention in blocks on the host, and scores whose exponentials would overflow without the maximum subtracted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.attention import attention
from ovgpu.ops.base import tasks
from ovgpu.ops.base.op import call
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from ovgpu.spec import Spec
from ovgpu.types import Type
from tests.harness.ir import Net
from tests.kernels.test_pages import Sequences

BATCH, ROWS, KEYS, DEPTH = (2, 3), 40, 50, 8
VISIBLE = np.arange(KEYS) <= np.arange(ROWS)[:, None]
LOWEST = float(np.finfo(np.float32).min)
MASKS: dict[str, Any] = {
    "none": np.zeros(()),
    "boolean": VISIBLE,
    "infinite": np.where(VISIBLE, 0, -np.inf),
    "lowest": np.where(VISIBLE & (np.arange(ROWS) != 3)[:, None], 0, LOWEST),  # hides all keys in row 3
    "high": np.where(VISIBLE, 200.0, 0),
}


@pytest.mark.parametrize("exp2", [False, True])
@pytest.mark.parametrize("scores", [1 << 18, 400], ids=["at_once", "blocks"])
@pytest.mark.parametrize("factor", [1.0, 30.0], ids=["near", "far"])
@pytest.mark.parametrize(("mask", "sink"), [*((m, False) for m in MASKS), ("none", True), ("boolean", True)])
def test_forms(mask: str, sink: bool, factor: float, scores: int, exp2: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "USE_EXP2", exp2)
    for name in ("SCORES_AT_ONCE", "BLOCK_SCORES"):
        monkeypatch.setattr(attention, name, scores)
    random = np.random.default_rng(5)
    arrays = [random.standard_normal((*BATCH, n, DEPTH)) * factor for n in (ROWS, KEYS, KEYS)]
    given = [MASKS[mask], np.array(0.4), *[np.full((1, 3, 1, 1), 70.0)] * sink]
    net = Net()
    ports = [net.parameter("f32", (*BATCH, -1, DEPTH)) for _ in arrays]
    ports += [net.const(x, "boolean" if x.dtype == bool else "f32") for x in given]
    net.result(net.layer("ScaledDotProductAttention", "opset13", ports, {"causal": False}))
    compiled = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU")
    arrays = [x.astype(np.float32) for x in arrays]
    (actual,) = compiled(arrays).to_tuple()
    op = attention.ScaledDotProductAttention(causal=False)
    wide = [x.astype(np.float64) if x.dtype != bool else x for x in (*arrays, *given)]
    (wanted,) = op.evaluate(NUMPY, *wide)
    np.testing.assert_allclose(actual, wanted, rtol=2e-4, atol=2e-5 * factor)


@pytest.mark.parametrize("keys", [100, 2000, 20000])
def test_one_query(keys: int) -> None:
    """One query is computed in one call, or in several."""
    random, net = np.random.default_rng(7), Net()
    arrays = [random.standard_normal((1, 3, n, DEPTH)).astype(np.float32) for n in (1, keys, keys)]
    ports = [net.parameter("f32", (1, 3, -1, DEPTH)) for _ in arrays]
    net.result(net.layer("ScaledDotProductAttention", "opset13", ports, {"causal": False}))
    (actual,) = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU")(arrays).to_tuple()
    op = attention.ScaledDotProductAttention(causal=False)
    (wanted,) = op.evaluate(NUMPY, *(x.astype(np.float64) for x in arrays))
    np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-6)


def test_bound() -> None:
    """The bound holds for every score, and is infinite where a mask hides all keys of a query."""
    random, limit = np.random.default_rng(6), np.zeros(1)
    q, k = random.standard_normal((2, 40, 8)), random.standard_normal((2, 50, 8))
    attention.bound_scores(q, k, None, None, limit)
    assert np.abs(q @ k.swapaxes(1, 2)).max() <= limit[0] < np.inf
    attention.bound_scores(q, k, MASKS["lowest"], None, limit)
    assert limit[0] == np.inf
    attention.bound_scores(q * np.nan, k, None, None, limit)
    assert not limit[0] < attention.MAX_EXPONENT


@pytest.mark.parametrize(
    ("lead", "of_keys", "queries", "mask"),
    [
        ((5,), (1,), 1, None),
        ((32,), (32,), 1, (3, 32, 1)),
        ((6, 2), (6, 1), 3, (1, 1, 1, 1)),
        ((5,), (5,), 33, (5, 33)),
        ((3, 2), (3, 1), 2, (3, 2, 1)),
        ((), (), 40, (40,)),
    ],
    ids=["multi-query", "many-scores", "grouped", "mask-without-rows", "grouped-mask-without-rows", "no-heads"],
)
def test_pages(lead: Any, of_keys: Any, queries: int, mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a batch have keys in pages, and two threads. Each is the same, bit for bit, when it is alone."""
    for module in (attention, tasks):
        monkeypatch.setattr(module, "WORKERS", 2)
    random, op = np.random.default_rng(0), attention.CachedAttention()
    sequences = Sequences([1100, 2, 1300], queries)
    normal = lambda *shape: random.standard_normal(shape).astype(np.float32)
    pools = [normal(sequences.capacity, *of_keys, PAGE_TOKENS, 64) for _ in range(2)]
    hidden = None if mask is None else normal(*mask, sequences.width * PAGE_TOKENS)
    q, table = normal(3, *lead, queries, 64), sequences.table(0)[:-1]

    def compute(rows: slice) -> Any:
        own = hidden if hidden is None or hidden.ndim < q.ndim or len(hidden) == 1 else hidden[rows]
        inputs = [q[rows], *pools, own, None, None, table[rows]]
        outputs = [np.empty_like(q[rows])]
        specs = [[None if x is None else Spec(Type.of(x.dtype), x.shape) for x in each] for each in (inputs, outputs)]
        workspace = [np.empty(shape, dtype.storage) for dtype, shape in op.workspace(*specs)]
        op.numpy(call, inputs, outputs, workspace)
        np.testing.assert_allclose(outputs[0], op.evaluate(NUMPY, *inputs)[0], 2e-5, 2e-5)
        return outputs[0]

    beside = compute(slice(None))
    for row in range(3):
        assert np.array_equal(beside[row : row + 1], compute(slice(row, row + 1)))
