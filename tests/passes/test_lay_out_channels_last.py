"""Convolutions that are rewritten for tensors whose channels are adjacent, and their kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution, PadChannels
from ovgpu.passes import Target, fuse_layers, simplify
from ovgpu.types import Type
from tests.harness.ir import Net, Port

NUMBERS = {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "1,1"}


def rewritten(net: Net, types: Sequence[Type] = (Type.f32,)) -> tuple[Model, list[str]]:
    """Return the model, and the names of its convolutions that are rewritten."""
    model = simplify(ov.Core().read_model(*net.build()), Target("CUDA"))
    fuse_layers(model, Target("CUDA", channels_last=lambda: types))
    return model, [n.friendly_name for n in model.ops if isinstance(n.op, ChannelsLastConvolution)]


def convolve(net: Net, x: Port, kernel: Port, name: str, op: str = "Convolution") -> Port:
    port: Port = net.layer(op, "opset1", [x, kernel], NUMBERS, name=name)
    return port


def image(net: Net, channels: int = 8, kind: str = "f32") -> Port:
    """Add a tensor that an elementwise layer computes."""
    port: Port = net.layer("Relu", "opset1", [net.parameter(kind, (1, channels, 5, 5))])
    return port


def mean(net: Net, x: Port) -> None:
    net.result(net.layer("ReduceMean", "opset1", [x, net.const(np.array([2, 3]))], {"keep_dims": True}))


def kernel(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def test_kernels_are_moved_once() -> None:
    net = Net()
    x, shared, one = image(net), net.const(kernel(8, 8, 3, 3)), net.const(kernel(8, 8, 1, 1))
    x = convolve(net, convolve(net, x, shared, "a"), shared, "b")
    mean(net, convolve(net, x, one, "c"))
    model, found = rewritten(net)
    assert found == ["a", "b", "c"]
    first, second, third = (n for n in model.ops if isinstance(n.op, ChannelsLastConvolution))
    assert first.sources[1] is second.sources[1] and first.sources[1].spec.shape == (8, 3, 3, 8)
    np.testing.assert_array_equal(first.sources[1].spec.constant, np.moveaxis(kernel(8, 8, 3, 3), 1, -1))
    assert third.sources[1].spec.shape == (8, 8, 1, 1)


@pytest.mark.parametrize("between", ["Relu", "MaxPool", "Softmax", "GroupConvolution", "ConvolutionBackpropData"])
def test_neighbours(between: str) -> None:
    """Convolutions count as neighbours through layers that keep the layout."""
    net = Net()
    x = convolve(net, image(net), net.const(kernel(8, 8, 3, 3)), "a")
    if between == "MaxPool":
        x = net.layer(
            between,
            "opset1",
            [x],
            {"kernel": "3,3", "strides": "1,1", "pads_begin": "1,1", "pads_end": "1,1", "rounding_type": "floor"},
        )
    elif "Convolution" in between:
        shape = (8, 1, 1, 3, 3) if between == "GroupConvolution" else (8, 8, 3, 3)
        x = convolve(net, x, net.const(kernel(*shape)), "between", between)
    else:
        x = net.layer(
            between, "opset8" if between == "Softmax" else "opset1", [x], {"axis": 1} if between == "Softmax" else {}
        )
    mean(net, convolve(net, x, net.const(kernel(8, 8, 3, 3)), "b"))
    wanted = {"Relu": 2, "MaxPool": 2, "GroupConvolution": 3}
    assert len(rewritten(net)[1]) == wanted.get(between, 0)


def test_others() -> None:
    """Convolutions of sequences and volumes, and those of other types, stay as they are; the device is asked for its
    types only if there are any of images."""
    for axes in (1, 3):
        net = Net()
        numbers = {key: ",".join(["1"] * axes) for key in NUMBERS}
        x, weights = net.parameter("f32", (1, 8, *[5] * axes)), net.const(kernel(8, 8, *[3] * axes))
        for _ in range(2):
            x = net.layer("Convolution", "opset1", [x, weights], numbers)
        net.result(x)
        model = simplify(ov.Core().read_model(*net.build()), Target("CUDA"))
        fuse_layers(model, Target("CUDA", channels_last=lambda: pytest.fail("asked")))
        assert not any(isinstance(n.op, ChannelsLastConvolution) for n in model.ops)
    net = Net()
    x, weights = image(net), net.const(kernel(8, 8, 3, 3))
    mean(net, convolve(net, convolve(net, x, weights, "a"), weights, "b"))
    assert rewritten(net, (Type.f16,))[1] == []


def test_depthwise_kernels_are_moved() -> None:
    net = Net()
    x = convolve(net, image(net), net.const(kernel(8, 8, 1, 1)), "a")
    mean(net, convolve(net, x, net.const(kernel(8, 1, 1, 3, 3)), "b", "GroupConvolution"))
    second = [n for n in rewritten(net)[0].ops if isinstance(n.op, ChannelsLastConvolution)][1]
    np.testing.assert_array_equal(second.sources[1].spec.constant, kernel(8, 1, 1, 3, 3)[:, 0, 0].transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("shape", "numbers", "count"),
    [
        ((8, 6, 3, 3), {}, 0),
        ((6, 8, 3, 3), {}, 0),
        ((8, 8, 3, 3), {"pads_end": "2,1"}, 2),
        ((8, 8, 3, 3), {"auto_pad": "same_upper", "strides": "2,2"}, 2),
    ],
)
def test_channels_and_padding(shape: tuple[int, ...], numbers: dict[str, str], count: int) -> None:
    """Channels must be whole chunks; padding may differ at both ends."""
    net = Net()
    x = image(net, shape[1])
    x = net.layer("Convolution", "opset1", [x, net.const(kernel(*shape))], NUMBERS | numbers)
    mean(net, convolve(net, x, net.const(kernel(8, shape[0], 3, 3)), "b"))
    assert len(rewritten(net)[1]) == count


def test_copies_that_cost_more() -> None:
    """There may be one copy for two convolutions."""
    for dense, count in ((1, 2), (2, 0)):
        net = Net()
        x = image(net)
        for _ in range(2):
            x = convolve(net, x, net.const(kernel(8, 8, 3, 3)), "a")
            if dense == 2:
                net.result(x)
        net.result(x)
        assert len(rewritten(net)[1]) == count


def half(*shape: int) -> np.ndarray:
    return kernel(*shape).astype(np.float16)


def test_pictures_are_filled_up() -> None:
    """Zeros fill up the channels of an input that is converted, and those of the kernel that reads it."""
    net = Net()
    x = net.layer("Convert", "opset1", [net.parameter("f32", (1, 3, 5, 5))], {"destination_type": "f16"}, ["f16"])
    x = convolve(net, convolve(net, x, net.const(half(8, 3, 3, 3)), "a"), net.const(half(8, 8, 3, 3)), "b")
    mean(net, x)
    model, found = rewritten(net, (Type.f16,))
    assert found == ["a", "b"]
    (padding,) = (node for node in model.ops if isinstance(node.op, PadChannels))
    assert padding.sources[0].node.op.name == "Parameter" and padding.ports[0].spec.shape == (1, 8, 5, 5)
    first = next(n for n in model.ops if n.friendly_name == "a" and isinstance(n.op, ChannelsLastConvolution))
    value = first.sources[1].spec.constant
    np.testing.assert_array_equal(value[..., :3], np.moveaxis(half(8, 3, 3, 3), 1, -1))
    assert value.shape == (8, 3, 3, 8) and not value[..., 3:].any()


def test_few_channels_of_other_tensors() -> None:
    """A convolution of few channels that another convolution computes stays as it is."""
    net = Net()
    x = convolve(net, image(net, kind="f16"), net.const(half(8, 8, 3, 3)), "a")
    x = convolve(net, x, net.const(half(4, 8, 3, 3)), "b")
    mean(net, convolve(net, x, net.const(half(8, 4, 3, 3)), "c"))
    assert rewritten(net, (Type.f16,))[1] == ["a", "b"]


@pytest.mark.parametrize("known", [True, False])
def test_results_are_filled_up(known: bool) -> None:
    """Zeros fill up kernels and biases, and users get the channels that were there; unless the bias is no constant."""
    net = Net()
    x = image(net, kind="f16")
    for name in "ab":
        x = convolve(net, x, net.const(half(8, 8, 3, 3)), name)
    bias = net.const(half(1, 4, 1, 1)) if known else net.parameter("f16", (1, 4, 1, 1))
    x = net.layer("Add", "opset1", [convolve(net, x, net.const(half(4, 8, 3, 3)), "c"), bias])
    mean(net, net.layer("Sqrt", "opset1", [x], name="d"))
    model, found = rewritten(net, (Type.f16,))
    assert found == (["a", "b", "d"] if known else ["a", "b"])
    if known:
        last = next(n for n in model.ops if n.friendly_name == "d" and isinstance(n.op, ChannelsLastConvolution))
        assert last.ports[0].spec.shape == (1, 8, 5, 5) and last.sources[1].spec.shape == (8, 3, 3, 8)
        np.testing.assert_array_equal(last.sources[2].spec.constant[0, :4], half(1, 4, 1, 1)[0])
        assert not last.sources[2].spec.constant[0, 4:].any()
        (part,) = (n for n in model.ops if n.op.name == "Slice")
        assert part.sources[0] is last.ports[0] and part.ports[0].spec.shape == (1, 4, 5, 5)
