"""Attentions with equal mask computations share one mask."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import Target, simplify
from ovgpu.types import Type
from tests.harness.ir import Net, Port
from tests.harness.layers import mul, scalar, slice_, unsqueeze

HEADS, WIDTH, LAYERS = 4, 8, 3


def layers(same: bool = True) -> Net:
    """Build a chain of attentions. Each computes its mask from the one input, with equal factors if ``same``."""
    net = Net()
    x = net.parameter("f32", (1, HEADS, -1, WIDTH), "x")
    hidden = net.parameter("f32", (-1, -1), "hidden")
    for number in range(LAYERS):
        factor = scalar(net, -50.0 if same else -50.0 - number)
        mask: Port = unsqueeze(net, slice_(net, mul(net, hidden, factor), 0, 5, 1), [0, 1])
        x = net.layer("ScaledDotProductAttention", "opset13", [x, x, x, mask], {"causal": False})
    net.result(x)
    return net


@pytest.mark.parametrize("same", [True, False])
def test_layers(same: bool) -> None:
    model = simplify(ov.Core().read_model(*layers(same).build()), Target("CUDA", Type.f16))
    found = Counter(node.op.name for node in model.ops)
    count = 1 if same else LAYERS
    assert [found[name] for name in ("Multiply", "Slice", "Unsqueeze")] == [count] * 3
    masks = {id(node.sources[3]) for node in model.ops if node.op.name == "ScaledDotProductAttention"}
    assert len(masks) == count


@pytest.mark.parametrize("same", [True, False])
def test_values(same: bool, device: str) -> None:
    core, random = ov.Core(), np.random.default_rng(3)
    model = core.read_model(*layers(same).build())
    inputs = [random.normal(size=(1, HEADS, 5, WIDTH)).astype(np.float32), (random.random((5, 6)) > 0.6).astype("f4")]
    inputs[1][:, 0] = 0
    (expected,) = model_values(inputs, same)
    (found,) = core.compile_model(model, device)(inputs).to_tuple()
    np.testing.assert_allclose(found, expected, 2e-5, 2e-5)


def model_values(inputs: list[np.ndarray], same: bool) -> list[np.ndarray]:
    """Compute the model with NumPy."""
    x, hidden = (a.astype(np.float64) for a in inputs)
    for number in range(LAYERS):
        scores = x @ x.swapaxes(-1, -2) / np.sqrt(WIDTH) + hidden[:, :5] * (-50 if same else -50 - number)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        x = weights / weights.sum(-1, keepdims=True) @ x
    return [x]
