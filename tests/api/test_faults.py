"""Unexpected exceptions reach the user as ovgpu's own errors, which name the layer and keep the cause."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.compile import compilation
from ovgpu.errors import Error, OpError
from ovgpu.model import Model
from ovgpu.runtime.executor import Executor
from ovgpu.spec import Spec
from tests.harness.ir import Net, Port
from tests.harness.models.drive import DATA
from tests.harness.private import read_private

REPORT = "This is a fault of ovgpu, please report it"


def relu() -> Net:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (-1, 3), "x")], name="relu"))
    return net


def compiled(net: Net, device: str = "CPU") -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device)


def test_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def simplify(model: Model, *_: Any) -> Model:
        for node in model.ops:
            if node.op.name == "Relu":
                node.sources[7]
        return model

    monkeypatch.setattr(compilation, "simplify", simplify)
    with pytest.raises(OpError, match=r"^\[Relu\] compiling failed: IndexError: .*layer 'relu'") as caught:
        compiled(relu())
    assert REPORT in str(caught.value) and isinstance(caught.value.__cause__, IndexError)


def test_in_an_inference(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """A request works again after an unexpected exception."""
    request = compiled(relu(), device).create_infer_request()
    x = np.full((2, 3), -1, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "run", lambda *_, **__: {}["nothing"])
        with pytest.raises(Error, match=r"^the inference failed: KeyError: 'nothing'") as caught:
            request.infer([x])
    assert REPORT in str(caught.value) and isinstance(caught.value.__cause__, KeyError)
    assert not request.infer([x])[0].any()


def test_out_of_memory_and_own_errors_are_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, message in (MemoryError("all of it"), "out of memory: all of it"), (OpError("on purpose"), "on purpose"):

        def fails(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        request = compiled(relu()).create_infer_request()
        with monkeypatch.context() as patch:
            patch.setattr(Executor, "run", fails)
            with pytest.raises(Error) as caught:
                request.infer([np.ones((1, 3), np.float32)])
        assert str(caught.value) == message and error in (caught.value, caught.value.__cause__)


def test_of_shape_arithmetic() -> None:
    """The error names the layer of an op that fails on the host, where shapes are computed."""

    @ov.register_op("Broken", "extension")
    class Broken(ov.Op):
        def infer_specs(self, x: Any) -> tuple[Any, ...]:
            return (Spec(x.type, x.shape),)

        def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
            raise IndexError("no such thing")

    net = Net()
    x, shape = net.parameter("f32", (6,), "x"), net.parameter("i64", (2,), "shape")
    broken = net.layer("Broken", "extension", [shape], name="broken")
    net.result(net.layer("Reshape", "opset1", [x, broken], {"special_zero": "false"}))
    with pytest.raises(OpError, match=r"^\[Broken\] IndexError: no such thing \(layer 'broken'"):
        compiled(net)([np.ones(6, np.float32), np.array([2, 3])])


def one(type: str, version: str, inputs: Callable[[Net], list[Port]], **attrs: Any) -> Net:
    net = Net()
    net.result(net.layer(type, version, inputs(net), attrs, name="layer"))
    return net


AXES = [1] * 70
BROKEN = {
    "convert-to-dynamic": (
        one("Convert", "opset1", lambda n: [n.parameter("f32", (2,))], destination_type="dynamic"),
        "destination_type is dynamic",
    ),
    "range-of-strings": (
        one("Range", "opset4", lambda n: [n.const(i, "i64") for i in (0, 3, 1)], output_type="string"),
        "output_type string is not numeric",
    ),
    "reshape-to-many-axes": (
        one("Reshape", "opset1", lambda n: [n.parameter("f32", (1,)), n.const(AXES, "i64")], special_zero=False),
        "a tensor has at most 64 axes, not 70",
    ),
    "slice-to-many-axes": (
        one(
            "StridedSlice",
            "opset1",
            lambda n: [n.parameter("f32", (2,)), n.const(AXES, "i64"), n.const(AXES, "i64")],
            begin_mask="1,1",
            end_mask="1,1",
            new_axis_mask=",".join("1" * 70),
        ),
        "a tensor has at most 64 axes, not 7",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_models_that_are_refused(name: str) -> None:
    net, message = BROKEN[name]
    with pytest.raises(Error, match=rf"^\[\w+\] {message}.*layer 'layer'"):
        compiled(net)


@pytest.mark.parametrize("kind", ["i4", "u4", "u1", "u6"])
def test_values_out_of_range_of_the_input_type(kind: str, device: str) -> None:
    net = Net()
    net.result(net.layer("Convert", "opset1", [net.parameter(kind, (2,), "x")], {"destination_type": "i32"}))
    request = compiled(net, device).create_infer_request()
    with pytest.raises(Error, match=rf"^\[Parameter\] {kind} holds .* got 1\.\.300 \(layer 'x'"):
        request.infer([np.array([300, 1])])
    assert list(request.infer([np.array([0, 1])])[0]) == [0, 1]


@pytest.mark.parametrize("kind", ["u1", "u2", "u3", "u4", "u6", "i4", "u8", "i16"])
def test_extents_in_any_integers(kind: str, device: str) -> None:
    net = Net()
    given = [net.parameter(kind, ()), net.parameter("i64", ()), net.parameter(kind, ())]
    net.result(net.layer("Eye", "opset9", given, {"output_type": "f32"}))
    found = compiled(net, device)([np.array(1), np.array(3), np.array(1)])[0]
    assert np.array_equal(found, np.eye(1, 3, 1, np.float32))


@pytest.mark.parametrize("extent", [-1, -5, -(2**63)])
@pytest.mark.parametrize("known", [True, False])
def test_extents_below_zero(extent: int, known: bool, device: str) -> None:
    net, target = Net(), np.array([extent, 4])
    shape = net.const(target) if known else net.parameter("i64", (2,), "shape")
    x = net.parameter("f32", (), "x")
    net.result(net.layer("Relu", "opset1", [net.layer("Broadcast", "opset3", [x, shape], {"mode": "numpy"})]))
    with pytest.raises(OpError, match=rf"the result would have the shape \[{extent}, 4\] \(layer"):
        ov.Core().compile_model(read_private(net), device)({"x": np.float32(1)} | ({} if known else {"shape": target}))


@pytest.mark.parametrize("extent", [-1, 2**62])
def test_extents_of_a_view_of_strings(extent: int) -> None:
    """Nothing computes such a view, and the error names its layer."""
    net = Net()
    shape = net.parameter("i64", (1,), "shape")
    net.result(
        net.layer("Broadcast", "opset3", [net.parameter("string", (1,), "x"), shape], {"mode": "numpy"}, name="b")
    )
    with pytest.raises(Error, match=rf"^the result of layer 'b' would have the shape \[{extent}\]$"):
        ov.Core().compile_model(read_private(net), "CPU")({"x": ["a"], "shape": np.array([extent])})


@pytest.mark.parametrize("count", [2**60, 2**63 - 1])
@pytest.mark.parametrize("known", [True, False])
def test_extents_too_large_for_any_tensor(count: int, known: bool, device: str) -> None:
    net, repeats = Net(), np.array([count])
    x, times = net.parameter("f32", (9,), "x"), net.const(repeats) if known else net.parameter("i64", (1,), "times")
    net.result(net.layer("Tile", "opset1", [x, times]))
    with pytest.raises(OpError, match=r"\[Tile\] .*(would have the shape|out of memory: a result of shape) \[\d+\]"):
        compiled(net, device)({"x": np.ones(9, np.float32)} | ({} if known else {"times": repeats}))


def test_numbers_beyond_64_bits(device: str) -> None:
    net = Net()
    attrs = {"kernel": "2,2", "strides": f"{2**70},1", "pads_begin": "0,0", "pads_end": "0,0"}
    net.result(net.layer("MaxPool", "opset1", [net.parameter("f32", (1, 1, 9, 9))], attrs, name="pool"))
    with pytest.raises(OpError, match=r"^\[MaxPool\] a number of the layer is too large: .*\(layer 'pool'"):
        compiled(net, device)([np.ones((1, 1, 9, 9), np.float32)])


def test_too_large_beside_an_eager_step(device: str) -> None:
    """Shapes of an eager step's results are unknown before it has run."""
    net = Net()
    x, times = net.parameter("f32", (9,), "x"), net.parameter("i64", (1,), "times")
    net.result(net.layer("Tile", "opset1", [x, times], name="tile"))
    net.result(net.layer("NonZero", "opset3", [x], {"output_type": "i64"}))
    with pytest.raises(OpError, match=r"^\[Tile\] out of memory: a result of shape \[\d+\] .*\(layer 'tile'"):
        compiled(net, device)([np.ones(9, np.float32), np.array([2**50])])


def parameters(name: str) -> list[int]:
    xml = (DATA / name / "model.xml").read_text()
    return list(range(len(re.findall('type="Parameter"', xml))))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("shape", ["", "4", "0", "?", "...", "2,3,4,5,6"])
@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name in ("bert", "llama", "whisper_decoder") for number in parameters(name)]
)
def test_transformers_with_inputs_of_other_ranks(name: str, number: int, shape: str) -> None:
    """The model runs, or is refused with an error of ovgpu."""
    folder: Path = DATA / name
    xml = (folder / "model.xml").read_text()
    spot = [*re.finditer(r'type="Parameter"[^>]*>\s*<data shape="([^"]*)"', xml)][number]
    core = ov.Core()
    try:
        model = core.read_model(
            (xml[: spot.start(1)] + shape + xml[spot.end(1) :]).encode(), (folder / "model.bin").read_bytes()
        )
        request = core.compile_model(model, "CPU").create_infer_request()
        inputs = [
            np.ones(
                [2 if d.is_dynamic else d.get_length() for d in port.partial_shape]
                if port.partial_shape.rank.is_static
                else [2],
                port.element_type.to_dtype(),
            )
            for port in request.model_inputs
        ]
        request.infer(inputs)
    except Error as e:
        assert REPORT not in str(e) and "inference failed" not in str(e)
