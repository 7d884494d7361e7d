"""Matching of one step of a recurrent layer in the body of a loop: a cell op, or its maths in smaller layers.

It serves `fuse_recurrent_loops`. The maths around a gate decides which gate it is. So the order of the gates in the
weights does not matter, and the gates may come from one product or from several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from ovgpu.model import Output
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.view import equal
from ovgpu.ops.movement.movement import Concat, Split, Transpose, VariadicSplit
from ovgpu.ops.movement.slicing import sliced
from ovgpu.ops.sequence._cells import GRU, LSTM, Recurrent
from ovgpu.ops.sequence.recurrent import Cell, GRUSequence, LSTMCell1, LSTMSequence, RNNSequence
from ovgpu.ops.shape.reshape import Reshape
from ovgpu.passes._graph import broadcasts
from ovgpu.passes.recurrent_body import Body, Slices, batch_of, is_rows, strip_reshapes
from ovgpu.symbolic import Int

ATTRIBUTES = ("hidden_size", "activations", "activations_alpha", "activations_beta", "clip")
Activation = tuple[str, float, float]  # name, alpha and beta
# Sequence op, its attributes, and the gates' linear functions of x and of h. They are the same objects, unless a gate
# keeps the two apart.
Gates = tuple[type[Recurrent], dict[str, Any], Sequence["Linear"], Sequence["Linear"]]


@dataclass(frozen=True)
class Step:
    """One step of a recurrent layer, as the op ``sequence`` with these ``attributes`` repeats it.

    ``states`` are the body's parameters h (and c), ``new`` their next values. w [G H, D], r [G H, H] and b [G H] or
    [(G + 1) H] lie outside the loop. ``features`` is the extent D of the frames, ``columns`` the extent D of w.
    """

    sequence: Any
    attributes: dict[str, Any]
    x: Slices
    features: Int
    columns: int | None
    hidden: int
    states: tuple[Output, ...]
    new: tuple[Output, ...]
    w: Output
    r: Output
    b: Output | None


def find_step(body: Body) -> Step | None:
    """Return the recurrent step that the body computes from the states it carries, else None."""
    for h, new in body.carried.items():
        if body.initial(h) is not None:
            step = _cell(body, h, new) if isinstance(new.node.op, Cell) else _DecomposedStep(body, h, new).step()
            if step is not None:
                return step
    return None


def _cell(body: Body, h: Output, new: Output) -> Step | None:
    node, op = new.node, op_of(new.node)
    assert isinstance(op, Cell)
    states = tuple(strip_reshapes(s) for s in node.sources[1 : 1 + op.states])
    results = tuple(node.ports[: op.states])
    if states[0] is not h or any(body.carried.get(s) is not r for s, r in zip(states, results)):
        return None
    x, frame, hidden = body.slices(_required(node.sources[0])), _required(node.sources[0]).spec.shape, _width(new)
    weights = [None if s is None else body.hoisted(s) for s in node.sources[1 + op.states :]]
    if x is None or not frame or hidden is None or len(weights) < 2 or None in weights:
        return None
    columns = _width(node.sources[1 + op.states])
    if isinstance(op, LSTMCell1):
        if columns is None:
            return None
        if len(weights) == 2 and _rank(node.sources[4]) == 1:  # W and R are one matrix
            columns -= hidden
            g = body.graph
            parts = g.add(VariadicSplit(), weights[0], g.constant(1), g.constant([columns, -1]), outputs=2)
            weights = [*parts, *weights[1:]]
    w, r, b, *_ = (*weights, None)
    attributes = {name: getattr(op, name) for name in ATTRIBUTES}
    if isinstance(op, GRU):
        attributes["linear_before_reset"] = op.linear_before_reset
    sequence = LSTMSequence if isinstance(op, LSTM) else GRUSequence if isinstance(op, GRU) else RNNSequence
    assert w is not None and r is not None
    return Step(sequence, attributes, x, frame[-1], columns, hidden, states, results, w, r, b)


@dataclass(frozen=True)
class Linear:
    """Sum of products ``v @ m^T`` and biases.

    Each v is "x", "h" or a tensor of the body. Each m is [rows, n]. Each bias has the shape [rows], or one element;
    its flag is true for [rows]. All m and biases lie outside the loop.
    """

    body: Body
    rows: int
    products: tuple[tuple[Any, Output], ...] = ()
    biases: tuple[tuple[Output, bool], ...] = ()

    def __add__(self, other: Linear) -> Linear:
        return Linear(self.body, self.rows, self.products + other.products, self.biases + other.biases)

    def cut(self, start: int, stop: int) -> Linear:
        """Return rows ``start`` to ``stop``."""
        cut = self.body.graph.cut
        return Linear(
            self.body,
            stop - start,
            tuple((v, cut(m, 0, start, stop)) for v, m in self.products),
            tuple((cut(b, 0, start, stop) if full else b, full) for b, full in self.biases),
        )

    def factors(self) -> set[Any]:
        return {v for v, _ in self.products}

    def matrix(self, v: Any) -> Output:
        """Return the sum of the matrices that v is multiplied by."""
        first, *rest = (m for u, m in self.products if u is v)
        for m in rest:
            first = self.body.graph.add(Add(), first, m)
        return first


@dataclass(frozen=True)
class Gate:
    """Activation of a `Linear`."""

    activation: Activation
    linear: Linear

    def cut(self, start: int, stop: int) -> Gate:
        return Gate(self.activation, self.linear.cut(start, stop))


class _DecomposedStep:
    """Matcher of a decomposed step; a back edge of the loop leads from ``new`` to the parameter ``h``."""

    def __init__(self, body: Body, h: Output, new: Output) -> None:
        self.body, self.h, self.new = body, h, new
        self.hidden, self.batch = _width(new), batch_of(new.spec.shape)
        self.x: Slices | None = None
        self.features: int | None = None
        self._linear: dict[Output, Linear | None] = {}

    def step(self) -> Step | None:
        if self.batch is None or not self._is_rows(self.h, self.hidden) or self.new.spec.type.is_dynamic():
            return None
        for read in (self._lstm, self._gru, self._rnn):
            states: list[tuple[Output, Output]] = [(self.h, self.new)]
            gates = read(states)
            if gates is not None:
                return self._assemble(gates, states)
        return None

    # ---- kinds of cells

    def _lstm(self, states: list[tuple[Output, Output]]) -> Gates | None:
        """Match ``c' = f c + i g, h' = o act(c')``."""
        for left, right in _operands(self.new, "Multiply"):
            out, act = self._gate(left), _activation(right)
            new = None if act is None else strip_reshapes(right.node.sources[0])
            if out is None or act is None or new is None or not self._is_rows(new, self.hidden):
                continue
            for retained, added in _operands(new, "Add"):
                for c, f in _operands(retained, "Multiply"):
                    if self.body.carried.get(c) is not new or self.body.initial(c) is None:
                        continue
                    forget = self._gate(f)
                    for a, b in _operands(added, "Multiply"):
                        i, g = self._gate(a), self._gate(b)
                        if forget is None or i is None or g is None:
                            continue
                        if not forget.activation == i.activation == out.activation:
                            continue
                        states.append((c, new))
                        gates = [x.linear for x in (forget, i, g, out)]
                        return LSTMSequence, _attributes(i.activation, g.activation, act), gates, gates
        return None

    def _gru(self, states: list[tuple[Output, Output]]) -> Gates | None:
        """Match ``h' = (1 - z) n + z h``, where n depends on h after a reset, or on a reset product with h."""
        for z, n in self._blends():
            update, act = self._gate(z), _activation(n)
            if update is None or act is None:
                continue
            inner = self._linear_of(n.node.sources[0])
            if inner is not None:  # act(x W^T + (r h) R^T)
                products = inner.factors() - {"x"}
                reset = self._reset(next(iter(products))) if len(products) == 1 and "h" not in products else None
                if reset is not None and reset.activation == update.activation:
                    inner = Linear(
                        self.body,
                        inner.rows,
                        tuple(("x" if v == "x" else "h", m) for v, m in inner.products),
                        inner.biases,
                    )
                    gates = [update.linear, reset.linear, inner]
                    return GRUSequence, _attributes(update.activation, act), gates, gates
                continue
            for input_side, reset, recurrent in self._resets(n.node.sources[0]):
                if reset.activation == update.activation:
                    attributes = {**_attributes(update.activation, act), "linear_before_reset": True}
                    both = [update.linear, reset.linear]
                    return GRUSequence, attributes, [*both, input_side], [*both, recurrent]
        return None

    def _rnn(self, states: list[tuple[Output, Output]]) -> Gates | None:
        gate = self._gate(self.new)
        return None if gate is None else (RNNSequence, _attributes(gate.activation), [gate.linear], [gate.linear])

    def _blends(self) -> Iterator[tuple[Output, Output]]:
        """Yield every (z, n) such that the new h is ``(1 - z) n + z h``."""
        for a, b in _operands(self.new, "Add"):
            for z, h in _operands(a, "Multiply"):
                if h is self.h:  # z h + (1 - z) n
                    for rest, n in _operands(b, "Multiply"):
                        for one, also in _operands(rest, "Subtract"):
                            if also is z and _is_one(one):
                                yield z, n
            for z, difference in _operands(b, "Multiply"):
                if (self.h, a) in _operands(difference, "Subtract"):  # n + z (h - n)
                    yield z, a

    def _reset(self, product: Output) -> Gate | None:
        """Return the gate that h is multiplied by in the product, else None."""
        return next(
            (gate for a, b in _operands(product, "Multiply") if b is self.h and (gate := self._gate(a)) is not None),
            None,
        )

    def _resets(self, port: Output | None) -> Iterator[tuple[Linear, Gate, Linear]]:
        """Yield every (x W^T + b, r, h R^T + b) such that the port is ``x W^T + r (h R^T + b) + b``."""
        terms = list(_terms(strip_reshapes(port)))
        for index, term in enumerate(terms):
            for a, b in _operands(term, "Multiply"):
                reset, recurrent = self._gate(a), self._linear_of(b)
                rest = self._sum([t for i, t in enumerate(terms) if i != index], strip_reshapes(port))
                if (
                    reset is not None
                    and recurrent is not None
                    and rest is not None
                    and recurrent.factors() == {"h"}
                    and rest.factors() == {"x"}
                ):
                    yield rest, reset, recurrent

    # ---- parts of cells

    def _gate(self, port: Output) -> Gate | None:
        port = strip_reshapes(port)
        activation = _activation(port)
        if activation is not None:
            linear = self._linear_of(port.node.sources[0])
            return None if linear is None else Gate(activation, linear)
        part = _part(port)
        whole = None if part is None else self._gate(part[0])
        return None if whole is None or part is None else whole.cut(*part[1:])

    def _linear_of(self, port: Output | None) -> Linear | None:
        port = strip_reshapes(port)
        if port not in self._linear:
            self._linear[port] = self._read(port)
        return self._linear[port]

    def _read(self, port: Output) -> Linear | None:
        rows = _width(port)
        if rows is None or not self._is_rows(port, rows):
            return None
        if port.node.op.name == "Add":
            return self._sum([_required(s) for s in port.node.sources], port)
        if port.node.op.name == "MatMul":
            return self._product(port, rows)
        part = _part(port)
        whole = None if part is None else self._linear_of(part[0])
        return None if whole is None or part is None else whole.cut(*part[1:])

    def _sum(self, terms: Sequence[Output], port: Output) -> Linear | None:
        rows = _width(port)
        if rows is None:
            return None
        total = Linear(self.body, rows)
        for term in terms:
            outside = self.body.hoisted(term)
            linear = self._linear_of(term) if outside is None else self._bias(term, outside, rows)
            if linear is None or linear.rows != rows:
                return None
            total = total + linear
        return total

    def _bias(self, term: Output, outside: Output, rows: int) -> Linear | None:
        shape = term.spec.shape
        if (
            shape is None
            or not all(equal(d, 1) for d in shape[:-1])
            or not (not shape or equal(shape[-1], 1) or equal(shape[-1], rows))
        ):
            return None
        g = self.body.graph
        flat = g.add(Reshape(), outside, g.constant([-1]))
        return Linear(self.body, rows, (), ((flat, bool(shape) and equal(shape[-1], rows)),))

    def _product(self, port: Output, rows: int) -> Linear | None:
        op: Any = port.node.op
        left, right = (_required(s) for s in port.node.sources)
        matrix, width = self.body.hoisted(right), _width(left)
        if matrix is None or width is None or op.transpose_a or _rank(right) != 2 or not self._is_rows(left, width):
            return None
        g = self.body.graph
        if not op.transpose_b:
            matrix = g.add(Transpose(), matrix, g.constant([1, 0]))
        assert matrix is not None
        factors = self._factors(strip_reshapes(left), width)
        if factors is None:
            return None
        if len(factors) == 1:
            return Linear(self.body, rows, ((factors[0][0], matrix),))
        lengths = g.constant([n for _, n in factors])
        parts = g.add(VariadicSplit(), matrix, g.constant(1), lengths, outputs=len(factors))
        return Linear(self.body, rows, tuple((v, m) for (v, _), m in zip(factors, parts)))

    def _factors(self, port: Output, width: int) -> list[tuple[Any, int]] | None:
        """Return the vectors that a matrix is multiplied by, with their widths: x, h, products, or several in a Concat.

        Return None if the port is anything else.
        """
        node = port.node
        if node.op.name == "Concat":
            rank = _rank(port) or 0
            if node.op.axis % rank != rank - 1:  # type: ignore[attr-defined]
                return None
            factors: list[tuple[Any, int]] = []
            for source in map(_required, node.sources):
                n = _width(source)
                parts = None if n is None or not self._is_rows(source, n) else self._factors(strip_reshapes(source), n)
                if parts is None:
                    return None
                factors += parts
            return factors
        if port is self.h:
            return [("h", width)] if width == self.hidden else None
        if node.op.name == "Multiply":
            return [(port, width)] if width == self.hidden else None
        x = self.body.slices(port)
        if x is None or self.x not in (None, x):
            return None
        self.x, self.features = x, width
        return [("x", width)]

    def _is_rows(self, port: Output, width: int | None) -> bool:
        return width is not None and self.batch is not None and is_rows(port.spec.shape, self.batch, width)

    # ---- weights

    def _assemble(self, gates: Gates, states: Sequence[tuple[Output, Output]]) -> Step | None:
        """Return the step, with the weights of its gates joined; None if gates do not take x and h as they have to."""
        sequence, attributes, input_side, recurrent = gates
        x, features, hidden, dtype = self.x, self.features, self.hidden, self.new.spec.type
        if x is None or features is None or hidden is None or any(g.rows != hidden for g in (*input_side, *recurrent)):
            return None
        expected = [{"x", "h"} if a is b else {"x"} for a, b in zip(input_side, recurrent)]
        if any(g.factors() != w for g, w in zip(input_side, expected)):
            return None
        g = self.body.graph

        def joined(parts: Sequence[Output]) -> Output:
            port: Output = parts[0] if len(parts) == 1 else g.add(Concat(axis=0), *parts)
            return port

        biased = [*input_side, *(b for a, b in zip(input_side, recurrent) if a is not b)]
        bias = None
        if any(linear.biases for linear in biased):
            totals = []
            for linear in biased:
                total = g.constant([0] * hidden, dtype)
                for b, _ in linear.biases:
                    total = g.add(Add(), total, b)
                totals.append(total)
            bias = joined(totals)
        w, r = joined([gate.matrix("x") for gate in input_side]), joined([gate.matrix("h") for gate in recurrent])
        before, after = zip(*states)
        attributes = {**attributes, "hidden_size": hidden}
        return Step(sequence, attributes, x, features, features, hidden, before, after, w, r, bias)


def _attributes(*activations: Activation) -> dict[str, Any]:
    names, alphas, betas = zip(*activations)
    return {"activations": names, "activations_alpha": alphas, "activations_beta": betas}


def _activation(port: Output) -> Activation | None:
    """Return the activation that computes the port, None if another layer does."""
    name = port.node.op.name
    if name in ("Sigmoid", "Tanh", "Relu"):
        return name.lower(), 0.0, 0.0
    if name == "HardSigmoid":
        values = [_required(s).spec.constant for s in port.node.sources[1:]]
        if all(v is not None and v.size == 1 for v in values):
            alpha, beta = (float(v.reshape(-1)[0]) for v in values if v is not None)
            return "hardsigmoid", alpha, beta
    return None


def _operands(port: Output, name: str) -> list[tuple[Output, Output]]:
    """Return the operands of a binary op before reshapes, in both orders if it commutes; none for other ops."""
    port = strip_reshapes(port)
    if port.node.op.name != name or not broadcasts(port.node):
        return []
    a, b = (strip_reshapes(s) for s in port.node.sources)
    return [(a, b)] if name == "Subtract" else list(permutations((a, b)))  # type: ignore[arg-type]


def _terms(port: Output) -> Iterator[Output]:
    """Yield the terms of a sum."""
    if port.node.op.name != "Add":
        yield port
        return
    for source in port.node.sources:
        yield from _terms(strip_reshapes(source))


def _part(port: Output) -> tuple[Output, int, int] | None:
    """Return (tensor, start, stop) if the port is this slice of the tensor along its last axis, else None."""
    node = port.node
    if node.op.name not in ("Split", "VariadicSplit", "Slice", "StridedSlice"):
        return None
    source = _required(node.sources[0])
    shape, values = source.spec.shape, [None if s is None else s.spec.ints() for s in node.sources[1:]]
    if not shape or not isinstance(shape[-1], int) or None in values:
        return None
    last, op = len(shape) - 1, op_of(node)
    if isinstance(op, (Split, VariadicSplit)):
        widths = [_width(p) for p in node.ports]
        if not equal(values[0][0] % len(shape), last) or None in widths:  # type: ignore[index]
            return None
        start = sum(n for n in widths[: port.index] if n is not None)
        return source, start, start + (widths[port.index] or 0)
    spans = op.spans(len(shape), *values)  # type: ignore[attr-defined]
    if len(spans) != len(shape) or any(s is None or not s.keep or not equal(s.step, 1) for s in spans):
        return None
    taken = [sliced(extent, span) for extent, span in zip(shape, spans)]
    start, count = taken[-1]
    if (
        not isinstance(start, int)
        or not isinstance(count, int)
        or not all(equal(first, 0) and equal(n, extent) for (first, n), extent in zip(taken[:-1], shape))
    ):
        return None
    return source, start, start + count


def _is_one(port: Output) -> bool:
    value = port.spec.constant
    return value is not None and value.size > 0 and bool((value == 1).all())


def _required(port: Output | None) -> Output:
    assert port is not None
    return port


def _rank(port: Output | None) -> int | None:
    return None if port is None else port.spec.rank


def _width(port: Output | None) -> int | None:
    """Return the last extent if it is known, else None."""
    shape = None if port is None else port.spec.shape
    return shape[-1] if shape and isinstance(shape[-1], int) else None
