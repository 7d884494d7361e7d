"""Grouped-query attention, whose keys and values are not repeated in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import prepare
from tests.harness import judge
from tests.harness.ir import Net, Port
from tests.harness.layers import concat, extent, i64, reshape, unsqueeze

MODELS = Path(__file__).parents[1] / "models" / "data"
HEADS, REPEATS, WIDTH = 2, 3, 8


def repeated(net: Net, x: Port, groups: int = REPEATS) -> Port:
    """Repeat heads, [b, h, s, e] -> [b, h * groups, s, e], as models are exported."""
    wide = unsqueeze(net, x, [2])
    target = concat(net, [extent(net, x, 0), i64(net, [HEADS, groups]), extent(net, x, 2), i64(net, [WIDTH])], 0)
    spread = net.layer("Broadcast", "opset3", [wide, target], {"mode": "bidirectional"})
    return net.layer("Reshape", "opset1", [spread, i64(net, [0, HEADS * groups, -1, WIDTH])], {"special_zero": True})


def attention(
    mask: Any = None, causal: bool = False, batch: int = -1, heads: int = HEADS * REPEATS, both: bool = True
) -> Net:
    """Build attention of repeated keys and values."""
    net = Net()
    q = net.parameter("f32", (batch, heads, -1, WIDTH), "q")
    k, v = (net.parameter("f32", (batch, HEADS, -1, WIDTH), name) for name in "kv")
    k, v = repeated(net, k), repeated(net, v) if both else reshape(net, v, [1, HEADS * REPEATS, -1, WIDTH])
    masks = [] if mask is None else [net.parameter("f32", mask, "mask")]
    net.result(net.layer("ScaledDotProductAttention", "opset13", [q, k, v, *masks], {"causal": causal}))
    return net


def layers(net: Net) -> list[str]:
    model = prepare(ov.Core().read_model(*net.build()))
    return [n.op.name for n in model.ops if n.op.name in ("Broadcast", "ScaledDotProductAttention")]


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("mask", "causal"), [(None, False), (None, True), ((-1, 1, -1, -1), False), ((-1, -1), False)])
@pytest.mark.parametrize("queries", [1, 5, 70])
def test_values(mask: Any, causal: bool, queries: int, device: str) -> None:
    net, rng = attention(mask, causal), np.random.default_rng(queries)
    assert layers(net) == ["ScaledDotProductAttention"]
    keys = 70 if causal else 71
    shapes = [(2, HEADS * REPEATS, queries, WIDTH), *[(2, HEADS, keys, WIDTH)] * 2]
    if mask is not None:
        shapes.append((2, 1, queries, keys) if len(mask) == 4 else (queries, keys))
    values = [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]
    (expected,) = judge.Judge(*net.build()).expect([(x, "f32") for x in values])
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()
    for _ in range(3):
        (found,) = request.infer(values).to_tuple()
        np.testing.assert_allclose(found, expected.array, 2e-5, 2e-5)


def test_those_that_stay() -> None:
    """Keys and values stay repeated for a mask per head, and for another kind of repetition."""
    assert layers(attention((1, HEADS * REPEATS, -1, -1))) == ["Broadcast", "Broadcast", "ScaledDotProductAttention"]
    assert layers(attention(both=False, batch=1)) == ["Broadcast", "ScaledDotProductAttention"]


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_exported_models(name: str) -> None:
    model = prepare(ov.Core().read_model(MODELS / name / "model.xml"))
    attentions = [n for n in model.ops if n.op.name == "ScaledDotProductAttention"]
    assert attentions
    for node in attentions:
        keys: Any = node.sources[1]
        assert keys.node.op.name == "Unsqueeze" and keys.node.sources[0].node.op.version == "ovgpu"  # a CacheAppend
