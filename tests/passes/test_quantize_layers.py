"""FakeQuantize in front of layers with 8-bit weights becomes Quantize and Dequantize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.fused.quantized import QuantizedWithEpilogue
from ovgpu.ops.quantization import Quantize
from ovgpu.passes import Target, prepare
from ovgpu.types import Type
from tests.harness import judge
from tests.harness.ir import Net, Port

SHAPE = (2, 6, 9, 11)
OCTETS = (2, 32, 9, 16)  # in a device's kernels, 16 codes are adjacent
STEP = np.float32(0.03)
SAME = {"strides": "1,1", "pads_begin": "1,1", "pads_end": "1,1", "dilations": "1,1", "auto_pad": "explicit"}
POOL = {
    "strides": "2,2",
    "pads_begin": "1,1",
    "pads_end": "1,1",
    "kernel": "3,3",
    "rounding_type": "floor",
    "auto_pad": "explicit",
}

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
Build = Callable[[Net, Port], Port]


def fake(net: Net, x: Port, low: Any, levels: int = 256, step: Any = STEP, unit: Any = None, kind: str = "f32") -> Port:
    """Add a FakeQuantize whose levels are ``low`` and the following multiples of a step; its ranges have a ``kind``."""
    values = [np.asarray(n * s, "f4") for s in (step, step if unit is None else unit) for n in (low, low + levels - 1)]
    ranges = [net.const(v, kind) for v in values]
    if kind != "f32":
        ranges = [net.layer("Convert", "opset1", [r], {"destination_type": "f32"}, ["f32"]) for r in ranges]
    found: Port = net.layer("FakeQuantize", "opset1", [x, *ranges], {"levels": levels})
    return found


def weights(net: Net, *shape: int, kind: str = "i8", zero: bool = False, groups: int = 0, axis: int = 0) -> Port:
    """Add weights in 8 bits with a scale for each output, which are along ``axis``, or the first two if in groups."""
    rng, outer = np.random.default_rng(3), 2 if groups else 1
    codes = net.const(rng.integers(0 if kind == "u8" else -127, 128, shape), kind)
    x = net.layer("Convert", "opset1", [codes], {"destination_type": "f32"}, ["f32"])
    if zero:
        x = net.layer("Subtract", "opset1", [x, net.const(np.full((1,) * len(shape), 3), "f32")])
    scale = rng.uniform(0.001, 0.003, [n if i < outer or i == axis else 1 for i, n in enumerate(shape)])
    scale = scale[:1] if axis else scale
    found: Port = net.layer("Multiply", "opset1", [x, net.const(scale, "f32")])
    return found


def convolution(net: Net, x: Port) -> Port:
    found: Port = net.layer("Convolution", "opset1", [x, weights(net, 5, 6, 3, 3)], SAME)
    return found


def depthwise(net: Net, x: Port) -> Port:
    found: Port = net.layer("GroupConvolution", "opset1", [x, weights(net, 6, 1, 1, 3, 3, groups=6)], SAME)
    return found


def grouped(net: Net, x: Port) -> Port:
    found: Port = net.layer("GroupConvolution", "opset1", [x, weights(net, 2, 4, 3, 3, 3, groups=2)], SAME)
    return found


def reshaped(net: Net, x: Port) -> Port:
    """Add a convolution by groups whose weights, with a scale for each output, get the axis of groups by a Reshape."""
    shape = net.const(np.array([6, 1, 1, 3, 3]))
    kernel = net.layer("Reshape", "opset1", [weights(net, 6, 1, 3, 3), shape], {"special_zero": False})
    found: Port = net.layer("GroupConvolution", "opset1", [x, kernel], SAME)
    return found


def transposed(net: Net, x: Port) -> Port:
    found: Port = net.layer("ConvolutionBackpropData", "opset1", [x, weights(net, 6, 5, 3, 3)], SAME)
    return found


def product(net: Net, x: Port) -> Port:
    found: Port = net.layer("MatMul", "opset1", [x, weights(net, 7, 11)], {"transpose_b": True})
    return found


def pooled(net: Net, x: Port) -> Port:
    return convolution(net, net.layer("MaxPool", "opset1", [x], POOL))


def moved(net: Net, x: Port) -> Port:
    x = net.layer("Transpose", "opset1", [x, net.const(np.array([0, 2, 3, 1]))])
    x = net.layer("Reshape", "opset1", [x, net.const(np.array([0, -1, 6]))], {"special_zero": True})
    found: Port = net.layer("MatMul", "opset1", [x, weights(net, 7, 6)], {"transpose_b": True})
    return found


def doubled(net: Net, x: Port, mode: str) -> Port:
    """Resize images to twice their height and width."""
    attributes = {
        "mode": mode,
        "shape_calculation_mode": "scales",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
        "antialias": False,
        "pads_begin": [0],
        "pads_end": [0],
        "cube_coeff": -0.75,
    }
    found: Port = net.layer(
        "Interpolate", "opset11", [x, net.const(np.array([2, 2], np.float32)), net.const(np.array([2, 3]))], attributes
    )
    return found


def swapped(net: Net, x: Port) -> Port:
    """Swap halves of the channels, and repeat pixels."""
    halves = net.layer("Split", "opset1", [x, net.const(np.int64(1))], {"num_splits": 2}, 2)
    x = net.layer("Concat", "opset1", halves[::-1], {"axis": 1})
    return doubled(net, x, "nearest")


def of_swapped(net: Net, x: Port) -> Port:
    return convolution(net, swapped(net, x))


def residual(net: Net, x: Port) -> Port:
    """A sum takes the same tensor as a convolution."""
    y = net.layer("Convolution", "opset1", [x, weights(net, 6, 6, 3, 3)], SAME)
    found: Port = net.layer("Add", "opset1", [x, y])
    return found


def network(build: Build, low: float, shape: tuple[int, ...] = SHAPE, **options: Any) -> Net:
    net = Net()
    x = net.parameter("f32", shape)
    activation = options.pop("activation", None)
    if activation:
        x = net.layer(activation, "opset1", [x], {"min": 0, "max": 255 * STEP} if activation == "Clamp" else {})
    net.result(build(net, fake(net, x, low, **options)))
    return net


def layers(net: Net) -> list[str]:
    model = prepare(ov.Core().read_model(*net.build()), Target(precision=Type.f32))
    return [n.op.name for n in model.ops if n.op.name not in ("Parameter", "Result", "Constant")]


def check(net: Net, shape: tuple[int, ...] = SHAPE, device: str = "CPU", step: Any = STEP) -> None:
    """Compare the results with OpenVINO's for numbers that are not near the middle between two levels."""
    rng = np.random.default_rng(2)
    x = ((rng.integers(-150, 300, shape) + rng.uniform(-0.4, 0.4, shape)) * step).astype(np.float32)
    (expected,) = judge.Judge(*net.build()).expect([(x, "f32")])
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), device, EXACT).create_infer_request()
    for _ in range(3):
        found = request.infer([x])[0]
    assert device == "CPU" or request.plan().launches == 1
    np.testing.assert_allclose(found, expected.array, 1e-5, 1e-5 * np.abs(expected.array).max())


@pytest.mark.drawn(2)
@pytest.mark.parametrize("low", [0, -128, -49])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (convolution, ["Quantize", "Convolution"]),
        (depthwise, ["Quantize", "GroupConvolution"]),
        (grouped, ["Quantize", "GroupConvolution"]),
        (reshaped, ["Quantize", "GroupConvolution"]),
        (transposed, ["Quantize", "ConvolutionBackpropData"]),
        (product, ["Quantize", "MatMul"]),
        (pooled, ["Quantize", "MaxPool", "Convolution"]),
        (moved, ["Quantize", "Transpose", "Reshape", "MatMul"]),
        (of_swapped, ["Quantize", "Split", "Concat", "Interpolate", "Convolution"]),
        (residual, ["Quantize", "Dequantize", "Convolution", "Add"]),
    ],
)
def test_consumers(build: Build, expected: list[str], low: int) -> None:
    net = network(build, low)
    assert sorted(layers(net)) == sorted(expected)
    check(net)


@pytest.mark.parametrize("build", [convolution, depthwise, grouped])
def test_steps_of_channels(build: Build) -> None:
    """Weights have the step of the channel that they multiply; the output range may be another one."""
    steps = STEP * np.arange(1, 7).reshape(1, 6, 1, 1)
    net = network(build, 0, step=steps, unit=2 * steps)
    assert layers(net)[0] == "Quantize"
    check(net)


@pytest.mark.parametrize(("levels", "low"), [(255, -127), (16, 0), (2, 0), (256, -255)])
def test_levels(levels: int, low: int) -> None:
    net = network(convolution, low, levels=levels)
    assert layers(net)[0] == "Quantize"
    check(net)


@pytest.mark.parametrize(
    ("activation", "low", "stays"), [("Relu", 0, False), ("Relu", -128, True), ("Clamp", 0, False), ("Clamp", -1, True)]
)
def test_activation(activation: str, low: int, stays: bool) -> None:
    """An activation is left out if quantisation clips as much."""
    net = network(convolution, low, activation=activation)
    assert (layers(net)[0] == activation) is stays
    check(net)


@pytest.mark.parametrize(
    "options",
    [
        {"low": -0.5},
        {"low": 5},
        {"low": 0, "levels": 257},
        {"low": 0, "step": np.full((2, 1, 1, 1), STEP)},
        {"low": 0, "step": -STEP},
        {"low": 0, "step": np.inf},
        {"low": 0, "unit": np.nan},
    ],
)
def test_ranges_that_stay(options: Any) -> None:
    """Zero must be a level, of 256 at most, and steps may only vary between channels."""
    assert layers(network(convolution, **options))[0] == "FakeQuantize"


def test_steps_of_channels_in_products() -> None:
    """The columns of a product are not the channels."""
    net = network(product, 0, step=STEP * np.arange(1, 7).reshape(1, 6, 1, 1))
    assert "FakeQuantize" in layers(net)
    check(net)


@pytest.mark.parametrize("options", [{"kind": "u8"}, {"zero": True}])
def test_weights_that_stay(options: Any) -> None:
    """Only codes of i8 without a zero point are known to be those of nncf."""

    def build(net: Net, x: Port) -> Port:
        found: Port = net.layer("Convolution", "opset1", [x, weights(net, 5, 6, 3, 3, **options)], SAME)
        return found

    assert layers(network(build, 0))[0] == "FakeQuantize"


def test_ranges_in_16_bits() -> None:
    net = network(convolution, -128, step=np.float32(2**-5), kind="f16")
    assert layers(net) == ["Quantize", "Convolution"]
    check(net, step=2**-5)


def test_bodies(emulated: str) -> None:
    """Layers in a branch are rewritten as well."""
    net, branches = Net(), list[tuple[Net, Port, Port]]()
    x, flag = net.parameter("f32", OCTETS), net.parameter("boolean", ())
    for low in (0, -128):
        body = Net(f"from {low}")
        inner = body.parameter("f32", OCTETS)
        branches.append((body, inner, body.result(of_codes(body, fake(body, inner, low)))))
    (a, a_in, a_out), (b, b_in, b_out) = branches
    net.result(net.if_(flag, a, b, [(x, a_in, b_in)], [(a_out, b_out)]))
    values = (np.random.default_rng(5).integers(-128, 256, OCTETS) * STEP).astype(np.float32)
    for which in (np.array(True), np.array(False)):
        (expected,) = judge.Judge(*net.build()).expect([(values, "f32"), (which, "boolean")])
        for device in ("CPU", emulated):
            found = ov.Core().compile_model(ov.Core().read_model(*net.build()), device, EXACT)([values, which])[0]
            np.testing.assert_allclose(found, expected.array, 1e-5, 1e-5 * np.abs(expected.array).max())


def test_shared_codes() -> None:
    """Layers share the codes; a Result, and layers without weights in 8 bits, take what Dequantize gives."""
    net = Net()
    x = fake(net, net.parameter("f32", SHAPE), -128)
    net.result(convolution(net, x))
    net.result(depthwise(net, x))
    net.result(net.layer("Reshape", "opset1", [x, net.const(np.array([-1]))], {"special_zero": False}))
    found = layers(net)
    assert found.count("Quantize") == 1 and found.count("Dequantize") == 1
    values = (np.random.default_rng(5).integers(-128, 128, SHAPE) * STEP).astype(np.float32)
    expected = judge.Judge(*net.build()).expect([(values, "f32")])
    results = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU")([values])
    for found_array, wanted in zip(results.to_tuple(), expected):
        np.testing.assert_allclose(found_array, wanted.array, 1e-5, 1e-5 * np.abs(wanted.array).max())


@pytest.mark.parametrize("device", [False, True], ids=["host", "device"])
def test_parts_of_codes(device: bool, emulated: str) -> None:
    """Layers with several results give codes, and values to those that take no codes; of a Concat, all inputs must have
    the same steps, also with further layers between."""
    net = Net()
    x = fake(net, net.parameter("f32", OCTETS), -128)
    halves = net.layer("VariadicSplit", "opset1", [x, net.const(np.int64(1)), net.const(np.array([16, 16]))], {}, 2)
    again = fake(net, net.layer("Relu", "opset1", [halves[0]]), -128)
    net.result(of_codes(net, net.layer("Concat", "opset1", [halves[1], again], {"axis": 1})))
    net.result(net.layer("Sigmoid", "opset1", [halves[0]]))
    other = fake(net, net.layer("Relu", "opset1", [halves[0]]), -128, step=3 * STEP)
    net.result(of_codes(net, net.layer("Concat", "opset1", [halves[1], other], {"axis": 1})))
    assert not device or on_device(net).count("QuantizedConvolution") == 1
    values = (np.random.default_rng(5).integers(-128, 128, OCTETS) * STEP).astype(np.float32)
    expected = judge.Judge(*net.build()).expect([(values, "f32")])
    compiled = ov.Core().compile_model(ov.Core().read_model(*net.build()), emulated if device else "CPU", EXACT)
    for found_array, wanted in zip(compiled([values]).to_tuple(), expected, strict=True):
        np.testing.assert_allclose(found_array, wanted.array, 1e-5, 1e-5 * np.abs(wanted.array).max())


# ---- on a device


def of_codes(net: Net, x: Port) -> Port:
    """A convolution with strides, and padding on one side."""
    attributes = {**SAME, "strides": "2,1", "pads_begin": "0,1"}
    found: Port = net.layer("Convolution", "opset1", [x, weights(net, 48, 32, 3, 3)], attributes)
    return found


def pooled_codes(net: Net, x: Port) -> Port:
    return of_codes(net, net.layer("MaxPool", "opset1", [x], POOL))


def swapped_codes(net: Net, x: Port) -> Port:
    return of_codes(net, swapped(net, x))


def product_of_codes(net: Net, x: Port) -> Port:
    x = net.layer("Transpose", "opset1", [x, net.const(np.array([0, 2, 3, 1]))])
    found: Port = net.layer("MatMul", "opset1", [x, weights(net, 16, 32)], {"transpose_b": True})
    return found


def columns_of_codes(net: Net, x: Port) -> Port:
    """A product whose weights have the outputs in their columns."""
    found: Port = net.layer("MatMul", "opset1", [x, weights(net, 16, 32, axis=1)], {})
    return found


def with_layers(net: Net, x: Port) -> Port:
    """A bias, a FakeQuantize and a sum with the input follow, and the next layer takes codes again."""
    y = net.layer("Convolution", "opset1", [x, weights(net, 32, 32, 3, 3)], SAME)
    y = net.layer("Add", "opset1", [y, net.const(np.arange(32).reshape(1, 32, 1, 1), "f32")])
    y = net.layer("Add", "opset1", [fake(net, y, -128, step=0.25), x])
    return of_codes(net, fake(net, net.layer("Relu", "opset1", [y]), 0, step=0.125))


def long_product(net: Net, x: Port) -> Port:
    """Parts of a sum of 4,608 products are computed side by side."""
    x = net.layer("Reshape", "opset1", [x, net.const(np.array([2, 1, 4608]))], {"special_zero": False})
    found: Port = net.layer("MatMul", "opset1", [x, weights(net, 64, 4608)], {"transpose_b": True})
    return found


def with_few_outputs(net: Net, x: Port) -> Port:
    """Codes of 24 outputs would not be whole chunks."""
    y = net.layer("Convolution", "opset1", [x, weights(net, 24, 32, 3, 3)], SAME)
    y = fake(net, net.layer("Relu", "opset1", [y]), 0, step=0.125)
    found: Port = net.layer("Convolution", "opset1", [y, weights(net, 16, 24, 3, 3)], SAME)
    return found


def with_another_type(net: Net, x: Port) -> Port:
    """The kernel writes no booleans."""
    return net.layer("Greater", "opset1", [of_codes(net, x), net.const(np.zeros(()), "f32")], {}, ["boolean"])


def with_rows(net: Net, x: Port) -> Port:
    """A bias, an activation, and the input, which is broadcast, follow a product."""
    y = net.layer("Add", "opset1", [product_of_codes(net, x), net.const(np.arange(16).reshape(1, 1, 16), "f32")])
    return net.layer("Multiply", "opset1", [net.layer("Sigmoid", "opset1", [y]), y])


def on_device(net: Net) -> list[str]:
    """Return the types of a device's layers; of those with an epilogue, also of its layers."""
    model = prepare(ov.Core().read_model(*net.build()), Target("CUDA", Type.f32, multiplies_i8=lambda: True))
    return [
        "+".join([type(n.op).__name__, *(layer.op.name for layer in getattr(n.op, "layers", ()))])
        for n in model.ops
        if n.op.name not in ("Parameter", "Result", "Constant")
    ]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("low", [0, -128, -49])
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (of_codes, ["QuantizedConvolution"]),
        (swapped_codes, ["Split", "Concat", "Interpolate11", "QuantizedConvolution"]),
        (pooled_codes, ["MaxPool", "QuantizedConvolution"]),
        (product_of_codes, ["Transpose", "QuantizedMatMul"]),
        (columns_of_codes, ["QuantizedMatMul"]),
        (
            with_layers,
            [
                "QuantizedConvolutionWithEpilogue+Convolution+Dequantize+Add+Quantize+Dequantize+Add+Quantize",
                "QuantizedConvolution",
            ],
        ),
        (long_product, ["Reshape", "QuantizedMatMul"]),
        (with_few_outputs, ["QuantizedConvolutionWithEpilogue+Convolution+Quantize+Dequantize", "Convolution"]),
        (with_another_type, ["QuantizedConvolution", "Greater"]),
        (with_rows, ["Transpose", "QuantizedMatMulWithEpilogue+MatMul+Add+Swish"]),
    ],
)
def test_device(build: Build, expected: list[str], low: int, emulated: str) -> None:
    net = network(build, low, shape=OCTETS)
    assert on_device(net) == ["Quantize", *expected]
    check(net, OCTETS, emulated)


def test_codes_that_stay_in_a_kernel() -> None:
    """They are whole numbers of f32, and those that it writes are bytes."""
    model = prepare(
        ov.Core().read_model(*network(with_layers, 0, shape=OCTETS).build()),
        Target("CUDA", Type.f32, multiplies_i8=lambda: True),
    )
    (op,) = (n.op for n in model.ops if isinstance(n.op, QuantizedWithEpilogue))
    found = [
        (each.dtype, each.low, each.high, len(part.operands))
        for part in op.fused.chain.parts
        if isinstance(each := part.op, Quantize)
    ]
    assert found == [(Type.f32, -128, 127, 2), (Type.i8, -128, 127, 3)]


@pytest.mark.parametrize(
    ("build", "shape"),
    [(convolution, SHAPE), (product, SHAPE), (grouped, SHAPE), (transposed, SHAPE), (depthwise, SHAPE)],
)
def test_layers_that_stay_on_the_device(build: Build, shape: tuple[int, ...], emulated: str) -> None:
    """The kernel reads 16 codes at a time, of one group."""
    net = network(build, -128, shape=shape)
    assert "FakeQuantize" in on_device(net)
    check(net, shape, emulated)


@pytest.mark.parametrize("build", [of_codes, product_of_codes])
def test_shapes_that_change(build: Build, emulated: str) -> None:
    net = network(build, -49, shape=(-1, 32, -1, -1))
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), emulated, EXACT).create_infer_request()
    for shape in ((1, 32, 5, 6), (2, 32, 9, 1), (1, 32, 5, 6), (0, 32, 3, 3)):
        x = (np.random.default_rng(6).integers(-49, 200, shape) * STEP).astype(np.float32)
        (expected,) = judge.Judge(*net.build()).expect([(x, "f32")]) if x.size else [None]
        found = request.infer([x])[0]
        assert expected is None or np.abs(found - expected.array).max() < 1e-5 * np.abs(expected.array).max()
        assert found.shape[0] == shape[0]


def test_older_devices() -> None:
    """A device that does not multiply i8 computes FakeQuantize, and decompresses weights."""
    net = network(of_codes, 0, shape=OCTETS)
    model = prepare(ov.Core().read_model(*net.build()), Target("CUDA", Type.f32))
    assert [n.op.name for n in model.ops if n.op.name not in ("Parameter", "Result", "Constant")] == [
        "FakeQuantize",
        "Convolution",
    ]


def pointwise(net: Net, x: Port) -> Port:
    found: Port = net.layer(
        "Convolution", "opset1", [x, weights(net, 8, 32, 1, 1)], SAME | {"pads_begin": "0,0", "pads_end": "0,0"}
    )
    return found


@pytest.mark.parametrize(
    ("low", "levels", "unit"), [(0, 256, 1 / 255), (0, 16, 1 / 15), (-128, 256, 2**-7), (-127, 255, 0.25)]
)
def test_ties(low: int, levels: int, unit: float, device: str) -> None:
    """Numbers halfway between two levels get the level that FakeQuantize gives them, where the steps in a range are
    exact: the even one."""
    fakes, products, both = Net(), Net(), Net()
    shape = (1, 32, 1, levels)
    fakes.result(fake(fakes, fakes.parameter("f32", shape), low, levels, unit))
    products.result(pointwise(products, products.parameter("f32", shape)))
    both.result(pointwise(both, fake(both, both.parameter("f32", shape), low, levels, unit)))
    given = np.broadcast_to(((np.arange(levels) + 0.5 + low) * unit).astype("f4"), shape)
    (values,) = judge.evaluate(*fakes.build(), [(given, "f32")])
    core = ov.Core()
    expected = core.compile_model(core.read_model(*products.build()), device, EXACT)([values.array])[0]
    found = core.compile_model(core.read_model(*both.build()), device, EXACT)([given])[0]
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5 * np.abs(expected).max())
