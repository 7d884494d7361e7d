"""Norms that compute the sum they normalise: conditions of the fusion, and values of both results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.passes import Target, prepare
from tests.harness.ir import Net, Port, feed, take

DATA = Path(__file__).parents[1] / "models" / "data"
SHAPE = (2, 3, 32)
RNG = np.random.default_rng(4)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-2, 2, shape).astype("f4")


class Maker(Net):
    """Net with the layers around residual connections."""

    def op(self, type: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs)
        return port

    def x(self, *shape: int, kind: str = "f32") -> Port:
        return self.parameter(kind, shape or SHAPE)

    def weights(self, *shape: int, kind: str = "f32") -> Port:
        return self.const(random(*shape), kind)

    def dense(self, x: Port, bias: bool = True) -> Port:
        y = self.op("MatMul", x, self.weights(32, 32))
        return self.op("Add", y, self.weights(1, 1, 32)) if bias else y

    def norm(self, x: Port, kind: str = "f32") -> Port:
        y = self.op(
            "MVN", x, self.const(np.array([-1])), version=6, eps=1e-3, normalize_variance=True, eps_mode="inside_sqrt"
        )
        return self.op("Add", self.op("Multiply", y, self.weights(32, kind=kind)), self.weights(32, kind=kind))

    def rms(self, x: Port) -> Port:
        mean = self.op("ReduceMean", self.op("Multiply", x, x), self.const(np.array([-1])), keep_dims=True)
        root = self.op("Sqrt", self.op("Add", mean, self.const(np.float32(1e-3))))
        return self.op("Multiply", self.op("Divide", x, root), self.weights(32))

    def done(self, *values: Port) -> list[str]:
        for value in values:
            self.result(value)
        return steps(self)


def merged(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA"))


def steps(net: Net) -> list[str]:
    """Return the names of all layers but ports and constants, with the number of outputs if above 1."""
    hidden = ("Parameter", "Result", "Constant")
    return [n.op.name + f" {len(n.ports)}" * (len(n.ports) > 1) for n in merged(net).ops if n.op.name not in hidden]


def judged(net: Net, *inputs: Any, device: str, tol: float = 1e-5) -> None:
    """Assert equal results with and without the pass."""
    core = ov.Core()
    model = core.read_model(*net.build())
    as_they_are = {"INFERENCE_PRECISION_HINT": "dynamic"}
    found, expected = (core.compile_model(model, name, as_they_are)(inputs) for name in (device, "CPU"))
    for a, b in zip(found.to_tuple(), expected.to_tuple()):
        np.testing.assert_allclose(a, b, tol, tol)


# ---- fused sums


@pytest.mark.parametrize("layer", ["norm", "rms"])
def test_after_a_sum(layer: str, emulated: str) -> None:
    """The sum joins the norm, as in BERT, if it has no other user."""
    net = Maker()
    x = net.x(-1, -1, 32)
    assert net.done(getattr(net, layer)(net.op("Add", net.dense(x), x))) == ["MatMul", "AddNorm"]
    judged(net, random(*SHAPE), device=emulated)


@pytest.mark.parametrize("layer", ["norm", "rms"])
@pytest.mark.parametrize("bias", [True, False])
def test_before_a_layer(layer: str, bias: bool, emulated: str) -> None:
    """The sum is a second output if the next sum uses it, as in GPT-2 and Llama."""
    net = Maker()
    x = net.x(-1, -1, 32)
    for _ in range(2):
        x = net.op("Add", x, net.dense(getattr(net, layer)(x), bias))
    norm = "MVN" if layer == "norm" else "RMS"
    assert net.done(getattr(net, layer)(x)) == [norm, "MatMul", "AddNorm 2", "MatMul", "AddNorm"]
    judged(net, random(*SHAPE), device=emulated)


def test_results() -> None:
    net = Maker()
    x = net.op("Add", net.x(), net.x())
    assert net.done(x, net.norm(x)) == ["AddNorm 2"]


def test_names_move_along() -> None:
    net = Maker()
    x = net.layer("Add", "opset1", [net.x(), net.x()], names=["total"])
    assert net.done(x, net.norm(x)) == ["AddNorm 2"]
    (node,) = (n for n in merged(net).ops if isinstance(n.op, AddNorm))
    assert node.ports[1].get_any_name() == "total" and not node.ports[0].get_names()


def test_two_norms_of_a_sum(emulated: str) -> None:
    net = Maker()
    x = net.op("Add", net.x(), net.x())
    assert net.done(net.op("Softmax", net.norm(x), axis=1), net.op("Softmax", net.norm(x), axis=1)) == [
        "AddNorm 2",
        "Softmax",
        "MVN",
        "Softmax",
    ]
    judged(net, random(*SHAPE), random(*SHAPE), device=emulated)


def test_a_shape_that_is_asked_for(emulated: str) -> None:
    """Only the shape of the sum is used besides."""
    net = Maker()
    x = net.op("Add", net.x(-1, -1, 32), net.x(-1, -1, 32))
    shape = net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"])
    assert net.done(net.norm(x), shape) == ["AddNorm", "ShapeOf"]
    judged(net, random(2, 1, 32), random(1, 3, 32), device=emulated)


def test_broadcasting(emulated: str) -> None:
    """Operands may broadcast, such as embeddings of positions; one grows only at run time."""
    net = Maker()
    x = net.op("Add", net.op("Add", net.x(-1, -1, 32), net.x(1, -1, 32)), net.x(-1, -1, 32))
    assert net.done(net.norm(x)) == ["AddNorm"]
    for last in ((2, 3, 32), (2, 1, 32)):
        judged(net, random(2, 3, 32), random(1, 3, 32), random(*last), device=emulated)


def test_roundings(emulated: str) -> None:
    """Results in f16 are rounded after every sum, as without the pass."""
    net = Maker()
    x = net.op("Add", net.op("Add", net.x(kind="f16"), net.x(kind="f16")), net.x(kind="f16"))
    assert net.done(x, net.norm(x, "f16")) == ["AddNorm 2"]
    judged(net, *(100 * random(*SHAPE).astype("f2") for _ in range(3)), device=emulated, tol=2e-3)


def test_bodies() -> None:
    body = Maker()
    xi = body.x(1, 3, 32)
    r = body.result(body.norm(body.op("Add", xi, body.dense(xi))))
    net = Maker()
    net.result(net.tensor_iterator(body, [feed(net.x(), xi, axis=0)], [take(r, axis=0)], []))
    assert sum(isinstance(n.op, AddNorm) for n in all_nodes(merged(net))) == 1


def test_errors_are_those_of_the_layers(emulated: str) -> None:
    net = Maker()
    x = net.layer("Add", "opset1", [net.x(-1, -1, 32), net.x(-1, -1, 32)], name="residual")
    assert net.done(net.norm(x)) == ["AddNorm"]
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), emulated)
    with pytest.raises(RuntimeError, match=r"\[Add\].*do not broadcast.*'residual'"):
        compiled([random(2, 3, 32), random(2, 2, 32)])


# ---- not fused


def test_on_the_host() -> None:
    net = Maker()
    net.result(net.norm(net.op("Add", net.x(), net.x())))
    assert not any(isinstance(n.op, AddNorm) for n in prepare(ov.Core().read_model(*net.build()), Target("CPU")).ops)


@pytest.mark.parametrize("reason", ["four terms", "twice the same", "a number", "other layers", "a Concat", "no scale"])
def test_others_stay(reason: str) -> None:
    net = Maker()
    x, y = net.x(), net.x()
    total, others = net.op("Add", x, y), []
    if reason == "four terms":
        total = net.op("Add", net.op("Add", total, net.x()), net.x())
    elif reason == "twice the same":
        total = net.op("Add", total, x)
    elif reason == "a number":
        total = net.op("Add", total, net.const(np.float32(1)))
    elif reason == "other layers":
        total = net.op("Multiply", total, y)
    elif reason == "a Concat":
        others = [net.op("Concat", total, total, axis=2)]
    norm = (
        net.op(
            "MVN",
            total,
            net.const(np.array([-1])),
            version=6,
            eps=1e-3,
            normalize_variance=True,
            eps_mode="inside_sqrt",
        )
        if reason == "no scale"
        else net.norm(total)
    )
    assert "AddNorm" not in " ".join(net.done(norm, *others))


@pytest.mark.parametrize(
    ("name", "count"), [("bert", 5), ("gpt2", 5), ("llama", 4), ("whisper_encoder", 5), ("vit", 5)]
)
def test_stored_models(name: str, count: int) -> None:
    """All norms are fused but those of model inputs."""
    model = prepare(ov.Core().read_model(DATA / name / "model.xml"), Target("CUDA"))
    assert sum(isinstance(node.op, AddNorm) for node in model.ops) == count
