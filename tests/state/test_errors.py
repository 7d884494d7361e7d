"""Models with malformed variables: one clear error, on reading or compiling, that names the layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness import Net
from tests.harness.layers import add, convert, reshape

ZEROS = np.zeros((2, 3), np.float32)


def assign_alone() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    net.assign("v", x)
    net.result(x)
    return net


def two_reads() -> Net:
    net = Net()
    a, b = (net.read_value("v", "f32", (2, 3)) for _ in range(2))
    net.assign("v", add(net, a, b))
    net.result(a)
    return net


def two_assigns() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    before = net.read_value("v", "f32", (2, 3))
    net.assign("v", add(net, before, x))
    net.assign("v", x)
    net.result(before)
    return net


def pair(
    kind: str = "f32",
    shape: Any = (2, 3),
    init: Any = None,
    version: str = "opset6",
    name: str = "v",
    assigned: Any = None,
) -> Net:
    """Build a variable with an initial value; ``assigned`` computes the new value from the old one."""
    net = Net()
    before = net.read_value(name, kind, shape, None if init is None else net.const(init), version)
    net.assign(name, before if assigned is None else assigned(net, before), version)
    net.result(before)
    return net


CASES = {
    "assign-without-read": (assign_alone(), "Assign", "no ReadValue of variable 'v'"),
    "two-reads": (two_reads(), "ReadValue", "same variable 'v'"),
    "two-assigns": (two_assigns(), "Assign", "same variable 'v'"),
    "empty-name": (pair(name=""), "ReadValue", "variable_id"),
    "init-of-another-type": (pair(init=ZEROS.astype(np.int32)), "ReadValue", "i32.*'v' has f32"),
    "init-of-another-shape": (pair(init=ZEROS.T.copy()), "ReadValue", r"3,2.*'v' has.*2,3"),
    "init-of-another-rank": (pair(init=ZEROS[0].copy()), "ReadValue", r"'v' has.*2,3"),
    "init-outside-the-range": (pair(shape=("3..5", 3), init=ZEROS), "ReadValue", r"'v' has.*3\.\.5"),
    "init-of-another-fixed-extent": (pair(shape=(-1, 4), init=ZEROS), "ReadValue", "'v' has"),
    "assigned-another-type": (pair(assigned=lambda n, v: convert(n, v, "i32")), "Assign", "i32.*'v' has.*f32"),
    "assigned-another-shape": (pair(assigned=lambda n, v: reshape(n, v, [3, 2])), "Assign", r"3,2.*'v' has.*2,3"),
    "assigned-another-rank": (pair(assigned=lambda n, v: reshape(n, v, [6])), "Assign", "'v' has"),
    "v3-assigned-another-type": (
        pair(init=ZEROS, version="opset3", assigned=lambda n, v: convert(n, v, "f16")),
        "Assign",
        "f16.*'v' has.*f32",
    ),
    "v3-assigned-another-shape": (
        pair(init=ZEROS, version="opset3", assigned=lambda n, v: reshape(n, v, [6])),
        "Assign",
        "'v' has",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_error(name: str, device: str) -> None:
    net, op, message = CASES[name]
    core = ov.Core()
    with pytest.raises(RuntimeError, match=rf"^\[{op}\] .*{message}.*layer"):
        core.compile_model(core.read_model(*net.build()), device)
