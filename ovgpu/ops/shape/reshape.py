"""Ops that change the shape and keep the elements: Reshape, Squeeze, Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import (
    axes_of_scalar,
    check_integers,
    constants,
    integers,
    is_read,
    length,
    normalize_axes,
    normalize_axis,
    unknowns,
)
from ovgpu.ops.base.view import View, equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, apply, bounds, maximum, product, same, unknown


class _Reshaping(Op):
    """Base of ops whose output has the input's elements in the input's order."""

    exact = True
    supports_symbolic = True
    host_inputs = (1,)
    is_reshape = True
    half_precision = "promoted"
    host_in_decode = True

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        x, shape = inputs[0], outputs[0].shape
        return None if x is None or shape is None else [x.reshape(shape)]

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k(np.copyto, outputs[0].reshape(inputs[0].shape), inputs[0])

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k.copy(inputs[0], outputs[0].reshape(inputs[0].shape))


@op("Reshape", "opset1", "shape/reshape-1")
class Reshape(_Reshaping):
    """``data [...], shape [n] -> [shape]`` of any element type.

    In ``shape``, one extent may be -1, for the rest; 0 copies the input's extent of that axis if ``special_zero``.

    >>> reshape([[1, 2, 3, 4]], [0, 2, -1], special_zero=True)
    [[[1, 2], [3, 4]]]
    """

    special_zero: bool = False

    def infer_specs(self, x: Spec, target: Spec) -> tuple[Spec, ...]:
        check_integers(target, "the target shape")
        target_shape = target.ints()
        if target_shape is None:
            return (Spec(x.type, unknowns(length(target))),)
        return (Spec(x.type, self.resolve(x.shape, target_shape)),)

    def evaluate(self, xp: Adapter, x: Array, target: Array) -> tuple[Array, ...]:
        return (x.reshape(self.resolve(x.shape, integers(target))),)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        known = specs[1] is not None and specs[1].value is not None  # otherwise `evaluate` determines the shape
        return super().view(inputs, specs, outputs) if known else None

    def resolve(self, shape: Shape, target: Sequence[Int]) -> tuple[Int, ...]:
        """Return the output's extents. Raise OpError if input and output differ in their number of elements."""
        late = [is_read(t) for t in target]  # may be -1 or 0 at run time
        if any(not isinstance(t, Sym) and t < -1 for t in target):
            raise OpError(f"target shape {list(target)} has an extent below -1")
        if sum(not isinstance(t, Sym) and t == -1 for t in target) > 1:
            raise OpError(f"target shape {list(target)} has more than one -1")
        if shape is None:
            return tuple(unknown() if late[i] or self._special(t) else t for i, t in enumerate(target))
        out, copied = list(target), set()
        for i, t in enumerate(target):
            if self.special_zero and late[i] and i < len(shape):
                out[i] = apply("select", apply("eq", t, 0), shape[i], t)
            elif self.special_zero and not isinstance(t, Sym) and t == 0:
                if i >= len(shape):
                    raise OpError(
                        f"the 0 at {i} of target shape {list(target)} has no extent to copy: "
                        f"the input has rank {len(shape)}"
                    )
                out[i] = shape[i]
                copied.add(i)
        minus = next((i for i, t in enumerate(target) if not isinstance(t, Sym) and t == -1), None)
        if any(late):
            out = _resolve_late(product(shape), out)
        elif minus is not None:
            out[minus] = remaining(
                [d for i, d in enumerate(shape) if i not in copied],
                [d for i, d in enumerate(out) if i != minus and i not in copied],
            )
        same(product(shape), product(out), "{0} elements cannot be reshaped to a shape of {1}")
        return tuple(out)

    def _special(self, t: Int) -> bool:
        return not isinstance(t, Sym) and (t == -1 or (t == 0 and self.special_zero))


def remaining(ins: Sequence[Int], outs: Sequence[Int]) -> Int:
    """Return the extent that gives ``outs`` as many elements as ``ins``."""
    left = list(ins)
    right = []
    for d in outs:  # cancel common extents, since sums of symbols do not divide
        match = next((i for i, e in enumerate(left) if equal(e, d) and not equal(d, 0)), None)
        if match is None:
            right.append(d)
        else:
            del left[match]
    size, rest = product(left), product(right)
    if equal(rest, 0):
        same(size, 0, "{0} elements cannot be reshaped to a shape without elements")
        return 1  # any extent would do; OpenVINO takes 1
    extent = size // rest
    return extent if equal(extent * rest, size) else size // maximum(rest, 1)


def _resolve_late(size: Int, target: Sequence[Int]) -> list[Int]:
    """Return the extents of a target shape that may have a -1 at run time, anywhere."""
    minus = [apply("eq", d, -1) for d in target]
    without_minus = [apply("select", m, 1, d) for m, d in zip(minus, target)]
    rest = size // maximum(product(without_minus), 1)
    return [maximum(apply("select", m, rest, d), 0) for m, d in zip(minus, without_minus)]


@op("Squeeze", "opset1", "shape/squeeze-1")
class Squeeze(_Reshaping):
    """``data [...], axes [n] or scalar`` (optional) -> data without these axes of extent 1.

    Axes of another extent stay. Without ``axes``, all axes of extent 1 are removed. An axis of unknown extent is
    removed if ``axes`` names it. Without ``axes``, it makes the rank dynamic.
    """

    def infer_specs(self, x: Spec, axes: Spec | None = None) -> tuple[Spec, ...]:
        if axes is not None:
            check_integers(axes, "axes", ranks=(0, 1))
        named = [] if axes is None else constants(axes)
        if x.shape is None:
            return (Spec(x.type, None),)
        if named is None:
            assert axes is not None
            single = length(axes) == 1 and any(_may_be_one(d) for d in x.shape)
            return (Spec(x.type, unknowns(len(x.shape) - 1) if single else None),)
        removed = squeezable(x.shape, named)
        doubtful = [x.shape[i] for i in removed if isinstance(x.shape[i], Sym)]
        if doubtful and (not named or self.skips):
            return (Spec(x.type, None),)
        for extent in doubtful:
            same(extent, 1, "an axis is squeezed that could have had extent 1, and has {0}")
        return (Spec(x.type, _without(x.shape, removed)),)

    @property
    def skips(self) -> bool:
        """Return whether a named axis of unknown extent may stay."""
        return False

    def evaluate(self, xp: Adapter, x: Array, axes: Array | None = None) -> tuple[Array, ...]:
        return (x.reshape(_without(x.shape, squeezable(x.shape, [] if axes is None else integers(axes)))),)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        axes = specs[1] if len(specs) > 1 else None
        named = [] if axes is None else constants(axes)
        x = inputs[0]
        if x is None or named is None or outputs[0].shape is None:
            return None
        removed = squeezable(x.shape, named)
        return [x.permute([i for i in range(len(x.shape)) if i not in removed])]


@op("Squeeze", "opset15", "shape/squeeze-15")
class Squeeze15(Squeeze):
    """Squeeze-1, but with ``allow_axis_skip`` a named axis of unknown extent makes the rank dynamic.

    >>> squeeze([[[1], [2]]], [0, 1], allow_axis_skip=True)
    [[1], [2]]
    """

    allow_axis_skip: bool = False

    @property
    def skips(self) -> bool:
        return self.allow_axis_skip


def squeezable(shape: Sequence[Int], axes: Sequence[int]) -> list[int]:
    """Return the ``axes`` (all axes, if it is empty) whose extent is or may be 1, in ascending order."""
    if axes_of_scalar(axes, len(shape)):
        return []
    return [i for i in normalize_axes(axes, len(shape)) or range(len(shape)) if _may_be_one(shape[i])]


def _without(shape: Sequence[Int], axes: Sequence[int]) -> tuple[Int, ...]:
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _may_be_one(extent: Int) -> bool:
    lo, hi = bounds(extent)
    return bool(lo <= 1 and (hi is None or hi >= 1))


@op("Unsqueeze", "opset1", "shape/unsqueeze-1")
class Unsqueeze(_Reshaping):
    """``data [...], axes [n] or scalar`` -> data with extents 1 at these axes of the output.

    >>> unsqueeze([1, 2], [0, 2])
    [[[1], [2]]]
    """

    def infer_specs(self, x: Spec, axes: Spec) -> tuple[Spec, ...]:
        check_integers(axes, "axes", ranks=(0, 1))
        named = constants(axes)
        if named is not None and not named:
            raise OpError("axes are empty")
        if x.shape is None:
            return (Spec(x.type, None),)
        if named is None:
            single = length(axes) == 1
            return (Spec(x.type, unknowns(len(x.shape) + 1) if single else None),)
        return (Spec(x.type, unsqueezed(x.shape, named)),)

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None] | None:
        known = specs[1] is not None and constants(specs[1]) is not None
        return super().view(inputs, specs, outputs) if known else None

    def evaluate(self, xp: Adapter, x: Array, axes: Array) -> tuple[Array, ...]:
        return (x.reshape(unsqueezed(x.shape, integers(axes))),)


def unsqueezed(shape: tuple[Int, ...], axes: Sequence[int]) -> tuple[Int, ...]:
    """Return ``shape`` with extents of 1 inserted at ``axes``; repeated axes count once."""
    distinct = set(axes)
    rank = len(shape) + len(distinct)
    result = list(shape)
    for axis in sorted({normalize_axis(a, rank) for a in distinct}):
        result.insert(axis, 1)
    return tuple(result)
