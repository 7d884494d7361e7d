"""Elementwise layers fused into a convolution's kernel on the emulated device: results, and the number of kernels."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.elementwise import functor
from ovgpu.ops.activation.activation import Clamp, Relu, Swish
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import Op
from ovgpu.ops.convolution import _convolution, _convolved
from ovgpu.ops.convolution.convolution import (
    Convolution,
    ConvolutionBackpropData,
    GroupConvolution,
    GroupConvolutionBackpropData,
)
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.ops.fused.convolution_epilogue import ConvolutionWithEpilogue
from tests.emulator import nvrtc

from .test_convolution import convolve

Shape = tuple[int, ...]
BF16 = np.dtype(ml_dtypes.bfloat16)


def chain(others: int, *layers: Elementwise) -> Chain:
    """Return a chain of layers, in which each binary layer takes the next of the other operands."""
    parts, free = list[Part](), iter(range(1, others + 1))
    for layer in layers:
        last = others + len(parts) if parts else 0
        parts.append(Part(layer, (last, next(free)) if isinstance(layer, (Add, Multiply)) else (last,)))
    return Chain(1 + others, (), tuple(parts))


def with_epilogue(op: Any, others: int, *layers: Elementwise) -> ConvolutionWithEpilogue:
    named = tuple(Layer(layer, layer.name, "") for layer in layers)
    fused = Fused(chain=chain(others, *layers), ranks=(), layers=named)
    return ConvolutionWithEpilogue(layer=Layer(op, "convolution", ""), convolution=op, fused=fused, device=True)


def per_channel(out: Shape) -> Shape:
    return (1, out[1], *(1 for _ in out[2:]))


# ---- kernels

CASES: list[tuple[Op, Shape, Shape, Shape, list[str]]] = [
    (Convolution(pads_begin=(1, 0)), (2, 9, 5, 7), (70, 9, 3, 3), (2, 70, 4, 5), ["convolve_tiles"]),
    (Convolution(), (1, 70, 4, 6), (66, 70, 3, 3), (1, 66, 2, 4), ["convolve_tiles"]),  # of two rows, with split sums
    (Convolution(), (2, 9, 5, 7), (70, 9, 1, 1), (2, 70, 5, 7), ["", "ovgpu_add_clamp"]),
    (GroupConvolution(pads_end=(0, 2)), (2, 12, 5, 7), (12, 1, 1, 3, 3), (2, 12, 3, 7), ["convolve_each"]),
    (GroupConvolutionBackpropData(), (2, 12, 5), (4, 3, 2, 3), (2, 8, 7), ["convolve_each"]),
    (ConvolutionBackpropData(strides=(2, 1)), (3, 5, 3, 5), (5, 6, 2, 2), (3, 6, 6, 6), ["", "fold_columns"] * 2),
]  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("case", "kind"),
    [*((case, np.float32) for case in range(len(CASES))), *((case, np.float16) for case in range(4)), (1, BF16)],
)
def test_fused_epilogue(case: int, kind: Any, backend: CudaBackend) -> None:
    """The kernel adds a bias and a tensor, and applies an activation, rounding each; cuBLAS fuses no epilogue."""
    op, x, kernel, out, names = CASES[case]
    layers = with_epilogue(op, 2, Add(), Add(), Clamp(min=-5.0, max=700.0))
    capacity = 720 if "fold_columns" in names else 0  # for two images
    found = convolve(backend, layers, x, kernel, kind, capacity, others=[per_channel(out), out], exact=True)
    assert found == names


def test_epilogue_after_columns(backend: CudaBackend) -> None:
    layers = with_epilogue(Convolution(), 1, Add(), Relu())
    found = convolve(backend, layers, (3, 5, 4, 8), (7, 5, 2, 3), np.float16, others=[(1, 7, 1, 1)], exact=True)
    assert found == ["gather_columns", "", "ovgpu_add_relu"]


@pytest.mark.parametrize("other", [(), (4,), (5, 1), (6, 1, 1), (2, 1, 1, 1), (2, 6, 5, 1)])
def test_operands_broadcast(other: Shape, backend: CudaBackend) -> None:
    """Operands broadcast to a result [2, 6, 5, 4] that is part of a larger array."""
    cut = ConvolutionBackpropData(pads_begin=(1, 1), pads_end=(1, 1))
    for op, x, kernel in (
        (Convolution(), (2, 3, 6, 5), (6, 3, 2, 2)),
        (cut, (2, 3, 6, 5), (3, 6, 2, 2)),
        (GroupConvolution(), (2, 3, 6, 5), (3, 2, 1, 2, 2)),
    ):
        layers = with_epilogue(op, 1, Multiply(), Swish())
        convolve(backend, layers, x, kernel, others=[other], into=lambda a: a[:, 4:, 2:, 1:])


def test_64_bit_indices(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_convolved, "LONG_INDEX", 0)
    convolve(backend, with_epilogue(Convolution(), 2, Add(), Add(), Relu()), (1, 70, 4, 6), (5, 70, 3, 3),
             others=[(5, 1, 1), (1, 5, 2, 4)])  # fmt: skip


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str) -> None:
    """Kernels with an epilogue compile without spills."""
    source = functor(
        "Epilogue", chain(2, Add(), Add(), Relu()), (np.dtype(np.float32),) * 3, _convolved.MAX_EPILOGUE_OPERANDS
    )
    names = [
        f"{name}, Epilogue>"
        for name in ("convolve_tiles<float, int", "convolve_each<float, int, false", "fold_columns<float, int")
    ]
    usage = nvrtc.compile_file(_convolution.FILE, architecture, names, source).usage
    assert len(usage) == len(names) and not any(u.spill_stores for u in usage.values())
