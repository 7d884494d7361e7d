"""Weights that are stored in fewer bits than they compute in stay so: layers decompress what they need of them.

    Constant -> Convert -> [Subtract a zero point] -> [Multiply by a scale] -> [Reshape] -> [Convert] -> MatMul, ...

in front of an input of a MatMul, the kernel of a convolution, or a Gather along axis 0, become part of it. The
constant is of u8, i8, u4, i4, nf4, f8e4m3, f8e5m2 or f4e2m1, numbers of 4 or 8 bits in a codebook, or f16 and bf16,
which take no more than the Convert; scales and zero points belong to rows, columns, groups of them, or all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ovgpu.ir._constants import PackedConstant
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Multiply, Subtract
from ovgpu.ops.base.op import evaluate, op_of
from ovgpu.ops.base.storage import decode, encode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert, Identity, converted
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused.compressed import CompressedGather, CompressedMatMul, SwapAxes
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.indexing import Gather
from ovgpu.passes._graph import HALVES, Graph, operands
from ovgpu.passes.fuse_reshape import RESHAPES
from ovgpu.symbolic import Sym
from ovgpu.types import Type
from ovgpu.types.packing import pack, unpack

Array = np.ndarray[Any, Any]

LEAST = 2048  # codes: smaller weights are folded
REPEATED = 16  # codes for each scale at least, if scales have to be repeated
TILE = 1 << 19  # codes that NumPy decompresses at a time: fewer, and threads wait for each other at every call
KERNEL_TILE = 1 << 20  # likewise of a convolution, which gathers its columns again for each tile
DEVICE_TILE = 1 << 22  # likewise a GPU, in whose L2 they fit

COMPUTED = (Type.f32, *HALVES)
BYTES = (Type.u8, Type.i8, Type.f8e4m3, Type.f8e5m2)
NIBBLES = (Type.u4, Type.i4, Type.nf4, Type.f4e2m1)
# The types in which scales and zero points are kept, which hold their values exactly; others become f32.
TERMS = {kind: kind for kind in (Type.f16, Type.bf16, Type.u8, Type.i8)} | {
    Type.u4: Type.u8, Type.i4: Type.i8, Type.f8e8m0: Type.bf16, Type.f8e4m3: Type.f16, Type.f8e5m2: Type.f16}

Made = dict[tuple[Output, tuple[int, int]], Output]
"""Constants that stand for those of the model, and belong to matrices of these shapes."""


def compressed_weights(model: Model, device: bool, halves: bool, made: Made | None = None) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred.

    ``device``: whether for a GPU; without ``halves``, products with weights of 16 bits are left alone. ``made``: what
    matrices share that are used in several places.
    """
    made = {} if made is None else made
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                compressed_weights(body, device, halves, made)
        if isinstance(node.op, MatMul):
            _product(node, device, halves, made)
        elif isinstance(node.op, Gather):
            _rows(node, made)
        elif isinstance(node.op, (Convolution, ConvolutionBackpropData)):
            _kernel(node, device, halves, made)
    model.changed()


def _product(node: Node, device: bool, halves: bool, made: Made) -> None:
    """``W @ x`` is the transpose of ``x^T @ W^T``."""
    op: Any = node.op
    (x, weights), left = (node.inputs[0], _weights(node.inputs[1], ranks=(2, 3))), False
    transpose_x, transpose = op.transpose_a, op.transpose_b
    if weights is None:
        (weights, x), left = (_weights(node.inputs[0], ranks=(2, 3)), node.inputs[1]), True
        transpose_x, transpose = not op.transpose_b, not op.transpose_a
    if weights is None or x is None or x.spec.type not in COMPUTED:
        return
    rank = x.spec.rank
    if (weights.matrices > 1 and (rank or 4) > 3) or (weights.batch and left and rank is None):
        return
    packed = weights.packed(0 if transpose else 1)
    if packed is not None and (halves or packed.kind not in HALVES):
        product = CompressedMatMul(weights=packed, transpose=transpose, tile=DEVICE_TILE if device else TILE,
                                   device=device, batch=weights.batch)
        graph = Graph(node)
        inputs = [graph.add(SwapAxes(), x) if transpose_x else x, *weights.constants(made)]
        if left and not (weights.batch and rank == 1):
            node.op, node.inputs = SwapAxes(), [graph.add(product, *inputs)]
        else:
            node.op, node.inputs = product, inputs


def _rows(node: Node, made: Made) -> None:
    port, indices, axis = node.inputs
    where = None if axis is None else axis.spec.constant
    if port is None or where is None or where.size != 1 or where.item() not in (0, -2):
        return
    weights = None if getattr(node.op, "batch_dims", 0) else _weights(port, rounded=True)
    packed = None if weights is None else weights.packed(0)
    if weights is not None and packed is not None:
        codes, *terms = weights.constants(made)
        node.op, node.inputs = CompressedGather(weights=packed, kind=port.spec.type), [codes, indices, *terms]


def _kernel(node: Node, device: bool, halves: bool, made: Made) -> None:
    op: Any = node.op
    x, port, *target = node.inputs
    weights = _weights(port, ranks=range(3, 7), rows=op.leading - 1)
    shape: Any = None if port is None else port.spec.shape
    if weights is None or x is None or x.spec.type not in COMPUTED:
        return
    packed = weights.packed(int(isinstance(op, ConvolutionBackpropData)), prod(shape[op.leading :]))
    if packed is not None and (halves or packed.kind not in HALVES):
        tile = DEVICE_TILE if device else KERNEL_TILE
        convolution = CompressedConvolution(convolution=op, weights=packed, kernel=shape, tile=tile, device=device)
        inputs = [*weights.constants(made), *target]
        if device or x.spec.type == Type.f32:
            node.op, node.inputs = convolution, [x, *inputs]
        else:
            graph = Graph(node)
            wide = graph.add(Convert(destination_type=Type.f32), x)
            node.op, node.inputs = Convert(destination_type=x.spec.type), [graph.add(convolution, wide, *inputs)]


def _constant(value: Array, source: Node) -> Output:
    op: Any = Constant(element_type=Type.of(value.dtype), value=value)
    port = Node(op, [], name=source.friendly_name, layer_id=source.layer_id).outputs[0]
    port.spec = op.infer()[0]
    return port


def _bytes(port: Output, shape: tuple[int, int]) -> Array:
    """The codes as `Packed` takes them, in the memory in which they are."""
    op: Any = port.node.op
    if op.element_type in NIBBLES:
        return op.packed if isinstance(op, PackedConstant) else pack(op.value, op.element_type)
    value: Array = op.value.reshape(shape)
    return value.view(np.uint8) if op.element_type in (Type.f8e4m3, Type.f8e5m2) else value


# ---- what is compressed

Term = tuple[Output, Array]  # a scale or a zero point: where it comes from, and its values


@dataclass(frozen=True)
class Weights:
    """The matrix of ``shape`` that ``codes`` hold in an array of ``extents``, to which scale and zero point
    broadcast; its rows may be those of a ``batch``."""

    codes: Output
    table: tuple[float, ...]
    scale: Term | None
    zero: Term | None
    shape: tuple[int, int]
    extents: tuple[int, ...]
    batch: tuple[int, ...]

    @property
    def matrices(self) -> int:
        return prod(self.batch)

    def packed(self, axis: int, unit: int = 1) -> Packed | None:
        """How it is stored, if it may be cut between any ``unit`` along ``axis``: terms are the same along all of it,
        or for no two of those."""
        kind, (rows, columns) = self.codes.spec.type, self.shape
        if rows * columns < LEAST or (kind in NIBBLES and axis and columns % 2):
            return None
        if self.matrices > 1 and kind in NIBBLES and rows // self.matrices * columns % 2:
            return None
        terms = [self._laid(term[1]) for term in (self.scale, self.zero) if term is not None]
        whole = (1, columns // unit, columns) if axis else (1, self.matrices, rows)
        if any(term is None or term.shape[axis] not in whole for term in terms):
            return None
        return Packed(kind, rows, columns, self.table, self.matrices)

    def constants(self, made: Made) -> list[Output | None]:
        """Codes, scale, zero point."""
        codes = self.codes, self.shape
        if codes not in made:
            made[codes] = _constant(_bytes(*codes), self.codes.node)
        found: list[Output | None] = [made[codes]]
        for term in (self.scale, self.zero):
            key = None if term is None else (term[0], self.shape)
            if term is not None and key is not None and key not in made:
                value = self._laid(term[1])
                assert value is not None
                made[key] = _constant(value, term[0].node)
            found.append(None if key is None else made[key])
        return found

    def _laid(self, value: Array) -> Array | None:
        """What broadcasts to the codes as an element for each block of rows and of columns; repeated, where that does
        not make many of them."""
        of = (1,) * (len(self.extents) - value.ndim) + value.shape
        for cut in range(len(of) + 1):
            if prod(self.extents[:cut]) == self.shape[0] and prod(self.extents[cut:]) == self.shape[1]:
                rows, columns = (_spread(self.extents[part], of[part]) for part in (slice(cut), slice(cut, None)))
                size = prod(rows) * prod(columns)
                if size == value.size or size * REPEATED <= prod(self.shape):
                    return np.broadcast_to(value.reshape(of), (*rows, *columns)).reshape(prod(rows), prod(columns))
        return None


def _spread(extents: Sequence[int], of: Sequence[int]) -> tuple[int, ...]:
    """The least extents from the first axis on to which those of an array can grow for each to belong to a block."""
    last = max((i + 1 for i, n in enumerate(of) if n > 1), default=0)
    return (*extents[:last], *(1 for _ in of[last:]))


def _weights(port: Output | None, rounded: bool = False, ranks: Sequence[int] = (2,),
             rows: int = -1) -> Weights | None:
    """What a port holds, if it is a compressed matrix, or a batch of them, of which so many axes are those of the
    ``rows``; values of codes of 4 bits are ``rounded`` to the type that they are converted to."""
    shape: Any = None if port is None else port.spec.shape
    if port is None or shape is None or len(shape) not in ranks or any(isinstance(d, Sym) for d in shape):
        return None
    inner = _through(port, ("Identity", "Convert", *RESHAPES))
    for product, scale in (*operands(inner.node, Multiply), (inner, None)):
        scaled = _through(product, ("Identity", "Convert"))
        for difference, zero in (*operands(scaled.node, Subtract, ordered=True), (scaled, None)):
            codes = _codes(_through(difference, ("Identity", "Convert")), rounded)
            if codes is None or codes[0].spec.shape != inner.spec.shape:
                continue
            values = [None if term is None else _term(term) for term in (scale, zero)]
            terms = [None if t is None or v is None else (t, v) for t, v in zip((scale, zero), values)]
            if [t is None for t in terms] == [t is None for t in (scale, zero)]:
                extents: Any = codes[0].spec.shape
                return Weights(*codes, terms[0], terms[1], (prod(shape[:rows]), prod(shape[rows:])), extents,
                               shape[:rows][:-1])
    return None


def _through(port: Output, ops: tuple[str, ...]) -> Output:
    """The port behind layers that change no number, apart from rounding it."""
    while port.node.op.name in ops:
        source = port.node.inputs[0]
        if source is None or (source.spec.type in COMPUTED) != (port.spec.type in COMPUTED):
            break  # a first conversion, which gives codes their values
        if isinstance(port.node.op, Convert) and isinstance(source.node.op, Constant) and source.spec.type in HALVES:
            break
        port = source
    return port


def _codes(port: Output, rounded: bool) -> tuple[Output, tuple[float, ...]] | None:
    """The constant that is converted to this port, and the values of codes of 4 bits or in a codebook."""
    node, source = port.node, port.node.inputs[0] if port.node.inputs else None
    if source is None or port.spec.type not in COMPUTED:
        return None
    kind = source.spec.type
    if isinstance(node.op, Convert) and isinstance(source.node.op, Constant):
        if kind in NIBBLES:
            every = unpack(pack(np.arange(16, dtype=np.uint8), Type.u4), kind, (16,))
            return source, _floats(converted(NUMPY, every, port.spec.type if rounded else Type.f32))
        return (source, ()) if kind in BYTES or (kind in HALVES and port.spec.type not in HALVES) else None
    if isinstance(node.op, Gather) and node.inputs[1] is not None:
        numbers = _through(node.inputs[1], ("Identity", "Convert"))
        book, count = _term(source), {Type.u4: 16, Type.u8: 256}.get(numbers.spec.type, 0)
        if isinstance(numbers.node.op, Constant) and book is not None and book.ndim == 1 and len(book) <= count:
            return numbers, (*_floats(book), *[0.0] * (count - len(book)))  # as Gather reads beyond
    return None


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(decode(values).astype(np.float32).tolist())


def _term(port: Output) -> Array | None:
    """The constant that a port holds, in a type that kernels read; conversions of it to floats are left out."""
    op, sources = op_of(port.node), port.node.inputs
    if isinstance(op, Constant):
        found: Array = encode(decode(op.value), TERMS.get(op.element_type, Type.f32))
        return found
    if not isinstance(op, (Convert, Identity, Multiply)) or port.spec.type not in COMPUTED:
        return None
    values = [None if s is None else _term(s) for s in sources]
    if any(value is None for value in values):
        return None
    if isinstance(op, Convert) and sources[0] is not None and isinstance(sources[0].node.op, Constant):
        return values[0]
    found = evaluate(op, NUMPY, values, [port.spec.type])[0]
    return found
