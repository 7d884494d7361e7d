"""Convolutions on CUDA devices: the choice among kernels of `cuda_kernels/convolution.cu`, cuBLAS and cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.launch import dense
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder, first_of
from ovgpu.ops.base.storage import compute_dtype, is_plain
from ovgpu.ops.base.strided import CHUNK_BYTES, Axes, bits, has_chunks, pixel_step, reciprocal, strides_of
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolved import Convolved, epilogue_arguments
from ovgpu.ops.convolution._implicit_gemm import convolve_pixels, multiplies_pixels
from ovgpu.types import Type

FILE = "convolution.cu"
THREADS = 256
ROWS, COLUMNS, DEPTH = 64, 128, 16  # outputs, pixels, and products per sum of a tile, as in convolution.cu
FEW_CHANNELS = 8  # the most channels per group, in or out, that would leave tiles mostly empty
MIN_PART_PRODUCTS = 8 * DEPTH  # the least products in each part of a sum that is split
BLOCKS_PER_SM = 2  # blocks per multiprocessor that certainly run at the same time
COLUMN_ELEMENTS = 1 << 24  # capacity of the workspace: elements of the im2col matrix that are gathered at a time


def shortened(steps: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """Return the strides or dilations, replaced by 1 along axes with a single position. There they have no effect, but
    might exceed the range of a kernel's index type."""
    return tuple(step if count > 1 else 1 for step, count in zip(steps, counts))


def convolve(k: KernelRecorder, c: Convolved, workspace: Sequence[Any]) -> None:
    """Record the calls that write ``c.out``, with a kernel chosen by types and shapes.

    Kernels of this project apply every epilogue, and cuDNN some. After a library that does not apply it, one more
    kernel applies the epilogue to the results in place. A convolution kernel that is not dense is copied unless cuDNN,
    `depthwise.cu` or `implicit_gemm.cu` takes it as it is.
    """
    if not c.out.size:
        return
    if _is_depthwise(c):
        return _by_channels(k, c)
    if _is_cut(c.x) or _is_cut(c.out):
        if multiplies_pixels(k, c, None):  # cuDNN may not take such arrays
            return convolve_pixels(k, c, None, c.out.dtype)
    if not c.kernel.flags.c_contiguous:
        if not _has_few_channels(c) and _by_cudnn(k, c):
            return
        if multiplies_pixels(k, c, None):
            return convolve_pixels(k, c, None, c.out.dtype)
        c = replace(c, kernel=dense(k, c.kernel))
    bare = replace(c, epilogue=None)
    if not is_plain(c.out.dtype):
        _in_compute_type(k, bare, workspace)
    elif c.out.dtype.kind in "iu" or _has_few_channels(c):
        return _by_elements(k, c)
    elif _by_matrices(k, c):
        return None
    elif c.transposed:
        return _gemm_col2im(k, c, workspace[0])
    elif c.out.dtype.itemsize == 2 and _im2col_gemm(k, bare, workspace[0]):  # tensor cores outweigh the columns
        pass
    else:
        return _implicit_gemm(k, c)
    _apply_epilogue(k, c)
    return None


def _by_matrices(k: KernelRecorder, c: Convolved) -> bool:
    """Record the convolution with cuDNN or cuBLAS, or with `implicit_gemm.cu`. Return False if none takes it."""

    def by_pixels() -> bool:
        convolve_pixels(k, c, None, c.out.dtype)
        return True

    attempts: dict[str, Callable[[], bool]] = {"cuDNN": partial(_by_libraries, k, c)}
    if multiplies_pixels(k, c, None):
        attempts["implicit_gemm"] = by_pixels
    sizes = f"{list(c.x.shape)} with {list(c.kernel.shape)} to {list(c.out.shape[2:])}"
    return first_of(k, f"convolution {c.x.dtype} {sizes}", attempts)


def _by_libraries(k: KernelRecorder, c: Convolved) -> bool:
    """Record cuDNN's convolution or cuBLAS's product, and a kernel for an epilogue that they do not compute. Return
    False if neither library takes the convolution."""
    if c.epilogue is not None and not _gemm_beats_cudnn(k, c) and k.convolve(c):
        return True
    bare = replace(c, epilogue=None)
    if not (c.pointwise and _pointwise_gemm(k, bare)) and not k.convolve(bare):
        return False
    _apply_epilogue(k, c)
    return True


def _is_cut(x: Array) -> bool:
    """Return whether an array with adjacent channels is a part of another one: its pixels are farther apart than it has
    channels."""
    return pixel_step(x) not in (0, x.shape[1])


def _by_cudnn(k: KernelRecorder, c: Convolved) -> bool:
    """Record cuDNN's convolution, and a kernel for an epilogue that cuDNN does not compute. Return False if cuDNN does
    not take the convolution."""
    if k.convolve(c):
        return True
    if c.epilogue is None or not k.convolve(replace(c, epilogue=None)):
        return False
    _apply_epilogue(k, c)
    return True


def _apply_epilogue(k: KernelRecorder, c: Convolved) -> None:
    if c.epilogue is not None:
        k.elementwise(c.epilogue.chain, [c.out, *c.epilogue.operands], c.out)


def _has_few_channels(c: Convolved) -> bool:
    return c.groups > 1 and min(c.channels, c.outputs) <= FEW_CHANNELS


def _gemm_beats_cudnn(k: KernelRecorder, c: Convolved) -> bool:
    """Return whether cuBLAS and a kernel for the epilogue are faster than cuDNN's fused convolution. They are for
    pointwise convolutions in f32 without TF32: 4 + 1.6 us instead of 15 us in MobileNetV2 on an H100."""
    return c.pointwise and c.out.dtype.itemsize > 2 and not k.tf32


def _in_compute_type(k: KernelRecorder, c: Convolved, workspace: Sequence[Any]) -> None:
    """Record a convolution of a type without CUDA arithmetic: compute it in the type that `evaluate` uses, and convert
    the result."""
    wide = compute_dtype(Type.of(c.out.dtype))
    out = k.scratch(c.out.shape, wide)
    convolve(k, replace(c, x=converted(k, c.x, wide), kernel=converted(k, c.kernel, wide), out=out), workspace)
    Convert(destination_type=Type.of(c.out.dtype)).cuda(k, [out], [c.out], ())


def converted(k: KernelRecorder, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy of the array in another type."""
    target = k.scratch(x.shape, dtype)
    Convert(destination_type=Type.of(dtype)).cuda(k, [x], [target], ())
    return target


def flat(x: Array, *leading: int) -> Any:
    """Return the array reshaped to [*leading, pixels], or None unless its pixels are contiguous."""
    axes = Axes.collapse(x.shape[2:], strides_of(x)[2:])
    if axes.extents and axes.strides != ((1,),):
        return None
    return x.reshape(*leading, prod(x.shape[2:]))


def _pointwise_gemm(k: KernelRecorder, c: Convolved) -> bool:
    """Record matrix products, one per image and group. Return whether cuBLAS takes them."""
    x = flat(c.x, len(c.x), c.groups, c.channels)
    out = flat(c.out, len(c.x), c.groups, c.outputs)
    kernel = c.kernel.reshape(c.kernel.shape[:3])
    return x is not None and out is not None and k.gemm(kernel.swapaxes(1, 2) if c.transposed else kernel, x, out)


def _launch(k: KernelRecorder, c: Convolved, name: str, size: int, arrays: Sequence[Any], *numbers: int) -> None:
    """Record a kernel with ``size`` threads and without an epilogue."""
    window, index_type, scalar = c.window(max(size, *(a.size for a in arrays)))
    k.kernel(
        FILE,
        name.format(k.c_type(c.out.dtype), index_type),
        (-(-size // THREADS),),
        (THREADS,),
        (*arrays, window, *map(scalar, numbers), scalar(size)),
    )


def _launch_with_epilogue(k: KernelRecorder, c: Convolved, name: str, arrays: Sequence[Any]) -> None:
    """Record a kernel with one thread per element of the result, which applies the epilogue."""
    window, index_type, scalar = c.window(max(a.size for a in arrays))
    epilogue, source, arguments = epilogue_arguments(k, c, scalar)
    k.kernel(
        FILE,
        name.format(k.c_type(c.out.dtype), index_type, epilogue),
        (-(-c.out.size // THREADS),),
        (THREADS,),
        (*arrays, window, *arguments, scalar(c.out.size)),
        prelude=source,
    )


def _is_depthwise(c: Convolved) -> bool:
    """Return whether `depthwise.cu` takes the arrays: images of floats, a kernel for each channel, and in all arrays
    adjacent channels, with pixels of whole chunks."""
    if c.transposed or c.groups == 1 or c.channels != 1 or c.outputs != 1 or len(c.taps) != 2:
        return False
    if c.out.dtype.name not in ("float16", "bfloat16", "float32"):
        return False
    kernel = strides_of(c.kernel)
    laid_out = kernel[0] == 1 and all(
        d == 1 or s == n for d, s, n in zip(c.taps, kernel[3:], (c.taps[1] * c.groups, c.groups))
    )
    return laid_out and c.kernel.data.ptr % CHUNK_BYTES == 0 and has_chunks(c.x) and has_chunks(c.out)


def _by_channels(k: KernelRecorder, c: Convolved) -> None:
    window, index_type, scalar = c.window(max(a.size for a in (c.x, c.kernel, c.out)))
    epilogue, source, arguments = epilogue_arguments(k, c, scalar)
    vectors, (height, width) = c.groups * c.out.dtype.itemsize // CHUNK_BYTES, c.out.shape[2:]
    size = vectors * c.out.size // c.groups
    division = np.array([(n, *reciprocal(n)) for n in (vectors, width, height)], np.int64).astype(np.int32)
    taps = c.taps[0] if c.taps in ((3, 3), (5, 5)) else 0
    k.kernel(
        "depthwise.cu",
        f"depthwise<{k.c_type(c.out.dtype)}, {index_type}, {taps}, {epilogue}>",
        (-(-size // THREADS),),
        (THREADS,),
        (c.x, c.kernel, c.out, window, division, *arguments, scalar(size)),
        prelude=source,
        early=True,
    )


def _by_elements(k: KernelRecorder, c: Convolved) -> None:
    name = f"convolve_each<{{}}, {{}}, {'true' if c.transposed else 'false'}, {{}}>"
    _launch_with_epilogue(k, c, name, (c.x, c.kernel, c.out))


def _implicit_gemm(k: KernelRecorder, c: Convolved) -> None:
    """Record an implicit GEMM over tiles of all images' pixels. If the tiles are too few for the device, sums are split
    into parts (split-K). A cooperative launch then guarantees that the blocks of all parts run at the same time."""
    sum_type = np.dtype(np.float64 if c.out.dtype == np.float64 else np.float32)
    depth = c.channels * prod(c.taps)
    tiles = (-(-(c.out.size // c.out.shape[1]) // COLUMNS), -(-c.outputs // ROWS))
    blocks = prod(tiles) * c.groups
    resident = k.multiprocessors * (BLOCKS_PER_SM if sum_type.itemsize == 4 and c.window(c.out.size)[1] == "int" else 1)
    parts = max(1, min(resident // blocks, depth // MIN_PART_PRODUCTS))
    per_part = -(-depth // parts // DEPTH) * DEPTH
    parts = max(1, -(-depth // max(per_part, 1)))
    window, index_type, scalar = c.window(parts * c.out.size)
    epilogue, source, arguments = epilogue_arguments(k, c, scalar)
    name = f"convolve_tiles<{k.c_type(c.out.dtype)}, {index_type}, {epilogue}>"
    if parts > 1 and not k.fits(FILE, name, (*tiles, c.groups * parts), (THREADS,), prelude=source):
        parts, per_part = 1, -(-depth // DEPTH) * DEPTH
    scratch = gates = None
    if parts > 1:
        scratch, gates = k.scratch((parts, c.out.size), sum_type), k.scratch((blocks, 2), np.dtype(np.uint32))
        gates.data.memset_async(0, gates.nbytes, k.stream)
    k.kernel(
        FILE,
        name,
        (*tiles, c.groups * parts),
        (THREADS,),
        (c.x, c.kernel, c.out, scratch, gates, window, scalar(per_part), *arguments),
        cooperative=parts > 1,
        prelude=source,
    )


def _im2col_gemm(k: KernelRecorder, c: Convolved, workspace: Any) -> bool:
    """Record products of the kernel and im2col columns, for as many images, or pixels of one image, at a time as the
    workspace holds. Return False if it holds no pixel, or the output's pixels are not contiguous."""
    out, depth, pixels = flat(c.out, len(c.x), c.groups, c.outputs), c.channels * prod(c.taps), prod(c.out.shape[2:])
    capacity = workspace.size // max(c.groups * depth, 1)  # pixels
    if out is None or not depth or not capacity:
        return False
    images, count = max(capacity // pixels, 1), min(capacity, pixels)
    kernel = c.kernel.reshape(*c.kernel.shape[:2], depth)
    for image in range(0, len(c.x), images):
        part = replace(c, x=c.x[image : image + images], out=c.out[image : image + images])
        for first in range(0, pixels, count):
            width = min(count, pixels - first)
            rows = len(part.x) * c.groups * c.channels
            columns = workspace[: rows * prod(c.taps) * width]
            window, index_type, scalar = part.window(columns.size)
            k.kernel(
                FILE,
                f"gather_columns<{bits(c.x.dtype.itemsize)}, {index_type}>",
                (-(-rows * width // THREADS),),
                (THREADS,),
                (part.x, columns, window, *map(scalar, (first, width, rows * width))),
            )
            accepted = k.gemm(
                kernel,
                columns.reshape(len(part.x), c.groups, depth, width),
                out[image : image + images, ..., first : first + width],
            )
            assert accepted, "cuBLAS takes dense columns"
    return True


def _gemm_col2im(k: KernelRecorder, c: Convolved, workspace: Any) -> None:
    """Record a transposed convolution, for as many images at a time as the workspace holds: the products of all taps,
    and the kernel that sums them up for each element of the output (col2im)."""
    if not c.channels:
        k.copy(np.zeros((), c.out.dtype), c.out)
        _apply_epilogue(k, c)
        return
    x = flat(c.x, len(c.x), c.groups, c.channels)
    if x is None:
        x = dense(k, c.x).reshape(len(c.x), c.groups, c.channels, prod(c.x.shape[2:]))
    rows = c.outputs * prod(c.taps)
    kernel = c.kernel.reshape(c.groups, c.channels, rows).swapaxes(1, 2)
    images = max(workspace.size // max(c.groups * rows * x.shape[-1], 1), 1)
    for image in range(0, len(x), images):
        batch = slice(image, image + images)
        epilogue = None if c.epilogue is None else c.epilogue.cut(0, batch, c.out.ndim)
        part = replace(c, x=c.x[batch], out=c.out[batch], epilogue=epilogue)
        shape = (len(part.x), c.groups, rows, x.shape[-1])
        columns = workspace[: prod(shape)].reshape(shape)
        accepted = k.gemm(kernel, x[batch], columns)
        assert accepted, "cuBLAS takes dense matrices"
        _launch_with_epilogue(k, part, "fold_columns<{}, {}, {}>", (columns, part.out))


def convolve_signs(k: KernelRecorder, c: Convolved, padding: int) -> None:
    """Record a convolution of signs with a kernel of bits. ``padding``, 1, 0 or -1, stands for elements outside the
    data."""
    if c.out.size:
        _launch(k, c, "convolve_signs<{}, {}>", c.out.size, (c.x, c.kernel, c.out), padding)


def convolve_deformed(
    k: KernelRecorder, c: Convolved, offsets: Array, mask: Array | None, deformed: int, fades: bool, workspace: Any
) -> Any:
    """Record a deformable convolution, for as many images at a time as the workspace holds: columns of interpolated
    data, and their products with the kernel. Return NotImplemented for outputs whose pixels are not contiguous.

    ``deformed`` is the number of channel groups that have offsets of their own. With ``fades``, values fade to 0 over
    one pixel around the data.
    """
    out, pixels, depth = flat(c.out, len(c.x), c.groups, c.outputs), prod(c.out.shape[2:]), c.channels * prod(c.taps)
    if out is None or not depth:
        return NotImplemented
    images = max(workspace.size // max(c.groups * depth * pixels, 1), 1)
    for image in range(0, len(c.x) if out.size else 0, images):
        rows = slice(image, image + images)
        part = replace(c, x=c.x[rows], out=c.out[rows])
        columns = workspace[: len(part.x) * c.groups * depth * pixels]
        threads = len(part.x) * deformed * prod(c.taps) * pixels
        window, index_type, scalar = part.window(max(columns.size, offsets.size))
        k.kernel(
            FILE,
            f"deform_columns<{k.c_type(c.out.dtype)}, {index_type}, {str(fades).lower()}>",
            (-(-threads // THREADS),),
            (THREADS,),
            (
                part.x,
                offsets[rows],
                None if mask is None else mask[rows],
                columns,
                window,
                scalar(deformed),
                scalar(threads),
            ),
        )
        accepted = k.gemm(
            c.kernel.reshape(c.groups, c.outputs, depth),
            columns.reshape(len(part.x), c.groups, depth, pixels),
            out[rows],
        )
        assert accepted, "cuBLAS takes dense columns"
    return None
