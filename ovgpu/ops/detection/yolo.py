"""Ops of the last layers of YOLO 2 and 3: RegionYolo, ReorgYolo."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_reals, normalize_axis
from ovgpu.ops.base.strided import blocks
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import product, same

THREADS = 256


@op("RegionYolo", "opset1", "detection/region-yolo-1")
class RegionYolo(Op):
    """``x [N, C, H, W]`` with its regions of ``coords + 1 + classes`` channels activated: a sigmoid of the first two
    coordinates, the objectness and the classes. OpenVINO's reference leaves all batches except the first undefined.

    With ``do_softmax``, there are ``num`` regions, the classes go through softmax instead, and the axes from ``axis``
    to ``end_axis`` are flattened. Without it, ``mask`` has one element per region, and other channels are left out.

    >>> region_yolo([[[[0.0]], [[0]], [[7]], [[8]], [[0]], [[0]]]], coords=4, classes=1, num=1,
    ...             do_softmax=False, mask=[0], axis=1, end_axis=3)
    [[[[0.5]], [[0.5]], [[7.0]], [[8.0]], [[0.5]], [[0.5]]]]
    """

    anchors: tuple[float, ...] = ()
    axis: int
    coords: int
    classes: int
    end_axis: int
    num: int
    do_softmax: bool = True
    mask: tuple[int, ...] = ()

    layout = "dense"

    @property
    def regions(self) -> int:
        """The number of regions."""
        return self.num if self.do_softmax else len(self.mask)

    @property
    def entries(self) -> int:
        """The number of channels of a region."""
        return self.coords + 1 + self.classes

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        check_reals(x, "data", ranks=(4,))
        if self.coords < 2:
            raise OpError(f"coords is {self.coords}, below 2")
        if self.classes < 0 or self.regions < 0:
            raise OpError(f"there are {self.classes} classes and {self.regions} regions")
        if x.shape is None:
            return (Spec(x.type, None),)
        channels = self.regions * self.entries
        at_most(channels, x.shape[1], "{0} channels of regions are more than the {1} that there are")
        shape: Shape = (x.shape[0], channels, *x.shape[2:])
        if self.do_softmax:
            first, last = (normalize_axis(axis, 4) for axis in (self.axis, self.end_axis))
            last = max(first, last)
            shape = (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :])
        return (Spec(x.type, shape),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        n, _, *area = x.shape
        used = self.regions * self.entries
        selected = x[:, :used].reshape(n, self.regions, self.entries, *area)
        out = 1 / (1 + xp.exp(-selected))
        out[:, :, 2 : self.coords] = selected[:, :, 2 : self.coords]
        if self.do_softmax and self.classes:
            classes = selected[:, :, self.coords + 1 :]
            classes = xp.exp(classes - classes.max(2, keepdims=True))
            out[:, :, self.coords + 1 :] = classes / classes.sum(2, keepdims=True)
        out = out.reshape(n, used, *area)
        if not self.do_softmax:
            return (out,)
        first, last = (normalize_axis(axis, 4) for axis in (self.axis, self.end_axis))
        last = max(first, last)
        whole = xp.concatenate([out, x[:, used:]], 1)
        return (whole.reshape(*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :]),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        n, channels, *sides = x.shape
        area, used = prod(sides), self.regions * self.entries
        if x.dtype.name not in ("float32", "float16", "bfloat16") or x.size >= 2**31 - THREADS:
            return NotImplemented
        flat = x.reshape(n, channels, area)
        target = out.reshape(n, channels if self.do_softmax else used, area)
        if self.do_softmax:
            k.copy(flat[:, used:], target[:, used:])
        if target.size:
            count = n * self.regions * area
            k.kernel(
                "regions.cu",
                f"region_yolo<{k.c_type(x.dtype)}>",
                blocks(count, THREADS),
                (THREADS,),
                (
                    x,
                    out,
                    *map(np.int32, (count, area, self.regions, self.entries, self.coords, channels, target.shape[1])),
                    np.bool_(self.do_softmax),
                ),
            )
        return None


@op("ReorgYolo", "opset2", "detection/reorg-yolo-1")
class ReorgYolo(Op):
    """``x [N, C, H, W] -> [N, C * stride^2, H / stride, W / stride]``: darknet's "reorg".

    x is reshaped to ``[N, C / stride^2, H, stride, W, stride]`` and transposed to
    ``[N, stride, stride, C / stride^2, H, W]``. The output has the elements in that order.

    >>> reorg_yolo([[[[0.0, 1], [2, 3]], [[4, 5], [6, 7]], [[8, 9], [10, 11]], [[12, 13], [14, 15]]]], stride=[2])
    [[[[0.0]], [[2.0]], [[8.0]], [[10.0]], [[1.0]], [[3.0]], [[9.0]], [[11.0]],
      [[4.0]], [[6.0]], [[12.0]], [[14.0]], [[5.0]], [[7.0]], [[13.0]], [[15.0]]]]
    """

    stride: int

    layout = "dense"
    exact = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.stride < 1:
            raise OpError(f"stride is {self.stride}")
        if x.shape is None:
            return (Spec(x.type, None),)
        if len(x.shape) != 4:
            raise OpError(f"data must have rank 4, not {len(x.shape)}")
        n, channels, *sides = x.shape
        for extent, factor, what in (
            (channels, self.stride**2, "C"),
            (sides[0], self.stride, "H"),
            (sides[1], self.stride, "W"),
        ):
            same(extent % factor, 0, f"{what} divided by {factor} leaves {{0}}")
        return (Spec(x.type, (n, channels * self.stride**2, *(side // self.stride for side in sides))),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        s = self.stride
        n, channels, height, width = x.shape
        return (self.split(x).reshape(n, channels * s * s, height // s, width // s),)

    def split(self, x: Any) -> Any:
        """Return a view of x in the order of the output, [N, stride, stride, C / stride^2, H, W]."""
        s = self.stride
        n, channels, height, width = x.shape
        return x.reshape(n, channels // (s * s), height, s, width, s).transpose(0, 3, 5, 1, 2, 4)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        source = self.split(inputs[0])
        k(np.copyto, outputs[0].reshape(source.shape), source)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        if not outputs[0].size:
            return
        x, out = (a.view(f"u{a.dtype.itemsize}") for a in (inputs[0], outputs[0]))
        source = self.split(x)
        k.copy(source, out.reshape(source.shape))
