"""MatMul: products of matrices and vectors, and of batches of them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.strided import Axes, strides_of
from ovgpu.ops.base.tasks import BLAS_THREADS, record, shares, workers
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import broadcast_shapes, same

TILE = 16  # rows and columns of a block's tile, in the kernel for products that cuBLAS does not take
# Up to MAX_GEMV_ROWS rows are multiplied one by one: BLAS is then faster (GEMV), if the matrix is large enough
MAX_GEMV_ROWS, MIN_GEMV_ELEMENTS = 3, 1 << 16
# With AVX-512, OpenBLAS multiplies matrices of f32 without packing them first if M N K is at most this. Packing takes
# more time than a product with few rows, which is therefore computed a panel of columns at a time.
MAX_UNPACKED_PRODUCTS = 1_000_000 if BLAS_THREADS and _multiarray_umath.__cpu_features__["AVX512_SKX"] else 0
PANEL_COLUMNS, STRIDED_PANEL_COLUMNS = 16, 64  # of panels that lie in one piece, and of others
MAX_PANEL_ROWS = 32  # with more rows, packing takes less of the time
MIN_PARALLEL_PRODUCTS = 1 << 22  # of a matrix product that several threads compute


@op("MatMul", "opset1", "matrix/matmul-1")
class MatMul(Op):
    """``a [..., M, K], b [..., K, N] -> [..., M, N]``; batch axes broadcast.

    A vector is a row on the left and a column on the right, and its axis is dropped from the result; the attributes
    transpose the last two axes of inputs that have two. 8-bit integers saturate, wider ones wrap.

    >>> matmul([1.0, 2], [[3.0, 4]], transpose_a=False, transpose_b=True)
    [11.0]
    """

    transpose_a: bool = False
    transpose_b: bool = False

    layout = "blas"
    strided_outputs = True
    half_precision = "always"
    exact_product: ClassVar[bool] = False
    """True if operands are never rounded to TF32."""

    def infer_specs(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return (Spec(merge_types((a, b)), self.shape(a.shape, b.shape)),)

    def shape(self, a: Shape, b: Shape) -> Shape:
        for shape in (a, b):
            if shape == ():
                raise OpError("a scalar is no matrix")
        if a is None or b is None:
            return None
        left = (1, a[0]) if len(a) == 1 else (*a[:-2], a[-1], a[-2]) if self.transpose_a else a
        right = (b[0], 1) if len(b) == 1 else (*b[:-2], b[-1], b[-2]) if self.transpose_b else b
        same(left[-1], right[-2], "matrices of {0} columns and {1} rows do not multiply")
        batch = broadcast_shapes(left[:-2], right[:-2], message="batch dimensions do not broadcast")
        return (*batch, *left[-2 : -1 if len(a) > 1 else -2], *right[-1 : None if len(b) > 1 else -1])

    def operands(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Return views of the inputs, transposed for NumPy's matmul."""
        if self.transpose_a and a.ndim > 1:
            a = a.swapaxes(-1, -2)
        if self.transpose_b and b.ndim > 1:
            b = b.swapaxes(-1, -2)
        return a, b

    def evaluate(self, xp: Adapter, a: Array, b: Array) -> tuple[Array, ...]:
        dtype = a.dtype
        a, b = self.operands(a, b)
        if dtype.kind in "iu" and dtype.itemsize == 1:  # exact in f64, and saturated as OpenVINO does
            limits = np.iinfo(dtype)
            product = xp.matmul(a.astype(np.float64), b.astype(np.float64))
            return (xp.asarray(xp.clip(product, limits.min, limits.max)).astype(dtype),)
        return (xp.asarray(xp.matmul(a, b)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        a, b = self.operands(*inputs)
        out = outputs[0]
        if out.dtype.itemsize < 4 or not out.size or not a.size:
            return NotImplemented
        if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and out.flags.c_contiguous:
            # one product instead of one per batch
            a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, b.shape[-1])
        if a.ndim == b.ndim == 2 and _multiply_panels(k, a, b, out):
            return None
        if a.ndim == b.ndim == 2 and 1 < len(a) <= MAX_GEMV_ROWS and b.size >= MIN_GEMV_ELEMENTS:
            for row, result in zip(a, out):
                k(np.matmul, row, b, result)
        else:
            k(np.matmul, a, b, out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        a, b, out = _matrices(*self.operands(*inputs), outputs[0])
        if k.gemm(a, b, out, self.exact_product):
            return None
        if not out.size:
            return None
        (m, depth), n, batch = a.shape[-2:], b.shape[-1], out.shape[:-2]
        strides = [strides_of(x, (*batch, *x.shape[-2:])) for x in (a, b, out)]
        reach = max(
            sum(abs(s) * (d + TILE) for s, d in zip(steps[-2:], x.shape[-2:])) for steps, x in zip(strides, (a, b, out))
        )
        axes = Axes.collapse(batch, *(s[:-2] for s in strides), reach=reach)
        if not axes.rank or a.dtype != b.dtype:
            return NotImplemented
        grid = axes.size * -(-m // TILE) * -(-n // TILE)
        if grid >= 2**31:  # CUDA's limit
            return NotImplemented
        index = axes.numbers(0)[0].dtype
        k.kernel(
            "matmul.cu",
            f"matmul<{k.c_type(out.dtype)}, {axes.index}, {axes.rank}>",
            (grid,),
            (TILE, TILE),
            (a, b, out, axes.packed(), *(np.array(s[-2:], index) for s in strides), *axes.numbers(m, n, depth)),
        )
        return None


@internal_op
class ExactMatMul(MatMul):
    """A product of numbers computed from integers, such as positions, which would lose their meaning in TF32."""

    exact_product: ClassVar[bool] = True


def _multiply_panels(k: HostRecorder, a: Any, b: Any, out: Any) -> bool:
    """Record a product of few rows, ``out [M, N] = a [M, K] b [K, N]``, by panels of columns, each a call of BLAS.

    Return False if that is not faster.
    """
    (rows, depth), columns = a.shape, b.shape[1]
    width = PANEL_COLUMNS if b.strides[0] == b.itemsize else STRIDED_PANEL_COLUMNS
    if (
        not 2 <= rows <= MAX_PANEL_ROWS
        or rows * depth * width > MAX_UNPACKED_PRODUCTS
        or out.dtype != np.float32
        or b.size < MIN_GEMV_ELEMENTS
        or columns < width
    ):
        return False
    whole = columns - columns % width
    panels, results = (x[:, :whole].reshape(len(x), -1, width).swapaxes(0, 1) for x in (b, out))
    work = workers(rows * depth * columns >= MIN_PARALLEL_PRODUCTS)
    for worker, part in zip(work, shares(len(panels), len(work))):
        worker(np.matmul, a, panels[part], results[part])
    if whole < columns:
        work[-1](np.matmul, a, b[:, whole:], out[:, whole:])
    record(k, work)
    return True


def _matrices(a: Any, b: Any, out: Any) -> tuple[Any, Any, Any]:
    """Return views of a product's operands as matrices: a vector is a row on the left, a column on the right."""
    if a.ndim == 1:
        out = out[..., None] if b.ndim == 1 else out[..., None, :]
    if b.ndim == 1:
        out = out[..., None]
    return a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b, out
