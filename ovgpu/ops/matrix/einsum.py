"""Einsum: tensor contraction along labelled axes, decomposed into matrix products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.view import equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, broadcast, same
from ovgpu.types import Type

Label = str | int  # a letter, or an axis of the ellipsis counted from its end: -1, -2 ...
Part = tuple[Any, Sequence[int]]
"""(tensor, axes): an extent, which is the product of the tensor's extents along the axes, or 1 for no axes."""

_SUBSCRIPT = re.compile(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?")


@op("Einsum", "opset7", "matrix/einsum-7")
class Einsum(Op):
    """``x1, x2 ... -> y`` by an ``equation`` such as ``bhqd,bhkd->bhqk``: the products of elements whose labels agree,
    summed over the labels that the output lacks.

    A label that occurs twice in a subscript takes the diagonal. ``...`` stands for axes that broadcast. Without ``->``,
    the output has the labels that occur once, in alphabetical order. Extents of 1 broadcast for labels as well. 8-bit
    integers saturate as in MatMul. OpenVINO refuses spaces, which the specification allows.

    >>> einsum(([[1.0, 2], [3, 4]], [10.0, 100]), equation="ii,i->i")
    [10.0, 400.0]
    """

    equation: str

    def infer_specs(self, *inputs: Spec) -> tuple[Spec, ...]:
        dtype = merge_types(inputs)
        if dtype in (Type.boolean, Type.string):
            raise OpError(f"element type {dtype.get_type_name()} is not numeric")
        subscripts, output = self.parse()
        if len(subscripts) != len(inputs):
            raise OpError(f"equation '{self.equation}' is for {len(subscripts)} inputs, not {len(inputs)}")
        for input_index, (subscript, spec) in enumerate(zip(subscripts, inputs)):
            count = len(subscript.replace("...", ""))
            if spec.rank is not None and (spec.rank < count or (spec.rank > count and "..." not in subscript)):
                raise OpError(f"input {input_index} has rank {spec.rank}, which '{subscript}' does not fit")
        ranks = [s.rank for s in inputs]
        if any(rank is None for rank in ranks):
            return (Spec(dtype, None if "..." in output else unknowns(len(output))),)
        *terms, output_labels = self.labels([rank or 0 for rank in ranks])
        extents: dict[Label, Int] = {}
        for labels, spec in zip(terms, inputs):
            own: dict[Label, Int] = {}
            for label, extent in zip(labels, spec.shape or ()):
                if label in own:
                    extent = same(own[label], extent, f"the diagonal '{label}' has extents {{0}} and {{1}}")
                own[label] = extent
            for label, extent in own.items():
                extents[label] = broadcast(extents[label], extent) if label in extents else extent
        return (Spec(dtype, tuple(extents[label] for label in output_labels)),)

    def parse(self) -> tuple[list[str], str]:
        """Return the subscripts of the inputs and of the output. Raise OpError if the equation is not valid."""
        left, arrow, output = self.equation.replace(" ", "").partition("->")
        subscripts = left.split(",")
        for subscript in (*subscripts, output):
            if not _SUBSCRIPT.fullmatch(subscript):
                raise OpError(f"equation '{self.equation}': '{subscript}' is no subscript")
        letters = left.replace("...", "").replace(",", "")
        if not arrow:
            output = "..." * ("..." in left) + "".join(sorted(c for c in letters if letters.count(c) == 1))
        for label in output.replace("...", ""):
            if label not in letters:
                raise OpError(f"equation '{self.equation}': no input has the output's label '{label}'")
            if output.count(label) > 1:
                raise OpError(f"equation '{self.equation}': the output has label '{label}' twice")
        return subscripts, output

    def labels(self, ranks: Sequence[int]) -> list[list[Label]]:
        """Return the labels of all axes of each input, then of the output, for inputs of these ranks."""
        subscripts, output = self.parse()
        ellipsis_rank = [rank - len(s.replace("...", "")) if "..." in s else 0 for s, rank in zip(subscripts, ranks)]
        return [_axis_labels(s, n) for s, n in zip((*subscripts, output), (*ellipsis_rank, max(ellipsis_rank)))]

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        *labels, output = self.labels([x.ndim for x in inputs])
        result = contract(Arrays(xp), [Term(x, tuple(own)) for x, own in zip(inputs, labels)], output)
        return (xp.asarray(result.copy() if any(result is x for x in inputs) else result),)


def _axis_labels(subscript: str, ellipsis_rank: int) -> list[Label]:
    """Return a subscript's labels, one per axis; the ellipsis stands for ``ellipsis_rank`` axes."""
    head, dots, last = subscript.partition("...")
    return [*head, *(range(-ellipsis_rank, 0) if dots else ()), *last]


# ---- by matrix products, on arrays or on tensors of a graph


class Algebra(Protocol):
    """Tensor operations that an equation is decomposed into."""

    def extents(self, x: Any) -> Sequence[Int]:
        """Return the extents of all axes; those of a graph's tensor may be unknown."""

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        """Return the tensor with its axes in another order."""

    def reshape(self, x: Any, parts: Sequence[Part]) -> Any:
        """Return the tensor reshaped; each part is the extent of one axis."""

    def every(self, x: Any, step: int) -> Any:
        """Return every ``step``-th element along the last axis."""

    def broadcast_axis(self, x: Any, axis: int, by: Part) -> Any:
        """Return the tensor with ``axis`` repeated to the extent ``by`` if its own extent is 1."""

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        """Return the sums over these axes, which are removed."""

    def multiply(self, a: Any, b: Any) -> Any:
        """Return the elementwise product of tensors that broadcast."""

    def matmul(self, a: Any, b: Any) -> Any:
        """Return matrix products over the last two axes; the other axes broadcast."""


@dataclass(frozen=True)
class Term:
    """A tensor and the labels of its axes."""

    value: Any
    labels: tuple[Label, ...]


def contract(m: Algebra, terms: Sequence[Term], output: Sequence[Label]) -> Any:
    """Contract the terms pairwise from the left to one tensor with the axes ``output``. A label is summed over as soon
    as neither the output nor a later term needs it."""
    terms = [_diagonal(m, t) for t in terms]
    result = terms[0]
    for i, term in enumerate(terms[1:], 1):
        needed = {*output, *(label for later in terms[i + 1 :] for label in later.labels)}
        result = _pair(m, result, term, needed, output)
    result = _summed(m, result, set(output))
    return _ordered(m, result, output).value


def _diagonal(m: Algebra, term: Term) -> Term:
    """Return the term with each repeated label reduced to one axis, along its diagonal."""
    for label in dict.fromkeys(term.labels):
        while term.labels.count(label) > 1:
            first = term.labels.index(label)
            second = term.labels.index(label, first + 1)
            rest = [i for i in range(len(term.labels)) if i not in (first, second)]
            extent = m.extents(term.value)[first]
            x = m.permute(term.value, [*rest, first, second])
            last = len(rest)
            x = m.reshape(x, [*((x, [i]) for i in range(last)), (x, [last, last + 1])])
            term = Term(m.every(x, extent + 1), (*(term.labels[i] for i in rest), label))
    return term


def _pair(m: Algebra, a: Term, b: Term, needed: set[Label], output: Sequence[Label]) -> Term:
    """Return the product of two terms, summed over the labels that are not ``needed``."""
    for label in [x for x in a.labels if x in b.labels and x not in needed]:
        a, b = _matched(m, a, b, label)
    a, b = _summed(m, a, needed | {*b.labels}), _summed(m, b, needed | {*a.labels})
    if not [x for x in a.labels if x in b.labels and x not in needed]:
        order = [*a.labels, *(x for x in b.labels if x not in a.labels)]
        order = list(output) if set(order) == set(output) else order
        return Term(m.multiply(_aligned(m, a, order), _aligned(m, b, order)), tuple(order))
    return _product(m, *_in_output_order(a, b, output), needed)


def _matched(m: Algebra, a: Term, b: Term, label: Label) -> tuple[Term, Term]:
    """Return the terms with equal extents of a label that is summed over; a term whose extent is 1 loses the label."""
    i, j = a.labels.index(label), b.labels.index(label)
    ours, theirs = m.extents(a.value)[i], m.extents(b.value)[j]
    if equal(ours, theirs) or (isinstance(ours, int) and isinstance(theirs, int) and 1 not in (ours, theirs)):
        return a, b
    if equal(ours, 1) or equal(theirs, 1):
        return (_without(m, a, i), b) if equal(ours, 1) else (a, _without(m, b, j))
    return (
        Term(m.broadcast_axis(a.value, i, (b.value, [j])), a.labels),
        Term(m.broadcast_axis(b.value, j, (a.value, [i])), b.labels),
    )


def _without(m: Algebra, term: Term, axis: int) -> Term:
    """Return the term without an axis of extent 1."""
    remaining = [i for i in range(len(term.labels)) if i != axis]
    return Term(m.reshape(term.value, [(term.value, [i]) for i in remaining]), tuple(term.labels[i] for i in remaining))


def _summed(m: Algebra, term: Term, needed: set[Label]) -> Term:
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return Term(m.sum(term.value, axes), tuple(label for label in term.labels if label in needed))


def _ordered(m: Algebra, term: Term, labels: Sequence[Label]) -> Term:
    order = [term.labels.index(label) for label in labels]
    return Term(m.permute(term.value, order), tuple(labels))


def _aligned(m: Algebra, term: Term, labels: Sequence[Label]) -> Any:
    """Return the term's value, reshaped to broadcast to the axes ``labels``: labels that it lacks get extent 1."""
    own = [label for label in labels if label in term.labels]
    x = _ordered(m, term, own).value
    axes = labels[labels.index(own[0]) :] if own else []
    return m.reshape(x, [(x, [own.index(label)] if label in own else []) for label in axes])


def _in_output_order(a: Term, b: Term, output: Sequence[Label]) -> tuple[Term, Term]:
    """Return the factors, swapped if the output's first label that only one of them has belongs to ``b``."""
    own = [label for label in output if (label in a.labels) != (label in b.labels)]
    return (b, a) if own and own[0] in b.labels else (a, b)


def _product(m: Algebra, a: Term, b: Term, needed: set[Label]) -> Term:
    """Return the product of two terms as a matrix product. Labels of both factors are batch axes if they are needed,
    else they are summed over."""
    both = [label for label in a.labels if label in b.labels]
    batch, inner = [x for x in both if x in needed], [x for x in both if x not in needed]
    rows, columns = [x for x in a.labels if x not in both], [x for x in b.labels if x not in both]
    x = _ordered(m, a, [*batch, *rows, *inner]).value
    y = _ordered(m, b, [*batch, *inner, *columns]).value
    n, r, k = len(batch), len(rows), len(inner)
    product = m.matmul(
        m.reshape(x, [*((x, [i]) for i in range(n)), (x, range(n, n + r)), (x, range(n + r, n + r + k))]),
        m.reshape(y, [*((y, [i]) for i in range(n)), (y, range(n, n + k)), (y, range(n + k, n + k + len(columns)))]),
    )
    parts: list[Part] = [(product, [i]) for i in range(n)]
    parts += [(product, [n])] if r == 1 else [(x, [n + i]) for i in range(r)]
    parts += [(product, [n + 1])] if len(columns) == 1 else [(y, [n + k + i]) for i in range(len(columns))]
    return Term(m.reshape(product, parts), (*batch, *rows, *columns))


class Arrays:
    """`Algebra` of NumPy or CuPy arrays."""

    def __init__(self, xp: Adapter) -> None:
        self.xp = xp

    def extents(self, x: Any) -> Sequence[int]:
        return x.shape  # type: ignore[no-any-return]

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        return x.transpose(order) if list(order) != list(range(x.ndim)) else x

    def reshape(self, x: Any, parts: Sequence[Part]) -> Any:
        return x.reshape([prod(source.shape[i] for i in axes) for source, axes in parts])

    def every(self, x: Any, step: int) -> Any:
        return x[..., ::step]

    def broadcast_axis(self, x: Any, axis: int, by: Part) -> Any:
        raise AssertionError("extents of arrays are known")

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        return x.sum(axis=tuple(axes), dtype=x.dtype)

    def multiply(self, a: Any, b: Any) -> Any:
        return a * b

    def matmul(self, a: Any, b: Any) -> Any:
        return MatMul().evaluate(self.xp, a, b)[0]
