"""Models of 16 bits that compute in f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.passes import Target, prepare
from tests.harness import Net, judge
from tests.harness.ir import Port, feed, take

N = 32
RNG = np.random.default_rng(6)
W, X = (RNG.uniform(-1, 1, shape).astype("f2") for shape in ((N, N), (3, N)))
HALVES = pytest.mark.parametrize("kind", ["f16", "bf16"])


def chain(kind: str) -> Net:
    """Build products whose result each layer rounds to 16 bits, with one layer in f32."""
    net = Net()
    x = net.parameter(kind, (-1, N), "x")
    for _ in range(3):
        x = net.layer("MatMul", "opset1", [x, net.const(W, kind)], {"transpose_a": False, "transpose_b": False}, [kind])
        wide = net.layer("Convert", "opset1", [x], {"destination_type": "f32"}, ["f32"])
        wide = net.layer("Tanh", "opset1", [wide], outputs=["f32"])
        x = net.layer("ConvertLike", "opset1", [wide, x], outputs=[kind])
        x = net.layer("Sinh", "opset1", [x], outputs=[kind])
    net.result(x, "y")
    return net


def prepared(net: Net, precision: ov.Type = ov.Type.f32) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target(precision=precision))


def kinds(model: Model) -> set[str]:
    """Return the types of the layers' results."""
    return {
        port.element_type.get_type_name()
        for node in all_nodes(model)
        for port in node.ports
        if node.op.name not in ("Constant", "Parameter", "Result", "Convert")
    }


@HALVES
def test_between_ports(kind: str) -> None:
    model = prepared(chain(kind))
    assert kinds(model) == {"f32"}
    assert [port.element_type.get_type_name() for port in (*model.inputs, *model.outputs)] == [kind, kind]
    assert [node.op.name for node in model.ops].count("Convert") == 2
    assert kinds(prepared(chain(kind), ov.Type.dynamic)) == {"f32", kind}


@HALVES
def test_values(kind: str, device: str) -> None:
    """Only the result is rounded."""
    core, dtype = ov.Core(), getattr(ov.Type, kind).storage
    model = core.read_model(*chain(kind).build())
    given, weights = X.astype(dtype), W.astype(dtype).astype("f4")
    expected = given.astype("f4")
    for _ in range(3):
        expected = np.sinh(np.tanh(expected @ weights))

    def found(config: Any) -> Any:
        request = core.compile_model(model, device, config).create_infer_request()
        request.infer([judge.to_tensor(ov, given, kind)])
        return judge.to_array(request.get_output_tensor(0))

    assert (found({"INFERENCE_PRECISION_HINT": "f32"}) == expected.astype(dtype)).mean() > 0.98
    assert (found({"INFERENCE_PRECISION_HINT": "dynamic"}) == expected.astype(dtype)).mean() < 0.9
    if device == "CPU":
        assert (found({}) == expected.astype(dtype)).mean() > 0.98


def test_a_model_of_f32_stays() -> None:
    """A model of f32 is unchanged, also with weights in f16."""
    net = Net()
    w = net.layer("Convert", "opset1", [net.const(W, "f16")], {"destination_type": "f32"}, ["f32"])
    net.result(
        net.layer("MatMul", "opset1", [net.parameter("f32", (-1, N)), w], {"transpose_a": False, "transpose_b": False})
    )
    assert [n.op.name for n in prepared(net).ops] == [n.op.name for n in prepared(net, ov.Type.dynamic).ops]


def test_folded_constants_stay() -> None:
    """Constants keep the values of the file, including roundings."""
    net = Net()
    scaled = net.layer(
        "Multiply",
        "opset1",
        [net.const(W, "f16"), net.const(np.full((N, 1), 0.1), "f16")],
        {"auto_broadcast": "numpy"},
        ["f16"],
    )
    x = net.parameter("f16", (-1, N))
    net.result(net.layer("Add", "opset1", [x, scaled], {"auto_broadcast": "numpy"}, ["f16"]))
    (value,) = [n.op.value for n in prepared(net).ops if n.op.name == "Constant"]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(value, (W * np.float16(0.1)).astype("f4"))


def test_bodies(device: str) -> None:
    """Values are carried from iteration to iteration in f32."""
    body = Net("body")
    xi, h = body.parameter("f16", (1, N), "xi"), body.parameter("f16", (1, N), "h")
    total = body.layer("Add", "opset1", [xi, h], {"auto_broadcast": "numpy"}, ["f16"])
    r = body.result(total)
    net = Net()
    x, h0 = net.parameter("f16", (50, N), "x"), net.const(np.zeros((1, N)), "f16")
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0), feed(h0, h)], [take(r)], [(r, h)], name="ti"))
    assert kinds(prepared(net)) == {"f32"}
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), device, {"INFERENCE_PRECISION_HINT": "f32"})
    given = RNG.uniform(0, 1, (50, N)).astype("f2")
    np.testing.assert_array_equal(compiled([given])[0], given.astype("f4").sum(0, keepdims=True).astype("f2"))


@HALVES
def test_lowest_numbers(kind: str, device: str) -> None:
    """Empty segments have the lowest finite number of the file's type."""
    net = Net()
    ids, count = net.const(np.array([0, 0, 2])), net.const(np.array(4))
    x = net.parameter(kind, (3, 2), "x")
    net.result(net.layer("SegmentMax", "opset16", [x, ids, count], {"fill_mode": "LOWEST"}, [kind]))
    dtype = getattr(ov.Type, kind).storage
    lowest = ml_dtypes.finfo(dtype).min
    for hint in ("f32", "dynamic"):
        core, config = ov.Core(), {"INFERENCE_PRECISION_HINT": hint}
        request = core.compile_model(core.read_model(*net.build()), device, config).create_infer_request()
        ((found, _),) = judge.infer(ov, request, [(np.arange(6).reshape(3, 2).astype(dtype), kind)])
        assert found.astype("f8").tolist() == [[2, 3], [lowest] * 2, [4, 5], [lowest] * 2]


def test_random_numbers_stay() -> None:
    """Random numbers keep their type, which determines their sequence."""
    net = Net()
    ends = [net.const(np.float16(v), "f16") for v in (0, 1)]
    x = net.layer(
        "RandomUniform",
        "opset8",
        [net.const(np.array([5])), *ends],
        {"output_type": "f16", "global_seed": 1, "op_seed": 2},
        ["f16"],
    )
    net.result(net.layer("Exp", "opset1", [x], outputs=["f16"]))
    assert [
        (n.op.name, n.ports[0].element_type.get_type_name())
        for n in prepared(net).ops
        if n.op.name not in ("Constant", "Parameter")
    ] == [("RandomUniform", "f16"), ("Convert", "f32"), ("Exp", "f32"), ("Convert", "f16"), ("Result", "f16")]


def accumulator() -> Net:
    net = Net()
    x: Port = net.parameter("f16", (2,), "x")
    old = net.read_value("sum", "f16", (2,), net.const(np.zeros(2), "f16"))
    new = net.layer("Add", "opset1", [old, x], {"auto_broadcast": "numpy"}, ["f16"])
    net.assign("sum", new)
    net.result(new)
    return net


def test_states(device: str) -> None:
    """States are stored in f32; users see f16."""
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*accumulator().build()), device, {"INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    (state,) = request.query_state()
    assert state.state.element_type == ov.Type.f16
    state.state = ov.Tensor(np.array([2048, -2048], "f2"))
    for _ in range(3):  # f16 cannot add 1 to 2048
        found: Any = request.infer([np.array([1, 1], "f2")])[0]
    assert found.dtype == np.float16 and found.tolist() == [2052, -2045]
    assert np.array(state.state.data).tolist() == [2052, -2045]
    state.state = ov.Tensor(np.array([0.1, 70000], np.float32))  # becomes f16, as in OpenVINO
    assert np.array(state.state.data).tolist() == [np.float16(0.1), np.inf]


class Doubled(ov.Op):
    def infer_specs(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        assert x.dtype == np.float32  # decoded
        return (x * 2,)


def test_a_users_own_layer_keeps_its_type() -> None:
    ov.register_op("Doubled", "widen_ops")(Doubled)
    net = Net()
    x = net.layer("Exp", "opset1", [net.parameter("f16", (3,), "x")], outputs=["f16"])
    x = net.layer("Doubled", "widen_ops", [x], outputs=["f16"])
    net.result(net.layer("Exp", "opset1", [x], outputs=["f16"]))
    found = [n.ports[0].element_type.get_type_name() for n in prepared(net).ops if n.op.name in ("Exp", "Doubled")]
    assert found == ["f32", "f16", "f32"]
