"""FakeQuantize -> Convolution or MatMul with 8-bit weights, as nncf quantises models, becomes Quantize -> the same.

    FakeQuantize -> [MaxPool, Reshape, Concat ...] -> Convolution <- Multiply by scales <- Convert <- Constant of i8

Where all levels of a FakeQuantize are whole multiples of one step, it is a Quantize, whose codes are whole numbers, and
a Dequantize, which multiplies them by the step. Layers that only choose or move elements do so with the codes. Layers
with weights in 8 bits take the codes, and have the step in their weights; all others take the dequantised values. NumPy
multiplies codes in f32, a device in i8 where its kernel takes the layer. Other weights are decompressed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.activation.activation import Clamp, Relu
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.strided import CHUNK_BYTES
from ovgpu.ops.base.view import IMAGE_RANK
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused.quantized import QuantizedConvolution, QuantizedMatMul
from ovgpu.ops.image.interpolate import Interpolate4
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.movement import Concat, Split, Transpose, VariadicSplit
from ovgpu.ops.movement.slicing import Slice, StridedSlice
from ovgpu.ops.pooling.pooling import MaxPool
from ovgpu.ops.quantization import Dequantize, FakeQuantize, Quantize
from ovgpu.passes._graph import HALVES, NodeBuilder, constant_of, redirect, users_of
from ovgpu.passes._steps import Steps
from ovgpu.passes._weights import Weights, weights_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

Array = np.ndarray[Any, Any]

MOVING = (Concat, Slice, Split, StridedSlice, Transpose, VariadicSplit)  # layers that choose or move elements
MAX_SUMMANDS = 1 << 16  # products of codes whose sum, and the correction, are below 2^31
OCTET = 8  # outputs of the device's kernel, which reads chunks of 16 channels
NEAREST = 0.499  # of a step, within which a number certainly gets the code


def quantize_layers(model: Model, device: bool = False, multiplies_i8: Callable[[], bool] = bool) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again.

    ``device``: whether it runs on a GPU. Where that does not multiply i8, the model is left as it is;
    ``multiplies_i8()`` is called only for models with such layers.
    """
    if _rewritten(model, device, multiplies_i8):
        model.validate_nodes_and_infer_types()


def _rewritten(model: Model, device: bool, multiplies_i8: Callable[[], bool]) -> bool:
    changed = any([_rewritten(body, device, multiplies_i8) for node in model.ops for body in bodies(node.op)])
    kinds = (Type.f32, *HALVES) if device else (Type.f32,)
    found = dict[Output, Steps]()  # the tensors that have codes
    products = list[tuple[Node, Weights, Steps]]()
    for node in model.ops:
        source: Any = node.sources[0] if node.sources else None
        steps = _kept(node, found) or Steps.of(node, kinds)
        if steps is not None:
            found |= dict.fromkeys(node.ports, steps)
        elif source in found and (weights := _weights(node, found[source])) is not None:
            products.append((node, weights, found[source]))
    of_codes = {node for node, weights, steps in products if not device or _suits_kernel(node, weights, steps)}
    if not of_codes or (device and not multiplies_i8()):
        return changed
    moved = _moved({node.sources[0] for node in of_codes}, found)
    users = users_of(model)
    codes, dequantized = dict[Output, Output](), dict[Output, Output]()
    for port, steps in found.items():
        node = port.node
        if port in codes or not (isinstance(node.op, FakeQuantize) or moved.intersection(node.ports)):
            continue
        if len(node.ports) == 1:
            codes[port] = _split(node, steps, codes, users, device)
        else:
            codes |= _parts(node, steps, codes, dequantized, device)
    for node, weights, steps in products:
        source = node.sources[0]
        if node not in of_codes:
            node.sources[1] = _decompressed(node, weights)
        elif device:
            _multiply_codes(node, codes[source], weights, steps)
        else:
            node.sources = [codes[source], _decompressed(node, weights, steps), *node.sources[2:]]
    model.changed()
    if dequantized:
        redirect(model, dequantized)
        model.changed()
    return True


def _kept(node: Node, found: Mapping[Output, Steps]) -> Steps | None:
    """Return the steps of a layer that gives elements of tensors with codes, or the greatest of some of them; None for
    other layers."""
    values = _values(node)
    steps = found.get(values[0]) if values else None
    if steps is None or any(s not in found or not steps.equals(found[s]) for s in values):
        return None
    if isinstance(node.op, MaxPool):
        return steps if len(node.ports) == 1 else None
    chooses = (
        isinstance(node.op, MOVING)
        or op_of(node).is_reshape
        or (
            isinstance(node.op, Interpolate4)
            and node.op.mode == "nearest"
            and not any((*node.op.pads_begin, *node.op.pads_end))
        )
    )
    return steps if chooses and not steps.varies else None


def _values(node: Node) -> list[Output]:
    """Return the inputs whose elements a layer may give."""
    return [s for s in (node.sources if isinstance(node.op, Concat) else node.sources[:1]) if s is not None]


def _weights(node: Node, steps: Steps) -> Weights | None:
    """Return the weights of a layer with kernels of i8 and scales, in which the steps can be, else None."""
    if isinstance(node.op, MatMul):
        found = weights_of(node.sources[1])
    elif isinstance(node.op, (Convolution, ConvolutionBackpropData)):
        found = weights_of(node.sources[1], ranks=range(3, 7), rows=node.op.leading - 1)
    else:
        return None
    if steps.varies and not isinstance(node.op, Convolution):
        return None
    if found is None or found.zero is not None or found.codes.spec.type != Type.i8:
        return None
    shape: Any = node.sources[1].spec.shape  # type: ignore[union-attr]
    return found if found.extents == shape else _reshaped(node, found, shape)


def _reshaped(node: Node, weights: Weights, shape: tuple[int, ...]) -> Weights:
    """Return weights of another shape with the same elements, such as those of groups that POT reshapes."""
    graph, scale = NodeBuilder(node), weights.scale
    codes = graph.constant(constant_of(weights.codes).reshape(shape), Type.i8)
    if scale is not None:
        value = np.broadcast_to(scale[1], weights.extents).reshape(shape)
        for axis in range(value.ndim):
            first = value.take([0], axis)
            value = first if (value == first).all() else value
        scale = scale[0], value
    return replace(weights, codes=codes, scale=scale, extents=shape)


def _suits_kernel(node: Node, weights: Weights, steps: Steps) -> bool:
    """Return whether the device's kernel takes the layer: it reads 16 adjacent codes at a time."""
    op, shape = node.op, weights.extents
    by_outputs: tuple[int, ...]
    if isinstance(op, MatMul):
        (outputs, depth), by_outputs = (shape, (shape[0], 1)) if op.transpose_b else (shape[::-1], (1, shape[1]))
        fits = not op.transpose_a and (node.ports[0].spec.rank or 0) >= 2
    else:
        (outputs, depth), by_outputs = shape[:2], (shape[0], *(1 for _ in shape[1:]))
        fits = isinstance(op, Convolution) and op.leading == 2 and len(shape) == IMAGE_RANK
    scale = () if weights.scale is None else weights.scale[1].shape
    fits &= not steps.varies and not outputs % OCTET and not depth % CHUNK_BYTES
    fits &= prod(shape) <= outputs * MAX_SUMMANDS
    return fits and (prod(scale) == 1 or scale == by_outputs)


def _moved(ports: Iterable[Output | None], found: Mapping[Output, Steps]) -> set[Output]:
    """Return the ports, and those that they are moved from, which have codes."""
    moved, waiting = set[Output](), list(ports)
    while waiting:
        port = waiting.pop()
        if port is not None and port in found and port not in moved:
            moved.add(port)
            waiting += _values(port.node)
    return moved


def _split(
    node: Node, steps: Steps, codes: Mapping[Output, Output], users: Mapping[Output, list[Node]], device: bool
) -> Output:
    """Make the node the Dequantize of its codes, and return these."""
    source, graph = node.sources[0], NodeBuilder(node)
    assert source is not None
    zero, kind = (steps.zero, Type.i8) if device else (0, Type.f32)
    unit, *zeros = _scale(graph, steps, device)
    if isinstance(node.op, FakeQuantize):
        if _clips_no_more(source.node.op, steps) and users[source] == [node]:
            source = source.node.sources[0]
        op = Quantize(low=steps.low + zero, high=steps.high + zero, odd=bool(steps.low % 2), kind=kind)
        found: Output = graph.add(op, source, graph.constant(1 / steps.step, Type.f32), *zeros)
    else:
        found = graph.add(op_of(node), *_of_codes(node, codes))
    node.op, node.sources = Dequantize(kind=node.ports[0].spec.type), [found, unit, *zeros]
    return found


def _of_codes(node: Node, codes: Mapping[Output, Output]) -> list[Output | None]:
    """Return the inputs of a layer with codes in place of values."""
    values = _values(node)
    return [codes[s] if s in values else s for s in node.sources]


def _parts(
    node: Node, steps: Steps, codes: Mapping[Output, Output], dequantized: dict[Output, Output], device: bool
) -> dict[Output, Output]:
    """Return the codes of the results of a layer with several, and add what takes the place of the results."""
    graph = NodeBuilder(node)
    found = dict(zip(node.ports, graph.add(op_of(node), *_of_codes(node, codes), outputs=len(node.ports))))
    for port, part in found.items():
        dequantized[port] = graph.add(Dequantize(kind=port.spec.type), part, *_scale(graph, steps, device))
    return found


def _scale(graph: NodeBuilder, steps: Steps, device: bool) -> list[Output]:
    """Return the further inputs of a Dequantize: the unit, and the code that stands for 0 if it is another one."""
    zeros = [graph.constant(steps.zero, Type.f32)] if device and steps.zero else []
    return [graph.constant(steps.unit, Type.f32), *zeros]


def _clips_no_more(op: Any, steps: Steps) -> bool:
    """Return whether what the activation clips gets the same codes without it."""
    if isinstance(op, Clamp):
        low, high = op.min / steps.step, op.max / steps.step
        return bool((low < steps.low + NEAREST).all() and (high > steps.high - NEAREST).all())
    return isinstance(op, Relu) and not steps.low


def _decompressed(node: Node, weights: Weights, steps: Steps | None = None) -> Output:
    """Return the weights as a constant of f32, times the steps of the codes that they multiply, if given."""
    codes = constant_of(weights.codes)
    value = codes * (np.float32(1) if weights.scale is None else decode(weights.scale[1]).astype(np.float32))
    if steps is not None and steps.varies:
        groups, _, channels, *taps = node.op.grouped(value.shape)  # type: ignore[attr-defined]
        unit = np.broadcast_to(steps.unit.ravel(), groups * channels).reshape(groups, 1, channels, *(1 for _ in taps))
        value = (value.reshape(groups, -1, channels, *taps) * unit).reshape(value.shape)
    elif steps is not None:
        value *= steps.unit
    let_go(codes)
    kind = node.ports[0].spec.type
    return NodeBuilder(node).constant(encode(value, kind), kind)


def _multiply_codes(node: Node, codes: Output, weights: Weights, steps: Steps) -> None:
    """Make the node a product of codes of i8, whose weights have the outputs first and the channels last."""
    op, value, kind = node.op, constant_of(weights.codes), node.ports[0].spec.type
    if isinstance(op, Convolution):
        node.op = QuantizedConvolution(convolution=op, zero=steps.zero, kind=kind)
        moved = np.ascontiguousarray(np.moveaxis(value, 1, -1))
    elif isinstance(op, MatMul):
        node.op = QuantizedMatMul(zero=steps.zero, kind=kind)
        moved = np.ascontiguousarray(value if op.transpose_b else value.T)
    let_go(value)
    outputs = len(moved)
    scale = np.float32(1) if weights.scale is None else decode(weights.scale[1]).astype(np.float32).ravel()
    factor = np.broadcast_to(scale * np.float32(steps.unit), outputs)
    correction = steps.zero * moved.reshape(outputs, -1).sum(1, dtype=np.int32)
    graph = NodeBuilder(node)
    node.sources = [
        codes,
        graph.constant(moved, Type.i8),
        graph.constant(factor, Type.f32),
        graph.constant(correction, Type.i32),
    ]
