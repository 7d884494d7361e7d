"""Interpreter of nets in NumPy: control flow and state as specified, for tests where OpenVINO errs.

    outputs = interpret(net, [x, y], states)

`states` holds the states before the inference, and is updated to those after it. A few other layers are supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from .elements import ELEMENTS, as_logical, unpack
from .ir import Layer, Maps, Net

Array = np.ndarray[Any, Any]
States = dict[str, Array]
Values = dict[tuple[int, int], Array]  # by layer and output


def interpret(net: Net, inputs: Sequence[Array], states: States | None = None) -> list[Array]:
    """Return the results of a net in order, for its parameters in order."""
    given = {port.layer: x for port, x in zip(net.parameters.values(), inputs, strict=True)}
    found = run(net, given, {} if states is None else states)
    return [found[layer.id, 0] for layer in net.nodes if layer.type == "Result"]


def run(net: Net, given: Mapping[int, Array], states: States) -> Values:
    """Return the values of all layers; ``given`` has those of the parameters. Assigns take effect at the end."""
    values: Values = {}
    assigned: States = {}
    for layer in net.nodes:
        inputs = [values[port.layer, port.index] for port in layer.inputs]
        if layer.type == "Parameter":
            outputs = [given[layer.id]]
        elif layer.type in ("Result", "Assign"):
            outputs = inputs
        elif layer.type == "ReadValue":
            outputs = [states.setdefault(layer.attrs["variable_id"], initial(layer, inputs))]
        else:
            outputs = computed(layer, inputs)
        if layer.type == "Assign":
            assigned[layer.attrs["variable_id"]] = inputs[0]
        values |= {(layer.id, i): np.asarray(output) for i, output in enumerate(outputs)}
    states |= assigned
    return values


def initial(layer: Layer, inputs: Sequence[Array]) -> Array:
    """Return the initial value of a variable."""
    if inputs:
        return inputs[0]
    shape = [int(dim) for dim in layer.attrs["variable_shape"].split(",") if dim]
    return np.zeros(shape, ELEMENTS[layer.attrs["variable_type"]].dtype)


def computed(layer: Layer, inputs: Sequence[Array]) -> Sequence[Array]:
    """Return the outputs of a layer without state."""
    if layer.type == "Const":
        assert layer.data is not None
        shape = [int(dim) for dim in layer.attrs["shape"].split(",") if dim]
        return [unpack(layer.data, layer.attrs["element_type"], shape)]
    if layer.type == "If":
        branch = "then" if inputs[0].item() else "else"
        maps = layer.maps[f"{branch}_port_map"]
        given = {inner.layer: inputs[port] for port, inner, _ in maps.inputs}
        values = run(layer.bodies[f"{branch}_body"], given, {})
        return [values[inner.layer, 0] for _, inner, _ in maps.outputs]
    if layer.type == "TensorIterator":
        maps = layer.maps["port_map"]
        return iterated(
            layer,
            maps,
            inputs,
            max(
                [
                    trips(inputs[port].shape[attrs["axis"]], **attrs)
                    for port, _, attrs in maps.inputs
                    if "axis" in attrs
                ],
                default=1,
            ),
        )
    if layer.type == "Loop":
        return iterated(layer, layer.maps["port_map"], inputs, inputs[0].item() if inputs[1].item() else 0)
    return OPERATIONS[layer.type](layer.attrs, *inputs)


def ends(extent: int, start: int, end: int) -> tuple[int, int]:
    """Return the first and last position of slices, counted from the start."""
    first, last = (v + extent + 1 if v < 0 else v for v in (start, end))
    return first, last


def trips(extent: int, axis: int, start: int = 0, end: int = -1, stride: int = 1, part_size: int = 1) -> int:
    """Return the number of slices of an axis."""
    first, last = ends(extent, start, end)
    return (last - first) // stride


def sliced(
    x: Array, i: int | None, axis: int, start: int = 0, end: int = -1, stride: int = 1, part_size: int = 1
) -> Array:
    """Return slice ``i``, or for None zeros of the shape of a slice, for an axis that has none."""
    if i is None:
        return np.zeros_like(np.repeat(x.sum(axis, x.dtype, keepdims=True), part_size, axis))
    begin = ends(x.shape[axis], start, end)[0] + i * stride - (part_size if stride < 0 else 0)
    return x.take(range(begin, begin + part_size), axis)


def iterated(layer: Layer, maps: Maps, inputs: Sequence[Array], limit: int) -> Sequence[Array]:
    """Return the outputs of a body that runs ``limit`` times (any number if negative) or until its condition fails."""
    carried: dict[int, Array] = {}
    iterations: list[Values] = []

    def once(i: int | None) -> Values:
        given = {
            inner.layer: sliced(inputs[port], i, **attrs) if attrs else inputs[port]
            for port, inner, attrs in maps.inputs
            if inner.layer not in carried
        } | carried
        if maps.iteration is not None:
            op = layer.bodies["body"].nodes[maps.iteration.layer]
            shape = [1] if op.attrs["shape"] else []
            given[op.id] = np.full(shape, i or 0, ELEMENTS[op.attrs["element_type"]].dtype)
        return run(layer.bodies["body"], given, {})

    for i in range(limit) if limit >= 0 else count():
        iterations.append(once(i))
        carried = {parameter.layer: iterations[-1][result.layer, 0] for result, parameter in maps.back_edges or ()}
        if maps.condition is not None and not iterations[-1][maps.condition.layer, 0].item():
            break
    started = {inner.layer: inputs[port] for port, inner, attrs in maps.inputs if not attrs}
    first = {
        result.layer: started[parameter.layer]
        for result, parameter in maps.back_edges or ()
        if parameter.layer in started
    }
    outputs = []
    for _, result, attrs in maps.outputs:
        parts = [values[result.layer, 0] for values in iterations]
        if "axis" not in attrs:
            outputs.append(parts[-1] if parts else first[result.layer])
        elif parts:
            outputs.append(np.concatenate(parts[::-1] if attrs.get("stride", 1) < 0 else parts, attrs["axis"]))
        else:
            outputs.append(once(None)[result.layer, 0].take([], attrs["axis"]))
    return outputs


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm(attrs: Mapping[str, Any], x: Array, h: Array, c: Array, w: Array, r: Array, b: Array) -> Sequence[Array]:
    forget, enter, cell, out = np.split(x @ w.T + h @ r.T + b, 4, 1)
    c = sigmoid(forget) * c + sigmoid(enter) * np.tanh(cell)
    return sigmoid(out) * np.tanh(c), c


def gru(attrs: Mapping[str, Any], x: Array, h: Array, w: Array, r: Array, b: Array) -> Sequence[Array]:
    (wz, wr, wh), (rz, rr, rh), (bz, br, bh) = (np.split(m, 3) for m in (w, r, b))
    z, reset = sigmoid(x @ wz.T + h @ rz.T + bz), sigmoid(x @ wr.T + h @ rr.T + br)
    return [(1 - z) * np.tanh(x @ wh.T + (reset * h) @ rh.T + bh) + z * h]


def cut(attrs: Mapping[str, Any], x: Array, start: Array, stop: Array, step: Array, axes: Array) -> Sequence[Array]:
    """Compute Slice-8; a negative step runs to the beginning of the axis."""
    where = [slice(None)] * x.ndim
    for axis, a, b, by in zip(axes, start, stop, step):
        where[axis] = slice(a, b if by > 0 else None, by)
    return [x[tuple(where)]]


OPERATIONS: dict[str, Callable[..., Sequence[Array]]] = {
    "Add": lambda attrs, a, b: [a + b],
    "Subtract": lambda attrs, a, b: [a - b],
    "Multiply": lambda attrs, a, b: [a * b],
    "Maximum": lambda attrs, a, b: [np.maximum(a, b)],
    "Minimum": lambda attrs, a, b: [np.minimum(a, b)],
    "Less": lambda attrs, a, b: [np.less(a, b)],
    "LogicalAnd": lambda attrs, a, b: [a & b],
    "Abs": lambda attrs, x: [abs(x)],
    "ReLU": lambda attrs, x: [np.maximum(x, 0)],
    "Tanh": lambda attrs, x: [np.tanh(x)],
    "Convert": lambda attrs, x: [as_logical(x, attrs["destination_type"])],
    "Reshape": lambda attrs, x, shape: [x.reshape(shape)],
    "Squeeze": lambda attrs, x, axes: [x.squeeze(tuple(axes))],
    "Unsqueeze": lambda attrs, x, axes: [np.expand_dims(x, tuple(axes))],
    "Transpose": lambda attrs, x, order: [x.transpose(order)],
    "Concat": lambda attrs, *parts: [np.concatenate(parts, attrs["axis"])],
    "Slice": cut,
    "ReduceSum": lambda attrs, x, axes: [np.asarray(x.sum(tuple(axes), x.dtype, keepdims=attrs["keep_dims"]))],
    "MatMul": lambda attrs, a, b: [a @ b],
    "RNNCell": lambda attrs, x, h, w, r, b: [np.tanh(x @ w.T + h @ r.T + b)],
    "GRUCell": gru,
    "LSTMCell": lstm,
}
