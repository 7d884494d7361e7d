"""GroupNormalization, also with an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.activation.softmax import block_rows
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, call, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.normalization._group_norm import Norm, normalize_groups
from ovgpu.ops.normalization.channel_normalization import by_channel, check_channels
from ovgpu.ops.normalization.normalization import mvn_block
from ovgpu.ops.reduction import is_float, ones
from ovgpu.spec import Spec
from ovgpu.symbolic import same

PARALLEL_ELEMENTS = 1 << 16  # the least elements for which several workers are faster than one


@op("GroupNormalization", "opset12", "normalization/group-normalization-12")
class GroupNormalization(Op):
    """``x [N, C, ...], scale [C], bias [C] ->`` x normalised by the mean and deviation of each of ``num_groups`` groups
    of channels of an image, then scaled and shifted by channel (Wu & He 2018).

    >>> group_normalization([[[1.0], [3]]], [1.0, 10], [0.0, 100], num_groups=1, epsilon=1e-9)
    [[[-1.0], [110.0]]]
    """

    num_groups: int
    epsilon: float

    mixed_reals = (1, 2)
    layout = "image"
    keeps_layout = True
    half_precision = "bounded"

    def infer_specs(self, x: Spec, scale: Spec, bias: Spec) -> tuple[Spec, ...]:
        check_channels(x, scale, bias)
        if self.num_groups < 1:
            raise OpError(f"num_groups is {self.num_groups}")
        if x.shape is not None:
            same(x.shape[1] % self.num_groups, 0, f"the channels do not come out even in {self.num_groups} groups")
        return (Spec(merge_types((x, scale, bias)), x.shape),)

    def eps_is_inside(self) -> bool:
        """Return True if ``epsilon`` is added to the variance, False if to its square root."""
        return True

    def rows(self, x: Array) -> Array:
        """Return a view with a row for each group of every image."""
        return x.reshape(len(x) * self.num_groups, prod(x.shape[1:]) // self.num_groups)

    def evaluate(self, xp: Adapter, x: Array, scale: Array, bias: Array) -> tuple[Array, ...]:
        if not x.size:
            return (x.copy(),)
        rows = self.rows(x)
        rows = rows - rows.mean(axis=1, keepdims=True)
        variance = (rows * rows).mean(axis=1, keepdims=True)
        rows = rows / (xp.sqrt(variance + self.epsilon) if self.eps_is_inside() else xp.sqrt(variance) + self.epsilon)
        return (rows.reshape(x.shape) * by_channel(scale, x.ndim) + by_channel(bias, x.ndim),)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return ((outputs[0].type, (self.num_groups,)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, scale, bias), out = inputs, outputs[0]
        if not is_float(x.dtype) or not x.size:
            return NotImplemented
        n = prod(x.shape[1:]) // self.num_groups
        shape = (len(x), self.num_groups, x.shape[1] // self.num_groups, -1)
        block = int(block_rows(self.num_groups, n))
        arrays = (self.rows(x).reshape(*shape[:2], n), self.rows(out).reshape(*shape[:2], n), out.reshape(shape))
        work = workers(x.size >= PARALLEL_ELEMENTS)
        for worker, groups in zip(work, shares(self.num_groups, len(work))):
            worker(
                group_rows,
                *(a[:, groups] for a in arrays),
                ones(n, x.dtype),
                workspace[0].reshape(-1, 1)[groups][:block],
                self.epsilon,
                self.eps_is_inside(),
                *(v.reshape(*shape[1:3], 1)[groups] for v in (scale, bias)),
            )
        record(k, work)
        return None

    def cuda(
        self,
        k: KernelRecorder,
        inputs: Arrays,
        outputs: Arrays,
        workspace: Arrays,
        chain: Chain | None = None,
        others: Sequence[Array] = (),
    ) -> Any:
        """Record the kernels. The inputs of ``chain``, an epilogue, are the result and then ``others``; see
        `GroupNormWithEpilogue`."""
        x, scale, bias = inputs
        return normalize_groups(
            k,
            Norm(x, scale, bias, outputs[0], self.num_groups, self.epsilon, self.eps_is_inside(), chain, tuple(others)),
        )


def group_rows(
    x: Array,
    out: Array,
    channels: Array,
    column: Array,
    statistics: Array,
    eps: float,
    inside: bool,
    scale: Array,
    bias: Array,
) -> None:
    """Normalise groups, in blocks that stay in cache; ``eps`` and ``inside`` are as in `mvn_block`.

    x, out: [N, G, n]; channels: out as [N, G, C / G, n G / C]; column: n ones; statistics: [groups per block, 1];
    scale, bias: [G, C / G, 1].
    """
    block = len(statistics)
    for i in range(len(x)):
        for start in range(0, x.shape[1], block):
            groups = slice(start, start + block)
            mvn_block(
                call, x[i, groups], out[i, groups], column, statistics[: len(x[i, groups])], eps, inside, None, None
            )
            np.multiply(channels[i, groups], scale[groups], channels[i, groups])
            np.add(channels[i, groups], bias[groups], channels[i, groups])


@internal_op
class GroupNorm(GroupNormalization):
    """GroupNormalization that passes fuse from several layers. With ``inside``, ``epsilon`` is added inside the square
    root."""

    inside: bool

    name: ClassVar[str] = "GroupNormalization"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()

    def eps_is_inside(self) -> bool:
        return self.inside


@internal_op
class GroupNormWithEpilogue(OpWithEpilogue):
    """GroupNormalization on a CUDA device whose kernel applies the elementwise layers after it. Each of their other
    inputs has the shape of the result, [N, C, 1, ...], one element per channel, or one element."""

    norm: GroupNormalization

    name: ClassVar[str] = "GroupNormalization"
    layout = "image"
    keeps_layout = True
    strided_outputs = False
    half_precision = "bounded"

    @property
    def first(self) -> GroupNormalization:
        return self.norm

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        given, others = self.split(inputs)
        return self.norm.cuda(k, given, outputs, workspace, self.fused.chain, others)
