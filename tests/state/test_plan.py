"""Cost of variables: a read is a view, and an assignment writes the next value in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import Net
from tests.harness.layers import add, concat, mul, numbers, reshape, scalar, transpose
from tests.harness.models.recurrent import lstm_state

from . import test_shapes, test_values


def plan_of(ir: tuple[bytes, bytes], *inputs: Any, times: int = 3) -> Any:
    request = ov.Core().compile_model(ov.read_model(*ir), "CPU").create_infer_request()
    for _ in range(times):
        request.infer(list(inputs))
    return request.plan()


def steps(plan: Any) -> list[tuple[str, str]]:
    return [(s.kind, s.op) for s in plan.steps if s.kind != "view"]


def locations(plan: Any) -> list[list[str]]:
    return [[o.location for o in s.outputs] for s in plan.steps if s.kind != "view"]


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_three_layers_of_lstm(times: int) -> None:
    """Each cell reads its variables and writes their next values: three cells and a product, and no other step."""
    plan = plan_of(lstm_state(3), np.zeros((1, 40), np.float32), times=times)
    assert steps(plan) == [("bound", "LSTMCell")] * 3 + [("bound", "MatMul")]
    assert locations(plan) == [[f"variable h{k}", f"variable c{k}"] for k in range(3)] + [["output 0"]]
    assert [[i.location for i in s.inputs[1:3]] for s in plan.steps[:3]] == [
        [f"state h{k}", f"state c{k}"] for k in range(3)
    ]
    assert plan.copies() == [] and plan.count("eager") == 0
    assert plan.state == 6 * 48 * 4


def test_a_sum_is_written_to_the_variable() -> None:
    plan = plan_of(test_values.two("crossed").build(), numbers(2, 3))
    assert plan.count("eager") == 0
    assert ["variable a"] in locations(plan) and ["variable b"] in locations(plan)


def test_a_swap_copies_each_variable_once() -> None:
    """Each value is copied once to the other variable, and once to its output."""
    plan = plan_of(test_values.rotation(2).build())
    assert steps(plan) == [("copy", "Copy")] * 4 and plan.arena == 0
    assert sorted(locations(plan)) == [["output 0"], ["output 1"], ["variable v0"], ["variable v1"]]


def test_a_cache_that_grows_is_one_append() -> None:
    """The Concat of the old value and the input is written to the variable directly."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    cache = concat(net, [net.read_value("v", "f32", (-1, 3), net.const(np.zeros((0, 3), np.float32))), x], 0)
    net.assign("v", cache)
    net.result(mul(net, cache, scalar(net, 2)))
    plan = plan_of(net.build(), numbers(1, 3))
    assert [s for s in steps(plan) if s[0] != "copy"] == [("bound", "Multiply")]
    assert all(o.location == "variable v" for s in plan.copies() for o in s.outputs) and len(plan.copies()) <= 2


def test_reading_in_another_shape_is_a_view() -> None:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3))
    net.assign("v", add(net, before, x))
    net.result(mul(net, reshape(net, before, [3, 2]), transpose(net, before, [1, 0])))
    plan = plan_of(net.build(), numbers(2, 3))
    assert steps(plan).count(("bound", "Add")) == 1 and plan.copies() == []


def test_assigning_a_reshaped_result_is_no_copy() -> None:
    net = Net()
    x = net.parameter("f32", (6,), "x")
    before = net.read_value("v", "f32", (2, 3))
    net.assign("v", reshape(net, add(net, reshape(net, before, [6]), x), [2, 3]))
    net.result(mul(net, before, before))
    plan = plan_of(net.build(), numbers(6))
    assert plan.copies() == [] and ["variable v"] in locations(plan)


def test_a_result_that_is_assigned_as_well_is_computed_once() -> None:
    plan = plan_of(test_values.accumulator(test_values.INIT).build(), numbers(2, 3))
    assert [s for s in steps(plan) if s[1] == "Add"] == [("bound", "Add")]
    assert all(s.bytes_moved == 2 * 24 for s in plan.copies()) and len(plan.copies()) <= 2


def test_new_lengths_allocate_now_and_then() -> None:
    """A variable that grows by one row per inference rarely moves to a larger block."""
    request = ov.Core().compile_model(ov.read_model(*test_shapes.growing(0).build()), "CPU").create_infer_request()
    blocks = set()
    for n in range(64):
        request.infer([numbers(1, 3, seed=n)])
        variable = request._session.variables.all["cache"]
        blocks |= {id(b.memory) for b in variable.buffers if b.memory is not None}
    assert request.query_state()[0].state.shape[0] == 64
    assert len(blocks) < 30
