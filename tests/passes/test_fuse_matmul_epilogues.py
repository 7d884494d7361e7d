"""Matrix products with a bias, a residual and an activation in one layer: conditions, and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.ops.fused.matmul_epilogue import MatMulWithEpilogue
from ovgpu.passes import Target, prepare
from tests.harness.ir import Net, Port, feed, take

RNG = np.random.default_rng(6)
HIDDEN = ("Parameter", "Result", "Constant", "Sigmoid")


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, shape).astype("f4")


class Maker(Net):
    """Net of one input, products, and layers after them."""

    def op(self, type: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs)
        return port

    def x(self, *shape: int, kind: str = "f32") -> Port:
        return self.parameter(kind, shape or (-1, -1, 24), "x")

    def product(self, x: Port, columns: int = 24, rows: int = 24) -> Port:
        return self.op("MatMul", x, self.const(random(columns, rows), x.type), transpose_b=True)

    def bias(self, x: Port, *shape: int) -> Port:
        return self.op("Add", x, self.const(random(*(shape or (1, 1, 24))), x.type))

    def gelu(self, x: Port, mode: str = "TANH") -> Port:
        return self.op("Gelu", x, version=7, approximation_mode=mode)

    def residual(self, x: Port) -> Port:
        return self.op("Add", self.parameters["x"], x)

    def reshaped(self, x: Port, *shape: int) -> Port:
        return self.op("Reshape", x, self.const(np.array(shape)), special_zero=False)


def model(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA"))


def steps(net: Net) -> list[str]:
    """Return the names of all layers; for a product with an epilogue, the names of its layers."""
    found = [n for n in model(net).ops if n.op.name not in HIDDEN]
    return [" ".join(layer.op.name for layer in n.op.layers) if isinstance(n.op, MatMulWithEpilogue) else n.op.name
            for n in found]  # fmt: skip


def judged(net: Net, *inputs: Any, device: str, tolerance: float = 1e-5) -> None:
    """Assert that two inferences give the same as on the host, in f32 by OpenVINO's rules."""
    core = ov.Core()
    read = core.read_model(*net.build())
    as_it_is = {"INFERENCE_PRECISION_HINT": "dynamic"}
    found, expected = (core.compile_model(read, name, as_it_is) for name in (device, "CPU"))
    for _ in range(2):
        for a, b in zip(found(inputs).to_tuple(), expected(inputs).to_tuple()):
            np.testing.assert_allclose(a, b, tolerance, tolerance)
        inputs = tuple(-x for x in inputs)


# ---- fused layers

Epilogue = Callable[[Maker, Port], Port]
JOINED: list[tuple[list[Epilogue], str, str]] = [
    ([Maker.bias], "f32", "Add"),
    ([Maker.bias], "f64", "Add"),
    ([lambda net, x: net.bias(x, 24), lambda net, x: net.op("Relu", x)], "f32", "Add Relu"),
    ([lambda net, x: net.op("Relu", x)], "f16", "Relu"),
    ([Maker.bias, Maker.gelu], "f16", "Add Gelu"),
    ([Maker.residual], "f32", "Add"),
    ([Maker.bias, Maker.residual], "f32", "Add Add"),
    ([Maker.residual, Maker.bias, lambda net, x: net.op("Relu", x)], "f32", "Add Add Relu"),
]


@pytest.mark.parametrize(("epilogues", "kind", "layers"), JOINED)
def test_layers_that_join(epilogues: list[Epilogue], kind: str, layers: str, emulated: str) -> None:
    net = Maker()
    x = net.product(net.x(kind=kind))
    for epilogue in epilogues:
        x = epilogue(net, x)
    net.result(x)
    assert steps(net) == [f"MatMul {layers}"]
    given = random(2, 3, 24).astype(kind.replace("f", "float"))
    judged(net, given, device=emulated, tolerance=4e-3 if kind == "f16" else 1e-5)


def test_a_sum_of_products(emulated: str) -> None:
    net = Maker()
    x = net.x()
    net.result(net.op("Add", net.product(x), net.product(net.op("Sigmoid", x))))
    assert sorted(steps(net)) == ["MatMul", "MatMul Add"]
    judged(net, random(2, 3, 24), device=emulated)


def test_a_reshape_in_between(emulated: str) -> None:
    """The Reshape moves after the layers, as in GPT-2, whose products are of matrices."""
    net = Maker()
    x = net.reshaped(net.x(kind="f16"), -1, 24)
    x = net.reshaped(net.op("Add", net.const(random(1, 48), "f16"), net.product(x, 48)), 2, -1, 48)
    net.result(net.gelu(x))
    assert steps(net) == ["Reshape", "MatMul Add Gelu", "Reshape"]
    judged(net, random(2, 3, 24).astype("f2"), device=emulated, tolerance=4e-3)


def test_bodies() -> None:
    body = Maker()
    xi = body.x(1, 3, 24)
    r = body.result(body.bias(body.product(xi)))
    net = Maker()
    net.result(net.tensor_iterator(body, [feed(net.x(2, 3, 24), xi, axis=0)], [take(r, axis=0)], []))
    assert sum(isinstance(n.op, MatMulWithEpilogue) for n in all_nodes(model(net))) == 1


def test_the_plan_lists_the_layers(emulated: str) -> None:
    net = Maker()
    net.result(net.op("Relu", net.bias(net.product(net.x(2, 24)), 24)))
    plan = ov.Core().compile_model(ov.Core().read_model(*net.build()), emulated).plan()
    (step,) = (step for step in plan.steps if step.op == "MatMul")
    assert len(step.fused) == 3 and step.kind == "bound"


def test_errors_are_those_of_the_layers(emulated: str) -> None:
    net = Maker()
    product = net.product(net.x(-1, 24))
    net.result(net.layer("Add", "opset1", [product, net.parameter("f32", (-1, 24), "y")], name="residual"))
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), emulated)
    compiled([random(2, 24), random(2, 24)])
    with pytest.raises(RuntimeError, match=r"\[Add\].*do not broadcast.*'residual'"):
        compiled([random(2, 24), random(3, 24)])


# ---- norms


def normed(net: Maker, x: Port) -> Port:
    y = net.op(
        "MVN", x, net.const(np.array([-1])), version=6, eps=1e-3, normalize_variance=True, eps_mode="inside_sqrt"
    )
    return net.op("Add", net.op("Multiply", y, net.const(random(24))), net.const(random(24)))


@pytest.mark.parametrize(
    ("rows", "layers"),
    [
        (64, ["MatMul Add Add", "MVN", "MatMul", "AddNorm"]),
        (63, ["MatMul", "AddNorm", "MatMul", "AddNorm"]),
        (-1, ["MatMul", "AddNorm", "MatMul", "AddNorm"]),
    ],
)
def test_a_sum_used_besides_its_norm(rows: int, layers: list[str], emulated: str) -> None:
    """For many rows the sum joins the product, as in GPT-2 and ViT. Only a norm uses the last sum."""
    net = Maker()
    x = net.x(rows, 24)
    x = net.op("Add", net.bias(net.product(x), 24), x)
    x = net.op("Add", net.bias(net.product(normed(net, x)), 24), x)
    net.result(normed(net, x))
    assert steps(net) == layers
    judged(net, random(abs(rows), 24), device=emulated)


def test_a_norm_of_more_than_a_sum() -> None:
    """A norm of another value computes no sum, and a Concat reads sums in place."""
    net = Maker()
    x = net.x(2, 24)
    y = net.residual(net.bias(net.product(x), 24))
    net.result(net.op("Concat", y, y, axis=0))
    net.result(normed(net, y))
    net.result(normed(net, net.op("Relu", net.bias(net.product(net.op("Sigmoid", x)), 24))))
    assert [name for name in steps(net) if name != "Concat"] == ["MatMul Add Add", "MVN", "MatMul Add Relu", "MVN"]


# ---- not fused


@pytest.mark.parametrize(("epilogues", "kind", "layers"), [
    ([Maker.bias, lambda net, x: net.gelu(x, "ERF")], "f16", ["MatMul", "Fused"]),
    ([Maker.bias, Maker.gelu], "f32", ["MatMul", "Fused"]),
    ([Maker.bias, Maker.residual, normed], "f32", ["MatMul", "AddNorm"]),
    ([lambda net, x: net.op("Relu", x), Maker.residual], "f32", ["MatMul", "Fused"]),
    ([Maker.bias, lambda net, x: net.op("Multiply", x, net.const(random(24)))], "f32", ["MatMul", "Fused"]),
    ([lambda net, x: net.op("Add", x, net.const(np.float32(1)))], "f32", ["MatMul", "Add"]),
    ([lambda net, x: net.bias(x, 1, 3, 1)], "f32", ["MatMul", "Add"]),
    ([lambda net, x: net.bias(x, 2, 1, 1, 24)], "f32", ["MatMul", "Add"]),
    ([lambda net, x: net.op("Add", x, x)], "f32", ["MatMul", "Add"]),
    ([lambda net, x: net.op("Add", net.bias(x), net.op("Relu", x))], "f32", ["MatMul", "Fused"]),
])  # fmt: skip
def test_layers_that_do_not_join(epilogues: list[Epilogue], kind: str, layers: list[str]) -> None:
    net = Maker()
    x = net.product(net.x(kind=kind))
    for epilogue in epilogues:
        x = epilogue(net, x)
    net.result(x)
    assert steps(net) == layers


def test_a_result_that_is_used_twice_stays() -> None:
    net = Maker()
    x = net.product(net.x())
    net.result(x)
    net.result(net.bias(x))
    assert steps(net) == ["MatMul", "Add"]


def test_batches_of_matrices_stay() -> None:
    net = Maker()
    x = net.x(2, 3, 24)
    net.result(net.bias(net.op("MatMul", x, net.op("Sigmoid", x), transpose_b=True), 1, 1, 3))
    assert steps(net) == ["MatMul", "Add"]


def test_on_the_host() -> None:
    net = Maker()
    net.result(net.bias(net.product(net.x())))
    found = prepare(ov.Core().read_model(*net.build()), Target("CPU"))
    assert not any(isinstance(n.op, MatMulWithEpilogue) for n in found.ops)
