"""Successive convolutions -> convolutions of tensors whose channels are adjacent in memory.

Kernels for tensor cores read such tensors. If tensors have another layout, cuDNN copies them before and after each
convolution. The layers between these convolutions keep the layout, and the planner copies tensors at the ends of such a
part of the model. In 16 bits, zeros pad the channels of pictures and of convolutions' results to whole chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import Array, op_of
from ovgpu.ops.base.strided import CHUNK_BYTES
from ovgpu.ops.base.view import IMAGE_RANK
from ovgpu.ops.convolution._convolution import FEW_CHANNELS
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution, PadChannels
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.ops.fused.quantized import QuantizedConvolution, QuantizedConvolutionWithEpilogue
from ovgpu.passes._graph import HALVES, NodeBuilder, constant_of, redirect, users_of
from ovgpu.passes.fuse_elementwise import layer_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go


def lay_out_channels_last(model: Model, types: Callable[[], Sequence[Type]] = tuple) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand.

    ``types()`` returns the element types for which the device's convolutions read adjacent channels. It is called only
    for models with convolutions that this pass could rewrite.
    """
    laid_out: dict[tuple[int, ...], Output] = {}  # (id of a kernel, outputs, channels) -> the rewritten kernel
    unpadded: dict[Output, Output] = {}  # result of a convolution -> the slice of its channels without padding
    for node in model.ops:
        for body in bodies(node.op):
            lay_out_channels_last(body, types)
    candidates = [node for node in model.ops if _is_candidate(node)]
    dtypes = types() if candidates else ()
    convolutions = [node for node in candidates if node.ports[0].spec.type in dtypes]
    convolutions += filter(_has_layout, model.ops)
    for part in _parts(model, convolutions):
        for node in part.convolutions if part.pays else ():
            if not _has_layout(node):
                _rewrite(node, laid_out, unpadded)
    redirect(model, unpadded)
    model.changed()
    if laid_out:
        model.validate_nodes_and_infer_types()


def _has_layout(node: Node) -> bool:
    """Return whether the node reads and writes adjacent channels already."""
    return isinstance(node.op, (QuantizedConvolution, QuantizedConvolutionWithEpilogue))


def _is_candidate(node: Node) -> bool:
    """Return whether the node convolves images with a constant kernel, either ungrouped or with few channels per group.

    The channels of a pixel must fill whole chunks, perhaps after padding, because kernels read tensors in chunks.
    Images with up to three channels are excepted.
    """
    op = _convolution_of(node)
    if op is None:
        return False
    kernel, port = constant_of(node.sources[1]), node.ports[0]
    if kernel is None or port.spec.shape is None or len(port.spec.shape) != IMAGE_RANK:
        return False
    if kernel.ndim > IMAGE_RANK and min(kernel.shape[1:3]) > FEW_CHANNELS:
        return False
    groups, outputs, channels = op.grouped(kernel.shape)[:3]
    chunk = CHUNK_BYTES * 8 // port.spec.type.bitwidth
    return (not groups * outputs % chunk or _pads_outputs(node)) and (
        groups * channels <= 3 or not groups * channels % chunk or _pads_channels(node)
    )


def _pads_channels(node: Node) -> bool:
    """Return whether the channels of a convolution's input are padded with zeros.

    This is so in 16 bits for pictures with fewer channels than a chunk has.
    """
    kernel, dtype = constant_of(node.sources[1]), node.ports[0].spec.type
    return (
        dtype.bitwidth == 16
        and kernel.ndim == IMAGE_RANK
        and kernel.shape[1] * dtype.bitwidth < CHUNK_BYTES * 8
        and _is_picture(node.sources[0])
    )


def _is_picture(port: Output | None) -> bool:
    """Return whether the tensor is an input of the model, or computed from one by elementwise layers."""
    while port is not None and op_of(port.node).keeps_layout and port.node.sources:
        port = port.node.sources[0]
    return port is not None and port.node.op.name == "Parameter"


def _pads_outputs(node: Node) -> bool:
    """Return whether the outputs of a convolution are padded with zeros.

    This is so in 16 bits if all other inputs of its epilogue are constants with one element, or one per channel.
    """
    kernel, port = constant_of(node.sources[1]), node.ports[0]
    others = [constant_of(source) for source in node.sources[2:]]
    return (
        port.spec.type.bitwidth == 16
        and kernel.ndim == IMAGE_RANK
        and _is_image(port)
        and all(
            value is not None and value.size in (1, value.shape[1] if value.ndim == IMAGE_RANK else 0)
            for value in others
        )
    )


def _convolution_of(node: Node) -> Convolution | None:
    op = node.op.convolution if isinstance(node.op, ConvolutionWithEpilogue) else node.op
    return op if isinstance(op, Convolution) and not isinstance(op, ConvolutionBackpropData) else None


@dataclass
class _Part:
    """Part of a model: convolutions connected by tensors, perhaps through layers that keep the layout.

    ``tensors`` get adjacent channels; ``copied`` are tensors that are copied into this layout or out of it.
    """

    convolutions: list[Node]
    tensors: set[Output] = field(default_factory=set)
    copied: set[Output] = field(default_factory=set)

    @property
    def pays(self) -> bool:
        """True if there is at most one copy for every two convolutions.

        Without adjacent channels, cuDNN makes two copies for each convolution, which take half as long.
        """
        return len(self.convolutions) > 1 and 2 * len(self.copied) <= len(self.convolutions)


def _parts(model: Model, convolutions: Sequence[Node]) -> Iterator[_Part]:
    users, inside = users_of(model), set(convolutions)
    parts = {node: _Part([node]) for node in convolutions}
    for node in convolutions:
        waiting = [node.ports[0]]
        while waiting:
            port = waiting.pop()
            if port in parts[node].tensors:
                continue
            parts[node].tensors.add(port)
            for user in users.get(port, ()):
                if user in inside and parts[user] is not parts[node]:
                    _join(parts, parts[node], parts[user])
                elif user not in inside and _keeps_layout(user):
                    waiting.append(user.ports[0])
                elif user not in inside and _needs_dense(user):
                    parts[node].copied.add(port)
    for part in {id(part): part for part in parts.values()}.values():
        members = set(part.convolutions)
        entering = {s for node in members for s in node.sources if s is not None and s not in part.tensors}
        # An elementwise layer writes the layout itself if only these convolutions take its result.
        part.copied |= {
            s
            for s in entering
            if _is_image(s) and not (op_of(s.node).keeps_layout and members.issuperset(users.get(s, ())))
        }
        yield part


def _join(parts: dict[Node, _Part], one: _Part, other: _Part) -> None:
    one.convolutions += other.convolutions
    one.tensors |= other.tensors
    one.copied |= other.copied
    for node in other.convolutions:
        parts[node] = one


def _is_image(port: Output) -> bool:
    shape = port.spec.shape
    return shape is not None and len(shape) == IMAGE_RANK and port.node.op.name != "Constant" and shape[2:] != (1, 1)


def _keeps_layout(node: Node) -> bool:
    return op_of(node).keeps_layout and bool(node.ports) and _is_image(node.ports[0])


def _needs_dense(user: Node) -> bool:
    """Return whether the user needs a dense tensor: it takes a copy, or is a Result that could be written directly."""
    return user.op.name == "Result" or op_of(user).layout in ("blas", "dense")


def _rewrite(node: Node, laid_out: dict[tuple[int, ...], Output], unpadded: dict[Output, Output]) -> None:
    """Make the node a convolution of adjacent channels, with padding if needed."""
    graph, dtype, port = NodeBuilder(node), node.ports[0].spec.type, node.ports[0]
    value = constant_of(node.sources[1])
    # Kernels of one element have the same memory layout either way, and those of groups are copied.
    is_moved = max(value.shape[-2:]) > 1 and (value.ndim == IMAGE_RANK or value.shape[1] == value.shape[2] == 1)
    layer = node.op.layer if isinstance(node.op, ConvolutionWithEpilogue) else layer_of(node)
    sources = [source for source in node.sources if source is not None]
    (outputs, channels), chunk = value.shape[:2], CHUNK_BYTES * 8 // dtype.bitwidth
    if _pads_channels(node):
        channels = chunk
        sources[0] = graph.add(PadChannels(channels=chunk, type=dtype), _skip_convert(sources[0]))
    if value.ndim == IMAGE_RANK and outputs % chunk:
        unpadded[port] = graph.cut(port, 1, 0, outputs)
        outputs += -outputs % chunk
        sources[2:] = [_pad(graph, source, outputs) for source in sources[2:]]
    node.op = ChannelsLastConvolution(layer=layer, convolution=node.op, moved=is_moved)  # type: ignore[arg-type]
    if is_moved or (outputs, channels) != value.shape[:2]:
        key = id(value), outputs, channels
        if key not in laid_out:
            laid_out[key] = _lay_out(graph, value, outputs, channels, is_moved)
        sources[1] = laid_out[key]
    node.sources = [*sources]


def _skip_convert(port: Output) -> Output:
    """Return the input of a Convert to 16 bits, if `PadChannels` can convert it as well; else the port."""
    source = port.node.sources[0] if port.node.op.name == "Convert" else None
    return source if source is not None and source.spec.type in (Type.f32, *HALVES) else port


def _pad(graph: NodeBuilder, source: Output, channels: int) -> Output:
    """Return a constant [1, C, 1, 1] padded with zeros to ``channels``; a constant of one element stays as it is."""
    value = constant_of(source)
    if value.size == 1:
        return source
    return _constant(graph, np.pad(value, [(0, 0), (0, channels - value.size), (0, 0), (0, 0)]))


def _lay_out(graph: NodeBuilder, kernel: Array, outputs: int, channels: int, moved: bool) -> Output:
    """Return a kernel as a constant in the layout that the device reads.

    A kernel [O, C, H, W] is padded with zeros to ``outputs`` and ``channels``, and becomes [O, H, W, C] if ``moved``. A
    grouped kernel [G, 1, 1, H, W] becomes [H, W, G].
    """
    if kernel.ndim > IMAGE_RANK:
        value = np.moveaxis(kernel, 0, -1).reshape(*kernel.shape[3:], kernel.shape[0])
    else:
        missing = outputs - kernel.shape[0], channels - kernel.shape[1]
        value = np.pad(kernel, [(0, missing[0]), (0, missing[1]), (0, 0), (0, 0)]) if any(missing) else kernel
        value = np.moveaxis(value, 1, -1) if moved else value
    let_go(kernel)
    return _constant(graph, np.ascontiguousarray(value))


def _constant(graph: NodeBuilder, value: Array) -> Output:
    port = graph.constant(value, Type.of(value.dtype))
    (port.spec,) = op_of(port.node).infer_specs()
    return port
