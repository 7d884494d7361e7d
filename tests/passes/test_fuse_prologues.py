"""Norms and elementwise layers that become prologues of the products behind them: conditions of the fusion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused.matmul_prologue import MatMulWithPrologue
from ovgpu.passes import Target, prepare
from ovgpu.passes.fuse_prologues import fuse_prologues
from ovgpu.types import Type
from tests.harness.ir import Port
from tests.harness.models.drive import Decoder

from .test_fuse_add_norms import Maker, random

DATA = Path(__file__).parents[1] / "models" / "data"


class Layers(Maker):
    """Net in f16 with products by [N, K]."""

    def product(self, x: Port, transpose: bool = True, kind: str = "f16", width: int = 32) -> Port:
        return self.op("MatMul", x, self.const(random(width, 32), kind), transpose_b=transpose)

    def parts(self, x: Port, *widths: int) -> list[Port]:
        axis, lengths = self.const(np.array(-1)), self.const(np.array(widths))
        return [*self.layer("VariadicSplit", "opset1", [x, axis, lengths], outputs=len(widths))]

    def gated(self, first: Port, second: Port) -> Port:
        return self.op("Multiply", self.op("Swish", first, version=4), second)

    def normalized(self, x: Port) -> Port:
        y = self.op(
            "MVN", x, self.const(np.array([-1])), version=6, eps=1e-3, normalize_variance=True, eps_mode="inside_sqrt"
        )
        return self.op("Multiply", y, self.const(random(32), "f16"))

    def half(self) -> Port:
        return self.x(1, 1, 32, kind="f16")


def rewritten(net: Layers) -> Model:
    model = prepare(ov.Core().read_model(*net.build()), Target("CUDA"))
    fuse_prologues(model)
    return model


def joined(net: Layers, *results: Port) -> list[str]:
    """Return the prologues' classes in the net's rewritten model, "" for products without one."""
    for port in results:
        net.result(port)
    found = [n.op.prologue for n in rewritten(net).ops if isinstance(n.op, MatMulWithPrologue)]
    return ["" if prologue is None else type(prologue).__name__ for prologue in found]


def test_norm() -> None:
    net = Layers()
    assert joined(net, net.product(net.normalized(net.half()))) == ["ScaledMVN"]


def test_sum_and_norm() -> None:
    """The sum becomes the product's second result."""
    net = Layers()
    x = net.op("Add", net.half(), net.half())
    y = net.op("Add", net.product(net.normalized(x)), x)
    net.result(net.product(net.normalized(y)))
    model = rewritten(net)
    first, second = (n for n in model.ops if isinstance(n.op, MatMulWithPrologue))
    assert [len(n.ports) for n in (first, second)] == [2, 1]
    assert first.ports[1] in second.sources and first.ports[0] in second.sources
    assert first.op.layers == (*first.op.before, first.op.layer)


def test_elementwise_layers() -> None:
    net = Layers()
    gated = net.op("Multiply", net.op("Swish", net.half(), version=4), net.half())
    alone = net.op("Gelu", net.half(), version=7, approximation_mode="ERF")
    assert joined(net, net.product(gated), net.product(alone)) == ["Fused", "Fused"]


@pytest.mark.parametrize("transpose, kind", [(False, "f16"), (True, "f32")])
def test_other_matrices(transpose: bool, kind: str) -> None:
    """The kernel reads rows [N, K] in 16 bits."""
    net = Layers()
    x = net.x(1, 1, 32, kind=kind)
    y = net.op("Gelu", x, version=7, approximation_mode="ERF")
    assert joined(net, net.product(y, transpose, kind)) == []


def test_two_users() -> None:
    net = Layers()
    y = net.normalized(net.half())
    assert joined(net, net.product(y), y) == [""]


def test_matrices_that_are_no_constants() -> None:
    net = Layers()
    y = net.op("Gelu", net.half(), version=7, approximation_mode="ERF")
    assert joined(net, net.op("MatMul", y, net.x(32, 32, kind="f16"), transpose_b=True)) == []


def test_long_chains() -> None:
    """Each block computes a prologue again, so that long ones stay layers of their own."""
    net = Layers()
    y = net.half()
    for _ in range(5):
        y = net.op("Gelu", y, version=7, approximation_mode="ERF")
    assert joined(net, net.product(y)) == [""]


def gates(net: Layers, *results: Port) -> list[MatMulWithPrologue]:
    """Return the products with gates in the net's rewritten model."""
    for port in results:
        net.result(port)
    return [n.op for n in rewritten(net).ops if isinstance(n.op, MatMulWithPrologue) and n.op.gate]


def test_gate() -> None:
    """The product behind a gate has no prologue; the gate's result takes the place of the product's."""
    net = Layers()
    halves = net.parts(net.product(net.normalized(net.half()), width=64), 32, 32)
    net.result(net.product(net.gated(*halves)))
    model = rewritten(net)
    first, second = (n for n in model.ops if isinstance(n.op, MatMulWithPrologue))
    assert first.op.prologue is not None and first.op.gate is not None
    assert second.op.prologue is second.op.gate is None and second.sources[1] is first.ports[0]
    assert first.ports[0].spec.shape == (1, 1, 32)
    assert [layer.op.name for layer in first.op.layers][-3:] == ["MatMul", "Swish", "Multiply"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_orders_of_halves(order: tuple[int, int]) -> None:
    """The layers may take either half first."""
    net = Layers()
    halves = net.parts(net.product(net.half(), width=64), 32, 32)
    (op,) = gates(net, net.gated(*(halves[i] for i in order)))
    matrix, x = random(64, 32) / 16, random(1, 1, 32)
    (found,) = evaluate(op, NUMPY, [matrix, x], [Type.f16])
    first, second = (np.split(x @ matrix.T, 2, -1)[i] for i in order)
    np.testing.assert_allclose(found, first / (1 + np.exp(-first)) * second, 2e-3, 1e-3)


@pytest.mark.parametrize(
    "case", ["gate", "three parts", "other widths", "two users", "same half twice", "third input", "shape"]
)
def test_conditions_of_gates(case: str) -> None:
    """A gate takes the halves of a product's columns alone, and each once."""
    net = Layers()
    widths = {"three parts": (32, 32, 32), "other widths": (24, 40)}.get(case, (32, 32))
    product = net.product(net.x(-1, 1, 32, kind="f16"), width=sum(widths))
    first, second = net.parts(product, *widths)[:2]
    other = {"same half twice": first, "third input": net.x(-1, 1, 32, kind="f16")}.get(case, second)
    results = [net.op("Swish", first, version=4) if case == "other widths" else net.gated(first, other)]
    if case == "two users":
        results.append(second)
    if case == "shape":
        results.append(net.op("ShapeOf", product, version=3))
    assert len(gates(net, *results)) == (case == "gate")


def test_decode_steps(emulated: str) -> None:
    """In Llama's decode steps, norms and SwiGLU are computed by the kernels of the products that take them."""
    model = ov.Core().compile_model(DATA / "llama" / "model.xml", emulated, {"INFERENCE_PRECISION_HINT": "f16"})
    decoder = Decoder(model)
    token = decoder.start(np.arange(6)[None])
    assert not any(step.op == "MatMulWithPrologue" for step in decoder.request.plan().steps)  # the rows are many
    for _ in range(2):
        token = decoder.step(token)
    names = [step.op for step in decoder.request.plan().steps if step.calls]
    begin = names.index("RotaryAttention") + 1
    layer = ["MatMulWithPrologue"] * 4
    assert names[begin : begin + 9] == [*layer, "RotaryAttention", *layer]
