"""Two models of the demo, built from ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import build
from ovgpu.ops.infrastructure.control_flow import BackEdge, InputMap, OutputMap, TensorIterator
from ovgpu.ops.infrastructure.graph import Constant, Parameter, Result
from ovgpu.ops.infrastructure.state import Assign6, ReadValue6
from ovgpu.ops.movement.movement import Concat
from ovgpu.ops.movement.slicing import Slice
from ovgpu.ops.sequence.recurrent import LSTMCell
from ovgpu.ops.shape.reshape import Reshape
from ovgpu.types import PartialShape, Type

STEPS, FEATURES, HIDDEN = 25, 512, 256  # as in the specification of TensorIterator
WINDOW = 4

Array = np.ndarray[Any, Any]


def lstm_weights(seed: int) -> tuple[Array, Array, Array]:
    """Return W [4 H, D], R [4 H, H] and B [4 H] in f32, gates in the order f, i, c, o."""
    random = np.random.default_rng(seed)
    return tuple(
        random.uniform(-0.08, 0.08, shape).astype(np.float32)  # type: ignore[return-value]
        for shape in ((4 * HIDDEN, FEATURES), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,))
    )


def lstm_loop(seed: int) -> Model:
    """Return a TensorIterator over the time axis of x [1, 25, 512] with an LSTM cell of 256 units in its body.

    Inputs x, h, c; outputs: y [1, 25, 256] with h of every step, and the last h and c.
    """
    x, h, c = (
        _parameter(name, shape) for name, shape in (("xi", (1, 1, FEATURES)), ("hi", (1, HIDDEN)), ("ci", (1, HIDDEN)))
    )
    flat = Node(Reshape(special_zero=False), [x, _constant(np.array([1, FEATURES]), "row")], name="to_row").ports[0]
    weights = [_constant(array, name) for array, name in zip(lstm_weights(seed), "WRB")]
    cell = Node(build(LSTMCell, {}, hidden_size=HIDDEN), [flat, h, c, *weights], 2, name="lstm_cell")
    row = Node(
        Reshape(special_zero=False), [cell.ports[0], _constant(np.array([1, 1, HIDDEN]), "step")], name="to_step"
    ).ports[0]
    body = Model(
        [_result(row, "yo"), _result(cell.ports[0], "ho"), _result(cell.ports[1], "co")],
        [],
        [p.node for p in (x, h, c)],
        "body",
    )
    loop = TensorIterator(
        body=body,
        inputs=(InputMap(0, 0, axis=1), InputMap(1, 1), InputMap(2, 2)),
        outputs=(OutputMap(0, 0, axis=1), OutputMap(1, 1), OutputMap(2, 2)),
        back_edges=(BackEdge(1, 1), BackEdge(2, 2)),
    )
    inputs = [
        _parameter(name, shape) for name, shape in (("x", (1, STEPS, FEATURES)), ("h", (1, HIDDEN)), ("c", (1, HIDDEN)))
    ]
    node = Node(loop, inputs, 3, name="iterate")
    return _model([(port, name) for port, name in zip(node.ports, ("y", "h_last", "c_last"))], [], inputs, "lstm_loop")


def moving_window() -> Model:
    """Return a model whose variable holds the last 4 inputs: window = [window[1:], x]. The output is the window."""
    x = _parameter("x", (1,))
    zeros = _constant(np.zeros(WINDOW, np.float32), "zeros")
    read = Node(
        ReadValue6(variable_id="window", variable_type=Type.f32, variable_shape=PartialShape([WINDOW])),
        [zeros],
        name="read",
    ).ports[0]
    bounds = [_constant(np.array([v]), f"slice_{name}") for v, name in ((1, "start"), (WINDOW, "stop"), (1, "step"))]
    shifted = Node(Slice(), [read, *bounds], name="later").ports[0]
    window = Node(Concat(axis=0), [shifted, x], name="append").ports[0]
    assign = Node(Assign6(variable_id="window"), [window], name="assign")
    return _model([(window, "window")], [assign], [x], "moving_window")


def _model(outputs: list[tuple[Output, str]], sinks: list[Node], inputs: list[Output], name: str) -> Model:
    for port, tensor_name in outputs:
        port.set_names({tensor_name})
    model = Model(
        [_result(port, f"{tensor_name}/result") for port, tensor_name in outputs],
        sinks,
        [port.node for port in inputs],
        name,
    )
    model.validate_nodes_and_infer_types()
    return model


def _parameter(name: str, shape: tuple[int, ...]) -> Output:
    node = Node(Parameter(element_type=Type.f32, shape=PartialShape(list(shape))), [], name=name)
    node.ports[0].set_names({name})
    return node.ports[0]


def _constant(array: Array, name: str) -> Output:
    return Node(Constant(element_type=Type.of(array.dtype), value=array), [], name=name).ports[0]


def _result(port: Output, name: str) -> Node:
    return Node(Result(), [port], name=name)
