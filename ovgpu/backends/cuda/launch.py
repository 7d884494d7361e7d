"""What an op's `cuda` form records with: kernel launches, matrix products, and elementwise kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from ovgpu.backends.cuda import copy, rt, sources
from ovgpu.ops._elementwise import Elementwise, names
from ovgpu.ops._op import Array
from ovgpu.runtime.backend import Call
from ovgpu.types import Type

_C = {"f2": "float16", "f4": "float", "f8": "double", "i1": "signed char", "i2": "short", "i4": "int",
      "i8": "long long", "u1": "unsigned char", "u2": "unsigned short", "u4": "unsigned int",
      "u8": "unsigned long long", "b1": "bool"}


def c_type(dtype: np.dtype[Any]) -> str:
    """The CUDA C++ type of a dtype's elements."""
    return "__nv_bfloat16" if dtype.name == "bfloat16" else _C[f"{dtype.kind}{dtype.itemsize}"]


class Launcher:
    """Records calls for one step on one stream."""

    c_type = staticmethod(c_type)

    def __init__(self, stream: Any, blas: Any) -> None:
        self.stream, self.blas = stream, blas
        self.calls: list[Call] = []

    def kernel(self, file: str, expression: str, grid: tuple[int, ...], block: tuple[int, ...],
               args: Sequence[Any], shared: int = 0) -> None:
        """Launches ``expression`` of ``cuda_kernels/file``; scalars in ``args`` have NumPy types."""
        function = sources.function(file, expression)
        self.calls.append(partial(function, grid, block, tuple(args), shared_mem=shared, stream=self.stream))

    def elementwise(self, op: Elementwise, inputs: Sequence[Array], output: Array) -> None:
        """Runs the op's `cuda_expr` over the broadcast inputs."""
        if output.size:
            kernel = _elementwise(op, tuple(x.dtype for x in inputs), output.dtype)
            self.calls.append(partial(kernel, *inputs, output, stream=self.stream))

    def copy(self, source: Array, target: Array) -> None:
        """Copies ``source``, which is broadcast, into ``target`` of its type; layouts are free, and a source on the
        host becomes part of what is recorded."""
        if not target.size:
            return
        found = copy.launches(source, target)
        if found is None:
            self.calls.append(partial(_copy_kernel(), source, target, stream=self.stream))
        else:
            for launch in found:
                self.kernel("copy.cu", *launch)

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Device memory of this step alone: for the little that one of its launches leaves to the next."""
        return rt.cupy().empty(shape, dtype)

    def gemm(self, a: Array, b: Array, out: Array) -> None:
        """``out = a @ b`` for matrices with a unit stride; row-major ``out``. cuBLAS sees everything transposed."""
        self.calls.append(partial(self.blas.gemm, a, b, out))


@cache
def _elementwise(op: Elementwise, inputs: tuple[np.dtype[Any], ...], output: np.dtype[Any]) -> Any:
    given = names(type(op))
    lines = []
    for name, value in op.attributes().items():
        if isinstance(value, (bool, int, float)):
            kind = "bool" if isinstance(value, bool) else "float" if isinstance(value, float) else "int"
            lines.append(f"const {kind} {name} = {str(value).lower()};")
    for name, dtype in zip(given, inputs):
        kind = "float" if dtype.itemsize == 2 and dtype.kind not in "iu" else c_type(dtype)
        lines.append(f"const {kind} {name} = _{name};")
    params = ", ".join(f"{c_type(d)} _{n}" for n, d in zip(given, inputs))
    lines.append(f"out = {op.cuda_expression(Type.of(output))}")
    return rt.cupy().ElementwiseKernel(params, f"{c_type(output)} out", " ".join(lines), f"ovgpu_{op.name.lower()}")


@cache
def _copy_kernel() -> Any:
    return rt.cupy().ElementwiseKernel("T x", "T out", "out = x", "ovgpu_copy")
