"""Convolutions with compressed weights: plain, grouped and transposed, in tiles of some channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ovgpu.passes import _weights
from tests.harness import Case, In, Net, Sum, check
from tests.harness.sweep import sweep


@pytest.fixture(autouse=True)
def small_weights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small weights stay compressed, too, in tiles of a few channels."""
    monkeypatch.setattr(_weights, "MIN_CODES", 1)
    for tile in ("KERNEL_TILE", "DEVICE_TILE"):
        monkeypatch.setattr(import_module("ovgpu.passes.keep_weights_compressed"), tile, 100)
    yield


@dataclass(frozen=True, eq=False)
class Convolved(Case):
    """A convolution with weights (codes - zero) * scale, computed in the type ``compute``."""

    codes: In = field(default_factory=lambda: In(()))
    scale: tuple[int, ...] = ()
    zero: bool = False
    target: tuple[int, ...] | None = None
    compute: str = "f16"

    @cached_property
    def net(self) -> Net:
        net, random = Net(self.name), np.random.default_rng(7)
        x = net.parameter(self.inputs[0].dtype, self.inputs[0].shape)

        def converted(port: Any, kind: str) -> Any:
            if port.type == kind:
                return port
            return net.layer("Convert", "opset1", [port], {"destination_type": kind}, [kind])

        def codes(values: Any) -> Any:
            return converted(net.const(values, self.codes.dtype), self.compute)

        port = codes(self.codes.array(random))
        if self.zero:
            port = net.layer("Subtract", "opset1", [port, codes(random.integers(3, 12, self.scale))])
        port = net.layer("Multiply", "opset1", [port, net.const(random.uniform(0.01, 0.1, self.scale), self.compute)])
        port = converted(port, x.type)
        target = [] if self.target is None else [net.const(np.array(self.target))]
        net.result(net.layer(self.op, self.version, [x, port, *target], self.attrs, name="op"))
        return net


def convolution(
    kind: str,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    by: str | None = None,
    zero: bool = False,
    op: str = "Convolution",
    of: str = "f32",
    target: tuple[int, ...] | None = None,
    **attrs: Any,
) -> Convolved:
    """Return a case whose scales vary along the kernel axes in ``by``: g (groups), o (outputs), i (inputs)."""
    axes = len(x) - 2
    names = ("g" if op.startswith("Group") else "") + ("io" if "Backprop" in op else "oi")
    scale = tuple(n if name in (by or "go") else 1 for name, n in zip(names, kernel)) + (1,) * axes
    attrs = {"strides": [1] * axes, "pads_begin": [0] * axes, "pads_end": [0] * axes, "dilations": [1] * axes} | attrs
    limits = {"low": 0, "high": 255} if kind == "u8" else {"low": -100, "high": 100} if kind == "i8" else {}
    return Convolved(
        op,
        "opset1",
        [In(x, of)],
        attrs,
        id=f"{op}-{kind}-{x}-{kernel}-{by}-{zero}-{of}-{attrs}-{target}",
        tol=Sum(prod(kernel)),
        oracle="cpu",
        codes=In(kernel, kind, **limits),
        scale=scale,
        zero=zero,
        target=target,
    )


PADDED: dict[str, Any] = {"pads_begin": [1, 1], "pads_end": [1, 0]}
CASES = [
    convolution("u8", (2, 5, 9, 7), (11, 5, 3, 3), zero=True, **PADDED),
    convolution("i8", (2, 5, 9, 7), (11, 5, 3, 3), strides=[2, 1]),
    convolution("u8", (2, 13, 9, 7), (11, 13, 1, 1), zero=True),
    convolution("i4", (1, 5, 9, 7), (11, 5, 3, 3), **PADDED),
    convolution("u4", (1, 5, 9, 7), (11, 5, 3, 3), zero=True, dilations=[1, 2]),
    convolution("f8e4m3", (1, 5, 9, 7), (11, 5, 3, 3), by=" "),
    convolution("u8", (2, 5, 23), (11, 5, 4), zero=True, strides=[3]),
    convolution("i8", (1, 3, 5, 6, 7), (5, 3, 3, 2, 3)),
    convolution("u8", (3, 14, 9, 7), (7, 3, 2, 3, 3), zero=True, op="GroupConvolution", **PADDED),
    convolution("i8", (2, 21, 9, 7), (21, 1, 1, 3, 3), op="GroupConvolution", **PADDED),
    convolution("i8", (2, 10, 9, 7), (2, 9, 5, 3, 3), op="GroupConvolution", **PADDED),
    convolution("u8", (2, 5, 9, 7), (5, 11, 3, 3), zero=True, op="ConvolutionBackpropData", strides=[2, 2], **PADDED),
    convolution("i8", (2, 5, 9, 7), (5, 11, 3, 3), by="i", op="ConvolutionBackpropData"),
    convolution("i8", (2, 5, 9, 7), (5, 11, 2, 2), op="ConvolutionBackpropData", strides=[2, 2], target=(19, 14)),
    convolution("i8", (2, 15, 9, 7), (3, 5, 7, 2, 2), op="GroupConvolutionBackpropData", strides=[2, 2]),
    convolution("u8", (2, 5, 9, 7), (11, 5, 3, 3), zero=True, of="f16", **PADDED),
]
test_cases = check(CASES)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    kind, axes = draw(st.sampled_from(["u8", "i8", "u4", "i4"])), draw(st.integers(1, 2))
    groups, outputs, inputs = (draw(st.integers(1, n)) for n in (4, 12, 6))
    op = draw(
        st.sampled_from(["Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"])
    )
    channels = (inputs, outputs) if "Backprop" in op else (outputs, inputs)
    grouped = op.startswith("Group")
    kernel = (*((groups,) if grouped else ()), *channels, *(draw(st.integers(1, 3)) for _ in range(axes)))
    x = (draw(st.integers(1, 2)), inputs * (groups if grouped else 1), *(draw(st.integers(3, 8)) for _ in range(axes)))
    case = convolution(
        kind,
        x,
        kernel,
        draw(st.sampled_from(["go", "g", " ", "gi"])),
        draw(st.booleans()),
        op,
        strides=[draw(st.integers(1, 2)) for _ in range(axes)],
    )
    return replace(case, compute="f32")


test_random = sweep(convolutions())  # all in f32, since the plugin would round some of these weights to f16
