"""Models of f32 in 16 bits: layers that are converted, layers that stay, and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model
from ovgpu.ops import convert
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import LARGEST, ConvertDown
from ovgpu.ops.fused.compressed import CompressedGather, CompressedMatMul
from ovgpu.ops.fused.kv_cache import growing
from ovgpu.passes import Target, prepare
from tests.harness import Net
from tests.harness.ir import Port, feed, take
from tests.harness.models.drive import DATA

F16, BF16 = ov.Type.f16, ov.Type.bf16
HALVES = pytest.mark.parametrize("kind", [F16, BF16], ids=["f16", "bf16"])
N = 8
W = np.random.default_rng(1).uniform(-1, 1, (N, N)).astype("f4")
X = np.random.default_rng(2).uniform(-1, 1, (2, N)).astype("f4")


def layer(
    net: Net, op: str, *inputs: Any, name: str = "", out: str = "f32", version: str = "opset1", **attrs: Any
) -> Port:
    """Add a layer named as its op, of ports and constants of f32."""
    ports = [
        x if isinstance(x, Port) else net.const(np.asarray(x, "f4" if isinstance(x, float) else None)) for x in inputs
    ]
    found: Port = net.layer(op, version, ports, attrs, [out], name=name or op)
    return found


def product(net: Net, x: Any, name: str = "MatMul", weights: Any = W) -> Port:
    return layer(net, "MatMul", x, weights, name=name, transpose_a=False, transpose_b=False)


def around(make: Callable[[Net, Port], Port]) -> Net:
    """Build layers between two products."""
    net = Net()
    inner = make(net, product(net, net.parameter("f32", (-1, N), "x"), "first"))
    net.result(product(net, inner, "last"))
    return net


def prepared(net: Net, kind: ov.Type = F16, **options: Any) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target(precision=kind, cache=kind, **options))


def types(net: Net, kind: ov.Type = F16) -> dict[str, str]:
    """Return the result type of each layer by name, without constants and conversions."""
    return {
        node.friendly_name: node.ports[0].element_type.get_type_name()
        for node in prepared(net, kind).ops
        if node.op.name not in ("Constant", "Convert")
    }


def infer(net: Net, inputs: Any, kind: str, device: str = "CPU") -> Any:
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), device, {"INFERENCE_PRECISION_HINT": kind})
    return compiled(inputs)[0]


# ---- layers in 16 bits


@HALVES
def test_between_products(kind: ov.Type) -> None:
    """Inputs and results keep their types, and the last layer is not rounded again."""
    net = Net()
    x = product(net, net.parameter("f32", (-1, N), "x"), "first")
    x = layer(net, "Relu", layer(net, "Add", x, W[0]))
    net.result(layer(net, "Sigmoid", product(net, x, "last")), "y")
    half = kind.get_type_name()
    assert types(net, kind) == {
        "x": "f32",
        "first": half,
        "Add": half,
        "Relu": half,
        "last": half,
        "Sigmoid": "f32",
        "y": "f32",
    }
    assert types(net, ov.Type.f32) == dict.fromkeys(types(net, kind), "f32")


def test_nothing_is_converted_twice() -> None:
    net = around(lambda net, x: layer(net, "Add", x, layer(net, "Relu", x)))
    converted = [node.friendly_name for node in prepared(net).ops if node.op.name == "Convert"]
    assert converted == ["first", next(r.friendly_name for r in prepared(net).results)]


LIGHT: dict[str, Callable[[Net, Port], Port]] = {
    "Clamp": lambda net, x: layer(net, "Clamp", x, min=-1.0, max=1.0),
    "Tanh": lambda net, x: layer(net, "Tanh", x),
    "Multiply": lambda net, x: layer(net, "Multiply", x, layer(net, "Sigmoid", x)),
    "Divide": lambda net, x: layer(net, "Divide", x, 3.0),
    "Softmax": lambda net, x: layer(net, "Softmax", x, version="opset8", axis=-1),
    "MVN": lambda net, x: layer(
        net, "MVN", x, np.array([1]), version="opset6", eps=1e-12, normalize_variance=True, eps_mode="inside_sqrt"
    ),
    "ReduceMean": lambda net, x: layer(net, "ReduceMean", x, np.array([0]), keep_dims=True),
    "Transpose": lambda net, x: layer(net, "Transpose", x, np.array([0, 1])),
}


@HALVES
@pytest.mark.parametrize("op", LIGHT)
def test_light_layers(op: str, kind: ov.Type) -> None:
    assert types(around(LIGHT[op]), kind)[op] == kind.get_type_name()


def positions(net: Net, x: Port) -> Port:
    """Add angles of the numbers 0, 1, .. n - 1."""
    count = layer(
        net,
        "Gather",
        net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"]),
        np.array(0),
        np.array(0),
        out="i64",
        version="opset8",
        name="count",
        batch_dims=0,
    )
    number = layer(
        net, "Range", np.array(0), count, np.array(1), out="i64", version="opset4", name="range", output_type="i64"
    )
    column = layer(
        net,
        "Unsqueeze",
        net.layer("Convert", "opset1", [number], {"destination_type": "f32"}, ["f32"]),
        np.array(1),
        name="column",
    )
    return product(net, column, "angles", W[:1])


WIDE: dict[str, Callable[[Net, Port], Port]] = {
    "Power": lambda net, x: layer(net, "Power", x, 2.0),
    "Multiply": lambda net, x: layer(net, "Multiply", x, x),
    "Exp": lambda net, x: layer(net, "Exp", x),
    "Divide": lambda net, x: layer(net, "Divide", 1.0, x),
    "ReduceSum": lambda net, x: layer(net, "ReduceSum", x, np.array([0]), keep_dims=True),
    "ReduceL2": lambda net, x: layer(net, "ReduceL2", x, np.array([0]), version="opset4", keep_dims=True),
    "CumSum": lambda net, x: layer(net, "CumSum", x, np.array(1), version="opset3", exclusive=False, reverse=False),
    "FakeQuantize": lambda net, x: layer(net, "FakeQuantize", x, -1.0, 1.0, -1.0, 1.0, levels=256),
    "Add": lambda net, x: layer(net, "Add", x, -1e38),
    "angles": lambda net, x: layer(net, "Add", x, layer(net, "Cos", positions(net, x))),
    "Tan": lambda net, x: layer(net, "Tan", x),
}


@pytest.mark.parametrize("op", WIDE)
def test_wide_layers(op: str) -> None:
    net = around(lambda net, x: layer(net, "Abs", WIDE[op](net, x), name="after"))
    found = types(net)
    assert found["first"] == "f16" and found[op] == "f32" and found["last"] == "f16"
    assert found["after"] == ("f16" if op == "angles" else "f32")  # cosines fit 16 bits


def test_an_epsilon_below_the_range() -> None:
    for eps, f16, bf16 in ((1e-12, "f32", "bf16"), (1e-3, "f16", "bf16"), (0.0, "f16", "bf16")):
        net = around(lambda net, x, eps=eps: layer(net, "Add", x, eps))  # type: ignore[misc]
        assert (types(net, F16)["Add"], types(net, BF16)["Add"]) == (f16, bf16)


def test_bytes_are_converted_and_integers_are_not() -> None:
    for kind, expected in (("u8", "f16"), ("i64", "f32")):
        net = Net()
        x = net.layer("Convert", "opset1", [net.parameter(kind, (-1, N))], {"destination_type": "f32"}, ["f32"])
        net.result(product(net, product(net, x), "last"))
        assert types(net)["MatMul"] == expected


def test_bodies_stay() -> None:
    body = Net("body")
    xi = body.parameter("f32", (1, N), "xi")
    r = body.result(product(body, xi, "inside"))
    net = Net()
    x = product(net, net.parameter("f32", (3, N), "x"), "first")
    y = net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(r, axis=0)], [], name="loop")
    net.result(product(net, y, "last"))
    model = prepare(ov.Core().read_model(*net.build()), Target(precision=F16))
    loop: Any = next(node.op for node in model.ops if node.op.name == "TensorIterator")
    assert {port.element_type for node in loop.body.ops for port in node.ports} == {ov.Type.f32}
    assert types(net)["first"] == types(net)["last"] == "f16"
    np.testing.assert_allclose(
        infer(net, [np.tile(X, (2, 1))[:3]], "f16"),
        infer(net, [np.tile(X, (2, 1))[:3]], "f32"),
        atol=N**1.5 * 3 * 2**-11,
    )


def test_an_unknown_type_stays() -> None:
    model = ov.Core().read_model(*around(lambda net, x: x).build())
    model.parameters[0].set_element_type(ov.Type.dynamic)
    model.validate_nodes_and_infer_types()
    before = [node.op.name for node in prepare(model).ops]
    assert [node.op.name for node in prepare(model, Target(precision=F16)).ops] == before


# ---- weights


def half_weights(kind: str = "f16") -> tuple[Net, Any]:
    """Build a product with weights stored in 16 bits, which are too large to fold unconditionally."""
    weights = np.random.default_rng(3).uniform(-1, 1, (1024, 640)).astype("f4")
    net = Net()
    w = net.layer("Convert", "opset1", [net.const(weights, kind)], {"destination_type": "f32"}, ["f32"])
    net.result(layer(net, "Relu", product(net, net.parameter("f32", (-1, 1024), "x"), "product", w)))
    return net, weights


def test_stored_halves_are_used_unchanged() -> None:
    net, _ = half_weights()
    model = ov.Core().read_model(*net.build())
    (stored,) = [n.op.value for n in model.ops if n.op.name == "Constant"]  # type: ignore[attr-defined]
    for fuse in (False, True):
        found = prepare(model, Target("CUDA" if fuse else "", F16))
        (taken,) = [n.op.value for n in found.ops if n.op.name == "Constant"]  # type: ignore[attr-defined]
        assert np.shares_memory(stored, taken)
        assert "CompressedMatMul" not in [type(n.op).__name__ for n in found.ops]


def test_halves_in_f32() -> None:
    """In f32, weights stay in 16 bits on a GPU, and are folded for NumPy."""
    net, weights = half_weights()
    for fuse, expected in (
        (False, ["Parameter", "Constant", "MatMul", "Relu", "Result"]),
        (True, ["Parameter", "Constant", "CompressedMatMul", "Relu", "Result"]),
    ):
        for kind in (ov.Type.f32, ov.Type.dynamic):
            model = prepare(ov.Core().read_model(*net.build()), Target("CUDA" if fuse else "", kind))
            assert [type(n.op).__name__ for n in model.ops] == expected
    x = np.random.default_rng(4).uniform(-1, 1, (2, 1024)).astype("f4")
    exact = np.maximum(x @ weights.astype("f2").astype("f4"), 0)
    np.testing.assert_allclose(infer(net, [x], "f32"), exact, atol=1e-4)
    # x and the result are rounded: each adds half an ulp
    np.testing.assert_allclose(infer(net, [x], "f16"), exact, atol=2**-11 * (1024**0.5 + exact.max()))


def test_compressed_weights_stay(device: str) -> None:
    rng = np.random.default_rng(5)
    net = Net()
    scale = net.const(rng.uniform(1e-6, 1e-5, (64, 1)), "f32")  # below the range of f16
    codes = net.layer(
        "Convert", "opset1", [net.const(rng.integers(0, 255, (64, 64)), "u8")], {"destination_type": "f32"}, ["f32"]
    )
    weights = layer(net, "Multiply", codes, scale)
    x = layer(net, "Gather", weights, net.parameter("i64", (-1,), "rows"), np.array(0), version="opset8", batch_dims=0)
    x = product(net, layer(net, "Multiply", x, 1000.0, name="up"), "product", weights)
    net.result(layer(net, "Multiply", x, 1e3))
    model = prepared(net, device="" if device == "CPU" else "CUDA")
    assert {CompressedGather, CompressedMatMul} <= {type(node.op) for node in model.ops}
    assert types(net)["product"] == "f16"
    rows = np.array([0, 7, 63])
    expected = infer(net, [rows], "f32", device)
    # f16 has at most 10 bits for such small rows; three more roundings follow, and the product's terms are positive
    np.testing.assert_allclose(infer(net, [rows], "f16", device), expected, rtol=5 * 2**-11)


# ---- values beyond the range of 16 bits


@HALVES
def test_downcasting_keeps_finite_values_finite(kind: ov.Type) -> None:
    x = np.array([3e38, -np.finfo("f4").max, np.inf, -np.inf, np.nan, 65519, 1, 0], "f4")
    (found,) = ConvertDown(destination_type=kind).evaluate(np, x)
    most = LARGEST[kind]
    middle = 65504 if kind == F16 else 65536
    expected = [most if kind == F16 else 3e38, -most, np.inf, -np.inf, np.nan, middle, 1, 0]
    np.testing.assert_allclose(found.astype("f4"), expected, rtol=2**-8)
    assert np.isfinite(found.astype("f4")).tolist() == np.isfinite(x).tolist()


@HALVES
@pytest.mark.parametrize("size", [10, 64, 65, 300])
def test_blocks(kind: ov.Type, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are converted block by block have the same bits, wherever numbers beyond the range are."""
    monkeypatch.setattr(convert, "BLOCK", 64)
    x = np.random.default_rng(size).standard_normal((size, 3)).astype(np.float32)
    for number in (LARGEST[kind] * 1.0001, -3.4e38, 65519.99, np.nan, -np.inf, np.inf):
        x[np.random.default_rng(size).integers(size), 1] = number
        op = ConvertDown(destination_type=kind)
        with np.errstate(all="ignore"):
            expected = op.fn(np, x)
        (found,) = op.evaluate(NUMPY, x)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))
        finite = x[np.isfinite(x)]
        assert convert.largest_finite(x) == np.abs(finite).max()
    assert convert.largest_finite(np.full(70, np.nan, np.float32)) == convert.largest_finite(x[:0]) == 0


def attention(fused: bool) -> Net:
    """Build attention of 2 keys, with a mask computed from integers, as models are exported."""
    net = Net()
    x = product(net, net.parameter("f32", (1, 2, N), "x"), "first")
    mask = net.parameter("i64", (1, 1, 2), "mask")
    mask = net.layer("Convert", "opset1", [mask], {"destination_type": "f32"}, ["f32"])
    mask = layer(net, "Multiply", layer(net, "Subtract", 1.0, mask), float(np.finfo("f4").min), name="masked")
    if fused:
        y = layer(net, "ScaledDotProductAttention", x, x, x, mask, version="opset13", causal=False)
    else:
        scores = layer(net, "MatMul", x, x, transpose_a=False, transpose_b=True)
        weights = layer(net, "Softmax", layer(net, "Add", scores, mask), version="opset8", axis=-1)
        y = product(net, weights, "sum", x)
    net.result(y)
    if not fused:
        net.result(layer(net, "Abs", weights))  # otherwise the layers would be fused
    return net


def check_masks(mask: list[int], fused: bool, kind: ov.Type, device: str) -> None:
    given = [X[None], np.array([[mask]])]
    expected, found = (infer(attention(fused), given, k.get_type_name(), device) for k in (ov.Type.f32, kind))
    assert np.isfinite(found).all()
    if any(mask):
        # at most 7 roundings of numbers as large as x W, which has N terms
        np.testing.assert_allclose(found, expected, atol=7 * N**0.5 * (2**-11 if kind == F16 else 2**-8))


@HALVES
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("mask", [[1, 0], [0, 0]])
def test_masks(mask: list[int], fused: bool, kind: ov.Type) -> None:
    """The lowest number of f32 is out of range in 16 bits. If all keys are masked, the result is not NaN."""
    check_masks(mask, fused, kind, "CPU")


@pytest.mark.parametrize("fused", [False, True])
def test_masks_on_the_device(fused: bool, emulated: str) -> None:
    check_masks([0, 0], fused, F16, emulated)


def test_large_reductions(device: str) -> None:
    """A sum of 100,000 and squares of 300 are beyond the range of f16."""
    net = Net()
    x = product(net, net.parameter("f32", (-1, N), "x"), "first", np.eye(N, dtype="f4"))
    total = layer(net, "ReduceSum", x, np.array([0]), keep_dims=True)
    mean = layer(net, "ReduceMean", layer(net, "Power", x, 2.0), np.array([1]), keep_dims=True)
    net.result(product(net, layer(net, "Divide", total, 1e5), "last", np.eye(N, dtype="f4")))
    net.result(layer(net, "Divide", x, layer(net, "Sqrt", layer(net, "Add", mean, 1e-12, name="plus"))))
    x = np.full((100_000, N), 1, "f4")
    x[0] = 300
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), device, {"INFERENCE_PRECISION_HINT": "f16"})
    found = compiled([x])
    np.testing.assert_allclose(found[0], x.sum(0, keepdims=True) / 1e5, rtol=2**-8)
    np.testing.assert_allclose(found[1], np.ones_like(x), rtol=1e-6)  # in f32 since the first product


# ---- caches


@pytest.mark.parametrize("rank", [2, 3])
def test_caches_append_in_their_type(rank: int) -> None:
    """Caches append in their own type. In f32, and with fewer than three axes (no keys or values), they stay f32, and
    so do the layers between them and a product."""
    net = Net()
    shape = (1,) * (rank - 2)
    old = net.read_value("v", "f32", (*shape, -1, N), net.const(np.zeros((*shape, 0, N), "f4")))
    given = layer(net, "Relu", product(net, net.parameter("f32", (*shape, -1, N), "x"), "new"))
    new = net.layer("Concat", "opset1", [old, given], {"axis": rank - 2}, ["f32"], name="append")
    net.assign("v", new)
    net.result(product(net, new, "last"))
    for cache in (ov.Type.f32, F16):
        model = prepare(ov.Core().read_model(*net.build()), Target(precision=F16, cache=cache))
        assert growing(model) == {"v": rank - 2}
        kinds = {n.friendly_name: n.ports[0].element_type for n in model.ops if n.op.name != "Convert"}
        assert kinds["append"] == kinds["Relu"] == (F16 if rank == 3 and cache == F16 else ov.Type.f32)
        assert kinds["new"] == kinds["last"] == F16


def test_caches(device: str) -> None:
    """Keys and values are stored in 16 bits and append in place; users see the model's type."""
    core = ov.Core()
    model = core.read_model(DATA / "llama" / "model.xml")
    cases = (
        ({"INFERENCE_PRECISION_HINT": "f16"}, F16),
        ({"KV_CACHE_PRECISION": "bf16"}, BF16),
        ({"INFERENCE_PRECISION_HINT": "f16", "KV_CACHE_PRECISION": "f32"}, ov.Type.f32),
    )
    for config, kind in cases if device == "CPU" else cases[:1]:
        compiled = core.compile_model(model, device, config)
        assert {info.type for info in compiled._compilation.initial.infos.values()} == {kind}
        assert all(info.axis == 2 for info in compiled._compilation.initial.infos.values())
        request = compiled.create_infer_request()
        tokens = np.array([[5, 7, 9]])
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "position_ids": np.array([[0, 1, 2]]),
            "beam_idx": np.zeros(1, np.int32),
        }
        first = request.infer(inputs)[0].copy()
        states = request.query_state()
        assert {state.state.element_type for state in states} == {ov.Type.f32}
        saved = [np.array(state.state.data) for state in states]
        more = {**inputs, "attention_mask": np.ones((1, 6), int), "position_ids": np.array([[3, 4, 5]])}
        second = request.infer(more)[0].copy()
        for state, value in zip(states, saved):
            with pytest.raises(ov.Error, match="has type f32"):
                state.state = ov.Tensor(value.astype(np.float64))
            state.state = ov.Tensor(value)
        np.testing.assert_array_equal(request.infer(more)[0], second)
        request.reset_state()
        np.testing.assert_array_equal(request.infer(inputs)[0], first)
