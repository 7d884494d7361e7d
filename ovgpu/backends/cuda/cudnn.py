"""Convolutions through cuDNN, where it is installed: a handle and workspace per request, plans per compiled model."""

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
from ovgpu.backends.cuda.handles import lent
from ovgpu.errors import OpError
from ovgpu.ops.activation.activation import Relu
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.convolution._convolution import Convolved

WORKSPACE = 256 << 20  # bytes that a plan may ask for
PLANS = 256  # that a compiled model keeps
ALIGNMENT = 16  # bytes: cuDNN may read so many at once
X, KERNEL, OUT, BIAS, RESIDUAL = 1, 2, 3, 4, 5  # how plans name their tensors
_TYPES = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}


@dataclass(frozen=True, slots=True)
class CudnnEpilogue:
    """What cuDNN computes along with a convolution in f32, by engines that do not round to TF32: the sum with a tensor,
    if there are strides of one, then with a bias for each channel, then a Relu."""

    residual: tuple[int, ...] | None
    relu: bool

    @staticmethod
    def of(c: Convolved) -> tuple[CudnnEpilogue, dict[int, Array]] | None:
        """And its arrays; None if the layers are others. Those of 16-bit types would round in between."""
        assert c.epilogue is not None
        chain, last, relu = c.epilogue.chain, 0, False
        arrays: dict[int, Array] = {}
        if c.out.dtype.name != "float32" or c.transposed or chain.literals:
            return None
        for number, part in enumerate(chain.parts, chain.inputs):
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
            last = number
        steps = _steps(arrays[RESIDUAL]) if RESIDUAL in arrays else None
        if BIAS not in arrays or min(steps or (1,)) <= 0 or any(a.data.ptr % ALIGNMENT for a in arrays.values()):
            return None
        return CudnnEpilogue(steps, relu), arrays


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan is built for: arrays of images, channels, and two or three spatial axes. Padding is before and
    behind; a transposed convolution is the one that would give its gradient, so that ``out`` is what is padded."""

    kind: str
    transposed: bool
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    out: tuple[int, ...]
    x_steps: tuple[int, ...]
    out_steps: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    epilogue: CudnnEpilogue | None = None

    @staticmethod
    def of(c: Convolved, epilogue: CudnnEpilogue | None = None) -> Problem | None:
        """None for what cuDNN does not take: other types, broadcast or reversed arrays, such that begin anywhere or are
        empty, and shapes that follow from no padding."""
        kind = c.out.dtype.name
        if kind not in _TYPES or not prod(c.x.shape) * prod(c.kernel.shape) * prod(c.out.shape):
            return None
        if any(a.data.ptr % ALIGNMENT for a in (c.x, c.kernel, c.out)):
            return None
        whole, sparse = (c.out, c.x) if c.transposed else (c.x, c.out)
        ends = [_end(*numbers) for numbers in zip(
            whole.shape[2:], sparse.shape[2:], c.taps, c.strides, c.dilations, c.begin)]
        end = tuple(n for n in ends if n is not None)
        x_steps, out_steps = _steps(c.x), _steps(c.out)
        if len(end) < len(ends) or min(*x_steps, *out_steps) <= 0:
            return None
        kernel = (c.groups * c.kernel.shape[1], *c.kernel.shape[2:])
        found = Problem(kind, c.transposed, c.x.shape, kernel, c.out.shape, x_steps, out_steps, tuple(c.begin), end,
                        tuple(c.strides), tuple(c.dilations), epilogue)
        return found if len(end) > 1 else found.of_images()

    def of_images(self) -> Problem:
        """One of a single spatial axis with another one before it: cuDNN has none such."""
        x, kernel, out = ((*shape[:2], 1, shape[2]) for shape in (self.x, self.kernel, self.out))
        residual = None if self.epilogue is None else self.epilogue.residual
        x_steps, out_steps, residual_steps = ((*steps[:2], steps[2] * extent, steps[2]) for steps, extent in (
            (self.x_steps, self.x[2]), (self.out_steps, self.out[2]), (residual or self.out_steps, self.out[2])))
        epilogue = self.epilogue
        if epilogue is not None and residual is not None:
            epilogue = replace(epilogue, residual=residual_steps)
        return Problem(self.kind, self.transposed, x, kernel, out, x_steps, out_steps, (0, *self.begin), (0, *self.end),
                       (1, *self.strides), (1, *self.dilations), epilogue)


class Dnn:
    """The cuDNN handle of a request, on its stream. Sums are in f32; f32 is not rounded to TF32."""

    def __init__(self, stream: Any, plans: Plans | None = None) -> None:
        self.stream = stream
        self.plans = plans or Plans()
        self._room, self._workspace = 0, None

    @cached_property
    def handle(self) -> Any:
        """Made when a convolution is recorded: not every model has one."""
        cudnn = rt.cudnn()
        handle = lent(self, cudnn, lambda: cudnn.create_handle())
        cudnn.set_stream(handle, self.stream.ptr)
        return handle

    def convolve(self, c: Convolved) -> list[Callable[[], None]] | None:
        """The calls of a convolution and of what finishes it; None where cuDNN is not installed, or does not take
        them."""
        if rt.cudnn() is None:
            return None
        found: Any = (None, {}) if c.epilogue is None else CudnnEpilogue.of(c)
        problem = None if found is None else Problem.of(c, found[0])
        plan = None if problem is None else self.plans.find(problem, lambda: self.handle)
        if plan is None:
            return None
        arrays = {X: c.x, KERNEL: c.kernel, OUT: c.out, **found[1]}
        return [partial(plan, arrays, self._scratch(plan.nbytes), self.handle)]

    def _scratch(self, nbytes: int) -> Any:
        """The workspace of all plans, which run one after the other. What has been recorded keeps the one it has."""
        if self._workspace is None or self._room < nbytes:
            self._room, self._workspace = nbytes, rt.cupy().cuda.alloc(max(nbytes, 1))
        return self._workspace


class Plans:
    """The plans of a compiled model by problem. Its requests share them: to build one takes cuDNN about 15 ms."""

    def __init__(self) -> None:
        self._plans: dict[Problem, Plan | None] = {}
        self._lock = threading.Lock()  # held while a plan is built, so that no other request builds it as well

    def find(self, problem: Problem, handle: Callable[[], Any]) -> Plan | None:
        """Return the plan for a problem, built with ``handle()`` if it is new; None if cuDNN has none."""
        with self._lock:
            if problem not in self._plans:
                if len(self._plans) >= PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[problem] = self._built(problem, handle)
            return self._plans[problem]

    def _built(self, problem: Problem, handle: Callable[[], Any]) -> Plan | None:
        """Build a plan. Return None where cuDNN fails to, for reasons that differ by version: ovgpu's own kernels are
        always there."""
        try:
            return build(problem, handle())
        except Exception as e:
            # Engines that do not compute the layers after a convolution say so with various errors.
            expected = isinstance(e, rt.cudnn().cudnnGraphNotSupportedError) or "NOT_SUPPORTED" in str(e)
            if not expected and problem.epilogue is None:
                warnings.warn("cuDNN builds no plan for a convolution, which ovgpu's own kernels compute instead: "
                              f"{type(e).__name__}: {e}", RuntimeWarning, 2)
            return None


class Plan:
    """A convolution that cuDNN has built for some shapes. Requests run it on the streams of their own handles."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nbytes = int(graph.get_workspace_size())
        self._lock = threading.Lock()  # a graph is not to be executed by two threads at a time

    def __call__(self, arrays: dict[int, Array], workspace: Any, handle: Any) -> None:
        addresses = {name: int(array.data.ptr) for name, array in arrays.items()}
        with self._lock, translated():
            self.graph.execute(addresses, int(workspace.ptr), handle)


def build(problem: Problem, handle: Any) -> Plan:
    """The plan that cuDNN thinks best of those that sum in f32, in the same order every time. Exceptions of cuDNN's
    bindings, of several kinds, if it has none."""
    cudnn = rt.cudnn()
    kind, sums = getattr(cudnn.data_type, _TYPES[problem.kind]), cudnn.data_type.FLOAT
    notes = cudnn.numerical_note
    unwanted = [notes.REDUCED_PRECISION_REDUCTION, notes.NONDETERMINISTIC, notes.DOWN_CONVERT_INPUTS]
    if problem.kind == "float32":
        unwanted.append(notes.TENSOR_CORE)  # they would round to TF32
    graph = cudnn.pygraph(io_data_type=kind, intermediate_data_type=sums, compute_data_type=sums, handle=handle)
    x = graph.tensor(dim=problem.x, stride=problem.x_steps, data_type=kind, uid=X)
    kernel = graph.tensor(dim=problem.kernel, stride=_dense(problem.kernel), data_type=kind, uid=KERNEL)
    record = graph.conv_dgrad if problem.transposed else graph.conv_fprop
    out = record(x, kernel, pre_padding=problem.begin, post_padding=problem.end, stride=problem.strides,
                 dilation=problem.dilations, compute_data_type=sums)
    if problem.epilogue is not None:
        out = _add_epilogue(graph, problem, out, kind)
    out.set_uid(OUT).set_output(True).set_data_type(kind).set_dim(problem.out).set_stride(problem.out_steps)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.deselect_numeric_notes(unwanted)
    graph.deselect_workspace_greater_than(WORKSPACE)
    graph.check_support()
    graph.build_plans()
    return Plan(graph)


def _add_epilogue(graph: Any, problem: Problem, out: Any, kind: Any) -> Any:
    """The tensor that is a `CudnnEpilogue` of another one, in the order in which cuDNN has engines for it."""
    epilogue, sums = problem.epilogue, rt.cudnn().data_type.FLOAT
    assert epilogue is not None
    if epilogue.residual is not None:
        residual = graph.tensor(dim=problem.out, stride=epilogue.residual, data_type=kind, uid=RESIDUAL)
        out = graph.add(out, residual, compute_data_type=sums)
    channels = (1, problem.out[1], *(1 for _ in problem.out[2:]))
    bias = graph.tensor(dim=channels, stride=_dense(channels), data_type=kind, uid=BIAS)
    out = graph.bias(out, bias, compute_data_type=sums)
    return graph.relu(out, compute_data_type=sums) if epilogue.relu else out


@contextmanager
def translated() -> Iterator[None]:
    """What cuDNN raises in the block, of any kind, becomes OpError."""
    try:
        yield
    except Exception as e:
        raise OpError(f"cuDNN refused: {e}") from e


def _end(whole: int, sparse: int, taps: int, stride: int, dilation: int, begin: int) -> int | None:
    """What is padded behind an axis, if there are ``sparse`` places for the kernel on ``whole`` elements: as much as
    before, where that fits too, since cuDNN has more plans for it."""
    reach = (taps - 1) * dilation + 1
    for end in (begin, max((sparse - 1) * stride + reach - whole - begin, 0)):
        if (whole + begin + end - reach) // stride + 1 == sparse:
            return end
    return None


def _is_bias(x: Array, out: Array) -> bool:
    """Whether there is one dense element for each channel."""
    if x.ndim > out.ndim or x.size != out.shape[1]:
        return False
    return strides_of(x, out.shape) == (0, int(x.size > 1), *[0] * (out.ndim - 2))


def _steps(x: Array) -> tuple[int, ...]:
    """Strides in elements; where the extent is 1, those of a dense array, as cuDNN takes no 0."""
    found: list[int] = []
    dense = 1
    for extent, step in zip(reversed(x.shape), reversed(strides_of(x))):
        found.append(dense if extent == 1 else step)
        dense = found[-1] * extent
    return tuple(reversed(found))


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
