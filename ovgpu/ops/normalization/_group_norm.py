"""Launches of GroupNormalization: `channel_normalization.cu` for dense arrays, `pixel_normalization.cu` for images
whose channels are adjacent in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm, prod
from typing import Any

import numpy as np

from ovgpu.ops.base import launch
from ovgpu.ops.base.launch import ceildiv, dense
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import PORTABLE_CLUSTER, KernelRecorder
from ovgpu.ops.base.strided import CHUNK_BYTES, pixel_step
from ovgpu.ops.fused._elementwise import Chain

MAX_EPILOGUE_OPERANDS = 3  # the most tensors that the epilogue reads
MIN_PART_ELEMENTS = 8192  # the least elements per block where several share a group to occupy the device
MAX_IMAGES = 65535  # the limit of the y axis of a grid
# For images whose channels are adjacent; the first two as in pixel_normalization.cu
BLOCK, MAX_GROUPS = 256, 64  # the most threads and groups per block
MIN_CHUNKS = 2  # the least chunks that a block reads of a pixel, if it has as many: 32 bytes, a sector of memory
PART_PIXELS = 4  # the least pixels per thread where several blocks share an image
ALONE_PIXELS = 16  # the most pixels per thread for which one block for all pixels is faster than two launches
CLUSTER_PIXELS = 32  # the most pixels per thread for which a single cluster may have all pixels of an image


@dataclass(frozen=True)
class Norm:
    """A GroupNormalization of x [N, C, ...] in ``groups`` groups, with ``scale`` and ``shift`` [C], and its epilogue:
    the inputs of ``chain`` are the result and then ``others``. ``inside``: epsilon is added inside the square root."""

    x: Array
    scale: Array
    shift: Array
    out: Array
    groups: int
    epsilon: float
    inside: bool
    chain: Chain | None
    others: tuple[Array, ...]

    @property
    def elements(self) -> int:
        """The number of elements of a group."""
        return int(prod(self.x.shape[1:])) // self.groups

    @property
    def whole(self) -> tuple[Array, ...]:
        """The arrays of the result's shape."""
        return (self.x, self.out, *(a for a in self.others if a.shape == self.out.shape))

    @property
    def broadcasts(self) -> int:
        """The broadcast of each other input, in two bits each; see Broadcast in moments.cuh."""
        return sum(self._broadcast(a) << 2 * i for i, a in enumerate(self.others))

    def _broadcast(self, a: Array) -> int:
        if a.shape == self.out.shape:
            return 0
        if a.size == 1:
            return 3
        return 1 if a.ndim == self.out.ndim and a.shape[0] == self.out.shape[0] else 2

    @property
    def operands(self) -> tuple[Array | None, ...]:
        """The other inputs as arguments of a kernel."""
        return (*self.others, *[None] * (MAX_EPILOGUE_OPERANDS - len(self.others)))

    def epilogue(self, k: KernelRecorder) -> tuple[str, str]:
        """Return a kernel's last template argument, with a comma before it, and the source of its struct."""
        if self.chain is None:
            return "", ""
        dtypes = tuple([a.dtype for a in (self.out, *self.others)])
        return ", Epilogue", k.functor("Epilogue", self.chain, dtypes, MAX_EPILOGUE_OPERANDS, "common.cuh")


def normalize_groups(k: KernelRecorder, norm: Norm) -> Any:
    """Record the kernels of a norm. Return NotImplemented for arrays that they do not take."""
    if not launch.is_real(norm.x) or norm.elements > launch.MAX_INDEX:
        return NotImplemented
    if not norm.x.size:
        return None
    if all(a.flags.c_contiguous for a in norm.whole):
        return _normalize_rows(k, norm)
    if not _normalize_pixels(k, norm):
        _normalize_copies(k, norm)
    return None


def _normalize_rows(k: KernelRecorder, norm: Norm) -> None:
    """Record the kernels for dense arrays: one or several blocks for each group of an image."""
    x, out, n = norm.x, norm.out, norm.elements
    rows, area = len(x) * norm.groups, prod(x.shape[2:])
    vector = CHUNK_BYTES // x.itemsize
    if area % vector or x.data.ptr % CHUNK_BYTES or out.data.ptr % CHUNK_BYTES:
        vector = 1
    parts = max(min(2 * k.multiprocessors // rows, n // MIN_PART_ELEMENTS), 1)
    length = ceildiv(ceildiv(n, parts), vector) * vector
    parts = ceildiv(n, length)
    partial = k.scratch((rows, parts, 3), np.dtype(type(launch.real(0, x)))) if parts > 1 else None
    numbers = (
        np.uint32(n),
        np.uint32(area),
        np.uint32(norm.groups),
        np.uint32(length),
        launch.real(norm.epsilon, x),
        np.bool_(norm.inside),
        np.uint32(norm.broadcasts),
    )
    epilogue, source = norm.epilogue(k)
    for kernel in ("group_moments", "group_parts")[: min(parts, 2)]:
        k.kernel(
            "channel_normalization.cu",
            f"{kernel}<{k.c_type(x.dtype)}, {vector}{epilogue}>",
            (rows, parts),
            (launch.power(length / (4 * vector), low=64),),
            (x, out, norm.scale, norm.shift, partial, *numbers, *norm.operands),
            prelude=source,
            early=True,
        )


def _normalize_copies(k: KernelRecorder, norm: Norm) -> None:
    """Record dense copies of the arrays, and the kernels for these."""
    out = norm.out if norm.out.flags.c_contiguous else k.scratch(norm.out.shape, norm.out.dtype)
    others = tuple([dense(k, a) for a in norm.others])
    _normalize_rows(k, replace(norm, x=dense(k, norm.x), out=out, others=others))
    if out is not norm.out:
        k.copy(out, norm.out)


@dataclass(frozen=True)
class Form:
    """Launch shape for images whose channels are adjacent. A block of ``threads`` threads has ``width`` channels of
    ``length`` pixels, and ``parts`` blocks together have all pixels of an image. ``split`` has the template argument
    Split of each launch."""

    width: int
    threads: int
    length: int
    parts: int
    split: tuple[str, ...]

    @staticmethod
    def of(
        images: int, pixels: int, channels: int, group: int, vector: int, multiprocessors: int, max_cluster: int
    ) -> Form | None:
        """Return the launch shape for groups of ``group`` channels, which are read in chunks of ``vector`` channels.
        Return None if the kernel does not take them."""
        unit = lcm(group, vector)
        widths = [
            unit * n
            for n in range(1, channels // unit + 1)
            if not channels % (unit * n) and unit * n <= min(BLOCK * vector, MAX_GROUPS * group)
        ]
        if channels % vector or not widths:
            return None
        width = next((w for w in widths if w >= MIN_CHUNKS * vector), widths[-1])
        chunks = width // vector
        of_thread = ceildiv(pixels, BLOCK // chunks)
        max_parts = max(2 * multiprocessors // (images * (channels // width)), 1)
        parts, is_cluster = min(ceildiv(of_thread, PART_PIXELS), max_parts), False
        max_clustered = min(max_cluster, PORTABLE_CLUSTER)
        if max_clustered > 1 and of_thread <= max_clustered * CLUSTER_PIXELS:
            parts, is_cluster = min(parts, max_clustered), True
        elif of_thread <= ALONE_PIXELS:
            parts = 1
        length = ceildiv(pixels, parts)
        parts = ceildiv(pixels, length)
        threads = launch.power(chunks * length, low=64, high=BLOCK)
        split = ("NONE",) if parts == 1 else ("CLUSTER",) if is_cluster else ("MOMENTS", "NORMALIZE")
        return Form(width, threads, length, parts, split)


def _normalize_pixels(k: KernelRecorder, norm: Norm) -> bool:
    """Record the kernels for arrays whose channels are adjacent. Return False, and record nothing, if they do not take
    these arrays."""
    steps = [pixel_step(a) for a in norm.whole]
    x, out, pixels, channels = norm.x, norm.out, prod(norm.x.shape[2:]), norm.x.shape[1]
    given = (x, out, norm.scale, norm.shift)
    if x.itemsize > 4 or not all(steps) or len(x) > MAX_IMAGES or any(a.data.ptr % CHUNK_BYTES for a in given):
        return False
    if any(step * x.itemsize % CHUNK_BYTES for step in steps[:2]):
        return False
    vector, group = CHUNK_BYTES // x.itemsize, channels // norm.groups
    form = Form.of(len(x), pixels, channels, group, vector, k.multiprocessors, k.max_cluster)
    if form is None:
        return False
    given_steps = iter(steps[2:])
    operand_steps = [next(given_steps) if a.shape == out.shape else 0 for a in norm.others]
    operand_steps += [0] * (MAX_EPILOGUE_OPERANDS - len(operand_steps))
    # threads that merge the moments of one group: a power of two, within a warp
    team = 1 << (min(form.threads // (form.width // group), 32).bit_length() - 1)
    shape = np.array((pixels, channels, group, form.length, form.parts, form.width, team, *steps[:2]), np.uint32)
    slabs = channels // form.width
    partial = None
    if len(form.split) > 1:
        partial = k.scratch((len(x), norm.groups, form.parts, 2), np.dtype(np.float32))
    # shared memory of a block in a cluster: a barrier, and for each group a chunk from every block
    exchanged_bytes = CHUNK_BYTES * (1 + form.width // group * form.parts)
    for split in form.split:
        epilogue, source = ("", "") if split == "MOMENTS" else norm.epilogue(k)
        k.kernel(
            "pixel_normalization.cu",
            f"normalize_pixels<{k.c_type(x.dtype)}, {vector}, {split}{epilogue}>",
            (form.parts * slabs, len(x)),
            (form.threads,),
            (
                x,
                out,
                norm.scale,
                norm.shift,
                partial,
                shape,
                launch.real(norm.epsilon, x),
                np.bool_(norm.inside),
                np.array((norm.broadcasts, *operand_steps), np.uint32),
                *norm.operands,
            ),
            exchanged_bytes if split == "CLUSTER" else 0,
            prelude=source,
            early=True,
            cluster=form.parts if split == "CLUSTER" else 1,
            otherwise=lambda other: _normalize_pixels(other, norm),
        )
    return True
