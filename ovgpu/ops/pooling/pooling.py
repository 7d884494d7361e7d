"""Pooling over spatial axes: the maximum or mean of sliding windows, or of parts of about equal length (adaptive)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops import reduction
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.storage import decoded_dtype
from ovgpu.ops.base.strided import CHUNK_BYTES, THREADS, Axes, blocks, has_chunks, strides_of
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.windows import MAX_AXES, Windowed, check_number
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.pooling._pooling import Adaptive, Sliding, Windows, fold_blocks
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, apply, ceildiv, maximum, minimum, product
from ovgpu.types import Type


class _Pool(Op):
    """Base: ``x [N, C, ...] -> [N, C, ...]``, one element per window over one to three spatial axes."""

    strided_outputs = True
    keeps_layout = True
    fold: ClassVar[np.ufunc]
    fold_name: ClassVar[str]
    """The name of the function of NumPy and CuPy that reduces an axis with `fold`."""
    whole: ClassVar[str]
    """The reduction in reduction.cu that computes the same over whole axes."""

    def counts(self, x: Array, *given: Any) -> Sequence[int]:
        """Return the number of windows along each spatial axis; ``given`` are the inputs after x."""
        raise NotImplementedError

    def windows(self, sizes: Sequence[int], counts: Sequence[int]) -> Sequence[Windows]:
        """Return the windows along each spatial axis, from the extents of the input and of the output."""
        raise NotImplementedError

    def limits(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        """Return the initial value of reductions, and the result of an empty window."""
        return 0, 0

    def start(self, axis_windows: Windows, dtype: np.dtype[Any]) -> Array:
        """Return the initial value of each window's reduction, [count]."""
        return np.where(axis_windows.inside() > 0, *self.limits(dtype)).astype(dtype)

    def divisor(self, windows: Sequence[Windows], sizes: Sequence[int]) -> Any:
        """Return the divisor of the reduced windows: a number, an array with an element per window, or None."""
        return None

    def folded(self, xp: Adapter, x: Array, windows: Sequence[Windows]) -> Array:
        """Return x reduced over every window."""
        for axis, axis_windows in enumerate(windows, start=2):
            (indices, inside), start, rest = (
                axis_windows.indices(),
                self.start(axis_windows, x.dtype),
                (1,) * (x.ndim - axis - 1),
            )
            start, inside = (
                xp.asarray(a).reshape(*shape, *rest)
                for a, shape in ((start, (axis_windows.count, 1)), (inside, inside.shape))
            )
            if x.size:
                gathered = xp.where(inside, xp.take(x, xp.asarray(indices), axis=axis), start)
                x = getattr(xp, self.fold_name)(gathered, axis=axis + 1)
            else:
                x = xp.broadcast_to(start[:, 0], (*x.shape[:axis], axis_windows.count, *x.shape[axis + 1 :]))
        return x

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the buffers between passes, each of which reduces one axis, for as many channels as stay in cache."""
        x, out = inputs[0], outputs[0].shape
        assert x is not None and x.shape is not None and out is not None
        planes = [product((*out[2:i], *x.shape[i:])) for i in range(3, len(out))]
        return tuple((x.type, (maximum(plane, minimum(out[0] * out[1] * plane, TILE)),)) for plane in planes)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not reduction.is_float(x.dtype) or len(outputs) > 1 or not x.size:
            return NotImplemented
        windows = self.windows(x.shape[2:], out.shape[2:])
        axes = [i for i, axis_windows in enumerate(windows) if not axis_windows.is_identity] or [0]
        passes = [windows[i].folding(self.fold, 1 + i, self.start(windows[i], x.dtype)) for i in axes]
        between = []
        for i in axes[:-1]:
            plane = (*out.shape[2 : 3 + i], *x.shape[3 + i :])
            channels = workspace[i].size // max(prod(plane), 1)
            between.append(workspace[i][: channels * prod(plane)].reshape(channels, *plane))
        divisor = self.divisor(windows, x.shape[2:])
        k(fold_blocks, passes, x, out, between, None if divisor is None else np.asarray(divisor, x.dtype))
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not launch.is_plain(x):
            return NotImplemented
        if out.size:
            windows = self.windows(x.shape[2:], out.shape[2:])
            if len(outputs) == 1 and self.is_whole(windows, x) and _reduce_whole_axes(k, self.whole, x, out):
                return None
            count = self.count(windows, x.shape[2:])
            if len(outputs) == 1 and len(windows) < MAX_AXES and strides_of(x)[1] == 1 == strides_of(out)[1]:
                if self.launch_chunks(k, x, out, windows):
                    return None
                # Channels become the last axis, along which nothing is pooled, so that neighbouring threads take
                # neighbouring channels.
                channels = x.shape[1]
                x, out = (a.transpose(0, *range(2, a.ndim), 1)[:, None] for a in (x, out))
                windows = [*windows, Sliding(channels, channels, 1, 1)]
            self.launch(k, x, [out, *outputs[1:]], windows, count)
        return None

    def launch_chunks(self, k: KernelRecorder, x: Any, out: Any, windows: Sequence[Windows]) -> bool:
        """Record the kernel of pooling.cu for chunks of adjacent channels. Return False if there is none."""
        return False

    def is_whole(self, windows: Sequence[Windows], x: Array) -> bool:
        """Return whether one window covers the data exactly, so that the result is a reduction over all spatial
        axes."""
        return launch.is_real(x) and all(
            axis_windows.count == 1 and axis_windows.inside() == axis_windows.extent for axis_windows in windows
        )

    def count(self, windows: Sequence[Windows], sizes: Sequence[int]) -> int:
        """Return the divisor that all windows of a mean share, or 0 to divide each by its number of elements inside the
        data."""
        return 0

    def launch(self, k: KernelRecorder, x: Any, outputs: Sequence[Any], windows: Sequence[Windows], count: int) -> None:
        """Record the kernel of pooling.cu."""
        raise NotImplementedError


def _reduce_whole_axes(k: KernelRecorder, name: str, x: Any, out: Any) -> bool:
    """Record a reduction over all spatial axes. Return False if reduction.cu does not support the axes."""
    axes = list(zip(x.shape, strides_of(x), strides_of(out)))
    retained, folded = launch.merged(launch.by_stride(axes[:2])), launch.merged([(n, s, 0) for n, s, _ in axes[2:]])
    if launch.fit(retained, folded):
        reduction.reduce(k, f"{name}<{k.c_type(x.dtype)}>", x, out, retained, folded)
        return True
    return False


def _structs(x: Any, outputs: Sequence[Any], windows: Sequence[Windows]) -> tuple[Axes, np.ndarray[Any, Any]]:
    """Return the structs `Axes` and `Windows` of the kernels, padded to three spatial axes. An output may be None."""
    missing = MAX_AXES - len(windows)
    first, steps = strides_of(x)[:2], (0,) * missing + strides_of(x)[2:]
    fields = [(1, 1, 1, 1, 0)] * missing + [axis_windows.numbers() for axis_windows in windows]
    written = [(0,) * x.ndim if a is None else strides_of(a) for a in outputs]
    extents = outputs[0].shape
    reach = sum((n - 1) * abs(s) for n, s in zip(x.shape, strides_of(x))) + 4 * max(map(max, fields))
    axes = Axes(
        (*extents[:2], *(1,) * missing, *extents[2:]),
        ((*first, 0, 0, 0), *((*s[:2], *(0,) * missing, *s[2:]) for s in written)),
        reach,
    )
    return axes, np.array(axes.numbers(*(n for column in (*zip(*fields), steps) for n in column)))


class _Max(_Pool):
    """Base of maxima. NaN counts as the greatest value. A window that has only padding gives the lowest finite number,
    as in OpenVINO."""

    fold = np.maximum
    fold_name = "max"
    whole = "Max"

    def limits(self, dtype: np.dtype[Any]) -> tuple[Any, Any]:
        if dtype.kind in "iu":
            return (np.iinfo(dtype).min,) * 2
        return -np.inf, np.finfo(dtype).min

    def evaluate(self, xp: Adapter, x: Array, *given: Array) -> tuple[Array, ...]:
        return (self.folded(xp, x, self.windows(x.shape[2:], self.counts(x, *given))),)

    def evaluate_with_indices(self, xp: Adapter, x: Array, *given: Array) -> tuple[Array, Array]:
        """Return the maxima, and the flat index in its channel of the first maximum of each window; 0 for a window that
        has only padding."""
        windows = self.windows(x.shape[2:], self.counts(x, *given))
        best = self.folded(xp, x, windows)
        positions, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
        for axis_windows in windows:  # both become [windows so far, elements of a window], in row-major order
            (indices, covers), (rows, columns) = axis_windows.indices(), positions.shape
            shape = rows * len(indices), columns * indices.shape[1]
            positions = (positions[:, None, :, None] * axis_windows.extent + indices[:, None]).reshape(shape)
            inside = (inside[:, None, :, None] & covers[:, None]).reshape(shape)
        if not x.size:
            return best, xp.zeros(best.shape, np.int64)
        positions = xp.asarray(positions)
        gathered = xp.take(x.reshape(*x.shape[:2], -1), positions, axis=2)
        hit = xp.asarray(inside) & ((gathered == best.reshape(*gathered.shape[:3], 1)) | (gathered != gathered))
        total = prod(x.shape[2:])
        first = xp.where(hit, positions, total).min(axis=3).reshape(best.shape)
        return best, xp.where(first == total, 0, first)

    def launch(self, k: KernelRecorder, x: Any, outputs: Sequence[Any], windows: Sequence[Windows], count: int) -> None:
        index = outputs[1] if len(outputs) > 1 else None
        axes, struct = _structs(x, (outputs[0], index), windows)
        index_type = "int" if index is None else k.c_type(index.dtype)
        k.kernel(
            "pooling.cu",
            f"max_pool<{k.c_type(x.dtype)}, {index_type}, {axes.index}>",
            blocks(axes.size, THREADS),
            (THREADS,),
            (
                x,
                outputs[0],
                index,
                axes.packed(2 + MAX_AXES),
                struct,
                *axes.numbers(axes.size),
                np.float64(self.limits(decoded_dtype(x.dtype))[1]),
                *axes.numbers(x.shape[1]),
                np.int64(max(self.index_bound(x.shape), 1)),
            ),
        )

    def launch_chunks(self, k: KernelRecorder, x: Any, out: Any, windows: Sequence[Windows]) -> bool:
        supported = len(windows) == 2 and x.dtype.itemsize <= 4 and (launch.is_real(x) or x.dtype == np.int8)
        if not supported or not has_chunks(x) or not has_chunks(out):
            return False
        _, struct = _structs(x, (out,), windows)
        per_chunk, (batch, _, *steps) = CHUNK_BYTES // x.dtype.itemsize, strides_of(out)
        axes = Axes(
            (out.shape[0], *out.shape[2:], x.shape[1] // per_chunk),
            ((strides_of(x)[0], 0, 0, per_chunk), (batch, *steps, per_chunk)),
            x.size + out.size,
        )
        packed = axes.packed(4)
        k.kernel(
            "pooling.cu",
            f"max_pool_channels<{k.c_type(x.dtype)}, {axes.index}>",
            blocks(axes.size, THREADS),
            (THREADS,),
            (
                x,
                out,
                packed,
                struct.astype(packed.dtype),
                *axes.numbers(axes.size),
                np.float64(self.limits(decoded_dtype(x.dtype))[1]),
            ),
            early=True,
        )
        return True

    def index_bound(self, shape: Sequence[int]) -> int:
        """Return the exclusive upper bound of indices for data of this shape."""
        return prod(shape[2:])


class _Average(_Pool):
    """Base of means. Means of integers are rounded half to even. The mean of an empty window is 0."""

    fold = np.add
    fold_name = "sum"
    whole = "Mean"
    half_precision = "promoted"

    def divisor(self, windows: Sequence[Windows], sizes: Sequence[int]) -> Any:
        count = self.count(windows, sizes)
        if count:
            return count
        counts = np.maximum(reduce(np.multiply.outer, [axis_windows.inside() for axis_windows in windows]), 1)
        return counts if counts.size and np.ptp(counts) else counts.max(initial=1)

    def evaluate(self, xp: Adapter, x: Array, *given: Array) -> tuple[Array, ...]:
        sizes, wide = x.shape[2:], x if x.dtype.kind == "f" else x.astype(np.float64)
        windows = self.windows(sizes, self.counts(x, *given))
        means = self.folded(xp, wide, windows) / xp.asarray(self.divisor(windows, sizes), wide.dtype)
        return (means if x is wide else xp.rint(means).astype(x.dtype),)

    def is_whole(self, windows: Sequence[Windows], x: Array) -> bool:
        sizes = x.shape[2:]
        return super().is_whole(windows, x) and self.count(windows, sizes) in (0, prod(sizes))

    def launch(self, k: KernelRecorder, x: Any, outputs: Sequence[Any], windows: Sequence[Windows], count: int) -> None:
        axes, struct = _structs(x, outputs, windows)
        k.kernel(
            "pooling.cu",
            f"average_pool<{k.c_type(x.dtype)}, {axes.index}>",
            blocks(axes.size, THREADS),
            (THREADS,),
            (x, outputs[0], axes.packed(2 + MAX_AXES), struct, *axes.numbers(axes.size), np.int64(count)),
        )


# ---- windows of one size


class _SlidingPool(Windowed, _Pool):
    """Base of pooling with windows of size ``kernel``. If the number of windows is rounded up, the last ones may reach
    past the padding."""

    kernel: tuple[int, ...]
    rounding_type: Literal["floor", "ceil", "ceil_torch"] = "floor"

    leading = 0
    torch: ClassVar[bool] = False
    """True if ``rounding_type`` may be ceil_torch: it rounds up, but drops windows that begin past the data and the
    padding before it."""

    dilated: ClassVar[bool] = False
    """True for versions with ``dilations``; the others ignore that attribute, as OpenVINO does."""

    half_precision = "promoted"

    def per_axis(self, name: str, axes: int | None, least: int) -> tuple[int, ...]:
        return (1,) * (axes or 0) if name == "dilations" and not self.dilated else super().per_axis(name, axes, least)

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        check_number(x.type)
        if self.rounding_type == "ceil_torch" and not self.torch:
            raise OpError("attribute 'rounding_type': 'ceil_torch' is not one of floor, ceil")
        if not self.strides:
            raise OpError("attribute 'strides' is missing")
        axes = self.spatial(x, Spec(x.type, self.kernel))
        if axes != len(self.kernel):
            raise OpError(f"attribute 'kernel' has {len(self.kernel)} elements for {axes} spatial axes")
        return (Spec(x.type, self.shape(x)),)

    def shape(self, x: Spec) -> Shape:
        if x.shape is None:
            return unknowns(2 + len(self.kernel))
        return (*x.shape[:2], *self.extents(x.shape[2:], self.kernel))

    def extents(self, sizes: Sequence[Int], kernel: Sequence[Int]) -> list[Int]:
        extents = super().extents(sizes, kernel)
        if self.rounding_type == "floor":
            return extents
        strides = self.per_axis("strides", len(sizes), 1)
        for i, (size, reach, begin, end) in enumerate(zip(sizes, self.reach(kernel), *self.explicit_pads(len(sizes)))):
            padded = size + begin + end
            if self.same:
                padded = maximum(size, (ceildiv(size, strides[i]) - 1) * strides[i] + reach)
            extents[i] = ceildiv(maximum(padded - reach, 0), strides[i]) + 1
            if self.rounding_type == "ceil_torch":
                extents[i] -= apply("le", size + begin, (extents[i] - 1) * strides[i])
        return extents

    def counts(self, x: Array, *given: Any) -> Sequence[int]:
        return self.extents(x.shape[2:], self.kernel)

    def windows(self, sizes: Sequence[int], counts: Sequence[int]) -> Sequence[Windows]:
        begin, _ = self.pads(sizes, self.kernel)
        strides, dilations = (self.per_axis(name, len(sizes), 1) for name in ("strides", "dilations"))
        return [Sliding(*fields) for fields in zip(sizes, counts, self.kernel, strides, dilations, begin)]


@op("MaxPool", "opset1", "pooling/max-pool-1")
class MaxPool(_Max, _SlidingPool):
    """``x [N, C, ...] -> [N, C, ...]``: the maximum of every window, for any numeric type.

    NaN stays; OpenVINO drops it, and turns minus infinity into the lowest finite number.
    """

    half_precision = "promoted"


@internal_op
class MaxPoolValues(MaxPool):
    """MaxPool-14 without its second output."""

    name: ClassVar[str] = "MaxPool"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    torch = True
    dilated = True


@op("MaxPool", "opset8", "pooling/max-pool-8")
class MaxPool8(MaxPool):
    """MaxPool-1 with dilated windows, and the indices of the maxima as a second output.

    An index counts the elements of the flattened data, modulo the product of the extents of ``axis`` and the axes after
    it.
    """

    index_element_type: Type = Type.i64
    axis: int = 0

    dilated = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        (values,) = super().infer_specs(x)
        normalize_axis(self.axis, 2 + len(self.kernel))
        return values, Spec(_index_type(self.index_element_type), values.shape)

    def evaluate(self, xp: Adapter, x: Array, *given: Array) -> tuple[Array, ...]:
        values, indices = self.evaluate_with_indices(xp, x, *given)
        before = xp.arange(prod(x.shape[:2])).reshape(*x.shape[:2], *(1,) * len(self.kernel))
        return values, (indices + before * prod(x.shape[2:])) % max(self.index_bound(x.shape), 1)

    def index_bound(self, shape: Sequence[int]) -> int:
        return prod(shape[normalize_axis(self.axis, len(shape)) :])

    def values(self) -> Op:
        """Return the op that computes only the first output, the values."""
        given = {name: value for name, value in self.attributes().items() if name not in ("index_element_type", "axis")}
        return MaxPoolValues(**given)


@op("MaxPool", "opset14", "pooling/max-pool-14")
class MaxPool14(MaxPool8):
    """MaxPool-8 with the rounding type ``ceil_torch``, which rounds up as torch does.

    >>> max_pool([[[1.0, 3, 2]]], strides=[2], dilations=[1], pads_begin=[0], pads_end=[0], kernel_shape=[2],
    ...          rounding_type="ceil_torch")
    ([[[3.0, 2.0]]], [[[1, 2]]])
    """

    torch = True


@op("AvgPool", "opset1", "pooling/avg-pool-1")
class AvgPool(_Average, _SlidingPool):
    """``x [N, C, ...] -> [N, C, ...]``: the mean of every window, for any numeric type.

    Padding counts as zeros unless ``exclude-pad`` is set. Without padding, elements of windows past the end of the data
    do not count. The mean of an empty window is 0; OpenVINO may give NaN.
    """

    exclude_pad: bool = True

    ir_names: ClassVar[dict[str, str]] = {"exclude_pad": "exclude-pad"}

    def shape(self, x: Spec) -> Shape:
        shape, reach = super().shape(x), self.reach(self.kernel)
        if self.exclude_pad and any(p >= r for pads in self.explicit_pads(len(reach)) for p, r in zip(pads, reach)):
            raise OpError(f"a window that reaches {reach} far lies in the padding, which is excluded")
        return shape

    def count(self, windows: Sequence[Windows], sizes: Sequence[int]) -> int:
        padded = any(p for pads in self.pads(sizes, self.kernel) for p in pads)
        return prod(self.kernel) if padded and not self.exclude_pad else 0


@op("AvgPool", "opset14", "pooling/avg-pool-14")
class AvgPool14(AvgPool):
    """AvgPool-1 with the rounding type ``ceil_torch``, which rounds up as torch does."""

    torch = True


@op("AvgPool", "opset16", "pooling/avg-pool-16")
class AvgPool16(AvgPool14):
    """AvgPool-14 with dilated windows.

    >>> avg_pool([[[1.0, 2, 3, 10]]], strides=[1], pads_begin=[0], pads_end=[0], kernel_shape=[2],
    ...          exclude_pad=True, dilations=[2])
    [[[2.0, 6.0]]]
    """

    dilated = True


# ---- parts of about equal length (adaptive pooling)


class _AdaptivePool(_Pool):
    """Base: ``x [N, C, ...], sizes [axes] -> [N, C, sizes...]``, one element per part of the data. Each spatial axis is
    divided into as many parts, of about equal length, as its size says."""

    host_inputs = (1,)

    def infer_specs(self, x: Spec, sizes: Spec) -> tuple[Spec, ...]:
        if not (x.type.is_real() or x.type.is_dynamic()):
            raise OpError(f"element type {x.type.get_type_name()} is not real")
        if x.rank not in (None, 3, 4, 5):
            raise OpError(f"the data must have rank 3 or 4 or 5, not {x.rank}")
        check_integers(sizes, "the output's sizes")
        count, known = length(sizes), sizes.ints()
        if count is not None and (count not in (1, 2, 3) or x.rank not in (None, 2 + count)):
            raise OpError(f"{count} sizes do not fit " + (f"rank {x.rank}" if x.rank else "one to three spatial axes"))
        for size in known or ():
            at_most(1, size, "{1} is no size of an output")
        rank = x.rank or (None if count is None else 2 + count)
        shape = x.shape or unknowns(rank)
        if shape is not None:
            shape = (*shape[:2], *(known or unknowns(len(shape) - 2) or ()))
        return (Spec(x.type, shape),)

    def counts(self, x: Array, *given: Any) -> Sequence[int]:
        return integers(given[0])

    def windows(self, sizes: Sequence[int], counts: Sequence[int]) -> Sequence[Windows]:
        return [Adaptive(extent, count) for extent, count in zip(sizes, counts)]


@op("AdaptiveAvgPool", "opset8", "pooling/adaptive-avg-pool-8")
class AdaptiveAvgPool(_Average, _AdaptivePool):
    """``x [N, C, ...], sizes [axes] -> [N, C, sizes...]``: the means of parts of about equal length.

    Neighbouring parts overlap where the sizes do not divide the extents.

    >>> adaptive_avg_pool([[[1.0, 2, 3]]], [2])
    [[[1.5, 2.5]]]
    """

    half_precision = "promoted"


@internal_op
class AdaptiveMax(_Max, _AdaptivePool):
    """AdaptiveMaxPool without the output of indices, for models that do not use them."""

    name: ClassVar[str] = "AdaptiveMaxPool"


@op("AdaptiveMaxPool", "opset8", "pooling/adaptive-max-pool-8")
class AdaptiveMaxPool(_Max, _AdaptivePool):
    """Maxima of the parts of AdaptiveAvgPool. The second output has the flat index of each maximum in its channel.

    >>> adaptive_max_pool([[[1.0, 5, 3]]], [2], index_element_type="i32")
    ([[[5.0, 5.0]]], [[[1, 1]]])
    """

    index_element_type: Type = Type.i64

    def infer_specs(self, x: Spec, sizes: Spec) -> tuple[Spec, ...]:
        (values,) = super().infer_specs(x, sizes)
        return values, Spec(_index_type(self.index_element_type), values.shape)

    def evaluate(self, xp: Adapter, x: Array, *given: Array) -> tuple[Array, ...]:
        return self.evaluate_with_indices(xp, x, *given)

    def values(self) -> Op:
        """Return the op that computes only the first output, the values."""
        return AdaptiveMax()


def _index_type(dtype: Type) -> Type:
    if dtype not in (Type.i32, Type.i64):
        raise OpError(f"index_element_type is {dtype.get_type_name()}, not i32 or i64")
    return dtype
