"""Rotary position embeddings (Su et al. 2021): ``x * cos + Concat(-x[h:], x[:h]) * sin`` -> one Rotary.

Llama rotates halves, as above; GPT-J and ChatGLM rotate neighbours. The matcher tracks from which elements of a row
each element of the result is computed. So it covers all ways to cut and join rows: slices, splits, gathers, reshapes to
pairs and back. If only the first elements of a row are rotated, the Rotary also copies the others behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply, Subtract
from ovgpu.ops.base.elementwise import Unary
from ovgpu.ops.base.op import Op, is_own, op_of
from ovgpu.ops.base.view import View, dense_strides, equal
from ovgpu.ops.fused.rotary import Rotary
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.passes._graph import NodeBuilder, negated, operands, rewrite, scalar_of
from ovgpu.symbolic import Int, Sym, product

MAX_ROW_ELEMENTS = 1024  # longer rows are left alone
MAX_DISTANCE = 8  # layers between a product and the row whose elements it takes
MAX_LAYERS = 64  # layers of an embedding

Array = np.ndarray[Any, Any]
Factor = tuple[Output, tuple[int, ...]]  # a tensor, and the index of an element in its last axes
# A sum of products of (element of a row, factor). Elements count from 1, so that -1 is the negated first element.
Terms = tuple[tuple[int, Factor | None], ...]
Cut = tuple[Output, int, int, int]  # a tensor, and a slice of its rows: start, stop, step


def fuse_rotary(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    # Backwards: a Concat of rotated and other elements is matched before the rotation inside it.
    rewrite(model, _rotate, backwards=True)


def _rotate(node: Node) -> bool:
    """Make the node a rotary embedding if it computes one; return whether it does."""
    port = node.ports[0]
    for row in _candidate_rows(node) if _may_be_last(node) else ():
        terms = _Row(row).terms(port)
        match = None if terms is None or terms.ndim != 1 else _match_rotary(row, list(terms))
        if match is not None:
            op, cuts = match
            graph = NodeBuilder(node)
            node.op = op
            node.sources = [
                source if tuple(part) == (0, _extent(source.spec.shape or (0,)), 1) else graph.cut(source, -1, *part)
                for source, *part in cuts
            ]
            return True
    return False


def _match_rotary(row: Output, terms: Sequence[Terms]) -> tuple[Rotary, list[Cut]] | None:
    """Return the Rotary whose result has these terms, and the slices x, cos and sin that it takes; else None."""
    size = sum(len(t) == 2 for t in terms)
    start = min(abs(i) for t in terms for i, _ in t) - 1
    if size < 2 or size % 2 or any(t != ((start + n + 1, None),) for n, t in enumerate(terms[size:], size)):
        return None
    for pairs in (False, True):
        factors = _match_factors([[(abs(i) - start - 1, i > 0, f) for i, f in t] for t in terms[:size]], pairs)
        cuts = [] if factors is None else [_find_slice(f, pairs) for f in factors]
        if cuts and None not in cuts and all(c[0].spec.type == row.spec.type for c in cuts if c is not None):
            return Rotary(size=size, pairs=pairs), [(row, start, start + len(terms), 1), *filter(None, cuts)]
    return None


def _match_factors(
    terms: Sequence[Sequence[tuple[int, bool, Factor | None]]], pairs: bool
) -> list[list[Factor]] | None:
    """Return the elements of cos and the elements of sin that the terms are multiplied by.

    ``terms`` has the terms of each rotated element, each as (element of the row, whether positive, factor). Return None
    if they are no rotation of neighbours (``pairs``) or of halves.
    """
    cos: list[Factor] = []
    sin: list[Factor] = []
    for n, summands in enumerate(terms):
        other = n ^ 1 if pairs else (n + len(terms) // 2) % len(terms)
        by_element = {i: (positive, factor) for i, positive, factor in summands if factor is not None}
        for element, factors, expected in ((n, cos, True), (other, sin, other < n)):
            positive, factor = by_element.get(element, (None, None))
            if factor is None or positive is not expected:
                return None
            factors.append(factor)
    return [cos, sin]


def _find_slice(factors: Sequence[Factor], pairs: bool) -> Cut | None:
    """Return the slice of a tensor's rows that has these elements, one per element or one per pair, else None."""
    size = len(factors)
    per_pair = [i // 2 if pairs else i % (size // 2) for i in range(size)]
    for source in _sources(factors[0][0]):
        row = _Row(source)
        held = [row.elements(port) for port, _ in factors]
        if any(h is None or h.ndim != len(position) for h, (_, position) in zip(held, factors)):
            continue
        columns = [int(h[position]) - 1 for h, (_, position) in zip(held, factors)]  # type: ignore[index]
        start, shifts = columns[0], [i - columns[0] for i in columns]
        if start >= 0 and shifts == per_pair:
            return source, start, start + size // 2, 1
        # The host rotates neighbours as complex numbers, so each pair must have one cos and one sin.
        if start >= 0 and shifts == list(range(size)) and (not pairs or _are_twins(source, start, size)):
            return source, start, start + size, 2 if pairs else 1
    return None


def _are_twins(port: Output, start: int, size: int) -> bool:
    """Return whether the elements from ``start`` on are pairs of equal elements."""
    origins = _origins(port)[start : start + size]
    return bool((origins[0::2] == origins[1::2]).all())


def _origins(port: Output) -> Array:
    """Return an id for each element of the rows; elements with equal ids have equal values."""
    node, extent = port.node, _extent(port.spec.shape or (0,))
    source = node.sources[0] if node.sources else None
    shape = None if source is None else source.spec.shape
    if source is not None and shape and _extent(shape):
        gather = _match_gather(node)
        if gather is not None and gather[0] == len(shape) - 1 and gather[1].ndim == 1:
            return _origins(source)[gather[1]]
        unmoved = equal(shape[-1], extent) and isinstance(node.op, (Unary, Reshape, Unsqueeze))
        if unmoved or any(a is source and scalar_of(b) is not None for a, b in operands(node, Multiply)):
            return _origins(source)
    return np.arange(extent)


def _match_gather(node: Node) -> tuple[int, Array] | None:
    """Return the axis and the indices of a Gather, None if they are not known at compile time."""
    op: Any = node.op
    if not isinstance(op, Gather):
        return None
    x, index, axis = (s.spec for s in node.sources if s is not None)
    if x.shape is None or index.constant is None or axis.constant is None or op.batch(index.rank or 0):
        return None
    gather_axis = int(axis.constant.reshape(())) % len(x.shape)
    extent = x.shape[gather_axis]
    if isinstance(extent, Sym) or not ((-extent <= index.constant) & (index.constant < extent)).all():
        return None
    return gather_axis, index.constant % extent


def _may_be_last(node: Node) -> bool:
    """Return whether the node may be the last one of a rotary embedding."""
    spec, op = node.ports[0].spec, node.op
    if not spec.shape or not spec.type.is_real() or not _extent(spec.shape):
        return False
    if isinstance(op, Add):
        return all(s is not None and isinstance(s.node.op, Multiply) for s in node.sources)
    if isinstance(op, Concat):
        return op.axis in (-1, len(spec.shape) - 1)
    source = node.sources[0] if isinstance(op, Reshape) else None
    return source is not None and source.spec.shape is not None and source.spec.shape[-1:] == (2,)


def _extent(shape: Sequence[Any]) -> int:
    """Return the length of the rows, 0 if it is not known or above ``MAX_ROW_ELEMENTS``."""
    return 0 if isinstance(shape[-1], Sym) or shape[-1] > MAX_ROW_ELEMENTS else int(shape[-1])


def _candidate_rows(node: Node) -> Iterator[Output]:
    """Yield the tensors whose rows the node may rotate: the sources of the last product before it, nearest first."""
    port: Output | None = node.ports[0]
    for _ in range(MAX_DISTANCE):
        factors = None if port is None else _match_product(port.node)
        if factors is not None:
            for factor in factors:
                yield from (p for p in _sources(factor) if p.spec.rank == node.ports[0].spec.rank)
            return
        port = port.node.sources[0] if port is not None and port.node.sources else None


def _match_product(node: Node) -> tuple[Output, Output] | None:
    """Return the two factors of a product if neither is a number, else None."""
    a, b = next(operands(node, Multiply), (None, None))
    return None if a is None or b is None or scalar_of(a) is not None or scalar_of(b) is not None else (a, b)


def _sources(port: Output) -> Iterator[Output]:
    """Yield the port, and the tensors behind it whose row elements it may hold."""
    for _ in range(MAX_DISTANCE):
        if port.spec.shape and _extent(port.spec.shape):
            yield port
        opposite = negated(port.node)
        source = port.node.sources[0] if opposite is None and port.node.sources else opposite
        if source is None:
            return
        port = source


class _Row:
    """Rows of a tensor, along its last axis, and the tensors that hold elements of these rows.

    Such a tensor begins with the axes of ``row`` before its last one; inner axes follow. An array with the shape of the
    inner axes records which elements of a row the tensor holds.
    """

    def __init__(self, row: Output) -> None:
        self.row, self.before = row, (row.spec.rank or 1) - 1
        self.known: dict[Output, Array | None] = {}
        self.visited = 0  # how many layers were visited

    def elements(self, port: Output) -> Array | None:
        """Return which elements of a row the port holds, counted from 1 and negative if negated.

        Return None if it holds anything else.
        """
        if port not in self.known:
            self.known[port] = self._find_elements(port)
        return self.known[port]

    def _find_elements(self, port: Output) -> Array | None:
        if port is self.row:
            return np.arange(1, 1 + _extent(port.spec.shape or (0,)))
        self.visited += 1
        opposite = negated(port.node)
        if opposite is None:
            return self._move(port, self.elements)
        elements = self.elements(opposite)
        return None if elements is None else -elements

    def terms(self, port: Output) -> Array | None:
        """Return an array of `Terms`, one for each element of the port; None if the port holds anything else."""
        elements = self.elements(port)
        if elements is not None:
            return _single_terms(elements)
        sums = (*operands(port.node, Add, ordered=True), *operands(port.node, Subtract, ordered=True))
        for a, b in sums if self.visited < MAX_LAYERS else ():
            left, right = self.terms(a), self.terms(b)
            if left is None or right is None or left.shape != right.shape:
                return None
            return left + (right if isinstance(port.node.op, Add) else _negate(right))
        for a, factor in operands(port.node, Multiply):
            elements = self.elements(a)
            if elements is None or not _ends_with(factor, elements.shape):
                continue
            if port.spec.rank == self.before + elements.ndim:
                return _single_terms(elements, factor)
        return self._move(port, self.terms)

    def _move(self, port: Output, read: Callable[[Output], Array | None]) -> Array | None:
        """Return the array of a port whose layer only moves elements within rows, else None.

        ``read``: `elements` or `terms`, which returns the arrays of the layer's inputs.
        """
        op, shape = op_of(port.node), port.spec.shape
        source = port.node.sources[0] if port.node.sources else None
        source_shape = None if source is None else source.spec.shape
        if source is None or shape is None or source_shape is None or self.visited > MAX_LAYERS:
            return None
        if not is_own(type(op)) or (type(op).view is Op.view and not isinstance(op, (Concat, Gather))):
            return None
        if min(len(shape), len(source_shape)) < self.before or not all(map(equal, shape[: self.before], source_shape)):
            return None
        if isinstance(op, Concat):
            axis = op.axis % len(shape) - self.before
            parts = [None if s is None or axis < 0 else read(s) for s in port.node.sources]
            return None if any(p is None for p in parts) else np.concatenate(parts, axis)  # type: ignore[arg-type]
        held = read(source)
        positions = None if held is None else self._positions(port, source_shape, held.shape)
        return None if held is None or positions is None else held.reshape(-1)[positions]

    def _positions(self, port: Output, source_shape: Sequence[Int], inner: tuple[int, ...]) -> Array | None:
        """Return the flat positions of the port's elements in the inner axes of its layer's first input, else None.

        ``source_shape`` is the shape of this input, ``inner`` the extents of its inner axes.
        """
        node = port.node
        specs = [None if s is None else s.spec for s in node.sources]
        if isinstance(node.op, Gather) and (gather := _match_gather(node)) is not None and gather[0] >= self.before:
            return np.take(np.arange(product(inner)).reshape(inner), gather[1], gather[0] - self.before)
        dense = View.dense(source_shape)
        views = op_of(node).view([dense, *(None for _ in specs[1:])], specs, [p.spec for p in node.ports])
        view = None if views is None else views[port.index]
        if view is None or not all(map(equal, view.strides[: self.before], dense_strides(source_shape))):
            return None
        shape, strides = view.shape[self.before :], view.strides[self.before :]
        if any(isinstance(n, Sym) for n in (*shape, *strides, view.offset)) or product(shape) > MAX_ROW_ELEMENTS:
            return None
        return sum((i * s for i, s in zip(np.indices(shape), strides)), np.full(shape, view.offset))


def _single_terms(elements: Array, factor: Output | None = None) -> Array:
    """Return an array of `Terms` with one term each: the element, times the factor's element at the same position."""
    terms = np.empty(elements.shape, object)
    for position in np.ndindex(elements.shape):
        terms[position] = ((elements.item(position), None if factor is None else (factor, position)),)
    return terms


def _negate(terms: Array) -> Array:
    negative = np.empty(terms.shape, object)
    for position in np.ndindex(terms.shape):
        negative[position] = tuple((-i, factor) for i, factor in terms[position])
    return negative


def _ends_with(port: Output, extents: Sequence[int]) -> bool:
    """Return whether the tensor's last axes have these extents."""
    last = (port.spec.shape or ())[-len(extents) :]
    return not any(isinstance(d, Sym) for d in last) and tuple(last) == tuple(extents)
