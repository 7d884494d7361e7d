"""Scaled dot-product attention, and attention to the valid tokens of a KV cache."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import e, log, log2, prod, sqrt
from typing import Any, ClassVar

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from ovgpu.errors import OpError
from ovgpu.ops.activation.softmax import ONE_PASS_ELEMENTS, block_rows, shift_rows
from ovgpu.ops.attention import _attention
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, call, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.tasks import WORKERS, one_blas_thread, record, shares, workers
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.convert import Convert
from ovgpu.ops.fused.kv_cache import table_tokens, tokens_of
from ovgpu.ops.fused.stored_tokens import restored, restored_spec
from ovgpu.ops.normalization.normalization import check_real
from ovgpu.ops.reduction import is_float, ones
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import broadcast, broadcast_shapes, maximum, minimum, onto, product, same
from ovgpu.types import Type

SCORES_AT_ONCE = 1 << 18  # the most scores of all heads that are computed at once
BLOCK_SCORES = 1 << 20  # scores of one head per block otherwise: for BLAS, many rows matter more than scores in L2
DECODE_STEP_SCORES = 1 << 15  # the most scores for which attention of a decode step is one call
MIN_BOUNDED_QUERIES = 32  # the least queries per head for which bounding the scores beforehand saves time
# Where NumPy has AVX-512, exp2 takes half the time of exp, unless results underflow; elsewhere several times as long.
USE_EXP2 = sys.platform == "linux" and _multiarray_umath.__cpu_features__["AVX512_SKX"]
MIN_PARALLEL_PRODUCTS = 1 << 20  # of queries and keys in pages; with fewer, threads take longer to begin
MAX_EXPONENT = 50.0  # exp of this and of its negative is far from the limits of f32


@op("ScaledDotProductAttention", "opset13", "sequence/scaled-dot-product-attention")
class ScaledDotProductAttention(Op):
    """``softmax(q k^T scale + mask) v``.

    q [..., L, E], k [..., S, E], v [..., S, Ev], mask [..., L or 1, S], scale [] or [1], sink [..., L or 1, 1] ->
    [..., L, Ev], all of one real type except a boolean mask; batch axes broadcast. A boolean mask is true where to
    attend, any other is added to the scores, and a scalar stands for no mask. The default of ``scale`` is 1 / sqrt(E).
    A sink is one more score per query: it takes part in the softmax, but has no value. With ``causal``, query i
    attends to the keys 0..i, and the mask is ignored.

    >>> scaled_dot_product_attention([[[0.0], [0]]], [[[1.0], [2]]], [[[10.0], [20]]], causal=True)
    [[[10.0], [15.0]]]
    """

    causal: bool = False

    layout = "blas"
    strided_outputs = True
    half_precision = "always"

    def infer_specs(
        self, q: Spec, k: Spec, v: Spec, mask: Spec | None = None, scale: Spec | None = None, sink: Spec | None = None
    ) -> tuple[Spec, ...]:
        operands = [s for s in (q, k, v, mask, scale, sink) if s is not None]
        real = [s for s in operands if s is not mask or s.type != Type.boolean]
        for spec in real:
            check_real(spec.type)
        dtype = merge_types(real)
        if scale is not None and scale.shape is not None:
            if len(scale.shape) > 1:
                raise OpError(f"scale must have one element, not rank {len(scale.shape)}")
            for dim in scale.shape:
                same(dim, 1, "scale must have one element, not {0}")
        return (Spec(dtype, self.shape(q.shape, k.shape, v.shape, self.mask(mask), sink)),)

    def mask(self, mask: Any) -> Any:
        """Return the mask, a spec or an array, or None if it is a scalar, which stands for no mask, or is ignored."""
        return None if self.causal or mask is None or mask.shape == () else mask

    def shape(self, q: Shape, k: Shape, v: Shape, mask: Spec | None, sink: Spec | None) -> Shape:
        for name, shape in (("query", q), ("key", k), ("value", v)):
            if shape is not None and len(shape) < 3:
                raise OpError(f"the {name} must have rank 3 or more, not {len(shape)}")
        if q is None or k is None or v is None or (mask is not None and mask.shape is None):
            return None
        same(q[-1], k[-1], "query and key have {0} and {1} elements each")
        same(k[-2], v[-2], "there are {0} keys and {1} values")
        batch = broadcast_shapes(q[:-2], k[:-2], v[:-2], message="batch dimensions do not broadcast")
        queries = q[-2]
        if mask is not None and mask.shape is not None:
            if len(mask.shape) < 2:
                raise OpError(f"the mask must have rank 2 or more, not {len(mask.shape)}")
            onto(mask.shape[-1], k[-2], "a mask of {0} columns does not fit {1} keys")
            queries = broadcast(queries, mask.shape[-2], "{0} queries and a mask of {1} rows do not broadcast")
            batch = broadcast_shapes(batch, mask.shape[:-2], message="the mask's batch does not broadcast")
        if sink is not None and sink.shape is not None:
            if len(sink.shape) != len(q):
                raise OpError(f"the sink must have rank {len(q)}, not {len(sink.shape)}")
            same(sink.shape[-1], 1, "the sink must have one column, not {0}")
            for dim, extent in zip(sink.shape, (*batch, queries)):
                onto(dim, extent, "the sink's dimension {0} cannot be broadcast to {1}")
        return (*batch, queries, v[-1])

    def evaluate(
        self,
        xp: Adapter,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        scale: Array | None = None,
        sink: Array | None = None,
    ) -> tuple[Array, ...]:
        scale = 1 / sqrt(max(q.shape[-1], 1)) if scale is None else scale.reshape(())
        mask = self.mask(mask)
        scores = xp.matmul(q * scale, k.swapaxes(-1, -2))
        if self.causal:
            mask = xp.tril(xp.ones(scores.shape[-2:], dtype=bool))
        if mask is not None:
            scores = xp.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
        if k.shape[-2] == 0:
            return (xp.matmul(scores, v),)
        highest = scores.max(axis=-1, keepdims=True)
        if sink is not None:
            highest = xp.maximum(highest, sink)
        weights = xp.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True)
        if sink is not None:
            total = total + xp.exp(sink - highest)
        return (xp.matmul(weights, v) / total,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        q, k, mask = inputs[0], inputs[1], self.mask(inputs[3]) if len(inputs) > 3 else None
        assert q is not None and k is not None and q.shape and k.shape and outputs[0].shape
        dtype, rows = q.type, product(outputs[0].shape[:-1])
        keys = k.shape[-2]
        needed: Workspace = (
            (dtype, (product(q.shape),)),
            (dtype, (minimum(rows * keys, maximum(keys, BLOCK_SCORES)),)),
            (dtype, (minimum(rows, BLOCK_SCORES),)),
            (dtype, (minimum(rows, BLOCK_SCORES),)),
            (Type.i64, (minimum(rows, TILE),)),
            (dtype, (1,)),
        )
        if mask is not None and mask.type == Type.boolean and mask.shape is not None:
            needed = (*needed, (Type.boolean, (product(mask.shape),)))
        return needed

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        q, key, v, mask, scale, sink = (*inputs, None, None, None)[:6]
        out, mask = outputs[0], self.mask(mask)
        if not is_float(q.dtype) or out.size == 0 or key.size == 0:
            return NotImplemented
        if mask is not None and mask.dtype not in (bool, q.dtype):
            return NotImplemented
        if (
            q.shape[-2] == 1 == key.shape[-3] == v.shape[-3]
            and q.ndim == out.ndim
            and not self.causal
            and _is_shared(mask)
            and _is_shared(sink)
        ):
            # heads that share their keys become queries of one head (multi-query attention)
            q, out = q.swapaxes(-2, -3), out.swapaxes(-2, -3)
        scaled = workspace[0].reshape(q.shape)
        factor = 1 / sqrt(q.shape[-1]) if scale is None else scale.reshape(())
        rows, keys = out.size // out.shape[-1], key.shape[-2]
        plain = sink is None and not self.causal and (mask is None or mask.dtype != bool)
        one_call_scores = DECODE_STEP_SCORES if inputs[0].shape[-2] == 1 else ONE_PASS_ELEMENTS
        if plain and rows * keys < one_call_scores and q.shape[-2] == out.shape[-2]:
            shape = out.shape[:-1]
            scores = workspace[1][: rows * keys].reshape(*shape, keys)
            highest, total = workspace[2][:rows].reshape(*shape, 1), workspace[3][:rows].reshape(*shape, 1)
            k(attend_few, q, factor, scaled, key.swapaxes(-1, -2), scores, mask, highest, total, v, out)
            return None
        # A bound of all scores would let one row of a batch decide how those of the others are rounded.
        many = out.shape[-2] >= MIN_BOUNDED_QUERIES and out.shape[0] == 1
        exp = np.exp2 if USE_EXP2 and many and mask is None and sink is None and not self.causal else np.exp
        k(np.multiply, q, factor, scaled)
        if exp is np.exp2:
            k(np.multiply, scaled, log2(e), scaled)
        if mask is not None and mask.dtype == bool:
            hidden = workspace[6][: mask.size].reshape(mask.shape)
            k(np.logical_not, mask, hidden)
            mask = hidden
        if q.shape[-2] != out.shape[-2]:  # one query with a mask of several rows
            scaled = np.broadcast_to(scaled, (*q.shape[:-2], out.shape[-2], q.shape[-1]))
        column, limit = ones(keys, q.dtype), workspace[5]
        if many:
            k(bound_scores, scaled, key, mask, sink, limit)
        else:
            limit = np.full(1, np.inf, q.dtype)
        if rows * keys <= SCORES_AT_ONCE:
            if self.causal:
                mask = np.triu(np.ones((out.shape[-2], key.shape[-2]), bool), 1)
            attend(scaled, key.swapaxes(-1, -2), v, mask, sink, out, column, limit, workspace[1:5], exp, k)
            return None
        blocks = -(-out.shape[-2] // max(1, BLOCK_SCORES // keys))
        k(
            attend_blocks,
            -(-out.shape[-2] // blocks),
            scaled,
            key,
            v,
            mask,
            sink,
            out,
            column,
            limit,
            workspace[1:5],
            exp,
            self.causal,
        )
        return None

    def _attend(self, inputs: Sequence[Any], outputs: Arrays, workspace: Arrays) -> None:
        """Compute attention with NumPy. Keys and values may be as caches store them."""
        operands = restored_inputs(NUMPY, inputs)
        if ScaledDotProductAttention.numpy(self, call, operands, outputs, workspace) is NotImplemented:
            outputs[0][...] = ScaledDotProductAttention.evaluate(self, NUMPY, *operands)[0]

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self._record(k, inputs, outputs[0])

    def _record(
        self,
        k: KernelRecorder,
        inputs: Sequence[Any],
        out: Any,
        length: Any = None,
        table: Any = None,
        restored: Sequence[Array] = (),
    ) -> Any:
        q, key, v, mask, scale, sink = (*inputs, None, None, None)[:6]
        operands = (q, key, v, self.mask(mask), scale, sink)
        if is_plain(q.dtype):
            return _attention.attend(k, operands, out, self.causal, length, table=table, restored=restored)
        # types of one byte are computed in f32, as in `evaluate`
        result, dtype = k.scratch(out.shape, np.dtype(np.float32)), Type.of(out.dtype)
        wide = [x if x is None or x.dtype == bool else k.scratch(x.shape, result.dtype) for x in operands]
        done = [Convert(destination_type=Type.f32).cuda(k, [x], [y], ()) for x, y in zip(operands, wide) if x is not y]
        done.append(_attention.attend(k, wide, result, self.causal, length, table=table))
        done.append(Convert(destination_type=dtype).cuda(k, [result], [out], ()))
        return NotImplemented if NotImplemented in done else None


@internal_op
class CachedAttention(ScaledDotProductAttention):
    """Attention to keys and values in caches with spare capacity, whose first ``lengths[1]`` tokens are valid.

    q, k, v, mask, scale and sink are as in ScaledDotProductAttention, or None; then lengths [2], i64. Columns of a mask
    beyond the valid keys are not read. In place of caches and lengths, it takes pools and a table of pages [B, 2 + W],
    i32 (`ovgpu.ops.fused.kv_cache`): each row of the batch, along the first axis, attends to the tokens of its own
    sequence, and reads no others. A mask has a column for each token of the sequence.
    """

    name: ClassVar[str] = "CachedAttention"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    attended: ClassVar[tuple[int, int, int, int]] = (1, 2, 3, -1)
    """Indices of the inputs keys, values, mask and lengths."""

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        return super().infer_specs(*restored_specs(_dense_specs(inputs)))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        of_numpy = super().workspace(restored_specs(_dense_specs(inputs)), outputs)
        return (*of_numpy, *self.kernel_workspace(inputs, outputs[0]))

    def kernel_workspace(self, inputs: Sequence[Any], out: Spec) -> Workspace:
        """Return the part of the workspace that kernels use, which is its end."""
        return restored_workspace(_dense_specs(inputs), out)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        attend, rank = super().evaluate, inputs[0].ndim
        if inputs[-1].ndim == 1:
            return attend(xp, *restored_inputs(xp, _valid_inputs(*inputs)))
        rows = [restored_inputs(xp, _of_row(inputs, row, rank)) for row in range(len(inputs[-1]))]
        return (xp.concatenate([attend(xp, *row)[0] for row in rows], axis=0),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        q, key = inputs[:2]
        if not is_float(q.dtype) or not outputs[0].size or not key.size:
            return NotImplemented
        k(self._attend_valid, inputs, outputs, workspace)
        return None

    def _attend_valid(self, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        if inputs[-1].ndim == 1:
            self._attend(_valid_inputs(*inputs), outputs, workspace)
            return
        (out,), products = outputs, inputs[0][0].size * inputs[-1][:, 1].astype(np.int64)
        # Queries are rounded as the heads beside them require. Rows beside them must not decide which heads these are.
        many = out.shape[-2] >= MIN_BOUNDED_QUERIES
        by_heads = (out.ndim > 3) & (many | (products >= MIN_PARALLEL_PRODUCTS))
        some, everything = shares(out.shape[1], WORKERS), [slice(None)]
        parts = [(row, heads) for row, divided in enumerate(by_heads) for heads in (some if divided else everything)]
        work = workers(products.sum() >= MIN_PARALLEL_PRODUCTS)
        for worker in work[: len(parts)]:
            memory = [np.empty_like(x) for x in workspace] if worker.number else workspace
            for row, heads in parts[worker.number :: len(work)]:
                worker(self._attend_row, inputs, out, memory, row, heads)
        with one_blas_thread():  # products are small, and its threads would take time from those of the next layer
            record(call, work)

    def _attend_row(self, inputs: Arrays, out: Any, workspace: Arrays, row: int, heads: slice) -> None:
        """Compute attention of some heads for a row of a batch whose keys and values lie in pages."""
        scaled, *others = workspace
        q, *operands = [_of_heads(x, heads, out.ndim) for x in _of_row(inputs, row, out.ndim)]
        self._attend((q, *operands), (out[row : row + 1, heads],), (scaled[: q.size], *others))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        *operands, lengths = inputs
        if lengths.ndim == 2:
            return self._record(k, operands, outputs[0], table=lengths, restored=workspace[-2:])
        return self._record(k, operands, outputs[0], lengths[1:], restored=workspace[-2:])


def _valid_inputs(q: Any, k: Any, v: Any, mask: Any, scale: Any, sink: Any, lengths: Any) -> tuple[Any, ...]:
    """Return the inputs of attention, with keys, values and mask cut to the valid tokens."""
    keys = slice(int(lengths[1]))
    if mask is not None and mask.ndim and mask.shape[-1] != 1:
        mask = mask[..., keys]
    return q, k[..., keys, :], v[..., keys, :], mask, scale, sink


def _of_row(inputs: Sequence[Any], row: int, rank: int) -> list[Any]:
    """Return the inputs of attention for one row of a batch whose keys and values lie in pages."""
    q, k, v, mask, scale, sink, table = inputs
    q, mask, sink = (x if x is None or x.ndim < rank or len(x) == 1 else x[row : row + 1] for x in (q, mask, sink))
    keys, values = (tokens_of(x, table[row], x.ndim - 2) for x in (k, v))
    if mask is not None and mask.ndim and mask.shape[-1] != 1:
        mask = mask[..., : keys.shape[-2]]
    return [q, keys, values, mask, scale, sink]


def _of_heads(x: Any, heads: slice, rank: int) -> Any:
    """Return the part of an operand of attention, which may be missing, that belongs to some heads, along axis 1 of an
    operand of this rank."""
    axis = 0 if x is None else 1 + x.ndim - rank
    return x if x is None or axis < 0 or x.shape[axis] == 1 else x[(slice(None),) * axis + (heads,)]


def _dense_specs(inputs: Sequence[Any]) -> list[Any]:
    """Return the specs of attention's inputs without the lengths. Pools become caches with as many tokens as the table
    has room for."""
    q, k, v, mask, scale, sink, lengths = inputs
    if lengths.shape is not None and len(lengths.shape) == 2:
        rows, tokens = lengths.shape[0], table_tokens(lengths.shape)
        k, v = (x if x.shape is None else replace(x, shape=(rows, *x.shape[1:-2], tokens, x.shape[-1])) for x in (k, v))
    return [q, k, v, mask, scale, sink]


def restored_specs(inputs: Sequence[Any]) -> list[Any]:
    """Return the specs of attention's inputs, with those of keys and values as attention computes with them."""
    q, k, v, *others = inputs
    return [q, *(x if x.type == q.type else restored_spec(x, q.type) for x in (k, v)), *others]


def restored_workspace(inputs: Sequence[Any], out: Spec) -> Workspace:
    """Return the memory in which kernels restore keys and values for more than SPLIT_QUERIES queries: none for fewer
    queries, or if the caches store the type that attention computes in."""
    q, k, v, *_ = inputs
    if k.type == q.type:
        return ()
    assert out.shape is not None
    many = minimum(out.shape[-2] // (_attention.SPLIT_QUERIES + 1), 1)
    return tuple((q.type, (many * product(restored_spec(x, q.type).shape or ()),)) for x in (k, v))


def restored_inputs(xp: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of attention, with keys and values in the type of q."""
    q, k, v, *others = inputs
    return [q, *(restored(xp, x, q.dtype) for x in (k, v)), *others]


def _is_shared(x: Any) -> bool:
    """Return whether a mask or sink is the same for all heads and queries, or absent."""
    return x is None or prod(x.shape[-3:-1]) == 1


def attend_few(
    q: Any, factor: Any, scaled: Any, kt: Any, scores: Any, mask: Any, highest: Any, total: Any, v: Any, out: Any
) -> None:
    """Compute attention with few scores, as in a decode step, in one call that is cheap to bind to new lengths.

    Arguments are as in `attend`, but q is not yet scaled; scaled, scores, highest and total [..., L, 1] are scratch.
    """
    np.multiply(q, factor, scaled)
    np.matmul(scaled, kt, scores)
    if mask is not None:
        np.add(scores, mask, scores)
    np.maximum.reduce(scores, axis=-1, out=highest, keepdims=True)
    np.subtract(scores, highest, scores)
    np.exp(scores, scores)
    np.add.reduce(scores, axis=-1, out=total, keepdims=True)
    result = _product_target(out, scaled)
    np.matmul(scores, v, result)
    np.divide(result, total, result)
    if result is not out:
        np.copyto(out, result)


def _product_target(out: Any, scaled: Any) -> Any:
    """Return an array into which NumPy writes and divides a product without buffers of its own: the memory of the
    scaled queries if the output is not contiguous, else the output."""
    free = scaled.shape == out.shape and scaled.flags.writeable and not out.flags.c_contiguous
    return scaled if free else out


def bound_scores(q: Any, key: Any, mask: Any, sink: Any, limit: Any) -> None:
    """Write a bound of the scores' absolute values, before the mask, into ``limit`` [1] (Cauchy-Schwarz inequality).

    The bound is infinite if a row's greatest mask value or a sink may be far from 0, and NaN if queries or keys are.
    """
    longest = np.vecdot(q, q).max() * np.vecdot(key, key).max()
    bounded = (mask is None or mask.dtype == bool or np.abs(mask.max(axis=-1)).max() < MAX_EXPONENT / 2) and (
        sink is None or sink.max() < MAX_EXPONENT / 2
    )
    limit[0] = np.sqrt(longest) if bounded else np.inf


def attend(
    q: Any,
    kt: Any,
    v: Any,
    mask: Any,
    sink: Any,
    out: Any,
    column: Any,
    limit: Any,
    workspace: Sequence[Any],
    exp: Any,
    k: HostRecorder = call,
) -> None:
    """Compute attention of scaled queries, all scores at once. May overwrite q. ``k`` makes or records the calls.

    q [..., L, E], kt [..., E, S], v [..., S, Ev], mask [..., S] (added, or true where not to attend), sink [..., 1],
    out [..., L, Ev], column: S ones; limit: see `bound_scores`; workspace: flat scores, two statistics per row, and an
    index; exp: np.exp, or np.exp2 if the queries are also scaled by log2(e).
    """
    shape = (*out.shape[:-1], kt.shape[-1])
    rows = prod(shape[:-1])
    scores = workspace[0][: rows * shape[-1]].reshape(shape)
    highest, total = (w[:rows].reshape(*shape[:-1], 1) for w in workspace[1:3])
    k(np.matmul, q, kt, scores)
    if mask is not None and mask.dtype == bool:
        k(np.copyto, scores, -np.inf, "same_kind", mask)
    elif mask is not None:
        k(np.add, scores, mask, scores)
    k(
        exp_rows,
        scores.reshape(rows, -1),
        column,
        highest.reshape(-1, 1),
        total.reshape(-1, 1),
        workspace[3],
        limit,
        exp,
    )
    if sink is not None:
        k(np.subtract, sink, highest, highest)
        k(np.exp, highest, highest)
        k(np.add, total, highest, total)
    result = _product_target(out, q)
    k(np.matmul, scores, v, result)
    k(np.divide, result, total, result)
    if result is not out:
        k(np.copyto, out, result)


def exp_rows(x: Any, column: Any, bound: Any, total: Any, index: Any, limit: Any, exp: Any) -> None:
    """Compute ``x = exp(x - bound)`` in place, and write the row sums to ``total`` [M, 1].

    ``bound`` [M, 1] becomes an upper bound of every row of x [M, N]: 0 if ``limit`` shows that exponents stay small,
    else the row's maximum. ``exp`` is as in `attend`.
    """
    if limit[0] < MAX_EXPONENT:
        bound.fill(0)
        exp(x, x)
        np.matmul(x, column, total)
        return
    block = int(block_rows(*x.shape))
    for start in range(0, len(x), block):
        rows = slice(start, start + block)
        part = x[rows]
        shift_rows(part, part, bound[rows], index[: len(part)])
        if exp is np.exp2:
            np.multiply(part, log(2), part)
        np.exp(part, part)
        np.matmul(part, column, total[rows])


def attend_blocks(
    block: int,
    q: Any,
    key: Any,
    v: Any,
    mask: Any,
    sink: Any,
    out: Any,
    column: Any,
    limit: Any,
    workspace: Sequence[Any],
    exp: Any,
    causal: bool,
) -> None:
    """Compute attention as `attend` does, ``block`` queries of one head at a time."""
    batch, (length, keys) = out.shape[:-2], (out.shape[-2], key.shape[-2])
    q, key, v = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (q, key, v))
    mask = None if mask is None else np.broadcast_to(mask, (*batch, length, keys))
    sink = None if sink is None else np.broadcast_to(sink, (*batch, length, 1))
    q = np.broadcast_to(q, (*batch, length, q.shape[-1]))
    for head, start in itertools.product(np.ndindex(batch), range(0, length, block)):
        queries = slice(start, start + block)
        visible = min(keys, start + block) if causal else keys
        part = None if mask is None else mask[head][queries]
        if causal:
            part = np.arange(visible) > np.arange(start, min(start + block, length))[:, None]
        attend(
            q[head][queries],
            key[head].swapaxes(0, 1)[:, :visible],
            v[head][:visible],
            part,
            None if sink is None else sink[head][queries],
            out[head][queries],
            column[:visible],
            limit,
            workspace,
            exp,
        )
