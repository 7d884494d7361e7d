"""Sliding windows over spatial axes: attributes, padding and output extents of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.shapes import at_most
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, bounds, ceildiv, maximum
from ovgpu.types import Type

MAX_AXES = 3


class Windowed(Op):
    """Base of ops whose kernel slides over the one to three spatial axes of data [N, C, ...]."""

    strides: tuple[int, ...] = ()
    pads_begin: tuple[int, ...] = ()
    pads_end: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    auto_pad: Literal["explicit", "same_upper", "same_lower", "valid"] = "explicit"

    leading: ClassVar[int] = 2
    """The number of the kernel's axes before the spatial ones."""

    axes: ClassVar[tuple[int, ...]] = (1, 2, 3)
    """The allowed numbers of spatial axes."""

    def per_axis(self, name: str, axes: int | None, least: int) -> tuple[int, ...]:
        """Return an attribute's value per spatial axis, all ``least`` if it is empty. Raises OpError for values below
        ``least``, or if their number is not that of the axes."""
        values: tuple[int, ...] = getattr(self, name)
        if any(v < least for v in values):
            raise OpError(f"attribute '{name}': {min(values)} is less than {least}")
        if axes is not None and len(values) not in (0, axes):
            raise OpError(f"attribute '{name}' has {len(values)} elements for {axes} spatial axes")
        return values or (least,) * (axes or 0)

    def spatial(self, x: Spec, kernel: Spec) -> int | None:
        """Return the number of spatial axes, None if unknown. Raises OpError if ranks or attributes do not fit."""
        count: int | None = None
        for spec, leading, what in ((x, 2, "the data"), (kernel, self.leading, "the kernel")):
            if spec.rank is None:
                continue
            axes = spec.rank - leading
            if axes not in self.axes:
                ranks = " or ".join(str(leading + n) for n in self.axes)
                raise OpError(f"{what} must have rank {ranks}, not {spec.rank}")
            if count is not None and axes != count:
                raise OpError(f"the data has {count} spatial axes, the kernel {axes}")
            count = axes
        if count is None and self.strides:
            count = len(self.strides)
        for name, least in (("strides", 1), ("dilations", 1), *((n, 0) for n in self.pad_names)):
            self.per_axis(name, count, least)
        return count

    @property
    def pad_names(self) -> tuple[str, ...]:
        """The attributes that give the padding; automatic padding ignores them."""
        return ("pads_begin", "pads_end") if self.auto_pad == "explicit" else ()

    @property
    def same(self) -> bool:
        """True if automatic padding makes the output extent ceil(size / stride)."""
        return self.auto_pad in ("same_upper", "same_lower")

    def explicit_pads(self, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the attributes' padding before and after each spatial axis; zeros with automatic padding."""
        if self.auto_pad != "explicit":
            return (0,) * axes, (0,) * axes
        return self.per_axis("pads_begin", axes, 0), self.per_axis("pads_end", axes, 0)

    def reach(self, kernel: Sequence[Int]) -> list[Int]:
        """Return the dilated extent of the kernel along each spatial axis."""
        return [(k - 1) * d + 1 for k, d in zip(kernel, self.per_axis("dilations", len(kernel), 1))]

    def extents(self, sizes: Sequence[Int], kernel: Sequence[Int]) -> list[Int]:
        """Return the output's spatial extents: the number of kernel positions per axis. Raises OpError, perhaps at run
        time, if the kernel is empty or does not fit into the padded data."""
        strides = self.per_axis("strides", len(sizes), 1)
        for axis, k in enumerate(kernel):
            at_most(1, k, f"the kernel is empty along spatial axis {axis}")
        if self.same:
            return [ceildiv(size, stride) for size, stride in zip(sizes, strides)]
        extents = []
        for axis, (size, reach, begin, end, stride) in enumerate(
            zip(sizes, self.reach(kernel), *self.explicit_pads(len(sizes)), strides)
        ):
            padded = size + begin + end
            at_most(reach, padded, f"a kernel that reaches {{0}} far does not fit into {{1}} along spatial axis {axis}")
            span = padded - reach + stride
            # The check above makes the extent at least 1. Where the bounds of `span` do not show that, it is clamped.
            # Not with a stride of 1: there the extent is often that of the data, and other layers must see that they
            # agree.
            extents.append((span if stride == 1 or bounds(span)[0] >= stride else maximum(span, stride)) // stride)
        return extents

    def pads(self, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the padding before and after each spatial axis, also for automatic padding."""
        if not self.same:
            return self.explicit_pads(len(sizes))
        strides = self.per_axis("strides", len(sizes), 1)
        total = [
            max((ceildiv(size, stride) - 1) * stride + reach - size, 0)
            for size, stride, reach in zip(sizes, strides, self.reach(kernel))
        ]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (less, more) if self.auto_pad == "same_upper" else (more, less)


def check_number(dtype: Type) -> None:
    """Raise OpError unless elements are floating-point numbers or integers."""
    if not (dtype.is_dynamic() or dtype.is_real() or dtype.is_integral_number()) or dtype in (Type.string, Type.nf4):
        raise OpError(f"element type {dtype.get_type_name()} is not a number")


def framed(xp: Adapter, x: Array, begin: Sequence[int], end: Sequence[int], value: float = 0) -> Array:
    """Return the data [N, C, ...] padded with ``value`` around the spatial axes; negative padding crops."""
    lead = [(0, 0), (0, 0)]
    x = x[(..., *(slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(x.shape[2:], begin, end)))]
    if not any(p > 0 for p in (*begin, *end)):
        return x
    return xp.pad(x, lead + [(max(b, 0), max(e, 0)) for b, e in zip(begin, end)], constant_values=value)


def taps(start: Sequence[int], step: Sequence[int], extents: Sequence[int]) -> tuple[slice, ...]:
    """Return slices of ``extents`` elements along each axis, from ``start``, ``step`` apart."""
    return tuple(slice(b, b + s * (n - 1) + 1 if n else b, s) for b, s, n in zip(start, step, extents))
