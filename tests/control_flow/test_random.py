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
    """Two or three inferences of a net; what the plugin cannot judge is interpreted."""
    top = draw(nets(control))
    for value in top.made:
        top.net.result(value.port)
    steps = []
    for _ in range(top.number(2, 3)):
        top.trips = top.number(top.least, 5)
        inputs = {name: np.asarray(make()) for name, make in zip(top.net.parameters, top.given.values())}
        expect = () if top.plain else interpret(top.net, list(inputs.values()))
        steps.append(Infer(expect, **inputs))
    return Scenario("random", top.net, steps, oracle="auto" if top.plain else "value",
                    tol=Tolerance(1e-5, 1e-5, 1e-5))  # sums cancel


test_tensor_iterator = sweep(scenarios(iterator), 120)
test_loop = sweep(scenarios(loop), 120)
test_if = sweep(scenarios(branch), 120)
