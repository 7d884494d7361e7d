"""Normalisation per channel and across channels: BatchNormInference, LRN, GRN."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import Elementwise, merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_axes, check_count, integers, normalize_axes
from ovgpu.ops.base.xp import Adapter, Namespace
from ovgpu.ops.normalization.normalization import NormalizeL2, check_real, normalize
from ovgpu.ops.pooling._pooling import Sliding
from ovgpu.ops.reduction import is_float
from ovgpu.spec import Spec
from ovgpu.symbolic import same


def by_channel(values: Array, rank: int) -> Array:
    """Reshape ``values`` [C] so that they broadcast to a tensor [N, C, ...] of rank ``rank``."""
    return values.reshape(-1, *(1,) * (rank - 2))


def check_channels(x: Spec, *others: Spec) -> None:
    """Raise OpError unless x is [N, C, ...] of a real type, and the others are [C] of the same type."""
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
    """Elementwise formula of batch normalization; gamma, beta, mean and variance broadcast to x."""

    epsilon: float

    name: ClassVar[str] = "BatchNormInference"

    cuda_expr = "(x - mean) * (gamma / sqrt(variance + epsilon)) + beta"

    def fn(self, xp: Namespace, x: Array, gamma: Array, beta: Array, mean: Array, variance: Array) -> Array:
        return (x - mean) * (gamma / xp.sqrt(variance + self.epsilon)) + beta


class BatchNorm(Op):
    """Base of batch norms: ``(x - mean) / sqrt(variance + epsilon) * gamma + beta`` for ``x [N, C, ...]``. The other
    four have shape [C]."""

    epsilon: float

    strided_outputs = True
    data: ClassVar[int]
    """Index of x among the inputs; the others are gamma, beta, mean and variance, in this order."""

    def order(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs in the order x, gamma, beta, mean, variance."""
        return [inputs[self.data], *inputs[: self.data], *inputs[self.data + 1 :]]

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        check_count(len(inputs), 5)
        x, *others = self.order(inputs)
        check_channels(x, *others)
        if self.epsilon < 0:
            raise OpError(f"epsilon {self.epsilon} is negative")
        return (Spec(merge_types(inputs), x.shape),)

    def aligned(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the inputs in the order of `order`, reshaped so that they broadcast to x."""
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
    """``x [N, C, ...], gamma [C], beta [C], mean [C], variance [C] ->`` as in version 1, but in another order.

    >>> batch_norm_inference([[10.0, 20]], [1.0, 1], [0.0, 100], [8.0, 20], [4.0, 1], epsilon=1e-9)
    [[1.0, 100.0]]
    """

    data = 0


@op("LRN", "opset1", "normalization/lrn-1")
class LRN(Op):
    """``x [...], axes [n] -> [...]``: x divided by ``(bias + alpha / size^n * s) ^ beta``, where s is the sum of
    squares in the region that reaches ``size // 2`` elements to either side along the axes.

    If ``size`` is even, the region has ``size + 1`` elements. OpenVINO's plugin truncates the bias to an integer.

    >>> lrn([[[[1.0]], [[2]], [[2]]]], [1], alpha=3.0, beta=1.0, bias=1.0, size=3)
    [[[[0.1667]], [[0.2]], [[0.2222]]]]
    """

    alpha: float
    beta: float
    bias: float
    size: int

    layout = "dense"
    host_inputs = (1,)

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_real(x.type)
        check_axes(axes, x.rank)
        if self.size < 1:
            raise OpError(f"size is {self.size}")
        return (Spec(x.type, x.shape),)

    def windows(self, x: Array, axes: Any) -> dict[int, Sliding]:
        """Return the region around each element of an axis, by axis."""
        half = self.size // 2
        return {
            i: Sliding(x.shape[i], x.shape[i], 2 * half + 1, 1, 1, half) for i in normalize_axes(integers(axes), x.ndim)
        }

    def factor(self, windows: dict[int, Sliding]) -> float:
        """Return the factor that the sum of squares is multiplied by."""
        return float(self.alpha / self.size ** len(windows))

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        windows, total = self.windows(x, axes), x * x
        for axis, region in windows.items() if x.size else ():
            indices, inside = region.indices()
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
        for axis, region in windows.items():
            k(region.folding(np.add, axis, np.zeros(region.count, x.dtype)), total, other)
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
            # struct Region: the number of axes, then MAX_AXES extents, as many strides, and as many radii
            struct = np.zeros((1 + 3 * launch.MAX_AXES,), np.int64)
            struct[0] = len(windows)
            for i, (axis, region) in enumerate(windows.items()):
                struct[1 + i :: launch.MAX_AXES][:3] = region.extent, prod(x.shape[axis + 1 :]), region.begin
            k.kernel(
                "channel_normalization.cu",
                f"local_response<{k.c_type(x.dtype)}>",
                (launch.ceildiv(x.size, 256),),
                (256,),
                (
                    x,
                    out,
                    struct,
                    np.int64(x.size),
                    *(launch.real(v, x) for v in (self.factor(windows), self.bias, self.beta)),
                ),
            )
        return None


@op("GRN", "opset1", "normalization/grn-1")
class GRN(Op):
    """``x [N, C, ...] ->`` x divided by ``sqrt(s + bias)``, where s is the sum of its squares over all channels.

    >>> grn([[[[3.0]], [[4]]]], bias=1e-9)
    [[[[0.6]], [[0.8]]]]
    """

    bias: float

    strided_outputs = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
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
