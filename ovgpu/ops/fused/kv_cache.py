"""Internal ops of KV caches: variables whose new value is the old one with new tokens appended along an axis.

A cache is an array with spare capacity, the same for all sequences of a batch, or it lies in pages. Then it is a pool
[pages, .., PAGE_TOKENS, ..], in which a page has the axes of a cache of one sequence. A table of pages [B, 2 + W], i32,
has a row for each sequence of the batch: its number of tokens before an inference, its number afterwards, and the W
pages of its tokens in order, of which only those that it has are read. All caches of a model share one table.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.model import Model
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers
from ovgpu.ops.base.storage import is_plain, zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, same_memory, strides_of, vectorized
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.fused.stored_tokens import PARAMETER_BYTES, quantize_tokens, stored
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.indices import readable
from ovgpu.ops.movement.movement import Concat
from ovgpu.spec import Spec
from ovgpu.types import Type

PAGE_TOKENS = 16  # tokens in a page of a pool, as in pages.cuh
FIRST_PAGE = 2  # index of the first page in a row of a table, as in pages.cuh
ROWS_PER_BLOCK = 8  # of stored_tokens.cu, with a warp for each row
NULL_PAGE = 0  # of zeros; rows that no sequence has attend to its first token, and write nothing


@internal_op
class BeamsAreIdentity(Op):
    """Test that beams are identity: ``beams [n] -> []``, true if they are 0, 1, .. n - 1, so that no row moves."""

    name: ClassVar[str] = "BeamsAreIdentity"
    host_in_decode = True

    def infer_specs(self, beams: Spec) -> tuple[Spec, ...]:
        check_integers(beams, "beams", ranks=(1,))
        return (Spec(Type.boolean, ()),)

    def evaluate(self, xp: Adapter, beams: Array) -> tuple[Array, ...]:
        return ((beams == xp.arange(len(beams))).all(),)


@internal_op
class Reorder(Op):
    """Gather along the first axis, by beams that are usually identity.

    ``x [m, ..], beams [n], beams are identity [] -> [n, ..]``. If the beams are identity and the result lies in the
    memory of x, nothing is read or written.
    """

    name: ClassVar[str] = "Reorder"

    exact = True
    strided_outputs = True
    host_inputs = (2,)

    def infer_specs(self, x: Spec, beams: Spec, beams_are_identity: Spec) -> tuple[Spec, ...]:
        assert x.shape is not None and beams.shape is not None
        return (Spec(x.type, (*beams.shape, *x.shape[1:])),)

    def evaluate(self, xp: Adapter, x: Array, beams: Array, beams_are_identity: Array) -> tuple[Array, ...]:
        return Gather().evaluate(xp, x, beams, np.zeros(1, np.int64))

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, beams, beams_are_identity), out = inputs, outputs[0]
        if not (beams_are_identity and x.shape == out.shape):
            k(take_rows, x, beams, out)
        elif not same_memory(x, out):
            k(np.copyto, out, x)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, beams, beams_are_identity), out = inputs, outputs[0]
        if beams_are_identity and x.shape == out.shape:
            if not same_memory(x, out):
                k.copy(x, out)
            return None
        if not out.size:
            return None
        beams = readable(k, beams)
        if beams is NotImplemented:
            return NotImplemented
        row, *steps = strides_of(x)
        beam_strides = (1, *(0,) * len(steps))
        axes = Axes.collapse(out.shape, (0, *steps), beam_strides, strides_of(out), reach=len(x) * abs(row))
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "gather.cu",
            f"gather<{bits(out.dtype.itemsize)}, {k.c_type(beams.dtype)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (x, beams, out, axes.packed(), *axes.numbers(axes.size, len(x), row)),
            early=True,
        )
        return None


def take_rows(x: Any, beams: Any, out: Any) -> None:
    """Write ``out[i] = x[beams[i]]``: negative beams count from the end, and those out of range give zeros."""
    for i, beam in enumerate(beams.tolist()):
        out[i] = x[beam] if -len(x) <= beam < len(x) else zero_of(x)


@internal_op
class CacheAppend(Concat):
    """Concat of a variable's old value, which may be reordered, and new tokens: the variable's new value. The memory of
    the variable has spare capacity, so that usually only the new tokens are written."""

    name: ClassVar[str] = "Concat"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()


@internal_op
class QuantizeTokens(Op):
    """Keys or values as they are stored in u8, see `ovgpu.ops.fused.stored_tokens`: ``x [..., D] -> [..., D + 8]``."""

    name: ClassVar[str] = "QuantizeTokens"

    strided_outputs = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if x.shape is None or not x.shape:
            raise OpError("tokens must have a known rank of 1 or more")
        return (Spec(Type.u8, (*x.shape[:-1], x.shape[-1] + PARAMETER_BYTES)),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (quantize_tokens(xp, x),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return store_tokens(k, inputs[0], outputs[0])


@internal_op
class CacheWrite(Op):
    """Write of n tokens: ``cache [.., C, ..], new [.., n, ..], lengths [2] -> cache`` writes ``new`` into the cache
    along ``axis`` from token ``lengths[0]`` on. The capacity C must be at least ``lengths[0] + n``. If the cache has
    another type than ``new``, the tokens are stored as `ovgpu.ops.fused.stored_tokens` describes.

    ``pool, new [B, .., n, ..], table [B, 2 + W] -> pool`` writes each row of ``new`` behind the tokens of its sequence,
    up to the number that it has afterwards."""

    axis: int

    name: ClassVar[str] = "CacheWrite"

    exact = True
    layout = "strided"
    updates: ClassVar[dict[int, tuple[int, int]]] = {0: (0, 1)}

    def infer_specs(self, cache: Spec, new: Spec, lengths: Spec) -> tuple[Spec, ...]:
        return (Spec(cache.type, cache.shape),)

    def evaluate(self, xp: Adapter, cache: Array, new: Array, lengths: Array) -> tuple[Array, ...]:
        cache = xp.array(cache)
        write_tokens(cache, stored(xp, new, cache.dtype), lengths, self.axis)
        return (cache,)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k(store_and_write, *inputs, self.axis)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        cache, new, lengths = inputs
        step = strides_of(cache)[self.axis]
        if not new.size:
            return None
        if new.dtype != cache.dtype:
            return store_tokens(k, new, cache, self.axis, lengths)
        if lengths.ndim == 2:
            return self._write_pages(k, cache, new, lengths)
        collapsed = Axes.collapse(new.shape, strides_of(new), strides_of(cache), reach=cache.nbytes)
        axes, width = vectorized(collapsed, cache.dtype.itemsize, (new.data.ptr, cache.data.ptr), step)
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "copy.cu",
            f"write_rows<{bits(width)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (
                new,
                cache,
                axes.packed(),
                *axes.numbers(axes.size),
                lengths,
                np.int64(step * cache.dtype.itemsize // width),
            ),
            early=True,
        )
        return None

    def _write_pages(self, k: KernelRecorder, pool: Array, new: Array, table: Array) -> Any:
        pool_strides, tokens, rows = paged_axes(pool, new.shape, table, self.axis)
        shape, strides = new.shape, [strides_of(new), pool_strides]
        steps = [strides_of(pool)[axis] for axis in (self.axis, 0)]
        itemsize, width = pool.dtype.itemsize, pool.dtype.itemsize
        if self.axis != new.ndim - 1 and all(s[-1] == 1 for s in strides):
            counts = (shape[-1], *(n for s in strides for n in s[:-1]), *steps)
            width = gcd(16, *(n * itemsize for n in counts), new.data.ptr, pool.data.ptr)
            factor = width // itemsize
            shape = (*shape[:-1], shape[-1] // factor)
            strides = [(*(n // factor for n in s[:-1]), 1) for s in strides]
            steps = [n // factor for n in steps]
        axes = Axes.collapse(shape, *strides, tokens, rows, reach=steps[0] * PAGE_TOKENS)
        if not axes.rank:
            return NotImplemented
        k.kernel(
            "copy.cu",
            f"write_pages<{bits(width)}, {axes.index}, {axes.rank}>",
            blocks(axes.size),
            (THREADS,),
            (new, pool, axes.packed(), *axes.numbers(axes.size, *steps), table),
            early=True,
        )
        return None


def store_tokens(k: KernelRecorder, x: Array, target: Array, axis: int = 0, lengths: Array | None = None) -> Any:
    """Record the kernel that stores x [.., D] in ``target``: as its elements, or with ``lengths``, along the axis of a
    cache or pool as `CacheWrite` does. Return NotImplemented for arrays that it does not take."""
    if not is_plain(x.dtype) or target.strides[-1] != target.itemsize:
        return NotImplemented
    if not x.size:
        return None
    shape, strides, beside, steps = x.shape[:-1], strides_of(target), list[tuple[int, ...]](), [0, 0]
    paged = lengths is not None and lengths.ndim == 2
    if lengths is not None:
        steps = [strides[axis], 0]
    if paged:
        pool_strides, *beside = paged_axes(target, x.shape, lengths, axis)
        strides, steps = pool_strides, [strides_of(target)[axis], strides_of(target)[0]]
    operands = [s[:-1] for s in (strides_of(x), strides, *beside)]
    axes = Axes.collapse(shape, *operands, reach=max(x.shape[-1], target[:1].size if paged else target.size))
    if not axes.rank:
        return NotImplemented
    k.kernel(
        "stored_tokens.cu",
        f"store_tokens<{k.c_type(x.dtype)}, {k.c_type(target.dtype)}, {axes.index}, {axes.rank}"
        f"{', true' if paged else ''}>",
        (-(-axes.size // ROWS_PER_BLOCK),),
        (32, ROWS_PER_BLOCK),
        (x, target, axes.packed(), *axes.numbers(axes.size, x.shape[-1], strides_of(x)[-1], *steps), lengths),
        early=True,
    )
    return None


def store_and_write(cache: Any, new: Any, lengths: Any, axis: int) -> None:
    """Write ``new`` as `write_tokens` does, as it is stored in the cache."""
    write_tokens(cache, stored(NUMPY, new, cache.dtype), lengths, axis)


def write_tokens(cache: Any, new: Any, lengths: Any, axis: int) -> None:
    """Write ``new`` into ``cache`` along an axis, from token ``lengths[0]`` on; see `CacheWrite`."""
    if lengths.ndim == 2:
        between = (slice(None),) * (axis - 1)
        if new.shape[axis] == 1:
            rows = (lengths[:, 0] < lengths[:, 1]).nonzero()[0]
            pages, at = np.divmod(lengths[rows, 0], PAGE_TOKENS)
            cache[(lengths[rows, FIRST_PAGE + pages], *between, at)] = new[(rows, *between, 0)]
            return
        for row, (past, end, *pages) in enumerate(lengths.tolist()):
            begin = past
            while begin < end:
                page, at = divmod(begin, PAGE_TOKENS)
                stop = min(end, begin - at + PAGE_TOKENS)
                cache[(pages[page], *between, slice(at, at + stop - begin))] = new[
                    (row, *between, slice(begin - past, stop - past))
                ]
                begin = stop
        return
    start = int(lengths[0])
    cache[(*(slice(None),) * axis, slice(start, start + new.shape[axis]))] = new


def tokens_of(pool: Any, row: Any, axis: int) -> Any:
    """Return the tokens [1, .., n, ..] of a sequence, which has this row of a table. ``axis`` is that of tokens.

    They are a view if the pool is one of `host_pool`, and the pages are consecutive.
    """
    _, length, *pages = row.tolist()
    count = -(-length // PAGE_TOKENS)
    consecutive = pages[:count] == list(range(pages[0], pages[0] + count))
    moved = pool.transpose(host_pool_order(pool.ndim, axis))
    if consecutive:
        taken = moved[(*(slice(None),) * (axis - 1), slice(pages[0], pages[0] + count))]
    else:
        taken = moved.take(row[FIRST_PAGE : FIRST_PAGE + count], axis - 1)
    tokens = taken.reshape(1, *taken.shape[: axis - 1], count * PAGE_TOKENS, *taken.shape[axis + 1 :])
    return tokens[(*(slice(None),) * axis, slice(length))]


def host_pool_order(rank: int, axis: int) -> tuple[int, ...]:
    """Return the order of a pool's axes in the memory of the host: pages are next to the tokens of a page, along
    ``axis``, so that consecutive pages are one piece of a cache."""
    return (*range(1, axis), 0, *range(axis, rank))


def host_pool(shape: Sequence[int], axis: int, dtype: Any) -> Any:
    """Return a new pool of this shape in the memory of the host."""
    order = host_pool_order(len(shape), axis)
    return np.empty([shape[i] for i in order], dtype).transpose(np.argsort(order))


def table_tokens(shape: Sequence[Any]) -> Any:
    """Return the most tokens of a sequence in a table of pages of this shape."""
    return (shape[1] - FIRST_PAGE) * PAGE_TOKENS


def paged_axes(pool: Array, shape: Sequence[int], table: Array, axis: int) -> list[tuple[int, ...]]:
    """Return the strides of the operands of `new_token` in pages.cuh, pool, token and row of the table, along the axes
    of new tokens of this shape."""
    rank = len(shape)
    return [
        tuple(0 if i in (0, axis) else n for i, n in enumerate(strides_of(pool))),
        tuple(int(i == axis) for i in range(rank)),
        (strides_of(table)[0], *(0,) * (rank - 1)),
    ]


def growing(model: Model) -> dict[str, int]:
    """Return the variables that cache appends assign, each with the axis along which it grows."""
    axes: dict[str, int] = {}
    for sink in model.sinks:
        op: Any = None if sink.sources[0] is None else sink.sources[0].node.op
        if isinstance(op, CacheAppend):
            axes[sink.op.variable_id] = op.axis  # type: ignore[attr-defined]
    return axes
