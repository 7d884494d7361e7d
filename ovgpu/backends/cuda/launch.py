"""What an op's `cuda` form records with: kernel launches, products, convolutions, transforms, elementwise kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ovgpu.backends.cuda import copy, elementwise, kernels, rt
from ovgpu.backends.cuda.cufft import Fft
from ovgpu.backends.cuda.elementwise import c_type
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import Array
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolution import Convolved
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.runtime.backend import Call
from ovgpu.types import Type


class Launcher:
    """Records calls for one step on one stream."""

    c_type = staticmethod(c_type)
    functor = staticmethod(elementwise.functor)

    def __init__(self, stream: Any, blas: Any, dnn: Any = None, ffts: Fft | None = None) -> None:
        self.stream, self.blas, self.dnn, self.ffts = stream, blas, dnn, ffts or Fft()
        self.calls: list[Call] = []

    def kernel(self, file: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...],
               args: Sequence[Any], shared: int = 0, cooperative: bool = False, prelude: str = "") -> None:
        """Launches ``expression`` of ``cuda_kernels/file``; scalars in ``args`` have NumPy types, and host arrays are
        structs passed by value. All blocks of a cooperative launch run at the same time, see `fits`. ``prelude`` is
        generated source that stands before the file's."""
        self._launch(kernels.of_file(file, expression, cooperative, prelude), grid, block, args, shared)

    def fits(self, file: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...], shared: int = 0,
             prelude: str = "") -> bool:
        """Return whether all blocks of a cooperative launch run at the same time."""
        return prod(grid) <= kernels.of_file(file, expression, True, prelude).resident(prod(block), shared)

    def _launch(self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any],
                shared: int = 0) -> None:
        given = tuple([_struct(x) if isinstance(x, np.ndarray) else x for x in args])
        kernel.prepare(shared)  # so that an error is one of this step
        self.calls.append(partial(kernel, grid, block, given, shared_mem=shared, stream=self.stream))

    @property
    def multiprocessors(self) -> int:
        """Of the device: how many blocks certainly run at the same time."""
        return int(rt.cupy().cuda.Device().attributes["MultiProcessorCount"])

    @property
    def capability(self) -> int:
        """The device's compute capability, 80 for 8.0."""
        return int(rt.cupy().cuda.Device().compute_capability)

    def elementwise(self, maths: Elementwise | Chain, inputs: Sequence[Array], output: Array) -> None:
        """Computes an op, or a chain of them, over inputs that broadcast to the output."""
        if output.size:
            chain = maths if isinstance(maths, Chain) else Chain.of(maths, len(inputs))
            self._launch(*elementwise.launch(chain, inputs, output))

    def copy(self, source: Array, target: Array) -> None:
        """Copies ``source``, which is broadcast, into ``target`` of its type; layouts are free, and a source on the
        host becomes part of what is recorded."""
        if not target.size:
            return
        found = copy.launches(source, target)
        if found is None:  # more axes than copy.cu is compiled for: a generated kernel, of bits
            bits = Type.of(np.dtype(f"u{target.dtype.itemsize}"))
            self.elementwise(Convert(destination_type=bits), [source.view(bits.storage)], target.view(bits.storage))
            return
        for launch in found:
            self.kernel("copy.cu", *launch)

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Device memory of this step alone: for the little that one of its launches leaves to the next."""
        return rt.cupy().empty(shape, dtype)

    def table(self, values: np.ndarray[Any, Any]) -> Array:
        """Numbers on the device that the step's launches look up; uploaded once, while they are recorded."""
        array = self.scratch(values.shape, values.dtype)
        array.set(values, stream=self.stream)
        self.stream.synchronize()  # the host's memory may be read until then
        return array

    def gemm(self, a: Array, b: Array, out: Array) -> bool:
        """``out [..., M, N] = a [..., M, K] @ b [..., K, N]`` through cuBLAS; False if it does not take them."""
        calls = self.blas.matmul(a, b, out)
        self.calls.extend(calls or ())
        return calls is not None

    def gemm_with_epilogue(self, a: Array, b: Array, out: Array, bias: Array | None, residual: Array | None,
                      activation: str) -> bool:
        """``out = activation(a @ b + bias + residual)`` in one call of cuBLASLt, see `Lt.matmul`; False if it does not
        take them."""
        call = self.blas.lt.matmul(a, b, out, bias, residual, activation)
        self.calls.extend([] if call is None else [call])
        return call is not None

    def convolve(self, c: Convolved) -> bool:
        """Computes a convolution through cuDNN; False where it is not installed, or does not take it."""
        calls = None if self.dnn is None else self.dnn.convolve(c)
        self.calls.extend(calls or ())
        return calls is not None

    def fft(self, source: Array, target: Array, axes: int, inverse: bool) -> bool:
        """Transforms the last axes through cuFFT, see `Fft.transform`; False if it does not take the arrays."""
        calls = self.ffts.transform(source, target, axes, inverse)
        self.calls.extend(calls or ())
        return calls is not None


def _struct(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers as one element: CuPy passes no more than one by value."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.dtype((np.void, numbers.nbytes)))
