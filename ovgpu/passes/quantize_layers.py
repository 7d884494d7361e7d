"""FakeQuantize -> Convolution or MatMul with 8-bit weights, as nncf quantises models, becomes Quantize -> the same.

    FakeQuantize -> [MaxPool, Reshape, Concat ...] -> Convolution <- Multiply by scales <- Convert <- Constant of i8

If all levels of a FakeQuantize are whole multiples of one step, it is split into a Quantize, whose codes are whole
numbers, and a Dequantize, which multiplies the codes by the step. Layers that only select or move elements do so with
codes. Layers with 8-bit weights take codes, and their weights are multiplied by the step. All other layers take the
dequantised values. NumPy multiplies codes in f32, a device in i8 if its kernel supports the layer. If it does not, the
layer's weights are decompressed here.
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

MOVING = (Concat, Slice, Split, StridedSlice, Transpose, VariadicSplit)  # layers that select or move elements
MAX_SUMMANDS = 1 << 16  # products of codes whose sum, and its correction, are certainly below 2^31
OUTPUT_MULTIPLE = 8  # the device's kernel computes outputs in groups of this many
NEAREST = 0.499  # of a step: a number this close to a level is certainly rounded to it


def quantize_layers(model: Model, device: bool = False, multiplies_i8: Callable[[], bool] = bool) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again.

    ``device``: whether the model runs on a GPU. A GPU that does not multiply i8 leaves the model as it is.
    ``multiplies_i8()`` is called only for models with layers that could multiply codes.
    """
    if _rewrite_all(model, device, multiplies_i8):
        model.validate_nodes_and_infer_types()


def _rewrite_all(model: Model, device: bool, multiplies_i8: Callable[[], bool]) -> bool:
    """Rewrite the model and its bodies; return whether anything changed."""
    changed = any([_rewrite_all(body, device, multiplies_i8) for node in model.ops for body in bodies(node.op)])
    dtypes = (Type.f32, *HALVES) if device else (Type.f32,)
    steps_of = dict[Output, Steps]()  # tensors that can be codes -> their steps
    products = list[tuple[Node, Weights, Steps]]()  # layers that could multiply codes
    for node in model.ops:
        source: Any = node.sources[0] if node.sources else None
        steps = _kept_steps(node, steps_of) or Steps.of(node, dtypes)
        if steps is not None:
            steps_of |= dict.fromkeys(node.ports, steps)
        elif source in steps_of and (weights := _match_weights(node, steps_of[source])) is not None:
            products.append((node, weights, steps_of[source]))
    code_products = {node for node, weights, steps in products if not device or _suits_kernel(node, weights, steps)}
    if not code_products or (device and not multiplies_i8()):
        return changed
    needed = _needed_codes({node.sources[0] for node in code_products}, steps_of)
    users = users_of(model)
    codes, dequantized = dict[Output, Output](), dict[Output, Output]()
    for port, steps in steps_of.items():
        node = port.node
        if port in codes or not (isinstance(node.op, FakeQuantize) or needed.intersection(node.ports)):
            continue
        if len(node.ports) == 1:
            codes[port] = _split(node, steps, codes, users, device)
        else:
            codes |= _split_parts(node, steps, codes, dequantized, device)
    for node, weights, steps in products:
        source = node.sources[0]
        if node not in code_products:
            node.sources[1] = _decompress(node, weights)
        elif device:
            _multiply_codes(node, codes[source], weights, steps)
        else:
            node.sources = [codes[source], _decompress(node, weights, steps), *node.sources[2:]]
    model.changed()
    if dequantized:
        redirect(model, dequantized)
        model.changed()
    return True


def _kept_steps(node: Node, steps_of: Mapping[Output, Steps]) -> Steps | None:
    """Return the steps of a layer that only selects, moves or max-pools elements of tensors that can be codes.

    Return None for other layers, and if the inputs have different steps.
    """
    values = _value_inputs(node)
    steps = steps_of.get(values[0]) if values else None
    if steps is None or any(s not in steps_of or not steps.equals(steps_of[s]) for s in values):
        return None
    if isinstance(node.op, MaxPool):
        return steps if len(node.ports) == 1 else None
    selects = (
        isinstance(node.op, MOVING)
        or op_of(node).is_reshape
        or (
            isinstance(node.op, Interpolate4)
            and node.op.mode == "nearest"
            and not any((*node.op.pads_begin, *node.op.pads_end))
        )
    )
    return steps if selects and not steps.varies else None


def _value_inputs(node: Node) -> list[Output]:
    """Return the inputs whose elements a layer that only selects or moves elements may return."""
    return [s for s in (node.sources if isinstance(node.op, Concat) else node.sources[:1]) if s is not None]


def _match_weights(node: Node, steps: Steps) -> Weights | None:
    """Return the i8 weights of a product or convolution, if they have no zero point and can be multiplied by the steps;
    else None."""
    if isinstance(node.op, MatMul):
        weights = weights_of(node.sources[1])
    elif isinstance(node.op, (Convolution, ConvolutionBackpropData)):
        weights = weights_of(node.sources[1], ranks=range(3, 7), rows=node.op.leading - 1)
    else:
        return None
    if steps.varies and not isinstance(node.op, Convolution):
        return None
    if weights is None or weights.zero is not None or weights.codes.spec.type != Type.i8:
        return None
    shape: Any = node.sources[1].spec.shape  # type: ignore[union-attr]
    return weights if weights.extents == shape else _reshape(node, weights, shape)


def _reshape(node: Node, weights: Weights, shape: tuple[int, ...]) -> Weights:
    """Return the weights in another shape. POT, for example, reshapes the weights of grouped convolutions."""
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
    """Return whether the device's kernel supports the layer. It reads chunks of 16 adjacent codes."""
    op, shape = node.op, weights.extents
    by_outputs: tuple[int, ...]
    if isinstance(op, MatMul):
        (outputs, depth), by_outputs = (shape, (shape[0], 1)) if op.transpose_b else (shape[::-1], (1, shape[1]))
        fits = not op.transpose_a and (node.ports[0].spec.rank or 0) >= 2
    else:
        (outputs, depth), by_outputs = shape[:2], (shape[0], *(1 for _ in shape[1:]))
        fits = isinstance(op, Convolution) and op.leading == 2 and len(shape) == IMAGE_RANK
    scale = () if weights.scale is None else weights.scale[1].shape
    fits &= not steps.varies and not outputs % OUTPUT_MULTIPLE and not depth % CHUNK_BYTES
    fits &= prod(shape) <= outputs * MAX_SUMMANDS
    return fits and (prod(scale) == 1 or scale == by_outputs)


def _needed_codes(ports: Iterable[Output | None], steps_of: Mapping[Output, Steps]) -> set[Output]:
    """Return ``ports`` and the tensors whose codes are needed to compute theirs, as far as they can be codes."""
    needed, waiting = set[Output](), list(ports)
    while waiting:
        port = waiting.pop()
        if port is not None and port in steps_of and port not in needed:
            needed.add(port)
            waiting += _value_inputs(port.node)
    return needed


def _split(
    node: Node, steps: Steps, codes: Mapping[Output, Output], users: Mapping[Output, list[Node]], device: bool
) -> Output:
    """Add a layer that computes the node's result as codes, and make the node their Dequantize. Return the codes."""
    source, graph = node.sources[0], NodeBuilder(node)
    assert source is not None
    zero, dtype = (steps.zero, Type.i8) if device else (0, Type.f32)
    unit, *zeros = _dequantize_inputs(graph, steps, device)
    if isinstance(node.op, FakeQuantize):
        if _is_redundant_clip(source.node.op, steps) and users[source] == [node]:
            source = source.node.sources[0]
        op = Quantize(low=steps.low + zero, high=steps.high + zero, odd=bool(steps.low % 2), dtype=dtype)
        quantized: Output = graph.add(op, source, graph.constant(1 / steps.step, Type.f32), *zeros)
    else:
        quantized = graph.add(op_of(node), *_with_codes(node, codes))
    node.op, node.sources = Dequantize(dtype=node.ports[0].spec.type), [quantized, unit, *zeros]
    return quantized


def _with_codes(node: Node, codes: Mapping[Output, Output]) -> list[Output | None]:
    """Return the inputs of a layer, with codes in place of values."""
    values = _value_inputs(node)
    return [codes[s] if s in values else s for s in node.sources]


def _split_parts(
    node: Node, steps: Steps, codes: Mapping[Output, Output], dequantized: dict[Output, Output], device: bool
) -> dict[Output, Output]:
    """Add the layer that computes all results of the node as codes, and return a dict from the results to their codes.

    Add a Dequantize for each result to ``dequantized``, which replaces the result.
    """
    graph = NodeBuilder(node)
    parts = dict(zip(node.ports, graph.add(op_of(node), *_with_codes(node, codes), outputs=len(node.ports))))
    for port, part in parts.items():
        dequantized[port] = graph.add(Dequantize(dtype=port.spec.type), part, *_dequantize_inputs(graph, steps, device))
    return parts


def _dequantize_inputs(graph: NodeBuilder, steps: Steps, device: bool) -> list[Output]:
    """Return the inputs of a Dequantize behind the codes: the unit, and the code that stands for 0 if that is not 0."""
    zeros = [graph.constant(steps.zero, Type.f32)] if device and steps.zero else []
    return [graph.constant(steps.unit, Type.f32), *zeros]


def _is_redundant_clip(op: Any, steps: Steps) -> bool:
    """Return whether a FakeQuantize with these steps makes the activation ``op`` before it redundant."""
    if isinstance(op, Clamp):
        low, high = op.min / steps.step, op.max / steps.step
        return bool((low < steps.low + NEAREST).all() and (high > steps.high - NEAREST).all())
    return isinstance(op, Relu) and not steps.low


def _decompress(node: Node, weights: Weights, steps: Steps | None = None) -> Output:
    """Return the weights as a constant of the node's type, times the steps of the codes if given."""
    codes = constant_of(weights.codes)
    value = codes * (np.float32(1) if weights.scale is None else decode(weights.scale[1]).astype(np.float32))
    if steps is not None and steps.varies:
        groups, _, channels, *taps = node.op.grouped(value.shape)  # type: ignore[attr-defined]
        unit = np.broadcast_to(steps.unit.ravel(), groups * channels).reshape(groups, 1, channels, *(1 for _ in taps))
        value = (value.reshape(groups, -1, channels, *taps) * unit).reshape(value.shape)
    elif steps is not None:
        value *= steps.unit
    let_go(codes)
    dtype = node.ports[0].spec.type
    return NodeBuilder(node).constant(encode(value, dtype), dtype)


def _multiply_codes(node: Node, codes: Output, weights: Weights, steps: Steps) -> None:
    """Make the node a product of i8 codes. The kernels read weights whose first axis is the outputs and whose last axis
    is the channels."""
    op, value, dtype = node.op, constant_of(weights.codes), node.ports[0].spec.type
    if isinstance(op, Convolution):
        node.op = QuantizedConvolution(convolution=op, zero=steps.zero, dtype=dtype)
        laid_out = np.ascontiguousarray(np.moveaxis(value, 1, -1))
    elif isinstance(op, MatMul):
        node.op = QuantizedMatMul(zero=steps.zero, dtype=dtype)
        laid_out = np.ascontiguousarray(value if op.transpose_b else value.T)
    let_go(value)
    outputs = len(laid_out)
    scale = np.float32(1) if weights.scale is None else decode(weights.scale[1]).astype(np.float32).ravel()
    factor = np.broadcast_to(scale * np.float32(steps.unit), outputs)
    # The kernel multiplies codes without subtracting their zero point; it subtracts this sum afterwards.
    correction = steps.zero * laid_out.reshape(outputs, -1).sum(1, dtype=np.int32)
    graph = NodeBuilder(node)
    node.sources = [
        codes,
        graph.constant(laid_out, Type.i8),
        graph.constant(factor, Type.f32),
        graph.constant(correction, Type.i32),
    ]
