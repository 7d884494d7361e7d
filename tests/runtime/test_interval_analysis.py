"""Intervals prove that a result is uniform; the computed results confirm it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cpu import CpuBackend
from ovgpu.compile.interval_analysis import Intervals, Unknown
from ovgpu.runtime.backend import FreshMemory
from ovgpu.runtime.executor import Executor
from tests.harness.ir import Net, Port
from tests.harness.layers import add, compare, concat, extent, gather, i64, mul, op2, reshape, scalar, unsqueeze

LOW = -65504.0


def program_of(make: Callable[[Net, Port], Port], kind: str = "i64", shape: Any = (-1, -1)) -> Any:
    net = Net()
    net.result(make(net, net.parameter(kind, shape, "x")))
    compiled = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU")
    return compiled._compilation.program([np.zeros([2] * len(shape), kind.replace("i", "int"))])


def uniform_values(make: Callable[[Net, Port], Port], *inputs: np.ndarray[Any, Any]) -> list[Any]:
    """Return the uniform value that intervals prove for each input, or None, and assert that all elements equal it."""
    program = program_of(make)
    intervals, found = Intervals(program), []
    executor = Executor(program, CpuBackend(), {})
    for x in inputs:
        executor.set_inputs([x], {})
        symbol_values, _ = program.segments[0].shape_function(executor.arrays)
        known = intervals.uniform(symbol_values, [x])
        (expected,) = executor.run([x], {}, FreshMemory(CpuBackend()))
        if known is None:
            found.append(None)
            continue
        ((shape, number),) = known
        assert expected.shape == shape and (expected == number).all()
        found.append(number)
    return found


def select(net: Net, condition: Port, a: Port, b: Port) -> Port:
    return net.layer("Select", "opset1", [condition, a, b], {"auto_broadcast": "numpy"})


def convert(net: Net, x: Port, kind: str) -> Port:
    return net.layer("Convert", "opset1", [x], {"destination_type": kind}, [kind])


def columns(net: Net, x: Port) -> Port:
    """Add 0, 1, 2, .. up to the number of columns."""
    count = reshape(net, extent(net, x, 1), [])
    return net.layer(
        "Range", "opset4", [scalar(net, 0, "i64"), count, scalar(net, 1, "i64")], {"output_type": "i64"}, ["i64"]
    )


def masked(net: Net, x: Port) -> Port:
    """Add 0 where a flag is set, and the lowest number of f16 elsewhere."""
    return select(net, convert(net, x, "boolean"), scalar(net, 0.0), scalar(net, LOW))


ONES, ZEROS = np.ones((2, 9), np.int64), np.zeros((2, 9), np.int64)
MIXED = np.where(np.arange(9) < 3, ZEROS, ONES)


def test_masks() -> None:
    assert uniform_values(masked, ONES, ZEROS, MIXED, ONES[:, :1], 5 * ONES, -ONES) == [0, LOW, None, 0, 0, 0]


def test_positions() -> None:
    """All positions are less than the number of columns, but not less than 3."""

    def before(limit: int) -> Callable[[Net, Port], Port]:
        return lambda net, x: convert(net, compare(net, "Less", columns(net, x), scalar(net, limit, "i64")), "f32")

    assert uniform_values(before(9), ONES, ONES[:, :4]) == [1, 1]
    assert uniform_values(before(3), ONES, ONES[:, :3], ONES[:, :4]) == [None, 1, None]
    assert uniform_values(before(0), ONES) == [0]


@pytest.mark.parametrize("kind", ["Less", "LessEqual", "Greater", "GreaterEqual"])
@pytest.mark.parametrize("limit", [-1, 0, 4, 8, 9])
def test_comparisons(kind: str, limit: int) -> None:
    def make(net: Net, x: Port, swapped: bool = False) -> Port:
        sides = columns(net, x), scalar(net, limit, "i64")
        return convert(net, compare(net, kind, *(sides[::-1] if swapped else sides)), "f32")

    for swapped in (False, True):
        expected = getattr(
            np, {"Less": "less", "LessEqual": "less_equal", "Greater": "greater", "GreaterEqual": "greater_equal"}[kind]
        )(*(limit, np.arange(9))[:: 1 if swapped else -1])
        (found,) = uniform_values(lambda net, x, swapped=swapped: make(net, x, swapped), ONES)  # type: ignore[misc]
        assert found == (float(expected[0]) if expected.all() or not expected.any() else None)


def test_indices_out_of_range() -> None:
    """Gather gives zeros for indices out of range, so the bounds of its data do not hold."""

    def make(shift: int) -> Callable[[Net, Port], Port]:
        def through(net: Net, x: Port) -> Port:
            flat = reshape(net, x, [-1])
            return convert(net, gather(net, flat, add(net, columns(net, x), scalar(net, shift, "i64"))), "f32")

        return through

    assert uniform_values(make(0), ONES) == [1]
    assert uniform_values(make(9), ONES) == [1]  # elements of the second row
    assert uniform_values(make(10), ONES) == [None]
    assert uniform_values(make(-1), ONES) == [None]


def test_arithmetic() -> None:
    """Integer arithmetic is done on both bounds; nothing is known about a result that wraps around."""

    def make(net: Net, x: Port) -> Port:
        y = op2(net, "Subtract", mul(net, x, scalar(net, -3, "i64")), scalar(net, 4, "i64"))
        y = op2(net, "Maximum", y, scalar(net, -5, "i64"))
        return convert(net, op2(net, "Minimum", y, scalar(net, 8, "i64")), "f32")

    assert uniform_values(make, ONES, ZEROS, MIXED, -5 * ONES, (1 << 62) * ONES) == [-5, -4, None, 8, None]


def test_floating_point() -> None:
    """The op itself computes floating-point results of uniform values; nothing is known about NaN."""

    def make(net: Net, x: Port) -> Port:
        hidden = op2(net, "Subtract", scalar(net, 1.1), convert(net, x, "f32"))
        return convert(net, mul(net, hidden, scalar(net, np.finfo(np.float32).min)), "f16")

    found = uniform_values(make, ONES, MIXED)
    assert found[0] is not None and found[1] is None


def test_parts() -> None:
    """A tensor that several steps write has the bounds of all parts."""

    def make(net: Net, x: Port) -> Port:
        y = convert(net, x, "f32")
        return concat(net, [unsqueeze(net, masked(net, x), [0]), unsqueeze(net, mul(net, y, scalar(net, 0.0)), [0])], 0)

    assert uniform_values(make, ONES, ZEROS, MIXED) == [0, None, None]


@pytest.mark.parametrize(
    "make",
    [
        lambda net, x: net.layer("CumSum", "opset3", [x, i64(net, 1)], {"exclusive": False, "reverse": False}),
        lambda net, x: net.layer("Exp", "opset1", [convert(net, x, "f32")]),
        lambda net, x: add(net, convert(net, x, "f32"), scalar(net, np.nan)),
    ],
)
def test_unknown_results(make: Callable[[Net, Port], Port]) -> None:
    with pytest.raises(Unknown):
        Intervals(program_of(make))


def test_no_elements() -> None:
    assert uniform_values(masked, ONES[:, :0]) == [None]
