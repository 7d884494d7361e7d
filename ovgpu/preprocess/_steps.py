"""The steps between the user's tensors and the model's: their names, and the operations that they insert."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from ovgpu.model import Node, Output
from ovgpu.preprocess import _color, _layouts
from ovgpu.preprocess._color import ColorFormat
from ovgpu.preprocess._graph import NodeFactory
from ovgpu.types import Layout, PartialShape, Type

Order = Sequence[int]
Operation = Callable[[Output], Output | Node]


class ResizeAlgorithm(Enum):
    """Algorithm of a resize: the modes of Interpolate."""

    RESIZE_LINEAR = 0
    RESIZE_CUBIC = 1
    RESIZE_NEAREST = 2
    RESIZE_BILINEAR_PILLOW = 3
    RESIZE_BICUBIC_PILLOW = 4


class PaddingMode(Enum):
    """Mode of padding: the modes of Pad."""

    CONSTANT = 0
    REFLECT = 2
    SYMMETRIC = 3


@dataclass
class Context:
    """State of a tensor between the steps, and the type, shape and layout at their end."""

    graph: NodeFactory
    layout: Layout
    target_layout: Layout
    target_type: Type
    target_shape: PartialShape = field(default_factory=PartialShape.dynamic)
    color: ColorFormat = ColorFormat.UNDEFINED


@dataclass(frozen=True)
class Step:
    """A step: its name, and the function that transforms the planes of an image."""

    name: str
    run: Callable[[Context, list[Output]], list[Output]]


class Steps:
    """Steps in the order in which they run. Each method adds one and returns the object itself."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._orders: list[tuple[Layout | None, Order | None]] = []
        # One entry per conversion of layouts: (layout, None) or (None, order).

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    def _add(self, name: str, run: Callable[[Context, Output], Output]) -> Self:
        """Add a step that takes a single plane."""

        def run_single(context: Context, planes: list[Output]) -> list[Output]:
            if len(planes) != 1:
                raise RuntimeError(f"Can't apply '{name}' to a multi-plane input: convert it with 'convert_color'")
            return [run(context, planes[0])]

        self._steps.append(Step(name, run_single))
        return self

    def convert_element_type(self, type: Type = Type.dynamic) -> Self:
        """Convert to ``type``; without one, to the type at the end of the steps."""
        self._steps.append(
            Step(
                f"convert type ({type.get_type_name()})",
                lambda context, planes: [
                    to_element_type(context, x, context.target_type if type.is_dynamic() else type) for x in planes
                ],
            )
        )
        return self

    def convert_layout(self, dst_layout: Layout | str | Order = "") -> Self:
        """Transpose to a layout (by default the layout at the end of the steps), or by an order of axes."""
        if isinstance(dst_layout, Layout | str):
            layout = Layout(dst_layout) if isinstance(dst_layout, str) else dst_layout
            self._orders.append((layout, None))
            return self._add(f"convert layout {layout}", lambda context, x: to_layout(context, x, layout))
        order = list(dst_layout)
        if not order:
            return self
        self._orders.append((None, order))
        return self._add(f"convert layout {tuple(order)}", lambda context, x: _transposed(context, x, order))

    def custom(self, operation: Operation) -> Self:
        """Apply a function that takes an output of the graph, and returns a new one or its node."""

        def run(context: Context, x: Output) -> Output:
            result = operation(x)
            return context.graph.with_spec(result.output(0) if isinstance(result, Node) else result)

        return self._add("custom", run)


class PostProcessSteps(Steps):
    """Steps between the model and the user's output tensor."""


class PreProcessSteps(Steps):
    """Steps between the user's input tensor and the model. Steps for images need a layout that names the axes."""

    def mean(self, value: float | Sequence[float]) -> Self:
        """Subtract a number, or one per channel, from a tensor of a real type."""
        return self._add(f"mean {_text(value)}", lambda context, x: _scaled(context, x, "Subtract", value))

    def scale(self, value: float | Sequence[float]) -> Self:
        """Divide a tensor of a real type by a number, or by one per channel."""
        return self._add(f"scale {_text(value)}", lambda context, x: _scaled(context, x, "Divide", value))

    def resize(self, alg: ResizeAlgorithm, dst_height: int | None = None, dst_width: int | None = None) -> Self:
        """Resize to a height and width in pixels; without them, to those of the model."""
        if (dst_height is None) != (dst_width is None):
            raise TypeError("resize() takes both a height and a width, or neither")
        return self._add(
            "resize to model width/height" if dst_height is None else f"resize to {dst_height, dst_width}",
            lambda context, x: _resized(context, x, alg, dst_height, dst_width),
        )

    def crop(self, begin: Sequence[int], end: Sequence[int]) -> Self:
        """Select ``begin[i] ... end[i] - 1`` of each axis; negative numbers count from the end."""
        if len(begin) != len(end):
            raise RuntimeError(f"crop: begin has {len(begin)} coordinates and end {len(end)}")
        return self._add(
            f"crop {tuple(begin), tuple(end)}",
            lambda context, x: context.graph.add(
                "Slice", "opset8", x, *map(context.graph.constant, (begin, end, [1] * len(begin)))
            ),
        )

    def pad(
        self, pads_begin: Sequence[int], pads_end: Sequence[int], value: float | Sequence[float], mode: PaddingMode
    ) -> Self:
        """Pad each axis; negative numbers crop it. ``value`` is the padding of `PaddingMode.CONSTANT`."""
        padding = value if isinstance(value, int | float) else next(iter(value), 0.0)
        return self._add(
            f"pad {tuple(pads_begin), tuple(pads_end)}",
            lambda context, x: context.graph.add(
                "Pad",
                "opset12",
                x,
                context.graph.constant(pads_begin),
                context.graph.constant(pads_end),
                context.graph.constant(padding, x.element_type),
                pad_mode=mode.name.lower(),
            ),
        )

    def convert_color(self, dst_format: ColorFormat) -> Self:
        """Convert to another colour format. Several planes become one."""
        self._steps.append(
            Step(
                f"convert color ({dst_format.name})",
                lambda context, planes: _color.convert(context, planes, dst_format),
            )
        )
        return self

    def reverse_channels(self) -> Self:
        """Reverse the channels: RGB becomes BGR, and the other way round."""
        return self._add("reverse channels", _color.reversed_channels)

    def forward_layout(self, layout: Layout) -> Layout:
        """Return the layout after all conversions of layouts, for a user's tensor of ``layout``."""
        for to, order in self._orders:
            layout = _layouts.permuted(layout, order) if order is not None else to or Layout()
        return layout

    def backward(self, shape: PartialShape, layout: Layout) -> tuple[PartialShape, Layout]:
        """Undo the conversions by an order of axes: return the shape and layout before them."""
        for order in reversed([order for _, order in self._orders if order is not None]):
            if shape.rank.is_dynamic:
                break
            inverse = [list(order).index(i) if i in order else -1 for i in range(len(shape))]
            layout, shape = _layouts.permuted(layout, inverse), _layouts.transposed(shape, inverse)
        return shape, layout


def to_element_type(context: Context, x: Output, dtype: Type) -> Output:
    """Convert a tensor to another element type. RuntimeError if one of the two is dynamic."""
    if x.element_type.is_dynamic() or dtype.is_dynamic():
        raise RuntimeError("Can't convert from or to the dynamic element type: set_element_type says which it is")
    return x if x.element_type == dtype else context.graph.add("Convert", "opset1", x, destination_type=dtype)


def to_layout(context: Context, x: Output, layout: Layout) -> Output:
    """Transpose a tensor to a layout (an empty one means the target's). Prepend missing axes with extent 1."""
    target, rank = context.target_layout if layout.empty else layout, x.partial_shape.rank
    full_layout, new_axes = _layouts.unsqueezed(context.layout, target)
    order = _layouts.permutation(full_layout, None if rank.is_dynamic else rank.get_length() + new_axes, target)
    if new_axes:
        x = context.graph.add("Unsqueeze", "opset1", x, context.graph.constant(range(new_axes)))
    if order is None:
        context.layout = context.layout if layout.empty and not new_axes else target
        return x
    context.layout = target
    return context.graph.transpose(x, order)


def _transposed(context: Context, x: Output, order: Order) -> Output:
    context.layout = _layouts.permuted(context.layout, order)
    return context.graph.transpose(x, order)


def _scaled(context: Context, x: Output, op: str, value: float | Sequence[float]) -> Output:
    if not x.element_type.is_real():
        raise RuntimeError(
            f"mean and scale take tensors of a real type, not {x.element_type.get_type_name()}: "
            "use 'convert_element_type' before"
        )
    values: Any = value
    if not isinstance(value, int | float):
        shape, count = x.partial_shape, len(value)
        if shape.rank.is_dynamic:
            raise RuntimeError("values per channel need a tensor whose rank is known")
        channel = _layouts.axis(context.layout, "C", shape)
        if shape[channel].is_static and shape[channel] != count:
            raise RuntimeError(
                f"there are {shape[channel]} channels and {count} values (shape {shape}, layout {context.layout})"
            )
        values = context.graph.constant(value, x.element_type).node.data.reshape(
            [count if i == channel else 1 for i in range(len(shape))]
        )
    return context.graph.add(op, "opset1", x, context.graph.constant(values, x.element_type))


def _resized(context: Context, x: Output, alg: ResizeAlgorithm, height: int | None, width: int | None) -> Output:
    graph, shape, target = context.graph, x.partial_shape, context.target_shape
    for layout in [context.layout] if height is not None else [context.layout, context.target_layout]:
        if not (layout.has_name("H") and layout.has_name("W")):
            raise RuntimeError(f"Can't resize: layout {layout} has no H and W; set_layout says what the axes are")
    if shape.rank.is_dynamic:
        raise RuntimeError("Can't resize a tensor whose rank is dynamic")
    sizes = [height, width]
    if height is None:
        if target.rank.is_dynamic:
            raise RuntimeError("Can't resize to the model's size: its shape is dynamic")
        dims = [target[_layouts.axis(context.target_layout, name, target)] for name in "HW"]
        if not all(dim.is_static for dim in dims):
            raise RuntimeError(f"Can't resize to the model's size: its shape {target} is dynamic")
        sizes = [dim.get_length() for dim in dims]
    axes = [_layouts.axis(context.layout, name, shape) for name in "HW"]
    return graph.add(
        "Interpolate",
        "opset11",
        x,
        graph.constant(sizes),
        graph.constant(axes),
        mode=alg.name.removeprefix("RESIZE_").lower(),
        shape_calculation_mode="sizes",
        cube_coeff=-0.5 if alg == ResizeAlgorithm.RESIZE_BICUBIC_PILLOW else -0.75,
    )


def _text(value: float | Sequence[float]) -> str:
    return f"({','.join(f'{v:g}' for v in ([value] if isinstance(value, int | float) else value))})"
