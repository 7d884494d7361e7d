"""Matrix products through cuBLASLt, which adds a bias and another matrix to them and applies an activation in the same
call: plans by shapes, made when a product is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.gemm import TYPES, Batches, Gemm, Operand, sums_of
from ovgpu.ops.base.op import Array

PLANS = 256  # that a request keeps
ALIGNMENT = 256  # bytes, of matrices: more does not count
BIAS_ALIGNMENT = 16  # bytes, which kernels read at once: of a bias, the library asks nothing
# Where the library computes a Gelu in the product's own kernel, by compute capability; elsewhere it takes a second one,
# slower than ovgpu's. How exact its tanh is, nobody says: f32 is not for it.
GELU_CAPABILITIES, GELU_TYPES = ("9", "10"), ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is made for: a product of matrices of one type and what follows it, by the library's name; and how a,
    b, what is added and the result are aligned."""

    gemm: Gemm
    kind: str
    epilogue: str
    alignments: tuple[int, ...]


class Lt:
    """Products on a stream, with a handle of cuBLAS, which is one of cuBLASLt as well, and its workspace."""

    def __init__(self, handle: Any, stream: Any, workspace: Any, nbytes: int) -> None:
        self.handle, self.stream, self.workspace, self.nbytes = handle, stream, workspace, nbytes
        self._plans: dict[Problem, Plan | None] = {}

    def matmul(self, a: Array, b: Array, out: Array, bias: Array | None, residual: Array | None,
               activation: str) -> Callable[[], None] | None:
        """The call of ``out = activation(a @ b + bias + residual)``: of a product as `Batches.of` describes it, with a
        bias [N] and a residual like out, of one type and not out itself; activations are "", "relu" and "gelu", that by
        tanh. None where the library is not installed or does not take them: as several calls, or by its heuristics."""
        lt = rt.cublaslt()
        others = [x for x in (bias, residual) if x is not None]
        if lt is None or any(x.dtype != a.dtype for x in (b, out, *others)) or not _takes(activation, a.dtype.name):
            return None
        if bias is not None and not _is_bias(bias, out):
            return None
        if residual is not None and residual.shape != out.shape:
            return None
        found = Batches.of(a, b, out) if residual is None else Batches.of(a, b, out, residual)
        if found is None or found.extents or found.transposed:  # transposed, the bias would be one of columns
            return None
        added = out if residual is None else residual
        epilogue = "_".join(filter(None, (activation.upper(), "BIAS" if bias is not None else ""))) or "DEFAULT"
        problem = Problem(found.gemm, a.dtype.name, epilogue, tuple(map(_alignment, (a, b, added, out))))
        operation = _operation(lt, problem, bias)
        plan = self._plan(problem, operation)
        return None if plan is None else partial(self._multiply, plan, operation, (a, b, added, out), bias)

    def _plan(self, problem: Problem, operation: Made) -> Plan | None:
        if problem not in self._plans:
            if len(self._plans) >= PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[problem] = build(problem, operation, self.handle, self.nbytes)
        return self._plans[problem]

    def _multiply(self, plan: Plan, operation: Made, arrays: tuple[Array, ...], bias: Array | None) -> None:
        """``operation`` has the bias's address, not its memory."""
        a, b, added, out = (x.data.ptr for x in arrays)
        left, right, beside, target = (layout.address for layout in plan.layouts)
        rt.cublaslt().matmul(self.handle, operation.address, plan.alpha, b, right, a, left, plan.beta, added, beside,
                             out, target, plan.algorithm.ctypes.data, self.workspace.ptr, self.nbytes, self.stream.ptr)


class Made:
    """Something that the library made, by its address, until nobody uses it."""

    def __init__(self, address: int, destroy: Callable[[int], Any]) -> None:
        self.address = address
        finalize(self, destroy, address).atexit = False


@dataclass(frozen=True, eq=False)
class Plan:
    """How the library multiplies: layouts of a, b, what is added and the result, factors' addresses, its algorithm."""

    layouts: tuple[Made, ...]
    alpha: int
    beta: int
    algorithm: np.ndarray[Any, Any]


def build(problem: Problem, operation: Made, handle: Any, nbytes: int) -> Plan | None:
    """The plan that the library thinks best of those that take so many bytes of workspace and round no part of a sum
    before it is complete; None if it has none."""
    lt, gemm, sums = rt.cublaslt(), problem.gemm, sums_of(np.dtype(problem.kind))
    added = gemm.beside[0] if gemm.beside else gemm.leading
    # Column-major cuBLAS sees every matrix transposed.
    matrices = ((gemm.m, gemm.k, gemm.a), (gemm.k, gemm.n, gemm.b),
                (gemm.m, gemm.n, Operand(False, added)), (gemm.m, gemm.n, Operand(False, gemm.leading)))
    layouts = tuple(_layout(lt, problem.kind, *matrix) for matrix in matrices)
    left, right, beside, target = (layout.address for layout in layouts)
    found, count = np.zeros(1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
    preference = _preference(lt, problem, nbytes)
    try:
        lt.matmul_algo_get_heuristic(handle, operation.address, right, left, beside, target, preference.address, 1,
                                     found.ctypes.data, count.ctypes.data)
    except lt.cuBLASLtError as e:
        if "NOT_SUPPORTED" in str(e):
            return None
        raise
    if not count[0] or found["state"][0]:
        return None
    beta = sums.one if gemm.beside else sums.zero
    return Plan(layouts, sums.one.ctypes.data, beta.ctypes.data, found)  # which begins with the algorithm


def _operation(lt: Any, problem: Problem, bias: Array | None) -> Made:
    """The library's description of a product: ``out^T = b^T @ a^T``, so that a bias of columns is one of rows."""
    sums, names, operations = sums_of(np.dtype(problem.kind)), lt.MatmulDescAttribute, rt.cublas().Operation
    kind = getattr(rt.cupy().cuda.runtime, sums.kind)
    made = Made(lt.matmul_desc_create(getattr(rt.cublas().ComputeType, sums.compute), kind), lt.matmul_desc_destroy)
    values = {names.TRANSA: operations.T if problem.gemm.b.transposed else operations.N,
              names.TRANSB: operations.T if problem.gemm.a.transposed else operations.N,
              names.EPILOGUE: lt.Epilogue[problem.epilogue]}
    if bias is not None:
        values[names.BIAS_POINTER] = bias.data.ptr
    for name, value in values.items():
        _set(lt.matmul_desc_set_attribute, made, name, value, lt.get_matmul_desc_attribute_dtype)
    return made


def _layout(lt: Any, kind: str, rows: int, columns: int, lies: Operand) -> Made:
    shape = (rows, columns) if lies.transposed else (columns, rows)
    address = lt.matrix_layout_create(getattr(rt.cupy().cuda.runtime, TYPES[kind]), *shape, lies.leading)
    return Made(address, lt.matrix_layout_destroy)


def _preference(lt: Any, problem: Problem, nbytes: int) -> Made:
    """``alignments`` as the library takes the matrices: b first."""
    names = lt.MatmulPreferenceAttribute
    a, b, added, out = problem.alignments
    made = Made(lt.matmul_preference_create(), lt.matmul_preference_destroy)
    for name, value in ((names.MAX_WORKSPACE_BYTES, nbytes),
                        (names.REDUCTION_SCHEME_MASK, lt.ReductionScheme.COMPUTE_TYPE),
                        (names.MIN_ALIGNMENT_A_BYTES, b), (names.MIN_ALIGNMENT_B_BYTES, a),
                        (names.MIN_ALIGNMENT_C_BYTES, added), (names.MIN_ALIGNMENT_D_BYTES, out)):
        _set(lt.matmul_preference_set_attribute, made, name, value, lt.get_matmul_preference_attribute_dtype)
    return made


def _set(function: Callable[..., None], made: Made, name: Any, value: int, dtype_of: Callable[[int], Any]) -> None:
    """Sets an attribute, in the type that the bindings say it has."""
    number = np.array(value, dtype_of(name))
    function(made.address, name, number.ctypes.data, number.nbytes)


def _takes(activation: str, kind: str) -> bool:
    if activation != "gelu":
        return True
    return kind in GELU_TYPES and str(rt.cupy().cuda.Device().compute_capability)[:-1] in GELU_CAPABILITIES


def _is_bias(x: Array, out: Array) -> bool:
    """Whether there is one dense element for each column, and more than one of them: for a single one, there are
    versions of the library that do not add it everywhere."""
    return bool(x.size == out.shape[-1] > 1 and x.shape[-1] == x.size and x.flags.c_contiguous
                and not x.data.ptr % BIAS_ALIGNMENT)


def _alignment(x: Array) -> int:
    """The largest power of two that divides the address."""
    return min(int(x.data.ptr) & -int(x.data.ptr), ALIGNMENT)
