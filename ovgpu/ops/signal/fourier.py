"""Discrete Fourier transforms: DFT, IDFT, RDFT, IRDFT. Complex numbers are pairs along the last axis, of extent 2."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import (
    at_most,
    check_integers,
    check_reals,
    constants,
    integers,
    is_read,
    length,
    normalize_axis,
    unknowns,
)
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, Axes, blocks, strides_of
from ovgpu.ops.base.view import equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.convert import Convert
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, apply, maximum, product, same, unknown
from ovgpu.types import Type

AXES = 3  # axes that cuFFT transforms together, at most
ALIGNMENT_BYTES = 16  # alignment of arrays that cuFFT reads and writes


class _Fourier(Op):
    """Base: ``data [...], axes [n] (, signal_size [n])``, transformed over axes in the order in which they are listed.

    A signal size other than -1 truncates the axis to that length, or pads it with zeros. Spectra of real signals have
    only ``length // 2 + 1`` elements along the last listed axis; the others are their conjugates.
    """

    host_inputs = (1, 2)
    function: ClassVar[str]
    """Name of the function in ``numpy.fft`` and ``cupy.fft``."""
    inverse: ClassVar[bool] = False
    real_input: ClassVar[bool] = False
    real_output: ClassVar[bool] = False

    def infer_specs(self, x: Spec, axes: Spec, sizes: Spec | None = None) -> tuple[Spec, ...]:
        check_reals(x, "the data")
        check_integers(axes, "axes")
        if sizes is not None:
            check_integers(sizes, "signal sizes")
            counts = length(sizes), length(axes)
            if None not in counts and counts[0] != counts[1]:
                raise OpError(f"{counts[0]} signal sizes for {counts[1]} axes")
        if x.shape is None:
            return (Spec(x.type, None),)
        extents = self.extents(x.shape)
        shape = self.shape(extents, constants(axes), sizes)
        return (Spec(x.type, shape if self.real_output else (*shape, 2)),)

    def shape(self, extents: Sequence[Int], axes: Sequence[int] | None, sizes: Spec | None) -> tuple[Int, ...]:
        """Return the output's shape without the axis of pairs, as far as it is known."""
        if axes is None:
            return unknowns(len(extents)) or ()
        over = self.axes(axes, len(extents))
        known_sizes = None if sizes is None else sizes.ints()
        if sizes is not None and known_sizes is None:
            return tuple(unknown() if axis in over else extent for axis, extent in enumerate(extents))
        return self.transformed_shape(extents, over, self.lengths(extents, over, known_sizes))

    def extents(self, shape: Sequence[Int]) -> Sequence[Int]:
        """Return the shape of the data, without the axis of pairs."""
        if self.real_input:
            return shape
        if len(shape) < 2:
            raise OpError(f"data of rank {len(shape)} are no complex numbers with an axis")
        same(shape[-1], 2, "the last axis has {0} elements, but complex numbers are pairs")
        return shape[:-1]

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """Return the transformed axes, not negative, in the order listed."""
        over = [normalize_axis(axis, rank) for axis in axes]
        if len(set(over)) < len(over):
            raise OpError(f"axes {list(axes)} name an axis twice")
        if not over and (self.real_input or self.real_output):
            raise OpError("there are no axes, of which the last one would be halved")
        return over

    def lengths(self, extents: Sequence[Int], axes: Sequence[int], sizes: Sequence[Int] | None) -> list[Int]:
        """Return the lengths of the signals along those axes."""
        lengths = [extents[axis] for axis in axes]
        if self.real_output:
            lengths[-1] = maximum(2 * (lengths[-1] - 1), 0)
        for i, size in enumerate(sizes or ()):
            if equal(size, -1):
                continue
            lengths[i] = apply("select", apply("eq", size, -1), lengths[i], size) if is_read(size) else size
            at_most(1, lengths[i], "signal size {1} is neither -1 nor positive")
            lengths[i] = maximum(lengths[i], 1)
        return lengths

    def transformed_shape(self, extents: Sequence[Int], axes: Sequence[int], lengths: Sequence[Int]) -> tuple[Int, ...]:
        """Return the output's shape, without the axis of pairs, for signals of these lengths."""
        shape = list(extents)
        for axis, n in zip(axes, lengths):
            shape[axis] = n
        if self.real_input:
            shape[axes[-1]] = lengths[-1] // 2 + 1
        return tuple(shape)

    def plan(self, shape: Sequence[int], axes: Any, sizes: Any = None) -> tuple[Sequence[int], list[int], list[int]]:
        """Return the extents of the data, the axes and the lengths along them, for a known shape."""
        extents = self.extents(shape)
        over = self.axes(integers(axes), len(extents))
        return extents, over, self.lengths(extents, over, None if sizes is None else integers(sizes))

    def evaluate(self, xp: Adapter, x: Array, axes: Array, sizes: Array | None = None) -> tuple[Array, ...]:
        extents, over, lengths = self.plan(x.shape, axes, sizes)
        if not x.size or 0 in lengths:  # an empty sum is 0
            shape = self.transformed_shape(extents, over, lengths)
            return (xp.zeros(shape if self.real_output else (*shape, 2), x.dtype),)
        if not over:
            return (x.copy(),)
        signals = x if self.real_input else from_pairs(xp, x)
        transformed = getattr(xp.fft, self.function)(signals, s=tuple(lengths), axes=tuple(over))
        return (transformed if self.real_output else to_pairs(xp, transformed),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return buffers for the dense signals and for their transforms; complex signals are transformed in place."""
        assert outputs[0].shape is not None
        dtype, size = transform_type(outputs[0].type), product(outputs[0].shape)
        if self.real_output:
            return ((dtype, (2 * size,)), (dtype, (size,)))
        return ((dtype, (size,)),) * (2 if self.real_input else 1)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, *parameters), out = inputs, outputs[0]
        extents, over, lengths = self.plan(x.shape, *parameters)
        if not out.size:
            return None
        if not over:
            k.copy(x, out)
            return None
        if not is_plain(x.dtype) or 0 in lengths or len(over) > AXES:
            return NotImplemented
        batch = [axis for axis in range(len(extents)) if axis not in over]
        half = [*lengths[:-1], lengths[-1] // 2 + 1]
        outer = [extents[axis] for axis in batch]
        signals = axes_first(x, [*batch, *over])
        shape = (*outer, *(half if self.real_output else lengths), *signals.shape[len(extents) :])
        scale = 1 / prod(lengths) if self.inverse else 1
        source = pack_signals(k, signals, workspace[0], shape, len(batch), scale, reuse=not self.real_output)
        if source is NotImplemented:
            return NotImplemented
        if self.real_output:
            symmetrize(k, source, lengths)
        target = axes_first(out, [*batch, *over])
        shape = (*outer, *(half if self.real_input else lengths), *target.shape[len(extents) :])
        return write_transform(
            k, source if self.real_input else as_complex(source), target, workspace[-1], shape, len(over), self.inverse
        )


@op("DFT", "opset7", "signals/dft-7")
class DFT(_Fourier):
    """``data [..., 2], axes [n] (, signal_size [n]) -> [..., 2]``: transforms of complex signals.

    The axis of pairs does not count: axis -1 is the one before it.

    >>> dft([[0.0, 0], [1, 0], [0, 0], [0, 0]], [0])
    [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0], [0.0, 1.0]]
    """

    function = "fftn"


@op("IDFT", "opset7", "signals/idft-7")
class IDFT(DFT):
    """Inverse of `DFT`: its result is divided by the number of elements of a signal.

    >>> idft([[3.0, 0], [-1, 0]], [0])
    [[1.0, 0.0], [2.0, 0.0]]
    """

    function = "ifftn"
    inverse = True


@op("RDFT", "opset9", "signals/rdft-9")
class RDFT(_Fourier):
    """``data [..., S, ...], axes [n] (, signal_size [n]) -> [..., S // 2 + 1, ..., 2]``: transforms of real signals.

    Where an axis is padded with zeros, or a size is -1, OpenVINO's plugin reads and writes past the end.

    >>> rdft([0.0, 1, 0, 0], [0])
    [[1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]]
    """

    function = "rfftn"
    real_input = True


@op("IRDFT", "opset9", "signals/irdft-9")
class IRDFT(_Fourier):
    """``data [..., M, ..., 2], axes [n] (, signal_size [n]) -> [..., S, ...]``: inverse of `RDFT`, giving real signals.

    Without a signal size, S is ``2 * (M - 1)``. Along the last listed axis, the first ``S // 2 + 1`` elements are read,
    or padded with zeros to as many, and their conjugates follow, as in OpenVINO and torch. The formula of the
    specification would put the zeros after the conjugates.

    >>> irdft([[1.0, 0], [0, -1], [-1, 0]], [0])
    [0.0, 1.0, 0.0, 0.0]
    """

    function = "irfftn"
    inverse = True
    real_output = True


def from_pairs(xp: Adapter, x: Array) -> Array:
    """Return the complex numbers [...] of pairs [..., 2] of f32 or f64."""
    return as_complex(xp.ascontiguousarray(x))


def to_pairs(xp: Adapter, z: Array) -> Array:
    """Return the pairs [..., 2] of complex numbers [...]."""
    z = xp.ascontiguousarray(z)
    return z.view(z.real.dtype).reshape(*z.shape, 2)


# ---- CUDA


def transform_type(dtype: Type) -> Type:
    """Return the element type in which signals of ``dtype`` are transformed."""
    return Type.f64 if dtype == Type.f64 else Type.f32


def as_complex(x: Array) -> Array:
    """View dense pairs [..., 2] as complex numbers [...], in the same memory."""
    return x.view(np.result_type(x.dtype, np.complex64))[..., 0]


def is_dense(x: Array) -> bool:
    """Return whether cuFFT can read or write the array in place: contiguous and aligned."""
    return bool(x.flags.c_contiguous and x.data.ptr % ALIGNMENT_BYTES == 0)


def axes_first(x: Array, axes: Sequence[int]) -> Array:
    """Return a view with these axes first, in this order, and the axis of pairs, if there is one, last."""
    return x.transpose(*axes, *range(len(axes), x.ndim))


def pack_signals(
    k: KernelRecorder, x: Array, into: Array, shape: Sequence[int], first: int, scale: float, reuse: bool
) -> Any:
    """Write ``x * scale``, truncated or padded with zeros to ``shape`` from axis ``first`` on, to the memory ``into``.

    Return the written array; ``x`` itself if nothing changes, it is dense and ``reuse`` allows it; NotImplemented for
    too many axes.
    """
    x = x[tuple(map(slice, shape))]
    y = into[: prod(shape)].reshape(shape)
    if x.shape == shape and x.dtype == y.dtype and scale == 1:
        if reuse and is_dense(x):
            return x
        k.copy(x, y)
        return y
    padded = [i for i in range(first, len(shape)) if x.shape[i] < shape[i]]
    ends = [x.shape[i] for i in padded] + [1] * (AXES - len(padded))
    positions = [tuple(int(i == axis) for i in range(len(shape))) for axis in padded]
    positions += [(0,) * len(shape)] * (AXES - len(padded))
    axes = Axes.collapse(shape, strides_of(x), *positions)
    if not axes.rank:
        return NotImplemented
    k.kernel(
        "fourier.cu",
        f"arrange<{k.c_type(x.dtype)}, {k.c_type(y.dtype)}, {axes.index}, {axes.rank}>",
        blocks(y.size),
        (THREADS,),
        (x, y, axes.packed(), *axes.numbers(y.size, *ends), y.dtype.type(scale)),
    )
    return y


def symmetrize(k: KernelRecorder, z: Array, lengths: Sequence[int]) -> None:
    """Give half spectra, as pairs, the conjugate symmetry of real signals of these lengths, in place."""
    *outer, last = lengths
    rows, columns = (1, 1, *outer)[-2:]
    bins = last // 2 + 1
    count = z.size // (2 * bins * rows * columns)
    k.kernel(
        "fourier.cu",
        f"symmetrize<{k.c_type(z.dtype)}>",
        blocks(2 * count * rows * columns, THREADS),
        (THREADS,),
        (z, *map(np.int64, (count, rows, columns, bins)), np.bool_(last % 2 == 0)),
    )


def write_transform(
    k: KernelRecorder, source: Array, target: Array, scratch: Array, shape: Sequence[int], axes: int, inverse: bool
) -> Any:
    """Transform dense signals over the last ``axes`` axes into ``target``, of any layout and type, by way of
    ``scratch`` if cuFFT cannot write there. ``shape`` is that of the result, with pairs if it is complex."""
    direct = target.dtype == scratch.dtype and is_dense(target)
    result = target if direct else scratch[: target.size].reshape(shape)
    if not k.fft(source, as_complex(result) if len(shape) > source.ndim else result, axes, inverse):
        return NotImplemented
    if not direct:
        convert_into(k, result, target)
    return None


def convert_into(k: KernelRecorder, x: Array, out: Array) -> None:
    """Copy ``x`` into ``out`` of the same shape; layouts and types may differ."""
    if x.dtype == out.dtype:
        k.copy(x, out)
    else:
        k.elementwise(Convert(destination_type=Type.of(out.dtype)), [x], out)
