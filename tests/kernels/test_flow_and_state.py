"""The scenarios of state and control flow on the emulated device: eager, captured and replayed."""
from __future__ import annotations

from typing import Any

import pytest

from tests.control_flow import test_if, test_loop, test_slices, test_tensor_iterator
from tests.state import test_flow, test_shapes, test_values

MODULES = (test_values, test_shapes, test_flow, test_slices, test_tensor_iterator, test_loop, test_if)
SCENARIOS = [s for module in MODULES for s in module.SCENARIOS if s.error is None and not s.id.startswith("long")]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s.id for s in SCENARIOS])
def test_scenario(scenario: Any, emulated: str) -> None:
    scenario.run("static", emulated)
