"""Descriptions of convolutions and their epilogues, and the arguments that kernels take for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.fused._elementwise import Chain, f32_literals

MAX_EPILOGUE_OPERANDS = 4  # the most tensors that the epilogue of a kernel reads
LONG_INDEX = 1 << 30  # the least extent, stride or count for which kernels compute indices in 64 bits


@dataclass(frozen=True)
class Epilogue:
    """Elementwise layers after a convolution. The first input of ``chain`` is the convolution's result; the other ones
    are ``operands``, which broadcast to the result."""

    chain: Chain
    operands: tuple[Array, ...]

    def cut(self, axis: int, part: slice, rank: int) -> Epilogue:
        """Return the epilogue for a ``part`` of the result along ``axis``; the result has ``rank`` axes."""
        index = (..., part, *[slice(None)] * (rank - 1 - axis))
        return replace(
            self,
            operands=tuple(
                [x[index] if x.ndim >= rank - axis and x.shape[axis - rank] > 1 else x for x in self.operands]
            ),
        )


@dataclass(frozen=True)
class Convolved:
    """One convolution of arrays: x [N, G C, ...], kernel [G, O, C, ...] (transposed: [G, C, O, ...]) and out
    [N, G O, ...].

    ``strides``, ``dilations`` and ``begin`` have an element per spatial axis. ``begin`` is the padding at the beginning
    of the axis; of a transposed convolution, the number of output elements that are cut off there.
    """

    x: Array
    kernel: Array
    out: Array
    strides: Sequence[int]
    dilations: Sequence[int]
    begin: Sequence[int]
    transposed: bool = False
    epilogue: Epilogue | None = None

    @property
    def operands(self) -> tuple[Array, ...]:
        return () if self.epilogue is None else self.epilogue.operands

    @property
    def groups(self) -> int:
        return int(self.kernel.shape[0])

    @property
    def channels(self) -> int:
        return int(self.x.shape[1]) // self.groups

    @property
    def outputs(self) -> int:
        return int(self.out.shape[1]) // self.groups

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(self.kernel.shape[3:])

    @property
    def pointwise(self) -> bool:
        """True if every output pixel is computed from the input pixel at the same position alone."""
        return (
            prod(self.taps) == prod(self.strides) == 1
            and not any(self.begin)
            and self.x.shape[2:] == self.out.shape[2:]
        )

    def window(self, count: int) -> tuple[np.ndarray[Any, Any], str, Any]:
        """Return the struct Window, and the index type as a CUDA and a NumPy type: 64 bits wide if any index of the
        arrays, or ``count``, the largest number that the kernel counts to, needs it."""
        arrays = (self.x, self.kernel, self.out, *self.operands)
        spans = [sum(abs(s) * d for s, d in zip(strides_of(a), a.shape)) for a in arrays]
        numbers: list[int] = []
        for values, missing in (
            (self.x.shape[2:], 1),
            (self.out.shape[2:], 1),
            (self.taps, 1),
            (self.strides, 1),
            (self.dilations, 1),
            (self.begin, 0),
        ):
            numbers += [missing] * (3 - len(values)) + list(values)
        for array in (self.x, self.out):
            numbers += _axis_strides(strides_of(array))
        numbers += [self.x.shape[0], self.groups, self.channels, self.outputs]
        small = max(count, *spans, *map(abs, numbers)) < LONG_INDEX
        index = np.dtype(np.int32 if small else np.int64)
        return np.array(numbers, index), "int" if small else "long long", index.type


def _axis_strides(strides: Sequence[int]) -> list[int]:
    """Return the strides of batch, channel and three spatial axes; missing axes, which come first, have 0."""
    return [*strides[:2], *[0] * (5 - len(strides)), *strides[2:]]


def epilogue_arguments(
    k: KernelRecorder, c: Convolved, index_type: Any, value_dtype: np.dtype[Any] | None = None, literals: int = 0
) -> tuple[str, str, tuple[Any, ...]]:
    """Return the epilogue of a kernel: name and source of its struct, and its arguments.

    ``index_type`` is the type of the strides, and ``value_dtype`` that of the chain's first input, by default the type
    of ``c.out``. The first ``literals`` f32 literals of the chain become one argument, after the strides, so that
    chains that differ in them alone share one kernel.
    """
    strides = np.zeros((MAX_EPILOGUE_OPERANDS, 5), index_type)
    for row, x in zip(strides, c.operands):
        row[:] = _axis_strides(strides_of(x, c.out.shape))
    values = np.zeros(literals, np.float32)
    for n, i in enumerate([] if c.epilogue is None else f32_literals(c.epilogue.chain)[:literals]):
        values[n] = np.frombuffer(c.epilogue.chain.literals[i][1], np.float32)[0]  # type: ignore[union-attr]
    absent = [None] * (MAX_EPILOGUE_OPERANDS - len(c.operands))
    arguments = (strides, *([values] if literals else ()), *c.operands, *absent)
    if c.epilogue is None:
        return "IdentityEpilogue", "", arguments
    dtypes = (value_dtype or c.out.dtype, *[a.dtype for a in c.operands])
    source = k.functor(
        "Epilogue", c.epilogue.chain, dtypes, MAX_EPILOGUE_OPERANDS, result=c.out.dtype, numbers=literals
    )
    return "Epilogue", source, arguments
