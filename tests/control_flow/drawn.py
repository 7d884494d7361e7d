"""Random nets: a few layers of many kinds, TensorIterator, Loop and If among them, with random port maps.

Every value has an example, which gives its shape and decides conditions. Nets that are `plain` use only features that
OpenVINO's CPU plugin computes correctly; comments name the faults that the other nets would meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.harness import Net, feed, take
from tests.harness.elements import as_logical
from tests.harness.interpret import computed, sliced
from tests.harness.ir import Dims, Port

Array = np.ndarray[Any, Any]
LARGEST = 60  # maximum number of elements of a value
DEEPEST = 3  # maximum nesting depth of nets


@dataclass(frozen=True, eq=False)
class Value:
    """Output of a layer. A ``loose`` value has another shape in other inferences, or is of no use."""

    port: Port
    example: Array
    loose: bool = False


@dataclass(eq=False)
class Drawn:
    """Net built from random layers."""

    draw: st.DrawFn
    kind: str
    plain: bool
    depth: int = 0
    net: Net = field(default_factory=Net)
    values: list[Value] = field(default_factory=list)
    computed_values: list[Value] = field(default_factory=list)  # values that layers of this net compute
    draws: dict[str, Callable[[], Any]] = field(default_factory=dict)  # draw inputs of an inference
    reserved: list[Value] = field(default_factory=list)  # values with a fixed use, which layers do not take
    trips: int = 0  # trip count of the current inference, if its inputs decide it
    least: int = 0  # minimum of `trips`

    # ---- choices

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one(self, of: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(of))

    def any(self, least: int = 0) -> Value | None:
        """Draw a value that layers may take, of at least this rank."""
        found = [v for v in self.values if v.example.ndim >= least and not v.loose]
        value: Value | None = self.one(found) if found else None
        return value

    def shape(self) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(st.sampled_from((1, 2, 3, 5)), min_size=1, max_size=3)))

    def numbers(self, shape: Sequence[int]) -> Array:
        """Draw quarters or whole numbers, whose sums are exact."""
        seed = self.number(0, 999)
        found = np.random.default_rng(seed).integers(-9, 9, shape, endpoint=True)
        return (found / 4).astype(np.float32) if self.kind == "f32" else found.astype(np.int32)

    # ---- layers

    def parameter(self, kind: str, declared: Dims, draw: Callable[[], Any]) -> Value:
        """Add a parameter of the model; `draw` samples its values."""
        port = self.net.parameter(kind, declared)
        self.draws[f"in{port.layer}"] = draw
        return Value(port, as_logical(draw(), kind))

    def const(self, array: Any, kind: str | None = None) -> Value:
        port = self.net.const(array, kind)
        return Value(port, computed(self.net.nodes[-1], [])[0])

    def layer(
        self, type: str, version: str, inputs: Sequence[Value], *constants: Any, outputs: Any = 1, **attrs: Any
    ) -> Value:
        """Add a layer of values and constants (int64 unless they are arrays), and return its first output."""
        inputs = [
            *inputs,
            *(self.const(np.asarray(c, None if isinstance(c, np.ndarray) else np.int64)) for c in constants),
        ]
        ports = self.net.layer(type, version, [v.port for v in inputs], attrs, outputs)
        found = computed(self.net.nodes[-1], [v.example for v in inputs])
        return Value(ports[0] if isinstance(ports, tuple) else ports, found[0])

    def grow(self, least: int, most: int) -> None:
        """Add between `least` and `most` layers."""
        for _ in range(self.number(least, most)):
            if self.depth < DEEPEST and self.chance(12):
                # OpenVINO takes no iterator in an iterator
                self.one((loop, branch) if self.plain and self.depth else (iterator, loop, branch))(self)
                continue
            x = self.any()
            assert x is not None
            ways = [self.elementwise, self.elementwise, self.scaled]
            ways += [self.reshaped, self.part, self.joined, self.summed] if x.example.ndim else []
            ways += [self.transposed, self.projected, self.cell] if x.example.ndim > 1 else []
            value = self.one(ways)(x)
            if value.example.size <= LARGEST:
                self.values.append(value)
                self.computed_values.append(value)

    def scaled(self, x: Value) -> Value:
        if self.kind == "f32" and self.chance(50):
            return self.layer(self.one(("Tanh", "ReLU")), "opset1", [x])
        factor = np.array(self.one((0.5, -0.5, -1) if self.kind == "f32" else (-1, 1)), x.example.dtype)
        return self.layer("Multiply", "opset1", [x], factor, auto_broadcast="numpy")

    def elementwise(self, x: Value) -> Value:
        fits = [v for v in self.values if not v.loose and broadcasts(x.example, v.example)]
        kind = self.one(("Add", "Subtract", "Maximum", "Minimum"))
        return self.layer(kind, "opset1", [x, self.one([x, *fits])], auto_broadcast="numpy")

    def reshaped(self, x: Value) -> Value:
        shape = self.one(([-1], x.example.shape[::-1], (1, *x.example.shape), (*x.example.shape, 1)))
        return self.layer("Reshape", "opset1", [x], shape, special_zero=False)

    def transposed(self, x: Value) -> Value:
        return self.layer("Transpose", "opset1", [x], self.draw(st.permutations(range(x.example.ndim))))

    def part(self, x: Value) -> Value:
        axis = self.number(0, x.example.ndim - 1)
        extent = x.example.shape[axis]
        start, step = self.number(0, extent - 1), self.one((1, 2))
        if self.chance(25):
            return self.layer("Slice", "opset8", [x], [-1], [-99], [-step], [axis])
        return self.layer("Slice", "opset8", [x], [start], [self.number(start + 1, extent)], [step], [axis])

    def joined(self, x: Value) -> Value:
        axis = self.number(0, x.example.ndim - 1)
        rest = np.delete(x.example.shape, axis)
        fits = [
            v
            for v in self.values
            if not v.loose
            and v.example.ndim == x.example.ndim
            and np.array_equal(np.delete(v.example.shape, axis), rest)
        ]
        return self.layer("Concat", "opset1", [x, self.one(fits)], axis=axis)

    def summed(self, x: Value) -> Value:
        axes = self.draw(st.lists(st.integers(0, x.example.ndim - 1), min_size=1, unique=True))
        return self.layer("ReduceSum", "opset1", [x], axes, keep_dims=self.chance(50))

    def projected(self, x: Value) -> Value:
        """Multiply by a matrix of small values."""
        if self.kind != "f32":
            return self.elementwise(x)
        inner, columns = x.example.shape[-1], self.one((1, 2, 3))
        matrix = self.numbers((inner, columns)) / (4 * inner)
        return self.layer("MatMul", "opset1", [x], matrix, transpose_a=False, transpose_b=False)

    def less(self, x: Value, limit: Array) -> Value:
        return self.layer("Less", "opset1", [x], limit, outputs=["boolean"], auto_broadcast="numpy")

    def test(self) -> tuple[Value, Array]:
        """Return a scalar value and a limit to compare it with."""
        x = self.any()
        assert x is not None
        total = self.layer("ReduceSum", "opset1", [x], range(x.example.ndim), keep_dims=False) if x.example.ndim else x
        limit = total.example + self.number(-9, 9) + (0.1 if self.kind == "f32" else 0)  # no sum equals it
        return total, np.asarray(limit, total.example.dtype)

    def cell(self, x: Value) -> Value:
        """Add a recurrent cell over the last axis; its state is another value, where one fits."""
        if self.kind != "f32":
            return self.summed(x)
        rows = x.example.size // x.example.shape[-1]
        flat = x if x.example.ndim == 2 else self.layer("Reshape", "opset1", [x], [rows, -1], special_zero=False)
        fits = [v for v in self.values if not v.loose and v.example.ndim == 2 and v.example.shape[0] == rows]
        h = self.one([*fits, flat])
        size, inner = h.example.shape[1], flat.example.shape[1]
        alike = [v for v in self.values if not v.loose and v.example.shape == h.example.shape]
        kind, version, gates = self.one((("RNNCell", "opset1", 1), ("GRUCell", "opset3", 3), ("LSTMCell", "opset4", 4)))
        states = [h, self.one([*alike, h])] if gates == 4 else [h]
        weights = [self.numbers((gates * size, n)) / 8 for n in (inner, size)]
        return self.layer(
            kind,
            version,
            [flat, *states],
            *weights,
            self.numbers((gates * size,)) / 4,
            outputs=2 if gates == 4 else 1,
            hidden_size=size,
        )


def broadcasts(a: Array, b: Array) -> bool:
    try:
        return np.broadcast(a, b).size <= LARGEST
    except ValueError:
        return False


class Body(Drawn):
    """Body of a layer: its parameters have values of the net around it."""

    def __init__(self, outer: Drawn) -> None:
        super().__init__(outer.draw, outer.kind, outer.plain, outer.depth + 1)
        self.results: dict[Value, Port] = {}

    def enter(self, example: Array, kind: str | None = None) -> Value:
        """Add a parameter; its shape is declared or left dynamic."""
        shape = [-1] * example.ndim if self.chance(30) else example.shape
        value = Value(self.net.parameter(kind or self.kind, shape), example)
        if kind is None:
            self.values.append(value)
        return value

    def leave(self, value: Value, anew: bool = False) -> Port:
        """Return the result of a value; now and then, or with `anew`, a new one."""
        if self.plain and value not in self.computed_values:  # the plugin overwrites values that pass straight through
            value = self.scaled(value)
        if value not in self.results or anew or self.chance(10):
            self.results[value] = self.net.result(value.port)
        return self.results[value]


def slicing(body: Body, extent: int, trips: int | None) -> tuple[dict[str, int], int] | None:
    """Draw (attributes, trip count) that slice an axis, `trips` times if given. Returns None if that is impossible."""
    parts = [p for p in range(1, extent + 1) if extent % p == 0 and trips in (None, extent // p)]
    if parts and (body.plain or body.chance(50)):
        part = stride = body.one(parts)
        first, span, trips = 0, extent, extent // part
    elif body.plain or extent < (trips or 1):  # the plugin uses the stride as part size, and starts at an end
        return None
    else:
        trips = body.number(1, min(extent, 4)) if trips is None else trips
        stride = body.number(1, extent // trips)
        part = body.number(1, extent - (trips - 1) * stride)
        span = max(trips * stride, (trips - 1) * stride + part)
        first = body.number(0, extent - span)
    start, end = first, first + trips * stride
    if body.chance(40):
        start, end, stride = first + span, first + span - trips * stride, -stride
    attrs = {"start": start, "end": end, "stride": stride, "part_size": part}
    if start == (extent if stride < 0 else 0) and end == (0 if stride < 0 else extent):
        attrs |= {"start": -1, "end": 0} if stride < 0 else {"start": 0, "end": -1}
    else:
        for key in ("start", "end"):
            attrs[key] -= extent + 1 if body.chance(50) else 0
    defaults = {"start": 0, "end": -1, "stride": 1, "part_size": 1}
    return {k: v for k, v in attrs.items() if v != defaults[k] or body.chance(30)}, trips


def enter_slices(outer: Drawn, body: Body, most: int) -> tuple[list[Any], int | None]:
    """Return links of sliced inputs, and the trip count that they imply."""
    links: list[Any] = []
    trips: int | None = None
    for _ in range(body.number(1, most)):
        x = outer.any(1)
        if x is None:
            break
        axis = body.number(0, x.example.ndim - 1)
        found = slicing(body, x.example.shape[axis], trips)
        if found is None:
            continue
        attrs, trips = found
        if not body.plain and body.chance(20):  # the plugin reads beyond the shape for a negative axis
            axis -= x.example.ndim
        attrs = {"axis": axis, **attrs}
        links.append(feed(x.port, body.enter(sliced(x.example, 0, **attrs)).port, **attrs))
    return links, trips


def enter_wholes(outer: Drawn, body: Body, most: int) -> list[Any]:
    """Return (link, value of the body) of inputs that are not sliced."""
    found = []
    for _ in range(body.number(0, most)):
        x = outer.any()
        assert x is not None
        inner = body.enter(x.example)
        found.append((feed(x.port, inner.port), inner))
    return found


def back_edges(body: Body, wholes: Sequence[tuple[Any, Value]]) -> list[tuple[Port, Port]]:
    """Return back edges to some of the parameters, from values of equal shape, also from each other."""
    found = []
    for _, inner in wholes:
        alike = [v for v in body.values if not v.loose and v.example.shape == inner.example.shape]
        computed_values = [v for v in alike if v in body.computed_values]
        if body.chance(80):
            value = body.one(computed_values if computed_values and body.chance(75) else alike)
            if body.plain:  # the plugin overwrites values that are still to be read
                value = body.layer("Add", "opset1", [value, inner], auto_broadcast="numpy")
                body.computed_values.append(value)
            found.append((body.leave(value), inner.port))
    return found


def leave_outputs(
    body: Body, edges: Sequence[tuple[Port, Port]], varying: bool, perhaps: bool, reverse: bool = True
) -> tuple[list[Any], list[bool]]:
    """Return links of outputs and whether each is loose: last values, and concatenations along any axis either way.

    If ``varying``, the trip count differs between inferences. If ``perhaps``, it may be 0: then last values are those
    of back edges, which have an initial value. ``reverse`` allows concatenations in reverse order.
    """
    links, loose = [], []
    for _ in range(body.number(1, 3)):
        value = body.one(body.computed_values if body.computed_values and body.chance(80) else body.values)
        # the plugin writes beyond the end of a concatenation of parts whose extent is not 1
        axes = [a for a, extent in enumerate(value.example.shape) if extent == 1 or not body.plain]
        if axes and not value.loose and body.chance(60):
            links.append(take(body.leave(value), **joining(body, value.example, axes, reverse)))
            loose.append(varying)
        elif not perhaps or edges:
            links.append(take(body.one(edges)[0] if perhaps else body.leave(value)))
            loose.append(value.loose and not perhaps)
    return links, loose


def joining(body: Body, part: Array, axes: Sequence[int], reverse: bool) -> dict[str, int]:
    """Draw the attributes of a concatenated output."""
    axis = body.one(axes)
    attrs = {"axis": axis if body.plain or body.chance(80) else axis - part.ndim}
    return attrs | {"start": -1, "end": 0, "stride": -1} if reverse and body.chance(40) else attrs


def add_outputs(outer: Drawn, ports: Any, loose: Sequence[bool]) -> None:
    """Add the outputs of the layer added last to the values of the net."""
    node = outer.net.nodes[-1]
    examples = {value.port: value.example for value in (*outer.values, *outer.reserved)}
    found = computed(node, [examples[port] for port in node.inputs])
    for port, example, free in zip(ports if isinstance(ports, tuple) else (ports,), found, loose, strict=True):
        value = Value(port, example, free or not 0 < example.size <= LARGEST)
        outer.values.append(value)
        outer.computed_values.append(value)


def iterator(outer: Drawn) -> None:
    """Add a TensorIterator."""
    body = Body(outer)
    varying = not outer.depth and outer.chance(40)
    links = stretched(outer, body) if varying else enter_slices(outer, body, 2)[0]
    wholes = enter_wholes(outer, body, 2 if links else 3)
    if not (links or (wholes and not body.plain)):  # the plugin needs a sliced input
        return
    body.grow(1, 4)
    edges = back_edges(body, wholes)
    perhaps = varying and not body.plain and outer.chance(50)  # the plugin drops tensors without elements
    outputs, loose = leave_outputs(body, edges, varying, perhaps)
    if body.plain:  # the plugin runs once if no sliced input is used
        outputs.append(take(body.leave(body.values[0])))
        loose.append(False)
    if not outputs:
        return
    if varying and not perhaps:
        outer.least = 1
    ports = outer.net.tensor_iterator(body.net, [*links, *(link for link, _ in wholes)], outputs, edges)
    add_outputs(outer, ports, loose)


def stretched(outer: Drawn, body: Body) -> list[Any]:
    """Return links of sliced parameters whose extent differs between inferences."""
    links = []
    outer.trips = outer.trips or outer.number(1, 4)
    for _ in range(body.number(1, 2)):
        shape = list(outer.shape())
        axis, part = body.number(0, len(shape) - 1), body.number(1, 3)
        before, after, stride, backwards = 0, 0, part, body.chance(40)
        if not body.plain and body.chance(60):
            before, after, stride = body.number(0, 2), body.number(0, 2), body.number(1, 3)
        before, after = (max(before, part - stride), after) if backwards else (before, max(after, part - stride))
        attrs = {"start": -1 - after, "end": before} if backwards else {"start": before, "end": -1 - after}
        attrs |= {"axis": axis, "stride": -stride if backwards else stride, "part_size": part}

        def drawn(shape: Any = shape, axis: int = axis, rest: int = before + after, stride: int = stride) -> Array:
            return outer.numbers((*shape[:axis], rest + outer.trips * stride, *shape[axis + 1 :]))

        x = outer.parameter(outer.kind, [-1 if a == axis else d for a, d in enumerate(shape)], drawn)
        outer.reserved.append(x)
        links.append(feed(x.port, body.enter(sliced(x.example, 0, **attrs)).port, **attrs))
    return links


def loop(outer: Drawn) -> None:
    """Add a Loop."""
    body = Body(outer)
    links, most = enter_slices(outer, body, 1) if outer.chance(30) else ([], None)
    wholes = enter_wholes(outer, body, 3)
    counter = None
    if body.chance(50):
        kind = body.one(("i64", "i32"))
        counter = body.enter(as_logical(np.zeros(body.one(((), (1,)))), kind), kind)
        body.values.append(body.layer("Convert", "opset1", [counter], outputs=[body.kind], destination_type=body.kind))
    if not body.values:
        return
    body.grow(1, 4)
    edges = back_edges(body, wholes)
    decides, condition = condition_of(body, counter)
    perhaps, asked = not body.plain and outer.chance(30), not outer.depth and outer.chance(40)
    varying = asked or decides != "nothing"
    # the plugin ignores the order if the number of parts is unknown, or if it has folded a loop without inputs
    forgets = body.plain and (varying or not (links or wholes))
    outputs, loose = leave_outputs(body, edges, varying, perhaps, reverse=not forgets)
    if not outputs:
        return
    least, most = 0 if perhaps else 1, most or 5
    if asked:
        count = outer.parameter(outer.one(("i64", "i32")), (), lambda: outer.number(least, most))
    elif decides == "counter" and not links and outer.chance(50):
        count = outer.const(-1)
    else:
        count = outer.const(np.full(outer.one(((), (1,))), outer.number(least, most)))
    if asked and perhaps and outer.chance(50):
        start = outer.parameter("boolean", (), lambda: outer.chance(70))
    else:
        start = outer.const(np.full(outer.one(((), (1,))), not perhaps or outer.chance(70)))
    outer.reserved += [count, start]
    ports = outer.net.loop(
        count.port,
        start.port,
        body.net,
        [*links, *(link for link, _ in wholes)],
        outputs,
        edges,
        body_condition=condition,
        iteration=counter.port if counter else None,
    )
    add_outputs(outer, ports, loose)


def condition_of(body: Body, counter: Value | None) -> tuple[str, Port]:
    """Return the kind of the condition to go on, and the body's result that holds it."""
    decides = body.one(("nothing", "a value", *(["counter"] if counter else [])))
    if decides == "nothing":
        value = body.const(np.full(body.one(((), (1,))), True))
    elif decides == "counter":
        assert counter is not None
        value = body.less(counter, np.array(body.number(0, 3), counter.example.dtype))
    else:
        value = body.less(*body.test())
    return decides, body.net.result(value.port)


def branch(outer: Drawn) -> None:
    """Add an If."""
    bodies = [Body(outer), Body(outer)]
    links = []
    for _ in range(outer.number(0, 3)):
        x = outer.any()
        assert x is not None
        entered = [body.enter(x.example).port if body.chance(70) else None for body in bodies]
        if any(entered):
            links.append((x.port, *entered))
    for body in bodies:
        if not body.values or body.chance(10):
            body.values.append(body.const(body.numbers(body.shape())))
        body.grow(0, 3)
    results, loose = [], []
    for _ in range(outer.number(1, 2)):
        then, other = (body.one(body.values) for body in bodies)
        results.append((bodies[0].leave(then, anew=True), bodies[1].leave(other, anew=True)))
        loose.append(then.loose or other.loose or then.example.shape != other.example.shape)
    if not outer.depth and outer.chance(40):
        shape = outer.one(((), (1,)))
        condition = outer.parameter("boolean", shape, lambda: np.full(shape, outer.chance(50)))
    else:
        condition = outer.const(outer.chance(50)) if outer.chance(15) else outer.less(*outer.test())
    outer.reserved.append(condition)
    add_outputs(outer, outer.net.if_(condition.port, bodies[0].net, bodies[1].net, links, results), loose)


@st.composite
def nets(draw: st.DrawFn, control: Callable[[Drawn], None]) -> Drawn:
    """Draw nets with at least one layer of control flow, and others around and in it."""
    top = Drawn(draw, draw(st.sampled_from(("f32", "f32", "i32"))), draw(st.booleans()))
    for _ in range(top.number(1, 3)):
        shape = top.shape()
        top.values.append(top.parameter(top.kind, shape, lambda shape=shape: top.numbers(shape)))
    top.grow(0, 2)
    control(top)
    top.grow(0, 2)
    assume(top.computed_values)
    return top
