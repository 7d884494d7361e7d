"""Internal ops of rotary position embeddings, in place of the layers that exporters write for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, call, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import Axes, strides_of
from ovgpu.ops.base.trace import TILE, tiles
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused.kv_cache import CacheWrite, paged_axes
from ovgpu.ops.reduction import is_float
from ovgpu.spec import Spec
from ovgpu.symbolic import broadcast_shapes, minimum, product

THREADS = 256  # per block


@internal_op
class Rotary(Op):
    """Rotary position embedding (RoPE, Su et al. 2021): pairs (a, b) become (a cos - b sin, b cos + a sin).

    ``x [..., E], cos [..., size or size / 2], sin (as cos) -> [..., E]``; the axes before the last broadcast. The first
    ``size`` elements are rotated, the others copied. With ``pairs``, neighbours are paired, else elements i and
    i + size / 2. cos and sin have one element per element of x, or one per pair. Only the result is rounded.
    """

    size: int
    pairs: bool = False

    name: ClassVar[str] = "Rotary"

    strided_outputs = True
    half_precision = "promoted"

    def infer_specs(self, x: Spec, cos: Spec, sin: Spec) -> tuple[Spec, ...]:
        assert x.shape is not None and cos.shape is not None and sin.shape is not None
        return (Spec(x.type, (*broadcast_shapes(x.shape[:-1], cos.shape[:-1], sin.shape[:-1]), x.shape[-1])),)

    def evaluate(self, xp: Adapter, x: Array, cos: Array, sin: Array) -> tuple[Array, ...]:
        (a, b), (c, d), (s, t) = map(self.parts, (x, cos, sin))
        rotated = [a * c - b * s, b * d + a * t]
        lead = rotated[0].shape[:-1]
        rotated = [xp.stack(rotated, axis=-1).reshape((*lead, self.size))] if self.pairs else rotated
        return (xp.concatenate([*rotated, xp.broadcast_to(self.rest(x), (*lead, x.shape[-1] - self.size))], axis=-1),)

    def parts(self, x: Any) -> tuple[Any, Any]:
        """Return the first and the second elements of the pairs; the same twice if x has one element per pair."""
        if x.shape[-1] < self.size:
            return x, x
        half = self.size // 2
        return (
            (x[..., 0 : self.size : 2], x[..., 1 : self.size : 2])
            if self.pairs
            else (x[..., :half], x[..., half : self.size])
        )

    def rest(self, x: Any) -> Any:
        """Return the elements that are not rotated."""
        return x[..., self.size :]

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        _, cos, sin = inputs
        dtype, shape = outputs[0].type, outputs[0].shape
        assert cos is not None and sin is not None and cos.shape and sin.shape and shape
        return (
            (dtype, (*broadcast_shapes(cos.shape[:-1], sin.shape[:-1]), self.size)),
            (dtype, (minimum(product(shape[:-1]) * self.size, max(TILE, self.size)),)),
        )

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, cos, sin), out = inputs, outputs[0]
        per_pair = max(cos.shape[-1], sin.shape[-1]) < self.size
        if not is_float(out.dtype) or (self.pairs and not (per_pair and _unit(x) and _unit(out))):
            return NotImplemented
        if not out.size:
            return None
        if self.size < out.shape[-1]:
            k(np.copyto, self.rest(out), self.rest(x))
            x, out = x[..., : self.size], out[..., : self.size]
        factor, scratch = workspace
        if self.pairs:  # a pair is a complex number
            k(np.copyto, factor[..., 0::2], cos)
            k(np.copyto, factor[..., 1::2], sin)
            complex_dtype = np.result_type(out.dtype, np.complex64)
            k(np.multiply, x.view(complex_dtype), factor.view(complex_dtype), out.view(complex_dtype))
            return None
        half = self.size // 2
        first, second = self.parts(sin)
        k(np.negative, first, factor[..., :half])
        k(np.copyto, factor[..., half:], second)
        x, cos, factor, out = [a.reshape(*a.shape[:-1], -1, half) for a in (x, cos, factor, out)]
        swapped = x[..., ::-1, :]
        if out.size <= TILE:
            rotate(k, x, cos, swapped, factor, out, scratch)
        else:
            given = [np.broadcast_to(a, out.shape) for a in (x, cos, swapped, factor)]
            k(rotate_tiles, list(tiles(out.shape[:-2], max(1, TILE // self.size))), *given, out, scratch)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        operands, out = (*inputs, outputs[0]), outputs[0]
        if not is_plain(out.dtype):
            return NotImplemented
        if not out.size:
            return None
        strides = [strides_of(a, out.shape) for a in operands]
        rows = Axes.collapse(
            out.shape[:-1],
            *(s[:-1] for s in strides),
            reach=max(abs(s[-1]) * a.shape[-1] for s, a in zip(strides, operands)),
        )
        if not rows.rank:
            return NotImplemented
        half, rest = self.size // 2, out.shape[-1] - self.size
        each = [int(a.shape[-1] == self.size) for a in inputs[1:]]  # 1 if cos or sin has one value per element
        vector = 16 // out.dtype.itemsize
        counts = (half, rest, *(n for s in rows.strides for n in s))
        if (
            any(n % vector for n in counts)
            or any(s[-1] != 1 for s in strides)
            or any(a.data.ptr % 16 for a in operands)
        ):
            vector = 1
        threads = min(THREADS, 1 << ((half + rest) // vector - 1).bit_length())
        index = rows.numbers(0)[0].dtype
        steps = np.array([s[-1] for s in strides], index)
        k.kernel(
            "rotary.cu",
            f"rotate<{k.c_type(out.dtype)}, {'PAIRS' if self.pairs else 'HALVES'}, {vector}, "
            f"{rows.index}, {rows.rank}>",
            (-(-rows.size // (THREADS // threads)),),
            (threads, THREADS // threads),
            (*operands, rows.packed(), steps, *rows.numbers(rows.size, half, rest, *each)),
        )
        return None


@internal_op
class RotaryCacheWrite(Rotary):
    """Layers of a decode step between projections and attention, in one kernel: two `Rotary` and two `CacheWrite`.

    ``q [.., E], k [.., n, E], v [.., n, Ev], cos, sin, keys [.., C, E], values [.., C, Ev], lengths [2] -> q rotated,
    keys, values``: the rotated k, and v, are written into the caches from token ``lengths[0]`` on. In place of caches
    and lengths, it takes pools and a table of pages, as `CacheWrite` does.
    """

    name: ClassVar[str] = "RotaryCacheWrite"

    numpy = None  # type: ignore[assignment]
    updates: ClassVar[dict[int, tuple[int, int]]] = {1: (5, 1), 2: (6, 2)}

    def infer_specs(self, *inputs: Spec) -> tuple[Spec, ...]:
        q, _, _, cos, sin, keys, values, _ = inputs
        return (*super().infer_specs(q, cos, sin), keys, values)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        q, k, v, cos, sin, keys, values, lengths = inputs
        rotated, new = (super(RotaryCacheWrite, self).evaluate(xp, x, cos, sin)[0] for x in (q, k))
        write = CacheWrite(axis=keys.ndim - 2)
        return (rotated, *write.evaluate(xp, keys, new, lengths), *write.evaluate(xp, values, v, lengths))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return ()

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        q, key, value, cos, sin, keys, values, lengths = inputs
        out, operands = outputs[0], (q, key, value, cos, sin, outputs[0], keys, values)
        is_stored = keys.dtype != q.dtype  # in another type, see `ovgpu.ops.fused.stored_tokens`
        if not is_plain(out.dtype) or not out.size or any(x.shape[-1] > 1 and not _unit(x) for x in operands):
            return NotImplemented
        rotated = (*np.broadcast_shapes(*(x.shape[:-1] for x in (key, cos, sin))), out.shape[-1])
        parts = [((q, cos, sin), out, out.shape), ((key, cos, sin), keys, rotated), ((value,), values, value.shape)]
        paged = lengths.ndim == 2
        axes = []
        moved = list[int]()  # strides of the operands whose elements are loaded or stored
        for sources, target, shape in parts:
            strides, beside = [strides_of(x, shape) for x in sources], list[tuple[int, ...]]()
            if paged and target is not out:
                to, *beside = paged_axes(target, shape, lengths, len(shape) - 2)
            else:
                to = strides_of(target)
            if target is out or not is_stored:
                moved += [n for s in (*strides, to) for n in s[:-1]]
            reach = max(keys[:1].size, values[:1].size) if paged else max(keys.size, values.size)
            axes.append(Axes.collapse(shape[:-1], *(s[:-1] for s in (*strides, to, *beside)), reach=reach))
        if not all(a.rank for a in axes):
            return NotImplemented
        if any(a.index != "int" for a in axes):
            # The kernel has one index type for all axes, and a reach of 2**31 selects 64 bits.
            axes = [replace(a, reach=1 << 31) for a in axes]
        rank = max(a.rank for a in axes)
        half, rest, width = self.size // 2, out.shape[-1] - self.size, value.shape[-1]
        token_strides = [strides_of(keys)[-2], strides_of(values)[-2]]
        page_strides = [strides_of(keys)[0], strides_of(values)[0]] if paged else [0, 0]
        vector = 16 // out.dtype.itemsize
        counts = [half, rest, *moved]
        loaded: Arrays = operands
        if is_stored:  # only queries are loaded as vectors
            loaded = (q, cos, sin, out)
        else:
            counts += [width, *token_strides, *page_strides]
        if any(n % vector for n in counts) or any(x.data.ptr % 16 for x in loaded):
            vector = 1
        threads = min(32 if is_stored else THREADS, 1 << (max(half + rest, width) // vector - 1).bit_length())
        scalars = axes[0].numbers
        sizes = [a.size for a in axes]
        k.kernel(
            "rotary.cu",
            f"rotate_append<{k.c_type(out.dtype)}, {'PAIRS' if self.pairs else 'HALVES'}, {vector}, "
            f"{axes[0].index}, {rank}"
            + (f", {str(paged).lower()}, {k.c_type(keys.dtype)}>" if is_stored else ", true>" if paged else ">"),
            (-(-max(sizes) // (THREADS // threads)), 3),
            (threads, THREADS // threads),
            (
                q,
                key,
                value,
                cos,
                sin,
                out,
                keys,
                values,
                *(a.packed(rank) for a in axes),
                np.array([*sizes, *token_strides, *page_strides], scalars(0)[0].dtype),
                *scalars(half, rest, width),
                *scalars(*(int(x.shape[-1] == self.size) for x in (cos, sin))),
                lengths,
            ),
        )
        return None


def rotate_tiles(indices: Sequence[Any], x: Any, cos: Any, swapped: Any, sin: Any, out: Any, scratch: Any) -> None:
    """Run `rotate` tile by tile, so that the rows of a tile stay in cache."""
    for i in indices:
        rotate(call, x[i], cos[i], swapped[i], sin[i], out[i], scratch)


def rotate(k: HostRecorder, x: Any, cos: Any, swapped: Any, sin: Any, out: Any, scratch: Any) -> None:
    """Record ``out = x * cos + swapped * sin``: ``swapped`` is x with its halves swapped, and sin is negated in the
    first half."""
    scratch = scratch[: out.size].reshape(out.shape)
    k(np.multiply, x, cos, out)
    k(np.multiply, swapped, sin, scratch)
    k(np.add, out, scratch, out)


def _unit(x: Any) -> bool:
    return bool(x.strides[-1] == x.itemsize)
