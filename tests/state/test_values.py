"""Values of ReadValue and Assign, as sequences of inferences against OpenVINO's CPU plugin.

Scenarios with `oracle="value"` pass a parameter, a constant or another variable straight through to Assign, or
read a variable that is never assigned: the plugin gives garbage or refuses, so the specification decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.harness import Infer, Net, Reset, Scenario, SetState, check
from tests.harness.elements import as_logical
from tests.harness.layers import add, mul, numbers, op2, relu, scalar, tanh

X = [numbers(2, 3, seed=n) for n in range(8)]
INIT = numbers(2, 3, seed=100)
ONES = np.ones((2, 3), np.float32)


def accumulator(
    init: Any = None, version: str = "opset6", kind: str = "f32", shape: Sequence[int] = (2, 3), declared: Any = None
) -> Net:
    """Output the variable before and after the input has been added."""
    net = Net()
    x = net.parameter(kind, shape, "x")
    start = None if init is None else net.const(init, kind)
    before = net.read_value("sum", kind, shape if declared is None else declared, start, version)
    after = add(net, before, x)
    net.assign("sum", after, version)
    net.result(before)
    net.result(after)
    return net


def assign_output() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    assigned = net.assign("v", add(net, net.read_value("v", "f32", (2, 3)), x))
    net.result(mul(net, assigned, scalar(net, 2)))
    return net


def two(kind: str) -> Net:
    """Build two variables: independent, each computed from the other, or summed into an output."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    a = net.read_value("a", "f32", (2, 3), net.const(INIT))
    b = net.read_value("b", "f32", (2, 3))
    if kind == "independent":
        new_a, new_b = add(net, a, x), op2(net, "Subtract", b, x)
    elif kind == "crossed":
        new_a, new_b = add(net, b, x), mul(net, a, scalar(net, 2))
    else:
        new_a = add(net, a, x)
        new_b = mul(net, new_a, scalar(net, -1))
    net.assign("a", new_a)
    net.assign("b", new_b)
    net.result(add(net, a, b))
    net.result(new_b)
    return net


def rotation(count: int) -> Net:
    """Assign every variable the value of the next one, so that nothing is computed."""
    net = Net()
    states = [net.read_value(f"v{i}", "f32", (2, 3), net.const(X[i])) for i in range(count)]
    for i in range(count):
        net.assign(f"v{i}", states[(i + 1) % count])
    for state in states:
        net.result(state)
    return net


def rotated(count: int, by: int) -> Infer:
    return Infer([X[(i + by) % count] for i in range(count)], {f"v{i}": X[(i + by + 1) % count] for i in range(count)})


def delay(length: int) -> Net:
    """Chain variables: the parameter enters the first one, and each passes on its old value."""
    net = Net()
    value = net.parameter("f32", (2, 3), "x")
    for i in range(length):
        before = net.read_value(f"v{i}", "f32", (2, 3))
        net.assign(f"v{i}", value)
        value = before
    net.result(value)
    return net


def delayed(length: int, steps: int) -> list[Infer]:
    line = [np.zeros((2, 3), np.float32)] * length
    found = []
    for n in range(steps):
        states = [X[n], *line[:-1]]
        found.append(Infer([line[-1]], {f"v{i}": s for i, s in enumerate(states)}, x=X[n]))
        line = states
    return found


def constant() -> Net:
    net = Net()
    before = net.read_value("v", "f32", (2, 3))
    net.assign("v", net.const(INIT))
    net.result(before)
    return net


def unchanged() -> Net:
    """Assign a variable to itself."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3), net.const(INIT))
    net.assign("v", before)
    net.result(add(net, before, x))
    return net


def only_read() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    net.result(add(net, net.read_value("v", "f32", (2, 3), net.const(INIT)), x))
    return net


def two_of_one_value() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    value = add(net, net.read_value("a", "f32", (2, 3)), x)
    net.assign("a", value)
    before = net.read_value("b", "f32", (2, 3), net.const(INIT))
    net.assign("b", value)
    net.result(add(net, before, x))
    net.result(value)
    return net


def parameter_to_result_and_variable() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3), net.const(INIT))
    net.assign("v", x)
    net.result(x)
    net.result(before)
    return net


def chain() -> Net:
    """Chain operations that may all run in place, while the old value is still needed at the end."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3), net.const(INIT))
    value = relu(net, add(net, mul(net, before, scalar(net, 0.5)), x))
    value = tanh(net, add(net, value, value))
    net.assign("v", value)
    net.result(op2(net, "Subtract", value, before))
    return net


def inputs_of_chain_overwritten() -> Net:
    """Assign an operand of a later operation that might run in place."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    value = add(net, net.read_value("v", "f32", (2, 3)), x)
    net.assign("v", value)
    net.result(relu(net, mul(net, value, scalar(net, -2))))
    return net


def counter(kind: str, declared: Any, shape: Sequence[int] = ()) -> Net:
    """Count inferences; there is no input."""
    net = Net()
    before = net.read_value("n", kind, declared)
    after = add(net, before, net.const(np.ones(shape), kind))
    net.assign("n", after)
    net.result(after)
    return net


def logic() -> Net:
    net = Net()
    x = net.parameter("boolean", (5,), "x")
    before = net.read_value("seen", "boolean", (5,))
    after = net.layer("LogicalOr", "opset1", [before, x], {"auto_broadcast": "numpy"})
    net.assign("seen", after)
    net.result(after)
    net.result(before)
    return net


def lstm() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 5), "x")
    h = net.read_value("h", "f32", (2, 3))
    c = net.read_value("c", "f32", (2, 3), net.const(INIT))
    weights = [net.const(numbers(12, n, seed=n) / 4) for n in (5, 3)]
    cell = net.layer(
        "LSTMCell", "opset4", [x, h, c, *weights, net.const(numbers(12, seed=1) / 4)], {"hidden_size": 3}, 2
    )
    for name, value in zip("hc", cell):
        net.assign(name, value)
    net.result(cell[0])
    return net


def untyped(version_type: str) -> Net:
    """Build a variable of dynamic declared type, which takes the type of its initial value."""
    net = Net()
    x = net.parameter(version_type, (2, 3), "x")
    attrs = {"variable_id": "sum", "variable_type": "dynamic", "variable_shape": "?,?"}
    before = net.layer("ReadValue", "opset6", [net.const(INIT, version_type)], attrs, [version_type])
    after = add(net, before, x)
    net.assign("sum", after)
    net.result(before)
    net.result(after)
    return net


def undeclared(version_type: str) -> Net:
    """Build a variable without type and shape in the file, which takes those of its initial value."""
    net = Net()
    x = net.parameter(version_type, (2, 3), "x")
    before = net.layer("ReadValue", "opset6", [net.const(INIT, version_type)], {"variable_id": "sum"}, [version_type])
    after = add(net, before, x)
    net.assign("sum", after)
    net.result(before)
    net.result(after)
    return net


def runs(count: int, **kwargs: Any) -> list[Any]:
    return [Infer(x=X[n % len(X)], **kwargs) for n in range(count)]


def typed(kind: str, dtype: Any) -> Scenario:
    values = [as_logical(numbers(2, 3, seed=n, kind=dtype, low=0 if kind[0] == "u" else -9), kind) for n in range(4)]
    init = as_logical(numbers(2, 3, seed=9, kind=dtype, low=0 if kind[0] == "u" else -9), kind)
    total, steps = init, []
    for x in values[:3]:  # by value: the plugin computes and stores several types in wider ones
        before, total = total, (total + x).astype(init.dtype)
        steps.append(Infer([before, total], {"sum": total}, x=x))
    return Scenario(
        f"type-{kind}",
        accumulator(init, kind=kind),
        [*steps, Reset(), Infer([init, (init + values[3]).astype(init.dtype)], x=values[3])],
        oracle="value",
    )


def sums(init: Any, count: int) -> list[Infer]:
    """Compute the results of an accumulator."""
    steps, total = [], init
    for x in X[:count]:
        before, total = total, total + x
        steps.append(Infer([before, total], {"sum": total}, x=x))
    return steps


OTHER = numbers(2, 3, seed=200)
SCENARIOS = [
    Scenario("first-inference-gives-the-initial-value", accumulator(INIT), runs(1)),
    Scenario("zeros-without-initial-value", accumulator(), runs(3)),
    Scenario("initial-value-then-assigned", accumulator(INIT), runs(3)),
    Scenario("version-3", accumulator(INIT, "opset3"), runs(3)),
    Scenario("version-3-reset", accumulator(INIT, "opset3"), [*runs(2), Reset(), *runs(2)]),
    Scenario("eleven-inferences", accumulator(INIT), runs(11)),
    Scenario(
        "assign-output-is-the-value",
        assign_output(),
        [  # by value: the plugin refuses
            Infer([2 * X[0]], {"v": X[0]}, x=X[0]),
            Infer([2 * (X[0] + X[1])], {"v": X[0] + X[1]}, x=X[1]),
        ],
        oracle="value",
    ),
    Scenario("two-variables", two("independent"), runs(3)),
    Scenario("two-variables-crossed", two("crossed"), runs(5)),
    Scenario("one-variable-from-the-other's-new-value", two("chained"), runs(4)),
    Scenario("swap", rotation(2), [rotated(2, n) for n in range(4)], oracle="value"),
    Scenario("swap-after-reset", rotation(2), [rotated(2, 0), Reset(), rotated(2, 0), rotated(2, 1)], oracle="value"),
    Scenario("rotation-of-three", rotation(3), [rotated(3, n) for n in range(5)], oracle="value"),
    Scenario("parameter-straight-through", delay(1), delayed(1, 4), oracle="value"),
    Scenario("delay-of-two", delay(2), delayed(2, 5), oracle="value"),
    Scenario("delay-of-four", delay(4), delayed(4, 7), oracle="value"),
    Scenario(
        "constant-straight-through",
        constant(),
        [
            Infer([np.zeros((2, 3), np.float32)], {"v": INIT}),
            Infer([INIT], {"v": INIT}),
            Reset(),
            Infer([np.zeros((2, 3), np.float32)], {"v": INIT}),
        ],
        oracle="value",
    ),
    Scenario(
        "own-value-straight-through",
        unchanged(),
        [
            Infer([INIT + X[0]], {"v": INIT}, x=X[0]),
            SetState("v", OTHER),
            *(Infer([OTHER + X[n]], {"v": OTHER}, x=X[n]) for n in (1, 2)),
        ],
        oracle="value",
    ),
    Scenario(
        "parameter-to-result-and-variable",
        parameter_to_result_and_variable(),
        [Infer([X[0], INIT], {"v": X[0]}, x=X[0]), Infer([X[1], X[0]], {"v": X[1]}, x=X[1])],
        oracle="value",
    ),
    Scenario(
        "read-but-never-assigned",
        only_read(),
        [
            Infer([INIT + X[0]], x=X[0]),
            SetState("v", OTHER),
            Infer([OTHER + X[1]], {"v": OTHER}, x=X[1]),
            Reset(),
            Infer([INIT + X[2]], x=X[2]),
        ],
        oracle="value",
    ),
    Scenario("one-value-to-two-variables", two_of_one_value(), runs(3)),
    Scenario("in-place-chain", chain(), runs(4)),
    Scenario("assigned-value-used-on", inputs_of_chain_overwritten(), runs(4)),
    Scenario("lstm-cell", lstm(), [Infer(x=numbers(2, 5, seed=n)) for n in range(4)]),
    Scenario("logical-or", logic(), [Infer(x=numbers(5, seed=n, kind=np.int64) > 6) for n in range(4)]),
    # reset and set
    Scenario("reset-all", two("crossed"), [*runs(3), Reset(), *runs(2)]),
    Scenario("reset-one-of-two", two("crossed"), [*runs(3), Reset("a"), *runs(2)]),
    Scenario("reset-the-other-of-two", two("crossed"), [*runs(3), Reset("b"), *runs(2)]),
    Scenario("reset-before-the-first", accumulator(INIT), [Reset(), *runs(2)]),
    Scenario("reset-twice", accumulator(INIT), [*runs(1), Reset(), Reset(), *runs(2)]),
    Scenario("reset-after-each", accumulator(), [*runs(1), Reset(), *runs(1), Reset(), *runs(1)]),
    Scenario("set-before-the-first", accumulator(INIT), [SetState("sum", OTHER), *runs(2)]),
    Scenario("set-between", accumulator(INIT), [*runs(2), SetState("sum", OTHER), *runs(2)]),
    Scenario("set-twice", accumulator(INIT), [*runs(1), SetState("sum", ONES), SetState("sum", OTHER), *runs(2)]),
    Scenario("set-one-of-two", two("crossed"), [SetState("b", OTHER), *runs(3)]),
    Scenario("set-then-reset", accumulator(INIT), [SetState("sum", OTHER), Reset(), *runs(2)]),
    Scenario("reset-then-set", accumulator(INIT), [*runs(2), Reset(), SetState("sum", OTHER), *runs(2)]),
    Scenario(
        "set-after-odd-and-even-inferences",
        accumulator(INIT),
        [*runs(1), SetState("sum", OTHER), *runs(2), SetState("sum", ONES), *runs(2)],
    ),
    # types and shapes
    *[
        typed(kind, dtype)
        for kind, dtype in {
            "f32": np.float32,
            "f64": np.float64,
            "f16": np.float16,
            "bf16": np.float32,
            "i8": np.int8,
            "i32": np.int32,
            "i64": np.int64,
            "u8": np.uint8,
            "u16": np.uint16,
            "u32": np.uint32,
        }.items()
    ],
    Scenario("not-declared", undeclared("f32"), runs(3)),
    Scenario("scalar", counter("f32", ()), [Infer(), Infer(), Reset(), Infer()]),
    Scenario("scalar-i64", counter("i64", ()), [Infer(), Infer(), Infer()]),
    Scenario(
        "scalar-set",
        counter("f32", ()),
        [  # by value
            SetState("n", np.float32(41)),
            *(Infer([np.float32(n)], {"n": np.float32(n)}) for n in (42, 43)),
        ],
        oracle="value",
    ),
    Scenario("one-element", counter("i32", (1,), (1,)), [Infer(), Infer(), Infer()]),
    Scenario(
        "five-dimensions",
        accumulator(numbers(2, 1, 3, 1, 5), shape=(2, 1, 3, 1, 5)),
        [Infer(x=numbers(2, 1, 3, 1, 5, seed=n)) for n in range(3)],
    ),
    Scenario(
        "no-elements",
        accumulator(shape=(0, 3)),
        [  # by value: the plugin drops inputs without elements
            Infer(
                [np.zeros((0, 3), np.float32)] * 2,
                {"sum": np.zeros((0, 3), np.float32)},
                x=np.zeros((0, 3), np.float32),
            )
        ]
        * 2,
        oracle="value",
    ),
    Scenario("declared-without-type", untyped("f32"), sums(INIT, 3), oracle="value"),
    # declared shapes, by value
    *[
        Scenario(f"declared-{name}", accumulator(INIT, declared=declared), sums(INIT, 3), oracle="value")
        for name, declared in {
            "batch-dynamic": (-1, 3),
            "all-dynamic": (-1, -1),
            "range": ("1..4", 3),
            "without-rank": "...",
        }.items()
    ],
]
test_values = check(SCENARIOS)
