"""Loops over recurrent cells become sequences, whatever surrounds the cell; the oracle is OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import Infer, Net, Reset, Scenario, check, feed, take
from tests.harness.layers import add, concat, extent, i64, numbers, relu, reshape, squeeze, transpose, unsqueeze
from tests.harness.models.spec import spec_tensor_iterator

from .recurrent_nets import (
    BACKWARDS,
    FEATURES,
    HIDDEN,
    axes,
    cell,
    frames,
    layers,
    looped,
    over_time,
    prepared,
    same_as_step_by_step,
    stateful,
    weights,
)

LSTM, GRU, RNN = cell("LSTMCell"), cell("GRUCell"), cell("RNNCell")
BOTH = ((0, True), (0, False), (1, False))


def judged(name: str, net: Net, batch: int = 2, axis: int = 1, **kwargs: Any) -> Scenario:
    return Scenario(name, net, frames(batch, axis), **kwargs)


def time_of(net: Net, x: Any) -> Any:
    return squeeze(net, extent(net, x, 1), [0])


def weights_from_inputs() -> Net:
    """Compute W, R and B from model inputs, in the body and outside of it."""
    net, body = Net(), Net()
    x, w = net.parameter("f32", (2, -1, FEATURES), "x"), net.parameter("f32", (HIDDEN, 4, FEATURES + HIDDEN), "w")
    xi, h, c = body.parameter("f32", (2, 1, FEATURES)), *(body.parameter("f32", (2, HIDDEN)) for _ in range(2))
    inner = body.parameter("f32", (4, HIDDEN, FEATURES + HIDDEN))
    flat = relu(body, reshape(body, inner, [4 * HIDDEN, FEATURES + HIDDEN]))
    parts = body.layer("VariadicSplit", "opset1", [flat, i64(body, 1), i64(body, [FEATURES, HIDDEN])], outputs=2)
    new = body.layer(
        "LSTMCell",
        "opset4",
        [squeeze(body, xi, [1]), h, c, *parts, body.const(weights(4 * HIDDEN))],
        {"hidden_size": HIDDEN},
        2,
    )
    back = [body.result(v) for v in new]
    start = [net.const(weights(2, HIDDEN, seed=n)) for n in (1, 2)]
    found = net.tensor_iterator(
        body,
        [feed(x, xi, axis=1), *map(feed, start, (h, c)), feed(transpose(net, w, [1, 0, 2]), inner)],
        [take(b) for b in back],
        list(zip(back, (h, c))),
    )
    for port in found:
        net.result(port)
    return net


def old_cell(form: str) -> Any:
    """Return a step with LSTMCell-1, whose gates are in another order, or with one matrix."""

    def step(b: Net, x: Any, states: Any) -> Any:
        w, r = (weights(4 * HIDDEN, n, seed=n) for n in (FEATURES, HIDDEN))
        given = [np.concatenate([w, r], 1)] if form == "joined" else [w, r]
        attrs = {"hidden_size": HIDDEN} | ({} if form == "joined" else {"weights_format": form})
        return b.layer("LSTMCell", "opset1", [x, *states, *map(b.const, given), b.const(weights(4 * HIDDEN))], attrs, 2)

    return step


def from_zero_of_the_batch(kind: str = "GRUCell") -> Net:
    """Build a loop whose initial state is zeros of the batch's size."""
    net, body = Net(), Net()
    x = net.parameter("f32", (-1, -1, FEATURES), "x")
    xi, h = body.parameter("f32", (-1, 1, FEATURES)), body.parameter("f32", (-1, HIDDEN))
    (new,) = cell(kind)(body, squeeze(body, xi, [1]), [h])
    every, last = body.result(unsqueeze(body, new, [1])), body.result(new)
    shape = concat(net, [extent(net, x, 0), i64(net, [HIDDEN])], 0)
    start = net.layer("Broadcast", "opset3", [net.const(np.float32(0)), shape], {"mode": "numpy"})
    for port in net.tensor_iterator(
        body, [feed(x, xi, axis=1), feed(start, h)], [take(every, axis=1), take(last)], [(last, h)]
    ):
        net.result(port)
    return net


def stacked() -> Net:
    """Build two layers, the second backwards over the steps of the first."""
    net = Net()
    value = net.parameter("f32", (2, -1, HIDDEN), "x")
    for number, attrs in enumerate(({}, BACKWARDS)):
        body = Net()
        xi, h = body.parameter("f32", (2, 1, HIDDEN)), body.parameter("f32", (2, HIDDEN))
        given = [body.const(weights(HIDDEN, HIDDEN, seed=number + n)) for n in (0, 5)]
        new = body.layer(
            "RNNCell",
            "opset1",
            [squeeze(body, xi, [1]), h, *given, body.const(weights(HIDDEN))],
            {"hidden_size": HIDDEN},
        )
        every, last = body.result(unsqueeze(body, new, [1])), body.result(new)
        value = net.tensor_iterator(
            body,
            [feed(value, xi, axis=1, **attrs), feed(net.const(weights(2, HIDDEN)), h)],
            [take(every, axis=1, **attrs)],
            [(last, h)],
        )
    net.result(add(net, value, value))
    return net


def reshaped(shape: list[int]) -> Callable[[Net, Any], Any]:
    return lambda b, x: reshape(b, x, shape)


FOUND = {
    **{
        f"{kind}-{batch}-axis-{axis}{'-backwards' if into else ''}": judged(
            "",
            over_time(
                cell(kind),
                2 if kind == "LSTMCell" else 1,
                BOTH if kind == "LSTMCell" else BOTH[:2],
                batch=batch,
                axis=axis,
                into=into,
            ),
            batch,
            axis,
        )
        for kind in ("LSTMCell", "GRUCell", "RNNCell")
        for batch in (1, 3)
        for axis in (0, 1)
        for into in ({}, BACKWARDS)
    },
    "sequence-alone": judged("", over_time(LSTM, 2, ((0, True),))),
    "last-h-alone": judged("", over_time(LSTM, 2, ((0, False),))),
    "last-c-alone": judged("", over_time(LSTM, 2, ((1, False),))),
    "everything-twice": judged("", over_time(LSTM, 2, (*BOTH, *BOTH))),
    "against-the-slices": judged("", over_time(GRU, out=BACKWARDS)),
    "backwards-and-against-the-slices": judged("", over_time(GRU, into=BACKWARDS, out={})),
    "linear-before-reset": judged("", over_time(cell("GRUCell", linear_before_reset=True))),
    "clip-and-activations": judged(
        "", over_time(cell("LSTMCell", clip=0.2, activations=["sigmoid", "relu", "tanh"]), 2, BOTH)
    ),
    "hardsigmoid": judged(
        "",
        over_time(
            cell("GRUCell", activations=["hardsigmoid", "tanh"], activations_alpha=[0.3], activations_beta=[0.4])
        ),
    ),
    "no-bias": judged("", over_time(cell("RNNCell", bias=False))),
    "reshaped-slices": judged(
        "", over_time(LSTM, 2, BOTH, enter=reshaped([2, FEATURES]), leave=reshaped([2, 1, HIDDEN])), dynamic=False
    ),
    "transposed-slices": judged(
        "",
        over_time(
            LSTM,
            2,
            BOTH,
            batch=1,
            enter=lambda b, x: squeeze(b, transpose(b, x, [1, 0, 2]), [0]),
            leave=lambda b, h: transpose(b, unsqueeze(b, h, [0]), [1, 0, 2]),
        ),
        1,
    ),
    "wrapped-states": judged(
        "", over_time(LSTM, 2, BOTH, carried=(1, 2, HIDDEN), look=axes(0), keep=lambda b, h: unsqueeze(b, h, [0]))
    ),
    "wide-parts": judged("", over_time(GRU, leave=lambda b, h: unsqueeze(b, h, [0, 2]), out_axis=2)),
    "steps-last": judged("", over_time(GRU, leave=lambda b, h: unsqueeze(b, h, [2]), out_axis=2)),
    "steps-first": judged("", over_time(GRU, leave=lambda b, h: unsqueeze(b, h, [0]), out_axis=0)),
    "no-batch": Scenario(
        "",
        over_time(LSTM, 2, BOTH, batch=1, axis=0, shape=(-1, FEATURES), enter=lambda b, x: x, leave=lambda b, h: h),
        [Infer(x=numbers(n, FEATURES) / 4) for n in (3, 1)],
    ),
    "four-axes": Scenario(
        "",
        over_time(LSTM, 2, BOTH, axis=1, shape=(2, -1, 1, FEATURES), enter=axes(1, 2)),
        [Infer(x=numbers(2, n, 1, FEATURES) / 4) for n in (3, 1)],
    ),
    "time-last": Scenario(
        "",
        over_time(GRU, axis=2, shape=(2, FEATURES, -1), out_axis=1),
        [Infer(x=numbers(2, FEATURES, n) / 4) for n in (3, 1)],
    ),
    "frames-of-two-axes": Scenario(
        "",
        over_time(GRU, shape=(2, -1, FEATURES, 1), enter=axes(1, 3)),
        [Infer(x=numbers(2, n, FEATURES, 1) / 4) for n in (3, 1)],
    ),
    "part-of-the-input": Scenario(
        "",
        over_time(GRU, shape=(2, 6, FEATURES), into={"start": 1, "end": -2}, out={}),
        [Infer(x=numbers(2, 6, FEATURES) / 4)],
        dynamic=False,
    ),
    "part-of-the-input-backwards": Scenario(
        "",
        over_time(
            GRU,
            shape=(2, 6, FEATURES),
            into={"start": 5, "end": 2, "stride": -1},
            out={"stride": -1, "start": -1, "end": 0},
        ),
        [Infer(x=numbers(2, 6, FEATURES) / 4)],
        dynamic=False,
    ),
    **{f"old-{form}": judged("", over_time(old_cell(form), 2, BOTH)) for form in ("ifco", "icof", "iofc", "joined")},
    "old-input-forget": judged("", over_time(cell("LSTMCell", version="opset1", input_forget=True), 2, BOTH)),
    "weights-from-inputs": Scenario(
        "",
        weights_from_inputs(),
        [Infer(x=numbers(2, n, FEATURES) / 4, w=weights(HIDDEN, 4, FEATURES + HIDDEN, seed=n)) for n in (3, 1)],
        dynamic=False,
    ),
    "dynamic-batch": Scenario(
        "", from_zero_of_the_batch(), [Infer(x=numbers(n, t, FEATURES) / 4) for n, t in ((1, 4), (3, 2), (2, 1))]
    ),
    "stacked": Scenario("", stacked(), [Infer(x=numbers(2, n, HIDDEN) / 4) for n in (3, 1)]),
    "between-states": Scenario("", stateful(2), [*frames(), Reset(), *frames(2, 1, (3,))]),
    # loops
    "loop": Scenario("", looped(LSTM, 2), frames(2, 1, (6,)), dynamic=False),
    "loop-time-first": Scenario("", looped(GRU, axis=0), frames(2, 0, (6,)), dynamic=False),
    "loop-of-vectors-of-one": Scenario("", looped(GRU, index="vector"), frames(2, 1, (6,)), dynamic=False),
    "loop-as-long-as-the-input": Scenario("", looped(GRU, trips=time_of), frames(2, 1, (6,)), dynamic=False),
}


def named(table: dict[str, Scenario]) -> list[Scenario]:
    return [Scenario(name, s.net, s.steps, s.tol, s.oracle, s.dynamic, s.rankless) for name, s in table.items()]


# OpenVINO builds sequences here that ignore bounds, the axis or order of the steps, or the order of gates,
# or it refuses the cell.
UNLIKE = (
    "against-the-slices",
    "backwards-and-against-the-slices",
    "wide-parts",
    "steps-last",
    "steps-first",
    "old-ifco",
    "old-icof",
    "old-iofc",
    "old-joined",
    "hardsigmoid",
    "no-bias",
    "part-of-the-input",
    "part-of-the-input-backwards",
)
test_results = check([s for s in named(FOUND) if s.id not in UNLIKE])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", [name for name, s in FOUND.items() if all(isinstance(i, Infer) for i in s.steps)])
def test_the_same_as_step_by_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence gives the same as the loop run as written."""
    same_as_step_by_step(FOUND[name], monkeypatch)


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    """All loops become sequences, with static and with dynamic sizes."""
    scenario = FOUND[name]
    for variant in ("static", "dynamic") if scenario.dynamic else ("static",):
        found = layers(prepared(scenario.net, variant))
        sequences = [op for op in found if op.endswith("Sequence")]
        assert sequences and not {"TensorIterator", "Loop"} & set(found), (variant, found)


# ---- not matched


def second_sequence_of_c() -> Net:
    return over_time(LSTM, 2, ((0, True), (1, True)))


def more_in_the_body() -> Net:
    return over_time(lambda b, x, s: [relu(b, GRU(b, x, s)[0])])


def more_before_the_cell() -> Net:
    return over_time(lambda b, x, s: GRU(b, relu(b, x), s))


def states_crossed() -> Net:
    return over_time(lambda b, x, s: LSTM(b, x, s)[::-1], 2, BOTH)


def state_is_the_same_again() -> Net:
    """Pass h as both states of the cell."""
    return over_time(lambda b, x, s: LSTM(b, x, [s[0], s[0]]), 2, BOTH)


LEFT = {
    "steps-of-c": second_sequence_of_c(),
    "more-after-the-cell": more_in_the_body(),
    "more-before-the-cell": more_before_the_cell(),
    "states-crossed": states_crossed(),
    "one-state-twice": state_is_the_same_again(),
    "some-of-the-slices": over_time(GRU, shape=(2, 6, FEATURES), into={"stride": 2, "part_size": 1, "end": 6}),
    "fewer-trips-than-frames": looped(GRU, trips=4),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_alone(name: str) -> None:
    found = layers(prepared(LEFT[name]))
    assert {"TensorIterator", "Loop"} & set(found) and not any(op.endswith("Sequence") for op in found)


test_left_results = check(
    [
        judged(name, LEFT[name])
        for name in ("steps-of-c", "more-after-the-cell", "more-before-the-cell", "one-state-twice")
    ]
)


# ---- unchanged properties


def test_the_example_of_the_specification() -> None:
    for document in (False, True):
        model = prepared_ir(spec_tensor_iterator(3, document=document))
        assert layers(model) == ["LSTMSequence"]
        (sequence,) = (n for n in model.ops if n.op.name == "LSTMSequence")
        shapes = [None if s is None else s.spec.shape for s in sequence.sources]
        assert shapes == [(1, 25, 512), (1, 1, 256), (1, 1, 256), None, (1, 1024, 512), (1, 1024, 256), (1, 1024)]
        assert all(s.node.op.name == "Constant" for s in sequence.sources[4:] if s is not None)
        assert model.outputs[0].shape == [1, 25, 256]


def prepared_ir(ir: tuple[bytes, bytes]) -> Any:
    from ovgpu.passes import prepare

    return prepare(ov.Core().read_model(*ir))


def test_names_stay() -> None:
    """Results and their tensors keep their names; the sequence gets the loop's name."""
    model = ov.Core().read_model(*over_time(LSTM, 2, BOTH).build())
    loop = next(n for n in model.ops if n.op.name == "TensorIterator")
    for port, name in zip(loop.ports, ("steps", "h", "c")):
        port.set_names({name})
    from ovgpu.passes import prepare

    after = prepare(model)
    assert [r.friendly_name for r in after.results] == ["result0", "result1", "result2"]
    assert [o.get_names() for o in after.outputs] == [{"steps"}, {"h"}, {"c"}]
    assert [n.friendly_name for n in after.ops if n.op.name == "LSTMSequence"] == ["layer"]
    assert any(n.op.name == "TensorIterator" for n in model.ops)  # the given model is unchanged
    compiled = ov.Core().compile_model(model, "CPU")
    x = numbers(2, 4, FEATURES) / 4
    results = compiled([x])
    assert results["h"].shape == (2, HIDDEN) and np.array_equal(results["steps"][:, -1], results["h"])


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("axis", [0, 1])
def test_no_steps(kind: str, axis: int) -> None:
    """The last state equals the first without steps."""
    states = 2 if kind == "LSTMCell" else 1
    net = over_time(cell(kind), states, BOTH[: states + 1], axis=axis)
    request = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU").create_infer_request()
    for steps in (0, 3, 0):
        y, *last = request.infer([numbers(*((2, steps) if axis else (steps, 2)), FEATURES)]).to_tuple()
        assert y.shape == ((2, steps, HIDDEN) if axis else (steps, 2, HIDDEN))
        for i, found in enumerate(last):
            assert np.array_equal(found, weights(2, HIDDEN, seed=40 + i)) == (steps == 0)


def test_inside_of_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent layer in the body of another loop is replaced; the outer loop stays."""
    net, body, inner = Net(), Net(), Net()
    x = net.parameter("f32", (3, 2, 4, FEATURES), "x")
    plane, h = body.parameter("f32", (1, 2, 4, FEATURES)), body.parameter("f32", (2, HIDDEN))
    xi, hi = inner.parameter("f32", (2, 1, FEATURES)), inner.parameter("f32", (2, HIDDEN))
    new = inner.result(GRU(inner, squeeze(inner, xi, [1]), [hi])[0])
    last = body.result(
        body.tensor_iterator(
            inner, [feed(squeeze(body, plane, [0]), xi, axis=1), feed(h, hi)], [take(new)], [(new, hi)]
        )
    )
    net.result(
        net.tensor_iterator(
            body, [feed(x, plane, axis=0), feed(net.const(weights(2, HIDDEN)), h)], [take(last)], [(last, h)]
        )
    )
    model = prepared(net)
    (outer,) = (n for n in model.ops if n.op.name == "TensorIterator")
    assert layers(outer.op.body) == ["GRUSequence"]
    same_as_step_by_step(Scenario("inside", net, [Infer(x=numbers(3, 2, 4, FEATURES) / 4)]), monkeypatch)
