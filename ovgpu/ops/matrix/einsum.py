"""Einsum: products of tensors along labelled axes, and how they come down to matrix products."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Op, op
from ovgpu.ops.base.shapes import unknowns
from ovgpu.ops.base.view import equal
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.symbolic import Int, Spec, broadcast, same
from ovgpu.types import Type

Label = str | int  # a letter, or the axis of an ellipsis counted from its end: -1, -2 ...
Part = tuple[Any, Sequence[int]]
"""The product of a tensor's extents along some axes, of none 1."""

_SUBSCRIPT = re.compile(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?")


@op("Einsum", "opset7")
class Einsum(Op):
    """``x1, x2 ... -> y`` by an ``equation`` such as ``bhqd,bhkd->bhqk``: the products of elements whose labels agree,
    summed over the labels that the output lacks.

    A label twice in one subscript takes the diagonal; ``...`` stands for axes that broadcast; without ``->`` the output
    has what stands once, in alphabetical order. Extents of 1 broadcast for labels as well. 8-bit integers saturate as
    those of MatMul do. OpenVINO refuses the spaces that the specification allows.
    """

    equation: str

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        kind = merge_types(inputs)
        if kind in (Type.boolean, Type.string):
            raise OpError(f"element type {kind.get_type_name()} is not numeric")
        subscripts, output = self.parse()
        if len(subscripts) != len(inputs):
            raise OpError(f"equation '{self.equation}' is for {len(subscripts)} inputs, not {len(inputs)}")
        for number, (subscript, spec) in enumerate(zip(subscripts, inputs)):
            count = len(subscript.replace("...", ""))
            if spec.rank is not None and (spec.rank < count or (spec.rank > count and "..." not in subscript)):
                raise OpError(f"input {number} has rank {spec.rank}, which '{subscript}' does not fit")
        ranks = [s.rank for s in inputs]
        if any(rank is None for rank in ranks):
            return (Spec(kind, None if "..." in output else unknowns(len(output))),)
        *terms, wanted = self.labels([rank or 0 for rank in ranks])
        extents: dict[Label, Int] = {}
        for labels, spec in zip(terms, inputs):
            own: dict[Label, Int] = {}
            for label, extent in zip(labels, spec.shape or ()):
                if label in own:
                    extent = same(own[label], extent, f"the diagonal '{label}' has extents {{0}} and {{1}}")
                own[label] = extent
            for label, extent in own.items():
                extents[label] = broadcast(extents[label], extent) if label in extents else extent
        return (Spec(kind, tuple(extents[label] for label in wanted)),)

    def parse(self) -> tuple[list[str], str]:
        """The subscripts of the inputs and of the output. OpError if the equation is none."""
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
        """The labels of every axis of the inputs, then of the output, for inputs of these ranks."""
        subscripts, output = self.parse()
        covered = [rank - len(s.replace("...", "")) if "..." in s else 0 for s, rank in zip(subscripts, ranks)]
        return [_spread(s, n) for s, n in zip((*subscripts, output), (*covered, max(covered)))]

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        *labels, output = self.labels([x.ndim for x in inputs])
        result = contract(Arrays(xp), [Term(x, tuple(own)) for x, own in zip(inputs, labels)], output)
        return (xp.asarray(result.copy() if any(result is x for x in inputs) else result),)


def _spread(subscript: str, covered: int) -> list[Label]:
    """A subscript's labels, one per axis."""
    head, dots, last = subscript.partition("...")
    return [*head, *(range(-covered, 0) if dots else ()), *last]


# ---- by matrix products, on arrays or on tensors of a graph

class Algebra(Protocol):
    """What an equation comes down to."""

    def extents(self, x: Any) -> Sequence[Int]:
        """Those of all axes; of a graph's tensor, as far as they are known."""

    def permute(self, x: Any, order: Sequence[int]) -> Any:
        """The axes in another order."""

    def reshape(self, x: Any, parts: Sequence[Part]) -> Any:
        """The same elements with these extents."""

    def every(self, x: Any, step: int) -> Any:
        """Every so manieth element of the last axis."""

    def broadcast_axis(self, x: Any, axis: int, by: Part) -> Any:
        """An axis, if its extent is 1, repeated as often as another tensor's is long."""

    def sum(self, x: Any, axes: Sequence[int]) -> Any:
        """The sums over these axes, which vanish."""

    def multiply(self, a: Any, b: Any) -> Any:
        """The products of elements, of tensors that broadcast."""

    def matmul(self, a: Any, b: Any) -> Any:
        """The matrix products of the last two axes, the others broadcast."""


@dataclass(frozen=True)
class Term:
    """A tensor and the labels of its axes."""

    value: Any
    labels: tuple[Label, ...]


def contract(m: Algebra, terms: Sequence[Term], output: Sequence[Label]) -> Any:
    """The value of an equation, one input after another; a label is summed over as soon as nothing needs it."""
    terms = [_diagonal(m, t) for t in terms]
    result = terms[0]
    for number, term in enumerate(terms[1:], 2):
        needed = {*output, *(label for later in terms[number:] for label in later.labels)}
        result = _pair(m, result, term, needed, output)
    result = _summed(m, result, set(output))
    return _ordered(m, result, output).value


def _diagonal(m: Algebra, term: Term) -> Term:
    """The term with each of its labels once."""
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
    """The product of two terms, summed over the labels that nothing else needs."""
    for label in [x for x in a.labels if x in b.labels and x not in needed]:
        a, b = _matched(m, a, b, label)
    a, b = _summed(m, a, needed | {*b.labels}), _summed(m, b, needed | {*a.labels})
    if not [x for x in a.labels if x in b.labels and x not in needed]:
        order = [*a.labels, *(x for x in b.labels if x not in a.labels)]
        order = list(output) if set(order) == set(output) else order
        return Term(m.multiply(_aligned(m, a, order), _aligned(m, b, order)), tuple(order))
    return _product(m, *_transposed(a, b, output), needed)


def _matched(m: Algebra, a: Term, b: Term, label: Label) -> tuple[Term, Term]:
    """The terms with equal extents of a label that is summed over; where one has 1, it needs none."""
    i, j = a.labels.index(label), b.labels.index(label)
    ours, theirs = m.extents(a.value)[i], m.extents(b.value)[j]
    if equal(ours, theirs) or (isinstance(ours, int) and isinstance(theirs, int) and 1 not in (ours, theirs)):
        return a, b
    if equal(ours, 1) or equal(theirs, 1):
        return (_without(m, a, i), b) if equal(ours, 1) else (a, _without(m, b, j))
    return (Term(m.broadcast_axis(a.value, i, (b.value, [j])), a.labels),
            Term(m.broadcast_axis(b.value, j, (a.value, [i])), b.labels))


def _without(m: Algebra, term: Term, axis: int) -> Term:
    """The term without an axis of extent 1."""
    kept = [i for i in range(len(term.labels)) if i != axis]
    return Term(m.reshape(term.value, [(term.value, [i]) for i in kept]), tuple(term.labels[i] for i in kept))


def _summed(m: Algebra, term: Term, needed: set[Label]) -> Term:
    axes = [i for i, label in enumerate(term.labels) if label not in needed]
    if not axes:
        return term
    return Term(m.sum(term.value, axes), tuple(label for label in term.labels if label in needed))


def _ordered(m: Algebra, term: Term, labels: Sequence[Label]) -> Term:
    order = [term.labels.index(label) for label in labels]
    return Term(m.permute(term.value, order), tuple(labels))


def _aligned(m: Algebra, term: Term, labels: Sequence[Label]) -> Any:
    """The term's value with these axes, of extent 1 where it has none, as it broadcasts from the last one on."""
    own = [label for label in labels if label in term.labels]
    x = _ordered(m, term, own).value
    axes = labels[labels.index(own[0]) :] if own else []
    return m.reshape(x, [(x, [own.index(label)] if label in own else []) for label in axes])


def _transposed(a: Term, b: Term, output: Sequence[Label]) -> tuple[Term, Term]:
    """The factors in the order in which the output has what is theirs alone."""
    own = [label for label in output if (label in a.labels) != (label in b.labels)]
    return (b, a) if own and own[0] in b.labels else (a, b)


def _product(m: Algebra, a: Term, b: Term, needed: set[Label]) -> Term:
    """A matrix product: labels of both that are needed are batches, the others of both are summed over."""
    both = [label for label in a.labels if label in b.labels]
    batch, inner = [x for x in both if x in needed], [x for x in both if x not in needed]
    rows, columns = [x for x in a.labels if x not in both], [x for x in b.labels if x not in both]
    x = _ordered(m, a, [*batch, *rows, *inner]).value
    y = _ordered(m, b, [*batch, *inner, *columns]).value
    n, r, k = len(batch), len(rows), len(inner)
    product = m.matmul(
        m.reshape(x, [*((x, [i]) for i in range(n)), (x, range(n, n + r)), (x, range(n + r, n + r + k))]),
        m.reshape(y, [*((y, [i]) for i in range(n)), (y, range(n, n + k)), (y, range(n + k, n + k + len(columns)))]))
    parts: list[Part] = [(product, [i]) for i in range(n)]
    parts += [(product, [n])] if r == 1 else [(x, [n + i]) for i in range(r)]
    parts += [(product, [n + 1])] if len(columns) == 1 else [(y, [n + k + i]) for i in range(len(columns))]
    return Term(m.reshape(product, parts), (*batch, *rows, *columns))


class Arrays:
    """`Algebra` of NumPy's or CuPy's arrays."""

    def __init__(self, xp: Any) -> None:
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
