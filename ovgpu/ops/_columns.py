"""Convolutions on the host: products of matrices with columns of what every tap reads, some in cache at a time.

Measured on layers of ResNet-50, U-Net and MobileNetV2, products with columns win over sums of shifted data, also
where every channel has a kernel of its own, and Winograd's algorithm gains too little to keep other weights for it:
at best a fifth, and nothing where there are few channels or few pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ovgpu.ops._convolution import Convolved, flat
from ovgpu.ops._op import Array

BLOCK = 1 << 18  # elements of columns at a time


def convolve(k: Any, c: Convolved, workspace: Sequence[Array]) -> Any:
    """Records the calls that write ``c.out``. NotImplemented for outputs whose pixels do not lie side by side.

    The workspace are columns, and the data in a frame of zeros.
    """
    out = flat(c.out, len(c.x), c.groups, c.outputs)
    if out is None:
        return NotImplemented
    kernel = c.kernel.reshape(c.groups, c.outputs, -1)
    if c.pointwise and (x := flat(c.x, len(c.x), c.groups, c.channels)) is not None:
        k(np.matmul, kernel, x, out)
        return None
    if not kernel.shape[2]:
        k(np.copyto, out, 0)
        return None
    columns, depth, pixels = workspace[0], c.x.shape[1] * prod(c.taps), out.shape[-1]
    span = [(n - 1) * s + (t - 1) * d + 1
            for n, s, t, d in zip(c.out.shape[2:], c.strides, c.taps, c.dilations)]
    framed = any(c.begin) or any(n > size for n, size in zip(span, c.x.shape[2:]))
    images = max(min(columns.size, BLOCK) // (depth * pixels), 1)
    if framed:
        images = max(min(images, workspace[1].size // (c.x.shape[1] * prod(span))), 1)
    for image in range(0, len(c.x), images):
        x = c.x[image : image + images]
        if framed:
            x = _frame(k, x, workspace[1], c.begin, span)
        if _runs(k, c, x, kernel, c.out[image : image + len(x)], columns):
            continue
        for start, extents in _blocks(c.out.shape[2:], columns.size // (len(x) * depth)):
            first = int(np.ravel_multi_index(start, c.out.shape[2:]))
            found = columns[: len(x) * depth * prod(extents)].reshape(*x.shape[:2], *c.taps, *extents)
            k(np.copyto, found, _windows(x, c, start, extents))
            k(np.matmul, kernel, found.reshape(len(x), c.groups, kernel.shape[2], -1),
              out[image : image + len(x), ..., first : first + prod(extents)])
    return None


def _frame(k: Any, x: Array, memory: Array, begin: Sequence[int], span: Sequence[int]) -> Array:
    """So much of the data as is read, behind and before zeros."""
    frame = memory[: len(x) * x.shape[1] * prod(span)].reshape(*x.shape[:2], *span)
    inner: tuple[slice, ...] = (slice(None), slice(None))
    for size, b, n in zip(x.shape[2:], begin, span):
        for edge in (slice(0, b), slice(b + size, None)):
            if frame[(*inner, edge)].size:
                k(np.copyto, frame[(*inner, edge)], 0)
        inner = (*inner, slice(b, min(b + size, n)))
    k(np.copyto, frame[inner], x[(..., *(slice(0, n) for n in frame[inner].shape[2:]))])
    return frame


def _runs(k: Any, c: Convolved, x: Array, kernel: Array, out: Array, columns: Array) -> bool:
    """With a kernel for every channel and steps of 1, what a tap reads is one run through the rows of the data, copied
    faster than row by row; what it gives between the rows of the output is dropped. Whether that was recorded."""
    length = 1 + sum((n - 1) * s // x.itemsize for n, s in zip(out.shape[2:], x.strides[2:]))
    channels = columns.size // ((kernel.shape[2] + 1) * length)
    if c.channels * c.outputs * prod(c.strides) != 1 or not channels or flat(x, *x.shape[:2]) is None:
        return False
    for image, first in product(range(len(x)), range(0, x.shape[1], channels)):
        part, place = x[image, first : first + channels], out[image, first : first + channels]
        found = columns[: len(part) * kernel.shape[2] * length].reshape(len(part), *c.taps, length)
        sums = columns[found.size : found.size + len(part) * length].reshape(len(part), 1, length)
        steps = (part.strides[0], *(n * d for n, d in zip(part.strides[1:], c.dilations)), x.itemsize)
        k(np.copyto, found, as_strided(part, found.shape, steps, writeable=False))
        k(np.matmul, kernel[first : first + len(part)], found.reshape(len(part), -1, length), sums)
        k(np.copyto, place, as_strided(sums, place.shape, (sums.strides[0], *part.strides[1:]), writeable=False))
    return True


def _blocks(extents: Sequence[int], room: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Where parts of at most ``room`` elements begin that lie side by side in an array, and how far they extend."""
    axis = next((a for a in range(len(extents)) if prod(extents[a + 1 :]) <= room), len(extents) - 1)
    step, inner = max(room // prod(extents[axis + 1 :]), 1), extents[axis + 1 :]
    for outer in product(*map(range, extents[:axis])):
        for i in range(0, extents[axis], step):
            yield ((*outer, i, *(0,) * len(inner)), (*(1,) * axis, min(step, extents[axis] - i), *inner))


def _windows(x: Array, c: Convolved, start: Sequence[int], extents: Sequence[int]) -> Array:
    """A view of what every tap reads: [images, channels, taps, extents], for output pixels from ``start`` on."""
    steps = x.strides[2:]
    corner = x[(..., *(slice(i * s, None) for i, s in zip(start, c.strides)))]
    strides = (*x.strides[:2], *(n * d for n, d in zip(steps, c.dilations)), *(n * s for n, s in zip(steps, c.strides)))
    return as_strided(corner, (*x.shape[:2], *c.taps, *extents), strides, writeable=False)


def convolve_transposed(k: Any, c: Convolved, columns: Array) -> Any:
    """Records the calls that write ``c.out``: products for every tap, added where they belong. NotImplemented for data
    whose pixels do not lie side by side."""
    x = flat(c.x, len(c.x), c.groups, c.channels)
    if x is None:
        return NotImplemented
    kernel = c.kernel.reshape(c.groups, c.channels, -1).swapaxes(1, 2)
    if c.pointwise and (out := flat(c.out, len(c.x), c.groups, c.outputs)) is not None:
        k(np.matmul, kernel, x, out)
        return None
    sizes, taps = c.x.shape[2:], prod(c.taps)
    apart = all((t - 1) * d < s for t, d, s in zip(c.taps, c.dilations, c.strides))  # no products meet
    k(np.copyto, c.out, 0)
    target = c.out.reshape(len(c.x), c.groups, c.outputs, *c.out.shape[2:])
    each = max(taps * prod(sizes), 1)
    groups, outputs = max(BLOCK // (each * c.outputs), 1), max(BLOCK // each, 1)
    for image, g, o in product(range(len(x)), range(0, c.groups, groups), range(0, c.outputs, outputs)):
        part = target[image, g : g + groups, o : o + outputs]
        found = columns[: part.shape[0] * part.shape[1] * each].reshape(*part.shape[:2], *c.taps, *sizes)
        k(np.matmul, kernel[g : g + groups, o * taps : (o + outputs) * taps], x[image, g : g + groups],
          found.reshape(len(part), -1, prod(sizes)))
        for tap in np.ndindex(c.taps):
            read, written = _meeting(c, tap)
            source, place = found[(slice(None), slice(None), *tap, *read)], part[(..., *written)]
            if apart:
                k(np.copyto, place, source)
            else:
                k(np.add, place, source, place)
    return None


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
