"""TensorIterator, Loop and If with random bodies and port maps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from tests.harness import Infer, Scenario, Tolerance, sweep
from tests.harness.interpret import interpret

from .drawn import Drawn, branch, iterator, loop, nets


@st.composite
def scenarios(draw: st.DrawFn, control: Callable[[Drawn], None]) -> Scenario:
    """Draw a net and two or three inferences. The interpreter computes them where the plugin cannot."""
    top = draw(nets(control))
    for value in top.computed_values:
        top.net.result(value.port)
    steps, expected = [], []
    for _ in range(top.number(2, 3)):
        top.trips = top.number(top.least, 5)
        inputs = {name: np.asarray(make()) for name, make in zip(top.net.parameters, top.draws.values())}
        steps.append(Infer(**inputs))
        expected.append(Infer(interpret(top.net, list(inputs.values())), **inputs))
    tol = Tolerance(1e-5, 1e-5, 1e-5)  # sums cancel
    return (
        Scenario("random", top.net, steps, tol, specified=expected)
        if top.plain
        else Scenario("random", top.net, expected, tol, "value")
    )


test_tensor_iterator = sweep(scenarios(iterator), 120)
test_loop = sweep(scenarios(loop), 120)
test_if = sweep(scenarios(branch), 120)
