"""Helpers of the rewrites: queries about nodes and ports, a traversal, and a builder of nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.activation.activation import PRelu
from ovgpu.ops.arithmetic.arithmetic import Multiply, Negative
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import SMALL_ELEMENTS, Op, is_own, op_of
from ovgpu.ops.base.shapes import integers
from ovgpu.ops.base.view import equal
from ovgpu.ops.infrastructure.graph import Constant, Result
from ovgpu.ops.movement.slicing import Slice
from ovgpu.symbolic import Int, Sym, product
from ovgpu.types import Type

HALVES = (Type.f16, Type.bf16)
DEVICE_TYPES = (*HALVES, Type.f32, Type.f64)  # of products and convolutions on a device
_KERNEL_TYPES = frozenset(
    getattr(Type, name) for name in "boolean f16 bf16 f32 f64 i8 u8 i16 u16 i32 u32 i64 u64".split()
)


def users_of(model: Model) -> dict[Output, list[Node]]:
    """Return the nodes that take each tensor, except ShapeOf, which reads only its shape."""
    users: dict[Output, list[Node]] = {}
    for node in model.ops:
        if node.op.name != "ShapeOf":
            for source in node.sources:
                if source is not None:
                    users.setdefault(source, []).append(node)
    return users


def fixed_nodes(model: Model) -> set[Node]:
    """Return the constants and the layers that are computed from constants alone."""
    fixed: set[Node] = set()
    for node in model.ops:
        computed = bool(node.sources) and not op_of(node).effect and node.op.name != "Result"
        if isinstance(node.op, Constant) or (computed and all(s is None or s.node in fixed for s in node.sources)):
            fixed.add(node)
    return fixed


def redirect(model: Model, moved: Mapping[Output, Output]) -> None:
    """Make all nodes take the values of ``moved`` in place of its keys."""
    for node in model.ops if moved else ():
        node.sources = [None if s is None else moved.get(s, s) for s in node.sources]


def add_port(node: Node, replaced: Output) -> Output:
    """Add a last output to a node, which takes over the spec and the names of the ``replaced`` port; return it."""
    port = Output(node, len(node.ports))
    port.spec, port.names = replaced.spec, replaced.own_names
    node.ports.append(port)
    return port


def is_fusable(node: Node, shape_tensors: set[Output]) -> bool:
    """Return whether a kernel can be generated for the node from `cuda_expression`, and its result is a device tensor.

    An op that overrides `Elementwise.cuda` may be fused too: it does so only for types that this function rejects.
    """
    op, spec = op_of(node), node.ports[0].spec
    if not isinstance(op, Elementwise) or not is_own(type(op)) or None in node.sources or not _is_right_aligned(node):
        return False
    if spec.shape is None or spec.value is not None:
        return False
    static = not any(isinstance(d, Sym) for d in spec.shape)
    if node.ports[0] in shape_tensors and static and product(spec.shape) <= SMALL_ELEMENTS:
        return False
    return all(
        port is not None and port.spec.shape is not None and port.spec.type in _KERNEL_TYPES
        for port in (*node.sources, *node.ports)
    )


def _is_right_aligned(node: Node) -> bool:
    """Return whether the inputs are aligned at the last axis, by the op's rules or because the others are numbers."""
    op: Any = node.op
    if type(op).align is Elementwise.align or getattr(op, "auto_broadcast", "pdpd") != "pdpd":
        return True
    if isinstance(op, PRelu):  # a slope of rank 1 may belong to axis 1, the channels
        x, slope = (source.spec.rank or 0 for source in node.sources if source is not None)
        if (1 if x > 2 else 0) < slope <= x:
            return True
    return all(map(is_scalar, node.sources[1:]))


def is_scalar(port: Output | None) -> bool:
    """Return whether the port is a constant of one element, which becomes a literal of generated code."""
    op: Any = None if port is None else port.node.op
    return op is not None and op.name == "Constant" and op.value.size == 1 and port.spec.type in _KERNEL_TYPES  # type: ignore[union-attr]


def alike(a: Output, b: Output) -> bool:
    """Return whether two tensors provably have the same extents."""
    x, y = a.spec.shape, b.spec.shape
    return x is not None and y is not None and alike_shapes(x, y)


def alike_shapes(a: Sequence[Int], b: Sequence[Int]) -> bool:
    """Return whether two shapes are provably the same."""
    return len(a) == len(b) and all(map(equal, a, b))


def broadcasts(node: Node) -> bool:
    """Return whether an elementwise op broadcasts its inputs as NumPy does."""
    return getattr(node.op, "auto_broadcast", "numpy") == "numpy"


def operands(node: Node, op: type, ordered: bool = False) -> Iterator[tuple[Output, Output]]:
    """Yield the operands (a, b) of a node with that op, and (b, a) unless ``ordered``.

    Yield nothing for other nodes, and for nodes that do not broadcast as NumPy does.
    """
    if isinstance(node.op, op) and len(node.sources) == 2 and broadcasts(node):
        a, b = node.sources
        assert a is not None and b is not None
        yield a, b
        if not ordered:
            yield b, a


def constant_of(port: Output | None) -> Any:
    """Return the value of a constant, None for anything else."""
    op: Any = None if port is None else port.node.op
    return op.value if isinstance(op, Constant) else None


def constant_integers(port: Output | None) -> list[int] | None:
    """Return the elements of a constant of integers (axes, an order), None for anything else."""
    values = None if port is None or constant_of(port) is None else port.spec.ints()
    return None if values is None else integers(values)


def scalar_of(port: Output | None) -> float | None:
    """Return the value of a constant of one element, None for anything else."""
    value = constant_of(port)
    return float(value.reshape(())) if value is not None and value.size == 1 else None


def negated(node: Node) -> Output | None:
    """Return the tensor that the node negates, None if it computes anything else."""
    if isinstance(node.op, Negative):
        return node.sources[0]
    return next((a for a, b in operands(node, Multiply) if scalar_of(b) == -1), None)


def rewrite(model: Model, change: Callable[[Node], bool], backwards: bool = False) -> None:
    """Call ``change`` on every node of the model and its bodies, in reverse order if ``backwards``.

    ``change`` returns whether it changed the node. If it changed any, specs are inferred again.
    """
    if _rewrite_all(model, change, backwards):
        model.validate_nodes_and_infer_types()


def _rewrite_all(model: Model, change: Callable[[Node], bool], backwards: bool) -> bool:
    changed = False
    for node in model.ops[::-1] if backwards else model.ops:
        for body in bodies(node.op):
            changed |= _rewrite_all(body, change, backwards)
        changed |= change(node)
    if changed:
        model.changed()
    return changed


class NodeBuilder:
    """Builder of nodes that get the name of the node ``around``. It infers no specs."""

    def __init__(self, around: Node) -> None:
        self.around = around

    def add(self, op: Op, *inputs: Output | None, outputs: int = 1) -> Any:
        """Add a node and return its output, or a tuple of them if it has several."""
        node = Node(op, inputs, outputs, name=self.around.friendly_name, layer_id=self.around.layer_id)
        return node.ports[0] if outputs == 1 else tuple(node.ports)

    def constant(self, value: Any, dtype: Type = Type.i64) -> Output:
        op: Any = Constant(element_type=dtype, value=np.asarray(value, dtype.storage))
        port: Output = self.add(op)
        return port

    def cut(self, source: Output, axis: int, start: int, stop: int, step: int = 1) -> Output:
        """Return ``source[start:stop:step]`` along an axis."""
        port: Output = self.add(Slice(), source, *(self.constant([v]) for v in (start, stop, step, axis)))
        return port


def layer_key(node: Node) -> Any:
    """Return a key that is equal for nodes that compute the same tensors, None for a node that must not be merged."""
    op = op_of(node)
    own = None if isinstance(op, Result) or op.updates or not node.sources else op_key(op)
    return None if own is None else (*own, len(node.ports), *map(_source_key, node.sources))


def op_key(op: Op) -> tuple[Any, ...] | None:
    """Return a key that is equal for ops that compute the same from the same inputs. Return None for ops with effects
    or with bodies, and for those of users, which may read anything."""
    if op.effect or not is_own(type(op)):
        return None
    key = (
        type(op),
        *(
            (name, type(value), repr(value) if isinstance(value, float) else value)
            for name, value in op.attributes().items()
        ),
    )
    try:
        hash(key)
    except TypeError:  # bodies and arrays have no hash
        return None
    return key


def _source_key(port: Output | None) -> Any:
    """Return a key that is equal for the same port, and for small constants of equal values."""
    op: Any = None if port is None else port.node.op
    if port is None or op.name != "Constant" or port.spec.type is Type.string:
        return port
    shape = port.spec.shape or ()
    if product(shape) > SMALL_ELEMENTS:  # asked before the value, which may be unpacked when it is read
        return port
    return op.element_type, op.value.shape, op.value.tobytes()
