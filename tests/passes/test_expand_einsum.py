"""Einsum as matrix products: matched equations, and exceptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ovgpu
from ovgpu.passes import prepare
from tests.harness.ir import Dims, Net


def einsum(equation: str, *shapes: Dims) -> Net:
    net = Net()
    net.result(net.layer("Einsum", "opset7", [net.parameter("f32", s) for s in shapes], {"equation": equation}))
    return net


def ops(net: Net) -> list[str]:
    """Return the names of the layers that compute, in order."""
    model = prepare(ovgpu.Core().read_model(*net.build()))
    return [n.op.name for n in model.ops if n.op.name not in ("Parameter", "Constant", "Result")]


def kinds(net: Net, *shapes: Sequence[int]) -> list[str]:
    """Return kind and op of the steps of an inference, without views."""
    request = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU").create_infer_request()
    request.infer([np.ones(shape, np.float32) for shape in shapes])
    return [f"{step.kind} {step.op}" for step in request.plan().steps if step.kind != "view"]


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 5, 7), (2, 3, 4, 7)]),
        ("bqhd,bkhd->bhqk", [(2, 5, 3, 7), (2, 4, 3, 7)]),
        ("abc,cde->abde", [(2, 3, 5), (5, 7, 4)]),
        ("abcd,cde->abe", [(2, 3, 5, 7), (5, 7, 4)]),
    ],
)
def test_one_product_and_no_copy(equation: str, shapes: list[tuple[int, ...]]) -> None:
    assert kinds(einsum(equation, *shapes), *shapes) == ["bound MatMul"]
    if equation.startswith("b"):  # also if only the extent of the sum is known ahead
        dynamic = [(-1, -1, -1, shape[-1]) for shape in shapes]
        assert kinds(einsum(equation, *dynamic), *shapes) == ["bound MatMul"]


def test_labels_of_extents_unknown_may_broadcast() -> None:
    net = einsum("ij,jk->ik", (-1, -1), (-1, -1))
    assert "Broadcast" in ops(net) and "Einsum" not in ops(net)
    request = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU").create_infer_request()
    a, b = np.ones((3, 1), np.float32), np.ones((5, 7), np.float32)
    assert request.infer([a, b])[0].tolist() == np.full((3, 7), 5).tolist()
    with pytest.raises(ovgpu.Error):
        request.infer([np.ones((3, 2), np.float32), b])


def test_products_of_elements_sum_nothing() -> None:
    assert ops(einsum("i,j->ij", (3,), (5,))) == ["Reshape", "Multiply"]
    assert ops(einsum("ij->ij", (3, 5))) == ["Identity"]
    assert ops(einsum("ij->ji", (3, 5))) == ["Transpose"]
    assert ops(einsum("ij->j", (3, 5))) == ["ReduceSum"]


@pytest.mark.parametrize("equation, shapes", [("ij->ji", [None]), ("ii->i", [(-1, -1)])])
def test_unknown_ranks_and_diagonals_stay(equation: str, shapes: list[Dims]) -> None:
    assert ops(einsum(equation, *shapes)) == ["Einsum"]


def test_bodies_are_rewritten() -> None:
    then, otherwise, net = Net(), Net(), Net()
    x, y = then.parameter("f32", (3, 5)), then.parameter("f32", (5, 7))
    taken = then.result(then.layer("Einsum", "opset7", [x, y], {"equation": "ij,jk->ik"}))
    nothing = otherwise.result(otherwise.const(np.zeros((3, 7), np.float32)))
    condition, a, b = net.parameter("boolean", ()), net.parameter("f32", (3, 5)), net.parameter("f32", (5, 7))
    net.result(net.if_(condition, then, otherwise, [(a, x, None), (b, y, None)], [(taken, nothing)]))
    branch = next(n for n in prepare(ovgpu.Core().read_model(*net.build())).ops if n.op.name == "If")
    assert "Einsum" not in [n.op.name for n in branch.op.then_body.ops]  # type: ignore[attr-defined]
