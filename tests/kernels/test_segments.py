"""Data-dependent shapes and conditions: the segments around them are graphs, and so are the bodies of iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.control_flow.loop_nets import BOTH, ONES, X, looped, until
from tests.harness.ir import Net, feed, take
from tests.harness.layers import add, compare, convert, mul, nonzero, numbers, reduce, relu, reshape, scalar, slice_

from .test_long_loops import Run, captures

__all__ = ["captures"]


def indices() -> Net:
    """Return a model that doubles the indices of positive elements, with a segment before NonZero and one after."""
    net = Net()
    x = mul(net, relu(net, net.parameter("f32", (2, 6), "x")), scalar(net, 0.5))
    found = convert(net, nonzero(net, x), "f32")
    net.result(reduce(net, "ReduceSum", mul(net, found, scalar(net, 2.0)), [0]))
    net.result(x)
    return net


def flags(count: int) -> np.ndarray[Any, Any]:
    """Return a random permutation of ``count`` ones and 12 - ``count`` minus ones, as [2, 6]."""
    x = -np.ones(12, np.float32)
    x[:count] = 1
    return np.random.default_rng(count).permutation(x).reshape(2, 6)


def test_segments_around_a_data_dependent_result(emulated: str) -> None:
    """There are two graphs from the second inference on; the launches of NonZero and of copying its result are the
    same each time."""
    run = Run(indices(), emulated)
    found = [run(flags(5)) for _ in range(5)]
    plan = run.request.plan()
    assert plan.captured == (True, True) and plan.count("eager") == 1 and plan.launches == 3
    assert [c.graph_launches for c in found] == [0, 2, 2, 2, 2]
    assert len({c.launches for c in found[1:]}) == 1


@pytest.mark.emulator
def test_recurring_sizes_are_captured_once(emulated: str, captures: list[Any]) -> None:
    """Each of four alternating sizes has a graph and keeps it."""
    run = Run(indices(), emulated)
    for count in (12, 3, 5, 7, 3, 5, 7, 12):
        run(flags(count))
    assert len(captures) == 1 + 4
    found = [run(flags(count)) for count in (3, 5, 7, 12, 5, 3)]
    assert all(c.graph_launches == 2 for c in found) and len(captures) == 1 + 4


@pytest.mark.emulator
def test_unique_sizes_are_not_captured(emulated: str, captures: list[Any]) -> None:
    net, run = indices(), None
    run = Run(net, emulated)
    for count in range(12, 0, -1):
        run(flags(count))
    assert len(captures) == 1  # the segment before


def test_only_the_condition_is_downloaded(emulated: str) -> None:
    """Each iteration is one graph, and one byte of its results is read."""
    run = Run(looped(until(1e4), [ONES], [(0, None)], trips=-1), emulated)
    x = np.abs(X[0])
    for _ in range(3):
        counters = run(x)
    trips = _trips(x)
    assert trips > 8 and (counters.graph_launches, counters.launches) == (1 + trips, 0)  # the first one uploads
    assert counters.d2h_bytes == trips + ONES.nbytes and counters.h2d_bytes == x.nbytes and counters.allocs == 0


def _trips(x: Any) -> int:
    h, trips = ONES, 0
    while trips == 0 or h.sum() < 1e4:
        h, trips = h * 2 + x, trips + 1
    return trips


@pytest.mark.emulator
def test_changing_numbers_of_iterations_capture_nothing_new(emulated: str, captures: list[Any]) -> None:
    """A body has bindings for the first, the odd and the even iterations."""
    run = Run(looped(until(1e4), [ONES], [(0, None)], trips=-1), emulated)
    for n in range(2):
        run(np.abs(X[n]))
    assert len(captures) == 1 + 3  # the upload
    for factor in (0.5, 7, 30, 1e3):
        run(np.abs(X[0]) * np.float32(factor))
    assert len(captures) == 1 + 3


def test_concatenated_values_and_a_counter(emulated: str) -> None:
    """Each iteration copies a value for concatenation and uploads the iteration number, and nothing else."""

    def body(b: Net, i: Any, p: Any) -> Any:
        new = add(b, mul(b, p[1], scalar(b, 2)), convert(b, i, "f32"))
        return compare(b, "Less", reduce(b, "ReduceSum", new, [0, 1]), scalar(b, 3e3)), [new]

    run = Run(looped(body, [ONES], BOTH, trips=-1), emulated)
    for n in range(3):
        counters = run(X[n])
    trips = run.request.get_output_tensor(1).shape[0] // 2
    assert counters.graph_launches == 1 + trips > 6
    assert counters.h2d_bytes == 24 + 8 * trips and counters.allocs <= trips + 1
    assert counters.launches <= trips + 1  # copies of values, and their concatenation


def test_a_constant_condition_is_not_read(emulated: str) -> None:
    """A loop with slices of varying length and a given trip count downloads its results alone."""

    def body(b: Net, i: Any, p: Any) -> Any:
        return None, [add(b, p[1], reduce(b, "ReduceSum", p[0], [0])), slice_(b, p[0], 0, reshape(b, i, [1]))]

    run = Run(looped(body, [ONES[0]], [(0, None), (1, 0)], trips="n"), emulated)
    for n in (3, 3, 2):
        counters = run(X[n], np.array(n))
        assert counters.d2h_bytes == 12 + run.request.get_output_tensor(1).byte_size


def test_slices_of_a_loop_with_a_condition(emulated: str) -> None:
    net, body = Net(), Net()
    x = net.parameter("f32", (8, 3), "x")
    row, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = add(body, mul(body, row, row), h)
    go = body.result(compare(body, "Less", reduce(body, "ReduceSum", new, [0, 1]), scalar(body, 200.0)))
    new = body.result(new)
    net.result(
        net.loop(
            scalar(net, 8, "i64"),
            net.const(np.array(True)),
            body,
            [feed(x, row, axis=0), feed(net.const(ONES[:1]), h)],
            [take(new)],
            [(new, h)],
            body_condition=go,
        )
    )
    run = Run(net, emulated)
    for scale in (1, 1, 1, 3, 3):
        counters = run((numbers(8, 3) * scale).astype(np.float32))
        assert counters.d2h_bytes <= 8 + 12  # a byte per iteration, and the result
    assert counters.graph_launches == 1 + counters.launches <= 9  # a slice is copied to the body's input


@pytest.mark.parametrize("go", [True, False])
@pytest.mark.parametrize("on_device", [True, False])
def test_branches_of_a_computed_condition(go: bool, on_device: bool, emulated: str) -> None:
    """The taken branch and the steps after it are one graph; a condition computed on the device is in another."""
    net = Net()
    x = net.parameter("f32", (2, 600), "x")
    y = relu(net, add(net, x, scalar(net, 0.5))) if on_device else x  # too much for the host
    condition = compare(net, "Greater", reduce(net, "ReduceSum", y, [0, 1]), scalar(net, 0.5 * on_device * 1200))
    then, other = Net(), Net()
    a, b = then.parameter("f32", (2, 600)), other.parameter("f32", (2, 600))
    y = net.if_(
        condition,
        then,
        other,
        [(x, a, b)],
        [(then.result(relu(then, mul(then, a, a))), other.result(mul(other, b, scalar(other, -3))))],
    )
    net.result(mul(net, y, y))
    run = Run(net, emulated)
    for n in range(4):
        x = np.abs(numbers(2, 600, seed=n))
        counters = run(x if go else -x)
    assert (counters.graph_launches, counters.launches, counters.allocs) == (1 + on_device, 0, 0)
    assert counters.d2h_bytes == on_device + x.nbytes and counters.h2d_bytes == x.nbytes


def test_nested_loops_with_conditions(emulated: str) -> None:
    """Two nested loops have conditions; the initial value of the inner loop is used after it has run."""

    def outer(b: Net, i: Any, p: Any) -> Any:
        inner = Net()
        ip = [inner.parameter("f32", (2, 3)) for _ in range(2)]
        new = add(inner, mul(inner, ip[1], scalar(inner, 2)), ip[0])
        go = inner.result(compare(inner, "Less", reduce(inner, "ReduceSum", new, [0, 1]), scalar(inner, 100.0)))
        result = inner.result(new)
        grown = b.loop(
            scalar(b, -1, "i64"),
            b.const(np.array(True)),
            inner,
            [feed(p[0], ip[0]), feed(p[1], ip[1])],
            [take(result)],
            [(result, ip[1])],
            body_condition=go,
        )
        after = add(b, mul(b, grown, scalar(b, 0.05)), p[1])
        return compare(b, "Less", reduce(b, "ReduceSum", after, [0, 1]), scalar(b, 60.0)), [after]

    run = Run(looped(outer, [ONES], BOTH, trips=-1), emulated)
    for n in range(4):
        run(np.abs(X[n]) + 1)
