"""Weights of products that are laid out in panels for batches on the host, and the values of the products."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.base.op import call
from ovgpu.ops.base.tasks import Worker
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused import panel_matmul
from ovgpu.ops.fused.panel_matmul import PanelMatMul
from ovgpu.passes import Target, fuse_layers, simplify
from tests.harness.ir import Net

panels = import_module("ovgpu.passes.lay_out_panels")  # the package has a function of this name


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out small weights, also where BLAS packs those of all products."""
    monkeypatch.setattr(panels, "MIN_ELEMENTS", 1)
    for module in (panels, panel_matmul):
        monkeypatch.setattr(module, "MAX_UNPACKED_PRODUCTS", 32 * 24 * 8)


def rewritten(shape: Any, weights: tuple[int, int], attrs: dict[str, bool], kind: str, device: Any) -> Any:
    """Return the product's layer in a program for batches, and its weights before."""
    net, values = Net(), np.random.default_rng(1).uniform(-1, 1, weights)
    net.result(net.layer("MatMul", "opset1", [net.parameter(kind, shape), net.const(values, kind)], attrs))
    target = Target(device)
    model = simplify(ov.Core().read_model(*net.build()), target)
    fuse_layers(model, target, "batch")
    (node,) = (node for node in model.ops if node.op.name == "MatMul")
    return node, values.astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(-1, 24), (-1, -1, 24), (2, 5, 24), (1, 24)])
def test_panels(shape: Any, transposed: bool) -> None:
    weights = (64, 24) if transposed else (24, 64)
    node, values = rewritten(shape, weights, {"transpose_b": transposed}, "f32", "CPU")
    assert isinstance(node.op, PanelMatMul) and node.ports[0].partial_shape == ov.PartialShape([*shape[:-1], 64])
    matrix = values.T if transposed else values
    found = node.sources[1].spec.constant
    np.testing.assert_array_equal(found, [matrix[:, :32], matrix[:, 32:]])


@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "kind", "device"),
    [
        ((-1, 24), (24, 48), {}, "f32", "CPU"),  # no whole panels
        ((-1, 25), (25, 64), {}, "f32", "CPU"),  # fewer than eight rows at a time
        ((24, -1), (24, 64), {"transpose_a": True}, "f32", "CPU"),
        ((24,), (24, 64), {}, "f32", "CPU"),
        ((-1, 24), (24, 64), {}, "f64", "CPU"),
        ((-1, 24), (24, 64), {}, "f32", "CUDA"),
    ],
)
def test_those_that_stay(shape: Any, weights: Any, attrs: Any, kind: str, device: str) -> None:
    node, _ = rewritten(shape, weights, attrs, kind, device)
    assert not isinstance(node.op, PanelMatMul)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 33])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("count", [1, 2])
def test_products(rows: int, batch: tuple[int, ...], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by threads, and into an array with gaps. Each call multiplies no more rows than BLAS leaves unpacked."""
    made = [Worker(number, count) for number in range(count)]
    monkeypatch.setattr(panel_matmul, "workers", lambda parallel: made)
    random = np.random.default_rng(2)
    x, weights = (random.standard_normal(shape, np.float32) for shape in ((*batch, rows, 24), (3, 24, 32)))
    wide = np.zeros((*batch, rows, 100), np.float32)
    assert PanelMatMul().numpy(call, [x, weights], [wide[..., :96]], []) is None
    (wanted,) = PanelMatMul().evaluate(NUMPY, x, weights)
    np.testing.assert_allclose(wide[..., :96], wanted, 1e-5, 1e-5)
    assert not wide[..., 96:].any()
    pieces: list[Any] = [piece for worker in made for piece in worker]
    assert all(made) and max(piece.args[0].shape[-2] for piece in pieces) <= 8
    assert len(pieces) == count * -(-rows // 8)
