"""Loops over recurrent steps, as exporters write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model
from ovgpu.passes import prepare
from tests.harness import Infer, Net, Scenario, feed, take
from tests.harness.ir import Port
from tests.harness.layers import gather, i64, numbers, scalar, squeeze, unsqueeze
from tests.harness.without import without

FEATURES, HIDDEN = 5, 3
Step = Callable[[Net, Port, Sequence[Port]], Sequence[Port]]
Shape = Callable[[Net, Port], Port]
BACKWARDS = {"start": -1, "end": 0, "stride": -1}


def weights(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).uniform(-0.6, 0.6, shape).astype(np.float32)


def over_time(
    step: Step,
    states: int = 1,
    outputs: Sequence[tuple[int, bool]] = ((0, True), (0, False)),
    *,
    batch: int = 2,
    axis: int = 1,
    shape: Sequence[int] | None = None,
    carried: Sequence[int] | None = None,
    enter: Shape | None = None,
    look: Shape | None = None,
    leave: Shape | None = None,
    keep: Shape | None = None,
    into: dict[str, int] | None = None,
    out: dict[str, int] | None = None,
    kind: str = "f32",
    out_axis: int | None = None,
) -> Net:
    """Build a TensorIterator over ``axis`` of x [batch, time, features] (or time first).

    ``step`` computes the next states from a frame and states; ``outputs`` are (state, whether of all steps). ``enter``
    converts a slice to a frame, ``look`` a carried tensor (of shape ``carried``) to a state, ``keep`` a state back to
    it, and ``leave`` a state to a part of a concatenation. ``into`` and ``out`` are attributes of the port maps.
    """
    net, body = Net(), Net()
    shape = shape or ((batch, -1, FEATURES) if axis == 1 else (-1, batch, FEATURES))
    x = net.parameter(kind, shape, "x")
    xi = body.parameter(kind, [1 if i == axis else d for i, d in enumerate(shape)])
    carried = carried or (batch, HIDDEN)
    inner = [body.parameter(kind, carried) for _ in range(states)]
    frame = enter(body, xi) if enter else squeeze(body, xi, [axis])
    new = step(body, frame, [look(body, s) if look else s for s in inner])
    back = [body.result(keep(body, s) if keep else s) for s in new]
    out_axis = axis if out_axis is None else out_axis
    links, edges = [feed(x, xi, axis=axis, **(into or {}))], list(zip(back, inner))
    links += [feed(net.const(weights(*carried, seed=40 + i), kind), s) for i, s in enumerate(inner)]
    taken = []
    for i, every in outputs:
        if every:
            part = body.result(leave(body, new[i]) if leave else unsqueeze(body, new[i], [out_axis]))
            taken.append(take(part, axis=out_axis, **(into or {} if out is None else out)))
        else:
            taken.append(take(back[i]))
    found = net.tensor_iterator(body, links, taken, edges, name="layer")
    for number, port in enumerate(found if isinstance(found, tuple) else (found,)):
        net.result(port, f"result{number}")
    return net


def looped(
    step: Step,
    states: int = 1,
    *,
    batch: int = 2,
    axis: int = 1,
    trips: Callable[[Net, Port], Port] | int = 6,
    index: str = "scalar",
    condition: Any = True,
    limit_of_body: bool = True,
) -> Net:
    """Build a Loop whose body gathers frame i of an unsliced input, as in ONNX; x [batch, 6, features]."""
    net, body = Net(), Net()
    x = net.parameter("f32", (batch, 6, FEATURES) if axis == 1 else (6, batch, FEATURES), "x")
    whole = body.parameter("f32", (batch, 6, FEATURES) if axis == 1 else (6, batch, FEATURES))
    i = body.parameter("i64", () if index == "scalar" else (1,))
    inner = [body.parameter("f32", (batch, HIDDEN)) for _ in range(states)]
    frame = gather(body, whole, i, axis)
    new = step(body, frame if index == "scalar" else squeeze(body, frame, [axis]), inner)
    back = [body.result(s) for s in new]
    every = body.result(unsqueeze(body, new[0], [0]))
    go = body.result(body.const(np.array(condition))) if limit_of_body else None
    limit = trips(net, x) if callable(trips) else scalar(net, trips, "i64")
    links = [feed(x, whole), *(feed(net.const(weights(batch, HIDDEN, seed=40 + n)), s) for n, s in enumerate(inner))]
    found = net.loop(
        limit,
        net.const(np.array(True)),
        body,
        links,
        [take(every, axis=0), *(take(b) for b in back)],
        list(zip(back, inner)),
        body_condition=go,
        iteration=i,
        name="layer",
    )
    for port in found:
        net.result(port)
    return net


def stateful(batch: int = 1) -> Net:
    """Build an LSTM over the frames of a chunk, whose states carry over from chunk to chunk."""
    net, body = Net(), Net()
    x = net.parameter("f32", (batch, -1, FEATURES), "x")
    xi = body.parameter("f32", (batch, 1, FEATURES))
    inner = [body.parameter("f32", (batch, HIDDEN)) for _ in "hc"]
    new = cell("LSTMCell")(body, squeeze(body, xi, [1]), inner)
    back, every = [body.result(s) for s in new], body.result(unsqueeze(body, new[0], [1]))
    first = [net.const(weights(batch, HIDDEN, seed=n)) for n in (1, 2)]
    read = [net.read_value(name, "f32", (batch, HIDDEN), init) for name, init in zip("hc", first)]
    y, *last = net.tensor_iterator(
        body,
        [feed(x, xi, axis=1), *map(feed, read, inner)],
        [take(every, axis=1), *map(take, back)],
        list(zip(back, inner)),
        name="layer",
    )
    for name, value in zip("hc", last):
        net.assign(name, value)
    net.result(y)
    return net


def cell(kind: str, bias: bool = True, version: str | None = None, **attributes: Any) -> Step:
    """Return a step that is a cell op with constant weights."""
    gates = {"LSTMCell": 4, "GRUCell": 3, "RNNCell": 1}[kind]
    rows = gates + bool(attributes.get("linear_before_reset"))
    version = version or {"LSTMCell": "opset4", "GRUCell": "opset3", "RNNCell": "opset1"}[kind]

    def step(b: Net, x: Port, states: Sequence[Port]) -> Sequence[Port]:
        given = [b.const(weights(gates * HIDDEN, n, seed=n)) for n in (FEATURES, HIDDEN)]
        given += [b.const(weights(rows * HIDDEN, seed=9))] if bias else []
        found = b.layer(kind, version, [x, *states, *given], {"hidden_size": HIDDEN, **attributes}, len(states))
        return found if isinstance(found, tuple) else (found,)

    return step


def axes(*which: int) -> Shape:
    return lambda b, x: squeeze(b, x, which)


def frames(batch: int = 2, axis: int = 1, lengths: Sequence[int] = (4, 1, 6)) -> list[Infer]:
    return [
        Infer(x=numbers(*((batch, n, FEATURES) if axis == 1 else (n, batch, FEATURES)), seed=n) / 4) for n in lengths
    ]


def prepared(net: Net, variant: Any = "static") -> Model:
    return prepare(ov.Core().read_model(*net.build(variant)))


def layers(model: Model) -> list[str]:
    """Return the names of the ops that are neither views nor constants."""
    skipped = {"Parameter", "Constant", "Result", "Reshape", "Squeeze", "Unsqueeze", "Transpose"}
    return [n.op.name for n in model.ops if n.op.name not in skipped]


def same_as_step_by_step(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that a scenario's outputs equal those of the loops as written, also with dynamic shapes."""
    for variant in scenario.variants:
        model = ov.Core().read_model(*scenario.net.build(variant))
        sequence = ov.Core().compile_model(model, "CPU").create_infer_request()
        with monkeypatch.context() as patch:
            without(patch, "fuse_recurrent_loops")
            loop = ov.Core().compile_model(model, "CPU").create_infer_request()
        for step in scenario.steps:
            assert isinstance(step, Infer)
            inputs = list(step.inputs.values())
            for found, expected in zip(sequence.infer(inputs).to_tuple(), loop.infer(inputs).to_tuple(), strict=True):
                assert (found.shape, found.dtype) == (expected.shape, expected.dtype), variant
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=variant)


__all__ = [
    "BACKWARDS",
    "FEATURES",
    "HIDDEN",
    "axes",
    "cell",
    "frames",
    "i64",
    "layers",
    "looped",
    "over_time",
    "prepared",
    "same_as_step_by_step",
    "stateful",
    "weights",
]
