"""Decomposed attention becomes one layer: matched patterns, unmatched ones, values on both backends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.passes import prepare
from tests.harness import judge
from tests.harness.ir import Net, Port
from tests.harness.layers import add, compare, convert, matmul, mul, op2, scalar, transpose

MODELS = Path(__file__).parents[1] / "models" / "data"
HEADS, LENGTH, WIDTH = 2, 5, 8
SHAPE = (-1, LENGTH, HEADS, WIDTH)
Pattern = Callable[[Net], Port]
FUSED = ("Gelu", "MVN", "Rotary", "ScaledDotProductAttention")


def softmax(net: Net, x: Port, axis: int = -1, version: str = "opset8") -> Port:
    port: Port = net.layer("Softmax", version, [x], {"axis": axis})
    return port


def select(net: Net, *inputs: Port) -> Port:
    port: Port = net.layer("Select", "opset1", inputs, {"auto_broadcast": "numpy"}, [inputs[1].type])
    return port


def heads(net: Net, name: str, order: tuple[int, ...] = (0, 2, 1, 3), kind: str = "f32") -> Port:
    """Transpose [b, s, h, e] to [b, h, s, e]."""
    return transpose(net, net.parameter(kind, SHAPE, name), order)


def qkv(net: Net, kind: str = "f32") -> tuple[Port, Port, Port]:
    q, k, v = (heads(net, name, kind=kind) for name in "qkv")
    return q, k, v


def scores(net: Net, q: Port, k: Port) -> Port:
    return matmul(net, q, k, tb=True)


def mask(net: Net, shape: tuple[int, ...] = (-1, 1, 1, LENGTH), kind: str = "f32") -> Port:
    return net.parameter(kind, shape, "mask")


def bert(net: Net) -> Port:
    """Build attention with transposed keys, divided scores, an added mask, and a leftover of dropout."""
    q, k, v = heads(net, "q"), heads(net, "k", (0, 2, 3, 1)), heads(net, "v")
    s = op2(net, "Divide", matmul(net, q, k), scalar(net, 2))
    return matmul(net, mul(net, softmax(net, add(net, s, mask(net))), scalar(net, 1)), v)


def plain(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, scores(net, q, k), 3, "opset1"), v)


def transposed_again(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, matmul(net, q, transpose(net, k, [0, 1, 3, 2]))), v)


def usual_scale(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, mul(net, scalar(net, WIDTH**-0.5), scores(net, q, k))), v)


def scaled_operands(net: Net) -> Port:
    """Scale queries and keys, as torch exports its own attention."""
    q, v = heads(net, "q"), heads(net, "v")
    k = mul(net, heads(net, "k", (0, 2, 3, 1)), scalar(net, 0.8))
    return matmul(net, softmax(net, add(net, mask(net), matmul(net, mul(net, q, scalar(net, 0.5)), k))), v)


def selected(net: Net) -> Port:
    """Set masked scores to the lowest number."""
    q, k, v = qkv(net)
    hidden = compare(net, "Less", mask(net), scalar(net, 0))
    s = mul(net, scores(net, q, k), scalar(net, 0.3))
    return matmul(net, softmax(net, select(net, hidden, scalar(net, np.finfo("f4").min), s)), v)


def selected_by_row(net: Net) -> Port:
    """Select unmasked scores by one row of the mask."""
    q, k, v = qkv(net)
    where = compare(net, "GreaterEqual", mask(net, (LENGTH,)), scalar(net, 0))
    return matmul(net, softmax(net, select(net, where, scores(net, q, k), scalar(net, -np.inf))), v)


def two_masks(net: Net) -> Port:
    """Add a bias, and mask with minus infinity."""
    q, k, v = qkv(net)
    where = compare(net, "GreaterEqual", mask(net), scalar(net, 0))
    bias = net.const(np.random.default_rng(3).standard_normal((HEADS, LENGTH, LENGTH)).astype(np.float32))
    s = select(net, where, add(net, bias, scores(net, q, k)), scalar(net, -np.inf))
    return matmul(net, softmax(net, s), v)


def values_in_columns(net: Net) -> Port:
    q, k, v = heads(net, "q"), heads(net, "k"), heads(net, "v", (0, 2, 3, 1))
    return matmul(net, softmax(net, scores(net, q, k)), v, tb=True)


PATTERNS: dict[str, tuple[Pattern, int]] = {
    f.__name__: (f, inputs)
    for f, inputs in (
        (bert, 5),
        (plain, 5),
        (transposed_again, 5),
        (usual_scale, 4),
        (scaled_operands, 5),
        (selected, 5),
        (selected_by_row, 5),
        (two_masks, 5),
        (values_in_columns, 5),
    )
}


def build(pattern: Pattern) -> Net:
    net = Net()
    net.result(pattern(net))
    return net


def attentions(net: Net) -> list[Any]:
    return [n for n in prepare(ov.Core().read_model(*net.build())).ops if isinstance(n.op, ScaledDotProductAttention)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PATTERNS)
def test_values(name: str, device: str) -> None:
    pattern, inputs = PATTERNS[name]
    net = build(pattern)
    (node,) = attentions(net)
    assert len(node.sources) == inputs
    rng = np.random.default_rng(1)
    model = ov.Core().read_model(*net.build())
    request = ov.Core().compile_model(model, device).create_infer_request()
    reference = judge.Judge(*net.build())
    for batch in (2, 1):
        values = [
            rng.standard_normal([batch if d.is_dynamic else d.get_length() for d in p.partial_shape]).astype(np.float32)
            for p in model.inputs
        ]
        for value in values[3:]:
            value[..., 0] = 1  # this key is not masked
        (expected,) = reference.expect([(v, "f32") for v in values])
        np.testing.assert_allclose(request.infer(values).to_tuple()[0], expected.array, 2e-5, 2e-5)


def test_softmax_of_16_bits_in_f32(device: str) -> None:
    net = Net()
    q, k, v = qkv(net, "f16")
    weights = softmax(net, convert(net, mul(net, scores(net, q, k), scalar(net, 0.4, "f16")), "f32"))
    net.result(matmul(net, convert(net, weights, "f16"), v))
    assert len(attentions(net)) == 1
    values = [np.random.default_rng(i).standard_normal((2, *SHAPE[1:])).astype(np.float16) for i in range(3)]
    found = ov.Core().compile_model(ov.Core().read_model(*net.build()), device)(values)[0]
    given = [x.astype(np.float64).transpose(0, 2, 1, 3) for x in values]
    (exact,) = ScaledDotProductAttention().evaluate(np, *given, None, np.array(0.4))
    np.testing.assert_allclose(found, exact, 1e-3, 1e-3)


# ---- not matched


def probabilities_as_well(net: Net) -> Port:
    q, k, v = qkv(net)
    weights = softmax(net, scores(net, q, k))
    net.result(weights)
    return matmul(net, weights, v)


def scores_as_well(net: Net) -> Port:
    q, k, v = qkv(net)
    s = scores(net, q, k)
    net.result(s)
    return matmul(net, softmax(net, s), v)


def other_axis(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, scores(net, q, k), 2), v)


def scaled_mask(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, mul(net, add(net, scores(net, q, k), mask(net)), scalar(net, 2))), v)


def merely_small(net: Net) -> Port:
    """Mask with a number that does not hide the scores of rows that are masked as a whole."""
    q, k, v = qkv(net)
    where = compare(net, "GreaterEqual", mask(net), scalar(net, 0))
    return matmul(net, softmax(net, select(net, where, scores(net, q, k), scalar(net, -10000))), v)


def keys_in_columns(net: Net) -> Port:
    """Take keys that are stored transposed."""
    q, v = heads(net, "q"), heads(net, "v")
    return matmul(net, softmax(net, matmul(net, q, net.parameter("f32", (-1, HEADS, WIDTH, LENGTH), "k"))), v)


def dropout(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, mul(net, softmax(net, scores(net, q, k)), scalar(net, 1.5)), v)


def number_for_a_mask(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, add(net, scores(net, q, k), scalar(net, 2))), v)


def two_axes(net: Net) -> Port:
    q, k, v = (net.parameter("f32", (LENGTH, WIDTH), name) for name in "qkv")
    return matmul(net, softmax(net, scores(net, q, k)), v)


def wide(net: Net) -> Port:
    q, k, v = (net.parameter("f32", (1, LENGTH, 300), name) for name in "qkv")
    return matmul(net, softmax(net, scores(net, q, k)), v)


def of_columns(net: Net) -> Port:
    q, k, v = qkv(net)
    return matmul(net, softmax(net, matmul(net, q, k, ta=True)), transpose(net, v, [0, 1, 3, 2]))


@pytest.mark.parametrize(
    "pattern",
    [
        probabilities_as_well,
        scores_as_well,
        other_axis,
        scaled_mask,
        merely_small,
        keys_in_columns,
        dropout,
        number_for_a_mask,
        two_axes,
        wide,
        of_columns,
    ],
    ids=lambda f: f.__name__,
)
def test_other_patterns_stay(pattern: Pattern) -> None:
    assert attentions(build(pattern)) == []


@pytest.mark.parametrize(("name", "count"), [("segformer", 4), ("swin", 2)])
def test_exported_models(name: str, count: int) -> None:
    """Scores of swin's shifted windows are masked in another shape, and stay."""
    model = prepare(ov.Core().read_model(MODELS / name / "model.xml"))
    assert len([n for n in model.ops if isinstance(n.op, ScaledDotProductAttention)]) == count


def test_a_model_of_torchs_onnx_exporter() -> None:
    """Attention, rotary embeddings, norms and Gelu are all matched in a model of the exporter."""
    model = prepare(ov.Core().read_model(MODELS / "decomposed_encoder" / "model.xml"))
    found = [n.op.name for n in model.ops if n.op.name in FUSED or n.op.name in ("Softmax", "Erf", "Sqrt", "Power")]
    assert sorted(found) == ["Gelu", "MVN", "MVN", "Rotary", "Rotary", "ScaledDotProductAttention"]
