"""Types stored as codes (u1, u3, u6, nf4) and other small types: moves copy codes, and computations decode them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.base import op as op_module
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.comparison import Equal, Less
from ovgpu.ops.sort.topk import TopK3
from ovgpu.spec import Spec
from ovgpu.types import NF4, Type
from tests.harness.elements import pack
from tests.harness.ir import Net, Port
from tests.harness.private import read_private

SMALL = ("u1", "u3", "u6", "nf4", "u4", "i4", "f4e2m1", "f8e4m3")
SHAPE = (2, 3, 5)


def codes(kind: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(0, {"u1": 2}.get(kind, 7), SHAPE).astype(np.uint8)


def values(kind: str) -> np.ndarray[Any, Any]:
    return np.asarray(decode(codes(kind).view(getattr(Type, kind).storage)))


def parameter(net: Net, kind: str) -> Port:
    return net.parameter(kind, SHAPE, "x")


def constant(net: Net, kind: str) -> Port:
    logical = codes(kind)
    if kind == "f8e4m3":
        return net.raw_const(logical.tobytes(), kind, SHAPE)
    return net.raw_const(pack(logical, "u4" if kind in ("nf4", "i4", "f4e2m1") else kind), kind, SHAPE)


def move(net: Net, x: Port, kind: str) -> Port:
    """Add layers that copy elements in several ways, [2, 3, 5] -> [3, 4, 7], and return the port."""

    def layer(type: str, version: str, *inputs: Port, **attrs: Any) -> Any:
        return net.layer(type, version, inputs, attrs, outputs=[kind])

    part = layer("Slice", "opset8", x, *map(net.const, ([4], [0], [-2], [2])))
    x = layer("Concat", "opset1", x, part, axis=2)
    x = layer("Transpose", "opset1", x, net.const([1, 0, 2]))
    return layer("Gather", "opset8", x, net.const([1, 0, 1, 1]), net.const(1), batch_dims=0)  # type: ignore[no-any-return]


def moved(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([x, x[:, :, 4:0:-2]], 2).transpose(1, 0, 2)[:, [1, 0, 1, 1]]


@pytest.mark.parametrize("source", [parameter, constant], ids=["parameter", "constant"])
@pytest.mark.parametrize("kind", SMALL)
def test_moves(kind: str, source: Callable[[Net, str], Port], device: str) -> None:
    check_moves(kind, source, device)


def check_moves(kind: str, source: Callable[[Net, str], Port], device: str) -> None:
    net = Net("moves")
    y = move(net, source(net, kind), kind)
    net.result(y)
    net.result(net.layer("Convert", "opset1", [y], {"destination_type": "f32"}, outputs=["f32"]))
    request = ov.Core().compile_model(read_private(net), device).create_infer_request()
    given = ov.Tensor.from_array(codes(kind).view(getattr(Type, kind).storage), getattr(Type, kind))
    for _ in range(2):
        request.infer({"x": given} if source is parameter else {})
        whole, converted = request.output_tensors
        assert whole.element_type is getattr(Type, kind)
        assert whole.array.tobytes() == moved(codes(kind)).tobytes()
        assert np.array_equal(converted.array, moved(values(kind)))


@pytest.mark.parametrize("kind", SMALL)
def test_selected(kind: str, device: str) -> None:
    net = Net("select")
    x, flags = parameter(net, kind), np.arange(5) % 3 == 0
    y = net.layer("Reverse", "opset1", [x, net.const([0])], {"mode": "index"}, outputs=[kind])
    net.result(net.layer("Select", "opset1", [net.const(flags), x, y], outputs=[kind]))
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()
    given = codes(kind).view(getattr(Type, kind).storage)
    request.infer([ov.Tensor.from_array(given, getattr(Type, kind))])
    assert request.get_output_tensor().array.tobytes() == np.where(flags, given, given[::-1]).tobytes()


@pytest.mark.parametrize("kind", ["u1", "u3", "u6", "nf4"])
def test_computed_by_value(kind: str) -> None:
    """TopK, Equal and Less compute with decoded values, and TopK's values are stored as codes again."""
    storage = getattr(Type, kind).storage
    x, y = codes(kind).view(storage), codes(kind)[:, ::-1].view(storage)
    specs = [Spec(getattr(Type, kind), SHAPE)] * 2
    for op, function in ((Equal(), np.equal), (Less(), np.less)):
        wanted, out = function(values(kind), values(kind)[:, ::-1]), np.empty(SHAPE, bool)
        assert np.array_equal(op_module.evaluate(op, NUMPY, [x, y], [Type.boolean])[0], wanted)
        workspace = [np.empty(SHAPE, t.storage) for t, _ in op.workspace(specs, op.infer_specs(*specs))]
        op.numpy(lambda f, *args: f(*args), [x, y], [out], workspace)
        assert np.array_equal(out, wanted)
    best = TopK3(axis=2, mode="max", sort="value")
    kinds = [getattr(Type, kind), Type.i32]
    found, indices = op_module.evaluate(best, NUMPY, [x, np.array(2)], kinds)
    assert found.dtype == storage
    assert np.array_equal(decode(found), np.sort(values(kind), 2)[:, :, :-3:-1])
    assert np.array_equal(np.take_along_axis(values(kind), indices, 2), decode(found))


def test_small_constants_need_not_be_integers(device: str) -> None:
    net = Net("nan")
    x, c = net.parameter("f32", (2,), "x"), net.const(np.array([np.nan, np.inf], np.float32))
    net.result(net.layer("Add", "opset1", [x, c]))
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()
    (result,) = request.infer([np.ones(2, np.float32)]).to_tuple()
    assert np.isnan(result[0]) and np.isinf(result[1])


def test_encode() -> None:
    assert encode(np.array([9, 64, 3], np.uint8), Type.u6).tolist() == [(9,), (0,), (3,)]
    assert encode(np.array([2.9, 8, 3]), Type.u3).tolist() == [(2,), (0,), (3,)]
    assert np.array_equal(encode(NF4, Type.nf4)["nf4"], np.arange(16))
    x = np.ones(2, np.float32)
    assert encode(x, Type.f32) is x and decode(x) is x
