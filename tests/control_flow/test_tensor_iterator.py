"""TensorIterator: bodies, back edges, outputs, nesting.

The oracle is OpenVINO's CPU plugin, or NumPy where the plugin refuses or errs, as each scenario says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.harness import Infer, Net, Scenario, check, feed, take
from tests.harness.elements import as_logical
from tests.harness.ir import Port
from tests.harness.layers import (
    add,
    broadcast,
    compare,
    concat,
    convert,
    gather,
    i64,
    matmul,
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
    transpose,
    unsqueeze,
)

ZERO = np.zeros((1, 3), np.float32)
XS = [numbers(n, 3, seed=n) for n in (5, 4, 1)]


def rows(
    body: Callable[[Net, Sequence[Port]], Sequence[Port]],
    carried: Sequence[Any],
    outputs: Sequence[tuple[int, bool]],
    *,
    back: Sequence[int] | None = None,
    kind: str = "f32",
    shape: Sequence[int] = (-1, 3),
    then: Callable[[Net, Any], Sequence[Port]] | None = None,
) -> Net:
    """Build an iterator over the rows of x.

    ``body`` returns results from (row, *carried). Result i goes back to carried i, or result ``back[i]`` does.
    ``outputs`` are (result, whether concatenated); ``then`` computes results of the model from the outputs.
    """
    net, inside = Net(), Net()
    x = net.parameter(kind, shape, "x")
    row = inside.parameter(kind, (1, *shape[1:]))
    inner = [inside.parameter(kind, np.shape(c)) for c in carried]
    results = [inside.result(r) for r in body(inside, [row, *inner])]
    links = [feed(x, row, axis=0), *(feed(net.const(c, kind), p) for c, p in zip(carried, inner))]
    sources = range(len(carried)) if back is None else back
    edges = [(results[i], p) for i, p in zip(sources, inner) if i >= 0]
    taken = [take(results[i], **({"axis": 0} if every else {})) for i, every in outputs]
    found = net.tensor_iterator(inside, links, taken, edges)
    found = found if isinstance(found, tuple) else (found,)
    for port in found if then is None else then(net, found):
        net.result(port)
    return net


def stepped(
    step: Callable[..., Sequence[Any]],
    carried: Sequence[Any],
    outputs: Sequence[tuple[int, bool]],
    *,
    back: Sequence[int] | None = None,
    inputs: Sequence[Any] = XS,
) -> list[Infer]:
    """Compute `rows` with NumPy: ``step(row, *carried)``."""
    found = []
    for x in inputs:
        values, seen = list(carried), []
        for i in range(len(x)):
            results = [np.asarray(r) for r in step(x[i : i + 1], *values)]
            seen.append(results)
            sources = range(len(carried)) if back is None else back
            values = [results[s] if s >= 0 else c for s, c in zip(sources, carried)]
        found.append(
            Infer([np.concatenate([r[i] for r in seen]) if every else seen[-1][i] for i, every in outputs], x=x)
        )
    return found


def judged(name: str, net: Net, inputs: Sequence[Any] = XS, **kwargs: Any) -> Scenario:
    return Scenario(name, net, [Infer(x=x) for x in inputs], **kwargs)


def valued(
    name: str,
    body: Any,
    step: Any,
    carried: Sequence[Any],
    outputs: Sequence[tuple[int, bool]],
    back: Sequence[int] | None = None,
) -> Scenario:
    return Scenario(
        name, rows(body, carried, outputs, back=back), stepped(step, carried, outputs, back=back), oracle="value"
    )


def cell(kind: str, batch: int = 1, axis: int = 1, backwards: bool = False) -> Net:
    """Build a recurrent cell over [batch, time, 5] (or time first), as frameworks export it."""
    gates = {"LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}[kind]
    net, body = Net(), Net()
    x = net.parameter("f32", (batch, -1, 5) if axis == 1 else (-1, batch, 5), "x")
    xi = body.parameter("f32", (batch, 1, 5) if axis == 1 else (1, batch, 5))
    states = [body.parameter("f32", (batch, 3)) for _ in range(2 if kind == "LSTMCell" else 1)]
    weights = [body.const(numbers(3 * gates, n, seed=n) / 8) for n in (5, 3)]
    out = body.layer(
        kind,
        "opset4" if kind == "LSTMCell" else "opset3" if kind == "GRUCell" else "opset1",
        [squeeze(body, xi, [axis]), *states, *weights, body.const(numbers(3 * gates, seed=9) / 8)],
        {"hidden_size": 3},
        len(states),
    )
    out = out if isinstance(out, tuple) else (out,)
    carried = [body.result(o) for o in out]
    step = body.result(unsqueeze(body, out[0], [axis]))
    attrs = {"start": -1, "end": 0, "stride": -1} if backwards else {}
    start = net.const(np.full((batch, 3), 0.25, np.float32))
    ports = net.tensor_iterator(
        body,
        [feed(x, xi, axis=axis, **attrs), *(feed(start, s) for s in states)],
        [take(step, axis=axis, **attrs), *(take(c) for c in carried)],
        list(zip(carried, states)),
    )
    for port in ports:
        net.result(port)
    return net


def frames(batch: int, axis: int) -> list[Any]:
    return [numbers(*((batch, n, 5) if axis == 1 else (n, batch, 5)), seed=n) for n in (4, 6)]


def batched(look: Callable[[Net, Port], Port], carry: str = "whole") -> Net:
    """Build an iterator over the middle axis of [2, n, 3], so that each result is a strided part of the output. The
    next iteration uses it in another shape."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, -1, 3), "x")
    xi = body.parameter("f32", (2, 1, 3))
    h = body.parameter("f32", (2, 3) if carry == "squeezed" else (2, 1, 3))
    seen = look(body, h)
    new = add(body, xi, reshape(body, seen, [2, 1, 3]))
    every = body.result(new)
    back = body.result(squeeze(body, new, [1])) if carry == "squeezed" else every
    start = net.const(np.ones((2, 3) if carry == "squeezed" else (2, 1, 3), np.float32))
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=1), feed(start, h)], [take(every, axis=1), take(back)], [(back, h)]
    ):
        net.result(port)
    return net


def batch_values(look: Callable[[Any], Any], carry: str = "whole") -> list[Infer]:
    found = []
    for n in (4, 2, 7):
        x, h, seen = numbers(2, n, 3, seed=n), np.ones((2, 1, 3), np.float32), []
        for i in range(n):
            h = x[:, i : i + 1] + look(h).reshape(2, 1, 3).astype(np.float32)
            seen.append(h)
        found.append(Infer([np.concatenate(seen, 1), h[:, 0] if carry == "squeezed" else h], x=x))
    return found


def sliced_at_first() -> Net:
    """Build an iterator with a parameter that is the first slice, and then the value of a back edge."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, -1, 3), "x")
    xi, h = body.parameter("f32", (2, 1, 3)), body.parameter("f32", (2, 1, 3))
    flat = reshape(body, add(body, reshape(body, h, [6]), reshape(body, xi, [6])), [2, 1, 3])
    new = body.result(tanh(body, flat))
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=1), feed(x, h, axis=1)], [take(new), take(new, axis=0)], [(new, h)]
    ):
        net.result(port)
    return net


def found_columns() -> Net:
    """Build an iterator whose strided slices (middle axis) enter a body that runs step by step."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, -1, 3), "x")
    xi, h = body.parameter("f32", (2, 1, 3)), body.parameter("f32", (6,))
    count = convert(body, gather(body, shape_of(body, nonzero(body, reshape(body, xi, [6]))), [1]), "f32")
    new = body.result(add(body, h, mul(body, reshape(body, xi, [6]), count)))
    net.result(
        net.tensor_iterator(
            body, [feed(x, xi, axis=1), feed(net.const(np.zeros(6, np.float32)), h)], [take(new)], [(new, h)]
        )
    )
    return net


def columns(x: Any) -> Infer:
    h = np.zeros(6, np.float32)
    for i in range(x.shape[1]):
        h = h + x[:, i].ravel() * np.float32(np.count_nonzero(x[:, i]))
    return Infer([h], x=x)


def first_slices(x: Any) -> Infer:
    h, seen = x[:, :1], []
    for i in range(x.shape[1]):
        h = np.tanh(h + x[:, i : i + 1])
        seen.append(h)
    return Infer([h, np.concatenate(seen)], x=x)


def both_directions() -> Net:
    """Build two iterators over one input, in opposite directions, with concatenated results."""
    net, found = Net(), []
    x = net.parameter("f32", (-1, 3), "x")
    for attrs in ({}, {"start": -1, "end": 0, "stride": -1}):
        body = Net()
        xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
        new = body.result(tanh(body, add(body, xi, h)))
        found.append(
            net.tensor_iterator(
                body, [feed(x, xi, axis=0, **attrs), feed(net.const(ZERO), h)], [take(new, axis=0, **attrs)], [(new, h)]
            )
        )
    net.result(concat(net, found, 1))
    return net


def stacked(count: int) -> Net:
    net = Net()
    value = net.parameter("f32", (-1, 3), "x")
    for n in range(count):
        body = Net()
        xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
        new = body.result(tanh(body, add(body, xi, mul(body, h, scalar(body, n + 1)))))
        value = net.tensor_iterator(
            body, [feed(value, xi, axis=0), feed(net.const(ZERO), h)], [take(new, axis=0)], [(new, h)]
        )
    net.result(value)
    return net


def invariant(kind: str) -> Net:
    """Build an iterator with an input that is the same at every iteration, in several uses."""
    net, body = Net(), Net()
    x, y = net.parameter("f32", (-1, 3), "x"), net.parameter("f32", (3, 3), "y")
    xi, h, w = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3)), body.parameter("f32", (3, 3))
    scaled = w if kind == "matmul" else transpose(body, w, [1, 0]) if kind == "transposed" else tanh(body, w)
    new = body.result(add(body, matmul(body, xi, scaled), h))
    outer = mul(net, y, scalar(net, 2)) if kind == "computed" else y
    net.result(
        net.tensor_iterator(
            body, [feed(x, xi, axis=0), feed(net.const(ZERO), h), feed(outer, w)], [take(new)], [(new, h)]
        )
    )
    return net


def matrix_of_vectors() -> Net:
    """Build an iterator inside an iterator: the outer over planes, the inner over rows."""
    net, plane_body, row_body = Net(), Net(), Net()
    x = net.parameter("f32", (-1, 4, 3), "x")
    row, total = row_body.parameter("f32", (1, 1, 3)), row_body.parameter("f32", (1, 1, 3))
    new = row_body.result(add(row_body, row, mul(row_body, total, scalar(row_body, 0.5))))
    plane, carried = plane_body.parameter("f32", (1, 4, 3)), plane_body.parameter("f32", (1, 1, 3))
    last, every = plane_body.tensor_iterator(
        row_body, [feed(plane, row, axis=1), feed(carried, total)], [take(new), take(new, axis=1)], [(new, total)]
    )
    last, every = plane_body.result(last), plane_body.result(every)
    for port in net.tensor_iterator(
        plane_body,
        [feed(x, plane, axis=0), feed(net.const(np.ones((1, 1, 3), np.float32)), carried)],
        [take(last), take(every, axis=0)],
        [(last, carried)],
    ):
        net.result(port)
    return net


def nested_totals(x: Any) -> Infer:
    total, planes = np.ones((1, 1, 3), np.float32), []
    for plane in x:
        seen = []
        for row in plane:
            total = row + total / 2
            seen.append(total)
        planes.append(np.concatenate(seen, 1))
    return Infer([total, np.concatenate(planes)], x=x)


def branch_inside() -> Net:
    """Build a body that adds rows with a positive sum, and subtracts others, by an If."""
    net, body, then, other = Net(), Net(), Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    a, b = ([n.parameter("f32", (1, 3)) for _ in range(2)] for n in (then, other))
    ra, rb = then.result(add(then, *a)), other.result(op2(other, "Subtract", *b))
    positive = compare(body, "Greater", reduce(body, "ReduceSum", xi, [0, 1]), scalar(body, 0))
    new = body.result(body.if_(positive, then, other, [(h, a[0], b[0]), (xi, a[1], b[1])], [(ra, rb)]))
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=0), feed(net.const(ZERO), h)], [take(new), take(new, axis=0)], [(new, h)]
    ):
        net.result(port)
    return net


def growing() -> Net:
    """Build an iterator whose carried tensor grows by a row at every iteration."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (-1, 3))
    every = concat(body, [h, xi], 0)
    new, size = body.result(every), body.result(reduce(body, "ReduceSum", every, [0], True))
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=0), feed(net.const(ZERO), h)], [take(new), take(size, axis=0)], [(new, h)]
    ):
        net.result(port)
    return net


def grown_totals(x: Any) -> Infer:
    return Infer([np.concatenate([ZERO, x]), np.cumsum(x, 0)], x=x)


def found_inside() -> Net:
    """Build a body that counts the nonzero elements of its row, a shape known only as it runs."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    xi, total = body.parameter("f32", (1, 3)), body.parameter("i64", (1,))
    count = gather(body, shape_of(body, nonzero(body, xi)), [1])
    new = body.result(add(body, total, count))
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=0), feed(i64(net, [0]), total)], [take(new), take(new, axis=0)], [(new, total)]
    ):
        net.result(port)
    return net


def collected_inside() -> Net:
    """Build a body that returns as many columns as its row has nonzero elements."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, 3), "x")
    xi = body.parameter("f32", (1, 3))
    found = body.result(nonzero(body, xi))
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(found, axis=1)]))
    return net


def longer_from_the_second_on() -> Net:
    """Build a carried tensor that changes its length at the second iteration, and is concatenated twice."""
    net, body = Net(), Net()
    x, first, then = (net.parameter("f32", (-1,), name) for name in ("x", "first", "then"))
    xi, h, other = (body.parameter("f32", (n,)) for n in (1, -1, -1))
    doubled, new = body.result(mul(body, h, xi)), body.result(other)
    every, again = net.tensor_iterator(
        body,
        [feed(x, xi, axis=0), feed(first, h), feed(then, other)],
        [take(doubled, axis=0), take(doubled, axis=0)],
        [(new, h)],
    )
    net.result(concat(net, [every, again], 0))
    return net


def longer(x: Any, first: Any, then: Any) -> Infer:
    every = np.concatenate([x[0] * first, *(value * then for value in x[1:])])
    return Infer([np.concatenate([every, every])], x=x, first=first, then=then)


def nothing_sliced() -> Net:
    """Build an iterator without a sliced input, which runs once."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    xi = body.parameter("f32", (2, 3))
    new = body.result(mul(body, xi, scalar(body, 3)))
    net.result(net.tensor_iterator(body, [feed(x, xi)], [take(new)]))
    return net


def from_shape() -> Net:
    """Build an iterator whose initial value and consumers depend on the input's shape."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, -1), "x")
    xi, h = body.parameter("f32", (1, -1)), body.parameter("f32", (1, -1))
    new = body.result(relu(body, add(body, xi, h)))
    start = broadcast(net, scalar(net, 0.5), concat(net, [i64(net, [1]), gather(net, shape_of(net, x), [1])], 0))
    every = net.tensor_iterator(body, [feed(x, xi, axis=0), feed(start, h)], [take(new, axis=0)], [(new, h)])
    net.result(reshape(net, every, [-1]))
    net.result(slice_(net, every, -1, 100))
    return net


def typed(kind: str) -> Scenario:
    """Compute minimum and sum in the element type, by value: the plugin computes several types in wider ones."""
    dtype = np.uint8 if kind[0] == "u" else np.int64 if kind[0] == "i" else np.float32
    carried = [as_logical(np.zeros((1, 3)), kind), as_logical(np.full((1, 3), 100), kind)]
    inputs = [as_logical(numbers(n, 3, seed=n, low=0 if kind[0] == "u" else -9, kind=dtype), kind) for n in (5, 2)]
    net = rows(
        lambda b, p: [add(b, p[0], p[1]), op2(b, "Minimum", p[0], p[2])], carried, [(0, True), (1, False)], kind=kind
    )
    steps = stepped(
        lambda r, s, m: [(r + s).astype(r.dtype), np.minimum(r, m)], carried, [(0, True), (1, False)], inputs=inputs
    )
    return Scenario(f"type-{kind}", net, steps, oracle="value")


def parity() -> Net:
    return rows(
        lambda b, p: [b.layer("LogicalXor", "opset1", p, {"auto_broadcast": "numpy"})],
        [np.zeros((1, 3), bool)],
        [(0, True), (0, False)],
        kind="boolean",
    )


def sum_and_concat(net: Net, found: Any) -> Sequence[Port]:
    return [add(net, found[0], found[1]), concat(net, [found[1], found[0]], 0)]


HALF = [np.full((1, 3), 0.5, np.float32)]
A, B, C = (numbers(1, 3, seed=n) for n in (31, 32, 33))
F = np.float32
SCENARIOS = [
    judged("last", rows(lambda b, p: [add(b, *p)], HALF, [(0, False)])),
    judged("all", rows(lambda b, p: [add(b, *p)], HALF, [(0, True)])),
    judged("last-and-all", rows(lambda b, p: [add(b, *p)], HALF, [(0, False), (0, True)])),
    judged("all-and-last", rows(lambda b, p: [add(b, *p)], HALF, [(0, True), (0, False)])),
    judged("all-twice", rows(lambda b, p: [add(b, *p)], HALF, [(0, True), (0, True)])),
    judged("last-twice", rows(lambda b, p: [add(b, *p)], HALF, [(0, False), (0, False)])),
    judged("outputs-used-on", rows(lambda b, p: [add(b, *p)], HALF, [(0, False), (0, True)], then=sum_and_concat)),
    judged("no-back-edge", rows(lambda b, p: [relu(b, p[0])], [], [(0, True)])),
    judged("no-back-edge-last", rows(lambda b, p: [tanh(b, p[0])], [], [(0, False), (0, True)])),
    judged(
        "two-back-edges",
        rows(lambda b, p: [add(b, p[0], p[1]), mul(b, p[1], p[2])], [A, B], [(0, True), (1, True), (1, False)]),
    ),
    judged(
        "back-edges-crossed-over-maths",
        rows(lambda b, p: [add(b, p[2], p[0]), mul(b, p[1], scalar(b, 0.5))], [A, B], [(0, True), (1, True)]),
    ),
    judged(
        "back-edge-from-another-result",
        rows(lambda b, p: [relu(b, p[0]), add(b, p[0], p[1])], [A], [(0, True), (1, False)], back=[1]),
    ),
    judged(
        "one-result-to-two-parameters",
        rows(lambda b, p: [add(b, p[0], mul(b, p[1], p[2]))], [A, B], [(0, True)], back=[0, 0]),
    ),
    # by value: the plugin may overwrite parameters that pass straight through to results
    valued(
        "swap",
        lambda b, p: [p[2], p[1], add(b, p[0], p[1])],
        lambda r, a, b: [b, a, r + a],
        [A, B],
        [(0, True), (1, False), (2, True)],
    ),
    valued("swap-without-maths", lambda b, p: [p[2], p[1]], lambda r, a, b: [b, a], [A, B], [(0, False), (1, False)]),
    valued(
        "rotation",
        lambda b, p: [p[2], p[3], p[1], mul(b, p[0], p[1])],
        lambda r, a, b, c: [b, c, a, r * a],
        [A, B, C],
        [(0, True), (1, True), (2, False), (3, True)],
    ),
    valued(
        "delay",
        lambda b, p: [p[0], add(b, p[1], scalar(b, 1))],
        lambda r, d: [r, d + F(1)],
        [A],
        [(0, False), (1, True)],
    ),
    valued(
        "delay-of-three",
        lambda b, p: [p[0], p[1], p[2], add(b, p[3], p[0])],
        lambda r, a, b, c: [r, a, b, c + r],
        [A, B, C],
        [(2, True), (3, True), (0, False)],
    ),
    valued(
        "carried-unchanged",
        lambda b, p: [p[1], add(b, p[0], p[1])],
        lambda r, a: [a, r + a],
        [A],
        [(0, False), (1, True), (0, True)],
    ),
    valued("the-slice-is-the-result", lambda b, p: [p[0]], lambda r: [r], [], [(0, True), (0, False)]),
    valued(
        "constants-only",
        lambda b, p: [b.const(C), add(b, p[0], p[0])],
        lambda r: [C, r + r],
        [],
        [(0, True), (0, False), (1, True)],
    ),
    valued(
        "constant-on-a-back-edge",
        lambda b, p: [b.const(C), add(b, p[0], p[1])],
        lambda r, a: [C, r + a],
        [A],
        [(1, True), (1, False)],
    ),
    valued(
        "invariant-without-back-edge",
        lambda b, p: [add(b, p[0], p[1])],
        lambda r, a: [r + a],
        [A],
        [(0, True)],
        back=[-1],
    ),
    valued(
        "fed-back-view",
        lambda b, p: [reshape(b, transpose(b, reshape(b, p[1], [3, 1]), [1, 0]), [1, 3]), add(b, *p)],
        lambda r, a: [a, r + a],
        [A],
        [(0, False), (1, True)],
    ),
    valued(
        "fed-back-reversed",
        lambda b, p: [slice_(b, p[1], -1, -10, 1, -1), add(b, *p)],
        lambda r, a: [a[:, ::-1], r + a],
        [A],
        [(0, True), (1, True)],
    ),
    valued(
        "swap-and-scale",
        lambda b, p: [mul(b, p[2], scalar(b, 2)), p[1], add(b, p[1], p[2])],
        lambda r, a, b: [b * F(2), a, a + b],
        [A, B],
        [(0, False), (1, False), (2, True)],
    ),
    valued(
        "in-place-chain",
        lambda b, p: [relu(b, add(b, mul(b, p[1], scalar(b, 0.5)), p[0])), op2(b, "Subtract", p[0], p[1])],
        lambda r, a: [np.maximum(a * F(0.5) + r, 0), r - a],
        [A],
        [(0, True), (1, True), (0, False)],
    ),
    # cells
    *[
        judged(
            f"{kind}-{batch}-axis-{axis}{'-backwards' if backwards else ''}",
            cell(kind, batch, axis, backwards),
            frames(batch, axis),
        )
        for kind, batch, axis, backwards in [
            ("LSTMCell", 1, 1, False),
            ("LSTMCell", 1, 0, False),
            ("LSTMCell", 2, 1, False),
            ("LSTMCell", 2, 0, False),
            ("LSTMCell", 2, 1, True),
            ("LSTMCell", 2, 0, True),
            ("GRUCell", 1, 1, False),
            ("GRUCell", 2, 0, False),
            ("GRUCell", 2, 1, True),
            ("RNNCell", 1, 0, False),
            ("RNNCell", 2, 1, False),
            ("RNNCell", 2, 0, True),
        ]
    ],
    *[
        Scenario(
            f"strided-on-a-back-edge-{name}-{carry}", batched(look, carry), batch_values(value, carry), oracle="value"
        )
        for carry in ("whole", "squeezed")
        for name, look, value in [
            ("reshaped", lambda n, h: tanh(n, reshape(n, h, [6])), np.tanh),
            ("as-a-view", lambda n, h: reshape(n, h, [6, 1]), lambda h: h),
            ("transposed", lambda n, h: transpose(n, transpose(n, reshape(n, h, [2, 3]), [1, 0]), [1, 0]), lambda h: h),
            ("reversed", lambda n, h: slice_(n, reshape(n, h, [2, 3]), -1, -10, 0, -1), lambda h: h[::-1]),
            (
                "multiplied",
                lambda n, h: matmul(n, reshape(n, h, [2, 3]), n.const(numbers(3, 3) / 8)),
                lambda h: h[:, 0] @ (numbers(3, 3) / 8),
            ),
            ("summed", lambda n, h: mul(n, reshape(n, h, [2, 3]), scalar(n, 0.5)), lambda h: h / 2),
        ]
    ],
    Scenario(
        "strided-slices-step-by-step",
        found_columns(),
        [columns(numbers(2, n, 3, seed=n)) for n in (4, 2, 1, 6)],
        oracle="value",
    ),
    Scenario(
        "sliced-at-first",
        sliced_at_first(),
        [first_slices(numbers(2, n, 3, seed=n)) for n in (4, 2, 1, 6)],
        oracle="value",
    ),
    judged("both-directions", both_directions()),
    judged("two-stacked", stacked(2)),
    judged("four-stacked", stacked(4)),
    *[
        Scenario(f"invariant-{kind}", invariant(kind), [Infer(x=x, y=numbers(3, 3, seed=n)) for n, x in enumerate(XS)])
        for kind in ("matmul", "transposed", "computed", "of-a-function")
    ],
    # nesting and shapes
    Scenario(
        "iterator-in-an-iterator",
        matrix_of_vectors(),
        [nested_totals(numbers(n, 4, 3, seed=n)) for n in (2, 5, 1)],
        oracle="value",
    ),
    judged("branch-in-an-iterator", branch_inside()),
    # by value from here: the plugin refuses, or gives other shapes
    Scenario("grows-on-a-back-edge", growing(), [grown_totals(x) for x in XS], oracle="value"),
    Scenario(
        "finds-inside",
        found_inside(),
        [Infer([np.array([np.count_nonzero(x)]), np.cumsum(np.count_nonzero(x, 1))], x=x) for x in XS],
        oracle="value",
    ),
    Scenario(
        "concatenates-different-lengths",
        collected_inside(),
        [Infer([np.concatenate([np.array(np.nonzero(r[None])) for r in x], 1)], x=x) for x in XS],
        oracle="value",
    ),
    Scenario(
        "longer-from-the-second-on",
        longer_from_the_second_on(),
        [longer(numbers(n, seed=n), numbers(2, seed=1), numbers(m, seed=2)) for n, m in ((3, 5), (2, 2), (1, 3))],
        oracle="value",
    ),
    Scenario(
        "nothing-sliced",
        nothing_sliced(),
        [Infer([3 * numbers(2, 3, seed=n)], x=numbers(2, 3, seed=n)) for n in range(2)],
        oracle="value",
    ),
    judged("shapes-from-the-input", from_shape(), [numbers(4, 3), numbers(2, 7), numbers(4, 3, seed=1)]),
    judged("no-rows-between", rows(lambda b, p: [add(b, *p)], HALF, [(0, False)]), [XS[0], XS[1]], rankless=True),
    Scenario(
        "no-iterations",
        rows(lambda b, p: [add(b, *p)], HALF, [(0, False), (0, True)]),
        [
            Infer([HALF[0], np.zeros((0, 3), F)], x=np.zeros((0, 3), F)),
            Infer([HALF[0] + XS[2], HALF[0] + XS[2]], x=XS[2]),
            Infer([HALF[0], np.zeros((0, 3), F)], x=np.zeros((0, 3), F)),
        ],
        oracle="value",
    ),
    *[typed(kind) for kind in ("f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8")],
    judged("type-boolean", parity(), [numbers(n, 3, seed=n) > 0 for n in (5, 2)]),
    # long
    Scenario(
        "long",
        rows(lambda b, p: [add(b, *p)], HALF, [(0, False), (0, True)]),
        [
            Infer([(HALF[0] + x.sum(0)).astype(F), (HALF[0] + np.cumsum(x, 0)).astype(F)], x=x)
            for x in (numbers(10_000, 3, seed=1), numbers(7, 3), numbers(3_000, 3))
        ],
        oracle="value",
        emulated=False,
    ),
    Scenario(
        "long-without-concatenation",
        rows(lambda b, p: [add(b, p[0], p[1]), p[1]], [A, B], [(0, False), (1, False)]),
        [
            Infer([(A + x.sum(0)).astype(F), (A + x[:-1].sum(0)).astype(F)], x=x)
            for x in (numbers(10_001, 3, seed=1), numbers(10_000, 3, seed=2))
        ],
        oracle="value",
        emulated=False,
    ),
    # errors
    Scenario(
        "back-edge-of-another-type",
        rows(lambda b, p: [convert(b, add(b, *p), "i32")], HALF, [(0, False)]),
        [Infer(x=XS[0])],
        error="f32|i32",
        error_op="TensorIterator",
    ),
    Scenario(
        "body-does-not-fit",
        rows(lambda b, p: [matmul(b, p[0], b.const(numbers(4, 3)))], [], [(0, True)]),
        [Infer(x=XS[0])],
        error="3.*4|4.*3",
        error_op="MatMul",
    ),
]
test_tensor_iterator = check(SCENARIOS)
