"""Convolutions of tensors whose channels are adjacent, on the emulated device with cuDNN's emulation, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, cudnn, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convolution.convolution import Convolution
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution, PadChannels
from ovgpu.ops.pooling.pooling import MaxPool
from ovgpu.runtime.plan import Plan, layers_of
from ovgpu.types import Type
from tests.emulator import cudnn_emu
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net, Port
from tests.harness.models.drive import DATA, Expected, relative_error, replay
from tests.models.test_precision import NOISE, UNITS, roundings
from tests.passes.test_quantize_layers import doubled

from .recorded import counted, kernel_name, run_calls

RNG = np.random.default_rng(4)
PRECISIONS = {"f16": 4e-3, "bf16": 3e-2, "tf32": 4e-3}  # of the largest value, after a few layers
CHANNELS = 16
Layer = Callable[[Net, Port], Port]


@pytest.fixture(autouse=True)
def installed(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN is installed on a GPU, else emulated."""
    monkeypatch.setattr(rt, "_cudnn", cudnn_emu if cp.is_emulated else None)
    if rt.cudnn() is None:
        pytest.skip("cuDNN is not installed")


def convolution(
    net: Net,
    x: Port,
    channels: int = CHANNELS,
    taps: int = 3,
    stride: int = 1,
    groups: int = 1,
    kernel: Port | None = None,
) -> Port:
    """Add a convolution of x, which has so many channels, with padding that keeps a stride of 1 from shrinking it."""
    shape = (CHANNELS // groups, channels // groups, taps, taps)
    weights = RNG.standard_normal((groups, *shape) if groups > 1 else shape) / (taps * (channels // groups) ** 0.5)
    pads = f"{taps // 2},{taps // 2}"
    attributes = {"strides": f"{stride},{stride}", "dilations": "1,1", "pads_begin": pads, "pads_end": pads}
    found: Port = net.layer(
        "GroupConvolution" if groups > 1 else "Convolution",
        "opset1",
        [x, net.const(weights.astype(np.float32)) if kernel is None else kernel],
        attributes,
    )
    return found


def bias(net: Net, x: Port) -> Port:
    shape = (1, CHANNELS, 1, 1)
    found: Port = net.layer("Add", "opset1", [x, net.const(RNG.standard_normal(shape).astype(np.float32))])
    return found


def unary(name: str, **attributes: Any) -> Layer:
    version = "opset4" if name in ("Swish", "Mish") else "opset1"
    return lambda net, x: net.layer(name, version, [x], attributes)


def pool(name: str, **attributes: Any) -> Layer:
    given = {
        "kernel": "3,3",
        "strides": "2,2",
        "pads_begin": "1,1",
        "pads_end": "1,1",
        "rounding_type": "floor",
        **({"exclude-pad": "true"} if name == "AvgPool" else {}),
        **attributes,
    }
    return lambda net, x: net.layer(name, "opset1", [x], given)


def depthwise(net: Net, x: Port) -> Port:
    return convolution(net, x, groups=CHANNELS)


def group_norm(net: Net, x: Port) -> Port:
    """Normalise groups of x, and apply a Swish and the sum with the result of another convolution."""
    weights = [net.const(RNG.standard_normal(CHANNELS).astype(np.float32)) for _ in range(2)]
    x = net.layer("GroupNormalization", "opset12", [x, *weights], {"num_groups": 4, "epsilon": 1e-5})
    return add(net, unary("Swish")(net, x))


def joined(net: Net, x: Port) -> Port:
    """Convolve x, concatenate the two, and convolve that."""
    both = net.layer("Concat", "opset1", [x, unary("Relu")(net, bias(net, convolution(net, x)))], {"axis": 1})
    return convolution(net, both, 2 * CHANNELS)


def divided(net: Net, x: Port) -> Port:
    """Convolve one half of the channels, and concatenate the result with both halves, as YOLO does."""
    halves = net.layer("Split", "opset1", [x, net.const(np.int64(1))], {"num_splits": 2}, 2)
    first = unary("Swish")(net, bias(net, convolution(net, halves[1], CHANNELS // 2)))
    both = net.layer("Concat", "opset1", [*halves, first], {"axis": 1})
    return convolution(net, both, 2 * CHANNELS, taps=1)


def resized(mode: str) -> Layer:
    return lambda net, x: doubled(net, x, mode)


def add(net: Net, x: Port) -> Port:
    """Add the result of another convolution to x."""
    found: Port = net.layer("Add", "opset1", [x, convolution(net, net.parameters["x"], taps=1)])
    return found


def double(net: Net, x: Port) -> Port:
    found: Port = net.layer("Add", "opset1", [x, x])
    return found


def network(*layers: Layer, shape: Any = (2, CHANNELS, 9, 12)) -> Net:
    """Return three convolutions, the layers before the last one, and the mean of each channel."""
    net = Net()
    x = net.parameter("f32", shape, "x")
    port = convolution(net, convolution(net, x, shape[1]))
    for layer in layers:
        port = layer(net, port)
    port = unary("Relu")(net, bias(net, convolution(net, port)))
    net.result(net.layer("ReduceMean", "opset1", [port, net.const(np.array([2, 3]))], {"keep_dims": True}))
    return net


def run(net: Net, *shape: int, precision: str = "f16", steps: int = 3) -> Plan:
    """Check inferences against NumPy in f32; return the plan."""
    core = ov.Core()
    model, x = net.build(), RNG.standard_normal(shape).astype(np.float32)
    host = core.compile_model(core.read_model(*model), "CPU")
    compiled = core.compile_model(core.read_model(*model), "NVIDIA", {"INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    for _ in range(steps):
        wanted = host([x])
        found, counters = counted(lambda: request.infer([x]))
        for number in range(len(compiled.outputs)):
            assert found[number].shape == wanted[number].shape and found[number].flags.c_contiguous
            assert relative_error(found[number], wanted[number]) < PRECISIONS[precision]
    plan = request.plan()
    assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0, 0)
    return plan


def ops(plan: Plan) -> list[str]:
    """Return the ops of the steps from the first convolution to the last one."""
    found = [step.op for step in plan.steps]
    last = len(found) - found[::-1].index("Convolution")
    return found[found.index("Convolution") : last]


def kernels(plan: Plan) -> int:
    """Return the number of kernels of a step that convolves."""
    return max(step.calls or 0 for step in plan.steps if step.op == "Convolution")


@pytest.mark.drawn(16)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("layers", "count"),
    [
        ((), 3),
        ((bias, unary("Relu")), 3),
        ((bias, unary("Clamp", min=0, max=1.5)), 3),
        ((bias, unary("Swish")), 3),
        ((bias, unary("Tanh")), 3),
        ((bias, add, unary("Relu")), 4),
        ((depthwise, bias, unary("Relu")), 4),
        ((bias, pool("MaxPool")), 4),
        ((pool("AvgPool"), bias), 5),
        ((pool("AvgPool", auto_pad="same_upper"), pool("AvgPool", **{"exclude-pad": "false"})), 5),
        ((pool("MaxPool", kernel="9,12", pads_begin="0,0", pads_end="0,0"),), 4),
        ((bias, group_norm), 5),
        ((resized("nearest"),), 4),
        ((resized("linear_onnx"), bias), 5),
    ],
)
def test_layers(layers: tuple[Layer, ...], count: int, precision: str, emulated: str) -> None:
    """Nothing is copied between convolutions, and each layer runs with the convolution before it, or in one kernel."""
    plan = run(network(*layers), 2, CHANNELS, 9, 12, precision=precision)
    assert len(ops(plan)) == count and "Copy" not in ops(plan)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("layers", "count"),
    [((bias, joined), 5), ((divided, bias), 5), ((group_norm, joined, resized("nearest"), bias, divided), 11)],
)
def test_parts_of_channels(layers: tuple[Layer, ...], count: int, precision: str, emulated: str) -> None:
    """In 16 bits, convolutions and norms read and write some channels of a tensor. In TF32, cuDNN gets copies."""
    found = ops(run(network(*layers), 2, CHANNELS, 9, 12, precision=precision))
    assert found.count("Copy") == 0 or precision == "tf32"
    assert len([op for op in found if op not in ("Concat", "Split", "Copy")]) == count


def test_epilogues_are_cudnns(emulated: str) -> None:
    for layers, count in (
        ((bias, unary("Relu")), 1),
        ((bias, add, unary("Relu")), 1),
        ((bias, unary("Swish")), 2),
        ((bias, unary("Clamp", min=0, max=6)), 2),
    ):
        assert kernels(run(network(*layers), 2, CHANNELS, 9, 12)) == count


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures(channels: int, precision: str, emulated: str) -> None:
    """The input of a few channels is copied to the layout. In 16 bits it is converted, and zeros fill up its pixels."""
    plan = run(network(bias, shape=(2, channels, 9, 12)), 2, channels, 9, 12, precision=precision)
    found = [step.op for step in plan.steps]
    assert found.count("Copy") == (precision == "tf32" and channels > 1)
    assert found.count("PadChannels") == (precision != "tf32")
    assert "Convert" not in found[: found.index("Convolution")]


def test_pictures_behind_other_layers(emulated: str) -> None:
    """Elementwise layers come between the input and its first convolution."""
    net = Net()
    x = net.layer("Multiply", "opset1", [net.parameter("f32", (2, 3, 9, 12), "x"), net.const(np.float32(0.5))])
    net.result(bias(net, convolution(net, unary("Relu")(net, bias(net, convolution(net, x, 3))))))
    found = [step.op for step in run(net, 2, 3, 9, 12).steps]
    assert found.count("PadChannels") == 1 and found.index("PadChannels") == found.index("Convolution") - 1


@pytest.mark.parametrize("precision", ["f16", "bf16"])
@pytest.mark.parametrize("outputs", [1, 4, 21])
def test_results_of_any_number_of_channels(outputs: int, precision: str, emulated: str) -> None:
    """Zeros fill up kernels, and biases; further layers read the channels that the model has."""
    net = Net()
    x = net.parameter("f32", (2, CHANNELS, 9, 12), "x")
    first = unary("Relu")(net, bias(net, convolution(net, x)))
    weights = RNG.standard_normal((outputs, CHANNELS, 3, 3)).astype(np.float32) / 12
    last = net.layer(
        "Convolution",
        "opset1",
        [first, net.const(weights)],
        {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "1,1"},
    )
    last = net.layer("Add", "opset1", [last, net.const(RNG.standard_normal((1, outputs, 1, 1)).astype(np.float32))])
    net.result(unary("Sigmoid")(net, last))
    net.result(net.layer("ReduceMax", "opset1", [unary("Tanh")(net, last), net.const(np.array([1]))], {}))
    plan = run(net, 2, CHANNELS, 9, 12, precision=precision)
    kernels = [step.inputs[1] for step in plan.steps if step.op == "Convolution"]
    assert kernels[1] is not None and kernels[1].shape == (-(-outputs // 8) * 8, 3, 3, CHANNELS)


def test_names_of_layers(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has the layers of a step, and errors name the convolution, as with other layouts."""
    core, model, found = ov.Core(), network(bias, unary("Relu"), bias).build(), []
    for adjacent in (True, False):
        if not adjacent:
            monkeypatch.setattr(CudaBackend, "channels_last", lambda backend: ())
        compiled = core.compile_model(core.read_model(*model), emulated, {"INFERENCE_PRECISION_HINT": "f16"})
        steps = [step for program in compiled._compilation.programs.values() for step in program.steps]
        found.append(
            [
                (step.name, step.source_location, [layer.name for layer in layers_of(step.op)])
                for step in steps
                if step.op.name == "Convolution"
            ]
        )
        assert any(isinstance(step.op, ChannelsLastConvolution) for step in steps) is adjacent
    assert found[0] == found[1] and any(len(names) > 1 for *_, names in found[0])


def test_shapes_that_change(emulated: str) -> None:
    net = network(bias, depthwise, shape=(-1, CHANNELS, -1, -1))
    for shape in ((1, CHANNELS, 5, 6), (3, CHANNELS, 8, 1), (1, CHANNELS, 1, 1), (2, CHANNELS, 7, 7)):
        run(net, *shape)


def test_results(emulated: str) -> None:
    """A model's results are dense: those of a convolution that another one takes, and of the last one."""
    net = Net()
    first = bias(net, convolution(net, net.parameter("f32", (2, CHANNELS, 5, 7), "x")))
    last = convolution(net, first)
    for port in (first, last, double(net, last)):
        net.result(port)
    run(net, 2, CHANNELS, 5, 7)


def test_other_layers_get_dense_tensors(emulated: str) -> None:
    """A product, a softmax and a concatenation take results of convolutions."""
    net = Net()
    first = convolution(net, net.parameter("f32", (2, CHANNELS, 6, 6), "x"))
    last = convolution(net, unary("Relu")(net, first))
    net.result(net.layer("MatMul", "opset1", [last, first], {}))
    net.result(net.layer("Softmax", "opset8", [last], {"axis": 1}))
    net.result(net.layer("Concat", "opset1", [first, last], {"axis": 1}))
    net.result(net.layer("Reshape", "opset1", [last, net.const(np.array([2, -1]))], {"special_zero": False}))
    run(net, 2, CHANNELS, 6, 6)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("taps", "stride"), [(1, 1), (3, 1), (3, 2), (5, 2)])
def test_depthwise_convolutions(taps: int, stride: int, precision: str, emulated: str) -> None:
    def layer(net: Net, x: Port) -> Port:
        return convolution(net, x, taps=taps, stride=stride, groups=CHANNELS)

    for epilogue in ((), (bias, unary("Swish"))):
        run(network(layer, *epilogue), 2, CHANNELS, 9, 12, precision=precision)


@pytest.mark.parametrize("kind", [Type.f16, Type.bf16])
@pytest.mark.parametrize("given", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_channels_that_are_filled_up(given: Any, kind: Type, backend: CudaBackend) -> None:
    """x is dense, or its channels are adjacent, or it has one pixel; the result may be some channels of an image."""
    op = PadChannels(channels=8, type=kind)
    dense, adjacent = (0, 1, 2, 3), (0, 3, 1, 2)
    for shape, order, before in (((2, 3, 5, 7), dense, 0), ((2, 4, 5, 7), adjacent, 8), ((1, 1, 1, 1), dense, 0)):
        x = RNG.standard_normal([shape[i] for i in np.argsort(order)]).astype(given)
        whole = cp.zeros((shape[0], *shape[2:], 8 + before), kind.storage)
        launcher = Launcher(backend.stream, backend.blas)
        op.cuda(launcher, [cp.asarray(x).transpose(order)], [whole[..., before:].transpose(0, 3, 1, 2)], ())
        run_calls(launcher.calls)
        (wanted,) = evaluate(op, NUMPY, [x.transpose(order)], [kind])
        np.testing.assert_array_equal(whole.get()[..., before:].transpose(0, 3, 1, 2), wanted)
        assert not whole.get()[..., :before].any() and wanted.shape == (shape[0], 8, *shape[2:])


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("channels", [8, 12])
def test_pooling_of_nan_and_empty_windows(channels: int, kind: Any, backend: CudaBackend) -> None:
    """NaN is the greatest, and a window of only padding has the lowest number. A thread takes 16 bytes of channels, or
    one channel where pixels are not whole chunks."""
    op = MaxPool(kernel=(2, 2), strides=(2, 2), pads_begin=(2, 2), pads_end=(0, 0))
    x = RNG.standard_normal((2, 5, 6, channels)).astype(kind)
    x[0, 4, 5, 3] = np.nan
    out = cp.empty((2, 3, 4, channels), kind)
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [cp.asarray(x).transpose(0, 3, 1, 2)], [out.transpose(0, 3, 1, 2)], ())
    run_calls(launcher.calls)
    (wanted,) = op.evaluate(NUMPY, x.transpose(0, 3, 1, 2).astype(np.float32))
    with np.errstate(over="ignore"):
        wanted = wanted.astype(kind).astype(np.float32)
    np.testing.assert_array_equal(out.get().transpose(0, 3, 1, 2).astype(np.float32), wanted)
    assert kernel_name(launcher.calls[0]).startswith("max_pool_channels<") is (channels * out.itemsize % 16 == 0)


@pytest.mark.parametrize("highest", [127, -100])
@pytest.mark.parametrize("channels", [24, 32])
def test_pooling_of_codes(channels: int, highest: int, backend: CudaBackend) -> None:
    op = MaxPool(kernel=(3, 2), strides=(2, 1), pads_begin=(1, 0), pads_end=(1, 1))
    x = RNG.integers(-128, highest + 1, (2, 5, 6, channels)).astype(np.int8)
    out = cp.empty((2, 3, 6, channels), np.int8)
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [cp.asarray(x).transpose(0, 3, 1, 2)], [out.transpose(0, 3, 1, 2)], ())
    run_calls(launcher.calls)
    np.testing.assert_array_equal(out.get().transpose(0, 3, 1, 2), op.evaluate(NUMPY, x.transpose(0, 3, 1, 2))[0])
    assert kernel_name(launcher.calls[0]).startswith("max_pool_channels<") is (channels % 16 == 0)


def test_convolutions_alone(emulated: str) -> None:
    """One whose neighbours need dense tensors stays as it is."""
    net = Net()
    x = convolution(net, net.parameter("f32", (2, CHANNELS, 6, 6), "x"))
    x = net.layer("Softmax", "opset8", [x], {"axis": 3})
    net.result(convolution(net, x))
    assert [step.op for step in run(net, 2, CHANNELS, 6, 6).steps].count("Copy") == 0


def test_kernels_that_are_computed(emulated: str) -> None:
    net = Net()
    x = net.parameter("f32", (2, CHANNELS, 6, 6), "x")
    kernel = net.layer(
        "Exp",
        "opset1",
        [net.layer("Slice", "opset8", [x, *(net.const(np.array(v)) for v in ([0, 0], [1, 3], [1, 1], [0, 2]))])],
    )
    kernel = net.layer(
        "Broadcast",
        "opset3",
        [
            net.layer("ReduceMean", "opset1", [kernel, net.const(np.array([1, 2, 3]))], {"keep_dims": True}),
            net.const(np.array([CHANNELS, CHANNELS, 1, 1])),
        ],
        {"mode": "numpy"},
    )
    net.result(convolution(net, convolution(net, x), taps=1, kernel=kernel))
    run(net, 2, CHANNELS, 6, 6)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
@pytest.mark.parametrize(("channels", "outputs"), [(1, 4), (3, 4), (4, 1), (5, 24), (12, 72), (24, 24)])
@pytest.mark.parametrize("end", [0, 1, 2])
def test_any_channels_and_padding(channels: int, outputs: int, end: int, kind: Any, tf32_backend: CudaBackend) -> None:
    """cuDNN may get other convolutions than those that the pass rewrites: few channels, and padding at one end."""
    op = Convolution(strides=(2, 2), pads_begin=(1, 1), pads_end=(end, end))
    x, kernel = (RNG.standard_normal(shape).astype(kind) for shape in ((2, channels, 9, 12), (outputs, channels, 3, 3)))
    (wanted,) = op.evaluate(NUMPY, x.astype(np.float64), kernel.astype(np.float64))
    moved = [cp.asarray(np.ascontiguousarray(np.moveaxis(a, 1, -1))).transpose(0, 3, 1, 2) for a in (x, kernel)]
    out = cp.empty(tuple(wanted.shape[i] for i in (0, 2, 3, 1)), kind)
    launcher = Launcher(tf32_backend.stream, tf32_backend.blas, tf32_backend.dnn)
    op.cuda(launcher, moved, [out.transpose(0, 3, 1, 2)], [cp.empty(1 << 15, kind)])
    run_calls(launcher.calls)
    assert relative_error(out.get().transpose(0, 3, 1, 2).astype(np.float64), wanted) < 2e-3


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((1, 8, 5, 6), (240, 1, 48, 8)),
        ((2, 8, 1, 6), (48, 1, 48, 8)),
        ((1, 8, 5, 1), (40, 1, 8, 8)),
        ((1, 8, 1, 1), (8, 1, 1, 1)),
        ((2, 1, 5, 6), (30, 30, 6, 1)),
    ],
)
def test_strides_of_axes_of_one(shape: tuple[int, ...], wanted: tuple[int, ...], emulated: str) -> None:
    """Strides of axes of extent 1, which no index uses, still show the layout."""
    order = (0, 2, 3, 1)
    x = cp.empty([shape[i] for i in order], np.float16).transpose(0, 3, 1, 2)
    assert cudnn._strides(x) == wanted


def test_own_kernels_where_cudnn_has_none(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ovgpu's own kernels read and write the layout, with a dense copy of the kernel."""
    monkeypatch.setattr(cudnn.Dnn, "convolve", lambda self, c: None)
    for layers in ((bias, unary("Relu")), (bias, add, unary("Swish")), (depthwise, pool("MaxPool"))):
        run(network(*layers), 2, CHANNELS, 9, 12)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("precision", ["f16", "tf32"])
@pytest.mark.parametrize("name", ["resnet", "efficientnet", "unet", "mobilenet_v2", "yolo", "yolos", "preprocessed"])
def test_whole_models(name: str, precision: str, emulated: str) -> None:
    """Roundings of mobilenet_v2 grow, see `test_precision`. Its bound holds for networks with many roundings in f16."""
    bound = 4e-2 if name == "mobilenet_v2" else 6e-3
    if precision == "f16" and name in ("resnet", "efficientnet", "yolo"):
        bound = NOISE * np.sqrt(roundings(name, "f16")) * UNITS["f16"]
    calls = Expected.load(DATA / name / "expected.npz").calls
    compiled = ov.Core().compile_model(DATA / name / "model.xml", "NVIDIA", {"INFERENCE_PRECISION_HINT": precision})
    for _ in range(2):
        for call, outputs in zip(calls, replay(compiled, calls)):
            for found, wanted in zip(outputs, call.outputs, strict=True):
                assert relative_error(found, wanted) < bound
