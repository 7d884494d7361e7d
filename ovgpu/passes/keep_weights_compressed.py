"""Compressed weights -> CompressedMatMul, CompressedConvolution or CompressedGather, which decompress parts as needed.

    Constant -> Convert -> [Subtract a zero point] -> [Multiply by a scale] -> [Reshape] -> [Convert] -> MatMul, ...

Such layers become part of the layer that takes their result: a MatMul, a Gather along axis 0, or a convolution with
this kernel. The constant has type u8, i8, u4, i4, nf4, f8e4m3, f8e5m2 or f4e2m1, or holds indices of 4 or 8 bits into a
codebook. For MatMul and Gather it may also have type f16 or bf16, with a Convert alone. Scales and zero points belong
to rows, columns, groups of them, or the whole matrix.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ovgpu.model import Model, Node, bodies
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused.compressed import CompressedGather, CompressedMatMul, SwapAxes
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.gather import Gather
from ovgpu.passes._graph import HALVES, NodeBuilder
from ovgpu.passes._weights import COMPUTE_TYPES, ConstantCache, weights_of
from ovgpu.types import Type

# Codes that are decompressed at a time.
TILE = 1 << 19  # by NumPy; with fewer codes, threads wait for each other at every call
KERNEL_TILE = 1 << 20  # by NumPy for a convolution, which gathers its columns again for each tile
DEVICE_TILE = 1 << 22  # by a GPU, in whose L2 cache the tile fits


def keep_weights_compressed(model: Model, device: bool, halves: bool, cache: ConstantCache | None = None) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand.

    ``device``: whether the model runs on a GPU. Without ``halves``, products with 16-bit weights are left alone;
    convolutions with 16-bit weights always are. ``cache``: constants that layers with the same weights share.
    """
    cache = {} if cache is None else cache
    for node in model.ops:
        for body in bodies(node.op):
            keep_weights_compressed(body, device, halves, cache)
        if isinstance(node.op, MatMul):
            _rewrite_matmul(node, device, halves, cache)
        elif isinstance(node.op, Gather):
            _rewrite_gather(node, cache)
        elif isinstance(node.op, (Convolution, ConvolutionBackpropData)):
            _rewrite_convolution(node, device, cache)
    model.changed()


def _rewrite_matmul(node: Node, device: bool, halves: bool, cache: ConstantCache) -> None:
    """Rewrite a MatMul by compressed weights on either side. ``W @ x`` becomes the transpose of ``x^T @ W^T``."""
    op: Any = node.op
    (x, weights), left = (node.sources[0], weights_of(node.sources[1], ranks=(2, 3))), False
    transpose_x, transpose = op.transpose_a, op.transpose_b
    if weights is None:
        (weights, x), left = (weights_of(node.sources[0], ranks=(2, 3)), node.sources[1]), True
        transpose_x, transpose = not op.transpose_b, not op.transpose_a
    if weights is None or x is None or x.spec.type not in COMPUTE_TYPES:
        return
    rank = x.spec.rank
    if (weights.matrices > 1 and (rank or 4) > 3) or (weights.batch and left and rank is None):
        return
    packed = weights.packed(0 if transpose else 1)
    if packed is not None and (halves or packed.dtype not in HALVES):
        product = CompressedMatMul(
            weights=packed,
            transpose=transpose,
            tile=DEVICE_TILE if device else TILE,
            device=device,
            batch=weights.batch,
        )
        graph = NodeBuilder(node)
        inputs = [graph.add(SwapAxes(), x) if transpose_x else x, *weights.constants(cache)]
        if left and not (weights.batch and rank == 1):
            node.op, node.sources = SwapAxes(), [graph.add(product, *inputs)]
        else:
            node.op, node.sources = product, inputs


def _rewrite_gather(node: Node, cache: ConstantCache) -> None:
    port, indices, axis = node.sources
    axis_value = None if axis is None else axis.spec.constant
    if port is None or axis_value is None or axis_value.size != 1 or axis_value.item() not in (0, -2):
        return
    weights = None if getattr(node.op, "batch_dims", 0) else weights_of(port, rounded=True)
    packed = None if weights is None else weights.packed(0)
    if weights is not None and packed is not None:
        codes, *quant_params = weights.constants(cache)
        node.op = CompressedGather(weights=packed, dtype=port.spec.type)
        node.sources = [codes, indices, *quant_params]


def _rewrite_convolution(node: Node, device: bool, cache: ConstantCache) -> None:
    op: Any = node.op
    x, port, *target = node.sources
    weights = weights_of(port, ranks=range(3, 7), rows=op.leading - 1)
    shape: Any = None if port is None else port.spec.shape
    if weights is None or x is None or x.spec.type not in COMPUTE_TYPES:
        return
    packed = weights.packed(int(isinstance(op, ConvolutionBackpropData)), prod(shape[op.leading :]))
    if packed is not None and packed.dtype not in HALVES:
        tile = DEVICE_TILE if device else KERNEL_TILE
        convolution = CompressedConvolution(convolution=op, weights=packed, kernel=shape, tile=tile, device=device)
        inputs = [*weights.constants(cache), *target]
        if device or x.spec.type == Type.f32:
            node.op, node.sources = convolution, [x, *inputs]
        else:
            graph = NodeBuilder(node)
            upcast = graph.add(Convert(destination_type=Type.f32), x)
            node.op, node.sources = Convert(destination_type=x.spec.type), [graph.add(convolution, upcast, *inputs)]
