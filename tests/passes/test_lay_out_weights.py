"""Weights of products that are transposed ahead on the host, and the values of the products."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import Target, prepare
from tests.harness import judge
from tests.harness.ir import Net

weights = import_module("ovgpu.passes.lay_out_weights")  # the package has a function of this name


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MIN_ELEMENTS", 1)


def network(x: Any, weights: tuple[int, int], attrs: dict[str, bool] | None = None, kind: str = "f32") -> Net:
    """Build two products with the same weights."""
    net = Net()
    data = net.parameter(kind, x)
    constant = net.const(np.random.default_rng(1).uniform(-1, 1, weights), kind)
    for _ in range(2):
        net.result(net.layer("MatMul", "opset1", [data, constant], attrs or {}))
    return net


def weights_of(source: Net, target: Target | None = None) -> list[tuple[bool, Any]]:
    """Return (transpose_b, weights) of every product."""
    model = prepare(ov.Core().read_model(*source.build()), target or Target())
    products: list[Any] = [n for n in model.ops if n.op.name == "MatMul"]
    return [(n.op.transpose_b, n.sources[1].spec.constant) for n in products]


@pytest.mark.parametrize(
    ("shape", "weights", "attrs"),
    [
        ((1, 6), (100, 6), {"transpose_b": True}),
        ((-1, 6), (100, 6), {"transpose_b": True}),
        ((-1, -1, 90), (90, 7), {}),
        ((70,), (70, 5), {}),
        ((6, -1), (65, 6), {"transpose_a": True, "transpose_b": True}),
        ((2, 6), (5, 6), {"transpose_b": True}),
        ((3, 4, 6), (100, 6), {"transpose_b": True}),
    ],
)
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_transposed(shape: Any, weights: tuple[int, int], attrs: dict[str, bool], kind: str) -> None:
    source = network(shape, weights, attrs, kind)
    (before, constant), _ = weights_of(source)
    first, second = weights_of(source, Target("CPU"))
    assert (first[0], first[1].shape) == (not before, weights[::-1])
    assert first[1] is second[1]
    np.testing.assert_array_equal(first[1], constant.T)
    x = np.random.default_rng(2).uniform(-1, 1, [abs(d) for d in shape]).astype(constant.dtype)
    compiled = ov.Core().compile_model(ov.Core().read_model(*source.build()), "CPU")
    for actual, expected in zip(compiled([x]).to_tuple(), judge.Judge(*source.build()).expect([(x, kind)])):
        np.testing.assert_allclose(actual, expected.array, 1e-5, 1e-5)


@pytest.mark.parametrize(
    ("shape", "weights", "transposed", "kind"),
    [
        ((1, 100), (6, 100), True, "f32"),
        ((1, 6), (6, 6), True, "f32"),
        ((2, 100), (100, 6), False, "f32"),
        ((2, 200, 6), (100, 6), True, "f32"),
        ((2, -1, 6), (100, 6), True, "f16"),
        (None, (100, 6), True, "f32"),
    ],
)
def test_those_that_stay(shape: Any, weights: tuple[int, int], transposed: bool, kind: str) -> None:
    """Weights stay for long contiguous runs, few rows of untransposed weights, many rows, other types and ranks."""
    for found, constant in weights_of(network(shape, weights, {"transpose_b": transposed}, kind), Target("CPU")):
        assert found == transposed and constant.shape == weights


def test_on_a_device() -> None:
    source = network((1, 6), (100, 6), {"transpose_b": True})
    assert all(transposed for transposed, _ in weights_of(source, Target("CUDA")))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1),
        (weights.TILE_ROWS, weights.TILE_COLUMNS),
        (2 * weights.TILE_ROWS + 3, 2 * weights.TILE_COLUMNS + 5),
    ],
)
@pytest.mark.parametrize("shift", [0, 1])
def test_by_tiles(shape: tuple[int, int], shift: int) -> None:
    raw = np.random.default_rng(3).integers(0, 256, shift + 4 * shape[0] * shape[1], np.uint8)
    source = raw[shift:].view(np.uint32).reshape(shape)
    assert source.flags.aligned == (not shift)
    target = np.zeros(shape[::-1], np.uint32)
    weights._transpose(source, target)
    np.testing.assert_array_equal(target, source.T)
