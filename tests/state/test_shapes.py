"""Variables whose shape changes from one inference to the next, and views of variables.

The oracle is OpenVINO's CPU plugin; comments at `oracle="value"` say why it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.harness import Infer, Net, Reset, Scenario, SetState, check
from tests.harness.ir import Port
from tests.harness.layers import (
    add,
    broadcast,
    concat,
    convert,
    extent,
    gather,
    i64,
    matmul,
    mul,
    numbers,
    op2,
    relu,
    reshape,
    scalar,
    shape_of,
    slice_,
    split,
    transpose,
)

INIT = numbers(2, 3, seed=100)


def growing(axis: int, rank: int = 2, init: bool = True) -> Net:
    """Append the input to a variable along an axis. Outputs are all of it, and its sum with itself."""
    net = Net()
    shape = [2, 3, 5][:rank]
    shape[axis] = -1
    x = net.parameter("f32", shape, "x")
    empty = [2, 3, 5][:rank]
    empty[axis] = 0
    start = net.const(np.zeros(empty, np.float32)) if init else None
    cache = concat(net, [net.read_value("cache", "f32", shape, start), x], axis)
    net.assign("cache", cache)
    net.result(cache)
    net.result(add(net, cache, cache))
    return net


def beams() -> Net:
    """Build a cache [beams, length, 3] whose rows are reordered before the input is appended."""
    net = Net()
    x, order = net.parameter("f32", (-1, -1, 3), "x"), net.parameter("i32", (-1,), "order")
    empty = broadcast(net, scalar(net, 0), concat(net, [extent(net, x, 0), i64(net, [0, 3])], 0))
    past = gather(net, net.read_value("cache", "f32", (-1, -1, 3), empty), order)
    cache = concat(net, [past, x], 1)
    net.assign("cache", cache)
    net.result(cache)
    return net


def shrinking() -> Net:
    net = Net()
    x = net.parameter("f32", (1, 3), "x")
    before = net.read_value("v", "f32", (-1, 3), net.const(numbers(5, 3, seed=1)))
    net.assign("v", slice_(net, before, 1, 2**31 - 1))
    net.result(add(net, before, x))
    return net


def window(length: int) -> Net:
    """Build a variable that holds the last ``length`` frames."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    every = concat(net, [net.read_value("v", "f32", (-1, 3), net.const(np.zeros((1, 3), np.float32))), x], 0)
    last = slice_(net, every, -length, 2**31 - 1)
    net.assign("v", last)
    net.result(mul(net, last, scalar(net, 2)))
    return net


def from_inputs(kind: str) -> Net:
    """Build a variable whose initial value depends on the input."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    if kind == "broadcast":
        start = broadcast(net, scalar(net, 0.25), shape_of(net, x))
    elif kind == "computed":
        start = mul(net, x, scalar(net, 10))
    elif kind == "parameter":
        start = x
    else:
        start = broadcast(net, net.const(numbers(3, seed=4)), concat(net, [extent(net, x, 0), i64(net, [3])], 0))
    after = add(net, net.read_value("v", "f32", (-1, 3), start), x)
    net.assign("v", after)
    net.result(after)
    return net


def viewed(look: Callable[[Net, Port], Port], init: Any = INIT) -> Net:
    """Output a view of the variable in another shape, while a new value is assigned."""
    net = Net()
    x = net.parameter("f32", init.shape, "x")
    before = net.read_value("v", "f32", init.shape, net.const(init))
    net.assign("v", add(net, before, x))
    net.result(look(net, before))
    return net


def assigned(make: Callable[[Net, Port, Port], Port], init: Any = INIT, shape: Any = None) -> Net:
    """Compute the new value by ``make`` from the old one and the input."""
    net = Net()
    x = net.parameter("f32", init.shape if shape is None else shape, "x")
    before = net.read_value("v", "f32", init.shape, net.const(init))
    net.assign("v", make(net, before, x))
    net.result(add(net, before, before))
    return net


def both_halves() -> Net:
    """Assign the halves of one tensor to two variables."""
    net = Net()
    x = net.parameter("f32", (2, 6), "x")
    left, right = split(net, mul(net, x, scalar(net, 2)), 1, 2)
    for name, value in (("left", left), ("right", right)):
        net.result(net.read_value(name, "f32", (2, 3)))
        net.assign(name, value)
    return net


def stateless_batch() -> Net:
    """Change the batch of the input while the variable keeps its shape."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    before = net.read_value("v", "f32", (1, 3), net.const(numbers(1, 3, seed=2)))
    both = add(net, x, before)
    net.assign("v", net.layer("ReduceSum", "opset1", [both, i64(net, [0])], {"keep_dims": True}))
    net.result(both)
    return net


def positions() -> Net:
    """Count the frames in a variable that selects rows of a table."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    seen = net.read_value("seen", "i64", (1,), i64(net, [0]))
    end = add(net, seen, extent(net, x, 0))
    net.assign("seen", end)
    net.result(add(net, x, slice_(net, net.const(numbers(20, 3, seed=5)), seen, end)))
    return net


def shape_alone(*, computed: bool = False) -> Net:
    """Return a tensor of the variable's extents, or sums of them, so that nothing reads its elements."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    before = net.read_value("v", "f32", (-1, 3), net.const(numbers(5, 3)))
    net.assign("v", x)
    shape = shape_of(net, before)
    if computed:
        shape = net.layer("CumSum", "opset3", [shape, net.const(0)])
    net.result(broadcast(net, scalar(net, 1), shape))
    return net


def shape_steps(*lengths: int, computed: bool = False) -> list[Infer]:
    """Compute the results of `shape_alone`."""
    before = (5, *lengths)
    return [Infer([np.ones((n, n + 3 if computed else 3), F32)], x=numbers(new, 3)) for n, new in zip(before, lengths)]


def masked_attention() -> Net:
    """Build one head of attention over a growing cache of keys and values, from elementary operations."""
    net = Net()
    x = net.parameter("f32", (1, -1, 5), "x")
    parts = {}
    for name, seed in (("k", 1), ("v", 2)):
        past = net.read_value(name, "f32", (1, -1, 5), net.const(np.zeros((1, 0, 5), np.float32)))
        parts[name] = concat(net, [past, matmul(net, x, net.const(numbers(5, 5, seed=seed) / 4))], 1)
        net.assign(name, parts[name])
    weights = net.layer("SoftMax", "opset1", [matmul(net, x, parts["k"], tb=True)], {"axis": 2})
    net.result(matmul(net, weights, parts["v"]))
    return net


def feeds(*lengths: int, rest: tuple[int, ...] = (3,), before: tuple[int, ...] = ()) -> list[Any]:
    return [Infer(x=numbers(*before, n, *rest, seed=i)) for i, n in enumerate(lengths)]


def beam_steps(steps: list[Any]) -> list[Any]:
    """Compute the results of `beams`; None is a reset."""
    found: list[Any] = []
    cache = None
    for step in steps:
        if step is None:
            cache = None
            found.append(Reset())
            continue
        x, order = step
        past = np.zeros((len(x), 0, 3), np.float32) if cache is None else cache
        cache = np.concatenate([past[order], x], axis=1)
        found.append(Infer([cache], {"cache": cache}, x=x, order=order))
    return found


def position_steps(*lengths: int) -> list[Infer]:
    """Compute the results of `positions` after a reset."""
    found, table, seen = [], numbers(20, 3, seed=5), 0
    for i, n in enumerate(lengths):
        x, seen = numbers(n, 3, seed=i), seen + n
        found.append(Infer([x + table[seen - n : seen]], {"seen": np.array([seen])}, x=x))
    return found


def products(count: int) -> list[Infer]:
    found, value = [], INIT
    for n in range(count):
        found.append(Infer([value @ value.T], {"v": value + numbers(2, 3, seed=n)}, x=numbers(2, 3, seed=n)))
        value = value + numbers(2, 3, seed=n)
    return found


def windows(length: int, *lengths: int) -> list[Infer]:
    """Compute the results of `window`."""
    found, last = [], np.zeros((1, 3), np.float32)
    for i, n in enumerate(lengths):
        last = np.concatenate([last, numbers(n, 3, seed=i)])[-length:]
        found.append(Infer([2 * last], {"v": last}, x=numbers(n, 3, seed=i)))
    return found


SQUARE = numbers(3, 3, seed=7)
F32 = np.float32


def sequence(make: Callable[[Any, Any], Any], steps: int, init: Any = INIT, shape: Any = None) -> list[Infer]:
    """Compute the results of `assigned` with NumPy."""
    found, value = [], init
    for n in range(steps):
        x = numbers(*(init.shape if shape is None else shape), seed=n)
        before, value = value, np.ascontiguousarray(make(value, x)).astype(F32)
        found.append(Infer([before + before], {"v": value}, x=x))
    return found


SCENARIOS = [
    # by value: the plugin returns stray memory where a Parameter is assigned
    Scenario("only-its-shape-is-read", shape_alone(), shape_steps(2, 4, 4, 1), oracle="value"),
    Scenario(
        "only-its-shape-is-read-for-a-computed-one",
        shape_alone(computed=True),
        shape_steps(2, 4, 4, 1, computed=True),
        oracle="value",
    ),
    Scenario("grows-along-the-first-axis", growing(0), feeds(1, 1, 1, 1, 1, 1, 1)),
    Scenario("appended-along-the-last-axis", growing(1), feeds(1, 2, 1, rest=(), before=(2,))),
    Scenario("grows-along-a-middle-axis", growing(1, 3), feeds(4, 1, 1, 2, rest=(5,), before=(2,))),
    Scenario("grows-by-many-then-one", growing(0), feeds(7, 1, 1, 1)),
    Scenario("grows-past-any-capacity", growing(0), feeds(1, 40, 1, 90, 1)),
    Scenario("grows-reset-grows", growing(0), [*feeds(3, 1, 1), Reset(), *feeds(2, 1), Reset("cache"), *feeds(5)]),
    Scenario(
        "grows-then-set-shorter", growing(0), [*feeds(3, 1, 1), SetState("cache", numbers(2, 3, seed=50)), *feeds(1, 1)]
    ),
    Scenario("set-longer-before-the-first", growing(0), [SetState("cache", numbers(6, 3, seed=51)), *feeds(1, 2)]),
    Scenario(
        "grows-from-no-initial-value",
        growing(0, init=False),
        [  # by value: the plugin refuses
            Infer([numbers(2, 3), 2 * numbers(2, 3)], {"cache": numbers(2, 3)}, x=numbers(2, 3)),
            Infer(
                [np.concatenate([numbers(2, 3), numbers(1, 3)]), 2 * np.concatenate([numbers(2, 3), numbers(1, 3)])],
                x=numbers(1, 3),
            ),
        ],
        oracle="value",
    ),
    Scenario("grows-by-nothing", growing(0), feeds(2, 0, 1)),
    Scenario(
        "beams",
        beams(),
        beam_steps(
            [
                (numbers(2, 3, 3), [0, 1]),
                (numbers(2, 1, 3, seed=1), [1, 1]),
                (numbers(2, 1, 3, seed=2), [1, 0]),
                None,
                (numbers(3, 1, 3), [0, 1, 2]),
                (numbers(2, 1, 3), [2, 0]),
            ]
        ),
        oracle="value",
    ),  # by value
    Scenario(
        "shrinks",
        shrinking(),
        [  # by value
            Infer(
                [numbers(5, 3, seed=1)[n:] + numbers(1, 3, seed=n)],
                {"v": numbers(5, 3, seed=1)[n + 1 :]},
                x=numbers(1, 3, seed=n),
            )
            for n in range(6)
        ],
        oracle="value",
    ),
    # by value
    Scenario("sliding-window", window(4), windows(4, 1, 1, 1, 1, 1, 1, 7, 1), oracle="value"),
    Scenario("window-of-one", window(1), windows(1, 2, 1, 3), oracle="value"),
    Scenario("initial-value-broadcast-from-a-shape", from_inputs("broadcast"), feeds(2, 2, 2)),
    Scenario("initial-value-again-after-reset", from_inputs("broadcast"), [*feeds(2, 2), Reset(), *feeds(4, 4)]),
    Scenario("initial-value-computed", from_inputs("computed"), [*feeds(2, 2), Reset(), *feeds(3, 3)]),
    Scenario("initial-value-is-the-parameter", from_inputs("parameter"), [*feeds(2, 2), Reset(), *feeds(1)]),
    Scenario("initial-row-for-every-batch", from_inputs("row"), [*feeds(2, 2), Reset(), *feeds(5)]),
    Scenario(
        "set-instead-of-the-initial-value",
        from_inputs("computed"),
        [SetState("v", numbers(2, 3, seed=9)), *feeds(2, 2)],
    ),
    Scenario("batch-changes-while-the-variable-does-not", stateless_batch(), feeds(2, 5, 2, 5, 1, 2, 7, 5)),
    # by value: the plugin adds to the variable before it reads it
    Scenario("positions", positions(), [*position_steps(3, 1, 1, 4), Reset(), *position_steps(2, 1)], oracle="value"),
    Scenario(
        "attention-over-a-cache",
        masked_attention(),
        [*feeds(4, 1, 1, rest=(5,), before=(1,)), Reset(), *feeds(2, 1, rest=(5,), before=(1,))],
    ),
    # views of values that are read
    Scenario("reads-transposed", viewed(lambda n, v: transpose(n, v, [1, 0])), feeds(2, 2, 2)),
    Scenario("reads-reshaped", viewed(lambda n, v: reshape(n, v, [3, 2])), feeds(2, 2, 2)),
    Scenario("reads-flattened-and-computes", viewed(lambda n, v: relu(n, reshape(n, v, [-1]))), feeds(2, 2, 2)),
    Scenario("reads-a-part", viewed(lambda n, v: split(n, v, 1, 3)[1]), feeds(2, 2, 2)),
    Scenario("reads-a-slice-backwards", viewed(lambda n, v: slice_(n, v, -1, -10, 1, -1)), feeds(2, 2, 2)),
    Scenario("reads-a-row", viewed(lambda n, v: gather(n, v, 1)), feeds(2, 2, 2)),
    Scenario("reads-broadcast", viewed(lambda n, v: broadcast(n, v, [4, 2, 3])), feeds(2, 2, 2)),
    Scenario(
        "reads-a-product-of-transposes",
        viewed(lambda n, v: matmul(n, v, transpose(n, v, [1, 0]))),
        products(3),
        oracle="value",
    ),  # the plugin gives zeros
    # views that are assigned: by value where nothing is computed, as the plugin computes other values there
    Scenario(
        "assigns-its-transpose",
        assigned(lambda n, v, x: transpose(n, v, [1, 0]), SQUARE),
        sequence(lambda v, x: v.T, 4, SQUARE),
        oracle="value",
    ),
    Scenario(
        "assigns-its-transpose-plus-input",
        assigned(lambda n, v, x: add(n, transpose(n, v, [1, 0]), x), SQUARE),
        feeds(3, 3, 3),
    ),
    Scenario(
        "assigns-a-transposed-sum", assigned(lambda n, v, x: transpose(n, add(n, v, x), [1, 0]), SQUARE), feeds(3, 3, 3)
    ),
    Scenario(
        "assigns-its-halves-swapped",
        assigned(lambda n, v, x: concat(n, split(n, v, 1, 3)[::-1], 1)),
        sequence(lambda v, x: v[:, ::-1], 3),
        oracle="value",
    ),
    Scenario(
        "assigns-itself-backwards",
        assigned(lambda n, v, x: slice_(n, v, -1, -10, 1, -1)),
        sequence(lambda v, x: v[:, ::-1], 3),
        oracle="value",
    ),
    Scenario(
        "assigns-itself-shifted",
        assigned(lambda n, v, x: concat(n, [slice_(n, v, 1, 3, 1), slice_(n, x, 0, 1, 1)], 1)),
        feeds(2, 2, 2, 2),
    ),
    Scenario(
        "assigns-the-parameter-reshaped",
        assigned(lambda n, v, x: reshape(n, x, [2, 3]), shape=(6,)),
        sequence(lambda v, x: x.reshape(2, 3), 3, shape=(6,)),
        oracle="value",
    ),
    Scenario(
        "assigns-the-parameter-transposed",
        assigned(lambda n, v, x: transpose(n, x, [1, 0]), shape=(3, 2)),
        sequence(lambda v, x: x.T, 3, shape=(3, 2)),
        oracle="value",
    ),
    Scenario(
        "assigns-a-part-of-the-parameter",
        assigned(lambda n, v, x: split(n, x, 0, 3)[1], shape=(6, 3)),
        sequence(lambda v, x: x[2:4], 3, shape=(6, 3)),
        oracle="value",
    ),
    Scenario(
        "assigns-a-broadcast",
        assigned(lambda n, v, x: broadcast(n, x, [2, 3]), shape=(1, 3)),
        sequence(lambda v, x: np.broadcast_to(x, (2, 3)), 3, shape=(1, 3)),
        oracle="value",
    ),
    Scenario(
        "assigns-reshaped-sum",
        assigned(lambda n, v, x: reshape(n, add(n, reshape(n, v, [6]), x), [2, 3]), shape=(6,)),
        [Infer(x=numbers(6, seed=n)) for n in range(3)],
    ),
    Scenario("halves-to-two-variables", both_halves(), [Infer(x=numbers(2, 6, seed=n)) for n in range(3)]),
    Scenario(
        "assigns-a-converted-value",
        assigned(lambda n, v, x: convert(n, convert(n, op2(n, "Maximum", v, x), "i32"), "f32")),
        feeds(2, 2, 2),
    ),
]
test_shapes = check(SCENARIOS)
