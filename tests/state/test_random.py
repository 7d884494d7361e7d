"""Random nets with variables and control flow: several inferences, with states that are reset or set between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.control_flow.drawn import Drawn, Value
from tests.harness import Infer, Reset, Scenario, SetState, Tolerance, sweep
from tests.harness.interpret import States, interpret
from tests.harness.scenario import Step


@st.composite
def variables(draw: st.DrawFn) -> Scenario:
    """Draw one to three variables. The interpreter computes the expected values where the plugin cannot."""
    top = Drawn(draw, draw(st.sampled_from(("f32", "f32", "i32"))), draw(st.booleans()))
    for _ in range(top.number(1, 2)):
        shape = top.shape()
        top.values.append(top.parameter(top.kind, shape, lambda shape=shape: top.numbers(shape)))
    reads = {f"v{i}": read(top, f"v{i}") for i in range(top.number(1, 3))}
    top.values += reads.values()
    top.grow(1, 4)
    for name, value in reads.items():
        assign(top, name, value)
    for value in top.computed_values if top.plain else top.values:  # the plugin overwrites values passed through
        top.net.result(value.port)
    expected, tol = steps_of(top, reads), Tolerance(1e-5, 1e-5, 1e-5)  # sums cancel
    if not top.plain:
        return Scenario("random", top.net, expected, tol, "value")
    steps = [Infer(**step.inputs) if isinstance(step, Infer) else step for step in expected]
    return Scenario("random", top.net, steps, tol, specified=expected)


def read(top: Drawn, name: str) -> Value:
    """Read a variable that begins with zeros, with a constant, or with a value computed from the inputs."""
    begins = top.one(("zeros", "constant", "input"))
    if begins == "zeros":
        example = np.zeros_like(top.numbers(top.shape()))
        return Value(top.net.read_value(name, top.kind, example.shape), example)
    first = top.const(top.numbers(top.shape())) if begins == "constant" else top.scaled(top.values[0])
    declared: Sequence[int] = [-1] * first.example.ndim if top.chance(40) else first.example.shape
    version = top.one(("opset3", "opset6"))
    return Value(top.net.read_value(name, top.kind, declared, first.port, version), first.example)


def assign(top: Drawn, name: str, before: Value) -> None:
    """Assign a value of that shape, also another variable. Every variable is assigned, as specified."""
    value = top.one([v for v in top.values if not v.loose and v.example.shape == before.example.shape])
    if top.plain:  # the plugin needs a new value that is computed from the old one
        value = top.layer("Add", "opset1", [value, before], auto_broadcast="numpy")
        top.computed_values.append(value)
    version = next(n.version for n in top.net.nodes if n.attrs.get("variable_id") == name)
    top.net.assign(name, value.port, version)


def steps_of(top: Drawn, reads: dict[str, Value]) -> list[Step]:
    """Draw the calls of a request, with results from the interpreter."""
    steps: list[Step] = []
    states: States = {}
    for _ in range(top.number(3, 6)):
        do, name = top.one(("infer", "infer", "infer", "reset", "reset one", "set")), top.one(list(reads))
        if do == "infer":
            top.trips = top.number(top.least, 5)
            inputs: dict[str, Any] = {p: np.asarray(make()) for p, make in zip(top.net.parameters, top.draws.values())}
            expect = interpret(top.net, list(inputs.values()), states)
            steps.append(Infer(expect, dict(states), **inputs))
        elif do == "set":
            states[name] = top.numbers(reads[name].example.shape)
            steps.append(SetState(name, states[name]))
        else:
            states = {} if do == "reset" else {k: v for k, v in states.items() if k != name}
            steps.append(Reset(None if do == "reset" else name))
    return steps


test_random = sweep(variables(), 120)
