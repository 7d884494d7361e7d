"""Broadcast: a tensor repeated along axes of one element and new axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, constants, integers, length, unknowns
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, broadcast, broadcast_shapes, onto

EXPLICIT = ("explicit", "none")


class _Broadcast(Op):
    """``data [...], target shape [n] (, axes mapping [rank]) -> [target shape]``.

    Mode numpy aligns axes at the end; explicit (none) moves axis ``i`` of the data to ``mapping[i]``; bidirectional
    is numpy, but the target's extents of 1 also broadcast to the data's; pdpd aligns axes at the start, and the
    target's extents of 1 broadcast to the data's. OpenVINO also writes a mapping in other modes of Broadcast-1, where
    it has no meaning.
    """

    exact = True
    supports_symbolic = True
    host_inputs = (1, 2)
    half_precision = "promoted"
    host_in_decode = True
    moves_elements = True

    mode: str

    def infer_specs(self, x: Spec, target: Spec, mapping: Spec | None = None) -> tuple[Spec, ...]:
        check_integers(target, "the target shape")
        mapping = self.axes_mapping(mapping)
        if mapping is not None:
            check_integers(mapping, "the axes mapping")
        return (Spec(x.type, self.shape(x, target.ints(), length(target), mapping)),)

    def axes_mapping(self, *mapping: Any) -> Any:
        """Return the axes mapping, or None in modes that have none."""
        return mapping[0] if mapping and self.mode in EXPLICIT else None

    def shape(self, x: Spec, target: Sequence[Int] | None, rank: int | None, mapping: Spec | None) -> Shape:
        """Return the output's shape as far as it is known."""
        grows = self.mode in ("bidirectional", "pdpd")
        known = None if mapping is None else constants(mapping)
        if target is not None and x.shape is not None and (mapping is None or known is not None):
            return self.align_axes(x.shape, target, known)[1]
        if target is not None and not grows:
            return tuple(target)
        if self.mode == "bidirectional":
            rank = None if rank is None or x.rank is None else max(rank, x.rank)
        return unknowns(rank)

    def evaluate(self, xp: Adapter, x: Array, target: Array, *others: Array) -> tuple[Array, ...]:
        mapping = self.axes_mapping(*others)
        output_axes, shape = self.align_axes(x.shape, integers(target), None if mapping is None else integers(mapping))
        return (xp.broadcast_to(x.reshape(_expanded_shape(x.shape, output_axes, len(shape))), shape),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        k(np.copyto, out, self.with_new_axes(x, out, self.axes_mapping(*inputs[2:])))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, out = inputs[0], outputs[0]
        k.copy(self.with_new_axes(x, out, self.axes_mapping(*inputs[2:])), out)

    def with_new_axes(self, x: Any, out: Any, mapping: Any) -> Any:
        """Return a view of the data with new axes of extent 1, which broadcasts to the output."""
        output_axes, _ = self.align_axes(x.shape, out.shape, None if mapping is None else integers(mapping))
        return x[tuple(slice(None) if i in output_axes else None for i in range(out.ndim))] if output_axes else x

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, target, shape = inputs[0], specs[1], outputs[0].shape
        mapping = self.axes_mapping(*specs[2:])
        known = None if mapping is None else constants(mapping)
        target_shape = None if target is None else target.ints()
        if x is None or target_shape is None or shape is None or (mapping is not None and known is None):
            return None
        output_axes, _ = self.align_axes(x.shape, target_shape, known)
        view = x.expand(shape, output_axes)
        return None if view is None else [view]

    def align_axes(
        self, shape: Sequence[Int], target: Sequence[Int], mapping: Sequence[int] | None
    ) -> tuple[list[int], tuple[Int, ...]]:
        """Return the output axis of each data axis, and the output's shape. Raise OpError if they do not fit."""
        if self.mode == "bidirectional":
            out = broadcast_shapes(shape, target)
        else:
            out = tuple(target)
        if mapping is not None:
            output_axes = _check_mapping(mapping, len(shape), len(out))
        elif len(shape) > len(out):
            raise OpError(f"rank {len(shape)} is over the target's {len(out)}")
        elif self.mode == "pdpd":
            output_axes = list(range(len(shape)))
            grown = [broadcast(d, out[i]) for i, d in enumerate(shape)]
            out = (*grown, *out[len(shape) :])
        else:
            output_axes = list(range(len(out) - len(shape), len(out)))
        for extent, i in zip(shape, output_axes):
            onto(extent, out[i])
        return output_axes, out


def _check_mapping(mapping: Sequence[int], rank: int, target: int) -> list[int]:
    if rank == 0 and len(mapping) == 1:  # a scalar may be mapped as if it had one axis
        return []
    if len(mapping) != rank:
        raise OpError(f"an axes mapping of {len(mapping)} does not fit rank {rank}")
    if list(mapping) != sorted(set(mapping)):
        raise OpError(f"axes mapping {list(mapping)} is not in ascending order")
    if any(not 0 <= a < target for a in mapping):
        raise OpError(f"axes mapping {list(mapping)} is out of range for a target of rank {target}")
    return list(mapping)


def _expanded_shape(shape: Sequence[int], output_axes: Sequence[int], rank: int) -> list[int]:
    """Return a shape of ``rank`` axes with the extents of ``shape`` at ``output_axes``, and 1 elsewhere."""
    result = [1] * rank
    for extent, i in zip(shape, output_axes):
        result[i] = extent
    return result


@op("Broadcast", "opset1", "movement/broadcast-1")
class Broadcast(_Broadcast):
    __doc__ = _Broadcast.__doc__

    mode: Literal["numpy", "explicit", "none", "pdpd"] = "numpy"


@op("Broadcast", "opset3", "movement/broadcast-3")
class Broadcast3(_Broadcast):
    __doc__ = f"""{_Broadcast.__doc__}
    >>> broadcast([[1], [2]], [1, 3], broadcast_spec="BIDIRECTIONAL")
    [[1, 1, 1], [2, 2, 2]]
    """

    mode: Literal["numpy", "explicit", "none", "bidirectional", "pdpd"] = "numpy"

    def infer_specs(self, x: Spec, target: Spec, mapping: Spec | None = None) -> tuple[Spec, ...]:
        if (self.mode in EXPLICIT) != (mapping is not None):
            raise OpError(f"mode {self.mode} {'needs' if mapping is None else 'takes no'} axes mapping")
        return super().infer_specs(x, target, mapping)
