"""Normalisation over axes: MVN, NormalizeL2, and the layer and RMS norms that passes make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.activation.softmax import block_rows
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, call, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_axes, integers, normalize_axes
from ovgpu.ops.base.strided import strides_of
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.reduction import as_rows, is_float, ones
from ovgpu.spec import Spec
from ovgpu.symbolic import minimum, product
from ovgpu.types import Type


def check_real(dtype: Type) -> None:
    """Raise OpError unless the element type is real or unknown."""
    if not (dtype.is_real() or dtype.is_dynamic()):
        raise OpError(f"element type {dtype.get_type_name()} is not real")


class _MVN(Op):
    """Base of mean-variance normalizations: ``x [...] -> [...]``, x minus its mean over some axes, divided by its
    standard deviation over them."""

    normalize_variance: bool
    eps: float

    kind: ClassVar[Literal["MVN", "RMS"]] = "MVN"
    half_precision = "bounded"

    def eps_is_inside(self) -> bool:
        """Return True if ``eps`` is added to the variance, False if to its square root."""
        return True

    def axes(self, rank: int, axes: Any) -> list[int]:
        """Return the axes to normalise over, in ascending order."""
        raise NotImplementedError

    def over(self, inputs: Sequence[Any]) -> list[int]:
        """Return the axes over which these inputs are normalised, in ascending order."""
        return self.axes(inputs[0].ndim, inputs[1] if len(inputs) > 1 else None)

    def terms(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """Return the scale and the shift of the result: each has an element per normalised element, or is None."""
        return None, None

    def evaluate(self, xp: Adapter, x: Array, axes: Array | None = None) -> tuple[Array, ...]:
        over = tuple(self.axes(x.ndim, axes))
        if not over:  # every element is its own mean
            return (x - x,)
        if x.size == 0:
            return (x.copy(),)
        centred = x - x.mean(axis=over, keepdims=True)
        if not self.normalize_variance:
            return (centred,)
        variance = (centred * centred).mean(axis=over, keepdims=True)
        deviation = xp.sqrt(variance + self.eps) if self.eps_is_inside() else xp.sqrt(variance) + self.eps
        return (centred / deviation,)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return ((outputs[0].type, (minimum(product(outputs[0].shape or ()), TILE),)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        over = self.over(inputs)
        rows, results = as_rows(x, over), as_rows(out, over)
        if results is None or not over or not is_float(x.dtype) or x.size == 0:
            return NotImplemented
        if rows is None:  # x cannot be viewed as rows, but out can: normalise a copy in place
            k(np.copyto, out, x)
            rows = results
        count, n = rows.shape
        block = int(block_rows(count, n))
        eps = self.eps if self.normalize_variance else None
        statistics = workspace[0].reshape(-1)[:block].reshape(block, 1)
        normalize_block = mvn_block if self.kind == "MVN" else rms_block
        arguments = (rows, results, ones(n, x.dtype), statistics, eps, self.eps_is_inside(), *self.terms(inputs))
        if count <= block:
            normalize_block(k, *arguments)
        else:
            k(norm_rows, normalize_block, *arguments)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out, over = inputs[0], outputs[0], self.over(inputs)
        mode = "INSIDE" if self.eps_is_inside() else "OUTSIDE"
        kind = self.kind if self.normalize_variance and over else "CENTRE"  # no axes: each element is its own mean
        if not x.flags.c_contiguous and not has_dense_rows(x, over):
            if normalize_transposed(k, kind, x, out, over, self.eps, mode, *self.terms(inputs)):
                return None
            k.copy(x, out)
            x = out
        return normalize(k, kind, x, out, over, self.eps, mode, *self.terms(inputs))


EPSILON = ("INSIDE", "OUTSIDE", "BOUND")  # how kernels use `eps`; normalization.cu numbers them in this order


def has_dense_rows(x: Any, over: Sequence[int]) -> bool:
    """Return whether ``over`` are the last axes, contiguous, in rows that begin at multiples of 16 bytes."""
    first = x.ndim - len(over)
    return (
        list(over) == list(range(first, x.ndim))
        and x[(0,) * first].flags.c_contiguous
        and all(step % 16 == 0 for extent, step in zip(x.shape[:first], x.strides) if extent > 1)
    )


def normalize(
    k: KernelRecorder,
    kind: str,
    x: Any,
    out: Any,
    over: Sequence[int],
    eps: float,
    mode: str,
    scale: Any = None,
    shift: Any = None,
) -> Any:
    """Record one of normalization.cu's kernels. Return NotImplemented if there is none for these arrays.

    kind: CENTRE, MVN, L2, RMS, or NONZERO, which gives 1 wherever x is not 0. mode: one of `EPSILON`. The n normalised
    elements along the axes ``over`` are multiplied by scale [n], and shift [n] is added, unless these are None. Both
    have the type of x.
    """
    if not launch.is_real(x):
        return NotImplemented
    axes = list(zip(x.shape, strides_of(x), strides_of(out)))
    inner = launch.merged([axes[i] for i in over])
    outer = launch.merged(launch.by_stride([a for i, a in enumerate(axes) if i not in over]))
    if not launch.fit(outer, inner):
        return NotImplemented
    if not x.size:
        return None
    columns, n = launch.size(outer), launch.size(inner)
    last = list(over) == list(range(x.ndim - len(over), x.ndim))
    rows = last and out.flags.c_contiguous and (x.flags.c_contiguous or has_dense_rows(x, over))
    template_arguments = f"{k.c_type(x.dtype)}, {kind}"
    numbers = (np.uint32(columns), np.uint32(n), launch.real(eps, x), np.int32(EPSILON.index(mode)))
    in_registers = launch.registers(k.multiprocessors, x, out, columns, n, scale, shift) if rows else None
    if in_registers is not None:
        block, vector, vectors = in_registers
        k.kernel(
            "normalization.cu",
            f"normalize_rows<{template_arguments}, {vector}, {vectors}>",
            (launch.ceildiv(columns, block[1]),),
            block,
            (x, out, scale, shift, launch.packed(outer), *numbers),
            early=True,
        )
        return None
    if rows and x.flags.c_contiguous and _normalize_in_parts(k, kind, x, out, columns, n, numbers[2:], scale, shift):
        return None
    block = (1, launch.power(n, low=32)) if inner[-1][1] == 1 else launch.column_block(k.multiprocessors, columns, n)
    k.kernel(
        "normalization.cu",
        f"normalize_columns<{template_arguments}>",
        (launch.ceildiv(columns, block[0]),),
        block,
        (x, out, scale, shift, launch.packed(outer), launch.packed(inner), *numbers),
        8 * block[0] * block[1],
    )
    return None


def _normalize_in_parts(
    k: KernelRecorder, kind: str, x: Any, out: Any, rows: int, n: int, eps: Sequence[Any], scale: Any, shift: Any
) -> bool:
    """Record two kernels that divide long dense rows among blocks. Return False if rows are short, or enough to keep
    the device busy with a block each."""
    vector = launch.vector_elements(n, x, out, scale, shift)
    chunk = launch.part_elements(k.multiprocessors, rows, n, vector)
    if chunk == n or kind == "NONZERO":
        return False
    grid, block = (launch.ceildiv(n, chunk), rows), (launch.PART_THREADS,)
    parts = k.scratch((rows, grid[0], 2), launch.real(0, x).dtype)
    numbers, types = (np.uint32(n), np.uint32(chunk)), f"{k.c_type(x.dtype)}, {kind}, {vector}"
    k.kernel("normalization.cu", f"normalize_parts<{types}>", grid, block, (x, parts, *numbers))
    k.kernel("normalization.cu", f"normalize_join<{types}>", grid, block, (x, out, scale, shift, parts, *numbers, *eps))
    return True


TRANSPOSING_THREADS = 256  # threads per block of `normalize_transposed`
SHARED_BYTES = 48 << 10  # shared memory that a block may have without opting in to more


def normalize_transposed(
    k: KernelRecorder, kind: str, x: Any, out: Any, over: Sequence[int], eps: float, mode: str, scale: Any, shift: Any
) -> bool:
    """Record the kernel that normalises and transposes, for CENTRE, MVN and RMS; arguments are as in `normalize`.

    Return False unless ``over`` are the last axes, can be merged into one, and the axis before them has unit stride in
    x. A block keeps its rows in shared memory; return False if not even 8 rows fit.
    """
    first = x.ndim - len(over)
    if not over or not x.size or not launch.is_real(x) or not out.flags.c_contiguous or over[0] != first:
        return False
    axes = list(zip(x.shape, strides_of(x), strides_of(out)))
    outer, inner = launch.merged(axes[:first]), launch.merged(axes[first:])
    if len(inner) > 1 or outer[-1][1] != 1 or not launch.fit(outer, inner):
        return False
    (n, step, _), count = inner[0], launch.size(outer)
    size = launch.real(0, x).itemsize
    rows = launch.power(count / (2 * k.multiprocessors), low=8, high=32)
    while rows > 8 and size * (TRANSPOSING_THREADS + (rows + 1) * n) > SHARED_BYTES:
        rows //= 2
    shared = size * (TRANSPOSING_THREADS + (rows + 1) * n)  # an element per thread for sums, then the padded rows
    if shared > SHARED_BYTES:
        return False
    k.kernel(
        "normalization.cu",
        f"normalize_transposed<{k.c_type(x.dtype)}, {kind}>",
        (launch.ceildiv(count, rows),),
        (rows, TRANSPOSING_THREADS // rows),
        (
            x,
            out,
            scale,
            shift,
            launch.packed(outer),
            np.int64(step),
            np.uint32(count),
            np.uint32(n),
            launch.real(eps, x),
            np.int32(EPSILON.index(mode)),
        ),
        shared,
    )
    return True


def norm_rows(normalize_block: Any, x: Any, out: Any, column: Any, statistics: Any, *options: Any) -> None:
    """Normalise every row by ``normalize_block``, in blocks of rows that stay in cache; arguments are as in
    `mvn_block`."""
    block = len(statistics)
    for start in range(0, len(x), block):
        rows = slice(start, start + block)
        normalize_block(call, x[rows], out[rows], column, statistics[: len(x) - start], *options)


def mvn_block(
    k: HostRecorder,
    x: Any,
    out: Any,
    column: Any,
    row_statistics: Any,
    eps: float | None,
    inside: bool,
    scale: Any,
    shift: Any,
) -> None:
    """Subtract from every row its mean and, unless ``eps`` is None, divide it by its deviation. ``k`` makes or records
    the calls.

    x, out: [M, N]; column: N ones; row_statistics: [M, 1], scratch; scale, shift: [N], or None.
    """
    k(np.matmul, x, column, row_statistics)
    k(np.divide, row_statistics, x.shape[1], row_statistics)
    k(np.subtract, x, row_statistics, out)
    rms_block(k, out, out, column, row_statistics, eps, inside, scale, shift)


def rms_block(
    k: HostRecorder,
    x: Any,
    out: Any,
    column: Any,
    row_statistics: Any,
    eps: float | None,
    inside: bool,
    scale: Any,
    shift: Any,
) -> None:
    """Divide every row by its root mean square, unless ``eps`` is None; arguments are as in `mvn_block`."""
    if eps is not None:
        k(np.vecdot, x, x, row_statistics[:, 0])
        k(np.divide, row_statistics, x.shape[1], row_statistics)
        if inside:
            k(np.add, row_statistics, eps, row_statistics)
        k(np.sqrt, row_statistics, row_statistics)
        if not inside:
            k(np.add, row_statistics, eps, row_statistics)
        k(np.divide, x, row_statistics, out)
    if scale is not None:
        k(np.multiply, out, scale, out)
    if shift is not None:
        k(np.add, out, shift, out)


@op("MVN", "opset1", "normalization/mvn-1")
class MVN(_MVN):
    """MVN-1, also in opset2: over ``reduction_axes``. By default over all axes after the batch with
    ``across_channels``, else over all axes after the channels."""

    eps: float
    normalize_variance: bool = False
    across_channels: bool = False
    reduction_axes: tuple[int, ...] = ()

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        if x.rank is not None:
            self.axes(x.rank, None)
        return (Spec(x.type, x.shape),)

    def axes(self, rank: int, axes: Any) -> list[int]:
        if self.reduction_axes:
            return normalize_axes(self.reduction_axes, rank)
        return list(range(1 if self.across_channels else 2, rank))


@op("MVN", "opset6", "normalization/mvn-6")
class MVN6(_MVN):
    """MVN-6: ``x [...], axes [n] -> [...]``; ``eps_mode`` says whether ``eps`` is added to the variance or to its
    root.

    >>> mvn([[1.0, 3], [5, 5]], [1], normalize_variance=True, eps=1.0, eps_mode="OUTSIDE_SQRT")
    [[-0.5, 0.5], [0.0, 0.0]]
    """

    eps_mode: Literal["inside_sqrt", "outside_sqrt"]

    host_inputs = (1,)

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        check_axes(axes, x.rank)
        return (Spec(x.type, x.shape),)

    def eps_is_inside(self) -> bool:
        return self.eps_mode == "inside_sqrt"

    def axes(self, rank: int, axes: Any) -> list[int]:
        return normalize_axes(integers(axes), rank)


@internal_op
class ScaledMVN(_MVN):
    """MVN over the last ``rank`` axes, then a scale and a shift: layer normalization (Ba et al. 2016).

    ``x [...], scale [n], shift [n] -> [...]``, for n elements along those axes; scale and shift may be absent. Passes
    fuse several layers into it. It is computed in one type and rounded once.
    """

    rank: int
    eps: float
    inside: bool
    normalize_variance: bool = True

    name: ClassVar[str] = "MVN"

    def infer_specs(self, x: Spec, scale: Spec | None, shift: Spec | None) -> tuple[Spec, ...]:
        return (Spec(x.type, x.shape),)

    def eps_is_inside(self) -> bool:
        return self.inside

    def axes(self, rank: int, axes: Any) -> list[int]:
        return list(range(rank - self.rank, rank))

    def terms(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        return inputs[1], inputs[2]

    def evaluate(
        self, xp: Adapter, x: Array, scale: Array | None = None, shift: Array | None = None
    ) -> tuple[Array, ...]:
        result = self.plain(xp, x)
        shape = x.shape[x.ndim - self.rank :]
        result = result if scale is None else result * scale.reshape(shape)
        return (result if shift is None else result + shift.reshape(shape),)

    def plain(self, xp: Adapter, x: Array) -> Array:
        """Return the norm before scale and shift."""
        return super().evaluate(xp, x)[0]


@internal_op
class ScaledRMS(ScaledMVN):
    """RMS normalization (Zhang & Sennrich 2019) over the last ``rank`` axes, then scaled and shifted as `ScaledMVN`."""

    name: ClassVar[str] = "RMS"
    kind: ClassVar[Literal["MVN", "RMS"]] = "RMS"

    def plain(self, xp: Adapter, x: Array) -> Array:
        if x.size == 0:
            return x.copy()
        mean = xp.square(x).mean(axis=tuple(self.axes(x.ndim, None)), keepdims=True)
        return x / (xp.sqrt(mean + self.eps) if self.inside else xp.sqrt(mean) + self.eps)


@op("NormalizeL2", "opset1", "normalization/normalize-l2-1")
class NormalizeL2(Op):
    """``x [...], axes [n] or [] -> [...]``: x divided by its Euclidean norm over the axes.

    ``eps`` is added to the sum of squares, or is its lower bound. Without any axes, elements other than zero become 1.

    >>> normalize_l2([[3.0, 4]], [1], eps=1e-9, eps_mode="add")
    [[0.6, 0.8]]
    """

    eps: float
    eps_mode: Literal["add", "max"]

    host_inputs = (1,)
    strided_outputs = True
    half_precision = "bounded"

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        check_axes(axes, x.rank, ranks=(0, 1))
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        over = tuple(normalize_axes(integers(axes), x.ndim))
        if not over:
            return (xp.asarray(x != 0).astype(x.dtype),)
        total = (x * x).sum(axis=over, keepdims=True)
        total = total + self.eps if self.eps_mode == "add" else xp.maximum(total, self.eps)
        return (x / xp.sqrt(total),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return ((outputs[0].type, outputs[0].shape or ()),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        over = tuple(normalize_axes(integers(inputs[1]), x.ndim))
        if not over or not is_float(x.dtype) or x.size == 0:
            return NotImplemented
        shape = [1 if i in over else d for i, d in enumerate(x.shape)]
        norm = workspace[0].reshape(-1)[: int(np.prod(shape))].reshape(shape)
        k(np.multiply, x, x, out)
        k(np.add.reduce, out, over, None, norm, True)
        k(np.add if self.eps_mode == "add" else np.maximum, norm, self.eps, out=norm)
        k(np.sqrt, norm, norm)
        k(np.divide, x, norm, out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        over = normalize_axes(integers(inputs[1]), inputs[0].ndim)
        mode = "INSIDE" if self.eps_mode == "add" else "BOUND"
        return normalize(k, "L2" if over else "NONZERO", inputs[0], outputs[0], over, self.eps, mode)
