"""Internal ops of KV caches: variables whose new value is the old one with new tokens appended along an axis."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ovgpu.model import Model
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers
from ovgpu.ops.base.storage import zero_of
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, same_memory, strides_of, vectorized
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.indices import readable
from ovgpu.ops.movement.movement import Concat
from ovgpu.spec import Spec
from ovgpu.types import Type

PAGE_TOKENS = 16  # tokens in a page of a pool, as in attention.cuh and copy.cu
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
class CacheWrite(Op):
    """Write of n tokens: ``cache [.., C, ..], new [.., n, ..], lengths [2] -> cache`` writes ``new`` into the cache
    along ``axis`` from token ``lengths[0]`` on. The capacity C must be at least ``lengths[0] + n``."""

    axis: int

    name: ClassVar[str] = "CacheWrite"

    exact = True
    layout = "strided"
    updates: ClassVar[dict[int, tuple[int, int]]] = {0: (0, 1)}

    def infer_specs(self, cache: Spec, new: Spec, lengths: Spec) -> tuple[Spec, ...]:
        return (Spec(cache.type, cache.shape),)

    def evaluate(self, xp: Adapter, cache: Array, new: Array, lengths: Array) -> tuple[Array, ...]:
        cache = xp.array(cache)
        write_tokens(cache, new, lengths, self.axis)
        return (cache,)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k(write_tokens, *inputs, self.axis)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        cache, new, lengths = inputs
        step = strides_of(cache)[self.axis]
        if not new.size:
            return None
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


def write_tokens(cache: Any, new: Any, lengths: Any, axis: int) -> None:
    """Write ``new`` into ``cache`` along an axis, from token ``lengths[0]`` on."""
    start = int(lengths[0])
    cache[(*(slice(None),) * axis, slice(start, start + new.shape[axis]))] = new


def growing(model: Model) -> dict[str, int]:
    """Return the variables that cache appends assign, each with the axis along which it grows."""
    axes: dict[str, int] = {}
    for sink in model.sinks:
        op: Any = None if sink.sources[0] is None else sink.sources[0].node.op
        if isinstance(op, CacheAppend):
            axes[sink.op.variable_id] = op.axis  # type: ignore[attr-defined]
    return axes
