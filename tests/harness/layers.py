"""Shorthands for the layers that tests of state and control flow use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .ir import Net, Port


def i64(net: Net, values: Any) -> Port:
    """Add a constant of int64."""
    return net.const(np.asarray(values, np.int64))


def scalar(net: Net, value: Any, kind: str = "f32") -> Port:
    """Add a scalar constant."""
    return net.const(np.asarray(value), kind)


def op2(net: Net, kind: str, a: Port, b: Port) -> Port:
    """Add a binary elementwise operation of opset1."""
    port: Port = net.layer(kind, "opset1", [a, b], {"auto_broadcast": "numpy"})
    return port


def compare(net: Net, kind: str, a: Port, b: Port) -> Port:
    """Add a comparison of opset1, whose output is boolean."""
    port: Port = net.layer(kind, "opset1", [a, b], {"auto_broadcast": "numpy"}, ["boolean"])
    return port


def add(net: Net, a: Port, b: Port) -> Port:
    return op2(net, "Add", a, b)


def mul(net: Net, a: Port, b: Port) -> Port:
    return op2(net, "Multiply", a, b)


def concat(net: Net, parts: Sequence[Port], axis: int) -> Port:
    port: Port = net.layer("Concat", "opset1", parts, {"axis": axis})
    return port


def reshape(net: Net, x: Port, shape: Sequence[int] | Port) -> Port:
    target = shape if isinstance(shape, Port) else i64(net, shape)
    port: Port = net.layer("Reshape", "opset1", [x, target], {"special_zero": False})
    return port


def transpose(net: Net, x: Port, order: Sequence[int]) -> Port:
    port: Port = net.layer("Transpose", "opset1", [x, i64(net, order)])
    return port


def slice_(net: Net, x: Port, start: int | Port, stop: int | Port, axis: int = 0, step: int = 1) -> Port:
    """Add a Slice-8 along one axis; bounds are ints or int64 vectors of one element."""
    bounds = [b if isinstance(b, Port) else i64(net, [b]) for b in (start, stop, step)]
    port: Port = net.layer("Slice", "opset8", [x, *bounds, i64(net, [axis])])
    return port


def gather(net: Net, x: Port, indices: Port | Any, axis: int = 0) -> Port:
    index = indices if isinstance(indices, Port) else i64(net, indices)
    port: Port = net.layer("Gather", "opset8", [x, index, i64(net, axis)], {"batch_dims": 0})
    return port


def split(net: Net, x: Port, axis: int, parts: int) -> tuple[Port, ...]:
    ports: tuple[Port, ...] = net.layer("Split", "opset1", [x, i64(net, axis)], {"num_splits": parts}, parts)
    return ports


def shape_of(net: Net, x: Port) -> Port:
    port: Port = net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"])
    return port


def extent(net: Net, x: Port, axis: int) -> Port:
    """Return one extent of ``x`` as an int64 vector of one element."""
    return gather(net, shape_of(net, x), [axis])


def broadcast(net: Net, x: Port, shape: Port | Sequence[int]) -> Port:
    target = shape if isinstance(shape, Port) else i64(net, shape)
    port: Port = net.layer("Broadcast", "opset3", [x, target], {"mode": "numpy"})
    return port


def convert(net: Net, x: Port, kind: str) -> Port:
    port: Port = net.layer("Convert", "opset1", [x], {"destination_type": kind}, [kind])
    return port


def reduce(net: Net, kind: str, x: Port, axes: Sequence[int], keep: bool = False) -> Port:
    port: Port = net.layer(kind, "opset1", [x, i64(net, axes)], {"keep_dims": keep})
    return port


def squeeze(net: Net, x: Port, axes: Sequence[int]) -> Port:
    port: Port = net.layer("Squeeze", "opset1", [x, i64(net, axes)])
    return port


def unsqueeze(net: Net, x: Port, axes: Sequence[int]) -> Port:
    port: Port = net.layer("Unsqueeze", "opset1", [x, i64(net, axes)])
    return port


def relu(net: Net, x: Port) -> Port:
    port: Port = net.layer("ReLU", "opset1", [x])
    return port


def tanh(net: Net, x: Port) -> Port:
    port: Port = net.layer("Tanh", "opset1", [x])
    return port


def matmul(net: Net, a: Port, b: Port, ta: bool = False, tb: bool = False) -> Port:
    port: Port = net.layer("MatMul", "opset1", [a, b], {"transpose_a": ta, "transpose_b": tb})
    return port


def nonzero(net: Net, x: Port) -> Port:
    """Add a NonZero: indices [rank, count], where count is known only at run time."""
    port: Port = net.layer("NonZero", "opset3", [x], {"output_type": "i64"}, ["i64"])
    return port


def numbers(*shape: int, seed: int = 0, low: int = -9, high: int = 9, kind: Any = np.float32) -> Any:
    """Return varied values that are exact in every type: small integers over four (floats), or integers."""
    values = np.random.default_rng([seed, *shape]).integers(low, high, shape, endpoint=True)
    return (values / 4).astype(kind) if np.dtype(kind).kind == "f" else values.astype(kind)
