"""Interpolate: images, and whatever else has axes, resized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Op, Workspace, op
from ovgpu.ops.base.shapes import check_count, check_integers, constants, integers, length, normalize_axis, unknowns
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.view import equal
from ovgpu.ops.image import _resampling
from ovgpu.ops.image._resample_cuda import passes, resample
from ovgpu.ops.image._resampling import Taps, limits
from ovgpu.symbolic import Int, Shape, Spec, maximum, minimum, product, scaled, unknown
from ovgpu.types import Type

Coordinates = Literal["half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners"]
Rounding = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"]


@op("Interpolate", "opset4")
class Interpolate4(Op):
    """``data [...], sizes [n], scales [n] (, axes [n]) ->`` data resized along the axes, by default along all.

    The data are padded with zeros, then resized along one axis after another: each element is a weighted sum of some
    of the input's. The output has the sizes, or the padded extents times the scales, as ``shape_calculation_mode``
    says. Integers are rounded to the nearest, halves to even, and saturate, as in the plugin; in some modes the
    reference cuts off and wraps. The plugin ignores ``antialias``.
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

    def wanted(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Of the inputs behind the data: the sizes or None, the scales or None, the axes or None."""
        check_count(1 + len(inputs), 3, 4)
        sizes, scales, axes = (*inputs, None)[:3]
        return (sizes, None, axes) if self.shape_calculation_mode == "sizes" else (None, scales, axes)

    def infer(self, x: Spec, *given: Spec) -> tuple[Spec, ...]:
        sizes, scales, axes = self.wanted(given)
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
        """The output's shape as far as it is known."""
        if x.shape is None:
            return None
        known = None if axes is None else constants(axes)
        if known is None and axes is not None:
            return unknowns(len(x.shape))
        over = self.axes(known, len(x.shape))
        source = sizes if scales is None else scales
        assert source is not None
        if length(source) not in (None, len(over)):
            raise OpError(f"{length(source)} {'sizes' if scales is None else 'scales'} for {len(over)} axes")
        shape = list(self.padded(x.shape))
        wanted: Any = source.ints() if scales is None else source.constant
        for i, axis in enumerate(over):
            if wanted is None:
                shape[axis] = unknown()
            elif scales is not None:
                shape[axis] = scaled(shape[axis], float(wanted[i]))
            elif isinstance(wanted[i], int) and wanted[i] < 0:
                raise OpError(f"size {wanted[i]} is negative")
            else:
                shape[axis] = wanted[i]
        return tuple(shape)

    def axes(self, axes: Sequence[int] | None, rank: int) -> list[int]:
        """The axes that are resized, in the order of their sizes."""
        over = list(range(rank)) if axes is None else [normalize_axis(a, rank) for a in axes]
        if len(set(over)) < len(over):
            raise OpError(f"axes {list(axes or ())} name an axis twice")
        return over

    def pads(self, rank: int) -> list[tuple[int, int]]:
        """The zeros before and behind each axis; what the attributes do not say is 0."""
        begin, end = ((*p, *(0,) * rank)[:rank] for p in (self.pads_begin, self.pads_end))
        return list(zip(begin, end))

    def padded(self, shape: Sequence[Int]) -> list[Int]:
        """The shape of the padded input."""
        return [b + d + e for d, (b, e) in zip(shape, self.pads(len(shape)))]

    def taps(self, shape: Sequence[int], sizes: Any, scales: Any, axes: Any) -> list[tuple[int, int, Taps]]:
        """Axis, extent and taps in the padded input of every axis that is resized, in order, for a shape."""
        over = self.axes(None if axes is None else integers(axes), len(shape))
        extents = self.padded(shape)
        if scales is None:
            wanted = [(n, np.float32(n) / np.float32(extents[a])) for a, n in zip(over, integers(sizes))]
        else:
            wanted = [(scaled(extents[a], float(s)), np.float32(s)) for a, s in zip(over, np.ravel(scales))]
        for n, _ in wanted:
            if n < 0:
                raise OpError(f"size {n} is negative")
        sharp = self.mode != "linear" or not self.antialias or all(scale >= 1 for _, scale in wanted)
        return [(a, n, self.along(n, extents[a], scale, np.float32(1) if sharp else scale))
                for a, (n, scale) in self.ordered(zip(over, wanted)) if n != extents[a]]

    def ordered(self, axes: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The order in which axes are resized."""
        return sorted(axes, reverse=True)

    def along(self, n: int, extent: int, scale: np.float32, slope: np.float32) -> Taps:
        """The taps along one axis that is resized from ``extent`` to n elements."""
        at = _resampling.coordinates(n, extent, scale, self.coordinate_transformation_mode)
        if self.mode == "nearest":
            return _resampling.nearest(at, extent, scale, self.nearest_mode)
        if self.mode == "linear_onnx":
            return _resampling.between(at, extent)
        if self.mode == "cubic":
            return _resampling.cubic(at, extent, self.cube_coeff)
        return _resampling.triangle(at, extent, slope)

    def rounds(self, kind: np.dtype[Any]) -> bool:
        """Whether elements are rounded after each axis, and not only at last."""
        return False

    def evaluate(self, xp: Any, x: Any, *given: Any) -> tuple[Any, ...]:
        kind = x.dtype
        taps = self.taps(x.shape, *self.wanted(given))
        if any(b or e for b, e in self.pads(x.ndim)):
            x = xp.pad(x, self.pads(x.ndim))
        if self.mode != "nearest" and kind.kind != "f":
            x = x.astype(np.float32)
        for axis, n, found in taps:
            x = _resized(xp, x, axis, n, found)
            if self.rounds(kind):
                x = _rounded(xp, x, kind)
        return (x if x.dtype == kind else _rounded(xp, x, kind).astype(kind),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Three tiles for NumPy; two arrays as large as the padded input or the output for passes on a device."""
        x, out = inputs[0], outputs[0]
        assert x is not None and x.shape is not None and out.shape is not None
        kind = _bits(out.type) if self.mode == "nearest" else Type.of(_real(out.type.storage))
        extents = [maximum(a, b) for a, b in zip(self.padded(x.shape), out.shape)]
        first = next((i for i, (a, b) in enumerate(zip(x.shape, out.shape)) if not equal(a, b)), len(extents))
        size = product(extents)
        tile = minimum(size, maximum(product(extents[first:]), TILE))
        return ((kind, (tile,)),) * 3 + ((kind, (size,)),) * (2 if self.many(len(extents) - first) else 0)

    def many(self, axes: int) -> bool:
        """Whether a device may need more than one pass to resize at most so many axes."""
        return self.antialias or axes > (2 if self.mode == "cubic" else 3)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        (x, *given), out = inputs, outputs[0]
        taps = self.taps(x.shape, *self.wanted(given))
        if self.mode == "nearest":
            x, out = x.view(workspace[0].dtype), out.view(workspace[0].dtype)  # which NumPy moves, of whatever type
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
        k(_resampling.resize_rows, x.reshape(-1, *x.shape[lead:]), out.reshape(-1, *out.shape[lead:]),
          [(axis - lead + 1, found) for axis, _, found in taps], workspace[:3], max(workspace[0].size // row, 1),
          limits(out.dtype) if self.mode != "nearest" and out.dtype.kind in "iu" else None, self.rounds(out.dtype))
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        (x, *given), out = inputs, outputs[0]
        if not out.size:
            return None
        if not x.size or not (self.mode == "nearest" or is_plain(x.dtype)):
            return NotImplemented
        found = {axis: taps for axis, _, taps in self.taps(x.shape, *self.wanted(given))}
        for axis, (begin, end) in enumerate(self.pads(x.ndim)):
            if begin or end:
                taps = found.get(axis, Taps(np.arange(out.shape[axis])[:, None]))
                found[axis] = taps.within(begin, x.shape[axis])
        if not found:
            k.copy(x, out)
            return None
        groups = [[along] for along in found.items()] if self.rounds(x.dtype) else passes(list(found.items()))
        between = x.dtype if self.mode == "nearest" or self.rounds(x.dtype) else _real(out.dtype)
        for number, group in enumerate(groups):
            shape = [out.shape[i] if i in dict(group) else d for i, d in enumerate(x.shape)]
            into = out if number == len(groups) - 1 else (
                workspace[3 + number % 2].view(between)[: prod(shape)].reshape(shape))
            if not resample(k, x, into, group):
                return NotImplemented
            x = into
        return None


@op("Interpolate", "opset11")
class Interpolate11(Interpolate4):
    """``image [...], sizes or scales [n] (, axes [n]) ->`` the image resized, as by version 4, or as Pillow does it.

    Pillow's modes resize two axes, the second one first, and round 8-bit integers in between. In mode bicubic_pillow
    the plugin ignores ``cube_coeff``.
    """

    mode: Literal["nearest", "linear", "linear_onnx", "cubic",  # type: ignore[assignment]
                  "bilinear_pillow", "bicubic_pillow"]

    host_inputs: ClassVar[tuple[int, ...]] = (1, 2)

    @property
    def pillow(self) -> bool:
        return self.mode in ("bilinear_pillow", "bicubic_pillow")

    def wanted(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        check_count(1 + len(inputs), 2, 3)
        given, axes = (*inputs, None)[:2]
        return (given, None, axes) if self.shape_calculation_mode == "sizes" else (None, given, axes)

    def axes(self, axes: Sequence[int] | None, rank: int) -> list[int]:
        over = super().axes(axes, rank)
        if self.pillow and len(over) != 2:
            raise OpError(f"mode {self.mode} resizes two axes, not {len(over)}")
        return over

    def ordered(self, axes: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return list(axes)[::-1] if self.pillow else super().ordered(axes)

    def along(self, n: int, extent: int, scale: np.float32, slope: np.float32) -> Taps:
        if self.pillow:
            return _resampling.pillow(n, extent, self.cube_coeff if self.mode == "bicubic_pillow" else None)
        return super().along(n, extent, scale, slope)

    def many(self, axes: int) -> bool:
        return self.pillow or super().many(axes)

    def rounds(self, kind: np.dtype[Any]) -> bool:
        return self.pillow and kind.kind in "iu" and kind.itemsize == 1


@op("Interpolate", "opset1")
class Interpolate(Op):
    """``data [...], sizes [n] ->`` data resized along ``axes``, as a later version does it.

    linear is linear_onnx, of rank 5 linear. Without ``align_corners``, coordinates are asymmetric; linear ones are
    half_pixel, unless there is padding, or axes 2 and 3 of a tensor of rank 4 are resized. Mode area is not defined.
    """

    axes: tuple[int, ...]
    mode: Literal["nearest", "linear", "linear_onnx", "cubic"]
    align_corners: bool = True
    antialias: bool = False
    pads_begin: tuple[int, ...] = ()
    pads_end: tuple[int, ...] = ()

    host_inputs = (1,)
    strided_outputs = True

    def later(self, rank: int) -> Interpolate4:
        """The operation of version 4 that this one is, for a tensor of that rank."""
        mode = "linear_onnx" if self.mode == "linear" and rank != 5 else self.mode
        coordinates: Coordinates = "align_corners" if self.align_corners else "asymmetric"
        if mode in ("linear", "linear_onnx"):
            image = rank == 4 and set(self.axes) == {2, 3}
            if not (self.align_corners or image or any(self.pads_begin) or any(self.pads_end)):
                coordinates = "half_pixel"
        return Interpolate4(
            mode=mode, shape_calculation_mode="sizes", coordinate_transformation_mode=coordinates,
            nearest_mode="simple", antialias=self.antialias, pads_begin=self.pads_begin, pads_end=self.pads_end)

    def infer(self, x: Spec, sizes: Spec) -> tuple[Spec, ...]:
        axes = np.array(self.axes, np.int64)
        return self.later(x.rank or 0).infer(x, sizes, sizes, Spec(Type.i64, axes.shape, axes))

    def given(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of that operation."""
        return [*inputs, None, np.array(self.axes, np.int64)]

    def evaluate(self, xp: Any, x: Any, sizes: Any) -> tuple[Any, ...]:
        return self.later(x.ndim).evaluate(xp, *self.given([x, sizes]))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return self.later(outputs[0].rank or 0).workspace(inputs, outputs)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        return self.later(inputs[0].ndim).numpy(k, self.given(inputs), outputs, workspace)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        return self.later(inputs[0].ndim).cuda(k, self.given(inputs), outputs, workspace)


def _resized(xp: Any, x: Any, axis: int, n: int, taps: Taps) -> Any:
    """An array resized along one axis."""
    if not x.size or not n:
        return xp.zeros((*x.shape[:axis], n, *x.shape[axis + 1 :]), x.dtype)
    if taps.weights is None:
        return xp.take(x, xp.asarray(taps.places[:, 0]), axis=axis)
    total = 0
    for place, weight in zip(taps.places.T, taps.weights.T):
        spread = xp.asarray(weight).reshape(-1, *(1,) * (x.ndim - axis - 1))
        total = total + xp.take(x, xp.asarray(place), axis=axis) * spread
    return total


def _rounded(xp: Any, x: Any, kind: np.dtype[Any]) -> Any:
    """Floats as the nearest numbers that an integer type has."""
    return xp.clip(xp.rint(x), *limits(kind))


def _real(kind: np.dtype[Any]) -> np.dtype[Any]:
    """What elements of that type are computed in."""
    return np.dtype(np.float64 if kind == np.float64 else np.float32)


def _bits(kind: Type) -> Type:
    """The unsigned type of that size."""
    return Type.of(np.dtype(f"u{kind.storage.itemsize}"))


def _check_scales(spec: Spec) -> None:
    if not (spec.type.is_dynamic() or spec.type.is_real()):
        raise OpError(f"scales must be floating-point numbers, not {spec.type.get_type_name()}")
    if spec.rank not in (None, 1):
        raise OpError(f"scales must have rank 1, not {spec.rank}")
    if spec.constant is not None and not (spec.constant > 0).all():
        raise OpError(f"scales {spec.constant.tolist()} are not all positive")
