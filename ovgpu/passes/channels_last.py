"""Convolution -> the same of tensors whose channels are adjacent in memory, where convolutions follow each other.

cuDNN's kernels for tensor cores read such tensors. Given others, it copies them before and after each convolution. The
layers between these convolutions keep the layout, and the planner copies tensors at the ends of such a part.
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
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from ovgpu.ops.fused.quantized import QuantizedConvolution, QuantizedConvolutionWithEpilogue
from ovgpu.passes._graph import Graph, constant_of, users_of
from ovgpu.passes.fuse_elementwise import layer_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go


def channels_last(model: Model, types: Callable[[], Sequence[Type]] = tuple) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand.

    ``types()`` are the element types for which the device's convolutions read adjacent channels; it is called only for
    models with such convolutions.
    """
    moved: dict[int, Output] = {}  # kernels with their channels last, by the id of the constant
    for node in model.ops:
        for body in bodies(node.op):
            channels_last(body, types)
    candidates = [node for node in model.ops if _is_candidate(node)]
    found = types() if candidates else ()
    convolutions = [node for node in candidates if node.ports[0].spec.type in found]
    convolutions += filter(_has_layout, model.ops)
    for part in _parts(model, convolutions):
        for node in part.convolutions if part.pays else ():
            if not _has_layout(node):
                _rewrite(node, moved)
    model.changed()


def _has_layout(node: Node) -> bool:
    """Return whether the node reads and writes adjacent channels already."""
    return isinstance(node.op, (QuantizedConvolution, QuantizedConvolutionWithEpilogue))


def _is_candidate(node: Node) -> bool:
    """Return whether the node convolves images with a constant kernel, in groups of all channels or of a few.

    Pixels must be whole chunks, which tensor cores read, but for images of up to three channels.
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
    return not groups * outputs % chunk and (groups * channels <= 3 or not groups * channels % chunk)


def _convolution_of(node: Node) -> Convolution | None:
    op = node.op.convolution if isinstance(node.op, ConvolutionWithEpilogue) else node.op
    return op if isinstance(op, Convolution) and not isinstance(op, ConvolutionBackpropData) else None


@dataclass
class _Part:
    """Convolutions that exchange tensors, perhaps through layers that keep the layout; the tensors in that layout, and
    those that are copied into it or out of it."""

    convolutions: list[Node]
    tensors: set[Output] = field(default_factory=set)
    copied: set[Output] = field(default_factory=set)

    @property
    def pays(self) -> bool:
        """True if there are fewer copies than cuDNN would make: two for each convolution, which take half as long."""
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
        given = {s for node in members for s in node.sources if s is not None and s not in part.tensors}
        # An elementwise layer writes the layout itself if no one needs another.
        part.copied |= {s for s in given if _is_image(s) and not (op_of(s.node).keeps_layout
                                                                  and members.issuperset(users.get(s, ())))}
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
    """Return whether a tensor is copied for this user, or could otherwise be written there."""
    return user.op.name == "Result" or op_of(user).layout in ("blas", "dense")


def _rewrite(node: Node, moved: dict[int, Output]) -> None:
    value = constant_of(node.sources[1])
    # The order does not matter to kernels of one element, nor to those of groups, which are copied.
    is_moved = max(value.shape[-2:]) > 1 and (value.ndim == IMAGE_RANK or value.shape[1] == value.shape[2] == 1)
    if is_moved and id(value) not in moved:
        moved[id(value)] = _channels_moved(node, value)
    layer = node.op.layer if isinstance(node.op, ConvolutionWithEpilogue) else layer_of(node)
    node.op = ChannelsLastConvolution(layer=layer, convolution=node.op, moved=is_moved)  # type: ignore[arg-type]
    if is_moved:
        node.sources = [node.sources[0], moved[id(value)], *node.sources[2:]]


def _channels_moved(node: Node, kernel: Array) -> Output:
    """Return the constant [O, H, W, C] of a kernel [O, C, H, W], or [H, W, G] of a kernel [G, 1, 1, H, W]."""
    value = np.ascontiguousarray(np.moveaxis(kernel, 1 if kernel.ndim == IMAGE_RANK else 0, -1))
    value = value if kernel.ndim == IMAGE_RANK else value.reshape(value.shape[-3:])
    let_go(kernel)
    port = Graph(node).constant(value, Type.of(value.dtype))
    (port.spec,) = op_of(port.node).infer()
    return port
