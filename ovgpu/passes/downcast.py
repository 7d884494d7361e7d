"""f32 models -> f16 or bf16: products, convolutions and attention are downcast, with the layers between them.

Inputs and results keep their types. Tensors that lose their meaning in 16 bits stay f32, and so do the tensors that are
computed from them, up to the next product:

- numbers computed from integers alone: positions, masks, angles and frequencies;
- sums, powers, exponentials, quotients, quantisation, boxes, random numbers: all ops whose `half_precision` is never;
- layers with a constant outside of the type's normal range: an epsilon of 1e-12, a mask of -3e38;
- layers whose results are taken only by such layers or by the model's results, such as the layers after the last
  product. Exceptions are layers that only move 16-bit elements, and norms and similar layers whose results are also
  quantised;
- bodies of loops and branches, as a whole.

Finite values stay finite: values beyond the range of f16 become its largest number. Compressed weights stay as they
are. Residual streams have 16 bits up to the last product. OpenVINO's plugin differs here: it keeps a residual stream in
f32 if the stream reaches a result through sums and norms alone.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.lazy import Converted
from ovgpu.ops.base.op import Op, is_own, op_of
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import LARGEST, Convert, ConvertDown, largest_finite
from ovgpu.ops.fused.compressed import CompressedGather
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.fused.kv_cache import CacheAppend, Reorder, growing
from ovgpu.ops.fused.quantized import QuantizedConvolution, QuantizedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.quantization import Dequantize, Quantize
from ovgpu.ops.shape.shape import ShapeOf
from ovgpu.passes._derived import derived, is_fixed
from ovgpu.passes._graph import HALVES, NodeBuilder, users_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

CODE_OPS = (QuantizedConvolution, QuantizedMatMul, Dequantize)  # ops of 8-bit codes, whose results may have any type
SMALL_BYTES = 1 << 20  # of weights that the host converts: the card's kernel has to be compiled first
SMALLEST_NORMAL = {Type.f16: 2.0**-14, Type.bf16: 2.0**-126}


class Level(Enum):
    """Precision that a tensor has or needs."""

    CONSTANT = 0
    ROUNDABLE = 1  # f32 that may be rounded: inputs, results of bounded functions
    HALF = 2  # f16 or bf16
    F32 = 3  # f32 that must stay f32
    INTEGRAL = 4  # likewise, computed from integers and constants alone


def downcast(
    model: Model,
    dtype: Type | None,
    cache_dtype: Type | None,
    on_card: bool = False,
    attends_in_cache_dtype: bool = False,
) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand; they are inferred again.

    ``dtype``: f16, bf16, or None if layers stay f32. ``cache_dtype``: likewise for the variables that hold keys and
    values. ``on_card``: the card converts large weights of products. ``attends_in_cache_dtype``: attention to these
    variables has their type, also if other layers stay f32. Otherwise it would convert them as a whole.
    """
    types = {port.spec.type for node in model.ops for port in node.ports}
    if (dtype or cache_dtype) and Type.f32 in types and Type.dynamic not in types:
        _Downcast(model, dtype, cache_dtype, on_card, attends_in_cache_dtype).run()


class _Downcast:
    """Downcast of one model."""

    def __init__(
        self, model: Model, dtype: Type | None, cache_dtype: Type | None, on_card: bool, attends_in_cache_dtype: bool
    ) -> None:
        self.model, self.dtype, self.cache_dtype, self.on_card = model, dtype, cache_dtype, on_card
        self.variables = _find_caches(model) if cache_dtype else set[str]()
        self.users = users_of(model)
        self.attending = self._find_attention() if attends_in_cache_dtype and dtype is None else set[Node]()
        self.levels: dict[Output, Level] = {}
        self.types: dict[Output, Type] = {}  # of ports that are no longer f32
        self.casts: dict[tuple[Output, Type, Node | None], Output] = {}  # see `_cast`
        self.half_capable: dict[Node, bool] = {}
        self.ends: set[Node] = set()  # nodes that stay f32 because only layers in f32 take them
        self.quantizing: set[Node] = set()  # each Quantize, and the elementwise layers that are computed with it

    def run(self) -> None:
        for node in reversed(self.model.ops):  # users first: whether a node is an end depends on them
            in_f32_at_end = op_of(node).half_precision != "always" or node.op.name == "Softmax"
            if in_f32_at_end and self._may_be_half(node) and self._is_end(node):
                self.ends.add(node)
            if isinstance(node.op, Quantize) or (node in self.ends and self._is_quantizing(node)):
                self.quantizing.add(node)
        for node in self.model.ops:
            self._assign(node)
        self.model.changed()
        self.model.validate_nodes_and_infer_types()

    # ---- types that a node allows

    def _may_be_half(self, node: Node) -> bool:
        """Return whether the node may run in 16 bits: ovgpu's own op allows it, the device computes the node, and the
        type holds its constants."""
        op = op_of(node)
        if op.half_precision == "never" or not is_own(type(op)) or node.ports[0].spec.value is not None:
            return False
        if node not in self.half_capable:
            self.half_capable[node] = self._is_half_capable(node)
        return self.half_capable[node]

    def _is_half_capable(self, node: Node) -> bool:
        op, name, data = op_of(node), node.op.name, self._data_inputs(node)
        if isinstance(op, CompressedConvolution):
            return op.device
        if isinstance(op, CacheAppend):  # a variable of another type would be converted as a whole
            return self.cache_dtype == self.dtype and self._updates_cache(node)
        if op.half_precision in ("always", "bounded") or self.dtype is None:
            return True
        if name == "Multiply" and node.sources[0] is node.sources[1]:
            return False  # a square stays f32 like other powers
        if name == "Divide" and not _is_constant(node.sources[1]):
            return False
        weights = [s for i in data if (s := node.sources[i]) is not None and _is_constant(s)]
        return all(self._is_in_range(decode(_stored(port))) for port in weights)

    def _is_in_range(self, value: Any) -> bool:
        assert self.dtype is not None
        largest = largest_finite(value)
        return bool(largest == 0 or SMALLEST_NORMAL[self.dtype] <= largest <= LARGEST[self.dtype])

    def _data_inputs(self, node: Node) -> list[int]:
        """Return the indices of f32 inputs that have the result's type."""
        op = node.op
        count = 1 if op.name == "Interpolate" or hasattr(op, "weights") or isinstance(op, CODE_OPS) else None
        return [i for i, s in enumerate(node.sources[:count]) if s is not None and s.spec.type == Type.f32]

    def _is_end(self, node: Node) -> bool:
        users = self._users(node)
        if not self.quantizing.isdisjoint(users) and not isinstance(node.op, (Elementwise, *CODE_OPS)):
            # The node writes 16 bits to memory, and the codes are computed from its result in f32.
            return False
        return bool(users) and all(u in self.ends or not self._may_be_half(u) for u in users)

    def _is_quantizing(self, node: Node) -> bool:
        return isinstance(node.op, Elementwise) and not self.quantizing.isdisjoint(self._users(node))

    def _users(self, node: Node) -> list[Node]:
        return [user for port in node.ports for user in self.users.get(port, ())]

    # ---- types that are assigned

    def _assign(self, node: Node) -> None:
        """Decide the type of a node, convert its inputs to it, and record its results."""
        op: Any = node.op
        if self._assign_cache(node):
            return
        levels = [self._level(node.sources[i]) for i in self._data_inputs(node)]
        needs_f32 = Level.F32 in levels or Level.INTEGRAL in levels
        computed = [level for level in levels if level is not Level.CONSTANT]
        integral = bool(computed) and all(level is Level.INTEGRAL for level in computed)
        target, level = Type.f32, Level.INTEGRAL if integral else Level.F32
        if node in self.attending and self.cache_dtype is not None:
            target = self.cache_dtype
        elif self.dtype is None:  # only caches, and attention to them, change their type
            pass
        elif isinstance(op, CompressedGather):
            target = self.dtype
        elif isinstance(op, CODE_OPS):
            target, level = Type.f32 if self._is_end(node) else self.dtype, Level.ROUNDABLE
        elif self._may_be_half(node) and (node not in self.ends or op.is_reshape or op.moves_elements):
            is_lookup = op.name.startswith("Gather") and levels[:1] == [Level.CONSTANT]
            if op.half_precision == "always":
                target = Type.f32 if integral and op.name == "MatMul" else self.dtype
            elif not needs_f32 and (Level.HALF in levels or is_lookup):
                target = self.dtype
            elif not needs_f32 or op.half_precision == "bounded":
                level = Level.ROUNDABLE
        elif isinstance(op, Convert) and not self._data_inputs(node):
            level = _level_of_conversion(node)
        elif isinstance(op, Constant):
            level = Level.CONSTANT
        elif op.name in ("Parameter", "ReadValue", "RandomUniform", "RandomPoisson", "OneHot"):
            level = Level.ROUNDABLE
        elif isinstance(op, CompressedConvolution):
            level = Level.ROUNDABLE
        elif not computed and op.name == "Range":
            level = Level.INTEGRAL
        self._set(node, target, Level.HALF if target == self.dtype else level)

    def _set(self, node: Node, target: Type, level: Level) -> None:
        op: Any = node.op
        data = self._data_inputs(node)
        for i, source in enumerate(node.sources):
            if source is not None and source.spec.type == Type.f32 and not isinstance(op, (Convert, ShapeOf)):
                node.sources[i] = self._cast(source, target if i in data else Type.f32, node)
        if isinstance(op, (CompressedGather, *CODE_OPS)) and op.dtype == Type.f32:
            node.op = replace(op, dtype=target)
        for port in node.ports:
            if port.spec.type == Type.f32:
                self._record(port, target, level)

    def _record(self, port: Output, dtype: Type, level: Level) -> None:
        self.levels[port] = level
        if dtype != Type.f32:
            self.types[port] = dtype

    def _level(self, port: Output | None) -> Level:
        assert port is not None
        return Level.CONSTANT if _is_constant(port) else self.levels[port]

    def _cast(self, port: Output, target_type: Type, around: Node) -> Output:
        """Return ``port``, which is f32 in the original model, converted to a type.

        Nodes share casts. Only the layers computed with a Quantize have their own, which is computed with them.
        """
        if self.types.get(port, Type.f32) == target_type:
            return port
        key = port, target_type, around if around in self.quantizing else None
        if key not in self.casts:
            self.casts[key] = self._convert(port, target_type, around)
        return self.casts[key]

    def _convert(self, port: Output, target_type: Type, around: Node) -> Output:
        source = port.node.sources[0] if port.node.sources else None
        if isinstance(port.node.op, Convert) and source is not None and source.spec.type == target_type:
            return source
        op = (Convert if target_type == Type.f32 else ConvertDown)(destination_type=target_type)
        if _is_constant(port):
            stored = _stored(port)
            if self._is_converted_on_card(port, stored):
                lazy: Any = Converted(stored, op, target_type.storage)
                added: Output = NodeBuilder(port.node).add(Constant(element_type=target_type, value=lazy))
                return added
            value = derived(("downcast", target_type), [stored], lambda: _converted(op, stored, target_type))
            let_go(stored)
            return NodeBuilder(port.node).constant(value, target_type)
        converted: Output = NodeBuilder(around).add(op, port)
        return converted

    def _is_converted_on_card(self, port: Output, stored: Any) -> bool:
        """Return whether the card converts a constant. Later passes do not read the weights of a product, and nobody
        can change those of a file before they are uploaded."""
        return (
            self.on_card
            and stored.dtype == np.float32
            and stored.nbytes > SMALL_BYTES
            and is_fixed(stored)
            and all(user.op.name in ("MatMul", "Gather") for user in self.users[port])
        )

    # ---- variables that hold keys and values

    def _assign_cache(self, node: Node) -> bool:
        """Give a layer that reads, updates or assigns a cache the cache's type; return whether it is such a layer."""
        op: Any = node.op
        if op.name == "ReadValue" and op.variable_id in self.variables:
            if hasattr(op, "variable_type"):
                node.op = replace(op, variable_type=self.cache_dtype)
        elif not ((op.name == "Assign" and op.variable_id in self.variables) or self._updates_cache(node)):
            return False
        assert self.cache_dtype is not None
        self._set(node, self.cache_dtype, Level.HALF if self.cache_dtype == self.dtype else Level.ROUNDABLE)
        return True

    def _find_attention(self) -> set[Node]:
        """Return attention whose keys and values are caches, and the layers that move the elements of these for it."""
        found = set[Node]()
        for node in self.model.ops:
            if isinstance(node.op, CacheAppend) and self._updates_cache(node):
                path = self._path_to_attention(node.ports[0])
                if path is None:
                    return set()
                found |= path
        return found

    def _path_to_attention(self, port: Output) -> set[Node] | None:
        """Return attention that takes a cache, and the layers before it; None if other layers take the cache."""
        found = set[Node]()
        for user in self.users.get(port, ()):
            op = op_of(user)
            if isinstance(op, ScaledDotProductAttention) and port in user.sources[1:3]:
                found.add(user)
            elif (op.is_reshape or op.moves_elements) and user.sources[0] is port and len(user.ports) == 1:
                path = self._path_to_attention(user.ports[0])
                if path is None:
                    return None
                found |= {user} | path
            elif user.op.name not in ("Assign", "ShapeOf"):
                return None
        return found

    def _updates_cache(self, node: Node) -> bool:
        """Return whether the layer computes the new value of a cache from its old one."""
        if not isinstance(node.op, (CacheAppend, Reorder)):
            return False
        source = node.sources[0]
        while source is not None and isinstance(source.node.op, Reorder):
            source = source.node.sources[0]
        op: Any = None if source is None else source.node.op
        return op is not None and op.name == "ReadValue" and op.variable_id in self.variables


def _find_caches(model: Model) -> set[str]:
    """Return the f32 variables with at least three axes that grow or keep their initial values."""
    changed = {sink.op.variable_id for sink in model.sinks if not _is_unchanged(sink)} - set(growing(model))  # type: ignore[attr-defined]
    ranks: dict[str, int] = {}
    for node in model.ops:
        op: Any = node.op
        if op.name == "ReadValue" and op.variable_id not in changed:
            spec = node.ports[0].spec
            rank = (spec.rank or 0) if spec.type == Type.f32 else 0
            ranks[op.variable_id] = min(rank, ranks.get(op.variable_id, rank))
    return {name for name, rank in ranks.items() if rank > 2}


def _is_unchanged(sink: Node) -> bool:
    """Return whether an Assign sets the value that was read."""
    op: Any = sink.op
    source: Any = None if sink.sources[0] is None else sink.sources[0].node.op
    return source is not None and source.name == "ReadValue" and source.variable_id == op.variable_id


def _is_constant(port: Output | None) -> bool:
    """Return whether the port is a constant, or a conversion of a constant of 16 bits."""
    node = None if port is None else port.node
    if node is None or not isinstance(node.op, Convert):
        return node is not None and isinstance(node.op, Constant)
    source = node.sources[0]
    return source is not None and source.spec.type in HALVES and isinstance(source.node.op, Constant)


def _stored(port: Output) -> Any:
    """Return the array of a constant for which `_is_constant` is true."""
    source: Any = port if isinstance(port.node.op, Constant) else port.node.sources[0]
    return source.node.op.value


def _converted(op: Op, stored: Any, dtype: Type) -> Any:
    """Return the elements of a constant as stored in another type."""
    return np.asarray(op.evaluate(NUMPY, decode(stored))[0], dtype.storage)


def _level_of_conversion(node: Node) -> Level:
    """Return the level of a conversion to f32. Bytes, as in images, may be rounded; wider integers must stay exact."""
    source = node.sources[0]
    assert source is not None
    dtype = source.spec.type
    return Level.INTEGRAL if dtype.is_integral_number() and dtype.bitwidth > 8 else Level.ROUNDABLE
