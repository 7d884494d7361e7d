"""Programs whose shapes depend on values: given, computed on the host, or known only after a step has run."""

from __future__ import annotations

from typing import Any

import numpy as np

import ovgpu
from tests.harness import Infer, Net, Scenario, check


def data(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.RandomState(sum(shape)).uniform(-2, 2, shape).astype(np.float32)


def reshape_to_input() -> Net:
    net = Net()
    x, target = net.parameter("f32", (-1, -1), "x"), net.parameter("i64", (2,), "target")
    net.result(net.layer("Relu", "opset1", [net.layer("Reshape", "opset1", [x, target], {"special_zero": True})]))
    return net


def reshape_to_computed() -> Net:
    """Build a Reshape whose target is the largest element of another input."""
    net = Net()
    x, y = net.parameter("f32", (-1, -1), "x"), net.parameter("f32", (-1, -1), "y")
    largest = net.layer(
        "ReduceMax", "opset1", [net.layer("Abs", "opset1", [y]), net.const([0, 1])], {"keep_dims": False}
    )
    whole = net.layer("Convert", "opset1", [largest], {"destination_type": "i64"}, outputs=["i64"])
    row = net.layer("Unsqueeze", "opset1", [whole, net.const([0])])
    target = net.layer("Concat", "opset1", [row, net.const([-1])], {"axis": 0})
    net.result(
        net.layer(
            "Exp",
            "opset1",
            [net.layer("Reshape", "opset1", [net.layer("Relu", "opset1", [x]), target], {"special_zero": False})],
        )
    )
    return net


def broadcast_to_computed() -> Net:
    """Build a target whose first element, computed long before the second, must keep its memory until then."""
    net = Net()
    n = net.parameter("i64", (-1,), "n")
    first = net.layer("ReduceSum", "opset1", [net.layer("Add", "opset1", [n, n]), net.const([0])], {"keep_dims": True})
    sums = n
    for _ in range(3):
        sums = net.layer("CumSum", "opset3", [sums, net.const(0)])
    second = net.layer("ReduceMax", "opset1", [sums, net.const([0])], {"keep_dims": True})
    target = net.layer("Concat", "opset1", [first, second], {"axis": 0})
    net.result(net.layer("Exp", "opset1", [net.layer("Broadcast", "opset3", [net.const(0, "f32"), target])]))
    return net


def product_of_part_of_joint() -> Net:
    """Build a factor whose extent is an element of a Concat, whose length depends on a computed part."""
    net = Net()
    x, extent = net.parameter("f32", (-1, -1), "x"), net.parameter("i64", (1,), "extent")
    others, axis = net.parameter("i64", (3,), "others"), net.parameter("i64", (), "axis")
    joint = net.layer(
        "Concat", "opset1", [extent, net.layer("Gather", "opset8", [others, net.const([1, 2]), axis])], {"axis": 0}
    )
    rows = net.layer("Gather", "opset8", [joint, net.const([0]), net.const(0)])
    shape = net.layer("Concat", "opset1", [rows, net.const([3])], {"axis": 0})
    factor = net.layer("Broadcast", "opset3", [net.const(2, "f32"), shape])
    net.result(net.layer("MatMul", "opset1", [x, factor], {"transpose_a": False, "transpose_b": False}))
    return net


def range_to_squeezed() -> Net:
    """Build a Range whose stop the host reads through a view of data-dependent length."""
    net = Net()
    numbers, axis = net.parameter("i64", (3,), "numbers"), net.parameter("i64", (), "axis")
    stop = net.layer(
        "Squeeze", "opset1", [net.layer("Gather", "opset8", [numbers, net.const([1]), axis]), net.const([0])]
    )
    steps = net.layer("Range", "opset4", [net.const(0), stop, net.const(1)], {"output_type": "f32"}, outputs=["f32"])
    net.result(net.layer("Exp", "opset1", [steps]))
    return net


def integer_range() -> Net:
    net = Net()
    stop = net.parameter("i32", (), "stop")
    steps = net.layer(
        "Range", "opset4", [net.const(0, "i32"), stop, net.const(2, "i32")], {"output_type": "f32"}, outputs=["f32"]
    )
    net.result(net.layer("Add", "opset1", [steps, steps]))
    net.result(net.layer("ShapeOf", "opset3", [steps], {"output_type": "i64"}, outputs=["i64"]))
    return net


def real_range(*, joined: bool = False) -> Net:
    """Build a Range whose length is known after it has run; with ``joined`` it is in a Concat."""
    net = Net()
    stop, y = net.parameter("f32", (), "stop"), net.parameter("f32", (-1,), "y")
    steps = net.layer(
        "Range", "opset4", [net.const(0, "f32"), stop, net.const(0.5, "f32")], {"output_type": "f32"}, outputs=["f32"]
    )
    if joined:
        parts = [net.layer("Relu", "opset1", [y]), steps, net.layer("Negative", "opset1", [steps])]
        joint = net.layer("Concat", "opset1", parts, {"axis": 0})
        net.result(joint)
        net.result(net.layer("Exp", "opset1", [joint]))
    else:
        net.result(net.layer("Add", "opset1", [steps, y]))
    return net


def squeeze_what_is_one() -> Net:
    """Build a Squeeze whose rank depends on the extents."""
    net = Net()
    x = net.parameter("f32", (-1, -1, 3), "x")
    squeezed = net.layer("Squeeze", "opset1", [net.layer("Relu", "opset1", [x])])
    net.result(net.layer("Add", "opset1", [squeezed, squeezed]))
    net.result(squeezed)
    return net


def counted_topk() -> Net:
    net = Net()
    x, k = net.parameter("f32", (-1, 7), "x"), net.parameter("i64", (), "k")
    values, indices = net.layer(
        "TopK",
        "opset11",
        [x, k],
        {"axis": 1, "mode": "max", "sort": "value", "index_element_type": "i64"},
        outputs=["f32", "i64"],
    )
    net.result(net.layer("Relu", "opset1", [values]))
    net.result(indices)
    return net


def any_rank() -> Net:
    net = Net()
    x = net.parameter("f32", None, "x")
    net.result(net.layer("Relu", "opset1", [net.layer("Negative", "opset1", [x])]))
    return net


def _squeezed(x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    y = np.maximum(x, 0).squeeze()
    return [y + y, y]


SQUEEZED = [data(1, 1, 3), data(2, 1, 3), data(2, 4, 3), data(1, 5, 3)]

SCENARIOS = [
    Scenario(
        "reshape-to-input",
        reshape_to_input(),
        [Infer(x=data(4, 6), target=np.array(t)) for t in ([3, 8], [-1, 2], [0, -1], [24, 1], [3, 8])],
    ),
    Scenario(
        "reshape-to-computed",
        reshape_to_computed(),
        [Infer(x=data(4, 6), y=np.array([[a, -b]], "f4")) for a, b in ((3.1, 2), (1.9, 8.5), (3.2, 1))],
    ),
    Scenario(
        "broadcast-to-computed",
        broadcast_to_computed(),
        [Infer(n=np.array(n)) for n in ([1, 2], [3], [2, 2, 1], [1, 2])],
    ),
    Scenario(
        "product-of-part-of-joint",
        product_of_part_of_joint(),
        [Infer(x=data(2, k), extent=np.array([k]), others=np.array([7, 8, 9]), axis=np.array(0)) for k in (4, 5, 4)],
    ),
    Scenario(
        "range-to-squeezed",
        range_to_squeezed(),
        [Infer(numbers=np.array([7, n, 8]), axis=np.array(0)) for n in (2, 3, 0, 2)],
    ),
    Scenario("integer-range", integer_range(), [Infer(stop=np.array(n, "i4")) for n in (7, 0, 4, 1, 1000)]),
    Scenario("real-range", real_range(), [Infer(stop=np.array(n, "f4"), y=np.ones(1, "f4")) for n in (3.3, 0, 4, 3.3)]),
    Scenario(
        "real-range-in-concat",
        real_range(joined=True),
        [Infer(stop=np.array(n, "f4"), y=data(k)) for n, k in ((3.3, 2), (0, 3), (4, 1), (3.3, 2))],
    ),
    Scenario("squeeze-what-is-one", squeeze_what_is_one(), [Infer(_squeezed(x), x=x) for x in SQUEEZED]),
    Scenario("counted-topk", counted_topk(), [Infer(x=data(3, 7), k=np.array(k)) for k in (2, 5, 7, 2)]),
    Scenario("any-rank", any_rank(), [Infer([np.maximum(-x, 0)], x=x) for x in (data(3, 7), data(2, 3, 5), data(4))]),
]

test_scenarios = check(SCENARIOS)


def test_a_value_given_on_the_host_takes_no_extra_segment() -> None:
    for net in (reshape_to_input(), integer_range(), counted_topk()):
        compiled = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU")
        (program,) = compiled._compilation.programs.values()
        assert len(program.segments) == 1


def test_a_computed_target_splits_the_program_once() -> None:
    compiled = ovgpu.Core().compile_model(ovgpu.Core().read_model(*reshape_to_computed().build()), "CPU")
    (program,) = compiled._compilation.programs.values()
    assert len(program.segments) == 2
