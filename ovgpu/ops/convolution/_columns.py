"""Convolutions on the host: products of matrices with columns of what every tap reads, some in cache at a time.

Other forms were measured on layers of ResNet-50, U-Net and MobileNetV2, and lost: `bench/results/convolution-forms.md`
has the figures. Winograd's algorithm gains a fifth at best, and loses where there are few channels or few pixels. With
a kernel for every channel, sums of shifted data, products with banded matrices and `einsum` all take longer.
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
from ovgpu.ops.base.tasks import Worker, record, shares, workers
from ovgpu.ops.convolution._convolution import Convolved, flat

BLOCK = 1 << 18  # elements of columns at a time, in every worker
FEW = 256  # pixels of an image, up to which workers share out the outputs instead
ROWS = 16  # outputs at least of a worker: BLAS computes so many at a time
WORK = 1 << 20  # products that are worth a second worker

Index = tuple[slice, slice]
HostEpilogue = Callable[[Worker, Index], None]
"""Records what is done with some channels of some images of the result, which are written."""


def convolve(k: Any, c: Convolved, workspace: Sequence[Array], epilogue: HostEpilogue | None = None) -> Any:
    """Records the calls that write ``c.out``. NotImplemented for outputs whose pixels do not lie side by side.

    The workspace are columns, and parts of the data in frames of zeros; every worker has its share. The choice by
    shape: without taps, products alone, at 1.0 of their bare time; with a kernel for every channel, columns of some
    channels, at 1.4 to 4; else columns of some pixels, at 1.0 to 1.4.
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
    return workers(c.out.size * (c.channels * prod(c.taps) + ROWS) >= WORK)


def _apply_to_all(k: Any, c: Convolved, epilogue: HostEpilogue | None) -> None:
    """Apply the epilogue to the whole result, unless that is done."""
    if epilogue is not None:
        work = _workers_for(c)
        for image, (worker, share) in product(range(len(c.out)), zip(work, shares(c.out.shape[1], len(work)))):
            epilogue(worker, (slice(image, image + 1), share))
        record(k, work)


def _products(work: Sequence[Worker], c: Convolved, x: Array, out: Array,
              epilogue: HostEpilogue | None) -> HostEpilogue | None:
    """Of the kernel and the data: of whole images, of some outputs, or of some pixels where there are few outputs.

    Like the other forms, finishes whole channels; gives back ``epilogue`` if there is still to do.
    """
    kernel, extents = c.kernel.reshape(c.groups, c.outputs, -1), c.out.shape[2:]
    cuts = 1 if len(x) % len(work) == 0 else len(work)
    rows, parts = [slice(0, c.outputs)], [((0,) * len(extents), extents)]
    if c.groups == 1 and c.outputs >= cuts * ROWS:
        rows = shares(c.outputs, cuts)
    else:
        parts = [*_parts(extents, -(-prod(extents) // cuts))]
    for number, (image, share, part) in enumerate(product(range(len(x)), rows, parts)):
        worker, pixels = work[number % len(work)], _pixels(c, part)
        worker(np.matmul, kernel[:, share], x[image, ..., pixels], out[image, :, share, pixels])
        if epilogue and len(parts) == 1:
            epilogue(worker, (slice(image, image + 1), share if c.groups == 1 else slice(0, c.out.shape[1])))
    return epilogue if len(parts) > 1 else None


def _by_columns(work: Sequence[Worker], c: Convolved, out: Array, workspace: Sequence[Array],
                epilogue: HostEpilogue | None) -> HostEpilogue | None:
    """Columns of some images, or of some pixels of one, and their products with the kernel."""
    kernel, extents, pixels = c.kernel.reshape(c.groups, c.outputs, -1), c.out.shape[2:], prod(c.out.shape[2:])
    columns, frame = (memory.size // len(work) for memory in workspace)
    depth, alone = c.groups * kernel.shape[2], len(c.x) % len(work) == 0
    images = max(min(columns // (depth * pixels), len(c.x) // len(work)), 1)
    room = min(columns // (images * depth), pixels)
    rows = [slice(0, c.outputs)]
    if not alone and c.groups == 1 and pixels <= min(FEW, room):
        rows = shares(c.outputs, len(work))
    elif not alone:
        room = -(-pixels // (-(-pixels // (room * len(work))) * len(work)))
    while _padded(c) and images * c.x.shape[1] * prod(_reach(c, next(_parts(extents, room)))) > frame:
        images, room = max(images // 2, 1), room if images > 1 else room // 2
    places = product(range(0, len(c.x), images), rows, _parts(extents, room))
    for number, (image, share, part) in enumerate(places):
        worker, some = work[number % len(work)], slice(image, min(image + images, len(c.x)))
        found = _columns(worker, c, c.x[some], part, workspace)
        worker(np.matmul, kernel[:, share], found.reshape(len(found), c.groups, kernel.shape[2], -1),
             out[some, :, share, _pixels(c, part)])
        if epilogue and part[1] == extents:
            epilogue(worker, (some, share if c.groups == 1 else slice(0, c.out.shape[1])))
    return epilogue if room < pixels else None


def _by_channels(work: Sequence[Worker], c: Convolved, workspace: Sequence[Array],
                 epilogue: HostEpilogue | None) -> bool:
    """With a kernel for every channel, the columns of some channels at a time; whether there is room for one.

    With steps of 1, what a tap reads is one run through the rows of the data, copied faster than row by row; what it
    gives between the rows of the output is dropped.
    """
    whole, taps = ((0,) * len(c.taps), c.out.shape[2:]), prod(c.taps)
    reach, runs = _reach(c, whole), prod(c.strides) == 1
    length = 1 + sum((n - 1) * prod(reach[axis + 1 :]) for axis, n in enumerate(whole[1])) if runs else prod(whole[1])
    columns, frame = (memory.size // len(work) for memory in workspace)
    room = columns // ((taps + 1) * length)
    if _padded(c) or not c.x[0].flags.c_contiguous:
        room = min(room, frame // prod(reach))
    if not room:
        return False
    channels = -(-c.groups // (-(-c.groups // (room * len(work))) * len(work)))
    for number, (image, first) in enumerate(product(range(len(c.x)), range(0, c.groups, channels))):
        worker = work[number % len(work)]
        index = slice(image, image + 1), slice(first, min(first + channels, c.groups))
        kernel, out = c.kernel[index[1]].reshape(-1, 1, taps), c.out[index]
        if runs:
            memory = worker.share(workspace[0])
            x = _frame(worker, c, c.x[index], whole, worker.share(workspace[1]), dense=True)
            found = memory[: len(kernel) * taps * length].reshape(len(kernel), *c.taps, length)
            sums = memory[found.size : found.size + len(kernel) * length].reshape(len(kernel), 1, length)
            steps = (x.strides[1], *(n * d for n, d in zip(x.strides[2:], c.dilations)), x.itemsize)
            worker(np.copyto, found, as_strided(x, found.shape, steps, writeable=False))
            worker(np.matmul, kernel, found.reshape(len(kernel), taps, length), sums)
            worker(np.copyto, out, as_strided(sums, out.shape, (0, sums.strides[0], *x.strides[2:]), writeable=False))
        else:
            found = _columns(worker, c, c.x[index], whole, workspace)
            worker(np.matmul, kernel, found.reshape(len(kernel), taps, length), flat(out, len(kernel), 1))
        if epilogue:
            epilogue(worker, index)
    return True


Part = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a part of an image's pixels begins, and how far it extends, along each spatial axis."""


def _parts(extents: Sequence[int], room: int) -> Iterator[Part]:
    """Parts of at most ``room`` pixels that lie side by side in an array."""
    axis = next((a for a in range(len(extents)) if prod(extents[a + 1 :]) <= room), len(extents) - 1)
    step, inner = max(room // prod(extents[axis + 1 :]), 1), extents[axis + 1 :]
    for outer in product(*map(range, extents[:axis])):
        for i in range(0, extents[axis], step):
            yield (*outer, i, *(0,) * len(inner)), (*(1,) * axis, min(step, extents[axis] - i), *inner)


def _pixels(c: Convolved, part: Part) -> slice:
    """The part in a row of all pixels."""
    first = int(np.ravel_multi_index(part[0], c.out.shape[2:]))
    return slice(first, first + prod(part[1]))


def _reach(c: Convolved, part: Part) -> list[int]:
    """How much data all taps read along each spatial axis."""
    return [(n - 1) * s + (t - 1) * d + 1 for n, s, t, d in zip(part[1], c.strides, c.taps, c.dilations)]


def _padded(c: Convolved) -> bool:
    """Whether taps read what is no data."""
    reach = _reach(c, ((0,) * len(c.taps), c.out.shape[2:]))
    return any(c.begin) or any(n > size for n, size in zip(reach, c.x.shape[2:]))


def _frame(worker: Worker, c: Convolved, x: Array, part: Part, memory: Array, dense: bool = False) -> Array:
    """The data that are read for a part of the output: where they are, if need be ``dense``, or behind and before
    zeros."""
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


def _columns(worker: Worker, c: Convolved, x: Array, part: Part, workspace: Sequence[Array]) -> Array:
    """What every tap reads for a part of the output: [images, channels, taps, extents]."""
    x = _frame(worker, c, x, part, worker.share(workspace[1]))
    shape = (*x.shape[:2], *c.taps, *part[1])
    steps = x.strides[2:]
    strides = (*x.strides[:2], *(n * d for n, d in zip(steps, c.dilations)), *(n * s for n, s in zip(steps, c.strides)))
    columns = worker.share(workspace[0])[: prod(shape)].reshape(shape)
    worker(np.copyto, columns, as_strided(x, shape, strides, writeable=False))
    return columns


def convolve_transposed(k: Any, c: Convolved, columns: Array, epilogue: HostEpilogue | None = None) -> Any:
    """Records the calls that write ``c.out``: products for every tap, added where they belong. NotImplemented for data
    whose pixels do not lie side by side."""
    x = flat(c.x, len(c.x), c.groups, c.channels)
    if x is None:
        return NotImplemented
    if c.pointwise and (out := flat(c.out, len(c.x), c.groups, c.outputs)) is not None:
        work = _workers_for(c)
        epilogue = _products(work, replace(c, kernel=c.kernel.swapaxes(1, 2)), x, out, epilogue)
        record(k, work)
        _apply_to_all(k, c, epilogue)
        return None
    each = prod(c.taps) * prod(c.x.shape[2:])
    work = _workers_for(c)
    if columns.size < len(work) * each:
        work = [Worker()]
    _by_outputs(work, c, x, columns, epilogue)
    record(k, work)
    return None


def _by_outputs(work: Sequence[Worker], c: Convolved, x: Array, columns: Array, epilogue: HostEpilogue | None) -> None:
    """The products of some groups or outputs at a time, for every tap."""
    kernel, sizes, taps = c.kernel.reshape(c.groups, c.channels, -1).swapaxes(1, 2), c.x.shape[2:], prod(c.taps)
    apart = all((t - 1) * d < s for t, d, s in zip(c.taps, c.dilations, c.strides))  # no products meet
    target = c.out.reshape(len(c.x), c.groups, c.outputs, *c.out.shape[2:])
    room = min(columns.size // len(work), BLOCK) // max(taps * prod(sizes), 1)
    groups, outputs = max(min(room // c.outputs, -(-c.groups // len(work))), 1), max(min(room, c.outputs), 1)
    if c.groups == 1:
        outputs = min(outputs, -(-c.outputs // len(work)))
    places = product(range(len(x)), range(0, c.groups, groups), range(0, c.outputs, outputs))
    for number, (image, g, o) in enumerate(places):
        worker, part = work[number % len(work)], target[image, g : g + groups, o : o + outputs]
        found = worker.share(columns)[: part.shape[0] * part.shape[1] * taps * prod(sizes)]
        found = found.reshape(*part.shape[:2], *c.taps, *sizes)
        worker(np.matmul, kernel[g : g + groups, o * taps : (o + outputs) * taps], x[image, g : g + groups],
             found.reshape(len(part), -1, prod(sizes)))
        worker(np.copyto, part, 0)
        for tap in np.ndindex(c.taps):
            read, written = _meeting(c, tap)
            source, place = found[(slice(None), slice(None), *tap, *read)], part[(..., *written)]
            if apart:
                worker(np.copyto, place, source)
            else:
                worker(np.add, place, source, place)
        channels = slice(g * c.outputs + o, g * c.outputs + o + part.shape[0] * part.shape[1])
        if epilogue:
            epilogue(worker, (slice(image, image + 1), channels))


def _meeting(c: Convolved, tap: Sequence[int]) -> tuple[list[slice], list[slice]]:
    """Which pixels of the data have a place in the output for a tap of a transposed convolution, and that place."""
    read, written = [], []
    for size, extent, t, s, d, b in zip(c.x.shape[2:], c.out.shape[2:], tap, c.strides, c.dilations, c.begin):
        shift = t * d - b  # pixel i belongs to i * s + shift
        first = max(-(shift // s), 0)
        last = min(size, (extent - 1 - shift) // s + 1)
        count = max(last - first, 0)
        read.append(slice(first, first + count))
        written.append(slice(first * s + shift, first * s + shift + (count - 1) * s + 1 if count else 0, s))
    return read, written
