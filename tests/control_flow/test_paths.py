"""A body gives the same results bound ahead, bound as it runs (long loops), and step by step."""

from __future__ import annotations

from typing import Any

import pytest

from ovgpu.lowering import loops
from ovgpu.runtime.loops import bind
from tests.state import test_flow

from . import test_if, test_loop, test_slices, test_tensor_iterator

SCENARIOS = [
    s
    for module in (test_slices, test_tensor_iterator, test_loop, test_if, test_flow)
    for s in module.SCENARIOS
    if s.error is None and not s.id.startswith(("type-", "long"))
]
IDS = [s.id for s in SCENARIOS]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_bound_as_it_runs(scenario: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind, "MAX_UNROLLED_CALLS", 0)
    scenario.watched("static", device, passes=1)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
def test_step_by_step(scenario: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "static_bodies", lambda node, build: None)
    scenario.watched("static", device, passes=1)
