"""If: the choice of the branch, its inputs and its outputs, also where the branches differ in shape or rank.

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
    split,
    squeeze,
    tanh,
    transpose,
    unsqueeze,
)

X = [numbers(2, 3, seed=n) for n in range(4)]
Y = [numbers(2, 3, seed=10 + n) for n in range(4)]
F = np.float32
Make = Callable[[Net, Sequence[Port]], Any]


def either(
    then: Make,
    other: Make,
    *,
    condition: Any = "go",
    kind: str = "f32",
    shape: Sequence[int] = (2, 3),
    go_shape: Sequence[int] = (),
    body_shape: Any = None,
    after: Callable[[Net, Sequence[Port]], Sequence[Port]] | None = None,
) -> Net:
    """Build an If with inputs x and y. `then` and `other` build a branch from (net, [x, y]) and return its ports.

    ``condition`` is "go" for a parameter, a constant, or a function of (net, x, y).
    """
    net, a, b = Net(), Net(), Net()
    x, y = net.parameter(kind, shape, "x"), net.parameter(kind, shape, "y")
    inner = [[n.parameter(kind, shape if body_shape is None else body_shape) for _ in range(2)] for n in (a, b)]
    results = []
    for branch, make, given in ((a, then, inner[0]), (b, other, inner[1])):
        found = make(branch, given)
        results.append([branch.result(p) for p in (found if isinstance(found, (list, tuple)) else [found])])
    go = (
        net.parameter("boolean", go_shape, "go")
        if condition == "go"
        else condition(net, x, y)
        if callable(condition)
        else net.const(np.asarray(condition))
    )
    out = net.if_(go, a, b, [(x, inner[0][0], inner[1][0]), (y, inner[0][1], inner[1][1])], list(zip(*results)))
    out = out if isinstance(out, tuple) else (out,)
    for port in out if after is None else after(net, out):
        net.result(port)
    return net


def judged(name: str, net: Net, choices: Sequence[bool] = (True, False, True), **kwargs: Any) -> Scenario:
    return Scenario(name, net, [Infer(x=X[n], y=Y[n], go=np.array(go)) for n, go in enumerate(choices)], **kwargs)


def valued(
    name: str,
    net: Net,
    then: Callable[[Any, Any], Any],
    other: Callable[[Any, Any], Any],
    choices: Sequence[bool] = (True, False, False, True),
    **kwargs: Any,
) -> Scenario:
    """Expect the results of ``then`` and ``other`` in NumPy, which return one or several outputs."""
    steps = []
    for n, go in enumerate(choices):
        found = (then if go else other)(X[n], Y[n])
        steps.append(Infer(found if isinstance(found, tuple) else (found,), x=X[n], y=Y[n], go=np.array(go)))
    return Scenario(name, net, steps, oracle="value", **kwargs)


def computed(name: str, condition: Callable[[Net, Port, Port], Port]) -> Scenario:
    """Choose the branch by a condition that is computed from the inputs."""
    return Scenario(
        name,
        either(lambda n, p: add(n, *p), lambda n, p: op2(n, "Subtract", *p), condition=condition),
        [Infer(x=x, y=y) for x, y in zip(X, Y)],
    )


def plus(n: Net, p: Sequence[Port]) -> Port:
    return add(n, *p)


def minus(n: Net, p: Sequence[Port]) -> Port:
    return op2(n, "Subtract", *p)


def total(n: Net, x: Port) -> Port:
    return reduce(n, "ReduceSum", x, [0, 1])


def one_sided(which: str) -> Net:
    """Build an If with inputs that only one branch takes; the other branch takes none, or its own."""
    net, a, b = Net(), Net(), Net()
    go, x, y = net.parameter("boolean", (), "go"), net.parameter("f32", (2, 3), "x"), net.parameter("f32", (2, 3), "y")
    p, inputs = a.parameter("f32", (2, 3)), []
    if which == "each":
        q = b.parameter("f32", (2, 3))
        inputs.append((y, None, q))
    ra, rb = a.result(mul(a, p, p)), b.result(add(b, q, scalar(b, 1)) if which == "each" else b.const(X[3]))
    inputs.append((x, p, None))
    net.result(net.if_(go, a, b, inputs, [(ra, rb)]))
    if which != "each":
        net.result(tanh(net, y))
    return net


def swapped_parameters() -> Net:
    """Build an If whose branches take the inputs in different orders."""
    net, a, b = Net(), Net(), Net()
    go, x, y = net.parameter("boolean", (), "go"), net.parameter("f32", (2, 3), "x"), net.parameter("f32", (2, 3), "y")
    p, q = ([n.parameter("f32", (2, 3)) for _ in range(2)] for n in (a, b))
    ra, rb = a.result(op2(a, "Subtract", *p)), b.result(op2(b, "Subtract", *q))
    net.result(net.if_(go, a, b, [(x, p[0], q[1]), (y, p[1], q[0])], [(ra, rb)]))
    return net


def nothing_taken() -> Net:
    """Build an If without inputs: both branches are constants."""
    net, a, b = Net(), Net(), Net()
    go = net.parameter("boolean", (), "go")
    ra, rb = a.result(a.const(X[0])), b.result(b.const(X[1]))
    net.result(net.if_(go, a, b, [], [(ra, rb)]))
    return net


def in_turn() -> Net:
    """Build two Ifs on different conditions; the first feeds the second."""
    net = Net()
    x, y = net.parameter("f32", (2, 3), "x"), net.parameter("f32", (2, 3), "y")
    value = x
    for n, port in enumerate((x, y)):
        a, b = Net(), Net()
        p, q = a.parameter("f32", (2, 3)), b.parameter("f32", (2, 3))
        ra, rb = a.result(add(a, p, scalar(a, n + 1))), b.result(mul(b, q, scalar(b, -2)))
        go = compare(net, "Greater", total(net, port), scalar(net, 0))
        value = net.if_(go, a, b, [(value, p, q)], [(ra, rb)])
    net.result(value)
    return net


def in_turn_values(x: Any, y: Any) -> Infer:
    value = x
    for n, port in enumerate((x, y)):
        value = value + (n + 1) if port.sum() > 0 else value * -2
    return Infer([value.astype(F)], x=x, y=y)


def nested(depth: int) -> Net:
    """Build Ifs nested in then branches, on the conditions sum > 0, > 1, > 2 ..."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    net.result(_nested(net, x, 0, depth))
    return net


def _nested(net: Net, x: Port, level: int, depth: int) -> Port:
    a, b = Net(), Net()
    p, q = a.parameter("f32", (2, 3)), b.parameter("f32", (2, 3))
    deeper = _nested(a, p, level + 1, depth) if level + 1 < depth else tanh(a, p)
    ra, rb = a.result(add(a, deeper, scalar(a, 1))), b.result(mul(b, q, scalar(b, level + 2)))
    port: Port = net.if_(compare(net, "Greater", total(net, x), scalar(net, level)), a, b, [(x, p, q)], [(ra, rb)])
    return port


def nested_value(x: Any, level: int, depth: int) -> Any:
    if not x.sum() > level:
        return x * F(level + 2)
    return (nested_value(x, level + 1, depth) if level + 1 < depth else np.tanh(x)) + F(1)


def scan_in_a_branch() -> Net:
    """Build an If with an iterator over the rows in one branch only."""
    net, a, b, body = Net(), Net(), Net(), Net()
    go, x = net.parameter("boolean", (), "go"), net.parameter("f32", (-1, 3), "x")
    p, q = a.parameter("f32", (-1, 3)), b.parameter("f32", (-1, 3))
    row, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(add(body, row, h))
    ra = a.result(
        a.tensor_iterator(
            body, [feed(p, row, axis=0), feed(a.const(np.zeros((1, 3), F)), h)], [take(new, axis=0)], [(new, h)]
        )
    )
    rb = b.result(relu(b, q))
    net.result(net.if_(go, a, b, [(x, p, q)], [(ra, rb)]))
    return net


def loop_in_a_branch() -> Net:
    """Build an If with a Loop in one branch, whose trip count is an input."""
    net, a, b, body = Net(), Net(), Net(), Net()
    go, n, x = net.parameter("boolean", (), "go"), net.parameter("i64", (), "n"), net.parameter("f32", (2, 3), "x")
    p, count = a.parameter("f32", (2, 3)), a.parameter("i64", ())
    q, h = b.parameter("f32", (2, 3)), body.parameter("f32", (2, 3))
    on, new = body.result(body.const(np.array(True))), body.result(mul(body, h, scalar(body, 2)))
    ra = a.result(
        a.loop(count, a.const(np.array(True)), body, [feed(p, h)], [take(new)], [(new, h)], body_condition=on)
    )
    rb = b.result(relu(b, q))
    net.result(net.if_(go, a, b, [(x, p, q), (n, count, None)], [(ra, rb)]))
    return net


def rankless(kind: str) -> Net:
    """Build an If whose results have different ranks; the layers after it must accept both."""

    def after(net: Net, out: Sequence[Port]) -> Sequence[Port]:
        (value,) = out
        if kind == "alone":
            return [value]
        if kind == "elementwise":
            return [tanh(net, mul(net, value, scalar(net, 0.25))), value]
        if kind == "flattened":
            return [add(net, reshape(net, value, [-1]), scalar(net, 1))]
        if kind == "shape":
            return [shape_of(net, value)]
        return [reduce(net, "ReduceSum", reshape(net, value, [-1]), [0], True), gather(net, shape_of(net, value), [0])]

    return either(
        lambda n, p: p[0] if kind == "alone" else add(n, *p), lambda n, p: reshape(n, minus(n, p), [6]), after=after
    )


def passed_through(net: Net, rows: Port, start: Port) -> Port:
    """Pass `start` [2, 3] through the body of an iterator, which also reads it."""
    body = Net()
    row, before = body.parameter("f32", (1, 3)), body.parameter("f32", (2, 3))
    body.result(relu(body, row))
    after = body.result(transpose(body, before, [0, 1]))
    return net.tensor_iterator(body, [feed(rows, row, axis=0), feed(start, before)], [take(after)], [(after, before)])


def beside_unknown_rank() -> Net:
    """Build views that exist before a result of unknown rank, and are combined with it."""
    net, a, b = Net(), Net(), Net()
    go, x = net.parameter("boolean", (), "go"), net.parameter("f32", (2, 3), "x")
    p, q = a.parameter("f32", (2, 3)), b.parameter("f32", (2, 3))
    ra, rb = a.result(relu(a, p)), b.result(total(b, q))
    transposed, column = transpose(net, tanh(net, x), [1, 0]), split(net, x, 1, 3)[1]
    value = reduce(net, "ReduceSum", reshape(net, net.if_(go, a, b, [(x, p, q)], [(ra, rb)]), [-1]), [0])
    backwards = slice_(net, x, -1, -10, 0, -1)
    net.result(backwards)
    net.result(add(net, reshape(net, transposed, [6]), value))
    net.result(mul(net, column, value))
    net.result(transposed)
    net.result(passed_through(net, x, backwards))
    return net


def beside(x: Any, go: bool) -> Infer:
    value = np.maximum(x, 0).sum() if go else x.sum()
    return Infer(
        [x[::-1], np.tanh(x).T.ravel() + value, x[:, 1:2] * value, np.tanh(x).T, x[::-1]], x=x, go=np.array(go)
    )


def shapes(kind: str) -> Net:
    """Build an If whose results have one rank and different extents."""

    def after(net: Net, out: Sequence[Port]) -> Sequence[Port]:
        (value,) = out
        if kind == "alone":
            return [value]
        if kind == "reshape":
            return [reshape(net, value, [3, -1])]
        if kind == "broadcast":
            return [broadcast(net, scalar(net, 0.5), shape_of(net, value))]
        if kind == "concat":
            return [concat(net, [value, value], 0)]
        if kind == "matmul":
            return [matmul(net, value, transpose(net, value, [1, 0]))]
        if kind == "range":
            size = squeeze(net, gather(net, shape_of(net, value), [0]), [0])
            return [
                net.layer(
                    "Range",
                    "opset4",
                    [scalar(net, 0, "i64"), size, scalar(net, 1, "i64")],
                    {"output_type": "i64"},
                    ["i64"],
                )
            ]
        return [slice_(net, value, -1, 2**31 - 1), split(net, value, 1, 3)[2]]

    return either(lambda n, p: concat(n, list(p), 0), lambda n, p: slice_(n, p[1], 0, 1), after=after)


THEN = {
    "alone": lambda v: v,
    "reshape": lambda v: v.reshape(3, -1),
    "broadcast": lambda v: np.full(v.shape, 0.5, F),
    "concat": lambda v: np.concatenate([v, v]),
    "matmul": lambda v: v @ v.T,
    "range": lambda v: np.arange(len(v)),
    "parts": lambda v: (v[-1:], v[:, 2:]),
}
RANKLESS = {
    "alone": lambda v: v,
    "elementwise": lambda v: (np.tanh(v * F(0.25)), v),
    "flattened": lambda v: v.ravel() + 1,
    "shape": lambda v: np.array(v.shape),
    "sum": lambda v: (v.sum(keepdims=True).ravel(), np.array(v.shape[:1])),
}


def found(where: str) -> Net:
    """Build an If with a data-dependent shape in both branches, or in one."""

    def finds(n: Net, p: Sequence[Port]) -> Port:
        return nonzero(n, relu(n, p[0]))

    return either(
        finds,
        (lambda n, p: nonzero(n, p[1])) if where == "both" else lambda n, p: i64(n, [[7], [8]]),
        after=lambda net, out: [add(net, out[0], i64(net, 1))],
    )


def typed(kind: str) -> Scenario:
    dtype = np.uint8 if kind[0] == "u" else np.int64 if kind[0] == "i" else np.float32
    values = [as_logical(numbers(2, 3, seed=n, low=0 if kind[0] == "u" else -9, kind=dtype), kind) for n in (1, 2)]
    net = either(plus, lambda n, p: op2(n, "Maximum", *p), kind=kind)
    x, y = values
    return Scenario(
        f"type-{kind}",
        net,
        [
            Infer([(x + y).astype(x.dtype)], x=x, y=y, go=np.array(True)),
            Infer([np.maximum(x, y)], x=x, y=y, go=np.array(False)),
        ],
        oracle="value",
    )


def same_shape_only_if_taken() -> Net:
    """Build an If with a branch that needs equal shapes, and fails for other inputs only if it is taken."""
    net, a, b = Net(), Net(), Net()
    go, x, y = net.parameter("boolean", (), "go"), net.parameter("f32", (-1,), "x"), net.parameter("f32", (-1,), "y")
    p, q = ([n.parameter("f32", (-1,)) for _ in range(2)] for n in (a, b))
    ra, rb = a.result(add(a, *p)), b.result(concat(b, q, 0))
    net.result(net.if_(go, a, b, [(x, p[0], q[0]), (y, p[1], q[1])], [(ra, rb)]))
    return net


def steps_only_if_taken() -> Net:
    """Build an If with a branch that counts to 5 in steps of x, and refuses a step of 0 only if it is taken."""
    net, a, b = Net(), Net(), Net()
    go, x = net.parameter("boolean", (), "go"), net.parameter("f32", (), "x")
    p, q = (n.parameter("f32", ()) for n in (a, b))
    ends = [a.const(np.float32(0)), a.const(np.float32(5))]
    ra = a.result(a.layer("Range", "opset4", [*ends, p], {"output_type": "f32"}))
    rb = b.result(b.layer("Reshape", "opset1", [q, b.const(np.array([1]))], {"special_zero": False}))
    net.result(net.if_(go, a, b, [(x, p, q)], [(ra, rb)]))
    return net


def fits(go: bool, n: int, m: int) -> Infer:
    x, y = numbers(n, seed=n), numbers(m, seed=m)
    return Infer([x + y if go else np.concatenate([x, y])], x=x, y=y, go=np.array(go))


def dynamic(then: Make, other: Make, after: Any = None) -> Net:
    return either(then, other, shape=(-1, 3), after=after)


def sized(name: str, net: Net, then: Callable[..., Any], other: Callable[..., Any]) -> Scenario:
    """Run the same model for inputs of several lengths and both branches."""
    steps = []
    for n, go in ((2, True), (5, True), (5, False), (2, False), (1, True)):
        x, y = numbers(n, 3, seed=n), numbers(n, 3, seed=n + 20)
        steps.append(Infer([(then if go else other)(x, y)], x=x, y=y, go=np.array(go)))
    return Scenario(name, net, steps, oracle="value")


def constant(name: str, value: Any) -> Scenario:
    return Scenario(name, either(plus, minus, condition=value), [Infer(x=x, y=y) for x, y in zip(X[:2], Y)])


NAN = np.full((2, 3), np.nan, F)
SCENARIOS = [
    judged("then-and-else", either(plus, minus)),
    judged("many-times-alternating", either(plus, minus), (True, False, True, False)),
    judged("condition-is-a-vector", either(plus, minus, go_shape=(1,)), ([True], [False], [True])),
    constant("condition-is-true", True),
    constant("condition-is-false", False),
    constant("condition-is-a-constant-vector", [False]),
    computed("condition-from-a-sum", lambda n, x, y: compare(n, "Greater", total(n, x), total(n, y))),
    computed(
        "condition-from-an-element", lambda n, x, y: compare(n, "Less", gather(n, gather(n, x, 1), 2), scalar(n, 0.5))
    ),
    computed(
        "condition-from-logic",
        lambda n, x, y: n.layer(
            "LogicalAnd",
            "opset1",
            [compare(n, "Less", total(n, x), scalar(n, 3)), compare(n, "Greater", total(n, y), scalar(n, -3))],
            {"auto_broadcast": "numpy"},
        ),
    ),
    computed(
        "condition-from-a-reduction-to-a-vector",
        lambda n, x, y: reshape(n, compare(n, "Greater", total(n, x), scalar(n, 0)), [1]),
    ),
    computed("condition-converted", lambda n, x, y: convert(n, reduce(n, "ReduceMin", relu(n, x), [0, 1]), "boolean")),
    Scenario(
        "condition-from-a-shape",
        either(
            plus,
            minus,
            shape=(-1, 3),
            condition=lambda n, x, y: compare(
                n, "Greater", squeeze(n, gather(n, shape_of(n, x), [0]), [0]), scalar(n, 3, "i64")
            ),
        ),
        [Infer(x=numbers(n, 3), y=numbers(n, 3, seed=1)) for n in (2, 5, 2, 4)],
    ),
    # inputs and outputs
    judged("two-outputs", either(lambda n, p: [plus(n, p), tanh(n, p[0])], lambda n, p: [minus(n, p), relu(n, p[1])])),
    judged(
        "outputs-in-another-order",
        either(lambda n, p: (v := [plus(n, p), minus(n, p)], v[::-1])[1], lambda n, p: [plus(n, p), minus(n, p)]),
    ),
    judged(
        "long-branches",
        either(
            lambda n, p: relu(n, add(n, mul(n, p[0], p[1]), tanh(n, add(n, p[0], scalar(n, 1))))),
            lambda n, p: mul(n, tanh(n, minus(n, p)), relu(n, p[1])),
        ),
    ),
    judged(
        "outputs-used-on", either(plus, minus, after=lambda net, out: [mul(net, out[0], out[0]), tanh(net, out[0])])
    ),
    judged("each-branch-has-an-input-of-its-own", one_sided("each")),
    Scenario(
        "one-branch-has-no-input",
        one_sided("then"),
        [
            Infer([X[n] * X[n] if go else X[3], np.tanh(Y[n])], x=X[n], y=Y[n], go=np.array(go))
            for n, go in enumerate((True, False, True))
        ],
        oracle="value",
    ),
    judged("parameters-in-another-order", swapped_parameters()),
    Scenario(
        "no-inputs",
        nothing_taken(),
        [Infer([X[0] if go else X[1]], go=np.array(go)) for go in (True, False, True)],
        oracle="value",
    ),
    # by value: the plugin may overwrite values that pass straight through the branches
    valued("inputs-straight-through", either(lambda n, p: p[0], lambda n, p: p[1]), lambda x, y: x, lambda x, y: y),
    valued(
        "both-inputs-straight-through",
        either(lambda n, p: list(p), lambda n, p: list(p)[::-1]),
        lambda x, y: (x, y),
        lambda x, y: (y, x),
    ),
    valued(
        "one-value-to-two-outputs",
        either(lambda n, p: [p[0], p[0]], lambda n, p: [v := plus(n, p), v]),
        lambda x, y: (x, x),
        lambda x, y: (x + y, x + y),
    ),
    valued(
        "constants",
        either(lambda n, p: n.const(X[0]), lambda n, p: n.const(Y[0])),
        lambda x, y: X[0],
        lambda x, y: Y[0],
    ),
    valued(
        "constant-or-input", either(lambda n, p: n.const(X[0]), lambda n, p: p[1]), lambda x, y: X[0], lambda x, y: y
    ),
    valued(
        "views",
        either(
            lambda n, p: reshape(n, transpose(n, p[0], [1, 0]), [2, 3]), lambda n, p: slice_(n, p[1], -1, -10, 1, -1)
        ),
        lambda x, y: x.T.reshape(2, 3),
        lambda x, y: y[:, ::-1],
    ),
    valued(
        "part-of-an-input",
        either(lambda n, p: split(n, p[0], 1, 3)[1], lambda n, p: slice_(n, p[1], 2, 3, 1)),
        lambda x, y: x[:, 1:2],
        lambda x, y: y[:, 2:3],
    ),
    valued(
        "input-used-after-as-well",
        either(
            lambda n, p: relu(n, p[0]),
            lambda n, p: relu(n, p[1]),
            after=lambda net, out: [out[0], concat(net, [out[0], out[0]], 1)],
        ),
        lambda x, y: (np.maximum(x, 0), np.tile(np.maximum(x, 0), 2)),
        lambda x, y: (np.maximum(y, 0), np.tile(np.maximum(y, 0), 2)),
    ),
    Scenario(
        "nan-in-the-branch-not-taken",
        either(lambda n, p: p[0], lambda n, p: add(n, p[1], p[0])),
        [Infer([X[0]], x=X[0], y=NAN, go=np.array(True)), Infer([X[0] + Y[0]], x=X[0], y=Y[0], go=np.array(False))],
        oracle="value",
    ),
    # different shapes, by value: the plugin refuses some of them
    *[
        valued(
            f"different-shapes-{kind}",
            shapes(kind),
            lambda x, y, f=f: f(np.concatenate([x, y])),
            lambda x, y, f=f: f(y[:1]),
        )
        for kind, f in THEN.items()
    ],
    *[
        valued(
            f"different-ranks-{kind}",
            rankless(kind),
            lambda x, y, f=f, k=kind: f(x if k == "alone" else x + y),
            lambda x, y, f=f: f((x - y).reshape(6)),
        )
        for kind, f in RANKLESS.items()
    ],
    Scenario(
        "views-beside-unknown-rank",
        beside_unknown_rank(),
        [beside(x, go) for x, go in zip(X, (True, False, True, False))],
        oracle="value",
    ),
    valued("scalar-or-matrix", either(lambda n, p: total(n, p[0]), plus), lambda x, y: x.sum(), lambda x, y: x + y),
    valued(
        "one-output-differs",
        either(lambda n, p: [plus(n, p), p[0]], lambda n, p: [minus(n, p), slice_(n, p[0], 0, 1)]),
        lambda x, y: (x + y, x),
        lambda x, y: (x - y, x[:1]),
    ),
    valued(
        "no-elements-or-some",
        either(
            lambda n, p: slice_(n, p[0], 0, 0),
            lambda n, p: p[0],
            after=lambda net, out: [out[0], reduce(net, "ReduceSum", out[0], [0])],
        ),
        lambda x, y: (x[:0], np.zeros(3, F)),
        lambda x, y: (x, x.sum(0)),
    ),
    *[
        Scenario(
            f"constant-condition-of-different-shapes-{go}".lower(),
            either(
                lambda n, p: concat(n, list(p), 0),
                lambda n, p: slice_(n, p[0], 0, 1),
                condition=go,
                after=lambda net, out: [out[0], reshape(net, out[0], [3, -1])],
            ),
            [
                Infer([v, v.reshape(3, -1)], x=x, y=y)
                for x, y in zip(X[:2], Y)
                for v in [np.concatenate([x, y]) if go else x[:1]]
            ],
            oracle="value",
        )
        for go in (True, False)
    ],
    judged("different-shapes-judged", either(lambda n, p: concat(n, list(p), 0), lambda n, p: relu(n, p[0]))),
    sized("dynamic", dynamic(plus, minus), lambda x, y: x + y, lambda x, y: x - y),
    sized(
        "dynamic-longer-or-shorter",
        dynamic(lambda n, p: concat(n, list(p), 0), lambda n, p: slice_(n, p[0], 0, 1)),
        lambda x, y: np.concatenate([x, y]),
        lambda x, y: x[:1],
    ),
    sized(
        "dynamic-transposed",
        dynamic(lambda n, p: transpose(n, p[0], [1, 0]), lambda n, p: transpose(n, plus(n, p), [1, 0])),
        lambda x, y: x.T,
        lambda x, y: (x + y).T,
    ),
    sized(
        "dynamic-outputs-feed-shapes",
        dynamic(
            lambda n, p: unsqueeze(n, plus(n, p), [0]),
            lambda n, p: unsqueeze(n, p[0], [0]),
            lambda net, out: [broadcast(net, scalar(net, 2), shape_of(net, out[0]))],
        ),
        lambda x, y: np.full((1, *x.shape), 2, F),
        lambda x, y: np.full((1, *x.shape), 2, F),
    ),
    Scenario(
        "shapes-that-fit-only-one-branch",
        same_shape_only_if_taken(),
        [fits(True, 3, 3), fits(False, 2, 5), fits(True, 4, 4), fits(False, 3, 3), fits(True, 5, 1)],
        oracle="value",
    ),
    valued(
        "finds-in-both",
        found("both"),
        lambda x, y: np.array(np.nonzero(np.maximum(x, 0))) + 1,
        lambda x, y: np.array(np.nonzero(y)) + 1,
    ),
    valued(
        "finds-in-one",
        found("one"),
        lambda x, y: np.array(np.nonzero(np.maximum(x, 0))) + 1,
        lambda x, y: np.array([[8], [9]]),
    ),
    # nesting
    Scenario("two-in-turn", in_turn(), [in_turn_values(x, y) for x, y in zip(X, Y)], oracle="value"),
    *[
        Scenario(
            f"nested-{depth}",
            nested(depth),
            [Infer([nested_value(x, 0, depth)], x=x) for x in (X[0], np.abs(X[1]), np.abs(X[2]) / 8, -np.abs(X[3]))],
            oracle="value",
        )
        for depth in (2, 3, 5)
    ],
    Scenario(
        "iterator-in-a-branch",
        scan_in_a_branch(),
        [
            Infer([np.cumsum(x, 0) if go else np.maximum(x, 0)], x=x, go=np.array(go))
            for x, go in ((numbers(4, 3), True), (numbers(2, 3), False), (numbers(6, 3), True))
        ],
        oracle="value",
    ),
    Scenario(
        "loop-in-a-branch",
        loop_in_a_branch(),
        [
            Infer([x * F(2**n) if go else np.maximum(x, 0)], x=x, n=np.array(n), go=np.array(go))
            for x, go, n in zip(X, (True, False, True, True), (3, 2, 0, 5))
        ],
        oracle="value",
    ),
    *[typed(kind) for kind in ("f32", "f64", "f16", "bf16", "i8", "i32", "i64", "u8")],
    judged("type-boolean", either(lambda n, p: compare(n, "Greater", *p), lambda n, p: compare(n, "LessEqual", *p))),
    # errors
    Scenario(
        "branches-of-different-types",
        either(plus, lambda n, p: convert(n, p[0], "i32")),
        [Infer(x=X[0], y=Y[0], go=np.array(True))],
        error="f32.*i32",
        error_op="If",
    ),
    Scenario(
        "condition-of-two",
        either(plus, minus, go_shape=(2,)),
        [Infer(x=X[0], y=Y[0], go=np.array([True, False]))],
        error="condition",
        error_op="If",
    ),
    Scenario(
        "condition-is-no-boolean",
        either(plus, minus, condition=lambda n, x, y: total(n, x)),
        [Infer(x=X[0], y=Y[0])],
        error="condition",
        error_op="If",
    ),
    Scenario(
        "step-of-the-branch-taken",
        steps_only_if_taken(),
        [Infer(x=np.float32(0), go=np.array(go)) for go in (False, True)],
        error="step is 0",
        error_op="Range",
    ),
]
test_if = check(SCENARIOS)
