"""Nets of Loop and their results by the specification, for the scenarios of `test_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.harness import Infer, Net, Scenario, feed, take
from tests.harness.elements import as_logical
from tests.harness.ir import Port
from tests.harness.layers import (
    add,
    compare,
    concat,
    convert,
    gather,
    i64,
    mul,
    nonzero,
    numbers,
    op2,
    reduce,
    relu,
    reshape,
    scalar,
    shape_of,
    slice_,
    squeeze,
    tanh,
    unsqueeze,
)

X = [numbers(2, 3, seed=n) for n in range(4)]
F = np.float32
Body = Callable[[Net, Port, Sequence[Port]], tuple[Port | None, Sequence[Port]]]


def looped(
    body: Body,
    carried: Sequence[Any],
    outputs: Sequence[tuple[int, int | None]],
    *,
    trips: Any = 3,
    start: Any = True,
    back: Sequence[int] | None = None,
    counter: tuple[str, Sequence[int]] = ("i64", ()),
    kind: str = "f32",
    count_type: str = "i64",
    x_shape: Sequence[int] = (2, 3),
    then: Callable[[Net, Any], Sequence[Port]] | None = None,
    out: dict[str, int] | None = None,
) -> Net:
    """Build a Loop with an input x that is the same at every iteration.

    ``body(net, i, [x, *carried])`` returns a condition (None: always true) and results. Result k goes back to carried
    k, or result ``back[k]`` does. Outputs are (result, axis to concatenate along or None). ``trips`` is a number, "n"
    for a parameter, or a function (net, x) -> port; ``start`` is a boolean, or "go" for a parameter.
    """
    net, inside = Net(), Net()
    x = net.parameter(kind, x_shape, "x")
    i = inside.parameter(*counter)
    params = [inside.parameter(kind, x_shape)]
    params += [inside.parameter(kind, np.shape(c)) for c in carried]
    condition, values = body(inside, i, params)
    condition = inside.result(inside.const(np.array(True)) if condition is None else condition)
    results = [inside.result(v) for v in values]
    limit = (
        net.parameter(count_type, (), "n")
        if trips == "n"
        else trips(net, x)
        if callable(trips)
        else scalar(net, trips, count_type)
    )
    first = net.parameter("boolean", (), "go") if start == "go" else net.const(np.asarray(start))
    links = [feed(x, params[0]), *(feed(net.const(c, kind), p) for c, p in zip(carried, params[1:]))]
    sources = range(len(carried)) if back is None else back
    edges = [(results[s], p) for s, p in zip(sources, params[1:]) if s >= 0]
    taken = [take(results[r], **({} if axis is None else {"axis": axis, **(out or {})})) for r, axis in outputs]
    found = net.loop(limit, first, inside, links, taken, edges, body_condition=condition, iteration=i)
    found = found if isinstance(found, tuple) else (found,)
    for port in found if then is None else then(net, found):
        net.result(port)
    return net


def expected(
    step: Callable[..., tuple[bool, Sequence[Any]]],
    carried: Sequence[Any],
    outputs: Sequence[tuple[int, int | None]],
    x: Any,
    *,
    trips: int = 3,
    start: bool = True,
    back: Sequence[int] | None = None,
    empty: Sequence[Any] = (),
    **inputs: Any,
) -> Infer:
    """Compute `looped` with NumPy: ``step(i, x, *carried)``. ``empty`` are the outputs without any iteration."""
    values, seen, go, i = list(carried), [], start, 0
    while go and (trips < 0 or i < trips):
        go, results = step(i, x, *values)
        results = [np.asarray(r) for r in results]
        seen.append(results)
        sources = range(len(carried)) if back is None else back
        values = [results[s] if s >= 0 else c for s, c in zip(sources, carried)]
        i += 1
    outputs_expected = (
        [seen[-1][r] if axis is None else np.concatenate([s[r] for s in seen], axis) for r, axis in outputs]
        if seen
        else list(empty)
    )
    return Infer(outputs_expected, x=x, **inputs)


def judged(name: str, net: Net, *steps: Infer, **kwargs: Any) -> Scenario:
    return Scenario(name, net, list(steps) or [Infer(x=x) for x in X[:2]], **kwargs)


def valued(name: str, net: Net, *steps: Infer, **kwargs: Any) -> Scenario:
    return Scenario(name, net, list(steps), oracle="value", **kwargs)


def doubling(b: Net, i: Port, p: Sequence[Port]) -> tuple[None, Sequence[Port]]:
    return None, [add(b, mul(b, p[1], scalar(b, 2)), p[0])]


def double(i: int, x: Any, h: Any) -> tuple[bool, Sequence[Any]]:
    return True, [h * 2 + x]


def until(limit: float) -> Body:
    """Return a body that doubles until the sum reaches the limit."""

    def body(b: Net, i: Port, p: Sequence[Port]) -> tuple[Port, Sequence[Port]]:
        new = add(b, mul(b, p[1], scalar(b, 2)), p[0])
        return compare(b, "Less", reduce(b, "ReduceSum", new, [0, 1]), scalar(b, limit)), [new]

    return body


def step_until(limit: float) -> Callable[..., tuple[bool, Sequence[Any]]]:
    return lambda i, x, h: (bool((h * 2 + x).sum() < limit), [h * 2 + x])


def counted(how: str) -> Body:
    """Return a body that uses the iteration number in maths, as an index, or as a bound."""

    def body(b: Net, i: Port, p: Sequence[Port]) -> tuple[None, Sequence[Port]]:
        if how == "maths":
            value = add(b, p[1], mul(b, convert(b, i, "f32"), p[0]))
        elif how == "gather":
            value = add(b, p[1], gather(b, p[0], i, 1))
        elif how == "row":
            value = op2(b, "Maximum", p[1], unsqueeze(b, gather(b, p[0], op2(b, "Mod", i, scalar(b, 2, "i64"))), [0]))
        elif how == "slice":
            start = reshape(b, i, [1])
            value = add(b, p[1], slice_(b, p[0], start, add(b, start, i64(b, [1])), 1))
        else:  # a range as long as the iteration number
            steps = b.layer(
                "Range", "opset4", [scalar(b, 0, "i64"), i, scalar(b, 1, "i64")], {"output_type": "f32"}, ["f32"]
            )
            value = add(b, p[1], reduce(b, "ReduceSum", steps, [0], True))
        return None, [value]

    return body


COUNTED: dict[str, tuple[Any, Callable[..., Any]]] = {
    "maths": (np.zeros((2, 3), F), lambda i, x, h: h + F(i) * x),
    "gather": (np.zeros(2, F), lambda i, x, h: h + x[:, i]),
    "row": (np.zeros((1, 3), F), lambda i, x, h: np.maximum(h, x[i % 2][None])),
    "slice": (np.zeros((2, 1), F), lambda i, x, h: h + x[:, i : i + 1]),
    "range": (np.zeros(1, F), lambda i, x, h: h + np.arange(i, dtype=F).sum(keepdims=True)),
}


def by_counter(how: str, **kwargs: Any) -> list[Scenario]:
    start, step = COUNTED[how]
    net = looped(counted(how), [start], [(0, None), (0, 0)], **kwargs)
    name = "-".join([f"counter-in-{how}", *(str(v) for v in kwargs.get("counter", ()))])
    return [
        valued(name, net, *(expected(lambda *a: (True, [step(*a)]), [start], [(0, None), (0, 0)], x) for x in X[:2]))
    ]


def grows(axis: int) -> Net:
    """Build a Loop whose carried tensor grows by one part per iteration."""
    net, body = Net(), Net()
    x, n = net.parameter("f32", (1, 3), "x"), net.parameter("i64", (), "n")
    i, frame, every = body.parameter("i64", ()), body.parameter("f32", (1, 3)), body.parameter("f32", (-1, -1))
    scaled = mul(body, frame, convert(body, add(body, i, scalar(body, 1, "i64")), "f32"))
    new, last = body.result(concat(body, [every, scaled], axis)), body.result(scaled)
    go = body.result(body.const(np.array(True)))
    for port in net.loop(
        n,
        net.const(np.array(True)),
        body,
        [feed(x, frame), feed(x, every)],
        [take(new), take(last)],
        [(new, every)],
        body_condition=go,
        iteration=i,
    ):
        net.result(mul(net, port, scalar(net, 2)))
    return net


def grown(axis: int, n: int, x: Any) -> Infer:
    parts = [x, *(x * F(i + 1) for i in range(n))]
    return Infer([np.concatenate(parts, axis) * 2, parts[-1] * 2], x=x, n=np.array(n))


def sliced() -> Net:
    """Build a Loop that slices an input like a TensorIterator; the trip count must fit."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    row, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(add(body, row, mul(body, h, scalar(body, 0.5))))
    go = body.result(body.const(np.array(True)))
    start = net.const(np.zeros((1, 3), F))
    for port in net.loop(
        squeeze(net, slice_(net, shape_of(net, x), 0, 1), [0]),
        net.const(np.array(True)),
        body,
        [feed(x, row, axis=0), feed(start, h)],
        [take(new), take(new, axis=0)],
        [(new, h)],
        body_condition=go,
    ):
        net.result(port)
    return net


def captured() -> Net:
    """Build a Loop with values computed outside of the body, one of them taken twice."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    y = tanh(net, x)
    a, b, h = (body.parameter("f32", (2, 3)) for _ in range(3))
    new = body.result(add(body, mul(body, a, h), b))
    go = body.result(body.const(np.array(True)))
    net.result(
        net.loop(
            scalar(net, 3, "i64"),
            net.const(np.array(True)),
            body,
            [feed(y, a), feed(y, b), feed(x, h)],
            [take(new)],
            [(new, h)],
            body_condition=go,
        )
    )
    net.result(add(net, y, x))
    return net


def for_loop(
    net: Net, trips: int | Port, body: Net, links: Any, outputs: Any, edges: Any, iteration: Any = None
) -> Any:
    """Add a Loop whose condition is always true."""
    go = body.result(body.const(np.array(True)))
    count = trips if isinstance(trips, Port) else scalar(net, trips, "i64")
    return net.loop(
        count, net.const(np.array(True)), body, links, outputs, edges, body_condition=go, iteration=iteration
    )


def loop_in_loop(inner_trips: str) -> Net:
    """Build a Loop in a Loop, which runs twice, or as often as the outer iteration number."""
    net, outer, inner = Net(), Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    h = inner.parameter("f32", (2, 3))
    i, state = outer.parameter("i64", ()), outer.parameter("f32", (2, 3))
    new = inner.result(add(inner, h, scalar(inner, 1)))
    count = i if inner_trips == "counter" else 2
    last = outer.result(
        mul(outer, for_loop(outer, count, inner, [feed(state, h)], [take(new)], [(new, h)]), scalar(outer, 2))
    )
    for port in for_loop(net, 3, outer, [feed(x, state)], [take(last), take(last, axis=0)], [(last, state)], i):
        net.result(port)
    return net


def nested(x: Any, counts: Sequence[int]) -> Infer:
    seen, h = [], x
    for n in counts:
        h = (h + n) * 2
        seen.append(h)
    return Infer([h, np.concatenate(seen)], x=x)


def iterator_in_loop() -> Net:
    """Build three passes of a scan over the rows, each beginning where the last one ended."""
    net, outer, inner = Net(), Net(), Net()
    x = net.parameter("f32", (4, 3), "x")
    whole, state = outer.parameter("f32", (4, 3)), outer.parameter("f32", (1, 3))
    row, h = inner.parameter("f32", (1, 3)), inner.parameter("f32", (1, 3))
    new = inner.result(add(inner, row, mul(inner, h, scalar(inner, 0.5))))
    last, every = outer.tensor_iterator(
        inner, [feed(whole, row, axis=0), feed(state, h)], [take(new), take(new, axis=0)], [(new, h)]
    )
    last, every = outer.result(last), outer.result(every)
    for port in for_loop(
        net,
        3,
        outer,
        [feed(x, whole), feed(net.const(np.zeros((1, 3), F)), state)],
        [take(last), take(every, axis=1)],
        [(last, state)],
    ):
        net.result(port)
    return net


def passes(x: Any) -> Infer:
    h, blocks = np.zeros((1, 3), F), []
    for _ in range(3):
        seen = []
        for row in x:
            h = row[None] + h / 2
            seen.append(h)
        blocks.append(np.concatenate(seen))
    return Infer([h, np.concatenate(blocks, 1)], x=x)


def loop_in_iterator() -> Net:
    """Build an iterator that doubles every row as long as the condition of a Loop holds."""
    net, outer, inner = Net(), Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    row, h = outer.parameter("f32", (1, 3)), inner.parameter("f32", (1, 3))
    doubled = mul(inner, h, scalar(inner, 2))
    go = inner.result(compare(inner, "Less", reduce(inner, "ReduceSum", doubled, [0, 1]), scalar(inner, 50)))
    new = inner.result(doubled)
    out = outer.result(
        outer.loop(
            scalar(outer, -1, "i64"),
            outer.const(np.array(True)),
            inner,
            [feed(row, h)],
            [take(new)],
            [(new, h)],
            body_condition=go,
        )
    )
    net.result(net.tensor_iterator(outer, [feed(x, row, axis=0)], [take(out, axis=0)]))
    return net


def doubled_rows(x: Any) -> Infer:
    found = []
    for row in x:
        row = row * 2
        while row.sum() < 50:
            row = row * 2
        found.append(row)
    return Infer([np.array(found)], x=x)


def branch_in_loop() -> Net:
    """Build a Loop whose even iterations add the input, and odd ones take the maximum."""
    net, body, then, other = Net(), Net(), Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    i, a, h = body.parameter("i64", ()), body.parameter("f32", (2, 3)), body.parameter("f32", (2, 3))
    ta, th = then.parameter("f32", (2, 3)), then.parameter("f32", (2, 3))
    oa, oh = other.parameter("f32", (2, 3)), other.parameter("f32", (2, 3))
    rt, ro = then.result(add(then, ta, th)), other.result(op2(other, "Maximum", oa, oh))
    even = compare(body, "Equal", op2(body, "Mod", i, scalar(body, 2, "i64")), scalar(body, 0, "i64"))
    new = body.result(body.if_(even, then, other, [(a, ta, oa), (h, th, oh)], [(rt, ro)]))
    for port in for_loop(
        net,
        4,
        body,
        [feed(x, a), feed(net.const(numbers(2, 3, seed=9)), h)],
        [take(new), take(new, axis=0)],
        [(new, h)],
        i,
    ):
        net.result(port)
    return net


def even_odd(x: Any) -> Infer:
    h, seen = numbers(2, 3, seed=9), []
    for i in range(4):
        h = np.maximum(x, h) if i % 2 else x + h
        seen.append(h)
    return Infer([h, np.concatenate(seen)], x=x)


def three_levels() -> Net:
    """Build a Loop in an If in a Loop."""
    net, outer, then, other, inner = (Net() for _ in range(5))
    x = net.parameter("f32", (2, 3), "x")
    h = outer.parameter("f32", (2, 3))
    a, b, c = then.parameter("f32", (2, 3)), other.parameter("f32", (2, 3)), inner.parameter("f32", (2, 3))
    added = inner.result(add(inner, c, scalar(inner, 3)))
    rt = then.result(for_loop(then, 2, inner, [feed(a, c)], [take(added)], [(added, c)]))
    ro = other.result(mul(other, b, scalar(other, -0.5)))
    small = compare(outer, "Less", reduce(outer, "ReduceMax", h, [0, 1]), scalar(outer, 4))
    new = outer.result(outer.if_(small, then, other, [(h, a, b)], [(rt, ro)]))
    for port in for_loop(net, 5, outer, [feed(x, h)], [take(new), take(new, axis=1)], [(new, h)]):
        net.result(port)
    return net


def levels(x: Any) -> Infer:
    h, seen = x, []
    for _ in range(5):
        h = h + 6 if h.max() < 4 else h * F(-0.5)
        seen.append(h)
    return Infer([h, np.concatenate(seen, 1)], x=x)


def found_inside() -> Net:
    """Build a Loop that counts elements above the iteration number, and sums the counts."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    i, a, total = body.parameter("i64", ()), body.parameter("f32", (2, 3)), body.parameter("i64", (1,))
    found = nonzero(body, relu(body, op2(body, "Subtract", a, convert(body, i, "f32"))))
    new = body.result(add(body, total, slice_(body, shape_of(body, found), 1, 2)))
    for port in for_loop(
        net, 3, body, [feed(x, a), feed(i64(net, [0]), total)], [take(new), take(new, axis=0)], [(new, total)], i
    ):
        net.result(port)
    return net


def rows_of_different_lengths() -> Net:
    """Build a Loop whose concatenated parts are as long as the iteration number."""
    net, body = Net(), Net()
    x = net.parameter("f32", (5, 3), "x")
    i, a = body.parameter("i64", ()), body.parameter("f32", (5, 3))
    part = body.result(slice_(body, a, 0, reshape(body, i, [1])))
    net.result(for_loop(net, 4, body, [feed(x, a)], [take(part, axis=0)], [], i))
    return net


def shape_carried() -> Net:
    """Build a Loop that carries a target shape."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    a, shape = body.parameter("f32", (2, 3)), body.parameter("i64", (2,))
    new = body.result(slice_(body, shape, -1, -10, 0, -1))
    out = body.result(reshape(body, a, shape))
    for port in for_loop(
        net, 2, body, [feed(x, a), feed(i64(net, [6, 1]), shape)], [take(out), take(new)], [(new, shape)]
    ):
        net.result(port)
    return net


def without_counter_or_outputs_used() -> Net:
    """Build a Loop with two outputs, one of them unused."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    h = body.parameter("f32", (2, 3))
    value = tanh(body, h)
    new, other = body.result(value), body.result(add(body, value, value))
    first, _ = for_loop(net, 3, body, [feed(x, h)], [take(new), take(other)], [(new, h)])
    net.result(first)
    return net


def condition_carried() -> Net:
    """Build a Loop whose condition is a carried value, a vector of one element."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    go, h, i = body.parameter("boolean", (1,)), body.parameter("f32", (2, 3)), body.parameter("i64", ())
    other = body.layer("LogicalNot", "opset1", [go])
    go_on = body.result(go)
    flipped, new = body.result(other), body.result(add(body, h, scalar(body, 1)))
    for port in net.loop(
        scalar(net, 9, "i64"),
        net.const(np.array([True])),
        body,
        [feed(net.const(np.array([True])), go), feed(x, h)],
        [take(new), take(flipped)],
        [(new, h), (flipped, go)],
        body_condition=go_on,
        iteration=i,
    ):
        net.result(port)
    return net


def typed(kind: str) -> Scenario:
    dtype = np.uint8 if kind[0] == "u" else np.int64 if kind[0] == "i" else np.float32
    start = as_logical(np.ones((2, 3)), kind)
    x = as_logical(numbers(2, 3, low=0 if kind[0] == "u" else -9, kind=dtype), kind)
    net = looped(lambda b, i, p: (None, [add(b, *p)]), [start], [(0, None), (0, 1)], kind=kind)
    return valued(
        f"type-{kind}",
        net,
        expected(lambda i, a, h: (True, [(a + h).astype(a.dtype)]), [start], [(0, None), (0, 1)], x),
    )


ONES = np.ones((2, 3), F)
A, B = numbers(2, 3, seed=31), numbers(2, 3, seed=32)
BOTH = [(0, None), (0, 0)]
NOTHING = [ONES, np.zeros((0, 3), F)]
LONG = looped(lambda b, i, p: (None, [add(b, p[0], p[1])]), [ONES], [(0, None)], trips="n")


def long_steps(*counts: int) -> list[Infer]:
    return [Infer([ONES + F(n) * X[0]], x=X[0], n=np.array(n)) for n in counts]


def counts(*numbers_of_trips: int, **kwargs: Any) -> list[Infer]:
    return [
        expected(double, [ONES], BOTH, X[0], trips=n, empty=NOTHING, n=np.array(n), **kwargs) for n in numbers_of_trips
    ]
