"""Normalisation per channel and across channels: BatchNormInference, GroupNormalization, LRN, GRN."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.activation.softmax import block_rows
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import Elementwise, merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, call, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_axes, check_count, integers, normalize_axes
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.base.xp import Adapter, Namespace
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.normalization.normalization import NormalizeL2, check_real, mvn_block, normalize
from ovgpu.ops.pooling._pooling import Sliding
from ovgpu.ops.reduction import is_float, ones
from ovgpu.spec import Spec
from ovgpu.symbolic import same


def by_channel(values: Array, rank: int) -> Array:
    """Reshape ``values`` [C] so that they broadcast to a tensor [N, C, ...] of that rank."""
    return values.reshape(-1, *(1,) * (rank - 2))


def check_channels(x: Spec, *others: Spec) -> None:
    """Raise OpError unless x [N, C, ...] has channels, and the others [C] have its real type."""
    check_real(merge_types((x, *others)))
    if x.rank is not None and x.rank < 2:
        raise OpError(f"the data must have rank 2 or more, not {x.rank}")
    extent = None if x.shape is None else x.shape[1]
    for spec in others:
        if spec.rank not in (None, 1):
            raise OpError(f"there must be one number per channel, not a tensor of rank {spec.rank}")
        if spec.shape is not None:
            extent = spec.shape[0] if extent is None else same(extent, spec.shape[0], "{0} channels have {1} numbers")


@internal_op
class Formula(Elementwise):
    """Elementwise formula of batch normalization, of tensors that broadcast to the data."""

    epsilon: float

    name: ClassVar[str] = "BatchNormInference"

    cuda_expr = "(x - mean) * (gamma / sqrt(variance + epsilon)) + beta"

    def fn(self, xp: Namespace, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
        return (x - mean) * (gamma / xp.sqrt(variance + self.epsilon)) + beta


class BatchNorm(Op):
    """Base of batch norms: every channel of ``x [N, C, ...]`` minus its mean, divided by its deviation, scaled by gamma
    and shifted by beta. All four have shape [C]."""

    epsilon: float

    strided_outputs = True
    data: ClassVar[int]
    """Index of x among the inputs; the others are gamma, beta, mean and variance, in this order."""

    def order(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs in the order x, gamma, beta, mean, variance."""
        return [inputs[self.data], *inputs[: self.data], *inputs[self.data + 1 :]]

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        check_count(len(inputs), 5)
        x, *others = self.order(inputs)
        check_channels(x, *others)
        if self.epsilon < 0:
            raise OpError(f"epsilon {self.epsilon} is negative")
        return (Spec(merge_types(inputs), x.shape),)

    def aligned(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs in that order, reshaped so that they broadcast to the data."""
        x, *others = self.order(inputs)
        return [x, *(by_channel(values, x.ndim) for values in others)]

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        return (Formula(epsilon=self.epsilon).fn(xp, *self.aligned(inputs)),)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (self.data,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        channels = (outputs[0].shape or ())[1:2]
        return ((outputs[0].type, channels), (outputs[0].type, channels))

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, gamma, beta, mean, variance), out = self.order(inputs), outputs[0]
        if not is_float(x.dtype):
            return NotImplemented
        scale, shift = (w.reshape(-1)[: gamma.size] for w in workspace)
        k(np.add, variance, self.epsilon, scale)
        k(np.sqrt, scale, scale)
        k(np.divide, gamma, scale, scale)
        k(np.multiply, mean, scale, shift)
        k(np.subtract, beta, shift, shift)
        k(np.multiply, x, by_channel(scale, x.ndim), out)
        k(np.add, out, by_channel(shift, x.ndim), out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        if not launch.is_real(outputs[0]):
            return NotImplemented
        k.elementwise(Formula(epsilon=self.epsilon), self.aligned(inputs), outputs[0])
        return None


@op("BatchNormInference", "opset1", "normalization/batch-norm-inference-1")
class BatchNormInference(BatchNorm):
    """``gamma [C], beta [C], x [N, C, ...], mean [C], variance [C] ->`` x normalised by channel, scaled and shifted."""

    data = 2


@op("BatchNormInference", "opset5", "normalization/batch-norm-inference-5")
class BatchNormInference5(BatchNorm):
    """``x [N, C, ...], gamma [C], beta [C], mean [C], variance [C] ->`` as in version 1, but in another order."""

    data = 0


PARALLEL_ELEMENTS = 1 << 16  # elements of a GroupNormalization from which on a second worker pays
MAX_EPILOGUE_OPERANDS = 3  # tensors that the epilogue of a GroupNormalization reads, at most
MIN_PART_ELEMENTS = 8192  # of a block, at least, where one block per row would leave processors idle


@op("GroupNormalization", "opset12", "normalization/group-normalization-12")
class GroupNormalization(Op):
    """``x [N, C, ...], scale [C], bias [C] ->`` x normalised by mean and deviation in each of ``num_groups`` groups of
    channels of every image, then scaled and shifted by channel (Wu & He 2018)."""

    num_groups: int
    epsilon: float

    layout = "dense"
    half_precision = "bounded"

    def infer(self, x: Spec, scale: Spec, bias: Spec) -> tuple[Spec, ...]:
        check_channels(x, scale, bias)
        if self.num_groups < 1:
            raise OpError(f"num_groups is {self.num_groups}")
        if self.epsilon < 0:
            raise OpError(f"epsilon {self.epsilon} is negative")
        if x.shape is not None:
            same(x.shape[1] % self.num_groups, 0, f"the channels do not come out even in {self.num_groups} groups")
        return (Spec(merge_types((x, scale, bias)), x.shape),)

    def eps_is_inside(self) -> bool:
        """Return whether ``epsilon`` is added to the variance, and not to its square root."""
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
            worker(group_rows, *(a[:, groups] for a in arrays), ones(n, x.dtype),
                   workspace[0].reshape(-1, 1)[groups][:block], self.epsilon, self.eps_is_inside(),
                   *(v.reshape(*shape[1:3], 1)[groups] for v in (scale, bias)))
        record(k, work)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays,
             chain: Chain | None = None, others: Sequence[Array] = ()) -> Any:
        """Record the kernels. A ``chain`` is applied to the result, its first input, and ``others``, its further ones;
        see `GroupNormWithEpilogue`."""
        (x, scale, bias), out = inputs, outputs[0]
        rows, n = len(x) * self.num_groups, prod(x.shape[1:]) // self.num_groups
        if not launch.is_real(x) or n > launch.MAX_INDEX:
            return NotImplemented
        if not x.size:
            return None
        area = prod(x.shape[2:])
        vector = 16 // x.itemsize
        if area % vector or x.data.ptr % 16 or out.data.ptr % 16:
            vector = 1
        parts = max(min(2 * k.multiprocessors // rows, n // MIN_PART_ELEMENTS), 1)
        length = launch.ceildiv(launch.ceildiv(n, parts), vector) * vector
        parts = launch.ceildiv(n, length)
        partial = k.scratch((rows, parts, 3), np.dtype(type(launch.real(0, x)))) if parts > 1 else None
        numbers = (np.uint32(n), np.uint32(area), np.uint32(self.num_groups), np.uint32(length),
                   launch.real(self.epsilon, x), np.bool_(self.eps_is_inside()))
        kinds = sum(_broadcast_kind(other, out) << 2 * i for i, other in enumerate(others))
        epilogue, source = "", ""
        if chain is not None:
            dtypes = tuple([a.dtype for a in (out, *others)])
            epilogue, source = ", Epilogue", k.functor("Epilogue", chain, dtypes, MAX_EPILOGUE_OPERANDS, "common.cuh")
        given = (np.uint32(kinds), *others, *[None] * (MAX_EPILOGUE_OPERANDS - len(others)))
        for kernel in ("group_moments", "group_parts")[: min(parts, 2)]:
            k.kernel("channel_normalization.cu", f"{kernel}<{k.c_type(x.dtype)}, {vector}{epilogue}>", (rows, parts),
                     (launch.power(length / (4 * vector), low=64),), (x, out, scale, bias, partial, *numbers, *given),
                     prelude=source)
        return None


def _broadcast_kind(other: Array, out: Array) -> int:
    """Return the number by which channel_normalization.cu knows the shape of ``other``: 0 if it has an element per
    element of the result, 1 per channel of every image, 2 per channel, 3 a single one."""
    if other.shape == out.shape:
        return 0
    if other.size == 1:
        return 3
    return 1 if other.ndim == out.ndim and other.shape[0] == out.shape[0] else 2


def group_rows(x: Array, out: Array, channels: Array, column: Array, statistics: Array, eps: float, inside: bool,
               scale: Array, bias: Array) -> None:
    """Normalise groups, in blocks that stay in cache; for the options see `mvn_block`.

    x, out: [N, G, n]; channels: out as [N, G, C / G, n G / C]; column: n ones; statistics: [groups per block, 1];
    scale, bias: [G, C / G, 1].
    """
    block = len(statistics)
    for i in range(len(x)):
        for start in range(0, x.shape[1], block):
            groups = slice(start, start + block)
            mvn_block(call, x[i, groups], out[i, groups], column, statistics[: len(x[i, groups])], eps, inside,
                      None, None)
            np.multiply(channels[i, groups], scale[groups], channels[i, groups])
            np.add(channels[i, groups], bias[groups], channels[i, groups])


@internal_op
class GroupNorm(GroupNormalization):
    """GroupNormalization that passes make of several layers; ``inside`` adds ``epsilon`` inside the square root."""

    inside: bool

    name: ClassVar[str] = "GroupNormalization"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()

    def eps_is_inside(self) -> bool:
        return self.inside


@internal_op
class GroupNormWithEpilogue(OpWithEpilogue):
    """GroupNormalization on a CUDA device whose kernel applies the elementwise layers after it. Their other inputs have
    the shape of the result, or its batch and channels, its channels alone, or one element."""

    norm: GroupNormalization

    name: ClassVar[str] = "GroupNormalization"
    layout = "dense"
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


@op("LRN", "opset1", "normalization/lrn-1")
class LRN(Op):
    """``x [...], axes [n] -> [...]``: x divided by ``(bias + alpha / size^n * s) ^ beta``, where s is the sum of
    squares in the region that reaches ``size // 2`` elements to either side along the axes.

    If the size is even, the region has one element more. OpenVINO's plugin truncates the bias to an integer.
    """

    alpha: float
    beta: float
    bias: float
    size: int

    layout = "dense"
    host_inputs = (1,)

    def infer(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        check_axes(axes, x.rank)
        if self.size < 1:
            raise OpError(f"size is {self.size}")
        return (Spec(x.type, x.shape),)

    def windows(self, x: Array, axes: Any) -> dict[int, Sliding]:
        """Return the region around each element of an axis, by axis."""
        half = self.size // 2
        return {i: Sliding(x.shape[i], x.shape[i], 2 * half + 1, 1, 1, half)
                for i in normalize_axes(integers(axes), x.ndim)}

    def factor(self, windows: dict[int, Sliding]) -> float:
        """Return the factor of the sum of squares."""
        return float(self.alpha / self.size ** len(windows))

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        windows, total = self.windows(x, axes), x * x
        for axis, along in windows.items() if x.size else ():
            indices, inside = along.indices()
            inside = xp.asarray(inside.reshape(*inside.shape, *(1,) * (x.ndim - axis - 1)))
            total = xp.where(inside, xp.take(total, xp.asarray(indices), axis=axis), 0).sum(axis=axis + 1)
        return (x / (self.bias + self.factor(windows) * total) ** self.beta,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return ((outputs[0].type, outputs[0].shape or ()),) * 2

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, axes), out = inputs, outputs[0]
        if not is_float(x.dtype) or not x.size:
            return NotImplemented
        total, other = (w.reshape(x.shape) for w in workspace)
        windows = self.windows(x, axes)
        k(np.multiply, x, x, total)
        for axis, along in windows.items():
            k(along.folding(np.add, axis, np.zeros(along.count, x.dtype)), total, other)
            total, other = other, total
        k(np.multiply, total, self.factor(windows), total)
        k(np.add, total, self.bias, total)
        k(np.power, total, self.beta, total)
        k(np.divide, x, total, out)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, axes), out = inputs, outputs[0]
        windows = self.windows(x, axes)
        if not launch.is_real(x) or len(windows) > launch.MAX_AXES:
            return NotImplemented
        if x.size:
            struct = np.zeros((1 + 3 * launch.MAX_AXES,), np.int64)
            struct[0] = len(windows)
            for i, (axis, along) in enumerate(windows.items()):
                struct[1 + i :: launch.MAX_AXES][:3] = along.extent, prod(x.shape[axis + 1 :]), along.begin
            k.kernel("channel_normalization.cu", f"local_response<{k.c_type(x.dtype)}>", (launch.ceildiv(x.size, 256),),
                     (256,), (x, out, struct, np.int64(x.size),
                              *(launch.real(v, x) for v in (self.factor(windows), self.bias, self.beta))))
        return None


@op("GRN", "opset1", "normalization/grn-1")
class GRN(Op):
    """``x [N, C, ...] ->`` x divided by ``sqrt(s + bias)``, where s is the sum of its squares over all channels."""

    bias: float

    strided_outputs = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        if x.rank not in (None, 2, 3, 4):
            raise OpError(f"the data must have rank 2 or 3 or 4, not {x.rank}")
        return (Spec(x.type, x.shape),)

    def norm(self) -> NormalizeL2:
        """Return the op that computes the GRN along `CHANNEL_AXIS`."""
        return NormalizeL2(eps=self.bias, eps_mode="add")

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return self.norm().evaluate(xp, x, CHANNEL_AXIS)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        return self.norm().workspace(inputs, outputs)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return self.norm().numpy(k, [*inputs, CHANNEL_AXIS], outputs, workspace)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return normalize(k, "L2", inputs[0], outputs[0], [1], self.bias, "INSIDE")


CHANNEL_AXIS = np.array([1])  # as an input of NormalizeL2
