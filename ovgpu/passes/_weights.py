"""Compressed weights in a model: constants of codes, scales and zero points that make up one or more matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ovgpu.ir._constants import PackedConstant
from ovgpu.model import Node, Output
from ovgpu.ops.arithmetic.arithmetic import Multiply, Subtract
from ovgpu.ops.base.op import evaluate, op_of
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert, Identity, converted
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.movement.gather import Gather
from ovgpu.passes._derived import derived
from ovgpu.passes._graph import HALVES, operands
from ovgpu.symbolic import Sym
from ovgpu.types import Type
from ovgpu.types.packing import pack, unpack

Array = np.ndarray[Any, Any]

MIN_CODES = 2048  # smaller weights are folded
MIN_CODES_PER_SCALE = 16  # scales are repeated to fit the kernels' blocks only as long as blocks have this many codes

COMPUTE_TYPES = (Type.f32, *HALVES)
BYTE_TYPES = (Type.u8, Type.i8, Type.f8e4m3, Type.f8e5m2)
NIBBLE_TYPES = (Type.u4, Type.i4, Type.nf4, Type.f4e2m1)
# Storage types of scales and zero points by their type in the model, exact for all values; others become f32.
QUANT_PARAM_TYPES = {dtype: dtype for dtype in (Type.f16, Type.bf16, Type.u8, Type.i8)} | {
    Type.u4: Type.u8,
    Type.i4: Type.i8,
    Type.f8e8m0: Type.bf16,
    Type.f8e4m3: Type.f16,
    Type.f8e5m2: Type.f16,
}

ConstantCache = dict[tuple[Output, tuple[int, int]], Output]
"""New constants, by the port of the model that they replace and the shape of the matrix that it belongs to."""

QuantParams = tuple[Output, Array]  # scales or zero points: their port and their values


@dataclass(frozen=True)
class Weights:
    """Compressed matrix of ``shape``, which may be a ``batch`` of matrices below each other.

    ``codes`` have the shape ``extents`` in the model; scale and zero point broadcast to it.
    """

    codes: Output
    table: tuple[float, ...]
    scale: QuantParams | None
    zero: QuantParams | None
    shape: tuple[int, int]
    extents: tuple[int, ...]
    batch: tuple[int, ...]

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    def packed(self, axis: int, unit: int = 1) -> Packed | None:
        """Return the storage format; None for small weights, and if kernels cannot cut tiles of whole units.

        Kernels cut tiles along ``axis``. Along it, scales and zero points must have one element, one per unit or
        matrix, or one per row or column.
        """
        dtype, (rows, columns) = self.codes.spec.type, self.shape
        if rows * columns < MIN_CODES or (dtype in NIBBLE_TYPES and axis and columns % 2):
            return None
        if self.matrices > 1 and dtype in NIBBLE_TYPES and rows // self.matrices * columns % 2:
            return None
        by_blocks = [self._by_blocks(params[1]) for params in (self.scale, self.zero) if params is not None]
        whole = (1, columns // unit, columns) if axis else (1, self.matrices, rows)
        if any(values is None or values.shape[axis] not in whole for values in by_blocks):
            return None
        return Packed(dtype, rows, columns, self.table, self.matrices)

    def constants(self, cache: ConstantCache) -> list[Output | None]:
        """Return codes, scale and zero point as constants, which layers with the same weights share by ``cache``."""
        codes = self.codes, self.shape
        if codes not in cache:
            cache[codes] = _constant(_bytes(*codes), self.codes.node)
        constants: list[Output | None] = [cache[codes]]
        for params in (self.scale, self.zero):
            key = None if params is None else (params[0], self.shape)
            if params is not None and key is not None and key not in cache:
                value = self._by_blocks(params[1])
                assert value is not None
                cache[key] = _constant(value, params[0].node)
            constants.append(None if key is None else cache[key])
        return constants

    def _by_blocks(self, value: Array) -> Array | None:
        """Return scales or zero points as a matrix with one element per block of rows and columns, else None.

        Elements are repeated only if at least ``MIN_CODES_PER_SCALE`` codes per element remain.
        """
        padded = (1,) * (len(self.extents) - value.ndim) + value.shape
        for cut in range(len(padded) + 1):
            if prod(self.extents[:cut]) == self.shape[0] and prod(self.extents[cut:]) == self.shape[1]:
                rows, columns = (_blocks(self.extents[part], padded[part]) for part in (slice(cut), slice(cut, None)))
                size = prod(rows) * prod(columns)
                if size == value.size or size * MIN_CODES_PER_SCALE <= prod(self.shape):
                    return np.broadcast_to(value.reshape(padded), (*rows, *columns)).reshape(prod(rows), prod(columns))
        return None


def _blocks(extents: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers of blocks along the axes of codes, whose shape is ``extents``, for parameters of ``shape``.

    They are the extents up to the last axis along which the parameters vary, then 1.
    """
    last = max((i + 1 for i, n in enumerate(shape) if n > 1), default=0)
    return (*extents[:last], *(1 for _ in shape[last:]))


def weights_of(
    port: Output | None, rounded: bool = False, ranks: Sequence[int] = (2,), rows: int = -1
) -> Weights | None:
    """Return the compressed matrix, or batch of matrices, that a port holds, None if it holds none.

    The axes before index ``rows`` become rows, the others columns. If ``rounded``, values of 4-bit codes are rounded to
    the type that they are converted to.
    """
    shape: Any = None if port is None else port.spec.shape
    if port is None or shape is None or len(shape) not in ranks or any(isinstance(d, Sym) for d in shape):
        return None
    inner = _skip_conversions(port, reshapes=True)
    for product, scale in (*operands(inner.node, Multiply), (inner, None)):
        scaled = _skip_conversions(product)
        for difference, zero in (*operands(scaled.node, Subtract, ordered=True), (scaled, None)):
            codes = _codes(_skip_conversions(difference), rounded)
            if codes is None or codes[0].spec.shape != inner.spec.shape:
                continue
            ports = scale, zero
            values = [None if port is None else quant_params(port) for port in ports]
            params = [None if p is None or v is None else (p, v) for p, v in zip(ports, values)]
            if [p is None for p in params] == [p is None for p in ports]:
                extents: Any = codes[0].spec.shape
                return Weights(
                    *codes, params[0], params[1], (prod(shape[:rows]), prod(shape[rows:])), extents, shape[:rows][:-1]
                )
    return None


def _skip_conversions(port: Output, reshapes: bool = False) -> Output:
    """Return the input of a chain of conversions that only round values; with ``reshapes``, skip reshapes as well."""
    while port.node.op.name in ("Identity", "Convert") or (reshapes and op_of(port.node).is_reshape):
        source = port.node.sources[0]
        if source is None or (source.spec.type in COMPUTE_TYPES) != (port.spec.type in COMPUTE_TYPES):
            break  # the conversion of codes to floats
        if isinstance(port.node.op, Convert) and isinstance(source.node.op, Constant) and source.spec.type in HALVES:
            break
        port = source
    return port


def _codes(port: Output, rounded: bool) -> tuple[Output, tuple[float, ...]] | None:
    """Return the constant of codes that is converted to this port, and the values of 4-bit or codebook codes.

    The values are empty for codes that are numbers themselves. Return None if no codes are converted here.
    """
    node, source = port.node, port.node.sources[0] if port.node.sources else None
    if source is None or port.spec.type not in COMPUTE_TYPES:
        return None
    dtype = source.spec.type
    if isinstance(node.op, Convert) and isinstance(source.node.op, Constant):
        if dtype in NIBBLE_TYPES:
            every = unpack(pack(np.arange(16, dtype=np.uint8), Type.u4), dtype, (16,))
            return source, _floats(converted(NUMPY, every, port.spec.type if rounded else Type.f32))
        return (source, ()) if dtype in BYTE_TYPES or (dtype in HALVES and port.spec.type not in HALVES) else None
    if isinstance(node.op, Gather) and node.sources[1] is not None:
        indices = _skip_conversions(node.sources[1])
        book, count = quant_params(source), {Type.u4: 16, Type.u8: 256}.get(indices.spec.type, 0)
        if isinstance(indices.node.op, Constant) and book is not None and book.ndim == 1 and len(book) <= count:
            return indices, (*_floats(book), *[0.0] * (count - len(book)))  # Gather reads 0 beyond the codebook
    return None


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(decode(values).astype(np.float32).tolist())


def quant_params(port: Output) -> Array | None:
    """Return the constant value of a port in a type that kernels read, else None.

    A Convert of a constant has the value of the constant, in the constant's own type if kernels read that.
    """
    op, sources = op_of(port.node), port.node.sources
    if isinstance(op, Constant):
        dtype, stored = QUANT_PARAM_TYPES.get(op.element_type, Type.f32), op.value
        source = op.packed if isinstance(op, PackedConstant) else stored
        rule = "quant_params", op.element_type, stored.shape, dtype
        return derived(rule, [source], lambda: encode(decode(stored), dtype))
    if not isinstance(op, (Convert, Identity, Multiply)) or port.spec.type not in COMPUTE_TYPES:
        return None
    values = [None if s is None else quant_params(s) for s in sources]
    if any(v is None for v in values):
        return None
    if isinstance(op, Convert) and sources[0] is not None and isinstance(sources[0].node.op, Constant):
        return values[0]
    evaluated: Array = evaluate(op, NUMPY, values, [port.spec.type])[0]
    return evaluated


def _constant(value: Array, source: Node) -> Output:
    op: Any = Constant(element_type=Type.of(value.dtype), value=value)
    port = Node(op, [], name=source.friendly_name, layer_id=source.layer_id).ports[0]
    port.spec = op.infer_specs()[0]
    return port


def _bytes(port: Output, shape: tuple[int, int]) -> Array:
    """Return the codes as `Packed` takes them, without a copy where possible."""
    op: Any = port.node.op
    if op.element_type in NIBBLE_TYPES:
        return op.packed if isinstance(op, PackedConstant) else pack(op.value, op.element_type)
    value: Array = op.value.reshape(shape)
    return value.view(np.uint8) if op.element_type in (Type.f8e4m3, Type.f8e5m2) else value
