"""Convolutions on the host: matrix products of the kernel with im2col columns, built in blocks that stay in cache.

Other methods were slower on layers of ResNet-50, U-Net and MobileNetV2: `bench/results/convolution-forms.md` has the
figures. Winograd's algorithm gains a fifth at best, and loses with few channels or few pixels. For depthwise
convolutions, sums of shifted data, products with banded matrices and `einsum` all take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import HostRecorder
from ovgpu.ops.base.tasks import Worker, record, shares, workers
from ovgpu.ops.convolution._convolution import flat
from ovgpu.ops.convolution._convolved import Convolved

BLOCK_ELEMENTS = 1 << 18  # elements of the im2col matrix that a worker fills at a time
FEW_PIXELS = 256  # the most pixels per image for which workers divide the outputs, not the pixels, among themselves
MIN_OUTPUTS = 16  # the least outputs per worker: BLAS computes 16 at a time
PARALLEL_PRODUCTS = 1 << 20  # the least number of products for which several workers are faster than one

Index = tuple[slice, slice]  # images, channels
HostEpilogue = Callable[[Worker, Index], None]
"""Function that records the epilogue of the images and channels at an index, after they have been written."""


def convolve(k: HostRecorder, c: Convolved, workspace: Sequence[Array], epilogue: HostEpilogue | None = None) -> Any:
    """Record the calls that write ``c.out``. Return NotImplemented for outputs whose pixels are not contiguous.

    The workspace holds columns, and parts of the data padded with zeros; every worker has its share. The method depends
    on the shape. Pointwise convolutions are products alone. Depthwise ones use columns of several channels, and take
    1.4 to 4 times as long as the products alone. All others use columns of several pixels, and take 1.0 to 1.4 times as
    long as the products.
    """
    out = flat(c.out, len(c.x), c.groups, c.outputs)
    if out is None:
        return NotImplemented
    work = _workers_for(c)
    if not c.channels:
        work[0](np.copyto, out, 0)
    elif c.pointwise and (x := flat(c.x, len(c.x), c.groups, c.channels)) is not None:
        epilogue = _products(work, c, x, out, epilogue)
    elif c.channels * c.outputs == 1 and _by_channels(work, c, workspace, epilogue):
        epilogue = None
    else:
        epilogue = _by_columns(work, c, out, workspace, epilogue)
    record(k, work)
    _apply_to_all(k, c, epilogue)
    return None


def _workers_for(c: Convolved) -> list[Worker]:
    return workers(c.out.size * (c.channels * prod(c.taps) + MIN_OUTPUTS) >= PARALLEL_PRODUCTS)


def _apply_to_all(k: HostRecorder, c: Convolved, epilogue: HostEpilogue | None) -> None:
    """Record the epilogue of the whole result, unless it is None."""
    if epilogue is not None:
        work = _workers_for(c)
        for image, (worker, share) in product(range(len(c.out)), zip(work, shares(c.out.shape[1], len(work)))):
            epilogue(worker, (slice(image, image + 1), share))
        record(k, work)


def _products(
    work: Sequence[Worker], c: Convolved, x: Array, out: Array, epilogue: HostEpilogue | None
) -> HostEpilogue | None:
    """Record a pointwise convolution as products of the kernel and the data, one or several per image.

    If the images do not divide evenly among the workers, these divide each image: its outputs, or its pixels if there
    are few outputs. An epilogue takes whole channels. It is recorded here if products compute whole channels, otherwise
    it is returned, and the caller records it later.
    """
    kernel, extents = c.kernel.reshape(c.groups, c.outputs, -1), c.out.shape[2:]
    cuts = 1 if len(x) % len(work) == 0 else len(work)
    rows, parts = [slice(0, c.outputs)], [((0,) * len(extents), extents)]
    if c.groups == 1 and c.outputs >= cuts * MIN_OUTPUTS:
        rows = shares(c.outputs, cuts)
    else:
        parts = [*_parts(extents, -(-prod(extents) // cuts))]
    for tile, (image, share, part) in enumerate(product(range(len(x)), rows, parts)):
        worker, pixels = work[tile % len(work)], _pixels(c, part)
        worker(np.matmul, kernel[:, share], x[image, ..., pixels], out[image, :, share, pixels])
        if epilogue and len(parts) == 1:
            epilogue(worker, (slice(image, image + 1), share if c.groups == 1 else slice(0, c.out.shape[1])))
    return epilogue if len(parts) > 1 else None


def _by_columns(
    work: Sequence[Worker], c: Convolved, out: Array, workspace: Sequence[Array], epilogue: HostEpilogue | None
) -> HostEpilogue | None:
    """Record products of the kernel and im2col columns, each for several images or for some pixels of one image.

    Return the epilogue if it is still to be recorded, as in `_products`.
    """
    kernel, extents, pixels = c.kernel.reshape(c.groups, c.outputs, -1), c.out.shape[2:], prod(c.out.shape[2:])
    columns, frame = (memory.size // len(work) for memory in workspace)
    depth, whole_images = c.groups * kernel.shape[2], len(c.x) % len(work) == 0
    images = max(min(columns // (depth * pixels), len(c.x) // len(work)), 1)
    capacity = min(columns // (images * depth), pixels)
    rows = [slice(0, c.outputs)]
    if not whole_images and c.groups == 1 and pixels <= min(FEW_PIXELS, capacity):
        rows = shares(c.outputs, len(work))
    elif not whole_images:
        capacity = -(-pixels // (-(-pixels // (capacity * len(work))) * len(work)))
    while _needs_padding(c) and images * c.x.shape[1] * prod(_reach(c, next(_parts(extents, capacity)))) > frame:
        images, capacity = max(images // 2, 1), capacity if images > 1 else capacity // 2
    tiles = product(range(0, len(c.x), images), rows, _parts(extents, capacity))
    for tile, (image, share, part) in enumerate(tiles):
        worker, batch = work[tile % len(work)], slice(image, min(image + images, len(c.x)))
        patches = _im2col(worker, c, c.x[batch], part, workspace)
        worker(
            np.matmul,
            kernel[:, share],
            patches.reshape(len(patches), c.groups, kernel.shape[2], -1),
            out[batch, :, share, _pixels(c, part)],
        )
        if epilogue and part[1] == extents:
            epilogue(worker, (batch, share if c.groups == 1 else slice(0, c.out.shape[1])))
    return epilogue if capacity < pixels else None


def _by_channels(
    work: Sequence[Worker], c: Convolved, workspace: Sequence[Array], epilogue: HostEpilogue | None
) -> bool:
    """Record a depthwise convolution with columns of several channels at a time. Return False, and record nothing, if
    the workspace is too small for one channel.

    With strides of 1, the elements that a tap reads are copied as one contiguous run of the data, which is faster than
    copying row by row. The run includes elements between the rows; their results are dropped.
    """
    whole, taps = ((0,) * len(c.taps), c.out.shape[2:]), prod(c.taps)
    reach, runs = _reach(c, whole), prod(c.strides) == 1
    length = 1 + sum((n - 1) * prod(reach[axis + 1 :]) for axis, n in enumerate(whole[1])) if runs else prod(whole[1])
    columns, frame = (memory.size // len(work) for memory in workspace)
    capacity = columns // ((taps + 1) * length)
    if _needs_padding(c) or not c.x[0].flags.c_contiguous:
        capacity = min(capacity, frame // prod(reach))
    if not capacity:
        return False
    channels = -(-c.groups // (-(-c.groups // (capacity * len(work))) * len(work)))
    for tile, (image, first) in enumerate(product(range(len(c.x)), range(0, c.groups, channels))):
        worker = work[tile % len(work)]
        index = slice(image, image + 1), slice(first, min(first + channels, c.groups))
        kernel, out = c.kernel[index[1]].reshape(-1, 1, taps), c.out[index]
        if runs:
            memory = worker.share(workspace[0])
            x = _padded_data(worker, c, c.x[index], whole, worker.share(workspace[1]), dense=True)
            patches = memory[: len(kernel) * taps * length].reshape(len(kernel), *c.taps, length)
            sums = memory[patches.size : patches.size + len(kernel) * length].reshape(len(kernel), 1, length)
            steps = (x.strides[1], *(n * d for n, d in zip(x.strides[2:], c.dilations)), x.itemsize)
            worker(np.copyto, patches, as_strided(x, patches.shape, steps, writeable=False))
            worker(np.matmul, kernel, patches.reshape(len(kernel), taps, length), sums)
            worker(np.copyto, out, as_strided(sums, out.shape, (0, sums.strides[0], *x.strides[2:]), writeable=False))
        else:
            patches = _im2col(worker, c, c.x[index], whole, workspace)
            worker(np.matmul, kernel, patches.reshape(len(kernel), taps, length), flat(out, len(kernel), 1))
        if epilogue:
            epilogue(worker, index)
    return True


Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Offset and extent of a part of an image's pixels along each spatial axis."""


def _parts(extents: Sequence[int], capacity: int) -> Iterator[Part]:
    """Divide an image into parts of at most ``capacity`` pixels, each contiguous in memory, and yield them."""
    axis = next((a for a in range(len(extents)) if prod(extents[a + 1 :]) <= capacity), len(extents) - 1)
    step, inner = max(capacity // prod(extents[axis + 1 :]), 1), extents[axis + 1 :]
    for outer in product(*map(range, extents[:axis])):
        for i in range(0, extents[axis], step):
            yield (*outer, i, *(0,) * len(inner)), (*(1,) * axis, min(step, extents[axis] - i), *inner)


def _pixels(c: Convolved, part: Part) -> slice:
    """Return the part as a slice of the flattened pixels."""
    first = int(np.ravel_multi_index(part[0], c.out.shape[2:]))
    return slice(first, first + prod(part[1]))


def _reach(c: Convolved, part: Part) -> list[int]:
    """Return the extents of the data that the taps read for a part of the output."""
    return [(n - 1) * s + (t - 1) * d + 1 for n, s, t, d in zip(part[1], c.strides, c.taps, c.dilations)]


def _needs_padding(c: Convolved) -> bool:
    """Return whether any tap reads outside of the data."""
    reach = _reach(c, ((0,) * len(c.taps), c.out.shape[2:]))
    return any(c.begin) or any(n > size for n, size in zip(reach, c.x.shape[2:]))


def _padded_data(worker: Worker, c: Convolved, x: Array, part: Part, memory: Array, dense: bool = False) -> Array:
    """Return the data that taps read for a part of the output: a view if all of it lies inside the data, else a copy in
    ``memory`` with zeros around it.

    With ``dense``, a view that is not contiguous is copied as well.
    """
    reach = _reach(c, part)
    first = [i * s - b for i, s, b in zip(part[0], c.strides, c.begin)]
    x = x[(..., *(slice(max(f, 0), max(f + n, 0)) for f, n in zip(first, reach)))]
    if x.shape[2:] == (*reach,) and (x.flags.c_contiguous or not dense):
        return x
    frame = memory[: x.shape[0] * x.shape[1] * prod(reach)].reshape(*x.shape[:2], *reach)
    inner: tuple[slice, ...] = (slice(None), slice(None))
    for size, f in zip(x.shape[2:], first):
        begin = max(-f, 0)
        for edge in (slice(0, begin), slice(begin + size, None)):
            if frame[(*inner, edge)].size:
                worker(np.copyto, frame[(*inner, edge)], 0)
        inner = (*inner, slice(begin, begin + size))
    worker(np.copyto, frame[inner], x)
    return frame


def _im2col(worker: Worker, c: Convolved, x: Array, part: Part, workspace: Sequence[Array]) -> Array:
    """Record the copy of the data into im2col columns for a part of the output. Return the columns: [images, channels,
    taps, extents]."""
    x = _padded_data(worker, c, x, part, worker.share(workspace[1]))
    shape = (*x.shape[:2], *c.taps, *part[1])
    steps = x.strides[2:]
    strides = (*x.strides[:2], *(n * d for n, d in zip(steps, c.dilations)), *(n * s for n, s in zip(steps, c.strides)))
    columns = worker.share(workspace[0])[: prod(shape)].reshape(shape)
    worker(np.copyto, columns, as_strided(x, shape, strides, writeable=False))
    return columns


def convolve_transposed(k: HostRecorder, c: Convolved, columns: Array, epilogue: HostEpilogue | None = None) -> Any:
    """Record the calls that write ``c.out`` of a transposed convolution: they multiply data and kernel for every tap,
    and add the products to the output (col2im). Return NotImplemented for data whose pixels are not contiguous."""
    x = flat(c.x, len(c.x), c.groups, c.channels)
    if x is None:
        return NotImplemented
    if c.pointwise and (out := flat(c.out, len(c.x), c.groups, c.outputs)) is not None:
        work = _workers_for(c)
        epilogue = _products(work, replace(c, kernel=c.kernel.swapaxes(1, 2)), x, out, epilogue)
        record(k, work)
        _apply_to_all(k, c, epilogue)
        return None
    output_elements = prod(c.taps) * prod(c.x.shape[2:])
    work = _workers_for(c)
    if columns.size < len(work) * output_elements:
        work = [Worker()]
    _by_outputs(work, c, x, columns, epilogue)
    record(k, work)
    return None


def _by_outputs(work: Sequence[Worker], c: Convolved, x: Array, columns: Array, epilogue: HostEpilogue | None) -> None:
    """Record the products of all taps, for several groups or for some outputs of a group at a time, and their addition
    to the output."""
    kernel, sizes, taps = c.kernel.reshape(c.groups, c.channels, -1).swapaxes(1, 2), c.x.shape[2:], prod(c.taps)
    disjoint = all((t - 1) * d < s for t, d, s in zip(c.taps, c.dilations, c.strides))  # no products overlap
    target = c.out.reshape(len(c.x), c.groups, c.outputs, *c.out.shape[2:])
    capacity = min(columns.size // len(work), BLOCK_ELEMENTS) // max(taps * prod(sizes), 1)
    groups, outputs = max(min(capacity // c.outputs, -(-c.groups // len(work))), 1), max(min(capacity, c.outputs), 1)
    if c.groups == 1:
        outputs = min(outputs, -(-c.outputs // len(work)))
    tiles = product(range(len(x)), range(0, c.groups, groups), range(0, c.outputs, outputs))
    for tile, (image, g, o) in enumerate(tiles):
        worker, part = work[tile % len(work)], target[image, g : g + groups, o : o + outputs]
        patches = worker.share(columns)[: part.shape[0] * part.shape[1] * taps * prod(sizes)]
        patches = patches.reshape(*part.shape[:2], *c.taps, *sizes)
        worker(
            np.matmul,
            kernel[g : g + groups, o * taps : (o + outputs) * taps],
            x[image, g : g + groups],
            patches.reshape(len(part), -1, prod(sizes)),
        )
        worker(np.copyto, part, 0)
        for tap in np.ndindex(c.taps):
            read, written = _tap_slices(c, tap)
            source, destination = patches[(slice(None), slice(None), *tap, *read)], part[(..., *written)]
            if disjoint:
                worker(np.copyto, destination, source)
            else:
                worker(np.add, destination, source, destination)
        channels = slice(g * c.outputs + o, g * c.outputs + o + part.shape[0] * part.shape[1])
        if epilogue:
            epilogue(worker, (slice(image, image + 1), channels))


def _tap_slices(c: Convolved, tap: Sequence[int]) -> tuple[list[slice], list[slice]]:
    """Return a slice per spatial axis of the data, the pixels that a tap of a transposed convolution reads, and of the
    output, the pixels to which it adds its products."""
    read, written = [], []
    for size, extent, t, s, d, b in zip(c.x.shape[2:], c.out.shape[2:], tap, c.strides, c.dilations, c.begin):
        shift = t * d - b  # pixel i is added to pixel i * s + shift
        first = max(-(shift // s), 0)
        last = min(size, (extent - 1 - shift) // s + 1)
        count = max(last - first, 0)
        read.append(slice(first, first + count))
        written.append(slice(first * s + shift, first * s + shift + (count - 1) * s + 1 if count else 0, s))
    return read, written
