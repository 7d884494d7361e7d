"""gemm on raw pointers: transposes, leading dimensions, strides, types, checks and capture."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from . import blas_emu as blas
from . import cupy_emu as cp
from .blas_emu import ComputeType, CudaDataType, Operation
from .state import CUDARuntimeError

RNG = np.random.default_rng(4)
TYPES = {
    np.dtype(np.float32): CudaDataType.CUDA_R_32F,
    np.dtype(np.float64): CudaDataType.CUDA_R_64F,
    np.dtype(np.float16): CudaDataType.CUDA_R_16F,
    np.dtype(ml_dtypes.bfloat16): CudaDataType.CUDA_R_16BF,
    np.dtype(np.int8): CudaDataType.CUDA_R_8I,
    np.dtype(np.int32): CudaDataType.CUDA_R_32I,
}
N, T = Operation.N, Operation.T


@pytest.fixture
def handle() -> Iterator[int]:
    handle = blas.create()
    yield handle
    blas.destroy(handle)


def gemm(
    on: int,
    a: cp.ndarray,
    b: cp.ndarray,
    c: cp.ndarray,
    trans: tuple[int, int] = (N, N),
    scale: tuple[float, float] = (1, 0),
    compute: int = ComputeType.COMPUTE_32F,
    **changes: int,
) -> None:
    """Compute C = alpha op(A) op(B) + beta C for row-major arrays; cuBLAS computes C' = op(B)' op(A)'."""
    scale_type = {ComputeType.COMPUTE_64F: np.float64, ComputeType.COMPUTE_32I: np.int32}.get(compute, np.float32)
    scalars = np.array(scale, scale_type)
    m, n = c.shape
    k = a.shape[1] if trans[0] == N else a.shape[0]
    arguments = dict(
        handle=on, transa=trans[1], transb=trans[0], m=n, n=m, k=k, alpha=scalars.ctypes.data,
        a=b.data.ptr, atype=TYPES[b.dtype], lda=b.strides[0] // b.itemsize,
        b=a.data.ptr, btype=TYPES[a.dtype], ldb=a.strides[0] // a.itemsize,
        beta=scalars.ctypes.data + scalars.itemsize, c=c.data.ptr, ctype=TYPES[c.dtype],
        ldc=c.strides[0] // c.itemsize, compute_type=compute, algo=blas.GemmAlgo.DEFAULT,
    )  # fmt: skip
    blas.gemm_ex(**{**arguments, **changes})


def operand(rows: int, columns: int, dtype: object, padding: int = 0) -> tuple[np.ndarray, cp.ndarray]:
    host = (RNG.standard_normal((rows, columns + padding)) * 3).astype(dtype)
    return host[:, :columns], cp.asarray(host)[:, :columns]


@pytest.mark.parametrize("trans", [(N, N), (N, T), (T, N), (T, T)])
@pytest.mark.parametrize("padding", [0, 4])
def test_transposes_and_leading_dimensions(handle: int, trans: tuple[int, int], padding: int) -> None:
    m, n, k = 3, 7, 5
    a, device_a = operand(*((m, k) if trans[0] == N else (k, m)), np.float32, padding)
    b, device_b = operand(*((k, n) if trans[1] == N else (n, k)), np.float32, padding)
    c, device_c = operand(m, n, np.float32, padding)
    gemm(handle, device_a, device_b, device_c, trans, (0.5, 2))
    expected = 0.5 * ((a.T if trans[0] else a) @ (b.T if trans[1] else b)) + 2 * c
    np.testing.assert_allclose(device_c.get(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "out", "compute", "tolerance"),
    [
        (np.float16, np.float16, ComputeType.COMPUTE_32F, 1e-3),
        (np.float16, np.float32, ComputeType.COMPUTE_32F, 1e-6),
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, ComputeType.COMPUTE_32F, 8e-3),
        (ml_dtypes.bfloat16, np.float32, ComputeType.COMPUTE_32F, 1e-6),
        (np.float64, np.float64, ComputeType.COMPUTE_64F, 1e-14),
        (np.int8, np.int32, ComputeType.COMPUTE_32I, 0),
        (np.int8, np.float32, ComputeType.COMPUTE_32F, 0),
    ],
)
def test_types(handle: int, dtype: object, out: object, compute: int, tolerance: float) -> None:
    (a, device_a), (b, device_b) = operand(4, 8, dtype), operand(8, 8, dtype)
    device_c = cp.empty((4, 8), out)  # poison: with beta 0 it must not be read
    gemm(handle, device_a, device_b, device_c, compute=compute)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(device_c.get().astype(np.float64), expected, rtol=tolerance, atol=4 * tolerance)


def test_nan_in_the_output_does_not_survive_beta_0(handle: int) -> None:
    (a, device_a), (b, device_b) = operand(3, 4, np.float32), operand(4, 5, np.float32)
    device_c = cp.full((3, 5), np.nan, np.float32)
    gemm(handle, device_a, device_b, device_c, scale=(1, 0))
    np.testing.assert_allclose(device_c.get(), a @ b, rtol=1e-5, atol=1e-5)


def test_tf32_loses_bits(handle: int) -> None:
    (a, device_a), (b, device_b) = operand(3, 64, np.float32), operand(64, 5, np.float32)
    device_c = cp.empty((3, 5), np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    gemm(handle, device_a, device_b, device_c)
    full = np.abs(device_c.get() - exact).max()
    blas.set_math_mode(handle, blas.Math.TF32_TENSOR_OP_MATH)
    gemm(handle, device_a, device_b, device_c)
    assert full < 1e-4 < np.abs(device_c.get() - exact).max() < 0.5


def strided(handle: int, a: cp.ndarray, b: cp.ndarray, c: cp.ndarray, **changes: int) -> None:
    scalars = np.array([1, 0], np.float32)
    batch, m, n = c.shape
    arguments = dict(
        handle=handle,
        transa=N,
        transb=N,
        m=n,
        n=m,
        k=a.shape[2],
        alpha=scalars.ctypes.data,
        a=b.data.ptr,
        atype=0,
        lda=b.shape[2],
        stride_a=b.strides[0] // 4,
        b=a.data.ptr,
        btype=0,
        ldb=a.shape[2],
        stride_b=a.strides[0] // 4,
        beta=scalars.ctypes.data + 4,
        c=c.data.ptr,
        ctype=0,
        ldc=n,
        stride_c=c.strides[0] // 4,
        batch_count=batch,
        compute_type=ComputeType.COMPUTE_32F,
        algo=-1,
    )
    blas.gemm_strided_batched_ex(**{**arguments, **changes})


def test_strided_batches(handle: int) -> None:
    a, b = (
        RNG.standard_normal((6, 3, 4)).astype(np.float32),
        RNG.standard_normal((1, 4, 5)).astype(np.float32),
    )
    c = cp.empty((6, 3, 5), np.float32)
    strided(handle, cp.asarray(a), cp.asarray(b), c, stride_a=0)
    np.testing.assert_allclose(c.get(), a @ b, rtol=1e-5, atol=1e-5)
    strided(handle, cp.asarray(a)[::-2], cp.asarray(b), c[:3], stride_a=0)
    np.testing.assert_allclose(c.get()[:3], a[::-2] @ b, rtol=1e-5, atol=1e-5)
    with pytest.raises(blas.cuBLASError, match="batches of C overlap"):
        strided(handle, cp.asarray(a), cp.asarray(b), c, stride_a=0, stride_c=14)


def test_batches_of_pointers(handle: int) -> None:
    a, b = (
        RNG.standard_normal((2, 3, 4)).astype(np.float32),
        RNG.standard_normal((2, 4, 5)).astype(np.float32),
    )
    device_a, device_b, c = cp.asarray(a), cp.asarray(b), cp.empty((2, 3, 5), np.float32)
    tables = [cp.asarray(np.array([x[1].data.ptr, x[0].data.ptr], np.uint64)) for x in (device_b, device_a, c)]
    scalars = np.array([1, 0], np.float32)
    blas.gemm_batched_ex(
        handle, N, N, 5, 3, 4, scalars.ctypes.data, tables[0].data.ptr, 0, 5, tables[1].data.ptr, 0, 4,
        scalars.ctypes.data + 4, tables[2].data.ptr, 0, 5, 2, ComputeType.COMPUTE_32F, -1,
    )  # fmt: skip
    np.testing.assert_allclose(c.get(), a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"lda": 6}, "INVALID_VALUE.*lda=6, but the stored matrix has 7 rows"),
        ({"ldb": 4}, "INVALID_VALUE.*ldb=4"),
        ({"ldc": 6}, "INVALID_VALUE.*ldc=6"),
        ({"m": -1}, "INVALID_VALUE"),
        ({"transa": 5}, "INVALID_VALUE"),
        ({"atype": CudaDataType.CUDA_R_16F}, "NOT_SUPPORTED.*types A=2, B=0"),
        ({"ctype": CudaDataType.CUDA_R_16F}, "NOT_SUPPORTED.*types A=0, B=0, C=2"),
        ({"compute_type": ComputeType.COMPUTE_64F}, "NOT_SUPPORTED"),
        ({"compute_type": 1}, "NOT_SUPPORTED.*compute type 1"),
        ({"handle": 5}, "NOT_INITIALIZED"),
        ({"alpha": 0}, "alpha and beta must be host addresses"),
    ],
)
def test_arguments_that_cublas_rejects(handle: int, changes: dict[str, int], status: str) -> None:
    (_, a), (_, b), (_, c) = operand(3, 5, np.float32), operand(5, 7, np.float32), operand(3, 7, np.float32)
    with pytest.raises(blas.cuBLASError, match=status):
        gemm(handle, a, b, c, **changes)


def test_a_wrong_leading_dimension_leaves_the_array(handle: int) -> None:
    (_, a), (_, b), (_, c) = operand(3, 5, np.float32), operand(5, 7, np.float32), operand(3, 7, np.float32)
    with pytest.raises(CUDARuntimeError, match="no living device array covers"):
        gemm(handle, a, b, c, lda=9)


def test_capture(handle: int) -> None:
    (_, a), (b, device_b) = operand(3, 4, np.float32), operand(4, 5, np.float32)
    c = cp.empty((3, 5), np.float32)
    stream = cp.cuda.Stream(non_blocking=True)
    workspace = cp.cuda.alloc(1 << 12)
    blas.set_workspace(handle, workspace.ptr, 1 << 12)
    blas.set_stream(handle, stream.ptr)  # resets the workspace
    stream.begin_capture()
    with pytest.raises(blas.cuBLASError, match="set_workspace after set_stream"):
        gemm(handle, a, device_b, c)
    stream.end_capture()
    blas.set_workspace(handle, workspace.ptr, 1 << 12)
    stream.begin_capture()
    gemm(handle, a, device_b, c)
    graph = stream.end_capture()
    assert graph.node_count == 1
    for seed in (1, 2):
        host = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)
        a.set(host)
        graph.launch(stream)
        np.testing.assert_allclose(c.get(), host @ b, rtol=1e-5, atol=1e-5)
    del workspace
    with pytest.raises(CUDARuntimeError, match=r"cuBLAS workspace.*freed"):
        graph.launch(stream)


def test_workspace_checks(handle: int) -> None:
    workspace = cp.cuda.alloc(1 << 12)
    with pytest.raises(blas.cuBLASError, match="aligned to 256 bytes"):
        blas.set_workspace(handle, workspace.ptr + 16, 256)
    with pytest.raises(CUDARuntimeError, match="cuBLAS workspace"):
        blas.set_workspace(handle, workspace.ptr, 1 << 13)


def test_signatures_are_nvmaths() -> None:
    nvmath = pytest.importorskip("nvmath", reason="compares with the installed nvmath-python")
    cublas = pytest.importorskip("nvmath.bindings.cublas", reason="compares with the installed nvmath-python")
    for name in (
        "create", "destroy", "set_stream", "get_stream", "set_workspace", "set_math_mode", "get_math_mode",
        "set_pointer_mode", "get_pointer_mode", "gemm_ex", "gemm_strided_batched_ex", "gemm_batched_ex",
    ):  # fmt: skip
        expected = list(inspect.signature(getattr(cublas, name)).parameters)
        assert list(inspect.signature(getattr(blas, name)).parameters) == expected, name
    kinds = [
        (getattr(cublas, kind.__name__), kind)
        for kind in (
            blas.Operation,
            blas.PointerMode,
            blas.Math,
            blas.GemmAlgo,
            blas.ComputeType,
            blas.Status,
        )
    ]
    for theirs, ours in [*kinds, (nvmath.CudaDataType, CudaDataType)]:
        assert {name: value for name, value in ours.__members__.items() if theirs[name] != value} == {}
