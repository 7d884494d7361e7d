"""Products of one tensor become one: conditions, copied results, and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.lowering.build import build
from ovgpu.model import Model, all_nodes
from ovgpu.ops.base.lazy import Joined
from ovgpu.passes import Target, prepare
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from tests.harness.ir import Net, Port, feed, take

DATA = Path(__file__).parents[1] / "models" / "data"
WIDTH = 64
RNG = np.random.default_rng(3)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, shape).astype("f4")


class Maker(Net):
    """Net with the layers of projections."""

    def op(self, type: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs, [inputs[0].type])
        return port

    def weights(self, out: int, kind: str = "f32", transposed: bool = True) -> Port:
        """Add weights [out, WIDTH], or [WIDTH, out] if not ``transposed``, stored in this type."""
        shape = (out, WIDTH) if transposed else (WIDTH, out)
        if kind in ("f32", "f16", "bf16"):
            port = self.const(random(*shape) / 8, kind)
            return port if kind == "f32" else self.convert(port)
        port = self.convert(self.const(RNG.integers(0, 16, shape), kind))
        terms = (out, 1) if transposed else (1, out)
        if kind[0] == "u":
            port = self.op("Subtract", port, self.convert(self.const(RNG.integers(3, 12, terms), kind)))
        return self.op("Multiply", port, self.const(RNG.uniform(0.005, 0.02, terms), "f32"))

    def convert(self, x: Port) -> Port:
        port: Port = self.layer("Convert", "opset1", [x], {"destination_type": "f32"}, ["f32"])
        return port

    def dense(self, x: Port, out: int = WIDTH, kind: str = "f32", transposed: bool = True, bias: bool = False) -> Port:
        y = self.op("MatMul", x, self.weights(out, kind, transposed), transpose_b=transposed)
        return self.op("Add", y, self.const(random(1, 1, out))) if bias else y

    def heads(self, x: Port, count: int, size: int = 16) -> Port:
        y = self.op("Reshape", x, self.const(np.array([0, 0, count, size])), special_zero=True)
        return self.op("Transpose", y, self.const(np.array([0, 2, 1, 3])))

    def attention(
        self, x: Port, biases: Sequence[bool] = (True, True, True), of: Port | None = None, **how: Any
    ) -> Port:
        """Add attention with four query heads and two key-value heads; ``of`` is the source of keys and values."""
        sizes, sources = (64, 32, 32), (x, of or x, of or x)
        q, k, v = (self.heads(self.dense(s, n, bias=b, **how), n // 16) for s, n, b in zip(sources, sizes, biases))
        mixed = self.op(
            "ScaledDotProductAttention",
            *(self.repeated(p) if p is not q else p for p in (q, k, v)),
            version=13,
            causal=False,
        )
        y = self.op("Transpose", mixed, self.const(np.array([0, 2, 1, 3])))
        return self.op("Reshape", y, self.const(np.array([0, 0, WIDTH])), special_zero=True)

    def repeated(self, x: Port) -> Port:
        y = self.op("Unsqueeze", x, self.const(np.array(2)))
        y = self.op("Broadcast", y, self.const(np.array([1, 1, 2, 1, 1])), version=3, mode="bidirectional")
        return self.op("Reshape", y, self.const(np.array([0, 4, -1, 16])), special_zero=True)

    def gated(self, x: Port, out: int = 96, **how: Any) -> Port:
        gate = self.op("Swish", self.dense(x, out, **how), version=4)
        return self.op("Multiply", gate, self.dense(x, out, **how))

    def softmax(self, x: Port) -> Port:
        """Add a layer that needs dense tensors."""
        return self.op("Softmax", x, version=8, axis=2)


def merged(net: Net) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA"))


def count(model: Model, *names: str) -> int:
    return sum(node.op.name in (names or ("MatMul",)) for node in all_nodes(model))


def steps(model: Model) -> list[str]:
    table = Table()
    given: Any = [p.op for p in model.parameters]
    specs = [Spec(op.element_type, dims_of(op.shape, table, i)) for i, op in enumerate(given)]
    return [step.op.name for step in build(model, specs, table).steps]


def one(layer: Callable[..., Port], *args: Any, **options: Any) -> Net:
    """Build a net of one such layer."""
    net = Maker()
    net.result(layer(net, net.parameter("f32", (-1, -1, WIDTH)), *args, **options))
    return net


# ---- merged products


def test_projections() -> None:
    model = merged(one(Maker.attention))
    assert steps(model) == ["MatMul", "ScaledDotProductAttention"]


@pytest.mark.parametrize("biases", [(False, False, False), (True, False, True), (False, True, False)], ids=str)
def test_some_biases(biases: Sequence[bool]) -> None:
    """Biases are part of the product, with zeros for missing ones."""
    model = merged(one(Maker.attention, biases))
    assert steps(model) == ["MatMul", "ScaledDotProductAttention"]


@pytest.mark.parametrize("bias", [False, True])
def test_gated_layers(bias: bool) -> None:
    """Biases that are fused with the activation stay there."""
    assert steps(merged(one(Maker.gated, bias=bias))) == ["MatMul", "Fused"]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("kind", "transposed"),
    [("f32", False), ("f32", True), ("f16", True), ("u8", False), ("i8", True), ("u4", True), ("i4", False)],
)
def test_values(kind: str, transposed: bool, emulated: str) -> None:
    """Values are the same as without merging, for few rows and for many."""
    core, how = ov.Core(), {"kind": kind, "transposed": transposed}
    net = Maker()
    x = net.parameter("f32", (-1, -1, WIDTH))
    net.result(net.gated(net.attention(x, **how), **how))
    model = core.read_model(*net.build())
    assert count(prepare(model, Target("CUDA"))) == 2 and count(prepare(model)) == 5
    found, expected = (core.compile_model(model, device) for device in (emulated, "CPU"))
    for shape in ((1, 1, WIDTH), (3, 7, WIDTH)):
        x = random(*shape)
        np.testing.assert_allclose(found(x)[0], expected(x)[0], 2e-5, 2e-5)


def test_values_with_biases(emulated: str) -> None:
    core = ov.Core()
    for biases in ((True, True, True), (True, False, True)):
        model = core.read_model(*one(Maker.attention, biases).build())
        x = random(2, 5, WIDTH)
        found, expected = (core.compile_model(model, device)(x)[0] for device in (emulated, "CPU"))
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_a_transposed_input() -> None:
    net = Maker()
    x = net.parameter("f32", (2, WIDTH, 5))
    a, b = (net.op("MatMul", x, net.weights(n), transpose_a=True, transpose_b=True) for n in (32, 48))
    net.result(net.op("MatMul", a, b, transpose_a=True))
    assert steps(merged(net)) == ["MatMul", "MatMul"]


def test_vectors() -> None:
    net = Maker()
    x = net.parameter("f32", (WIDTH,))
    net.result(net.op("Multiply", net.dense(x, 32), net.op("Exp", net.dense(x, 32))))
    assert steps(merged(net)) == ["MatMul", "Fused"]


def test_bodies() -> None:
    body = Maker()
    xi = body.parameter("f32", (1, 2, WIDTH))
    r = body.result(body.gated(xi))
    net = Maker()
    x = net.parameter("f32", (4, 2, WIDTH))
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(r, axis=0)], []))
    assert count(merged(net)) == 1


def test_names_move_along() -> None:
    model = ov.Core().read_model(*one(Maker.gated).build())
    for number, node in enumerate(n for n in model.ops if n.op.name == "MatMul"):
        node.ports[0].names = {f"part {number}"}
    cut = next(n for n in prepare(model, Target("CUDA")).ops if n.op.name == "VariadicSplit")
    assert [port.get_any_name() for port in cut.ports] == ["part 0", "part 1"]


def test_nothing_is_held_twice(emulated: str) -> None:
    """The host keeps the original weights; only the device has the concatenated ones."""
    core = ov.Core()
    model = core.read_model(*one(Maker.attention).build())
    before = [n.op.value for n in model.ops if n.op.name == "Constant" and n.op.value.ndim == 2]  # type: ignore[attr-defined]
    constants = core.compile_model(model, emulated)._compilation.constants.values()
    ((source, array),) = ((s, a) for s, a in constants if isinstance(s, Joined) and s.ndim == 2)
    assert len(source.parts) == 3 and all(any(np.shares_memory(p, b) for b in before) for p in source.parts)
    np.testing.assert_array_equal(array.get(), np.concatenate(before))


# ---- not merged


def later(net: Maker, x: Port) -> Port:
    """Add two layers that attend to the same keys; the second would need them early."""
    for _ in range(2):
        x = net.attention(net.dense(net.op("Relu", x)), of=net.parameters["of"])
    return x


def test_products_needed_later_stay() -> None:
    net = Maker()
    x = net.parameter("f32", (-1, -1, WIDTH))
    net.parameter("f32", (-1, -1, WIDTH), "of")
    net.result(later(net, x))
    model = merged(net)
    assert count(model) == 6 and steps(model).count("Copy") == 0


def pair(net: Maker, x: Port, first: dict[str, Any], second: dict[str, Any]) -> None:
    y = net.op("Multiply", net.dense(x, **first), net.op("Exp", net.dense(x, **second)))
    net.result(y)


@pytest.mark.parametrize(
    "second",
    [
        {"transposed": False},
        {"kind": "u8"},
        {"kind": "f16"},
        {"kind": "u4"},
        {"kind": "i4"},
    ],
    ids=str,
)
def test_others_stay(second: dict[str, Any]) -> None:
    net = Maker()
    pair(net, net.parameter("f32", (2, 3, WIDTH)), {"kind": "i8" if second != {"transposed": False} else "f32"}, second)
    assert count(merged(net)) == 2


def test_scales_for_all_columns_stay() -> None:
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    codes = [net.convert(net.const(RNG.integers(0, 16, (WIDTH, WIDTH)), "i8")) for _ in range(2)]
    a, b = (net.op("MatMul", x, net.op("Multiply", c, net.const(np.float32(0.1))), transpose_b=True) for c in codes)
    net.result(net.op("Multiply", a, net.op("Exp", b)))
    assert count(merged(net)) == 2


def test_weights_of_others_stay() -> None:
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    weights = net.weights(WIDTH)
    a = net.op("MatMul", x, weights, transpose_b=True)
    net.result(net.op("Multiply", a, net.dense(x)))
    net.result(net.op("MatMul", a, weights, transpose_b=True))
    assert count(merged(net)) == 3


def test_matrices_that_are_computed_stay() -> None:
    net = Maker()
    x, weights = net.parameter("f32", (2, 3, WIDTH)), net.parameter("f32", (WIDTH, WIDTH))
    net.result(net.op("Multiply", net.op("MatMul", x, weights), net.op("Exp", net.op("MatMul", x, weights))))
    assert count(merged(net)) == 2


def test_matrices_that_do_not_fit_each_other(emulated: str) -> None:
    """Only at run time it turns out which of them does not fit the input."""
    net = Maker()
    x = net.parameter("f32", (2, -1))
    for rows in (32, 48):
        net.result(net.op("Softmax", net.op("Exp", net.op("MatMul", x, net.const(random(rows, 8)))), axis=1))
    assert count(merged(net)) == 2
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), emulated)
    with pytest.raises(RuntimeError, match="matrices of 32 columns and 48 rows do not multiply"):
        compiled(random(2, 32))


def test_a_rank_that_is_not_known() -> None:
    net = Maker()
    net.result(net.gated(net.parameter("f32", None)))
    assert count(merged(net)) == 2


def test_products_that_would_be_copied_stay() -> None:
    """Products stay if results would be copied: model results, parts of a Concat, and dense inputs."""
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    net.result(net.dense(x))
    net.result(net.dense(x, bias=True))
    assert count(merged(net)) == 2
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    net.result(net.op("Concat", net.dense(x), net.dense(x), axis=1))
    assert count(merged(net)) == 2
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    net.result(net.op("Add", net.softmax(net.dense(x)), net.softmax(net.dense(x))))
    assert count(merged(net)) == 2


def test_a_copy_that_pays() -> None:
    """Two saved products are worth one copied result of three."""
    net = Maker()
    x = net.parameter("f32", (2, 3, WIDTH))
    net.result(net.op("Add", net.gated(x, 64), net.softmax(net.dense(x))))
    model = merged(net)
    assert count(model) == 1 and steps(model).count("Copy") == 1


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("bert", 12, 8),
        ("whisper_encoder", 12, 8),
        ("vit", 13, 9),
        ("gpt2", 9, 9),
        ("llama", 16, 10),
        ("whisper_decoder", 21, 15),
        ("llama_int8", 16, 12),
        ("qwen3", 16, 10),
    ],
)
def test_stored_models(name: str, before: int, after: int) -> None:
    model = ov.Core().read_model(DATA / name / "model.xml")
    assert (count(prepare(model)), count(prepare(model, Target("CUDA")))) == (before, after)
