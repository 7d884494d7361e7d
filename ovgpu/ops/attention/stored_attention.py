"""Attention to KV caches that are stored in another type than it computes in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ovgpu.ops.attention.attention import (
    ScaledDotProductAttention,
    restored_inputs,
    restored_specs,
    restored_workspace,
)
from ovgpu.ops.base.op import Array, Arrays, Workspace, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec


@internal_op
class StoredAttention(ScaledDotProductAttention):
    """Attention to caches of f16, bf16 or u8 (`ovgpu.ops.fused.stored_tokens`), which it reads in the type of q.

    ``q, k, v, mask, scale, sink, new keys, new values``, of which mask, scale and sink may be absent; k and v end with
    the new ones. If there are no other tokens, attention takes the new ones, which have not been rounded, as OpenVINO's
    CPU plugin does.
    """

    name: ClassVar[str] = "StoredAttention"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        return super().infer_specs(*restored_specs(inputs[:6]))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        memory = super().workspace(restored_specs(inputs[:6]), outputs)
        return (*memory, *restored_workspace(inputs[:6], outputs[0]))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        return super().evaluate(xp, *restored_inputs(xp, _taken(inputs)))

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        k(self._attend, _taken(inputs), outputs, workspace)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self._record(k, _taken(inputs), outputs[0], restored=workspace[-2:])


def _taken(inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of attention, with keys and values as it takes them."""
    attention, new = list(inputs[:6]), inputs[6:]
    return [attention[0], *new, *attention[3:]] if new[0].shape[-2] == attention[1].shape[-2] else attention
