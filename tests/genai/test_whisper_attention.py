"""Scores of cross-attentions as the output of a decoder: with masks and scales, and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.genai.whisper.attention import keep_scores
from tests.harness.ir import Net

SHAPE = (1, 3, 5, 4)  # batch, heads, length, width
POSITIONS = 7
HEADS = [(1, 2), (0, 0), (1, 0)]


def decoder(mask: Any = None, scale: Any = None, causal: bool = False) -> ovgpu.Model:
    """Return a model with two cross-attentions, and a self-attention between them. Each follows the one before."""
    net = Net()
    queries = [net.parameter("f32", [-1, *SHAPE[1:]], f"q{n}") for n in range(2)]
    keys = [net.parameter("f32", [-1, SHAPE[1], -1, SHAPE[3]], f"k{n}") for n in range(2)]
    attrs = {"causal": str(causal).lower()}
    more = [] if mask is None else [net.const(mask)]
    more += [] if scale is None else [net.const(np.float32(scale))]
    found = net.const(np.zeros(SHAPE, np.float32))
    for n, name in enumerate(("layers.0.encoder_attn/sdpa", "layers.1.self_attn/sdpa", "layers.1.encoder_attn/sdpa")):
        nothing = net.layer("Multiply", "opset1", [found, net.const(np.float32(0))])
        query = net.layer("Add", "opset1", [queries[n // 2], nothing])
        inputs = [query, keys[n // 2], keys[n // 2], *more]
        found = net.layer("ScaledDotProductAttention", "opset13", inputs, attrs, name=name)
    net.result(found, "out")
    return ovgpu.Core().read_model(*net.build())


@pytest.mark.parametrize("device", ["CPU", "card"])
@pytest.mark.parametrize(
    ("mask", "scale"),
    [
        (None, None),
        (np.float32(0), None),
        (np.linspace(0, 1, 5 * POSITIONS, dtype=np.float32).reshape(5, POSITIONS), 0.25),
        (np.linspace(0, 1, 15 * POSITIONS, dtype=np.float32).reshape(1, 3, 5, POSITIONS), 0.5),
    ],
)
def test_scores(mask: Any, scale: float | None, device: str, emulated: str) -> None:
    model = decoder(mask, scale)
    keep_scores(model, HEADS)
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = ovgpu.Core().compile_model(model, "CPU" if device == "CPU" else emulated, options)
    random = np.random.RandomState(0)
    q = random.normal(size=(2, *SHAPE)).astype(np.float32)
    k = random.normal(size=(2, 1, 3, POSITIONS, 4)).astype(np.float32)
    (found,) = compiled({"q0": q[0], "q1": q[1], "k0": k[0], "k1": k[1]}).values()
    scores = q @ k.swapaxes(-1, -2) * (0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask
    np.testing.assert_allclose(found, np.stack([scores[layer, :, head] for layer, head in HEADS], axis=1), atol=1e-5)


def test_other_attentions() -> None:
    """Errors for layers and heads that are not there, and for scores that cannot be added to a mask."""
    with pytest.raises(ovgpu.Error, match="alignment_heads has layer 2, and the model has 2 cross-attentions"):
        keep_scores(decoder(), [(2, 0)])
    with pytest.raises(ovgpu.Error, match=r"alignment_heads has head 3, and '.*0.*' has 3 heads"):
        keep_scores(decoder(), [(0, 3)])
    with pytest.raises(ovgpu.Error, match=r"the mask of 'layers\.1\.encoder_attn/sdpa' is boolean"):
        keep_scores(decoder(np.ones((5, POSITIONS), bool)), [(1, 0)])
    with pytest.raises(ovgpu.Error, match=r"'layers\.0\.encoder_attn/sdpa' is causal"):
        keep_scores(decoder(causal=True), [(0, 0)])
