"""The stand-in for cuBLASLt: nvmath's own names, types and signatures, and the calls that it refuses."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from . import blas_emu, blaslt_emu
from . import cupy_emu as cp
from .blas_emu import ComputeType, CudaDataType
from .blaslt_emu import Epilogue, MatmulDescAttribute, MatmulPreferenceAttribute, cuBLASLtError
from .state import CUDARuntimeError

FACTORS = np.array([1, 0], np.float32)
FUNCTIONS = [name for name, value in vars(blaslt_emu).items()
             if inspect.isfunction(value) and value.__module__ == blaslt_emu.__name__
             and not name.startswith("_") and name not in ("refuse", "living")]  # fmt: skip


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("nvmath.bindings.cublasLt", reason="compares with the installed nvmath-python")


def test_names_are_nvmaths(real: Any) -> None:
    assert len(FUNCTIONS) > 10
    for name in FUNCTIONS:
        expected = list(inspect.signature(getattr(real, name)).parameters)
        assert list(inspect.signature(getattr(blaslt_emu, name)).parameters) == expected, name
    for ours in (MatmulDescAttribute, MatmulPreferenceAttribute, Epilogue, blaslt_emu.ReductionScheme):
        theirs = getattr(real, ours.__name__)
        assert {name: value for name, value in ours.__members__.items() if theirs[name] != value} == {}


def test_types_are_nvmaths(real: Any) -> None:
    for ours, of in ((MatmulDescAttribute, "get_matmul_desc_attribute_dtype"),
                     (MatmulPreferenceAttribute, "get_matmul_preference_attribute_dtype")):  # fmt: skip
        for name in ours:
            assert np.dtype(getattr(blaslt_emu, of)(name)) == np.dtype(getattr(real, of)(name)), name
    for name in ("matmul_algo_dtype", "matmul_heuristic_result_dtype"):
        mine, other = getattr(blaslt_emu, name), getattr(real, name)
        assert mine.itemsize == other.itemsize
        assert [(n, mine.fields[n][1]) for n in mine.names] == [(n, other.fields[n][1]) for n in other.names]


# ---- refused calls


@dataclass
class Product:
    """The arguments of d [7, 3] = a [7, 5] @ b [5, 3] + bias [7], column-major."""

    desc: int
    a: int
    b: int
    c: int
    d: int
    preference: int

    @staticmethod
    def of(d: tuple[int, int, int] = (7, 3, 7), kind: int = CudaDataType.CUDA_R_32F) -> Product:
        desc = blaslt_emu.matmul_desc_create(ComputeType.COMPUTE_32F, CudaDataType.CUDA_R_32F)
        layouts = [blaslt_emu.matrix_layout_create(CudaDataType.CUDA_R_32F, *shape) for shape in ((7, 5, 7), (5, 3, 5))]
        c, out = (blaslt_emu.matrix_layout_create(kind, *d) for _ in range(2))
        return Product(desc, *layouts, c, out, blaslt_emu.matmul_preference_create())

    def set(self, name: MatmulDescAttribute | MatmulPreferenceAttribute, value: int, kind: Any = None) -> None:
        of_desc = isinstance(name, MatmulDescAttribute)
        part = "desc" if of_desc else "preference"
        number = np.array(value, kind or getattr(blaslt_emu, f"get_matmul_{part}_attribute_dtype")(name))
        function = getattr(blaslt_emu, f"matmul_{part}_set_attribute")
        function(self.desc if of_desc else self.preference, name, number.ctypes.data, number.nbytes)

    def algorithm(self, handle: int) -> Any:
        found, count = np.zeros(1, blaslt_emu.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        blaslt_emu.matmul_algo_get_heuristic(handle, self.desc, self.a, self.b, self.c, self.d, self.preference, 1,
                                             found.ctypes.data, count.ctypes.data)  # fmt: skip
        assert count[0] == 1
        return found


def test_refused_attributes() -> None:
    product = Product.of()
    for name, kind in ((MatmulDescAttribute.EPILOGUE, np.uint64), (MatmulDescAttribute.BIAS_POINTER, np.int32),
                       (MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, np.uint32)):  # fmt: skip
        with pytest.raises(cuBLASLtError, match=f"INVALID_VALUE.*{name.name} is"):
            product.set(name, 4, kind)
    with pytest.raises(cuBLASLtError, match="alignment of 24"):
        product.set(MatmulPreferenceAttribute.MIN_ALIGNMENT_A_BYTES, 24)
    with pytest.raises(cuBLASLtError, match="factors"):
        blaslt_emu.matmul_desc_create(ComputeType.COMPUTE_64F, CudaDataType.CUDA_R_32F)
    with pytest.raises(cuBLASLtError, match="ld=6"):
        blaslt_emu.matrix_layout_create(CudaDataType.CUDA_R_32F, 7, 5, 6)
    blaslt_emu.matmul_desc_destroy(product.desc)
    with pytest.raises(cuBLASLtError, match="is no _Desc"):
        product.set(MatmulDescAttribute.EPILOGUE, 4)


@pytest.mark.parametrize(("d", "kind", "message"), [
    ((7, 4, 7), CudaDataType.CUDA_R_32F, "INVALID_VALUE.*7 by 5 times 5 by 3 is not 7 by 4"),
    ((7, 3, 7), CudaDataType.CUDA_R_16F, "NOT_SUPPORTED.*types"),
])  # fmt: skip
def test_refused_products(d: Any, kind: int, message: str) -> None:
    with pytest.raises(cuBLASLtError, match=message):
        Product.of(d, kind).algorithm(blas_emu.create())


def test_refused_calls() -> None:
    """Calls without a workspace or a bias, or with addresses that break the declared alignment, are refused."""
    handle, product, stream = blas_emu.create(), Product.of(), cp.cuda.Stream(non_blocking=True)
    block, memory = cp.cuda.alloc(4096), cp.cuda.alloc(1 << 16)
    start, scratch = int(block.ptr), int(memory.ptr)
    product.set(MatmulDescAttribute.EPILOGUE, Epilogue.BIAS)
    product.set(MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES, 1 << 20)
    algorithm = product.algorithm(handle)

    def call(workspace: int = 1 << 16, a: int = start, algo: Any = algorithm) -> None:
        blaslt_emu.matmul(handle, product.desc, FACTORS.ctypes.data, a, product.a, start + 256, product.b,
                          FACTORS.ctypes.data + 4, start + 512, product.c, start + 512, product.d, algo.ctypes.data,
                          scratch, workspace, stream.ptr)  # fmt: skip

    for bias, message in ((0, "no bias"), (start + 772, "not aligned to 16")):
        product.set(MatmulDescAttribute.BIAS_POINTER, bias)
        with pytest.raises(cuBLASLtError, match=message):
            call()
    product.set(MatmulDescAttribute.BIAS_POINTER, start + 768)
    for changes, message in (({"workspace": 1 << 10}, "no workspace of 65536"), ({"a": start + 16}, "aligned to 256"),
                             ({"algo": np.zeros_like(algorithm)}, "the algorithm is not one")):  # fmt: skip
        with pytest.raises(cuBLASLtError, match=message):
            call(**changes)
    stream.begin_capture()
    call()
    graph = stream.end_capture()
    graph.launch(stream)
    product.set(MatmulDescAttribute.EPILOGUE, Epilogue.RELU_BIAS)
    with pytest.raises(cuBLASLtError, match="the algorithm is not one"):
        call()
    del memory
    with pytest.raises(CUDARuntimeError, match=r"cuBLASLt workspace.*freed"):
        graph.launch(stream)


def test_parts_of_sums_are_rounded_unless_refused() -> None:
    """The partial sum 2048 + 1 loses its 1 when it is rounded to f16; the whole sum does not."""
    kind, handle, results = CudaDataType.CUDA_R_16F, blas_emu.create(), []
    stream, memory = cp.cuda.Stream(non_blocking=True), cp.cuda.alloc(1 << 16)
    values = np.array([2048, 1, -2048, 1], np.float16)
    left, right, out = cp.asarray(values), cp.asarray(np.ones(4, np.float16)), cp.zeros((1,), np.float16)
    for scheme in (blaslt_emu.ReductionScheme.COMPUTE_TYPE, blaslt_emu.ReductionScheme.MASK):
        desc = blaslt_emu.matmul_desc_create(ComputeType.COMPUTE_32F, CudaDataType.CUDA_R_32F)
        a, b, c = (blaslt_emu.matrix_layout_create(kind, *shape) for shape in ((1, 4, 1), (4, 1, 4), (1, 1, 1)))
        product = Product(desc, a, b, c, c, blaslt_emu.matmul_preference_create())
        product.set(MatmulPreferenceAttribute.REDUCTION_SCHEME_MASK, scheme)
        for name in "ABCD":
            product.set(MatmulPreferenceAttribute[f"MIN_ALIGNMENT_{name}_BYTES"], 2)
        algorithm = product.algorithm(handle)
        blaslt_emu.matmul(handle, desc, FACTORS.ctypes.data, left.data.ptr, a, right.data.ptr, b,
                          FACTORS.ctypes.data + 4, out.data.ptr, c, out.data.ptr, c, algorithm.ctypes.data, memory.ptr,
                          1 << 16, stream.ptr)  # fmt: skip
        results.append(float(out.get()[0]))
    assert results == [2, 1]
