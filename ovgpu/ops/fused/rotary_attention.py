"""Internal op of a decode step: rotary embeddings, KV cache writes and attention in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ovgpu.ops.attention._attention import attend
from ovgpu.ops.attention._operands import NewToken
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused.rotary import RotaryCacheWrite
from ovgpu.spec import Spec


@internal_op
class RotaryAttention(Op):
    """A `RotaryCacheWrite` and the attention to the caches that it writes.

    ``q, k, v, cos, sin, keys, values, mask, scale, sink, lengths -> attention, keys, values``, where mask, scale and
    sink may be absent. In place of caches and lengths, it takes pools and a table of pages, as `CachedAttention` does.
    ``grouped``: attention's heads are [key heads, queries per key head], with an axis of their own, not [heads].
    """

    rotary: RotaryCacheWrite
    attention: CachedAttention
    grouped: bool

    name: ClassVar[str] = "RotaryAttention"

    strided_outputs = True
    half_precision = "always"
    updates: ClassVar[dict[int, tuple[int, int]]] = {1: (5, 1), 2: (6, 2)}
    reads_updated = True
    attended: ClassVar[tuple[int, int, int, int]] = (5, 6, 7, -1)
    """Indices of the inputs keys, values, mask and lengths."""

    def attributes(self) -> dict[str, Any]:
        return self.rotary.attributes() | self.attention.attributes()

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        q, keys, values = self.rotary.infer_specs(*_of_rotary(inputs))
        heads = [replace(x, shape=self._with_groups(x.shape, keys.shape)) for x in (q, keys, values)]
        return (*self.attention.infer_specs(*heads, *inputs[7:]), keys, values)

    def _with_groups(self, shape: Any, keys: Any) -> tuple[Any, ...]:
        """Return the shape that attention gives to queries, keys or values of this shape."""
        return (*shape[:-3], keys[-3], shape[-3] // keys[-3], *shape[-2:]) if self.grouped else shape

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        q, keys, values = self.rotary.evaluate(xp, *_of_rotary(inputs))
        heads = [x.reshape(self._with_groups(x.shape, keys.shape)) for x in (q, keys, values)]
        return (*self.attention.evaluate(xp, *heads, *inputs[7:]), keys, values)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the rotated queries, then the workspace of attention."""
        q, keys, values = inputs[0], inputs[5], inputs[6]
        assert q is not None and q.shape is not None and keys is not None and values is not None
        heads = [replace(x, shape=self._with_groups(x.shape, keys.shape)) for x in (q, keys, values)]
        return ((q.type, q.shape), *self.attention.kernel_workspace((*heads, *inputs[7:]), outputs[0]))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        q, key, value, cos, sin, _, _, mask, scale, sink, lengths = inputs
        out, keys, values = outputs
        new = self._heads(keys.shape, key, value, cos, sin)
        rotates = not self.rotary.pairs and self.rotary.size == q.shape[-1] and is_plain(q.dtype)
        heads = self._heads(keys.shape, q, keys, values)
        if (
            rotates
            and attend(
                k,
                (*heads, self.attention.mask(mask), scale, sink),
                out,
                self.attention.causal,
                None if lengths.ndim == 2 else lengths[1:],
                NewToken(*new),
                table=lengths if lengths.ndim == 2 else None,
            )
            is not NotImplemented
        ):
            return None
        rotated = workspace[0]
        if self.rotary.cuda(k, _of_rotary(inputs), (rotated, keys, values), ()) is NotImplemented:
            return NotImplemented
        return self.attention.cuda(
            k, (*self._heads(keys.shape, rotated), *heads[1:], *inputs[7:]), (out,), workspace[1:]
        )

    def _heads(self, keys: Sequence[int], *arrays: Array) -> list[Array]:
        """Return the arrays as attention takes them, without a copy; ``keys`` is the shape of the keys."""
        if not self.grouped:
            return list(arrays)
        return [x[..., None, :, :] if x.shape[-3] in (1, keys[-3]) else _split_heads(x, keys[-3]) for x in arrays]


def _of_rotary(inputs: Sequence[Any]) -> Sequence[Any]:
    """Return the inputs of RotaryCacheWrite."""
    return (*inputs[:7], inputs[-1])


def _split_heads(x: Array, groups: int) -> Array:
    """Return a view of x [.., heads, n, E] as [.., groups, heads / groups, n, E]."""
    view = x.reshape(*x.shape[:-3], groups, -1, *x.shape[-2:])
    assert view.base is not None or view is x
    return view
