"""Matrix products through cuBLASLt, with a bias, a residual and an activation as epilogue in the same call.

Plans are cached by shapes, and built when a product is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import finalize

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.gemm import CUDA_TYPES, Batches, ComputeType, Gemm, Operand, compute_type_of
from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import RoundingCall

MAX_PLANS = 256  # cached per request
MAX_ALIGNMENT_BYTES = 256  # of matrices; larger alignments make no difference
BIAS_ALIGNMENT_BYTES = 16  # cuBLASLt's kernels read so much of a bias at once; its heuristic ignores the bias
# Compute capabilities for which cuBLASLt computes Gelu in the product's kernel. Elsewhere it launches a second kernel,
# which is slower than ovgpu's. The accuracy of its tanh is not documented, so that f32 is excluded.
GELU_CAPABILITIES, GELU_TYPES = ("9", "10"), ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Problem:
    """Key of a cached cuBLASLt plan: a product of matrices of a dtype, the library's name of its epilogue, the
    alignments of a, b, the addend and the result in bytes, and whether f32 may be rounded to TF32."""

    gemm: Gemm
    dtype: str
    epilogue: str
    alignments: tuple[int, ...]
    tf32: bool

    @property
    def sums(self) -> ComputeType:
        """The compute type."""
        return compute_type_of(np.dtype(self.dtype), self.tf32)


class Lt:
    """Products on a stream. A cuBLAS handle is a cuBLASLt handle as well; they share the workspace of ``nbytes``."""

    def __init__(self, handle: Any, stream: Any, workspace: Any, nbytes: int) -> None:
        self.handle, self.stream, self.workspace, self.nbytes = handle, stream, workspace, nbytes
        self._plans: dict[Problem, BlasLtPlan | None] = {}

    def matmul(
        self,
        a: Array,
        b: Array,
        out: Array,
        bias: Array | None,
        residual: Array | None,
        activation: str,
        tf32: bool = False,
    ) -> Callable[[], None] | None:
        """Return the call of ``out = activation(a @ b + bias + residual)``, see `Batches.of` for a, b and out.

        The bias is [N]; the residual has out's shape, but is not out. All have one dtype. Activations are "", "relu",
        and "gelu" in its tanh approximation. ``tf32``: f32 may be rounded to TF32. Return None if cuBLASLt is not
        installed, would take several calls, or its heuristic finds no algorithm.
        """
        lt = rt.cublaslt()
        others = [x for x in (bias, residual) if x is not None]
        if lt is None or any(x.dtype != a.dtype for x in (b, out, *others)) or not _supports(activation, a.dtype.name):
            return None
        if bias is not None and not _is_bias(bias, out):
            return None
        if residual is not None and residual.shape != out.shape:
            return None
        batches = Batches.of(a, b, out) if residual is None else Batches.of(a, b, out, residual)
        if batches is None or batches.extents or batches.transposed:
            return None  # if transposed, the bias would be along the other axis
        added = out if residual is None else residual
        epilogue = "_".join(filter(None, (activation.upper(), "BIAS" if bias is not None else ""))) or "DEFAULT"
        rounds = tf32 and a.dtype == np.float32
        problem = Problem(batches.gemm, a.dtype.name, epilogue, tuple(map(_alignment, (a, b, added, out))), rounds)
        operation = _operation(lt, problem, bias)
        plan = self._plan(problem, operation)
        record = RoundingCall if rounds else partial
        return None if plan is None else record(self._multiply, plan, operation, (a, b, added, out), bias)

    def _plan(self, problem: Problem, operation: Descriptor) -> BlasLtPlan | None:
        if problem not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[problem] = build(problem, operation, self.handle, self.nbytes)
        return self._plans[problem]

    def _multiply(self, plan: BlasLtPlan, operation: Descriptor, arrays: tuple[Array, ...], bias: Array | None) -> None:
        """Run a plan. ``operation`` holds the bias's address; the argument ``bias`` keeps its memory alive."""
        a, b, added, out = (x.data.ptr for x in arrays)
        left, right, addends, target = (layout.address for layout in plan.layouts)
        rt.cublaslt().matmul(
            self.handle,
            operation.address,
            plan.alpha,
            b,
            right,
            a,
            left,
            plan.beta,
            added,
            addends,
            out,
            target,
            plan.algorithm.ctypes.data,
            self.workspace.ptr,
            self.nbytes,
            self.stream.ptr,
        )


class Descriptor:
    """Owner of a cuBLASLt descriptor, which is destroyed with this object."""

    def __init__(self, address: int, destroy: Callable[[int], Any]) -> None:
        self.address = address
        finalize(self, destroy, address).atexit = False


@dataclass(frozen=True, eq=False)
class BlasLtPlan:
    """Layouts of a, b, the addend and the result, the addresses of alpha and beta, and cuBLASLt's algorithm."""

    layouts: tuple[Descriptor, ...]
    alpha: int
    beta: int
    algorithm: np.ndarray[Any, Any]


def build(problem: Problem, operation: Descriptor, handle: Any, nbytes: int) -> BlasLtPlan | None:
    """Return the first plan of the library's heuristic, None if it has none.

    It may use ``nbytes`` of workspace, and may split K only with partial sums in the compute type.
    """
    lt, gemm, sums = rt.cublaslt(), problem.gemm, problem.sums
    added = gemm.addends[0] if gemm.addends else gemm.leading
    # Column-major cuBLAS reads every matrix transposed.
    matrices = (
        (gemm.m, gemm.k, gemm.a),
        (gemm.k, gemm.n, gemm.b),
        (gemm.m, gemm.n, Operand(False, added)),
        (gemm.m, gemm.n, Operand(False, gemm.leading)),
    )
    layouts = tuple(_layout(lt, problem.dtype, *matrix) for matrix in matrices)
    left, right, addends, target = (layout.address for layout in layouts)
    result, count = np.zeros(1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
    preference = _preference(lt, problem, nbytes)
    try:
        lt.matmul_algo_get_heuristic(
            handle,
            operation.address,
            right,
            left,
            addends,
            target,
            preference.address,
            1,
            result.ctypes.data,
            count.ctypes.data,
        )
    except lt.cuBLASLtError as e:
        if "NOT_SUPPORTED" in str(e):
            return None
        raise
    if not count[0] or result["state"][0]:
        return None
    beta = sums.one if gemm.addends else sums.zero
    return BlasLtPlan(layouts, sums.one.ctypes.data, beta.ctypes.data, result)  # which begins with the algorithm


def _operation(lt: Any, problem: Problem, bias: Array | None) -> Descriptor:
    """Create the descriptor of ``out^T = b^T @ a^T``. The library's bias has one element per row of out^T."""
    sums, names, operations = problem.sums, lt.MatmulDescAttribute, rt.cublas().Operation
    scale_type = getattr(rt.cupy().cuda.runtime, sums.scale_type)
    descriptor = Descriptor(
        lt.matmul_desc_create(getattr(rt.cublas().ComputeType, sums.compute), scale_type), lt.matmul_desc_destroy
    )
    values = {
        names.TRANSA: operations.T if problem.gemm.b.transposed else operations.N,
        names.TRANSB: operations.T if problem.gemm.a.transposed else operations.N,
        names.EPILOGUE: lt.Epilogue[problem.epilogue],
    }
    if bias is not None:
        values[names.BIAS_POINTER] = bias.data.ptr
    for name, value in values.items():
        _set(lt.matmul_desc_set_attribute, descriptor, name, value, lt.get_matmul_desc_attribute_dtype)
    return descriptor


def _layout(lt: Any, dtype: str, rows: int, columns: int, operand: Operand) -> Descriptor:
    shape = (rows, columns) if operand.transposed else (columns, rows)
    address = lt.matrix_layout_create(getattr(rt.cupy().cuda.runtime, CUDA_TYPES[dtype]), *shape, operand.leading)
    return Descriptor(address, lt.matrix_layout_destroy)


def _preference(lt: Any, problem: Problem, nbytes: int) -> Descriptor:
    """Create the heuristic's preferences. The library's A is b, and its B is a."""
    names = lt.MatmulPreferenceAttribute
    a, b, added, out = problem.alignments
    descriptor = Descriptor(lt.matmul_preference_create(), lt.matmul_preference_destroy)
    for name, value in (
        (names.MAX_WORKSPACE_BYTES, nbytes),
        (names.REDUCTION_SCHEME_MASK, lt.ReductionScheme.COMPUTE_TYPE),
        (names.MIN_ALIGNMENT_A_BYTES, b),
        (names.MIN_ALIGNMENT_B_BYTES, a),
        (names.MIN_ALIGNMENT_C_BYTES, added),
        (names.MIN_ALIGNMENT_D_BYTES, out),
    ):
        _set(lt.matmul_preference_set_attribute, descriptor, name, value, lt.get_matmul_preference_attribute_dtype)
    return descriptor


def _set(
    function: Callable[..., None], descriptor: Descriptor, name: Any, value: int, dtype_of: Callable[[int], Any]
) -> None:
    """Set an attribute, in the dtype that the bindings declare for it."""
    stored = np.array(value, dtype_of(name))
    function(descriptor.address, name, stored.ctypes.data, stored.nbytes)


def _supports(activation: str, dtype: str) -> bool:
    if activation != "gelu":
        return True
    return dtype in GELU_TYPES and str(rt.cupy().cuda.Device().compute_capability)[:-1] in GELU_CAPABILITIES


def _is_bias(x: Array, out: Array) -> bool:
    """Return whether x has one dense element for each of several columns: for a single column, some versions of the
    library do not add the bias everywhere."""
    return bool(
        x.size == out.shape[-1] > 1
        and x.shape[-1] == x.size
        and x.flags.c_contiguous
        and not x.data.ptr % BIAS_ALIGNMENT_BYTES
    )


def _alignment(x: Array) -> int:
    """Return the largest power of two that divides the address, up to `MAX_ALIGNMENT_BYTES`."""
    return min(int(x.data.ptr) & -int(x.data.ptr), MAX_ALIGNMENT_BYTES)
