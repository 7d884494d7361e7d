"""Fusion of elementwise layers: conditions, and the arithmetic and errors of the fused layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.lowering.build import build
from ovgpu.model import Model, Node
from ovgpu.ops.arithmetic.arithmetic import Exp
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.passes import Target, prepare
from ovgpu.passes.fuse_elementwise import MAX_INPUTS, MAX_PARTS
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from tests.harness.ir import Net, Port, feed, take

DATA = Path(__file__).parents[1] / "models" / "data"


def fused(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA"))


def steps(model: Model) -> list[str]:
    """Describe every layer but ports, constants and shapes: ``Op(layers)``."""
    hidden = ("Parameter", "Result", "Constant")
    return [f"{n.op.name}({', '.join(layers(n))})" for n in model.ops if n.op.name not in hidden]


def layers(node: Node) -> list[str]:
    op = node.op
    return [part.name for part in op.layers] if isinstance(op, Fused) else [node.friendly_name]


class Maker(Net):
    """Net of f32 layers, named by letters."""

    def x(self, *shape: int, kind: str = "f32") -> Port:
        return self.parameter(kind, shape)

    def op(self, name: str, type: str, *inputs: Port, version: int = 1, kind: str = "f32", **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs, [kind], name=name)
        return port

    def done(self, *values: Port) -> list[str]:
        for value in values:
            self.result(value)
        return steps(fused(self))


def test_a_chain_becomes_one_layer() -> None:
    net = Maker()
    x, y = net.x(4, 8), net.x(4, 8)
    bias = net.op("bias", "Add", net.op("product", "MatMul", x, net.const(np.eye(8, dtype="f4"))), net.x(8))
    gelu = net.op("gelu", "Gelu", bias, version=7)
    assert net.done(net.op("sum", "Add", gelu, y)) == ["MatMul(product)", "Fused(bias, gelu, sum)"]
    model = fused(net)
    node = next(n for n in model.ops if n.op.name == "Fused")
    assert node.friendly_name == "sum" and len(node.sources) == 3
    assert node.ports[0].spec.shape == (4, 8)


def test_numbers_become_literals() -> None:
    net = Maker()
    y = net.op("plus", "Add", net.x(3), net.const(np.float32(2)))
    y = net.op("times", "Multiply", y, net.const([[0.5]], "f32"))
    assert net.done(y) == ["Fused(plus, times)"]
    node = next(n for n in fused(net).ops if n.op.name == "Fused")
    assert len(node.sources) == 1 and node.ports[0].spec.shape == (1, 3), "the rank of a literal counts"
    op: Any = node.op
    assert [np.frombuffer(data, "f4")[0] for _, data in op.chain.literals] == [2, 0.5]
    (result,) = op.evaluate(np, np.array([1, 2, 3], "f4"))
    np.testing.assert_array_equal(result, [[1.5, 2, 2.5]])


def test_a_value_with_other_users_stays() -> None:
    net = Maker()
    a = net.op("a", "Relu", net.x(3, 4))
    b = net.op("b", "Abs", net.op("c", "Exp", a))
    assert net.done(b, net.op("s", "Softmax", a, axis=1)) == ["Relu(a)", "Fused(c, b)", "Softmax(s)"]


def test_a_value_with_several_users_in_the_chain_joins() -> None:
    """The sum in x * tanh(x) is computed once."""
    net = Maker()
    a = net.op("a", "Add", net.x(3, 4), net.x(3, 4))
    b = net.op("b", "Multiply", a, net.op("s", "Tanh", a))
    assert net.done(net.op("c", "Add", b, a)) == ["Fused(a, s, b, c)"]


def test_results_of_the_model_stay() -> None:
    net = Maker()
    a = net.op("a", "Relu", net.x(3, 4))
    assert net.done(a, net.op("c", "Abs", net.op("b", "Exp", a))) == ["Relu(a)", "Fused(b, c)"]


def test_conversions_that_change_nothing_are_skipped() -> None:
    net = Maker()
    y = net.op("c", "Convert", net.op("a", "Relu", net.x(3, 4)), destination_type="f32")
    y = net.op("d", "Convert", y, destination_type="f32")
    assert net.done(net.op("b", "Exp", y)) == ["Fused(a, b)"]


def test_users_of_the_shape_need_no_value() -> None:
    net = Maker()
    x = net.parameter("f32", (-1, 4))
    a = net.op("a", "Relu", net.op("e", "Exp", x))
    shape = net.op("shape", "ShapeOf", a, version=3, kind="i64", output_type="i64")
    y = net.op("y", "Broadcast", net.op("b", "Abs", a), shape, version=3, mode="numpy")
    model = fused(net) if net.done(y) else None
    assert model is not None and "Fused(e, a, b)" in steps(model)
    table = Table()
    specs = [Spec(p.op.element_type, dims_of(p.op.shape, table, i)) for i, p in enumerate(model.parameters)]  # type: ignore[attr-defined]
    program = build(model, specs, table)
    assert [step.op.name for step in program.steps].count("Relu") == 0, "it would be computed for its shape alone"


def test_shape_arithmetic_stays() -> None:
    net = Maker()
    x = net.parameter("f32", (-1, 4))
    shape = net.op("shape", "ShapeOf", x, version=3, kind="i64", output_type="i64")
    twice = net.op("a", "Multiply", shape, net.const(np.array([2, 1], np.int64)), kind="i64")
    more = net.op("b", "Add", twice, net.const(np.array([0, 0], np.int64)), kind="i64")
    flat = net.op(
        "f", "Reshape", net.op("tile", "Tile", x, net.const(np.array([2, 1], np.int64))), more, special_zero=False
    )
    assert [s for s in net.done(flat) if "Fused" in s] == []


def exp_then_add(net: Maker, small: int, large: int) -> Port:
    row = net.op("exp", "Exp", net.op("plus", "Add", net.x(1, small), net.x(1, small)))
    return net.op("sum", "Add", row, net.x(large, small))


def test_expensive_layers_are_not_computed_for_every_row() -> None:
    net = Maker()
    assert net.done(exp_then_add(net, 8, 64)) == ["Fused(plus, exp)", "Add(sum)"]
    net = Maker()
    assert net.done(exp_then_add(net, 8, 4)) == ["Fused(plus, exp, sum)"]
    net = Maker()  # cheap layers are computed for every row
    row = net.op("plus", "Add", net.x(1, 8), net.x(1, 8))
    assert net.done(net.op("sum", "Multiply", row, net.x(64, 8))) == ["Fused(plus, sum)"]


def test_types_without_arithmetic_stay() -> None:
    net = Maker()
    x = net.op("c", "Convert", net.x(4, kind="i4"), destination_type="f32")
    assert net.done(net.op("b", "Exp", net.op("a", "Abs", x))) == ["Convert(c)", "Fused(a, b)"]


def test_other_broadcasting_stays() -> None:
    net = Maker()
    a = net.op("a", "Add", net.x(2, 3, 4), net.x(2), auto_broadcast="pdpd")
    assert net.done(net.op("b", "Relu", a)) == ["Add(a)", "Relu(b)"]
    net = Maker()
    slope = net.const(np.array([0.5, 1, 2], "f4"))
    assert net.done(net.op("p", "PRelu", net.op("e", "Exp", net.x(2, -1, 4)), slope)) == ["Exp(e)", "PRelu(p)"]


def test_slopes_of_channels() -> None:
    net = Maker()
    slope = net.const(np.array([0.5, 1, 2], "f4"))
    assert net.done(net.op("p", "PRelu", net.op("e", "Exp", net.x(2, 3, 4)), slope)) == ["Fused(e, p)"]
    net = Maker()
    p = net.op("p", "PRelu", net.op("e", "Exp", net.x(2, 3, 4)), net.const(np.array([0.5], "f4")))
    assert net.done(p) == ["Fused(e, p)"]


def test_limits() -> None:
    net = Maker()
    x = net.x(4)
    for i in range(MAX_PARTS + 3):
        x = net.op(f"n{i}", "Abs", x)
    found = [n for n in fused(net).ops if n.op.name == "Fused"] if net.done(x) else []
    assert [len(layers(n)) for n in found] == [3, MAX_PARTS]
    net = Maker()
    x = net.x(4)
    for i in range(MAX_INPUTS + 3):
        x = net.op(f"n{i}", "Add", x, net.x(4))
    found = [n for n in fused(net).ops if n.op.name == "Fused"] if net.done(x) else []
    assert [len(n.sources) for n in found] == [5, MAX_INPUTS]


def test_ops_of_users_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's op may compute something else than its expression says."""
    monkeypatch.setattr(Exp, "__module__", "users")
    net = Maker()
    y = net.op("e", "Exp", net.op("a", "Abs", net.x(4)))
    assert net.done(net.op("c", "Abs", net.op("b", "Relu", y))) == ["Abs(a)", "Exp(e)", "Fused(b, c)"]


def test_bodies() -> None:
    body = Maker("body")
    xi = body.parameter("f32", (1, 3), "xi")
    r = body.result(body.op("b", "Abs", body.op("a", "Exp", xi)))
    net = Maker("loop")
    x = net.parameter("f32", (4, 3), "x")
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(r, axis=0)], [], name="ti"))
    inner: Any = next(n for n in fused(net).ops if n.friendly_name == "ti").op
    assert steps(inner.body) == ["Fused(a, b)"]


def test_fusion_is_optional() -> None:
    net = Maker()
    net.result(net.op("b", "Abs", net.op("a", "Exp", net.x(4))))
    assert steps(prepare(ov.Core().read_model(*net.build()))) == ["Exp(a)", "Abs(b)"]


def mismatch(first: str, second: str) -> Net:
    net = Maker()
    x, y = net.parameter("f32", (-1, 3), "x"), net.parameter("f32", (-1, 3), "y")
    net.result(net.op(second, "Relu", net.op(first, "Add", x, y)))
    return net


def test_checks_name_the_layer() -> None:
    """Extents are checked at run time; the error names the layer that demands them."""
    model = fused(mismatch("sum", "relu"))
    table = Table()
    specs = [Spec(p.op.element_type, dims_of(p.op.shape, table, i)) for i, p in enumerate(model.parameters)]  # type: ignore[attr-defined]
    build(model, specs, table)
    ((name, where),) = {c.where for c in table.checks if c.where}
    assert name == "Add" and where.startswith("layer 'sum'")


COUNTS: dict[str, Callable[[Counter[str]], bool]] = {
    "bert": lambda ops: ops["Fused"] + ops["AddNorm"] >= 9 and not ops["Gelu"] and not ops["Subtract"],
    "gpt2": lambda ops: ops["Fused"] + ops["AddNorm"] >= 9 and not ops["Gelu"],
    "llama": lambda ops: ops["Fused"] >= 4 and not ops["Swish"] and not ops["Negative"],
}


@pytest.mark.parametrize("name", COUNTS)
def test_stored_models(name: str) -> None:
    model = ov.Core().read_model(DATA / name / "model.xml")
    found = Counter(n.op.name for n in prepare(model, Target("CUDA")).ops)
    assert COUNTS[name](found), found
