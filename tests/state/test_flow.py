"""Variables in models with data-dependent shapes, with control flow, and with values needed on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness import Infer, Net, Reset, Scenario, SetState, check, feed, take
from tests.harness.layers import (
    add,
    broadcast,
    compare,
    concat,
    gather,
    i64,
    mul,
    nonzero,
    numbers,
    op2,
    reduce,
    reshape,
    scalar,
    slice_,
    transpose,
    unsqueeze,
)

INIT = numbers(2, 3, seed=100)


def after_nonzero() -> Net:
    """Build a variable that is read before, and assigned after, a step with a data-dependent shape."""
    net = Net()
    x = net.parameter("f32", (-1,), "x")
    before = net.read_value("v", "f32", (1,), net.const(np.ones(1, np.float32)))
    found = gather(net, x, nonzero(net, x))
    after = add(net, before, reduce(net, "ReduceSum", reshape(net, found, [-1]), [0], True))
    net.assign("v", after)
    net.result(found)
    net.result(after)
    return net


def keeps_nonzero() -> Net:
    """Assign the result of a data-dependent step unchanged."""
    net = Net()
    x = net.parameter("f32", (-1,), "x")
    before = net.read_value("v", "i64", (1, -1), i64(net, np.zeros((1, 0))))
    found = nonzero(net, x)
    net.assign("v", found)
    net.result(concat(net, [before, found], 1))
    return net


def grows_by_nonzero() -> Net:
    net = Net()
    x = net.parameter("f32", (-1,), "x")
    before = net.read_value("v", "i64", (1, -1), i64(net, np.zeros((1, 0))))
    every = concat(net, [before, nonzero(net, x)], 1)
    net.assign("v", every)
    net.result(mul(net, every, i64(net, 2)))
    return net


def nonzero_of_the_variable() -> Net:
    net = Net()
    x = net.parameter("f32", (4,), "x")
    before = net.read_value("v", "f32", (4,), net.const(np.array([0, 1, 0, 2], np.float32)))
    net.assign("v", add(net, before, x))
    net.result(nonzero(net, before))
    return net


def found_steps(kind: str, inputs: list[Any]) -> list[Infer]:
    """Compute the results of the four models above."""
    steps = []
    value: Any = {"sum": np.ones(1, np.float32), "of": np.array([0, 1, 0, 2], np.float32)}.get(
        kind, np.zeros((1, 0), np.int64)
    )
    for data in inputs:
        x = np.array(data, np.float32)
        found = np.array(np.nonzero(x))
        if kind == "sum":
            value = value + x.sum(keepdims=True, dtype=np.float32)
            steps.append(Infer([x[found], value], {"v": value}, x=x))
        elif kind == "keep":
            steps.append(Infer([np.concatenate([value, found], 1)], {"v": found}, x=x))
            value = found
        elif kind == "grow":
            value = np.concatenate([value, found], 1)
            steps.append(Infer([value * 2], {"v": value}, x=x))
        else:
            steps.append(Infer([np.array(np.nonzero(value))], {"v": value + x}, x=x))
            value = value + x
    return steps


def iterated() -> Net:
    """Build a TensorIterator that starts at the variable, which becomes its last value."""
    net, body = Net(), Net()
    x = net.parameter("f32", (5, 3), "x")
    before = net.read_value("h", "f32", (1, 3), net.const(numbers(1, 3, seed=3)))
    xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(add(body, xi, mul(body, h, scalar(body, 0.5))))
    last, every = net.tensor_iterator(
        body, [feed(x, xi, axis=0), feed(before, h)], [take(new), take(new, axis=0)], [(new, h)]
    )
    net.assign("h", last)
    net.result(every)
    return net


def layers_of_iterators() -> Net:
    """Build two iterators, each with its own variable."""
    net = Net()
    value = net.parameter("f32", (-1, 3), "x")
    for n in range(2):
        body = Net()
        before = net.read_value(f"h{n}", "f32", (1, 3))
        xi, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
        new = body.result(body.layer("Tanh", "opset1", [add(body, xi, h)]))
        last, value = net.tensor_iterator(
            body, [feed(value, xi, axis=0), feed(before, h)], [take(new), take(new, axis=0)], [(new, h)]
        )
        net.assign(f"h{n}", last)
    net.result(value)
    return net


def loop_as_long_as_the_variable() -> Net:
    """Build a variable that counts inferences and is a Loop's trip count."""
    net, body = Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    count = net.read_value("n", "i64", (), scalar(net, 0, "i64"))
    net.assign("n", add(net, count, scalar(net, 1, "i64")))
    h = body.parameter("f32", (2, 3))
    go = body.result(body.const(np.array(True)))
    new = body.result(add(body, h, h))
    net.result(
        net.loop(count, net.const(np.array(True)), body, [feed(x, h)], [take(new)], [(new, h)], body_condition=go)
    )
    return net


def branch_on_the_variable() -> Net:
    """Build a branch on the variable's sum: if positive it is halved and negated, else the input is added."""
    net, then, other = Net(), Net(), Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3), net.const(np.ones((2, 3), np.float32)))
    positive = compare(net, "Greater", reduce(net, "ReduceSum", before, [0, 1]), scalar(net, 0))
    a = then.parameter("f32", (2, 3))
    b, c = other.parameter("f32", (2, 3)), other.parameter("f32", (2, 3))
    ra = then.result(mul(then, a, scalar(then, -0.5)))
    rb = other.result(add(other, b, c))
    value = net.if_(positive, then, other, [(before, a, b), (x, None, c)], [(ra, rb)])
    net.assign("v", value)
    net.result(value)
    return net


def branch_to_two_shapes() -> Net:
    """Build a variable whose shape depends on the branch taken."""
    net, then, other = Net(), Net(), Net()
    go = net.parameter("boolean", (), "go")
    before = net.read_value("v", "f32", (-1, 3), net.const(numbers(1, 3, seed=1)))
    a, b = then.parameter("f32", (-1, 3)), other.parameter("f32", (-1, 3))
    ra, rb = then.result(concat(then, [a, a], 0)), other.result(slice_(other, b, 0, 1))
    value = net.if_(go, then, other, [(before, a, b)], [(ra, rb)])
    net.assign("v", value)
    net.result(mul(net, value, scalar(net, 2)))
    return net


def branch_steps(choices: str) -> list[Infer]:
    found, value = [], numbers(1, 3, seed=1)
    for choice in choices:
        value = np.concatenate([value, value]) if choice == "+" else value[:1]
        found.append(Infer([2 * value], {"v": value}, go=np.array(choice == "+")))
    return found


def reshaped_by_the_variable() -> Net:
    """Build a variable that is a target shape, and is reversed at every inference."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    shape = net.read_value("shape", "i64", (2,), i64(net, [1, 6]))
    net.assign("shape", slice_(net, shape, -1, -10, 0, -1))
    net.result(reshape(net, x, shape))
    return net


def repeated_by_the_variable() -> Net:
    """Build a variable that is an extent of the output, and grows."""
    net = Net()
    x = net.parameter("f32", (1, 3), "x")
    n = net.read_value("n", "i64", (1,), i64(net, [1]))
    net.assign("n", add(net, n, i64(net, [2])))
    net.result(broadcast(net, x, concat(net, [n, i64(net, [3])], 0)))
    return net


def unrelated_segment() -> Net:
    """Build one variable that is complete before a data-dependent step, and one independent of it."""
    net = Net()
    x = net.parameter("f32", (3,), "x")
    a = net.read_value("a", "f32", (3,))
    b = net.read_value("b", "f32", (3,), net.const(np.full(3, 2, np.float32)))
    net.assign("a", add(net, a, x))
    net.assign("b", op2(net, "Subtract", b, a))
    net.result(nonzero(net, x))
    net.result(b)
    return net


def unrelated_steps() -> list[Infer]:
    found = []
    a, b = np.zeros(3, np.float32), np.full(3, 2, np.float32)
    for data in ([1, 0, 2], [0, 0, 0], [3, -1, 0]):
        x = np.array(data, np.float32)
        found.append(Infer([np.array(np.nonzero(x)), b], {"a": a + x, "b": b - a}, x=x))
        a, b = a + x, b - a
    return found


def appended_in_a_loop() -> Net:
    """Build a Loop that appends to the variable."""
    net, body = Net(), Net()
    x = net.parameter("f32", (1, 3), "x")
    before = net.read_value("v", "f32", (-1, 3), net.const(np.zeros((1, 3), np.float32)))
    v, frame = body.parameter("f32", (-1, 3)), body.parameter("f32", (1, 3))
    go = body.result(body.const(np.array(True)))
    new = body.result(concat(body, [v, frame], 0))
    after = net.loop(
        scalar(net, 3, "i64"),
        net.const(np.array(True)),
        body,
        [feed(before, v), feed(x, frame)],
        [take(new)],
        [(new, v)],
        body_condition=go,
    )
    net.assign("v", after)
    net.result(transpose(net, after, [1, 0]))
    return net


def appended_steps(count: int) -> list[Infer]:
    found, value = [], np.zeros((1, 3), np.float32)
    for n in range(count):
        x = numbers(1, 3, seed=n)
        value = np.concatenate([value, x, x, x])
        found.append(Infer([value.T], {"v": value}, x=x))
    return found


def frames_of_a_window() -> Net:
    """Build a variable that holds the last frames, with an iterator over them."""
    net, body = Net(), Net()
    x = net.parameter("f32", (3,), "x")
    before = net.read_value("w", "f32", (4, 3))
    now = concat(net, [slice_(net, before, 1, 4), unsqueeze(net, x, [0])], 0)
    net.assign("w", now)
    frame, total = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(add(body, frame, total))
    net.result(
        net.tensor_iterator(
            body,
            [feed(now, frame, axis=0), feed(net.const(np.zeros((1, 3), np.float32)), total)],
            [take(new)],
            [(new, total)],
        )
    )
    return net


def frames() -> list[Infer]:
    return [Infer(x=numbers(5, 3, seed=n)) for n in range(3)]


def small(count: int) -> list[Infer]:
    return [Infer(x=numbers(2, 3, seed=n)) for n in range(count)]


def doubled(count: int, start: int = 0) -> list[Infer]:
    return [
        Infer([numbers(2, 3, seed=n) * 2.0 ** (n + start)], {"n": np.array(n + start + 1)}, x=numbers(2, 3, seed=n))
        for n in range(count)
    ]


DATA = [[1, 0, 2], [0, 0], [3], [0, 4, 5, 6]]
# Data-dependent values of variables, and variables that are shapes or trip counts, are judged by value: the plugin
# drops tensors without elements, and computes the new value of a variable before the old one is used.
SCENARIOS = [
    Scenario(
        "nonzero-summed-into-a-variable",
        after_nonzero(),
        [*found_steps("sum", DATA), Reset(), *found_steps("sum", DATA[:2])],
        oracle="value",
    ),
    Scenario(
        "nonzero-kept",
        keeps_nonzero(),
        [*found_steps("keep", DATA), Reset(), *found_steps("keep", DATA[2:])],
        oracle="value",
    ),
    Scenario("nonzero-appended", grows_by_nonzero(), found_steps("grow", DATA), oracle="value"),
    Scenario(
        "nonzero-of-the-variable",
        nonzero_of_the_variable(),
        found_steps("of", [[0, -1, 5, 0], [1, 0, 0, 0], [0] * 4]),
        oracle="value",
    ),
    Scenario("two-variables-beside-nonzero", unrelated_segment(), unrelated_steps(), oracle="value"),
    Scenario("tensor-iterator-from-and-to-a-variable", iterated(), [*frames(), Reset(), *frames()]),
    Scenario("two-iterators", layers_of_iterators(), [Infer(x=numbers(n, 3, seed=n)) for n in (2, 5, 1, 5)]),
    Scenario("set-between-iterators", iterated(), [*frames(), SetState("h", numbers(1, 3, seed=8)), *frames()]),
    Scenario(
        "loop-as-long-as-the-variable",
        loop_as_long_as_the_variable(),
        [*doubled(4), Reset(), *doubled(2), SetState("n", np.array(6)), *doubled(1, 6)],
        oracle="value",
    ),
    Scenario("branch-on-the-variable", branch_on_the_variable(), [*small(4), Reset(), *small(2)]),
    Scenario("branch-to-two-shapes", branch_to_two_shapes(), branch_steps("++-+-"), oracle="value"),
    Scenario(
        "variable-is-a-target-shape",
        reshaped_by_the_variable(),
        [
            Infer(
                [numbers(2, 3, seed=n).reshape((1, 6) if n % 2 == 0 else (6, 1))],
                {"shape": np.array([6, 1] if n % 2 == 0 else [1, 6])},
                x=numbers(2, 3, seed=n),
            )
            for n in range(4)
        ],
        oracle="value",
    ),
    Scenario(
        "variable-is-an-extent",
        repeated_by_the_variable(),
        [
            Infer(
                [np.repeat(numbers(1, 3, seed=n), 2 * n + 1, 0)], {"n": np.array([2 * n + 3])}, x=numbers(1, 3, seed=n)
            )
            for n in range(4)
        ],
        oracle="value",
    ),
    Scenario(
        "appended-in-a-loop", appended_in_a_loop(), [*appended_steps(3), Reset(), *appended_steps(1)], oracle="value"
    ),
    Scenario(
        "iterator-over-a-window",
        frames_of_a_window(),
        [  # by value: the plugin sums unwritten memory
            Infer([sum(numbers(3, seed=i) for i in range(max(0, n - 3), n + 1))[None]], x=numbers(3, seed=n))
            for n in range(6)
        ],
        oracle="value",
    ),
]
test_flow = check(SCENARIOS)
