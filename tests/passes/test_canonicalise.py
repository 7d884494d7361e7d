"""Canonical forms: ConvertLike becomes a Convert where the type is known, also in bodies, or a view for the same type.

Pooling drops its unused output of indices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, Node
from ovgpu.passes import prepare
from ovgpu.passes.canonicalise import canonicalise
from ovgpu.types import Type
from tests.harness.ir import Net, feed, take


def like(kind: str, rank: int = 1) -> Net:
    """Build ConvertLike(x, Exp(y)) of an i32 matrix."""
    net = Net("like")
    x, y = net.parameter("i32", (2, 3), "x"), net.parameter(kind, (-1,) * rank, "y")
    net.result(
        net.layer(
            "ConvertLike", "opset1", [x, net.layer("Exp", "opset1", [y], name="exp")], outputs=[kind], name="like"
        )
    )
    return net


def read(net: Net) -> Model:
    model: Model = ov.Core().read_model(*net.build())
    return model


def described(model: Model) -> list[str]:
    """Describe every node but ports: name of the op, names of its inputs."""
    return [
        f"{n.op.name}({', '.join(s.node.friendly_name for s in n.sources if s is not None)})"
        for n in model.ops
        if n.op.name not in ("Parameter", "Result")
    ]


def the(model: Model, name: str) -> Node:
    return next(n for n in model.ops if n.friendly_name == name)


def test_convert_like_becomes_convert() -> None:
    model = read(like("f16"))
    assert described(model) == ["Exp(y)", "ConvertLike(x, exp)"]
    canonicalise(model)
    assert described(model) == ["Convert(x)"]
    op: Any = the(model, "like").op
    assert op.destination_type is Type.f16
    model.validate_nodes_and_infer_types()
    assert model.outputs[0].element_type is Type.f16 and model.outputs[0].shape == [2, 3]


def test_convert_to_the_same_type_is_a_view() -> None:
    model = read(like("i32"))
    canonicalise(model)
    assert described(model) == ["Identity(x)"]
    net = Net("same")
    x = net.layer("Relu", "opset1", [net.parameter("f16", (2, 3), "x")], name="relu")
    for kind in ("f16", "f32"):
        net.result(net.layer("Convert", "opset1", [x], {"destination_type": kind}, [kind], name=kind))
    model = read(net)
    canonicalise(model)
    assert described(model) == ["Relu(x)", "Identity(relu)", "Convert(relu)"]


def test_parameters_stay() -> None:
    prepared = prepare(read(like("f32")))
    assert [p.friendly_name for p in prepared.parameters] == ["x", "y"]


def test_the_model_given_stays() -> None:
    model = read(like("f32"))
    prepare(model)
    assert described(model) == ["Exp(y)", "ConvertLike(x, exp)"]


def test_an_unknown_type_stays() -> None:
    """The type of y is dynamic, so that it is known only at run time."""
    model = read(like("f32"))
    parameter: Any = the(model, "y").op
    the(model, "y").op = replace(parameter, element_type=Type.dynamic)
    model.validate_nodes_and_infer_types()
    compiled = ov.Core().compile_model(model, "CPU")
    canonicalise(model)
    assert described(model) == ["Exp(y)", "ConvertLike(x, exp)"]
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    for kind in (np.float32, np.float64, np.float32):
        (result,) = compiled.create_infer_request().infer([x, np.zeros(4, kind)]).to_tuple()
        assert result.dtype == kind and result.tolist() == x.tolist()


def body() -> Net:
    """Build a loop that converts x[t] to the type of another input."""
    inner = Net("body")
    xi, y = inner.parameter("i32", (1, 3), "xi"), inner.parameter("f32", (5,), "yi")
    r = inner.result(inner.layer("ConvertLike", "opset1", [xi, y], outputs=["f32"], name="like"))
    net = Net("loop")
    x, y0 = net.parameter("i32", (4, 3), "x"), net.parameter("f32", (5,), "y")
    net.result(net.tensor_iterator(inner, [feed(x, xi, axis=0), feed(y0, y)], [take(r, axis=0)], [], name="ti"))
    return net


def test_bodies() -> None:
    model = prepare(read(body()))
    inner: Any = the(model, "ti").op
    assert described(inner.body) == ["Convert(xi)"]
    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    request = ov.Core().compile_model(read(body()), "CPU").create_infer_request()
    (result,) = request.infer([x, np.zeros(5, np.float32)]).to_tuple()
    assert result.dtype == np.float32 and result.tolist() == x.tolist()


@pytest.mark.parametrize("op", ["MaxPool", "AdaptiveMaxPool"])
def test_unused_indices_of_pooling(op: str) -> None:
    net, found = Net("pool"), []
    inputs = [net.parameter("f32", (1, 2, 5, 6), "x"), *([net.const(np.array([2, 3]))] if "Ad" in op else [])]
    attrs = {"kernel": "2,2", "strides": "3,2", "pads_begin": "0,0", "pads_end": "0,0"}
    ports = net.layer(op, "opset8", inputs, attrs, ["f32", "i64"], name="pool")
    for port, outputs in zip(ports, (1, 2)):
        net.result(port)
        pool = the(prepare(read(net)), "pool")
        assert len(pool.ports) == outputs
        assert outputs == 2 or (pool.op.name, pool.op.version) == (op, "ovgpu")
        x = np.random.default_rng(1).random((1, 2, 5, 6), np.float32)
        found.append(ov.Core().compile_model(read(net), "CPU").create_infer_request().infer([x]).to_tuple()[0])
    assert np.array_equal(*found)
