"""Einsum -> MatMul, Multiply and ReduceSum, with Transpose and Reshape around them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from math import prod
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Multiply
from ovgpu.ops.base.view import equal
from ovgpu.ops.convert import Identity
from ovgpu.ops.matrix.einsum import Einsum, Part, Term, contract
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.movement.movement import Concat, Transpose
from ovgpu.ops.movement.slicing import END
from ovgpu.ops.reduction import ReduceProd, ReduceSum
from ovgpu.ops.shape.reshape import Reshape
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.passes._graph import NodeBuilder, rewrite
from ovgpu.symbolic import Int, ceildiv


class Unknown:
    """Unknown extent, which is equal to no other."""


def expand_einsum(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    rewrite(model, lambda node: isinstance(node.op, Einsum) and _expand(node))


def _expand(node: Node) -> bool:
    """Add layers that compute the node, and make the node the last one of them. Return False, and change nothing, if
    the layers depend on unknown ranks or extents."""
    op: Any = node.op
    inputs = [source for source in node.sources if source is not None]
    if any(source.spec.shape is None for source in inputs):
        return False
    *labels, output = op.labels([source.spec.rank for source in inputs])
    for source, own in zip(inputs, labels):
        if any(own.count(x) > 1 and not isinstance(d, int) for x, d in zip(own, source.spec.shape or ())):
            return False
    algebra = Tensors(node)
    last: Output = contract(algebra, [Term(source, tuple(own)) for source, own in zip(inputs, labels)], output)
    if last in inputs:
        node.op, node.sources = Identity(), [last]
    else:
        node.op, node.sources = last.node.op, last.node.sources
    return True


class Tensors:
    """Implementation of `ovgpu.ops.matrix.einsum.Algebra` that adds nodes to the graph around an Einsum."""

    def __init__(self, node: Node) -> None:
        self.graph = NodeBuilder(node)
        self.known: dict[Output, Sequence[Int]] = {}

    def extents(self, x: Output) -> Sequence[Int]:
        return self.known.get(x, x.spec.shape or ())

    def permute(self, x: Output, order: Sequence[int]) -> Output:
        extents = self.extents(x)
        if list(order) == list(range(len(extents))):
            return x
        return self._add([extents[i] for i in order], Transpose(), x, self.graph.constant(list(order)))

    def reshape(self, x: Output, parts: Sequence[Part]) -> Output:
        if [(source, *axes) for source, axes in parts] == [(x, i) for i in range(len(self.extents(x)))]:
            return x
        extents = [self._merge_extents([self.extents(source)[i] for i in axes]) for source, axes in parts]
        pieces = [self._extent_tensor(extent, *part) for extent, part in zip(extents, parts)]
        shape = self.graph.add(Concat(axis=0), *pieces) if pieces else self.graph.constant([])
        return self._add(extents, Reshape(), x, shape)

    def _merge_extents(self, extents: Sequence[Int]) -> Int:
        if len(extents) == 1:
            return extents[0]
        return prod(extents) if all(isinstance(d, int) for d in extents) else Unknown()

    def _extent_tensor(self, extent: Int, source: Output, axes: Sequence[int]) -> Output:
        """Return a tensor [1] with the product of the extents of these axes of ``source``: ``extent``, if known."""
        g = self.graph
        if isinstance(extent, int):
            return g.constant([extent])
        extents: Output = g.add(Gather8(), g.add(ShapeOf3(), source), g.constant(list(axes)), g.constant(0))
        product: Any = ReduceProd
        return g.add(product(keep_dims=True), extents, g.constant([0])) if len(axes) > 1 else extents

    def every(self, x: Output, step: int) -> Output:
        *others, last = self.extents(x)
        axis = len(others)
        port = self.graph.cut(x, axis, 0, END, step)
        self.known[port] = [*others, ceildiv(last, step)]
        return port

    def broadcast_axis(self, x: Output, axis: int, by: Part) -> Output:
        extents = list(self.extents(x))
        extents[axis] = Unknown()
        source, axes = by
        ones: list[Part] = [(source, axes if i == axis else []) for i in range(len(extents))]
        dims = [self._extent_tensor(Unknown() if merged else 1, other, merged) for other, merged in ones]
        target = self.graph.add(Concat(axis=0), *dims)
        return self._add(extents, Broadcast3(mode="bidirectional"), x, target)

    def sum(self, x: Output, axes: Sequence[int]) -> Output:
        extents = [d for i, d in enumerate(self.extents(x)) if i not in axes]
        return self._add(extents, ReduceSum(), x, self.graph.constant(list(axes)))

    def multiply(self, a: Output, b: Output) -> Output:
        pairs = zip_longest(reversed(self.extents(a)), reversed(self.extents(b)), fillvalue=1)
        return self._add([_broadcast(*pair) for pair in pairs][::-1], Multiply(), a, b)

    def matmul(self, a: Output, b: Output) -> Output:
        (*batch, rows, _), (*others, _, columns) = self.extents(a), self.extents(b)
        return self._add([*map(_broadcast, batch, others), rows, columns], MatMul(), a, b)

    def _add(self, extents: Sequence[Int], op: Any, *inputs: Output) -> Output:
        port: Output = self.graph.add(op, *inputs)
        self.known[port] = extents
        return port


def _broadcast(a: Int, b: Int) -> Int:
    """Return the extent that two extents broadcast to, as far as it is known."""
    if equal(a, b) or equal(b, 1):
        return a
    if equal(a, 1):
        return b
    return next((d for d in (a, b) if isinstance(d, int)), Unknown())
