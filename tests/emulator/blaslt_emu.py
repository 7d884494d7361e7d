"""nvmath.bindings.cublasLt on the host: products with epilogues, as the backend describes and runs them.

Names, signatures, values and attribute types are nvmath's; matrices are column-major. The heuristics use everything
that the caller allows, such as rounding partial sums or relying on the alignment of addresses. A caller who allows too
much therefore gets inexact results or errors."""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from .array_ops import View, device_view
from .blas_emu import DTYPES, SUPPORTED, ComputeType, Matrix, Operation, Status, _handle, round_to_tf32
from .memory import check_span, is_device
from .stream import enqueue, find_stream

BIAS_ALIGNMENT_BYTES = 16
WORKSPACE_BYTES = 1 << 16  # workspace of every algorithm, if the caller allows so much


class MatmulDescAttribute(IntEnum):
    COMPUTE_TYPE, SCALE_TYPE, POINTER_MODE, TRANSA, TRANSB, TRANSC, FILL_MODE, EPILOGUE, BIAS_POINTER = range(9)


class MatmulPreferenceAttribute(IntEnum):
    SEARCH_MODE = 0
    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Epilogue(IntEnum):
    DEFAULT = 1
    RELU = 2
    BIAS = 4
    RELU_BIAS = 6
    GELU = 32
    GELU_BIAS = 36


class ReductionScheme(IntEnum):
    NONE, INPLACE, COMPUTE_TYPE, OUTPUT_TYPE, MASK = 0, 1, 2, 4, 7


class cuBLASLtError(Exception):
    """A call that cuBLASLt would answer with this status."""

    def __init__(self, status: int, why: str = "") -> None:
        self.status = Status(status)
        super().__init__(f"CUBLAS_STATUS_{self.status.name} ({int(status)}): {why}")


def refuse(why: str) -> cuBLASLtError:
    """Return an error of status INVALID_VALUE."""
    return cuBLASLtError(Status.INVALID_VALUE, why)


matmul_algo_dtype = np.dtype([("data_", "<u8", (8,))], align=True)
matmul_heuristic_result_dtype = np.dtype([
    ("algo", matmul_algo_dtype), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
    ("reserved", "<i4", (4,)),
], align=True)  # fmt: skip

_A, _P = MatmulDescAttribute, MatmulPreferenceAttribute
_DESC: dict[int, type[np.generic]] = {**dict.fromkeys(_A, np.int32), _A.EPILOGUE: np.uint32, _A.BIAS_POINTER: np.int64}
_PREFERENCE: dict[int, type[np.generic]] = {**dict.fromkeys(_P, np.uint32), _P.MAX_WORKSPACE_BYTES: np.uint64}


def get_version() -> int:
    return 130000


def get_matmul_desc_attribute_dtype(attr: int) -> type[np.generic]:
    return _DESC[attr]


def get_matmul_preference_attribute_dtype(attr: int) -> type[np.generic]:
    return _PREFERENCE[attr]


# ---- descriptors -----------------------------------------------------------------------------------------
@dataclass
class _Desc:
    compute: int
    scale: int
    values: dict[int, int] = field(default_factory=dict)

    def signature(self) -> tuple[Any, ...]:
        """Return the description without the address of the bias, which may differ between calls."""
        return self.compute, self.scale, *(self.values.get(name, 0) for name in (_A.TRANSA, _A.TRANSB, _A.EPILOGUE))


@dataclass(frozen=True)
class _Layout:
    type: int
    rows: int
    cols: int
    ld: int

    def matrix(self, ptr: int) -> Matrix:
        return Matrix(ptr, self.rows, self.cols, self.ld, 0, DTYPES[self.type])


@dataclass
class _Preference:
    values: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Algorithm:
    """Answer of the heuristics: the product (`of`), required alignments, workspace, and whether partial sums round."""

    of: tuple[Any, ...]
    alignments: tuple[int, ...]
    nbytes: int
    coarse: bool


_objects: dict[int, Any] = {}
_algorithms: dict[int, _Algorithm] = {}
_next_address = itertools.count(0x7200_0000, 0x40)


def _register(value: Any) -> int:
    address = next(_next_address)
    _objects[address] = value
    return address


@cache
def _number(algorithm: _Algorithm) -> int:
    """Return the number that stands for an algorithm in its structure; equal ones have the same."""
    number = next(_next_address)
    _algorithms[number] = algorithm
    return number


def _lookup(address: int, kind: type[Any]) -> Any:
    found = _objects.get(address)
    if not isinstance(found, kind):
        raise refuse(f"{address:#x} is no {kind.__name__}")
    return found


def living() -> int:
    """Return the number of descriptors, layouts and preferences that have not been destroyed."""
    return len(_objects)


def matmul_desc_create(compute_type: int, scale_type: int) -> int:
    expected = next((kind for kind, dtype in DTYPES.items() if dtype == SUPPORTED[compute_type][1]), None)
    if scale_type != expected:
        raise refuse(f"factors of type {scale_type} with {ComputeType(compute_type).name}")
    return _register(_Desc(compute_type, scale_type))


def matmul_desc_destroy(matmul_desc: int) -> None:
    _lookup(matmul_desc, _Desc)
    del _objects[matmul_desc]


def matmul_desc_set_attribute(matmul_desc: int, attr: int, buf: int, size_in_bytes: int) -> None:
    _lookup(matmul_desc, _Desc).values[attr] = _read(MatmulDescAttribute, _DESC, attr, buf, size_in_bytes)


def matrix_layout_create(type: int, rows: int, cols: int, ld: int) -> int:
    if type not in DTYPES or min(rows, cols) < 1 or ld < rows:
        raise refuse(f"a matrix of type {type}, {rows} by {cols}, ld={ld}")
    return _register(_Layout(type, rows, cols, ld))


def matrix_layout_destroy(mat_layout: int) -> None:
    _lookup(mat_layout, _Layout)
    del _objects[mat_layout]


def matmul_preference_create() -> int:
    return _register(_Preference())


def matmul_preference_destroy(pref: int) -> None:
    _lookup(pref, _Preference)
    del _objects[pref]


def matmul_preference_set_attribute(pref: int, attr: int, buf: int, size_in_bytes: int) -> None:
    value = _read(MatmulPreferenceAttribute, _PREFERENCE, attr, buf, size_in_bytes)
    if "ALIGNMENT" in MatmulPreferenceAttribute(attr).name and (value < 1 or value & value - 1):
        raise refuse(f"an alignment of {value} bytes")
    _lookup(pref, _Preference).values[attr] = value


def _read(names: type[IntEnum], types: dict[int, type[np.generic]], attr: int, buf: int, size: int) -> int:
    if attr not in types:
        raise refuse(f"the emulator knows no {names.__name__} {attr}")
    dtype = np.dtype(types[attr])
    if size != dtype.itemsize or not buf or is_device(buf):
        raise refuse(f"{names(attr).name} is {dtype.itemsize} bytes on the host, not {size} at {buf:#x}")
    return int(np.frombuffer(ctypes.string_at(buf, size), dtype)[0])


# ---- heuristics ------------------------------------------------------------------------------------------
def matmul_algo_get_heuristic(
    light_handle: int, operation_desc: int, adesc: int, bdesc: int, cdesc: int, ddesc: int, preference: int,
    requested_algo_count: int, heuristic_results_array: int, return_algo_count: int,
) -> None:  # fmt: skip
    _handle(light_handle)
    if requested_algo_count < 1 or not heuristic_results_array or not return_algo_count:
        raise refuse("there is no room for results")
    of = _checked(operation_desc, adesc, bdesc, cdesc, ddesc)
    wanted = _lookup(preference, _Preference).values
    names = (_P.MIN_ALIGNMENT_A_BYTES, _P.MIN_ALIGNMENT_B_BYTES, _P.MIN_ALIGNMENT_C_BYTES, _P.MIN_ALIGNMENT_D_BYTES)
    coarse = bool(wanted.get(_P.REDUCTION_SCHEME_MASK, ReductionScheme.MASK) & ReductionScheme.OUTPUT_TYPE)
    nbytes = min(wanted.get(_P.MAX_WORKSPACE_BYTES, 0), WORKSPACE_BYTES)
    found = np.zeros(1, matmul_heuristic_result_dtype)
    algorithm = _Algorithm(of, tuple(wanted.get(name, 256) for name in names), nbytes, coarse)
    found["algo"]["data_"][0, 0] = _number(algorithm)
    found["workspace_size"] = nbytes
    ctypes.memmove(heuristic_results_array, found.ctypes.data, found.nbytes)
    ctypes.memmove(return_algo_count, np.int32(1).tobytes(), 4)


def _checked(operation: int, *layouts: int) -> tuple[Any, ...]:
    """Return the description of a product: descriptor signature and layouts. Raise cuBLASLtError if it is invalid."""
    desc: _Desc = _lookup(operation, _Desc)
    a, b, c, d = (_lookup(layout, _Layout) for layout in layouts)
    trans = [desc.values.get(name, 0) for name in (_A.TRANSA, _A.TRANSB)]
    (m, k), (depth, n) = ((x.cols, x.rows) if t != Operation.N else (x.rows, x.cols) for x, t in zip((a, b), trans))
    if k != depth or any((x.rows, x.cols) != (m, n) for x in (c, d)):
        raise refuse(f"{m} by {k} times {depth} by {n} is not {c.rows} by {c.cols}, or {d.rows} by {d.cols}")
    if a.type != b.type or c.type != d.type or (a.type, d.type) not in SUPPORTED[desc.compute][0]:
        raise cuBLASLtError(Status.NOT_SUPPORTED, f"types {[x.type for x in (a, b, c, d)]}")
    if desc.values.get(_A.EPILOGUE, Epilogue.DEFAULT) not in list(Epilogue):
        raise cuBLASLtError(Status.NOT_SUPPORTED, "the emulator does not know this epilogue")
    return desc.signature(), a, b, c, d


# ---- products --------------------------------------------------------------------------------------------
def matmul(
    light_handle: int, compute_desc: int, alpha: int, a: int, adesc: int, b: int, bdesc: int, beta: int, c: int,
    cdesc: int, d: int, ddesc: int, algo: int, workspace: int, workspace_size_in_bytes: int, stream: int,
) -> None:  # fmt: skip
    """cublasLtMatmul: D = epilogue(alpha op(A) op(B) + beta C)."""
    _handle(light_handle)
    of = _checked(compute_desc, adesc, bdesc, cdesc, ddesc)
    number = int(np.frombuffer(ctypes.string_at(algo, 8), np.uint64)[0]) if algo else 0
    if number not in _algorithms or _algorithms[number].of != of:
        raise refuse("the algorithm is not one for this product")
    algorithm, desc = _algorithms[number], _lookup(compute_desc, _Desc)
    if workspace_size_in_bytes < algorithm.nbytes or not workspace or workspace % 256:
        raise refuse(f"no workspace of {algorithm.nbytes} bytes, aligned to 256")
    for name, ptr, alignment in zip("abcd", (a, b, c, d), algorithm.alignments):
        if ptr % alignment:
            raise refuse(f"{name} is not aligned to {alignment} bytes, as was said it would be")
    if any(is_device(address) or not address for address in (alpha, beta)):
        raise refuse("alpha and beta must be host addresses")
    if c == d and cdesc != ddesc and of[3] != of[4]:
        raise refuse("C and D are one matrix, which lies in two ways")
    epilogue = Epilogue(desc.values.get(_A.EPILOGUE, Epilogue.DEFAULT))
    bias = desc.values.get(_A.BIAS_POINTER, 0) if epilogue & Epilogue.BIAS else 0
    if epilogue & Epilogue.BIAS and (not bias or bias % BIAS_ALIGNMENT_BYTES):
        raise refuse(f"no bias, or one that is not aligned to {BIAS_ALIGNMENT_BYTES} bytes: {bias:#x}")
    scale = DTYPES[desc.scale]
    factors = [float(np.frombuffer(ctypes.string_at(x, scale.itemsize), scale)[0]) for x in (alpha, beta)]
    matrices = [layout.matrix(ptr) for layout, ptr in zip(of[1:], (a, b, c, d))]
    transposed = (bool(desc.values.get(_A.TRANSA, 0)), bool(desc.values.get(_A.TRANSB, 0)))
    tf32 = desc.compute == ComputeType.COMPUTE_32F_FAST_TF32
    node = LtNode(*matrices, transposed, *factors, bias, epilogue, scale, tf32, algorithm.coarse,
                  (workspace, algorithm.nbytes))  # fmt: skip
    enqueue(node, find_stream(stream), count=True)


@dataclass(frozen=True, slots=True)
class LtNode:
    """One cublasLtMatmul: D = epilogue(alpha op(A) op(B) + beta C); `coarse` rounds partial sums to the type of D."""

    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transposed: tuple[bool, bool]
    alpha: float
    beta: float
    bias: int
    epilogue: Epilogue
    compute: np.dtype[Any]
    tf32: bool
    coarse: bool
    workspace: tuple[int, int]

    def accesses(self) -> tuple[list[int], list[int]]:
        return [self.a.ptr, self.b.ptr, self.c.ptr, self.bias], [self.d.ptr, self.workspace[0]]

    def run(self) -> None:
        if self.workspace[1]:
            check_span(*self.workspace, "cuBLASLt workspace")
        left, right = (self._operand(x, t) for x, t in zip((self.a, self.b), self.transposed))
        out = self.d.array(1)[0]
        with np.errstate(all="ignore"):
            found = self.compute.type(self.alpha) * self._sums(left, right)
            if self.beta:  # else C is not read: it may hold anything
                found = found + self.compute.type(self.beta) * self.c.array(1)[0].astype(self.compute)
            if self.bias:
                bias = View(self.bias, (len(out), 1), (self.d.dtype.itemsize,) * 2, self.d.dtype)
                found = found + device_view(bias).astype(self.compute)
            out[...] = self._activated(found).astype(out.dtype)

    def _operand(self, matrix: Matrix, transposed: bool) -> np.ndarray[Any, Any]:
        array = matrix.array(1)[0].astype(self.compute)
        array = round_to_tf32(array) if self.tf32 else array
        return array.T if transposed else array

    def _sums(self, left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not self.coarse:
            return left @ right
        half = left.shape[1] // 2
        parts = left[:, :half] @ right[:half], left[:, half:] @ right[half:]
        return sum(part.astype(self.d.dtype).astype(self.compute) for part in parts)  # type: ignore[return-value]

    def _activated(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.epilogue & Epilogue.RELU:
            return np.fmax(x, 0)  # NaN becomes 0
        if self.epilogue & Epilogue.GELU:  # with a tanh of 11 bits, as on devices
            angle = np.tanh(np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3))
            return x.dtype.type(0.5) * x * (1 + angle.astype(np.float16).astype(x.dtype))
        return x
