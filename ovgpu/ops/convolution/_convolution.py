"""Convolutions on the device: which kernels of `cuda_kernels/convolution.cu`, of cuBLAS or cuDNN, compute one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import compute_dtype, is_plain
from ovgpu.ops.base.strided import Axes, bits, strides_of
from ovgpu.ops.convert import Convert
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.types import Type

FILE = "convolution.cu"
THREADS = 256
ROWS, COLUMNS, DEPTH = 64, 128, 16  # of a tile
FEW = 8  # channels per group, in or out, up to which tiles would be mostly empty
PART = 8 * DEPTH  # products at least, of each part of a sum
RESIDENT = 2  # blocks on a multiprocessor that certainly run at the same time
OPERANDS = 4  # of the layers after a convolution that a kernel finishes
LITTLE = 1 << 27  # products
SHALLOW = 80  # products for an element
COLUMN_ELEMENTS = 1 << 24  # of columns at a time
FAR = 1 << 30  # from here on, numbers are of 64 bits


@dataclass(frozen=True)
class Epilogue:
    """Elementwise layers after a convolution: a chain whose first input is the result, and the arrays that are its
    others, which broadcast to the result."""

    chain: Chain
    operands: tuple[Array, ...]

    def cut(self, axis: int, part: slice, rank: int) -> Epilogue:
        """For a part of the results, of ``rank`` axes."""
        index = (..., part, *[slice(None)] * (rank - 1 - axis))
        return replace(self, operands=tuple([
            x[index] if x.ndim >= rank - axis and x.shape[axis - rank] > 1 else x for x in self.operands]))


@dataclass(frozen=True)
class Convolved:
    """One convolution of arrays: x [N, G C, ...], kernel [G, O, C, ...] (transposed: [G, C, O, ...]), dense, and out.

    The numbers are those of each spatial axis; ``begin`` is what is padded, or cut off, before it. ``epilogue`` is what
    is done with the results. The kernel may be of another type if `reads_weights` says so.
    """

    x: Array
    kernel: Array
    out: Array
    strides: Sequence[int]
    dilations: Sequence[int]
    begin: Sequence[int]
    transposed: bool = False
    epilogue: Epilogue | None = None

    @property
    def operands(self) -> tuple[Array, ...]:
        return () if self.epilogue is None else self.epilogue.operands

    @property
    def groups(self) -> int:
        return int(self.kernel.shape[0])

    @property
    def channels(self) -> int:
        return int(self.x.shape[1]) // self.groups

    @property
    def outputs(self) -> int:
        return int(self.out.shape[1]) // self.groups

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(self.kernel.shape[3:])

    @property
    def pointwise(self) -> bool:
        """Whether every output pixel is made of the input's pixel at the same place."""
        return (prod(self.taps) == prod(self.strides) == 1 and not any(self.begin)
                and self.x.shape[2:] == self.out.shape[2:])

    def window(self, count: int) -> tuple[np.ndarray[Any, Any], str, Any]:
        """The struct Window, the CUDA type of its numbers, and that type for NumPy. ``count`` is the largest number
        that a kernel counts to."""
        arrays = (self.x, self.kernel, self.out, *self.operands)
        spans = [sum(abs(s) * d for s, d in zip(strides_of(a), a.shape)) for a in arrays]
        numbers: list[int] = []
        for values, missing in ((self.x.shape[2:], 1), (self.out.shape[2:], 1), (self.taps, 1), (self.strides, 1),
                                (self.dilations, 1), (self.begin, 0)):
            numbers += [missing] * (3 - len(values)) + list(values)
        for array in (self.x, self.out):
            numbers += _steps(strides_of(array))
        numbers += [self.x.shape[0], self.groups, self.channels, self.outputs]
        small = max(count, *spans, *map(abs, numbers)) < FAR
        index = np.dtype(np.int32 if small else np.int64)
        return np.array(numbers, index), "int" if small else "long long", index.type


def shortened(steps: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return strides or dilations as 1 along axes on which there is one place only: they may be larger than any number
    of a kernel."""
    return tuple(step if count > 1 else 1 for step, count in zip(steps, counts))


def _steps(strides: Sequence[int]) -> list[int]:
    """Those of batch, channel, and three spatial axes."""
    return [*strides[:2], *[0] * (5 - len(strides)), *strides[2:]]


def convolve(k: Any, c: Convolved, workspace: Sequence[Any]) -> None:
    """Records the calls that write ``c.out``: the choice of a kernel by types and shapes is here.

    Kernels of this project epilogue what they compute, and cuDNN some of it. Where another library does no more than
    convolve, one more kernel finishes all results in their place.
    """
    if not c.out.size:
        return
    alone = replace(c, epilogue=None)
    if not is_plain(c.out.dtype):
        _decoded(k, alone, workspace)
    elif c.out.dtype.kind in "iu" or _has_few_channels(c):
        return _each(k, c)
    elif c.kernel.dtype != c.out.dtype:
        return _tiles(k, c)
    elif c.epilogue is not None and k.convolve(c):
        return None
    elif c.pointwise and _is_cheap(c):
        return _tiles(k, c)
    elif (c.pointwise and _product(k, alone)) or k.convolve(alone):  # cuDNN, where it is installed
        pass
    elif c.transposed:
        return _folded(k, c, workspace[0])
    elif c.out.dtype.itemsize == 2 and _columns(k, alone, workspace[0]):  # tensor cores are worth the columns
        pass
    else:
        return _tiles(k, c)
    if c.epilogue is not None:
        k.elementwise(c.epilogue.chain, [c.out, *c.epilogue.operands], c.out)
    return None


def reads_weights(c: Convolved) -> bool:
    """Whether a kernel of this project reads weights of other types than the data's: where it is the one to choose, or
    for so little work that other ones of the data's type would not be worth a launch that makes them."""
    return _has_few_channels(c) or (not c.transposed and c.out.size * c.channels * prod(c.taps) <= LITTLE)


def _has_few_channels(c: Convolved) -> bool:
    return c.groups > 1 and min(c.channels, c.outputs) <= FEW


def _is_cheap(c: Convolved) -> bool:
    """Whether to epilogue a product in a kernel of this project costs less than to have cuBLAS, which is about twice as
    fast at large ones, and another kernel read and write the results once more: so it is for little work, where
    launches count, and for few products per element. Those of 16 bits are for tensor cores."""
    if c.epilogue is None or c.transposed or c.out.dtype.itemsize < 4:
        return False
    return c.out.size * c.channels <= LITTLE or c.channels <= SHALLOW


def _decoded(k: Any, c: Convolved, workspace: Sequence[Any]) -> None:
    """Types of which kernels know no arithmetic, as `evaluate` sees them."""
    wide = compute_dtype(Type.of(c.out.dtype))
    out = k.scratch(c.out.shape, wide)
    convolve(k, replace(c, x=converted(k, c.x, wide), kernel=converted(k, c.kernel, wide), out=out), workspace)
    Convert(destination_type=Type.of(c.out.dtype)).cuda(k, [out], [c.out], ())


def converted(k: Any, x: Array, dtype: np.dtype[Any]) -> Array:
    """A copy of the array in another type."""
    target = k.scratch(x.shape, dtype)
    Convert(destination_type=Type.of(dtype)).cuda(k, [x], [target], ())
    return target


def dense(k: Any, x: Array) -> Array:
    """The array, or a copy that is contiguous."""
    if x.flags.c_contiguous:
        return x
    copied = k.scratch(x.shape, x.dtype)
    k.copy(x, copied)
    return copied


def flat(x: Array, *leading: int) -> Any:
    """The array with its spatial axes as one, behind ``leading`` ones; None unless those elements lie side by side."""
    axes = Axes.collapse(x.shape[2:], strides_of(x)[2:])
    if axes.extents and axes.strides != ((1,),):
        return None
    return x.reshape(*leading, prod(x.shape[2:]))


def _product(k: Any, c: Convolved) -> bool:
    """As products of matrices, one per image and group; whether cuBLAS takes them."""
    x = flat(c.x, len(c.x), c.groups, c.channels)
    out = flat(c.out, len(c.x), c.groups, c.outputs)
    kernel = c.kernel.reshape(c.kernel.shape[:3])
    return x is not None and out is not None and k.gemm(kernel.swapaxes(1, 2) if c.transposed else kernel, x, out)


def _launch(k: Any, c: Convolved, name: str, size: int, arrays: Sequence[Any], *numbers: int) -> None:
    """A kernel of one thread per element of ``size``, which finishes nothing."""
    window, kind, scalar = c.window(max(size, *(a.size for a in arrays)))
    k.kernel(FILE, name.format(k.c_type(c.out.dtype), kind), (-(-size // THREADS),), (THREADS,),
             (*arrays, window, *map(scalar, numbers), scalar(size)))


def _epilogue_arguments(k: Any, c: Convolved, kind: Any) -> tuple[str, str, tuple[Any, ...]]:
    """How a kernel finishes elements: a struct, the source that it comes from, and arguments of index type ``kind``."""
    strides = np.zeros((OPERANDS, 5), kind)
    for row, x in zip(strides, c.operands):
        row[:] = _steps(strides_of(x, c.out.shape))
    arguments = (strides, *c.operands, *[None] * (OPERANDS - len(c.operands)))
    if c.epilogue is None:
        return "Nothing", "", arguments
    dtypes = tuple([a.dtype for a in (c.out, *c.operands)])
    return "Epilogue", k.functor("Epilogue", c.epilogue.chain, dtypes, OPERANDS), arguments


def _weights(k: Any, c: Convolved) -> str:
    """The argument of templates that says of which other type the weights are."""
    return "" if c.kernel.dtype == c.out.dtype else f", {k.c_type(c.kernel.dtype)}"


def _elements(k: Any, c: Convolved, name: str, arrays: Sequence[Any]) -> None:
    """A kernel of one thread per result, which finishes it."""
    window, kind, scalar = c.window(max(a.size for a in arrays))
    epilogue, source, epilogue_arguments = _epilogue_arguments(k, c, scalar)
    k.kernel(FILE, name.format(k.c_type(c.out.dtype), kind, epilogue), (-(-c.out.size // THREADS),), (THREADS,),
             (*arrays, window, *epilogue_arguments, scalar(c.out.size)), prelude=source)


def _each(k: Any, c: Convolved) -> None:
    name = f"convolve_each<{{}}, {{}}, {'true' if c.transposed else 'false'}, {{}}{_weights(k, c)}>"
    _elements(k, c, name, (c.x, c.kernel, c.out))


def _tiles(k: Any, c: Convolved) -> None:
    """Tiles of all images' pixels. Where those are too few for the device, sums are split into parts, whose blocks
    have to run at the same time."""
    sums = np.dtype(np.float64 if c.out.dtype == np.float64 else np.float32)
    depth = c.channels * prod(c.taps)
    tiles = (-(-(c.out.size // c.out.shape[1]) // COLUMNS), -(-c.outputs // ROWS))
    blocks = prod(tiles) * c.groups
    resident = k.multiprocessors * (RESIDENT if sums.itemsize == 4 and c.window(c.out.size)[1] == "int" else 1)
    parts = max(1, min(resident // blocks, depth // PART))
    per_part = -(-depth // parts // DEPTH) * DEPTH
    parts = max(1, -(-depth // max(per_part, 1)))
    window, kind, scalar = c.window(parts * c.out.size)
    epilogue, source, epilogue_arguments = _epilogue_arguments(k, c, scalar)
    name = f"convolve_tiles<{k.c_type(c.out.dtype)}, {kind}, {epilogue}{_weights(k, c)}>"
    if parts > 1 and not k.fits(FILE, name, (*tiles, c.groups * parts), (THREADS,), prelude=source):
        parts, per_part = 1, -(-depth // DEPTH) * DEPTH
    scratch = gates = None
    if parts > 1:
        scratch, gates = k.scratch((parts, c.out.size), sums), k.scratch((blocks, 2), np.dtype(np.uint32))
        gates.data.memset_async(0, gates.nbytes, k.stream)
    k.kernel(FILE, name, (*tiles, c.groups * parts), (THREADS,),
             (c.x, c.kernel, c.out, scratch, gates, window, scalar(per_part), *epilogue_arguments),
             cooperative=parts > 1, prelude=source)


def _columns(k: Any, c: Convolved, workspace: Any) -> bool:
    """As products with columns of what every tap reads, for as many images, or pixels of one, as there is room for."""
    out, depth, pixels = flat(c.out, len(c.x), c.groups, c.outputs), c.channels * prod(c.taps), prod(c.out.shape[2:])
    room = workspace.size // max(c.groups * depth, 1)  # pixels
    if out is None or not depth or not room:
        return False
    images, count = max(room // pixels, 1), min(room, pixels)
    kernel = c.kernel.reshape(*c.kernel.shape[:2], depth)
    for image in range(0, len(c.x), images):
        part = replace(c, x=c.x[image : image + images], out=c.out[image : image + images])
        for first in range(0, pixels, count):
            width = min(count, pixels - first)
            rows = len(part.x) * c.groups * c.channels
            columns = workspace[: rows * prod(c.taps) * width]
            window, kind, scalar = part.window(columns.size)
            k.kernel(FILE, f"gather_columns<{bits(c.x.dtype.itemsize)}, {kind}>", (-(-rows * width // THREADS),),
                     (THREADS,), (part.x, columns, window, *map(scalar, (first, width, rows * width))))
            taken = k.gemm(kernel, columns.reshape(len(part.x), c.groups, depth, width),
                           out[image : image + images, ..., first : first + width])
            assert taken, "cuBLAS takes dense columns"
    return True


def _folded(k: Any, c: Convolved, workspace: Any) -> None:
    """A transposed convolution: the products of every tap, for as many images as there is room for, which are then
    summed where they belong."""
    if not c.channels:
        k.copy(np.zeros((), c.out.dtype), c.out)
        if c.epilogue is not None:
            k.elementwise(c.epilogue.chain, [c.out, *c.epilogue.operands], c.out)
        return
    x = flat(c.x, len(c.x), c.groups, c.channels)
    if x is None:
        x = dense(k, c.x).reshape(len(c.x), c.groups, c.channels, prod(c.x.shape[2:]))
    rows = c.outputs * prod(c.taps)
    kernel = c.kernel.reshape(c.groups, c.channels, rows).swapaxes(1, 2)
    images = max(workspace.size // max(c.groups * rows * x.shape[-1], 1), 1)
    for image in range(0, len(x), images):
        some = slice(image, image + images)
        epilogue = None if c.epilogue is None else c.epilogue.cut(0, some, c.out.ndim)
        part = replace(c, x=c.x[some], out=c.out[some], epilogue=epilogue)
        shape = (len(part.x), c.groups, rows, x.shape[-1])
        columns = workspace[: prod(shape)].reshape(shape)
        taken = k.gemm(kernel, x[some], columns)
        assert taken, "cuBLAS takes dense matrices"
        _elements(k, part, "fold_columns<{}, {}, {}>", (columns, part.out))


def convolve_signs(k: Any, c: Convolved, padding: int) -> None:
    """Records a convolution of signs, whose kernel has bits; ``padding``: what each element outside counts for."""
    if c.out.size:
        _launch(k, c, "convolve_signs<{}, {}>", c.out.size, (c.x, c.kernel, c.out), padding)


def convolve_deformed(k: Any, c: Convolved, offsets: Array, mask: Array | None, deformed: int, fades: bool,
                      workspace: Any) -> Any:
    """Records a deformable convolution: columns of what its taps read, for as many images as there is room for, and
    products. NotImplemented for outputs whose pixels do not lie side by side."""
    out, pixels, depth = flat(c.out, len(c.x), c.groups, c.outputs), prod(c.out.shape[2:]), c.channels * prod(c.taps)
    if out is None or not depth:
        return NotImplemented
    images = max(workspace.size // max(c.groups * depth * pixels, 1), 1)
    for image in range(0, len(c.x) if out.size else 0, images):
        rows = slice(image, image + images)
        part = replace(c, x=c.x[rows], out=c.out[rows])
        columns = workspace[: len(part.x) * c.groups * depth * pixels]
        threads = len(part.x) * deformed * prod(c.taps) * pixels
        window, kind, scalar = part.window(max(columns.size, offsets.size))
        k.kernel(FILE, f"deform_columns<{k.c_type(c.out.dtype)}, {kind}, {str(fades).lower()}>",
                 (-(-threads // THREADS),), (THREADS,),
                 (part.x, offsets[rows], None if mask is None else mask[rows], columns, window,
                  scalar(deformed), scalar(threads)))
        taken = k.gemm(c.kernel.reshape(c.groups, c.outputs, depth),
                       columns.reshape(len(part.x), c.groups, depth, pixels), out[rows])
        assert taken, "cuBLAS takes dense columns"
    return None
