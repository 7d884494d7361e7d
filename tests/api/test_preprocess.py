"""PrePostProcessor: the same calls on openvino's model and on ours give the same inputs, outputs and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import preprocess as openvino_preprocess

import ovgpu
from ovgpu import preprocess
from ovgpu.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm
from tests.harness import Net
from tests.harness.judge import CONFIG

from .both import members


def image_net(*shape: int, kind: str = "f32") -> Net:
    """Build y = relu(x) + 1 for one image. x and y are names of tensors."""
    net = Net()
    x = net.parameter(kind, shape, "x")
    y = net.layer("Add", "opset1", [net.layer("Relu", "opset1", [x]), net.const(np.float32(1), kind)])
    net.result(y, "y")
    return net


def two_inputs() -> Net:
    net = Net()
    a, b = net.parameter("f32", (2, 3), "a"), net.parameter("f32", (2, 3), "b")
    net.result(net.layer("Subtract", "opset1", [a, b]), "difference")
    net.result(net.layer("Multiply", "opset1", [a, b]), "product")
    return net


NCHW = image_net(1, 3, 6, 10)
ANY_SIZE = image_net(1, 3, -1, -1)
ANY = image_net(-1, 3, -1, -1)


def image(p: Any, layout: str = "NCHW", model: str = "NCHW", kind: str | None = None, color: str = "") -> Any:
    """Set the layouts of tensor and model, and the tensor's type and colour format. Returns the steps."""
    tensor = p.input().tensor().set_layout(p.layout(layout))
    p.input().model().set_layout(p.layout(model))
    if kind:
        tensor.set_element_type(p.type(kind))
    if color:
        tensor.set_color_format(getattr(p.ColorFormat, color))
    return p.input().preprocess()


class Calls:
    """PrePostProcessor with the names of its module and library, so that one recipe serves both libraries."""

    def __init__(self, library: Any, module: Any, model: Any) -> None:
        self.library, self.module, self.processor = library, module, module.PrePostProcessor(model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.processor, name) if hasattr(self.processor, name) else getattr(self.module, name)

    def layout(self, text: str) -> Any:
        return self.library.Layout(text)

    def type(self, name: str) -> Any:
        return getattr(self.library.Type, name)

    def shape(self, *dims: int) -> Any:
        return self.library.PartialShape([*dims])


Recipe = Callable[[Calls], Any]

RECIPES: dict[str, tuple[Net, Recipe]] = {
    "nothing": (NCHW, lambda p: None),
    "type": (NCHW, lambda p: p.input().tensor().set_element_type(p.type("u8"))),
    "type_said_twice": (NCHW, lambda p: image(p, kind="u8").convert_element_type(p.type("f32"))),
    "type_of_the_model": (NCHW, lambda p: image(p, kind="u8").convert_element_type()),
    "layout": (NCHW, lambda p: image(p, "NHWC")),
    "layout_of_steps": (NCHW, lambda p: image(p, "NHWC").convert_layout(p.layout("NCHW"))),
    "layout_to_the_models": (NCHW, lambda p: image(p, "NHWC").convert_layout(p.layout(""))),
    "layout_by_order": (NCHW, lambda p: p.input().preprocess().convert_layout([0, 3, 1, 2])),
    "layout_by_two_orders": (
        NCHW,
        lambda p: p.input().preprocess().convert_layout([0, 3, 1, 2]).convert_layout([0, 1, 3, 2]),
    ),
    "layout_by_order_and_name": (
        NCHW,
        lambda p: (
            p.input().tensor().set_layout(p.layout("NHWC")),
            p.input().preprocess().convert_layout([0, 3, 1, 2]),
        ),
    ),
    "layout_without_batch": (NCHW, lambda p: image(p, "HWC")),
    "layout_open": (NCHW, lambda p: image(p, "N...C", "NC...")),
    "layout_partly_named": (NCHW, lambda p: image(p, "?HWC", "?C??")),
    "mean_and_scale": (NCHW, lambda p: image(p).mean(2.5).scale(0.5)),
    "mean_and_scale_of_channels": (
        NCHW,
        lambda p: (
            image(p, "NHWC", kind="u8").convert_element_type(p.type("f32")).mean([1.0, 2.0, 3.0]).scale([2.0, 4.0, 8.0])
        ),
    ),
    "reverse_channels": (NCHW, lambda p: image(p).reverse_channels()),
    "reverse_channels_any_size": (ANY, lambda p: image(p, "NHWC").reverse_channels()),
    "bgr_to_rgb": (NCHW, lambda p: image(p, "NHWC", color="BGR").convert_color(p.ColorFormat.RGB)),
    "rgbx_to_rgb": (NCHW, lambda p: image(p, "NHWC", kind="u8", color="RGBX").convert_color(p.ColorFormat.RGB)),
    "bgrx_to_rgb": (NCHW, lambda p: image(p, "NHWC", kind="u8", color="BGRX").convert_color(p.ColorFormat.RGB)),
    "rgb_to_gray": (
        image_net(1, 1, 6, 10),
        lambda p: image(p, "NHWC", kind="u8", color="RGB").convert_color(p.ColorFormat.GRAY),
    ),
    "bgr_to_gray_of_reals": (image_net(1, 1, 6, 10), lambda p: image(p, color="BGR").convert_color(p.ColorFormat.GRAY)),
    "nv12": (NCHW, lambda p: image(p, "NHWC", kind="u8", color="NV12_SINGLE_PLANE").convert_color(p.ColorFormat.RGB)),
    "nv12_planes": (
        NCHW,
        lambda p: (
            p.input()
            .tensor()
            .set_element_type(p.type("u8"))
            .set_color_format(p.ColorFormat.NV12_TWO_PLANES, ["y", "uv"]),
            p.input().model().set_layout(p.layout("NCHW")),
            p.input().preprocess().convert_color(p.ColorFormat.BGR),
        ),
    ),
    "i420": (NCHW, lambda p: image(p, "NHWC", kind="u8", color="I420_SINGLE_PLANE").convert_color(p.ColorFormat.BGR)),
    "i420_planes": (
        NCHW,
        lambda p: (
            p.input()
            .tensor()
            .set_element_type(p.type("u8"))
            .set_color_format(p.ColorFormat.I420_THREE_PLANES, ["y", "u", "v"]),
            p.input().model().set_layout(p.layout("NCHW")),
            p.input().preprocess().convert_color(p.ColorFormat.RGB),
        ),
    ),
    "resize": (
        NCHW,
        lambda p: (p.input().tensor().set_spatial_static_shape(9, 7), image(p).resize(p.ResizeAlgorithm.RESIZE_LINEAR)),
    ),
    "resize_any_size": (
        NCHW,
        lambda p: (
            p.input().tensor().set_spatial_dynamic_shape(),
            image(p, "NHWC", kind="u8").convert_element_type(p.type("f32")).resize(p.ResizeAlgorithm.RESIZE_LINEAR),
        ),
    ),
    "resize_to_a_size": (
        ANY_SIZE,
        lambda p: (
            p.input().tensor().set_shape(p.shape(1, 3, 5, 11)),
            image(p).resize(p.ResizeAlgorithm.RESIZE_NEAREST, 10, 4),
        ),
    ),
    **{
        f"resize_{mode}": (
            ANY_SIZE,
            lambda p, mode=mode: (
                p.input().tensor().set_shape(p.shape(1, 3, 5, 11)),
                image(p).resize(getattr(p.ResizeAlgorithm, f"RESIZE_{mode}"), 8, 9),
            ),
        )
        for mode in ("CUBIC", "BILINEAR_PILLOW", "BICUBIC_PILLOW")
    },
    "crop": (
        ANY_SIZE,
        lambda p: (p.input().tensor().set_shape(p.shape(1, 4, 8, 9)), image(p).crop([0, 1, 2, 3], [1, 4, -1, 7])),
    ),
    "pad": (
        NCHW,
        lambda p: (
            p.input().tensor().set_shape(p.shape(1, 3, 4, 7)),
            image(p).pad([0, 0, 1, 2], [0, 0, 1, 1], 0.5, p.PaddingMode.CONSTANT),
        ),
    ),
    "pad_reflect": (
        NCHW,
        lambda p: (
            p.input().tensor().set_shape(p.shape(1, 3, 4, 7)),
            image(p).pad([0, 0, 1, 2], [0, 0, 1, 1], [0.0], p.PaddingMode.REFLECT),
        ),
    ),
    "from_an_array": (
        NCHW,
        lambda p: (p.input().tensor().set_from(np.zeros((1, 6, 10, 3), np.uint8)), image(p, "NHWC")),
    ),
    "from_a_tensor": (
        NCHW,
        lambda p: (p.input().tensor().set_from(p.library.Tensor(np.zeros((1, 6, 10, 3), np.int32))), image(p, "NHWC")),
    ),
    "output_type": (NCHW, lambda p: p.output().tensor().set_element_type(p.type("i32"))),
    "output_layout": (
        NCHW,
        lambda p: (p.output().model().set_layout(p.layout("NCHW")), p.output().tensor().set_layout(p.layout("NHWC"))),
    ),
    "output_steps": (
        NCHW,
        lambda p: (
            p.output().model().set_layout(p.layout("NCHW")),
            p.output().postprocess().convert_element_type(p.type("f16")).convert_layout([0, 2, 3, 1]),
        ),
    ),
    "output_layout_by_name": (
        NCHW,
        lambda p: (
            p.output().model().set_layout(p.layout("NCHW")),
            p.output().postprocess().convert_layout(p.layout("HWCN")),
        ),
    ),
    "both_ends": (NCHW, lambda p: (image(p, "NHWC", kind="u8"), p.output(0).tensor().set_element_type(p.type("f16")))),
    "second_of_two": (
        two_inputs(),
        lambda p: (
            p.input(1).tensor().set_element_type(p.type("i8")),
            p.input("a").preprocess().scale(4.0),
            p.output(1).tensor().set_element_type(p.type("i64")),
        ),
    ),
}


def built(library: Any, module: Any, net: Net, recipe: Recipe) -> Any:
    core = library.Core()
    calls = Calls(library, module, core.read_model(*net.build()))
    recipe(calls)
    return calls.build()


def described(model: Any) -> list[Any]:
    """Describe the inputs and outputs: names, shape, type and layout."""
    return [
        (sorted(port.get_names()), str(port.partial_shape), port.element_type.get_type_name(), str(node.layout))
        for ports, nodes in ((model.inputs, model.get_parameters()), (model.outputs, model.get_results()))
        for port, node in zip(ports, nodes, strict=True)
    ]


def feed(model: Any, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        random.integers(
            0, 100, [dim.get_length() if dim.is_static else 7 + i for i, dim in enumerate(port.partial_shape)]
        ).astype(port.element_type.to_dtype())
        for port in model.inputs
    ]


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", RECIPES)
def test_as_openvino(name: str, device: str) -> None:
    theirs = built(openvino, openvino_preprocess, *RECIPES[name])
    ours = built(ovgpu, preprocess, *RECIPES[name])
    assert described(ours) == described(theirs)
    expected = openvino.Core().compile_model(theirs, "CPU", CONFIG).create_infer_request()
    found = ovgpu.Core().compile_model(ours, device).create_infer_request()
    for seed in range(3):
        feeds = feed(ours, seed)
        expected.infer(feeds)
        found.infer(feeds)
        for a, b in zip(found.output_tensors, expected.output_tensors, strict=True):
            np.testing.assert_allclose(a.data, b.data, 1e-5, 1e-5)


REFUSED: dict[str, tuple[Net, Recipe]] = {
    "mean_of_integers": (NCHW, lambda p: image(p, kind="u8").mean(1.0)),
    "channels": (NCHW, lambda p: image(p).mean([1.0, 2.0])),
    "no_channels": (NCHW, lambda p: p.input().preprocess().mean([1.0, 2.0, 3.0])),
    "no_height": (NCHW, lambda p: p.input().preprocess().resize(p.ResizeAlgorithm.RESIZE_LINEAR)),
    "model_size": (ANY_SIZE, lambda p: image(p).resize(p.ResizeAlgorithm.RESIZE_LINEAR)),
    "planes_left": (NCHW, lambda p: image(p, "NHWC", color="NV12_TWO_PLANES")),
    "color_left": (NCHW, lambda p: image(p, "NHWC", color="NV12_SINGLE_PLANE")),
    "no_conversion": (NCHW, lambda p: image(p, "NHWC", color="RGB").convert_color(p.ColorFormat.RGBX)),
    "planes_resized": (
        NCHW,
        lambda p: image(p, "NHWC", color="NV12_TWO_PLANES").resize(p.ResizeAlgorithm.RESIZE_LINEAR),
    ),
    "names_of_one_plane": (NCHW, lambda p: p.input().tensor().set_color_format(p.ColorFormat.RGB, ["a"])),
    "too_few_names": (NCHW, lambda p: p.input().tensor().set_color_format(p.ColorFormat.NV12_TWO_PLANES, ["a"])),
    "no_order": (NCHW, lambda p: image(p).convert_layout([0, 1, 1, 2])),
    "layouts_of_other_axes": (NCHW, lambda p: image(p, "NHWD")),
    "layout_longer_than_the_model": (NCHW, lambda p: image(p, "NDHWC", "NCDHW")),
    "shape": (NCHW, lambda p: p.input().tensor().set_shape(p.shape(1, 3, 5, 5))),
    "crop": (NCHW, lambda p: image(p).crop([0], [1, 2])),
    "index": (NCHW, lambda p: p.input(1)),
    "name": (NCHW, lambda p: p.output("z")),
    "which": (two_inputs(), lambda p: p.input()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_by_openvino(name: str) -> None:
    net, recipe = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)):
        built(openvino, openvino_preprocess, net, recipe)
    model = ovgpu.Core().read_model(*net.build())
    before = described(model), [node.friendly_name for node in model.ops]
    calls = Calls(ovgpu, preprocess, model)
    with pytest.raises((RuntimeError, IndexError)):
        recipe(calls)
        calls.build()
    assert (described(model), [node.friendly_name for node in model.ops]) == before


def test_a_batch_is_added_to_axes_in_order() -> None:
    """A batch axis is added where the layout has none. Openvino forgets the new axis, and fails."""
    calls = Calls(ovgpu, preprocess, ovgpu.Core().read_model(*NCHW.build()))
    image(calls, "CHW")
    x = np.linspace(-3, 3, 180, dtype=np.float32).reshape(3, 6, 10)
    (y,) = ovgpu.Core().compile_model(calls.build(), "CPU")([x]).values()
    np.testing.assert_allclose(y, np.maximum(x, 0)[None] + 1, 1e-6)


def test_custom_steps() -> None:
    model = ovgpu.Core().read_model(*NCHW.build())
    processor = PrePostProcessor(model)
    absolute = ovgpu.ops.lookup("Abs", "opset1")
    negative = ovgpu.ops.lookup("Negative", "opset1")
    processor.input().preprocess().custom(lambda x: x).custom(
        lambda x: ovgpu.Node(absolute(), [ovgpu.Node(negative(), [x]).ports[0]])
    )
    processor.output().postprocess().custom(lambda x: ovgpu.Node(negative(), [x]).ports[0])
    x = np.linspace(-3, 3, 180, dtype=np.float32).reshape(1, 3, 6, 10)
    (y,) = ovgpu.Core().compile_model(processor.build(), "CPU")([x]).values()
    np.testing.assert_allclose(y, -(abs(x) + 1), 1e-6)


def test_what_it_prints() -> None:
    processor = PrePostProcessor(ovgpu.Core().read_model(*NCHW.build()))
    tensor = processor.input().tensor().set_layout("NHWC").set_element_type(ovgpu.Type.u8)
    tensor.set_color_format(ColorFormat.BGR)
    processor.input().preprocess().convert_color(ColorFormat.RGB).resize(ResizeAlgorithm.RESIZE_LINEAR)
    processor.input().model().set_layout("NCHW")
    assert str(processor).splitlines() == [
        'Input "x":',
        "    User's input tensor: [1,6,10,3], [N,H,W,C], u8, BGR",
        "    Model's expected tensor: [1,3,6,10], [N,C,H,W], f32",
        "      convert color (RGB): ([1,6,10,3], [N,H,W,C], u8, BGR) -> ([1,6,10,3], [N,H,W,C], u8, RGB)",
        "      resize to model width/height: ([1,6,10,3], [N,H,W,C], u8, RGB) -> ([1,6,10,3], [N,H,W,C], u8, RGB)",
        "      convert type (f32): ([1,6,10,3], [N,H,W,C], u8, RGB) -> ([1,6,10,3], [N,H,W,C], f32, RGB)",
        "      convert layout [N,C,H,W]: ([1,6,10,3], [N,H,W,C], f32, RGB) -> ([1,3,6,10], [N,C,H,W], f32, RGB)",
        "Output 'y':",
        "    Model's data tensor: [1,3,6,10], [...], f32",
        "    User's output tensor: [1,3,6,10], [...], f32",
    ]
    processor.input().preprocess().mean(1.0)
    assert "Error occurred: mean and scale take tensors of a real type, not u8" in str(processor)


def test_the_names_are_openvinos() -> None:
    for name in preprocess.__all__:
        theirs, ours = (members(getattr(module, name)) for module in (openvino_preprocess, preprocess))
        assert theirs - {"name", "value"} <= ours  # only members of an Enum have these
    public = {name for name in dir(openvino_preprocess) if isinstance(getattr(openvino_preprocess, name), type)}
    assert public - {"Callable"} <= set(preprocess.__all__)
