"""Cost of control flow: slices are views, concatenations are written in place, back edges hand over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import Net
from tests.harness.layers import add, i64, mul, numbers, reshape, slice_
from tests.harness.models.spec import spec_tensor_iterator

from . import test_if, test_loop, test_slices, test_tensor_iterator


def plan_of(ir: tuple[bytes, bytes], *inputs: Any) -> Any:
    """Return the plan of the second inference with these inputs."""
    request = ov.Core().compile_model(ov.read_model(*ir), "CPU").create_infer_request()
    for _ in range(2):
        request.infer(list(inputs))
    return request.plan()


def plan_of_net(net: Net, *inputs: Any) -> Any:
    return plan_of(net.build(), *inputs)


def calls(plan: Any) -> list[tuple[str, str, int]]:
    """Return (kind, op, calls) of all steps but views."""
    return [(s.kind, s.op, s.calls) for s in plan.steps if s.kind != "view"]


def body(plan: Any) -> list[tuple[str, str]]:
    """Return (kind, op) of the steps in the body of the first step that has one."""
    (found,) = next(s.bodies for s in plan.steps if s.bodies)
    return [(s.kind, s.op) for s in found.plan.steps if s.kind != "view"]


def test_the_iterator_of_the_specification() -> None:
    """It becomes one sequence, and nothing is copied."""
    inputs = [np.zeros((1, 25, 512), np.float32), *(np.zeros((1, 256), np.float32) for _ in range(2))]
    plan = plan_of(spec_tensor_iterator(3), *inputs)
    assert plan.copies() == [] and plan.count("eager") == 0
    ((kind, op, count),) = calls(plan)
    assert (kind, op) == ("bound", "LSTMSequence") and count <= 3
    assert next(o.location for s in plan.steps for o in s.outputs if s.kind == "bound") == "output 0"


@pytest.mark.parametrize("kind", ["LSTMCell", "GRUCell", "RNNCell"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_cells(kind: str, batch: int, axis: int, backwards: bool) -> None:
    """A sequence reads slices along any axis in place, and writes its outputs in place."""
    (x, *_) = test_tensor_iterator.frames(batch, axis)
    plan = plan_of_net(test_tensor_iterator.cell(kind, batch, axis, backwards), x)
    ((work, op, count),) = calls(plan)
    assert (work, op) == ("bound", kind.replace("Cell", "Sequence")) and count <= 3
    locations = [o.location for s in plan.steps for o in s.outputs if s.kind == "bound"]
    assert locations == [f"output {i}" for i in range(len(locations))]


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("backwards", [False, True])
def test_slices_and_concatenations(axis: int, backwards: bool) -> None:
    attrs = test_slices.BACKWARDS if backwards else {}
    plan = plan_of_net(test_slices.scan((2, 5, 3), axis, attrs, out=attrs), numbers(2, 5, 3))
    trips = (2, 5, 3)[axis]
    assert plan.copies() == [] and body(plan) == [("bound", "Multiply"), ("bound", "Add")]
    assert calls(plan) == [("control", "TensorIterator", 2 * trips + 1)]  # the last value is part of the other output


def test_concatenation_along_another_axis() -> None:
    plan = plan_of_net(test_slices.scan((2, 5, 3), 1, out_axis=2), numbers(2, 5, 3))
    assert plan.copies() == [] and calls(plan) == [("control", "TensorIterator", 11)]


def test_a_transposed_input_is_copied_once() -> None:
    plan = plan_of_net(test_slices.transposed_input(), numbers(3, 5, 2))
    (copy,) = plan.copies()
    assert [kind for kind, _, _ in calls(plan)] == ["copy", "control"]
    assert copy.bytes_moved == 2 * 30 * 4 and body(plan) == [("bound", "Add")]


def test_outputs_and_inputs_of_stacked_iterators_are_the_same_memory() -> None:
    plan = plan_of_net(test_tensor_iterator.stacked(3), numbers(5, 3))
    assert plan.copies() == [] and [kind for kind, _, _ in calls(plan)] == ["control"] * 3


SCENARIOS = {s.id: s for s in (*test_tensor_iterator.SCENARIOS, *test_loop.SCENARIOS)}


@pytest.mark.parametrize(
    ("name", "work", "at_the_end"),
    [
        ("swap-without-maths", [], 2),  # each of two values ends in the memory of the other
        ("swap-even-times", [], 2),
        ("fed-back-view", [("bound", "Add")], 1),
        ("carries-a-shape", None, None),
        ("two-back-edges", [("bound", "Add"), ("bound", "Multiply")], 1),
        ("last", [("bound", "Add")], 0),
        ("all", [("bound", "Add")], 0),
        ("last-and-all", [("bound", "Add")], 1),
        ("all-and-last", [("bound", "Add")], 1),
        ("all-twice", [("bound", "Add")], 1),
        ("invariant-without-back-edge", [("bound", "Add")], 0),
        ("one-result-to-two-parameters", [("bound", "Multiply"), ("bound", "Add")], 0),
    ],
)
def test_back_edges_copy_nothing(name: str, work: list[tuple[str, str]] | None, at_the_end: int | None) -> None:
    """A value that passes straight through is copied only at the end, if two outputs need it."""
    scenario = SCENARIOS[name]
    step = scenario.steps[0]
    plan = plan_of_net(scenario.net, *step.inputs.values())  # type: ignore[union-attr]
    if work is None:  # the host needs the carried shape, so that the body runs step by step
        assert plan.steps[0].kind == "eager"
        return
    assert body(plan) == work and plan.copies() == []
    (control,) = [s for s in plan.steps if s.kind == "control"]
    (inner,) = control.bodies
    assert control.calls == inner.trips * len(work) + at_the_end


def test_a_value_that_passes_through_and_is_collected_is_copied_there() -> None:
    plan = plan_of_net(SCENARIOS["delay-of-three"].net, test_tensor_iterator.XS[0])
    (copy,) = plan.copies()
    assert body(plan) == [("bound", "Add"), ("copy", "Copy")] and copy.outputs[0].location == "output 2"


@pytest.mark.parametrize("trips", [1, 2, 7])
def test_a_loop_is_its_body_repeated(trips: int) -> None:
    net = test_loop.looped(test_loop.doubling, [test_loop.ONES], [(0, 0)], trips="n")
    plan = plan_of_net(net, test_loop.X[0], np.array(trips))
    assert plan.copies() == [] and plan.count("eager") == 0
    assert [c for c in calls(plan) if c[0] != "host"] == [("control", "Loop", 2 * trips)]


@pytest.mark.parametrize("stride", [1, 2])
def test_slices_by_the_counter_are_bound_ahead(stride: int) -> None:
    """x[2i:2i + 2] has two rows, as i is less than the trip count, so that all shapes are known ahead."""

    def body(b: Net, i: Any, p: Any) -> Any:
        start = mul(b, reshape(b, i, [1]), i64(b, [stride]))
        part = slice_(b, p[0], start, add(b, start, i64(b, [stride])))
        return None, [add(b, p[1], part), part]

    net = test_loop.looped(body, [np.ones((stride, 3), np.float32)], [(0, None), (1, 0)], trips=4, x_shape=(8, 3))
    plan = plan_of_net(net, numbers(8, 3))
    (loop,) = plan.steps
    assert loop.kind == "control" and [o.shape for o in loop.outputs] == [(stride, 3), (4 * stride, 3)]


def test_memory_of_a_long_loop_is_bounded() -> None:
    """Ten thousand iterations are not bound ahead, and use the memory of a few."""
    net = test_loop.looped(
        lambda b, i, p: (None, test_loop.doubling(b, i, p)[1]), [test_loop.ONES], [(0, None)], trips="n"
    )
    plan = plan_of_net(net, test_loop.X[0], np.array(10_000))
    ((_, _, count),) = [c for c in calls(plan) if c[0] == "control"]
    assert count == 1 and plan.arena == 0


def test_nested_iterators_are_bound_ahead() -> None:
    plan = plan_of_net(test_tensor_iterator.matrix_of_vectors(), numbers(2, 4, 3))
    assert plan.copies() == [] and plan.count("eager") == 0
    assert body(plan) == [("control", "TensorIterator")]


@pytest.mark.parametrize("go", [True, False])
def test_a_constant_condition_leaves_one_branch(go: bool) -> None:
    plan = plan_of_net(test_if.either(test_if.plus, test_if.minus, condition=go), test_if.X[0], test_if.Y[0])
    assert plan.copies() == [] and calls(plan) == [("control", "If", 1)]


def test_a_branch_writes_the_output_itself() -> None:
    net = test_if.either(test_if.plus, test_if.minus)
    for go in (True, False):
        plan = plan_of_net(net, test_if.X[0], test_if.Y[0], np.array(go))
        assert plan.copies() == [] and [c for c in calls(plan) if c[0] == "control"] == [("control", "If", 1)]
        assert _locations(plan) == ["output 0"]


def _locations(plan: Any) -> Sequence[str]:
    return [o.location for s in plan.steps if s.kind == "control" for o in s.outputs]
