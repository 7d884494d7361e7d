"""The scenarios of state and control flow on the emulated device: eager, captured and replayed."""
from __future__ import annotations

from typing import Any

import pytest

from ovgpu.runtime import control
from tests.control_flow import test_if, test_loop, test_slices, test_tensor_iterator
from tests.harness.cases import compile
from tests.state import test_flow, test_shapes, test_values

MODULES = (test_values, test_shapes, test_flow, test_slices, test_tensor_iterator, test_loop, test_if)
SCENARIOS = [s for module in MODULES for s in module.SCENARIOS if s.error is None]
LOOPS = [s for module in (test_slices, test_tensor_iterator, test_loop) for s in module.SCENARIOS
         if s.error is None and not s.id.startswith(("type-", "long"))]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.id for s in SCENARIOS])
def test_scenario(scenario: Any, emulated: str) -> None:
    if scenario.id.startswith("long"):  # once: test_long_loops.py has loops that are replayed
        scenario._pass(scenario.id, compile(scenario.net, "static", emulated))
    else:
        scenario.watched("static", emulated)


@pytest.mark.parametrize("scenario", LOOPS, ids=[s.id for s in LOOPS])
def test_repeated(scenario: Any, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As loops too long to be unrolled are run."""
    monkeypatch.setattr(control, "UNROLLED", 0)
    scenario.watched("static", emulated)
