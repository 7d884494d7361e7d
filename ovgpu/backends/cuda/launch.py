"""Launcher, with which an op's `cuda` method records kernel launches and calls of CUDA's libraries."""

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
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolution import Convolved
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.runtime.backend import Call
from ovgpu.types import Type


class Launcher(KernelRecorder):
    """Recorder of the calls of one step on one stream."""

    c_type = staticmethod(c_type)
    functor = staticmethod(elementwise.functor)

    def __init__(self, stream: Any, blas: Any, dnn: Any = None, ffts: Fft | None = None) -> None:
        self.stream, self.blas, self.dnn, self.ffts = stream, blas, dnn, ffts or Fft()
        self.calls: list[Call] = []

    def kernel(self, file: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...],
               args: Sequence[Any], shared: int = 0, cooperative: bool = False, prelude: str = "") -> None:
        """Launch ``expression`` of ``cuda_kernels/file`` with ``shared`` bytes of dynamic shared memory.

        Scalars in ``args`` have NumPy types, and host arrays are structs passed by value. All blocks of a cooperative
        launch run at the same time, see `fits`. ``prelude`` is generated source that is put before the file's.
        """
        self._launch(kernels.of_file(file, expression, cooperative, prelude), grid, block, args, shared)

    def fits(self, file: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...], shared: int = 0,
             prelude: str = "") -> bool:
        """Return whether all blocks of a cooperative launch can run at the same time."""
        return prod(grid) <= kernels.of_file(file, expression, True, prelude).resident(prod(block), shared)

    def _launch(self, kernel: Kernel, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any],
                shared: int = 0) -> None:
        arguments = tuple([_struct(x) if isinstance(x, np.ndarray) else x for x in args])
        kernel.prepare(shared)  # here, so that an error names this step
        self.calls.append(partial(kernel, grid, block, arguments, shared_mem=shared, stream=self.stream))

    @property
    def multiprocessors(self) -> int:
        """The device's number of multiprocessors: at least as many blocks run at the same time."""
        return int(rt.cupy().cuda.Device().attributes["MultiProcessorCount"])

    @property
    def capability(self) -> int:
        """The device's compute capability, 80 for 8.0."""
        return int(rt.cupy().cuda.Device().compute_capability)

    def elementwise(self, maths: Elementwise | Chain, inputs: Sequence[Array], output: Array) -> None:
        """Compute an op, or a chain of them, over inputs that broadcast to the output."""
        if output.size:
            chain = maths if isinstance(maths, Chain) else Chain.of(maths, len(inputs))
            self._launch(*elementwise.launch(chain, inputs, output))

    def copy(self, source: Array, target: Array) -> None:
        """Copy ``source``, broadcast, into ``target`` of its dtype; both may have any strides.

        A source on the host is recorded by value, or uploaded now for a target of more than `copy.MAX_NUMBERS`.
        """
        if not target.size:
            return
        if isinstance(source, np.ndarray) and target.size > copy.MAX_NUMBERS:
            source = self.table(np.ascontiguousarray(source))
        found = copy.launches(source, target)
        if found is None:  # more axes than copy.cu is compiled for: a generated kernel copies the bits
            bits = Type.of(np.dtype(f"u{target.dtype.itemsize}"))
            self.elementwise(Convert(destination_type=bits), [source.view(bits.storage)], target.view(bits.storage))
            return
        for launch in found:
            self.kernel("copy.cu", *launch)

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return device memory of this step alone, for small results that one launch leaves to the next."""
        return rt.cupy().empty(shape, dtype)

    def table(self, values: np.ndarray[Any, Any]) -> Array:
        """Upload a table for the step's launches once, while they are recorded. Return it on the device."""
        array = self.scratch(values.shape, values.dtype)
        array.set(values, stream=self.stream)
        self.stream.synchronize()  # the copy may read the host's memory until then
        return array

    def gemm(self, a: Array, b: Array, out: Array) -> bool:
        """Compute ``out [..., M, N] = a [..., M, K] @ b [..., K, N]`` through cuBLAS; False if it does not support
        them."""
        calls = self.blas.matmul(a, b, out)
        self.calls.extend(calls or ())
        return calls is not None

    def gemm_with_epilogue(self, a: Array, b: Array, out: Array, bias: Array | None, residual: Array | None,
                           activation: str) -> bool:
        """Compute ``out = activation(a @ b + bias + residual)`` in one call of cuBLASLt, see `Lt.matmul`; False if it
        does not support them."""
        call = self.blas.lt.matmul(a, b, out, bias, residual, activation)
        self.calls.extend([] if call is None else [call])
        return call is not None

    def convolve(self, c: Convolved) -> bool:
        """Compute a convolution through cuDNN; False if cuDNN is not installed or does not support it."""
        calls = None if self.dnn is None else self.dnn.convolve(c)
        self.calls.extend(calls or ())
        return calls is not None

    def fft(self, source: Array, target: Array, axes: int, inverse: bool) -> bool:
        """Transform the last axes through cuFFT, see `Fft.transform`; False if it does not support the arrays."""
        calls = self.ffts.transform(source, target, axes, inverse)
        self.calls.extend(calls or ())
        return calls is not None


def _struct(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers as one element: CuPy passes only arrays of one element by value."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.dtype((np.void, numbers.nbytes)))
