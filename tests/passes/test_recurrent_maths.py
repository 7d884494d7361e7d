"""Loops over recurrent steps that converters of frameworks decompose into elementary layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.harness import Infer, Net, Scenario, check
from tests.harness.ir import Port
from tests.harness.layers import (
    add,
    concat,
    i64,
    matmul,
    mul,
    numbers,
    op2,
    relu,
    reshape,
    scalar,
    slice_,
    split,
    tanh,
    transpose,
    unsqueeze,
)

from .recurrent_nets import (
    FEATURES,
    HIDDEN,
    Step,
    frames,
    layers,
    looped,
    over_time,
    prepared,
    same_as_step_by_step,
    weights,
)

BOTH = ((0, True), (0, False), (1, False))
Part = Callable[[Net, Port, int], Sequence[Port]]


def sigmoid(b: Net, x: Port) -> Port:
    port: Port = b.layer("Sigmoid", "opset1", [x])
    return port


def sub(b: Net, x: Port, y: Port) -> Port:
    return op2(b, "Subtract", x, y)


def equally(b: Net, x: Port, count: int) -> Sequence[Port]:
    return split(b, x, 1, count)


def variadic(b: Net, x: Port, count: int) -> Sequence[Port]:
    ports: Sequence[Port] = b.layer(
        "VariadicSplit", "opset1", [x, i64(b, -1), i64(b, [HIDDEN] * (count - 1) + [-1])], outputs=count
    )
    return ports


def sliced(b: Net, x: Port, count: int) -> Sequence[Port]:
    return [slice_(b, x, n * HIDDEN, (n + 1) * HIDDEN, 1) for n in range(count)]


def strided(b: Net, x: Port, count: int) -> Sequence[Port]:
    masks = {"begin_mask": "1,0", "end_mask": "1,0"}
    return [
        b.layer(
            "StridedSlice", "opset1", [x, i64(b, [0, n * HIDDEN]), i64(b, [0, (n + 1) * HIDDEN]), i64(b, [1, 1])], masks
        )
        for n in range(count)
    ]


def projected(b: Net, x: Port, columns: int, seed: int, bias: bool = True, transposed: bool = True) -> Port:
    """Add x W^T + b."""
    width = HIDDEN if seed % 2 else FEATURES
    matrix = weights(columns, width, seed=seed)
    value = matmul(b, x, b.const(matrix if transposed else matrix.T), tb=transposed)
    return add(b, value, b.const(weights(columns, seed=seed + 50))) if bias else value


def lstm_of(b: Net, i: Port, f: Port, g: Port, o: Port, c: Port) -> Sequence[Port]:
    new = add(b, mul(b, f, c), mul(b, i, g))
    return [mul(b, o, tanh(b, new)), new]


def torch_lstm(part: Part = equally, bias: bool = True) -> Step:
    """Return an LSTM step of torch: two projections with biases, gates i, f, g, o."""

    def step(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
        h, c = states
        gates = add(b, projected(b, x, 4 * HIDDEN, 0, bias), projected(b, h, 4 * HIDDEN, 1, bias))
        i, f, g, o = part(b, gates, 4)
        return lstm_of(b, sigmoid(b, i), sigmoid(b, f), tanh(b, g), sigmoid(b, o), c)

    return step


def tensorflow_lstm(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Compute an LSTM step of x and h concatenated, with gates i, g, f, o, and a bias for f only."""
    h, c = states
    both = matmul(b, concat(b, [x, h], 1), b.const(weights(FEATURES + HIDDEN, 4 * HIDDEN)))
    i, g, f, o = split(b, add(b, both, b.const(weights(1, 4 * HIDDEN))), -1, 4)
    return lstm_of(b, sigmoid(b, i), sigmoid(b, add(b, f, scalar(b, 1))), tanh(b, g), sigmoid(b, o), c)


def lstm_of_single_gates(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Compute each gate by its own products, with swapped operands."""
    h, c = states
    i, f, g, o = (
        add(b, projected(b, h, HIDDEN, 2 * n + 1, False), projected(b, x, HIDDEN, 2 * n, transposed=False))
        for n in range(4)
    )
    new = add(b, mul(b, tanh(b, g), sigmoid(b, i)), mul(b, c, sigmoid(b, f)))
    return [mul(b, tanh(b, new), sigmoid(b, o)), new]


def lstm_activated_first(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Apply one sigmoid to three gates before they are split."""
    h, c = states
    gates = add(b, projected(b, x, 4 * HIDDEN, 0), projected(b, h, 4 * HIDDEN, 1, False))
    three, last = b.layer("VariadicSplit", "opset1", [gates, i64(b, 1), i64(b, [3 * HIDDEN, HIDDEN])], outputs=2)
    f, i, o = split(b, sigmoid(b, three), 1, 3)
    return lstm_of(b, i, f, tanh(b, last), o, c)


def lstm_of_all_sigmoids(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Compute gates that only their position tells apart; the output is activated by relu."""
    h, c = states
    gates = add(b, projected(b, x, 4 * HIDDEN, 0), projected(b, h, 4 * HIDDEN, 1))
    i, f, g, o = split(b, sigmoid(b, gates), 1, 4)
    new = add(b, mul(b, f, c), mul(b, i, g))
    return [mul(b, o, relu(b, new)), new]


def torch_gru(blend: str) -> Step:
    """Return a GRU step that resets after the product with R; gates r, z, n."""

    def step(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
        (h,) = states
        xr, xz, xn = split(b, projected(b, x, 3 * HIDDEN, 0), 1, 3)
        hr, hz, hn = split(b, projected(b, h, 3 * HIDDEN, 1), 1, 3)
        r, z = sigmoid(b, add(b, xr, hr)), sigmoid(b, add(b, xz, hz))
        return [blended(b, blend, z, tanh(b, add(b, xn, mul(b, r, hn))), h)]

    return step


def classic_gru(blend: str, joined: bool) -> Step:
    """Return a GRU step that resets before it, with x and h concatenated or apart; gates z and r in one product."""

    def step(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
        (h,) = states
        if joined:
            both = matmul(b, concat(b, [h, x], 1), b.const(weights(FEATURES + HIDDEN, 2 * HIDDEN)))
            z, r = split(b, sigmoid(b, add(b, both, b.const(weights(2 * HIDDEN)))), 1, 2)
            last = concat(b, [mul(b, r, h), x], 1)
            n = add(b, matmul(b, last, b.const(weights(FEATURES + HIDDEN, HIDDEN))), b.const(weights(HIDDEN)))
        else:
            gates = add(b, projected(b, x, 2 * HIDDEN, 0), projected(b, h, 2 * HIDDEN, 1, False))
            z, r = split(b, sigmoid(b, gates), 1, 2)
            n = add(b, projected(b, x, HIDDEN, 2), projected(b, mul(b, h, r), HIDDEN, 3, False))
        return [blended(b, blend, z, tanh(b, n), h)]

    return step


def blended(b: Net, how: str, z: Port, n: Port, h: Port) -> Port:
    """Add (1 - z) n + z h."""
    if how == "difference":
        return add(b, n, mul(b, z, sub(b, h, n)))
    if how == "difference-first":
        return add(b, mul(b, sub(b, h, n), z), n)
    if how == "swapped":
        return add(b, mul(b, h, z), mul(b, n, sub(b, scalar(b, 1), z)))
    return add(b, mul(b, sub(b, b.const(np.ones((1, HIDDEN), np.float32)), z), n), mul(b, z, h))


def rnn(kind: str) -> Step:
    def step(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
        value = add(b, projected(b, x, HIDDEN, 0), projected(b, states[0], HIDDEN, 1))
        if kind == "hardsigmoid":
            return [b.layer("HardSigmoid", "opset1", [value, scalar(b, 0.3), scalar(b, 0.4)])]
        return [tanh(b, value) if kind == "tanh" else relu(b, value) if kind == "relu" else sigmoid(b, value)]

    return step


def judged(net: Net, batch: int = 2, axis: int = 1, **kwargs: Any) -> Scenario:
    return Scenario("", net, frames(batch, axis), dynamic=False, **kwargs)


def frame_of_three_axes(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Compute a step of frames [1, 1, n], which are not squeezed."""
    value = add(b, projected(b, x, HIDDEN, 0), projected(b, states[0], HIDDEN, 1))
    return [tanh(b, value)]


def wide_rnn(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Multiply h by a matrix that is transposed in the body, and x by two."""
    (h,) = states
    r = transpose(b, b.const(weights(HIDDEN, HIDDEN)), [1, 0])
    return [tanh(b, add(b, add(b, projected(b, x, HIDDEN, 0), matmul(b, h, r)), projected(b, x, HIDDEN, 2, False)))]


FOUND = {
    **{
        f"lstm-{part.__name__}": judged(over_time(torch_lstm(part), 2, BOTH))
        for part in (equally, variadic, sliced, strided)
    },
    "lstm-without-bias": judged(over_time(torch_lstm(bias=False), 2, BOTH)),
    "lstm-batch-1-time-first": judged(over_time(torch_lstm(), 2, BOTH, batch=1, axis=0), 1, 0),
    "lstm-backwards": judged(over_time(torch_lstm(), 2, BOTH, into={"start": -1, "end": 0, "stride": -1})),
    "lstm-joined": judged(over_time(tensorflow_lstm, 2, BOTH)),
    "lstm-of-single-gates": judged(over_time(lstm_of_single_gates, 2, BOTH)),
    "lstm-activated-first": judged(over_time(lstm_activated_first, 2, BOTH)),
    "lstm-of-all-sigmoids": judged(over_time(lstm_of_all_sigmoids, 2, BOTH)),
    "lstm-loop": Scenario("", looped(torch_lstm(), 2), frames(2, 1, (6,)), dynamic=False),
    **{
        f"gru-reset-after-{blend}": judged(over_time(torch_gru(blend)))
        for blend in ("difference", "difference-first", "swapped", "plain")
    },
    "gru-reset-before": judged(over_time(classic_gru("plain", False))),
    "gru-reset-before-joined": judged(over_time(classic_gru("difference", True), axis=0), 2, 0),
    **{f"rnn-{kind}": judged(over_time(rnn(kind))) for kind in ("tanh", "relu", "sigmoid", "hardsigmoid")},
    "rnn-two-matrices": judged(over_time(wide_rnn)),
    "rnn-of-three-axes": judged(
        over_time(frame_of_three_axes, batch=1, enter=lambda b, x: x, leave=lambda b, h: h, carried=(1, 1, HIDDEN)), 1
    ),
}
test_results = check([Scenario(name, s.net, s.steps, dynamic=False) for name, s in FOUND.items()])


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the sequence remains, and its weights are constants."""
    model = prepared(FOUND[name].net)
    (sequence,) = layers(model)
    kind = name.split("-")[0].upper()
    assert sequence == f"{kind}Sequence"
    (node,) = (n for n in model.ops if n.op.name == sequence)
    w, r, b = node.sources[-3:]
    assert all(m is None or m.node.op.name == "Constant" for m in (w, r, b))
    assert node.op.linear_before_reset == ("after" in name) if kind == "GRU" else True
    same_as_step_by_step(FOUND[name], monkeypatch)


# ---- not matched


def blend_the_other_way(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Add z n + (1 - z) h."""
    (h,) = states
    gates = add(b, projected(b, x, 2 * HIDDEN, 0), projected(b, h, 2 * HIDDEN, 1))
    z, r = split(b, sigmoid(b, gates), 1, 2)
    n = tanh(b, add(b, projected(b, x, HIDDEN, 2), projected(b, mul(b, h, r), HIDDEN, 3)))
    return [add(b, mul(b, z, n), mul(b, sub(b, scalar(b, 1), z), h))]


def unlike_gates(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Activate f by another function than i and o."""
    h, c = states
    i, f, g, o = split(b, add(b, projected(b, x, 4 * HIDDEN, 0), projected(b, h, 4 * HIDDEN, 1)), 1, 4)
    return lstm_of(b, sigmoid(b, i), tanh(b, f), tanh(b, g), sigmoid(b, o), c)


def gate_without_h(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    h, c = states
    i, f, g = split(b, add(b, projected(b, x, 3 * HIDDEN, 0), projected(b, h, 3 * HIDDEN, 1)), 1, 3)
    return lstm_of(b, sigmoid(b, i), sigmoid(b, f), tanh(b, g), sigmoid(b, projected(b, x, HIDDEN, 2)), c)


def bias_by_batch(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    value = add(b, projected(b, x, HIDDEN, 0), projected(b, states[0], HIDDEN, 1))
    return [tanh(b, add(b, value, b.const(weights(2, 1))))]


def batch_as_features(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Multiply from the left, which mixes the batch."""
    value = add(b, projected(b, x, HIDDEN, 0), matmul(b, b.const(weights(2, 2)), states[0]))
    return [tanh(b, value)]


def reordered_state(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Multiply h with its elements reordered."""
    other = reshape(b, transpose(b, states[0], [1, 0]), [2, HIDDEN])
    return [tanh(b, add(b, projected(b, x, HIDDEN, 0), projected(b, other, HIDDEN, 1)))]


def outer_sum(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
    """Add [2, 1, n] + [2, n] = [2, 2, n], whose first rows are carried."""
    value = add(b, unsqueeze(b, projected(b, x, HIDDEN, 0), [1]), projected(b, states[0], HIDDEN, 1))
    return [reshape(b, slice_(b, tanh(b, value), 0, 1), [2, HIDDEN])]


LEFT: dict[str, tuple[Step, int]] = {
    "gru-the-other-way": (blend_the_other_way, 1), "unlike-gates": (unlike_gates, 2), "gate-without-h":
    (gate_without_h, 2), "bias-by-batch": (bias_by_batch, 1), "batch-as-features": (batch_as_features, 1),
    "reordered-state": (reordered_state, 1), "outer-sum": (outer_sum, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    step, states = LEFT[name]
    assert layers(prepared(over_time(step, states))) == ["TensorIterator"]


test_left_results = check(
    [Scenario(name, over_time(step, states), frames(), dynamic=False) for name, (step, states) in LEFT.items()]
)


def test_a_state_that_is_broadcast_is_left_alone() -> None:
    """The batch may be larger than that of the initial state, which is known only at run time."""
    net = over_time(torch_gru("plain"), shape=(-1, -1, FEATURES), carried=(1, HIDDEN))
    assert layers(prepared(net)) == ["TensorIterator"]
    Scenario("broadcast", net, [Infer(x=numbers(1, 3, FEATURES) / 4)]).run("static", "CPU")
