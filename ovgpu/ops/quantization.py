"""Simulated quantisation, whose results are floating-point: FakeQuantize and FakeConvert. Quantize and Dequantize are
the two halves of a FakeQuantize, with codes in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import Broadcast, Elementwise, equal_shape, merge_types, pdpd_shape
from ovgpu.ops.base.op import Array, internal_op, op
from ovgpu.ops.base.xp import Namespace
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, onto
from ovgpu.types import Type


class _Fake(Elementwise):
    """Base of FakeQuantize and FakeConvert. The result has the shape and type of the first input; the others broadcast
    to it."""

    types = "real"

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        x, *others = shapes
        if x is not None:
            for other in others:
                if other is not None:
                    _check_onto(other, x)
        return x

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, *others = inputs
        return [x, *(r if r.ndim <= x.ndim else r.reshape(r.shape[r.ndim - x.ndim :]) for r in others)]


def _check_onto(shape: Sequence[Int], x: Sequence[Int]) -> None:
    """Raise OpError unless ``shape`` broadcasts to the shape ``x``; it may have further leading axes of extent 1."""
    extra = max(len(shape) - len(x), 0)
    for dim in shape[:extra]:
        onto(dim, 1)
    for a, b in zip(reversed(shape), reversed(x)):
        onto(a, b)


@op("FakeQuantize", "opset1", "quantization/fake-quantize-1")
class FakeQuantize(_Fake):
    """Quantisation and dequantisation: ``x`` is clamped to the input range, rounded to the nearest of ``levels`` values
    there (ties to the even level), and mapped to the output range. The ranges broadcast to ``x``.

    The specification's formula is computed step by step, as in OpenVINO's reference. Its CPU plugin multiplies by
    reciprocals, whose results differ in the last bits, and clamps NaN to the range.

    >>> fake_quantize([-1.0, 0.3, 0.6, 9], 0.0, 1.0, 0.0, 10.0, levels=3)
    [0.0, 5.0, 5.0, 10.0]
    """

    levels: int
    auto_broadcast: Broadcast = "numpy"

    mixed_reals = (1, 2, 3, 4)

    def infer_specs(self, x: Spec, in_low: Spec, in_high: Spec, out_low: Spec, out_high: Spec) -> tuple[Spec, ...]:
        if self.levels < 2:
            raise OpError(f"levels must be at least 2, not {self.levels}")
        return super().infer_specs(x, in_low, in_high, out_low, out_high)

    def broadcast(self, shapes: Sequence[tuple[Int, ...] | None]) -> tuple[Int, ...] | None:
        x, *ranges = shapes
        if x is None or self.auto_broadcast == "numpy":
            return super().broadcast(shapes)
        rule = equal_shape if self.auto_broadcast == "none" else pdpd_shape
        for shape in ranges:
            if shape is not None:
                rule(x, shape)
        return x

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if self.auto_broadcast != "pdpd":
            return super().align(inputs)
        x, *ranges = inputs
        return [x, *(r.reshape(r.shape + (1,) * (x.ndim - r.ndim)) for r in ranges)]

    def fn(self, xp: Namespace, x: Array, in_low: Array, in_high: Array, out_low: Array, out_high: Array) -> Array:
        steps = self.levels - 1
        level = xp.rint((x - in_low) / (in_high - in_low) * steps)
        value = level / steps * (out_high - out_low) + out_low
        value = xp.where(x > xp.maximum(in_low, in_high), out_high, value)
        return xp.where(x <= xp.minimum(in_low, in_high), out_low, value)

    def cuda_expression(self, dtype: Type) -> str:
        steps = f"T({self.levels - 1})"
        level = f"T(rint((x - in_low) / (in_high - in_low) * {steps}))"
        return (
            "x <= in_low && x <= in_high ? out_low : x > in_low && x > in_high ? out_high : "
            f"{level} / {steps} * (out_high - out_low) + out_low"
        )


# 1.5 * 2^23. Adding it to a small f32 rounds that to a whole number, which is then in the low bits of the sum. Ties
# make the sum even.
ROUND = 3 << 22


@internal_op
class _Coded(Elementwise):
    """Base of the two halves of a FakeQuantize whose levels are whole multiples of a step.

    ``dtype`` is the element type of the output. The other inputs, in f32, broadcast to the first one.
    """

    dtype: Type

    types = "number"

    def infer_specs(self, x: Spec, *others: Spec) -> tuple[Spec, ...]:
        self.check_inputs(1 + len(others))
        self.check_type(x.type)
        return (Spec(self.dtype, x.shape),)


@internal_op
class Quantize(_Coded):
    """The codes ``clip(round(x * reciprocal) + zero, low, high)``.

    Ties are rounded to even whole numbers, or with ``odd`` to odd ones. A FakeQuantize rounds ties to even levels, and
    counts these from the lowest one, whose code may be odd. ``dtype`` is i8, or f32: then codes are whole numbers in
    f32, and ``zero`` is left out.
    """

    low: int
    high: int
    odd: bool = False

    name = "Quantize"

    def fn(self, xp: Namespace, x: Array, reciprocal: Array, zero: Array = 0) -> Array:
        code = xp.rint(x * reciprocal) if not self.odd else x * reciprocal + (ROUND + 1) - (ROUND + 1)
        if self.dtype.is_real():
            return xp.clip(code, self.low, self.high)
        return xp.clip(code + zero, self.low, self.high).astype(self.dtype.storage)

    def cuda_expression(self, dtype: Type) -> str:
        # Adding `shift` rounds in place of a conversion, which is issued at a quarter of the rate of additions.
        shift = f"{ROUND + self.odd}.f"
        rounded = f"(fminf(fmaxf(x * reciprocal, {self.low}.f - zero), {self.high}.f - zero) + {shift})"
        if self.dtype.is_real():
            return f"{rounded} - {shift}"
        return f"static_cast<signed char>(__float_as_int({rounded}) + static_cast<int>(zero) - {int(self.odd)})"


@dataclass(frozen=True)
class Codes:
    """Codes i8 that a kernel writes into ``array`` in place of its results. Results are rounded to their type,
    multiplied by the array ``factor`` f32 unless it is None, and converted to codes by ``quantize``."""

    array: Array
    factor: Array | None
    reciprocal: float
    zero: int
    quantize: Quantize

    def arguments(self) -> tuple[Any, Any]:
        """Return the arguments of a kernel: the factor, and a `Quantizer` (cuda_kernels/quantizer.cuh)."""
        op = self.quantize
        limits = op.low - self.zero, op.high - self.zero
        floats = np.array([self.reciprocal, *limits, ROUND + op.odd], np.float32)
        return self.factor, np.append(floats.view(np.int32), np.int32(self.zero - op.odd))


@internal_op
class Dequantize(_Coded):
    """The values of codes: ``(codes - zero) * step``."""

    name = "Dequantize"

    def fn(self, xp: Namespace, codes: Array, step: Array, zero: Array = 0) -> Array:
        return codes * step if codes.dtype.kind == "f" else (codes.astype(step.dtype) - zero) * step

    def cuda_expression(self, dtype: Type) -> str:
        return "(codes - zero) * step"


_F8 = {"f8e4m3": (ml_dtypes.float8_e4m3fn, 448, 3, -6), "f8e5m2": (ml_dtypes.float8_e5m2, 57344, 2, -14)}
"""The dtype, its largest number, its mantissa bits, and the exponent of its least normal number."""


@op("FakeConvert", "opset13", "quantization/fake-convert-13")
class FakeConvert(_Fake):
    """Rounding to an 8-bit float type: ``(f8(data * scale - shift) + shift) / scale``.

    As in OpenVINO's CPU plugin, numbers are first rounded to f16, then clamped to the type's largest number. NaN stays
    NaN; the plugin turns it into a number.

    >>> fake_convert([1.1, 500.0], 1.0, destination_type="f8e4m3")
    [1.125, 448.0]
    """

    destination_type: Literal["f8e4m3", "f8e5m2"]

    def infer_specs(self, data: Spec, scale: Spec, shift: Spec | None = None) -> tuple[Spec, ...]:
        present = [s for s in (data, scale, shift) if s is not None]
        if merge_types(present) not in (Type.f32, Type.f16, Type.bf16, Type.dynamic):
            raise OpError(f"element type {data.type.get_type_name()} is not f32, f16 or bf16")
        if shift is not None and scale.shape is not None and shift.shape is not None:
            equal_shape(scale.shape, shift.shape)
        return super().infer_specs(*present)

    def fn(self, xp: Namespace, data: Array, scale: Array, shift: Array = 0) -> Array:
        dtype, largest, *_ = _F8[self.destination_type]
        half = (data * scale - shift).astype(np.float16).astype(data.dtype)
        cut = xp.minimum(xp.maximum(half, -largest), largest)
        return (cut.astype(np.dtype(dtype)).astype(data.dtype) + shift) / scale

    def cuda_expression(self, dtype: Type) -> str:
        _, largest, bits, least = _F8[self.destination_type]
        return f"(nearest_f8(__fsub_rn(__fmul_rn(data, scale), shift), {largest}.f, {bits}, {least}) + shift) / scale"
