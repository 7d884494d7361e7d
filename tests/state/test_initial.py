"""Initial values computed from other variables, and variables that never change, as in cross-attention.

Expected values are computed here: the plugin drops or overwrites values that pass straight through.
"""

from __future__ import annotations

from typing import Any

from tests.harness import Infer, Net, Reset, Scenario, SetState, check
from tests.harness.layers import add, concat, extent, i64, matmul, mul, numbers, reshape, scalar, slice_, transpose

from .test_plan import plan_of, steps

X = [numbers(2, 3, seed=n) for n in range(6)]
S = [numbers(3, 3, seed=10 + n) for n in range(3)]


def chain(declared: Any = "...", shape: Any = (2, 3)) -> Net:
    """Build a = first input x, b computed from a, and c from both, all added to an input y."""
    net = Net()
    x, y = (net.parameter("f32", shape, name) for name in "xy")
    a = net.read_value("a", "f32", declared, x)
    b = net.read_value("b", "f32", declared, mul(net, transpose(net, a, [1, 0]), scalar(net, 3)))
    c = net.read_value("c", "f32", declared, matmul(net, a, b))
    for name, value in zip("abc", (a, b, c)):
        net.assign(name, value)
    net.result(add(net, matmul(net, c, a), y))
    return net


def unused() -> Net:
    """Build a variable that only the initial value of another one reads."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    a = net.read_value("a", "f32", "...", x)
    b = net.read_value("b", "f32", "...", transpose(net, a, [1, 0]))
    c = net.read_value("c", "f32", "...", matmul(net, a, b))
    net.assign("c", c)
    net.result(mul(net, x, scalar(net, 2)))
    return net


def chained(x: Any, y: Any, a: Any, b: Any = None, c: Any = None) -> Infer:
    """Return an inference that finds or computes these variables. b and c have their initial values if not given."""
    b = 3 * a.T if b is None else b
    c = a @ b if c is None else c
    return Infer([c @ a + y], {"a": a, "b": b, "c": c}, x=x, y=y)


def unranked() -> Net:
    """Build a variable of unknown rank, and of unknown shape arithmetic, to which rows of the input are added."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    v = net.read_value("v", "f32", "...", net.const(S[0]))
    rows = extent(net, v, 0)
    picked = reshape(net, slice_(net, x, 0, rows), concat(net, [rows, i64(net, [3])], 0))
    new = reshape(net, add(net, v, picked), [-1, 3])
    both = matmul(net, transpose(net, new, [1, 0]), picked)
    net.assign("v", new)
    net.result(both)
    return net


def of_unranked(*values: Any) -> list[Infer]:
    found, v = [], S[0]
    for x in values:
        v = v + x[:3]
        found.append(Infer([v.T @ x[:3]], {"v": v}, x=x))
    return found


SCENARIOS = [
    Scenario("initial-value-kept", chain(), [chained(X[n], X[5 - n], X[0]) for n in range(4)], oracle="value"),
    Scenario(
        "initial-value-kept-with-a-declared-rank",
        chain((-1, -1), (-1, 3)),
        [chained(X[n], X[5 - n], X[0]) for n in range(3)],
        oracle="value",
    ),
    Scenario(
        "initial-values-anew-after-reset",
        chain(),
        [chained(X[0], X[1], X[0]), Reset(), chained(X[2], X[3], X[2]), chained(X[4], X[5], X[2])],
        oracle="value",
    ),
    Scenario(
        "initial-value-from-the-others",
        chain(),
        [
            chained(X[0], X[1], X[0]),
            SetState("a", X[2]),
            chained(X[3], X[4], X[2], 3 * X[0].T, X[0] @ (3 * X[0].T)),
            Reset("c"),
            chained(X[1], X[5], X[2], 3 * X[0].T),
        ],
        oracle="value",
    ),
    Scenario(
        "initial-values-from-one-that-was-set",
        chain(),
        [SetState("a", X[4]), chained(X[0], X[1], X[4])],
        oracle="value",
    ),
    Scenario(
        "initial-value-from-what-nothing-else-reads",
        unused(),
        [Infer([2 * X[n]], {"c": X[0] @ X[0].T}, x=X[n]) for n in range(3)],
        oracle="value",
    ),
    Scenario("of-unknown-rank", unranked(), of_unranked(*(numbers(5, 3, seed=n) for n in range(3))), oracle="value"),
]
test_initial = check(SCENARIOS)


def test_unchanged_variables_cost_nothing() -> None:
    plan = plan_of(chain().build(), X[0], X[1])
    assert steps(plan) == [("bound", "MatMul"), ("bound", "Add")]
