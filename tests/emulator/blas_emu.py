"""nvmath.bindings.cublas on the host: the functions the backend calls, on raw device pointers.

Matrices are column-major with leading dimensions; argument names and order are nvmath's."""

from __future__ import annotations

import ctypes
import itertools
import math
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np

from .array_ops import View, device_view
from .memory import check_span, is_device
from .stream import enqueue, find_stream


class Operation(IntEnum):
    N, T, C, CONJG = range(4)
    HERMITAN = 2


class PointerMode(IntEnum):
    HOST, DEVICE = range(2)


class Math(IntEnum):
    DEFAULT_MATH, TENSOR_OP_MATH, PEDANTIC_MATH, TF32_TENSOR_OP_MATH, FP32_EMULATED_BF16X9_MATH = range(5)
    FP64_EMULATED_FIXEDPOINT_MATH = 8
    DISALLOW_REDUCED_PRECISION_REDUCTION = 16


class GemmAlgo(IntEnum):
    DFALT = -1
    DEFAULT = -1
    DEFAULT_TENSOR_OP = 99
    DFALT_TENSOR_OP = 99


class ComputeType(IntEnum):
    COMPUTE_16F = 64
    COMPUTE_16F_PEDANTIC = 65
    COMPUTE_32F = 68
    COMPUTE_32F_PEDANTIC = 69
    COMPUTE_64F = 70
    COMPUTE_64F_PEDANTIC = 71
    COMPUTE_32I = 72
    COMPUTE_32I_PEDANTIC = 73
    COMPUTE_32F_FAST_16F = 74
    COMPUTE_32F_FAST_16BF = 75
    COMPUTE_32F_FAST_TF32 = 77


class CudaDataType(IntEnum):
    """nvmath.CudaDataType."""

    CUDA_R_32F = 0
    CUDA_R_64F = 1
    CUDA_R_16F = 2
    CUDA_R_8I = 3
    CUDA_R_32I = 10
    CUDA_R_16BF = 14


class Status(IntEnum):
    SUCCESS = 0
    NOT_INITIALIZED = 1
    ALLOC_FAILED = 3
    INVALID_VALUE = 7
    ARCH_MISMATCH = 8
    MAPPING_ERROR = 11
    EXECUTION_FAILED = 13
    INTERNAL_ERROR = 14
    NOT_SUPPORTED = 15
    LICENSE_ERROR = 16


class cuBLASError(Exception):
    """A call that cuBLAS would answer with this status."""

    def __init__(self, status: int, why: str = "") -> None:
        self.status = Status(status)
        super().__init__(f"{self.status.name} ({int(status)}): {why}")


D, C = CudaDataType, ComputeType
DTYPES: dict[int, np.dtype[Any]] = {
    D.CUDA_R_32F: np.dtype(np.float32),
    D.CUDA_R_64F: np.dtype(np.float64),
    D.CUDA_R_16F: np.dtype(np.float16),
    D.CUDA_R_16BF: np.dtype(ml_dtypes.bfloat16),
    D.CUDA_R_8I: np.dtype(np.int8),
    D.CUDA_R_32I: np.dtype(np.int32),
}
# Per compute type: the (A and B, C) types it takes, and the type of alpha and beta.
_FLOAT32 = {(D.CUDA_R_32F, D.CUDA_R_32F)}
_MIXED = {
    (D.CUDA_R_16F, D.CUDA_R_16F), (D.CUDA_R_16F, D.CUDA_R_32F), (D.CUDA_R_16BF, D.CUDA_R_16BF),
    (D.CUDA_R_16BF, D.CUDA_R_32F), (D.CUDA_R_8I, D.CUDA_R_32F),
}  # fmt: skip
_HALF, _DOUBLE, _INT = ({(a, c)} for a, c in ((2, 2), (1, 1), (3, 10)))
SUPPORTED: dict[int, tuple[set[tuple[int, int]], Any]] = {
    C.COMPUTE_16F: (_HALF, np.float16),
    C.COMPUTE_16F_PEDANTIC: (_HALF, np.float16),
    C.COMPUTE_32F: (_FLOAT32 | _MIXED, np.float32),
    C.COMPUTE_32F_PEDANTIC: (_FLOAT32 | _MIXED, np.float32),
    C.COMPUTE_32F_FAST_16F: (_FLOAT32, np.float32),
    C.COMPUTE_32F_FAST_16BF: (_FLOAT32, np.float32),
    C.COMPUTE_32F_FAST_TF32: (_FLOAT32, np.float32),
    C.COMPUTE_64F: (_DOUBLE, np.float64),
    C.COMPUTE_64F_PEDANTIC: (_DOUBLE, np.float64),
    C.COMPUTE_32I: (_INT, np.int32),
    C.COMPUTE_32I_PEDANTIC: (_INT, np.int32),
}


# ---- handles ---------------------------------------------------------------------------------------------
@dataclass
class _Handle:
    stream: int = 0
    workspace: tuple[int, int] | None = None
    math: int = Math.DEFAULT_MATH


_handles: dict[int, _Handle] = {}
_next_handle = itertools.count(0x7000_0000, 0x40)


def _handle(handle: int) -> _Handle:
    if handle not in _handles:
        raise cuBLASError(Status.NOT_INITIALIZED, f"no handle {handle:#x}")
    return _handles[handle]


def get_property(type: int) -> int:
    """Return a part of the version: 0 is the major number, 1 the minor one, 2 the patch."""
    return (13, 0, 0)[type]


def create() -> int:
    handle = next(_next_handle)
    _handles[handle] = _Handle()
    return handle


def destroy(handle: int) -> None:
    _handle(handle)
    del _handles[handle]


def set_stream(handle: int, stream_id: int) -> None:
    """Set the stream, and reset the workspace as cuBLAS does."""
    find_stream(stream_id)
    _handle(handle).stream, _handle(handle).workspace = stream_id, None


def get_stream(handle: int) -> int:
    return _handle(handle).stream


def set_workspace(handle: int, workspace: int, workspace_size_in_bytes: int) -> None:
    if workspace % 256:
        raise cuBLASError(Status.INVALID_VALUE, "the workspace must be aligned to 256 bytes")
    check_span(workspace, workspace_size_in_bytes, "cuBLAS workspace")
    _handle(handle).workspace = (workspace, workspace_size_in_bytes)


def set_math_mode(handle: int, mode: int) -> None:
    _handle(handle).math = Math(mode & 15)


def get_math_mode(handle: int) -> int:
    return _handle(handle).math


def set_pointer_mode(handle: int, mode: int) -> None:
    _handle(handle)
    if mode != PointerMode.HOST:
        raise cuBLASError(Status.NOT_SUPPORTED, "the emulator takes alpha and beta from the host")


def get_pointer_mode(handle: int) -> int:
    _handle(handle)
    return PointerMode.HOST


# ---- matrix products -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Matrix:
    """A column-major operand; the leading dimension and the stride between batches count elements."""

    ptr: int
    rows: int
    columns: int
    leading: int
    stride: int
    dtype: np.dtype[Any]

    def array(self, batch: int) -> np.ndarray[Any, Any]:
        """Return a view [batch, rows, columns] of device memory."""
        item = self.dtype.itemsize
        shape = (batch, self.rows, self.columns)
        return device_view(View(self.ptr, shape, (self.stride * item, item, self.leading * item), self.dtype))


@dataclass(frozen=True, slots=True)
class GemmNode:
    """C = alpha op(A) op(B) + beta C per batch, accumulated in `compute`."""

    a: Matrix
    b: Matrix
    c: Matrix
    transposed: tuple[bool, bool]
    alpha: float
    beta: float
    batch: int
    compute: np.dtype[Any]
    tf32: bool
    workspace: tuple[int, int]
    pointer_arrays: bool = False

    def accesses(self) -> tuple[list[int], list[int]]:
        workspace = self.workspace[0]
        if not self.pointer_arrays:
            return [self.a.ptr, self.b.ptr], [self.c.ptr, workspace]
        a, b, c = self._tables()
        return [self.a.ptr, self.b.ptr, self.c.ptr, *a, *b], [*c, workspace]

    def _tables(self) -> list[list[int]]:
        pointers = View(0, (self.batch,), (8,), np.dtype(np.int64))
        return [device_view(replace(pointers, ptr=matrix.ptr)).tolist() for matrix in (self.a, self.b, self.c)]

    def run(self) -> None:
        check_span(*self.workspace, "cuBLAS workspace")
        if not self.pointer_arrays:
            self._multiply(self.a, self.b, self.c, self.batch)
            return
        for a, b, c in zip(*self._tables()):
            self._multiply(replace(self.a, ptr=a), replace(self.b, ptr=b), replace(self.c, ptr=c), 1)

    def _multiply(self, a: Matrix, b: Matrix, c: Matrix, batch: int) -> None:
        left, right = self._operand(a, batch, 0), self._operand(b, batch, 1)
        target = c.array(batch)
        with np.errstate(all="ignore"):
            result = np.matmul(left, right) * self.compute.type(self.alpha)
            if self.beta != 0:  # else C is not read: it may hold anything
                result = result + target.astype(self.compute) * self.compute.type(self.beta)
            target[...] = result.astype(target.dtype)

    def _operand(self, matrix: Matrix, batch: int, index: int) -> np.ndarray[Any, Any]:
        array = matrix.array(batch).astype(self.compute)
        if self.tf32:
            array = round_to_tf32(array)
        return array.swapaxes(1, 2) if self.transposed[index] else array


def round_to_tf32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float32 values rounded to TF32's 10 mantissa bits."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    return np.where(np.isfinite(array), ((bits + 0x1000) & 0xFFFFE000).view(np.float32), array)


def gemm_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, atype: int, lda: int,
    b: int, btype: int, ldb: int, beta: int, c: int, ctype: int, ldc: int, compute_type: int, algo: int,
) -> None:  # fmt: skip
    """cublasGemmEx; alpha and beta are addresses of host scalars of the compute type."""
    _gemm(
        handle, (transa, transb), (m, n, k), (alpha, beta), (a, b, c), (atype, btype, ctype), (lda, ldb, ldc),
        (0, 0, 0), 1, compute_type,
    )  # fmt: skip


def gemm_strided_batched_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, a: int, atype: int, lda: int,
    stride_a: int, b: int, btype: int, ldb: int, stride_b: int, beta: int, c: int, ctype: int, ldc: int,
    stride_c: int, batch_count: int, compute_type: int, algo: int,
) -> None:  # fmt: skip
    """cublasGemmStridedBatchedEx; strides count elements, an operand with stride 0 serves every batch."""
    apart = abs(stride_c) >= ldc * (n - 1) + m
    interleaved = m <= abs(stride_c) and abs(stride_c) * (batch_count - 1) + m <= ldc
    if batch_count > 1 and m and n and not apart and not interleaved:
        raise cuBLASError(Status.INVALID_VALUE, f"stride_c={stride_c}: the batches of C overlap")
    _gemm(
        handle, (transa, transb), (m, n, k), (alpha, beta), (a, b, c), (atype, btype, ctype), (lda, ldb, ldc),
        (stride_a, stride_b, stride_c), batch_count, compute_type,
    )  # fmt: skip


def gemm_batched_ex(
    handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int, aarray: int, atype: int,
    lda: int, barray: int, btype: int, ldb: int, beta: int, carray: int, ctype: int, ldc: int,
    batch_count: int, compute_type: int, algo: int,
) -> None:  # fmt: skip
    """cublasGemmBatchedEx; `aarray`, `barray`, `carray` are device arrays of device pointers."""
    _gemm(
        handle, (transa, transb), (m, n, k), (alpha, beta), (aarray, barray, carray), (atype, btype, ctype),
        (lda, ldb, ldc), (0, 0, 0), batch_count, compute_type, pointer_arrays=True,
    )  # fmt: skip


def _gemm(
    handle: int, trans: tuple[int, int], sizes: tuple[int, int, int], scalars: tuple[int, int],
    pointers: tuple[int, int, int], types: tuple[int, int, int], leading: tuple[int, int, int],
    strides: tuple[int, int, int], batch: int, compute_type: int, pointer_arrays: bool = False,
) -> None:  # fmt: skip
    settings = _handle(handle)
    m, n, k = sizes
    stream = find_stream(settings.stream)
    if stream.capture is not None and settings.workspace is None:
        raise cuBLASError(
            Status.ALLOC_FAILED, "no workspace is set, so cuBLAS would allocate one while capturing: "
            "call set_workspace after set_stream"
        )  # fmt: skip
    if compute_type not in SUPPORTED:
        raise cuBLASError(Status.NOT_SUPPORTED, f"compute type {compute_type}")
    combinations, scale_type = SUPPORTED[compute_type]
    if types[0] != types[1] or (types[0], types[2]) not in combinations:
        raise cuBLASError(
            Status.NOT_SUPPORTED,
            f"types A={types[0]}, B={types[1]}, C={types[2]} with {ComputeType(compute_type).name}",
        )
    if min(m, n, k, batch) < 0 or any(op not in (0, 1, 2) for op in trans):
        raise cuBLASError(Status.INVALID_VALUE, f"m={m}, n={n}, k={k}, batch={batch}, operations {trans}")
    stored = ((k, m) if trans[0] else (m, k), (n, k) if trans[1] else (k, n), (m, n))
    for name, (rows, _), ld in zip("abc", stored, leading):
        if ld < max(1, rows) or ld > 2**31 - 1:
            raise cuBLASError(Status.INVALID_VALUE, f"ld{name}={ld}, but the stored matrix has {rows} rows")
    if types[0] == D.CUDA_R_8I and (leading[0] % 4 or leading[1] % 4):
        raise cuBLASError(Status.NOT_SUPPORTED, "int8 operands need leading dimensions that are multiples of 4")
    if m == 0 or n == 0 or batch == 0:
        return
    if any(is_device(address) or not address for address in scalars):
        raise cuBLASError(Status.INVALID_VALUE, "alpha and beta must be host addresses in host pointer mode")
    alpha, beta = (_scalar(address, scale_type) for address in scalars)
    operands = [
        Matrix(ptr, rows, columns, ld, stride, DTYPES[dtype])
        for ptr, (rows, columns), ld, stride, dtype in zip(pointers, stored, leading, strides, types)
    ]
    for name, operand in zip("abc", operands):
        if not pointer_arrays and operand.ptr % operand.dtype.itemsize:
            raise cuBLASError(Status.INVALID_VALUE, f"{name} is not aligned to its element type")
    tf32 = compute_type == C.COMPUTE_32F_FAST_TF32 or (
        compute_type == C.COMPUTE_32F and settings.math == Math.TF32_TENSOR_OP_MATH and types[0] == D.CUDA_R_32F
    )
    compute = np.dtype(np.float32 if scale_type is np.float16 else scale_type)
    transposed = (bool(trans[0]), bool(trans[1]))
    node = GemmNode(
        *operands, transposed, alpha, beta, batch, compute, tf32, settings.workspace or (0, 0), pointer_arrays
    )
    enqueue(node, stream, count=True)


def _scalar(address: int, scale_type: Any) -> float:
    dtype = np.dtype(scale_type)
    value = np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0]
    return float(value) if math.isfinite(value) else math.nan
