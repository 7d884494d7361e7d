"""Convolutions through cuDNN, if it is installed: a handle and a workspace per request, plans per compiled model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.handles import acquire_handle
from ovgpu.errors import OpError
from ovgpu.ops.activation.activation import Relu
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.convolution._convolved import Convolved
from ovgpu.ops.convolution._implicit_gemm import CAPABILITY
from ovgpu.runtime.backend import RoundingCall
from ovgpu.types import Type

MAX_WORKSPACE_BYTES = 256 << 20  # that a plan may use
MAX_PLANS = 256  # cached per compiled model
ALIGNMENT_BYTES = 16  # of all arrays: cuDNN may read 16 bytes at once
X, KERNEL, OUT, BIAS, RESIDUAL = 1, 2, 3, 4, 5  # identifiers of the tensors in a plan
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}


@dataclass(frozen=True, slots=True)
class CudnnEpilogue:
    """Layers that cuDNN computes along with a convolution in f32, or one in 16 bits whose channels are adjacent.

    It adds a tensor of the strides ``residual``, if not None, and a bias per channel. A Relu follows if ``relu``. The
    layers are computed in f32, and the result is rounded once. Clamp is not among them: it took cuDNN ten times as long
    on an H100.
    """

    residual: tuple[int, ...] | None
    relu: bool

    @staticmethod
    def of(c: Convolved) -> tuple[CudnnEpilogue, dict[int, Array]] | None:
        """Return a convolution's epilogue and its arrays, None if cuDNN does not support these layers."""
        assert c.epilogue is not None
        chain, last, relu = c.epilogue.chain, 0, False
        arrays: dict[int, Array] = {}
        if not (c.out.dtype.name == "float32" or _strides(c.out)[1] == 1) or c.transposed or chain.literals:
            return None
        for value_index, part in enumerate(chain.parts, chain.inputs):
            others = [i for i in part.operands if i != last]
            if relu or len(part.operands) != len(others) + 1:
                return None
            if isinstance(part.op, Add) and 0 < others[0] < chain.inputs:
                array = c.epilogue.operands[others[0] - 1]
                name = RESIDUAL if BIAS in arrays or not _is_bias(array, c.out) else BIAS
                if name in arrays or (name == RESIDUAL and array.shape != c.out.shape):
                    return None
                arrays[name] = array
            elif isinstance(part.op, Relu):
                relu = True
            else:
                return None
            last = value_index
        tensor_strides = _strides(arrays[RESIDUAL]) if RESIDUAL in arrays else None
        if (
            BIAS not in arrays
            or min(tensor_strides or (1,)) <= 0
            or any(a.data.ptr % ALIGNMENT_BYTES for a in arrays.values())
        ):
            return None
        return CudnnEpilogue(tensor_strides, relu), arrays


@dataclass(frozen=True, slots=True)
class Problem:
    """Key of a cached cuDNN plan: a convolution of arrays [N, C, ...] with two or three spatial axes.

    ``x``, ``kernel`` and ``out`` are shapes, which have strides in elements; ``begin`` and ``end`` are padding. A
    transposed convolution is computed as the data gradient of a convolution; the padding then belongs to ``out``.
    ``tf32``: f32 may be rounded to TF32.
    """

    dtype: str
    transposed: bool
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    x_strides: tuple[int, ...]
    kernel_strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    epilogue: CudnnEpilogue | None = None
    tf32: bool = False

    @staticmethod
    def of(c: Convolved, epilogue: CudnnEpilogue | None = None, tf32: bool = False) -> Problem | None:
        """Describe a convolution. None if cuDNN does not support it: other dtypes, arrays that are broadcast, reversed,
        unaligned or empty, or an output shape that no padding at the end yields."""
        dtype = c.out.dtype.name
        if dtype not in _TYPES or not prod(c.x.shape) * prod(c.kernel.shape) * prod(c.out.shape):
            return None
        if any(a.data.ptr % ALIGNMENT_BYTES for a in (c.x, c.kernel, c.out)):
            return None
        whole, sparse = (c.out, c.x) if c.transposed else (c.x, c.out)
        ends = [
            _end(*sizes) for sizes in zip(whole.shape[2:], sparse.shape[2:], c.taps, c.strides, c.dilations, c.begin)
        ]
        end = tuple(n for n in ends if n is not None)
        x_strides, out_strides = _strides(c.x), _strides(c.out)
        if len(end) < len(ends) or min(*x_strides, *out_strides) <= 0:
            return None
        kernel = (c.groups * c.kernel.shape[1], *c.kernel.shape[2:])
        problem = Problem(
            dtype,
            c.transposed,
            c.x.shape,
            kernel,
            c.out.shape,
            x_strides,
            _strides(c.kernel)[1:],
            out_strides,
            tuple(c.begin),
            end,
            tuple(c.strides),
            tuple(c.dilations),
            epilogue,
            tf32 and dtype == "float32",
        )
        return problem if len(end) > 1 else problem.with_unit_axis()

    def with_unit_axis(self) -> Problem:
        """Insert a spatial axis of extent 1 before the only one: cuDNN has no convolutions along one axis."""
        x, kernel, out = ((*shape[:2], 1, shape[2]) for shape in (self.x, self.kernel, self.out))
        residual = None if self.epilogue is None else self.epilogue.residual
        x_strides, kernel_strides, out_strides, residual_strides = (
            (*tensor_strides[:2], tensor_strides[2] * extent, tensor_strides[2])
            for tensor_strides, extent in (
                (self.x_strides, self.x[2]),
                (self.kernel_strides, self.kernel[2]),
                (self.out_strides, self.out[2]),
                (residual or self.out_strides, self.out[2]),
            )
        )
        epilogue = self.epilogue
        if epilogue is not None and residual is not None:
            epilogue = replace(epilogue, residual=residual_strides)
        return Problem(
            self.dtype,
            self.transposed,
            x,
            kernel,
            out,
            x_strides,
            kernel_strides,
            out_strides,
            (0, *self.begin),
            (0, *self.end),
            (1, *self.strides),
            (1, *self.dilations),
            epilogue,
            self.tf32,
        )


class Dnn:
    """The cuDNN handle of a request, on its stream. Sums are in f32. f32 may be rounded to TF32 only if ``tf32``."""

    def __init__(self, stream: Any, plans: Plans | None = None, tf32: bool = False) -> None:
        self.stream, self.tf32 = stream, tf32
        self.plans = plans or Plans()
        self.workspace_bytes, self._workspace = 0, None

    @cached_property
    def handle(self) -> Any:
        """The cuDNN handle, created when the first convolution is recorded: not every model has one."""
        cudnn = rt.cudnn()
        handle = acquire_handle(self, cudnn, lambda: cudnn.create_handle())
        cudnn.set_stream(handle, self.stream.ptr)
        return handle

    def channels_last(self, capability: int) -> Sequence[Type]:
        """Return the types that tensor cores multiply, for which kernels of cuDNN or ovgpu read adjacent channels."""
        if rt.cudnn() is None:
            return (Type.f16, Type.bf16) if capability >= CAPABILITY else ()
        bf16, f32 = capability >= 80, capability >= 80 and self.tf32
        return [Type.f16, *([Type.bf16] if bf16 else ()), *([Type.f32] if f32 else ())]

    def convolve(self, c: Convolved) -> list[Callable[[], None]] | None:
        """Return the calls of a convolution and its epilogue; None if cuDNN is missing or does not support them."""
        if rt.cudnn() is None:
            return None
        layers: Any = (None, {}) if c.epilogue is None else CudnnEpilogue.of(c)  # the epilogue, and its arrays
        problem = None if layers is None else Problem.of(c, layers[0], self.tf32)
        plan = None if problem is None else self.plans.find(problem, lambda: self.handle)
        if problem is None or plan is None:
            return None
        arrays = {X: c.x, KERNEL: c.kernel, OUT: c.out, **layers[1]}
        record = RoundingCall if problem.tf32 else partial
        return [record(plan, arrays, self._scratch(plan.nbytes), self.handle)]

    def _scratch(self, nbytes: int) -> Any:
        """Return the workspace, shared by all plans, which run one after the other. It is replaced if it is too small;
        recorded calls keep the old one alive."""
        if self._workspace is None or self.workspace_bytes < nbytes:
            self.workspace_bytes, self._workspace = nbytes, rt.cupy().cuda.alloc(max(nbytes, 1))
        return self._workspace


class Plans:
    """Plans of a compiled model by problem. Its requests share them, as cuDNN takes about 15 ms to build one."""

    def __init__(self) -> None:
        self._plans: dict[Problem, CudnnPlan | None] = {}
        self._lock = threading.Lock()  # held while a plan is built, so that no two requests build the same one

    def find(self, problem: Problem, handle: Callable[[], Any]) -> CudnnPlan | None:
        """Return the plan for a problem, built with ``handle()`` if it is new; None if cuDNN has none."""
        with self._lock:
            if problem not in self._plans:
                if len(self._plans) >= MAX_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[problem] = self._build(problem, handle)
            return self._plans[problem]

    def _build(self, problem: Problem, handle: Callable[[], Any]) -> CudnnPlan | None:
        """Build a plan. Return None if cuDNN fails to, for reasons that depend on its version: ovgpu's own kernels then
        compute the convolution."""
        try:
            return build(problem, handle())
        except Exception as e:
            # Engines that do not support an epilogue raise various errors.
            expected = isinstance(e, rt.cudnn().cudnnGraphNotSupportedError) or "NOT_SUPPORTED" in str(e)
            if not expected and problem.epilogue is None:
                warnings.warn(
                    "cuDNN builds no plan for a convolution, which ovgpu's own kernels compute instead: "
                    f"{type(e).__name__}: {e}",
                    RuntimeWarning,
                    2,
                )
            return None


class CudnnPlan:
    """A cuDNN graph of a convolution, built for one `Problem`. Requests run it on the streams of their own handles."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nbytes = int(graph.get_workspace_size())
        self._lock = threading.Lock()  # two threads must not execute a graph at the same time

    def __call__(self, arrays: dict[int, Array], workspace: Any, handle: Any) -> None:
        addresses = {name: int(array.data.ptr) for name, array in arrays.items()}
        with self._lock, translated():
            self.graph.execute(addresses, int(workspace.ptr), handle)


def build(problem: Problem, handle: Any) -> CudnnPlan:
    """Build the plan that cuDNN ranks first among the deterministic ones that accumulate in f32. If there is none,
    cuDNN's bindings raise exceptions of several types."""
    cudnn = rt.cudnn()
    dtype, sums = getattr(cudnn.data_type, _TYPES[problem.dtype]), cudnn.data_type.FLOAT
    notes = cudnn.numerical_note
    deselected = [notes.REDUCED_PRECISION_REDUCTION, notes.NONDETERMINISTIC, notes.DOWN_CONVERT_INPUTS]
    if problem.dtype == "float32" and not problem.tf32:
        deselected.append(notes.TENSOR_CORE)  # tensor cores round f32 to TF32
    graph = cudnn.pygraph(io_data_type=dtype, intermediate_data_type=sums, compute_data_type=sums, handle=handle)
    x = graph.tensor(dim=problem.x, stride=problem.x_strides, data_type=dtype, uid=X)
    kernel = graph.tensor(dim=problem.kernel, stride=problem.kernel_strides, data_type=dtype, uid=KERNEL)
    record = graph.conv_dgrad if problem.transposed else graph.conv_fprop
    out = record(
        x,
        kernel,
        pre_padding=problem.begin,
        post_padding=problem.end,
        stride=problem.strides,
        dilation=problem.dilations,
        compute_data_type=sums,
    )
    if problem.epilogue is not None:
        out = _append_epilogue(graph, problem, out, dtype)
    out.set_uid(OUT).set_output(True).set_data_type(dtype).set_dim(problem.out).set_stride(problem.out_strides)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(deselected)
    graph.deselect_workspace_greater_than(MAX_WORKSPACE_BYTES)
    graph.check_support()
    graph.build_plans()
    return CudnnPlan(graph)


def _append_epilogue(graph: Any, problem: Problem, out: Any, dtype: Any) -> Any:
    """Append the epilogue to ``out`` in the order for which cuDNN has engines. Return its result."""
    epilogue, sums = problem.epilogue, rt.cudnn().data_type.FLOAT
    assert epilogue is not None
    if epilogue.residual is not None:
        residual = graph.tensor(dim=problem.out, stride=epilogue.residual, data_type=dtype, uid=RESIDUAL)
        out = graph.add(out, residual, compute_data_type=sums)
    channels = (1, problem.out[1], *(1 for _ in problem.out[2:]))
    bias = graph.tensor(dim=channels, stride=_dense(channels), data_type=dtype, uid=BIAS)
    out = graph.bias(out, bias, compute_data_type=sums)
    return graph.relu(out, compute_data_type=sums) if epilogue.relu else out


@contextmanager
def translated() -> Iterator[None]:
    """Raise the block's exceptions, of any type, as OpError."""
    try:
        yield
    except Exception as e:
        raise OpError(f"cuDNN refused: {e}") from e


def _end(whole: int, sparse: int, taps: int, stride: int, dilation: int, begin: int) -> int | None:
    """Return the padding at the end of an axis of ``whole`` elements on which the kernel has ``sparse`` positions.

    It equals ``begin`` where that fits too, since cuDNN has more plans for symmetric padding. None if none fits.
    """
    reach = (taps - 1) * dilation + 1
    for end in (begin, max((sparse - 1) * stride + reach - whole - begin, 0)):
        if (whole + begin + end - reach) // stride + 1 == sparse:
            return end
    return None


def _is_bias(x: Array, out: Array) -> bool:
    """Return whether ``x`` has one element per channel, and they are dense."""
    if x.ndim > out.ndim or x.size != out.shape[1]:
        return False
    return strides_of(x, out.shape) == (0, int(x.size > 1), *[0] * (out.ndim - 2))


def _strides(x: Array) -> tuple[int, ...]:
    """Return strides in elements. Axes of extent 1 get the strides of a dense array, or of an array whose channels are
    adjacent: cuDNN does not accept 0, and recognises the layout by the strides."""
    given, axes = strides_of(x), list(range(x.ndim))
    if x.ndim > 2 and given[1] == 1 and max(x.shape[2:]) > 1:
        axes = [0, *axes[2:], 1]
    strides, dense = dict[int, int](), 1
    for axis in reversed(axes):
        strides[axis] = dense if x.shape[axis] == 1 else given[axis]
        dense = strides[axis] * x.shape[axis]
    return tuple(strides[axis] for axis in range(x.ndim))


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
