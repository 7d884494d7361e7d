"""Models of f32 that run in f16 or bf16: products, convolutions and attention, and what lies between them.

Inputs and results keep their types. What loses its meaning in 16 bits stays f32, and so does what is made of it, up to
the next product:

- numbers made of integers alone: positions, masks, angles and frequencies;
- sums, powers, exponentials, quotients, quantisation, boxes, random numbers: every layer that is not listed here;
- layers with a number that the type does not hold: an epsilon of 1e-12, a mask of -3e38;
- what only results or such layers take, as the layers after the last product;
- bodies of loops and branches, as a whole.

Finite values become finite ones: beyond the range of f16 they are the largest of it. Compressed weights stay as they
are. Residual streams are of 16 bits up to the last product; OpenVINO's plugin keeps those in f32 that reach a result
through sums and norms alone.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import is_own, op_of
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import LARGEST, Convert, Narrow
from ovgpu.ops.fused.compressed import CompressedGather
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.ops.fused.kv_cache import CacheAppend, Reorder, growing
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.shape.shape import ShapeOf
from ovgpu.passes._graph import HALVES, Graph, users_of
from ovgpu.types import Type
from ovgpu.types.mapped import let_go

SMALLEST = {Type.f16: 2.0**-14, Type.bf16: 2.0**-126}  # of the numbers with all their bits

PRODUCTS = frozenset("""MatMul Convolution GroupConvolution ConvolutionBackpropData GroupConvolutionBackpropData
    ScaledDotProductAttention Softmax LSTMSequence GRUSequence RNNSequence LSTMCell GRUCell RNNCell""".split())
"""Always in 16 bits, but for products of positions."""

BOUNDED = frozenset("""MVN RMS GroupNormalization NormalizeL2 Sigmoid Tanh HSigmoid HardSigmoid SoftSign Erf Sin Cos
    """.split())
"""In f32 where an input is; their results may be rounded whatever they are made of."""

LIGHT = frozenset("""Add Subtract Multiply Abs Negative Maximum Minimum Clamp Relu PRelu Elu Selu Gelu Swish Mish
    HSwish SoftPlus Select Identity ReduceMean ReduceMax ReduceMin MaxPool AvgPool AdaptiveAvgPool Interpolate
    Reshape Squeeze Unsqueeze Transpose SwapAxes Concat Split VariadicSplit Slice StridedSlice Gather GatherElements
    GatherND Rotary Broadcast Tile Pad Reverse Roll DepthToSpace SpaceToDepth ShuffleChannels BatchToSpace
    SpaceToBatch ScatterUpdate ScatterNDUpdate Divide""".split())
"""In f32 where an input is."""

LIGHT_AT_ENDS = frozenset({"Softmax", *BOUNDED, *LIGHT})


class Level(Enum):
    """What is known of a tensor."""

    CONSTANT = 0
    PLAIN = 1  # f32, and may be rounded: inputs, results of bounded functions
    NARROW = 2
    WIDE = 3  # f32 that must stay so
    COUNTED = 4  # likewise, made of integers and constants alone


def downcast(model: Model, kind: Type | None, cache: Type | None) -> None:
    """Rewrites the model in place; ports' specs must be inferred, and are again.

    ``kind``: f16, bf16, or None if all stays f32; ``cache``: likewise of the variables that hold keys and values.
    """
    types = {port.spec.type for node in model.ops for port in node.outputs}
    if (kind or cache) and Type.f32 in types and Type.dynamic not in types:
        _Narrowing(model, kind, cache).run()


class _Narrowing:
    def __init__(self, model: Model, kind: Type | None, cache: Type | None) -> None:
        self.model, self.kind, self.cache = model, kind, cache
        self.variables = _caches(model) if cache else set[str]()
        self.users = users_of(model)
        self.levels: dict[int, Level] = {}  # by id of the port
        self.types: dict[int, Type] = {}  # likewise, of those that are f32 no longer
        self.casts: dict[tuple[int, Type], Output] = {}
        self.light: dict[int, bool] = {}  # by id of the node
        self.ends: set[int] = set()  # ids of light nodes that only layers in f32 take

    def run(self) -> None:
        for node in reversed(self.model.ops):
            if self._runs(node, LIGHT_AT_ENDS) and self._ends(node):
                self.ends.add(id(node))
        for node in self.model.ops:
            self._place(node)
        self.model.changed()
        self.model.validate_nodes_and_infer_types()

    # ---- what a node may do

    def _runs(self, node: Node, names: frozenset[str]) -> bool:
        """Whether it is one of ovgpu's own layers of that name that compute on the device, with numbers that the type
        has."""
        if node.op.name not in names or not is_own(type(op_of(node))) or node.outputs[0].spec.value is not None:
            return False
        if id(node) not in self.light:
            self.light[id(node)] = self._is_light(node)
        return self.light[id(node)]

    def _is_light(self, node: Node) -> bool:
        name, data = node.op.name, self._data(node)
        if isinstance(node.op, CompressedConvolution):
            return node.op.device
        if isinstance(node.op, CacheAppend):  # a variable that is of another type would have to be converted as a whole
            return self.cache == self.kind and self._caches(node)
        if name in PRODUCTS or name in BOUNDED or self.kind is None:
            return True
        if name == "Multiply" and node.inputs[0] is node.inputs[1]:
            return False  # a square
        if name == "Divide" and not _is_constant(node.inputs[1]):
            return False
        return all(self._holds(_value(s)) for i in data if (s := node.inputs[i]) is not None and _is_constant(s))

    def _holds(self, value: Any) -> bool:
        assert self.kind is not None
        most = np.abs(value, where=np.isfinite(value), out=np.zeros(value.shape, np.float32)).max(initial=0)
        return bool(most == 0 or SMALLEST[self.kind] <= most <= LARGEST[self.kind])

    def _data(self, node: Node) -> list[int]:
        """The inputs of f32 that are of the result's type."""
        count = 1 if node.op.name == "Interpolate" or hasattr(node.op, "weights") else None
        return [i for i, s in enumerate(node.inputs[:count]) if s is not None and s.spec.type == Type.f32]

    def _ends(self, node: Node) -> bool:
        users = [user for port in node.outputs for user in self.users.get(id(port), ())]
        return bool(users) and all(id(u) in self.ends or not self._runs(u, LIGHT_AT_ENDS | PRODUCTS) for u in users)

    # ---- what it does

    def _place(self, node: Node) -> None:
        """Decides the type of a node, converts its inputs to it, and notes its results."""
        op: Any = node.op
        if self._of_cache(node):
            return
        levels = [self._level(node.inputs[i]) for i in self._data(node)]
        wide = Level.WIDE in levels or Level.COUNTED in levels
        given = [level for level in levels if level is not Level.CONSTANT]
        counted = bool(given) and all(level is Level.COUNTED for level in given)
        target, level = Type.f32, Level.COUNTED if counted else Level.WIDE
        if self.kind is None:
            pass
        elif isinstance(op, CompressedGather):
            target = self.kind
        elif self._runs(node, PRODUCTS) and id(node) not in self.ends:
            target = Type.f32 if counted and op.name == "MatMul" else self.kind
        elif self._runs(node, BOUNDED | LIGHT) and id(node) not in self.ends:
            table = op.name.startswith("Gather") and levels[:1] == [Level.CONSTANT]
            if not wide and (Level.NARROW in levels or table):
                target = self.kind
            elif not wide or op.name in BOUNDED:
                level = Level.PLAIN
        elif isinstance(op, Convert) and not self._data(node):
            level = _converted(node)
        elif isinstance(op, Constant):
            level = Level.CONSTANT
        elif op.name in ("Parameter", "ReadValue", "RandomUniform", "RandomPoisson", "OneHot"):
            level = Level.PLAIN
        elif isinstance(op, CompressedConvolution):
            level = Level.PLAIN
        elif not given and op.name == "Range":
            level = Level.COUNTED
        self._set(node, target, Level.NARROW if target == self.kind else level)

    def _set(self, node: Node, target: Type, level: Level) -> None:
        op: Any = node.op
        data = self._data(node)
        for i, source in enumerate(node.inputs):
            if source is not None and source.spec.type == Type.f32 and not isinstance(op, (Convert, ShapeOf)):
                node.inputs[i] = self._cast(source, target if i in data else Type.f32, node)
        if isinstance(op, CompressedGather) and op.kind == Type.f32:
            node.op = replace(op, kind=target)
        for port in node.outputs:
            if port.spec.type == Type.f32:
                self._note(port, target, level)

    def _note(self, port: Output, kind: Type, level: Level) -> None:
        self.levels[id(port)] = level
        if kind != Type.f32:
            self.types[id(port)] = kind

    def _level(self, port: Output | None) -> Level:
        assert port is not None
        return Level.CONSTANT if _is_constant(port) else self.levels[id(port)]

    def _cast(self, port: Output, wanted: Type, around: Node) -> Output:
        """The tensor of f32, as it was, in a type."""
        if self.types.get(id(port), Type.f32) == wanted:
            return port
        key = id(port), wanted
        if key not in self.casts:
            self.casts[key] = self._converted(port, wanted, around)
        return self.casts[key]

    def _converted(self, port: Output, wanted: Type, around: Node) -> Output:
        source = port.node.inputs[0] if port.node.inputs else None
        if isinstance(port.node.op, Convert) and source is not None and source.spec.type == wanted:
            return source
        op = Convert(destination_type=wanted) if wanted == Type.f32 else Narrow(destination_type=wanted)
        if _is_constant(port):
            value = _value(port)
            constant = Graph(port.node).constant(op.evaluate(NUMPY, value)[0], wanted)
            let_go(value)
            return constant
        found: Output = Graph(around).add(op, port)
        return found

    # ---- variables that hold keys and values

    def _of_cache(self, node: Node) -> bool:
        """Has what such a variable is made of the type of the cache."""
        op: Any = node.op
        if op.name == "ReadValue" and op.variable_id in self.variables:
            if hasattr(op, "variable_type"):
                node.op = replace(op, variable_type=self.cache)
        elif not ((op.name == "Assign" and op.variable_id in self.variables) or self._caches(node)):
            return False
        assert self.cache is not None
        self._set(node, self.cache, Level.NARROW if self.cache == self.kind else Level.PLAIN)
        return True

    def _caches(self, node: Node) -> bool:
        """Whether the layer makes the new value of a cache from its old one."""
        if not isinstance(node.op, (CacheAppend, Reorder)):
            return False
        source = node.inputs[0]
        while source is not None and isinstance(source.node.op, Reorder):
            source = source.node.inputs[0]
        op: Any = None if source is None else source.node.op
        return op is not None and op.name == "ReadValue" and op.variable_id in self.variables


def _caches(model: Model) -> set[str]:
    """The variables of f32 that grow, or that have three axes or more and keep what they are first."""
    changed = {sink.op.variable_id for sink in model.sinks if not _keeps(sink)} - set(growing(model))  # type: ignore[attr-defined]
    ranks: dict[str, int] = {}
    for node in model.ops:
        op: Any = node.op
        if op.name == "ReadValue" and op.variable_id not in changed:
            spec = node.outputs[0].spec
            rank = (spec.rank or 0) if spec.type == Type.f32 else 0
            ranks[op.variable_id] = min(rank, ranks.get(op.variable_id, rank))
    return {name for name, rank in ranks.items() if rank > 2}


def _keeps(sink: Node) -> bool:
    """Whether an Assign sets what was read."""
    op: Any = sink.op
    source: Any = None if sink.inputs[0] is None else sink.inputs[0].node.op
    return source is not None and source.name == "ReadValue" and source.variable_id == op.variable_id


def _is_constant(port: Output | None) -> bool:
    """Whether the port is a constant, or one of 16 bits that is converted."""
    node = None if port is None else port.node
    if node is None or not isinstance(node.op, Convert):
        return node is not None and isinstance(node.op, Constant)
    source = node.inputs[0]
    return source is not None and source.spec.type in HALVES and isinstance(source.node.op, Constant)


def _value(port: Output) -> Any:
    """The values of such a constant, in f32."""
    source: Any = port if isinstance(port.node.op, Constant) else port.node.inputs[0]
    return decode(source.node.op.value)


def _converted(node: Node) -> Level:
    """What a conversion to f32 gives. Pictures are bytes; what has more bits counts."""
    source = node.inputs[0]
    assert source is not None
    kind = source.spec.type
    return Level.COUNTED if kind.is_integral_number() and kind.bitwidth > 8 else Level.PLAIN
