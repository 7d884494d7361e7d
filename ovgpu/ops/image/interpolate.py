"""Interpolate: resizing of images and other tensors along any axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import (
    UP_TO_F32,
    check_count,
    check_integers,
    check_reals,
    constants,
    integers,
    length,
    normalize_axis,
    unknowns,
)
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import pixel_step
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.view import equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.image import _resampling
from ovgpu.ops.image._resample_cuda import passes, resample
from ovgpu.ops.image._resampling import Taps, limits
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, maximum, minimum, product, scaled, unknown
from ovgpu.types import Type

Coordinates = Literal["half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners"]
Rounding = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"]


@op("Interpolate", "opset4", "image/interpolate-4")
class Interpolate4(Op):
    """``data [...], sizes [n], scales [n] (, axes [n]) ->`` data resized along the axes, by default along all.

    The data are padded with zeros, then resized along one axis after another: each output element is a weighted sum of
    input elements. The output's extents are the sizes, or the padded extents times the scales, as chosen by
    ``shape_calculation_mode``. Integers are rounded to nearest even and saturate, as in OpenVINO's CPU plugin; its
    reference truncates and wraps in some modes. The plugin ignores ``antialias``.
    """

    mode: Literal["nearest", "linear", "linear_onnx", "cubic"]
    shape_calculation_mode: Literal["sizes", "scales"]
    coordinate_transformation_mode: Coordinates = "half_pixel"
    nearest_mode: Rounding = "round_prefer_floor"
    antialias: bool = False
    pads_begin: tuple[int, ...] = ()
    pads_end: tuple[int, ...] = ()
    cube_coeff: float = -0.75

    host_inputs: ClassVar[tuple[int, ...]] = (1, 2, 3)
    strided_outputs = True
    keeps_layout = True
    half_precision = "promoted"

    def targets(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return (sizes or None, scales or None, axes or None) from the inputs after the data."""
        check_count(1 + len(inputs), 3, 4)
        sizes, scales, axes = (*inputs, None)[:3]
        return (sizes, None, axes) if self.shape_calculation_mode == "sizes" else (None, scales, axes)

    def infer_specs(self, x: Spec, *arguments: Spec) -> tuple[Spec, ...]:
        sizes, scales, axes = self.targets(arguments)
        if x.type in (Type.boolean, Type.string):
            raise OpError(f"element type {x.type.get_type_name()} is no number")
        if any(p < 0 for p in (*self.pads_begin, *self.pads_end)):
            raise OpError(f"pads {list(self.pads_begin)} and {list(self.pads_end)}: they must not be negative")
        if sizes is not None:
            check_integers(sizes, "sizes")
        if scales is not None:
            _check_scales(scales)
        if axes is not None:
            check_integers(axes, "axes")
        return (Spec(x.type, self.shape(x, sizes, scales, axes)),)

    def shape(self, x: Spec, sizes: Spec | None, scales: Spec | None, axes: Spec | None) -> Shape:
        """Return the output's shape as far as it is known."""
        if x.shape is None:
            return None
        known = None if axes is None else constants(axes)
        if known is None and axes is not None:
            return unknowns(len(x.shape))
        resized = self.axes(known, len(x.shape))
        source = sizes if scales is None else scales
        assert source is not None
        if length(source) not in (None, len(resized)):
            raise OpError(f"{length(source)} {'sizes' if scales is None else 'scales'} for {len(resized)} axes")
        shape = list(self.padded(x.shape))
        targets: Any = source.ints() if scales is None else source.constant
        for i, axis in enumerate(resized):
            if targets is None:
                shape[axis] = unknown()
            elif scales is not None:
                shape[axis] = scaled(shape[axis], float(targets[i]))
            elif isinstance(targets[i], int) and targets[i] < 0:
                raise OpError(f"size {targets[i]} is negative")
            else:
                shape[axis] = targets[i]
        return tuple(shape)

    def axes(self, axes: Sequence[int] | None, rank: int) -> list[int]:
        """Return the axes to resize, counted from the front, in the order of their sizes. Raise OpError if one is
        repeated."""
        resized = list(range(rank)) if axes is None else [normalize_axis(a, rank) for a in axes]
        if len(set(resized)) < len(resized):
            raise OpError(f"axes {list(axes or ())} name an axis twice")
        return resized

    def pads(self, rank: int) -> list[tuple[int, int]]:
        """Return the number of zeros before and after each axis; none for axes that the attributes do not reach."""
        begin, end = ((*p, *(0,) * rank)[:rank] for p in (self.pads_begin, self.pads_end))
        return list(zip(begin, end))

    def padded(self, shape: Sequence[Int]) -> list[Int]:
        """Return the shape of the padded input."""
        return [b + d + e for d, (b, e) in zip(shape, self.pads(len(shape)))]

    def taps(self, shape: Sequence[int], sizes: Any, scales: Any, axes: Any) -> list[tuple[int, int, Taps]]:
        """Return (axis, output extent, taps in the padded input) of each axis to resize, in the order of resizing."""
        resized = self.axes(None if axes is None else integers(axes), len(shape))
        extents = self.padded(shape)
        if scales is None:
            targets = [(n, np.float32(n) / np.float32(extents[a])) for a, n in zip(resized, integers(sizes))]
        else:
            targets = [(scaled(extents[a], float(s)), np.float32(s)) for a, s in zip(resized, np.ravel(scales))]
        for n, _ in targets:
            if n < 0:
                raise OpError(f"size {n} is negative")
        is_unfiltered = self.mode != "linear" or not self.antialias or all(scale >= 1 for _, scale in targets)
        return [
            (a, n, self.along(n, extents[a], scale, np.float32(1) if is_unfiltered else scale))
            for a, (n, scale) in self.ordered(zip(resized, targets))
            if n != extents[a]
        ]

    def ordered(self, axes: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """Return (axis, target) pairs in the order in which axes are resized."""
        return sorted(axes, reverse=True)

    def along(self, n: int, extent: int, scale: np.float32, slope: np.float32) -> Taps:
        """Return the taps along an axis that is resized from ``extent`` to ``n`` elements."""
        at = _resampling.coordinates(n, extent, scale, self.coordinate_transformation_mode)
        if self.mode == "nearest":
            return _resampling.nearest(at, extent, scale, self.nearest_mode)
        if self.mode == "linear_onnx":
            return _resampling.between(at, extent)
        if self.mode == "cubic":
            return _resampling.cubic(at, extent, self.cube_coeff)
        return _resampling.triangle(at, extent, slope)

    def rounds(self, dtype: np.dtype[Any]) -> bool:
        """Return whether elements of type ``dtype`` are rounded after each axis, and not only at the end."""
        return False

    def evaluate(self, xp: Adapter, x: Array, *arguments: Array) -> tuple[Array, ...]:
        dtype = x.dtype
        taps = self.taps(x.shape, *self.targets(arguments))
        if any(b or e for b, e in self.pads(x.ndim)):
            x = xp.pad(x, self.pads(x.ndim))
        if self.mode != "nearest" and dtype.kind != "f":
            x = x.astype(np.float32)
        for axis, n, axis_taps in taps:
            x = _resized(xp, x, axis, n, axis_taps)
            if self.rounds(dtype):
                x = _rounded(xp, x, dtype)
        return (x if x.dtype == dtype else _rounded(xp, x, dtype).astype(dtype),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return three tiles for NumPy, and, if a device may need several passes, two arrays that hold the results
        between them."""
        x, out = inputs[0], outputs[0]
        assert x is not None and x.shape is not None and out.shape is not None
        dtype = _bits(out.type) if self.mode == "nearest" else Type.of(_real(out.type.storage))
        extents = [maximum(a, b) for a, b in zip(self.padded(x.shape), out.shape)]
        first = next((i for i, (a, b) in enumerate(zip(x.shape, out.shape)) if not equal(a, b)), len(extents))
        size = product(extents)
        tile = minimum(size, maximum(product(extents[first:]), TILE))
        return ((dtype, (tile,)),) * 3 + ((dtype, (size,)),) * (2 if self.needs_passes(len(extents) - first) else 0)

    def needs_passes(self, axes: int) -> bool:
        """Return whether a device may need several passes to resize up to ``axes`` axes."""
        return self.antialias or axes > (2 if self.mode == "cubic" else 3)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, *arguments), out = inputs, outputs[0]
        taps = self.taps(x.shape, *self.targets(arguments))
        if self.mode == "nearest":
            x, out = x.view(workspace[0].dtype), out.view(workspace[0].dtype)  # so that NumPy moves any type
        elif not is_plain(x.dtype) or x.dtype.name == "bfloat16":
            return NotImplemented
        dense = x.flags.c_contiguous and out.flags.c_contiguous
        if not dense or not x.size or not out.size or any(map(any, self.pads(x.ndim))):
            return NotImplemented
        if not taps:
            k(np.copyto, out, x)
            return None
        lead = min(axis for axis, _, _ in taps)
        row = prod(map(max, x.shape[lead:], out.shape[lead:]))
        k(
            _resampling.resize_rows,
            x.reshape(-1, *x.shape[lead:]),
            out.reshape(-1, *out.shape[lead:]),
            [(axis - lead + 1, axis_taps) for axis, _, axis_taps in taps],
            workspace[:3],
            max(workspace[0].size // row, 1),
            limits(out.dtype) if self.mode != "nearest" and out.dtype.kind in "iu" else None,
            self.rounds(out.dtype),
        )
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, *arguments), out = inputs, outputs[0]
        if not out.size:
            return None
        if not x.size or not (self.mode == "nearest" or is_plain(x.dtype)):
            return NotImplemented
        axis_taps = {axis: taps for axis, _, taps in self.taps(x.shape, *self.targets(arguments))}
        for axis, (begin, end) in enumerate(self.pads(x.ndim)):
            if begin or end:
                taps = axis_taps.get(axis, Taps(np.arange(out.shape[axis])[:, None]))
                axis_taps[axis] = taps.within(begin, x.shape[axis])
        if not axis_taps:
            k.copy(x, out)
            return None
        if pixel_step(out) and not out.flags.c_contiguous:  # channels become the last axis, as they are in memory
            order = [0, *range(2, x.ndim), 1]
            x, out = x.transpose(order), out.transpose(order)
            axis_taps = {order.index(axis): taps for axis, taps in axis_taps.items()}
        groups = [[along] for along in axis_taps.items()] if self.rounds(x.dtype) else passes(list(axis_taps.items()))
        between = x.dtype if self.mode == "nearest" or self.rounds(x.dtype) else _real(out.dtype)
        for step, group in enumerate(groups):
            shape = [out.shape[i] if i in dict(group) else d for i, d in enumerate(x.shape)]
            into = (
                out
                if step == len(groups) - 1
                else (workspace[3 + step % 2].view(between)[: prod(shape)].reshape(shape))
            )
            if not resample(k, x, into, group):
                return NotImplemented
            x = into
        return None


@op("Interpolate", "opset11", "image/interpolate-11")
class Interpolate11(Interpolate4):
    """``image [...], sizes or scales [n] (, axes [n]) ->`` the image resized as by version 4, or as by Pillow.

    Pillow's modes resize two axes, the second one first, and round 8-bit integers in between. They ignore
    ``cube_coeff``, as OpenVINO's plugin does: PyTorch's frontend writes -0.75 there, but torch uses -0.5, as Pillow.

    >>> interpolate([1.0, 3], [4], mode="linear", shape_calculation_mode="sizes")
    [1.0, 1.5, 2.5, 3.0]
    """

    mode: Literal[
        "nearest",
        "linear",
        "linear_onnx",
        "cubic",  # type: ignore[assignment]
        "bilinear_pillow",
        "bicubic_pillow",
    ]

    host_inputs: ClassVar[tuple[int, ...]] = (1, 2)

    @property
    def pillow(self) -> bool:
        return self.mode in ("bilinear_pillow", "bicubic_pillow")

    def targets(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        check_count(1 + len(inputs), 2, 3)
        arguments, axes = (*inputs, None)[:2]
        return (arguments, None, axes) if self.shape_calculation_mode == "sizes" else (None, arguments, axes)

    def axes(self, axes: Sequence[int] | None, rank: int) -> list[int]:
        resized = super().axes(axes, rank)
        if self.pillow and len(resized) != 2:
            raise OpError(f"mode {self.mode} resizes two axes, not {len(resized)}")
        return resized

    def ordered(self, axes: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return list(axes)[::-1] if self.pillow else super().ordered(axes)

    def along(self, n: int, extent: int, scale: np.float32, slope: np.float32) -> Taps:
        if self.pillow:
            return _resampling.pillow(n, extent, self.mode == "bicubic_pillow")
        return super().along(n, extent, scale, slope)

    def needs_passes(self, axes: int) -> bool:
        return self.pillow or super().needs_passes(axes)

    def rounds(self, dtype: np.dtype[Any]) -> bool:
        return self.pillow and dtype.kind in "iu" and dtype.itemsize == 1


@op("Interpolate", "opset1", "image/interpolate-1")
class Interpolate(Op):
    """``data [...], sizes [n] ->`` data resized along ``axes`` by an equivalent op of version 4.

    Mode linear is linear_onnx, except for rank 5. Without ``align_corners``, coordinates are asymmetric; in linear
    modes they are half_pixel, unless there is padding, or axes 2 and 3 of a tensor of rank 4 are resized. Mode area is
    not defined.
    """

    axes: tuple[int, ...]
    mode: Literal["nearest", "linear", "linear_onnx", "cubic"]
    align_corners: bool = True
    antialias: bool = False
    pads_begin: tuple[int, ...] = ()
    pads_end: tuple[int, ...] = ()

    host_inputs = (1,)
    strided_outputs = True
    keeps_layout = True
    half_precision = "promoted"

    def equivalent(self, rank: int) -> Interpolate4:
        """Return the equivalent op of version 4 for a tensor of ``rank``."""
        mode = "linear_onnx" if self.mode == "linear" and rank != 5 else self.mode
        coordinates: Coordinates = "align_corners" if self.align_corners else "asymmetric"
        if mode in ("linear", "linear_onnx"):
            image = rank == 4 and set(self.axes) == {2, 3}
            if not (self.align_corners or image or any(self.pads_begin) or any(self.pads_end)):
                coordinates = "half_pixel"
        return Interpolate4(
            mode=mode,
            shape_calculation_mode="sizes",
            coordinate_transformation_mode=coordinates,
            nearest_mode="simple",
            antialias=self.antialias,
            pads_begin=self.pads_begin,
            pads_end=self.pads_end,
        )

    def infer_specs(self, x: Spec, sizes: Spec) -> tuple[Spec, ...]:
        axes = np.array(self.axes, np.int64)
        return self.equivalent(x.rank or 0).infer_specs(x, sizes, sizes, Spec(Type.i64, axes.shape, axes))

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the inputs of the equivalent op."""
        return [*inputs, None, np.array(self.axes, np.int64)]

    def evaluate(self, xp: Adapter, x: Array, sizes: Array) -> tuple[Array, ...]:
        return self.equivalent(x.ndim).evaluate(xp, *self.arguments([x, sizes]))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return self.equivalent(outputs[0].rank or 0).workspace(inputs, outputs)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.equivalent(inputs[0].ndim).numpy(k, self.arguments(inputs), outputs, workspace)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.equivalent(inputs[0].ndim).cuda(k, self.arguments(inputs), outputs, workspace)


def _resized(xp: Adapter, x: Array, axis: int, n: int, taps: Taps) -> Array:
    """Return an array resized along one axis to ``n`` elements."""
    if not x.size or not n:
        return xp.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype)
    if taps.weights is None:
        return xp.take(x, xp.asarray(taps.positions[:, 0]), axis=axis)
    total = 0
    for position, weight in zip(taps.positions.T, taps.weights.T):
        factors = xp.asarray(weight).reshape(-1, *(1,) * (x.ndim - axis - 1))
        total = total + xp.take(x, xp.asarray(position), axis=axis) * factors
    return total


def _rounded(xp: Adapter, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return floats rounded to integers, and clipped to the range of the integer type ``dtype``."""
    return xp.clip(xp.rint(x), *limits(dtype))


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the floating-point type in which elements of type ``dtype`` are computed."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _bits(dtype: Type) -> Type:
    """Return the unsigned integer type of the same size."""
    return Type.of(np.dtype(f"u{dtype.storage.itemsize}"))


def _check_scales(spec: Spec) -> None:
    check_reals(spec, "scales", ranks=(1,), types=UP_TO_F32)
    if spec.constant is not None and not (spec.constant > 0).all():
        raise OpError(f"scales {spec.constant.tolist()} are not all positive")
