"""Conversions of element types, and Identity.

Floats are cut off towards zero and integers wrap around, as C++ on x86 does it: a float goes through i32 to a
narrower integer, which takes its low bits. Types of fewer than 8 bits keep their low bits likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._elementwise import Unary, decide
from ovgpu.ops._op import Op, decoded_dtype, op
from ovgpu.ops._trace import Tape
from ovgpu.ops._view import View
from ovgpu.symbolic import Spec
from ovgpu.types import Type
from ovgpu.types.packing import decode_nf4

_NF4 = decode_nf4(np.arange(16))
_NF4_BOUNDS = (_NF4[1:] + _NF4[:-1]) / 2
# Types that NumPy's casts give no values of, or not those that OpenVINO has.
_CODED = (Type.nf4, Type.f8e8m0, Type.f4e2m1, Type.i4, Type.u1, Type.u2, Type.u3, Type.u4, Type.u6)


def converted(xp: Any, x: Any, source: Type, target: Type) -> Any:
    """The array ``x`` of element type ``source`` in the storage of ``target``."""
    if source == target:
        return x
    if source == Type.nf4:  # codes in bytes, which unlike those of all other types are no numbers
        x = xp.asarray(_NF4)[x]
    elif x.dtype != np.float16:
        x = x.astype(decoded_dtype(x.dtype) or x.dtype)
    return _real(xp, x, target) if _is_float(target) else _integral(x, target)


def _real(xp: Any, x: Any, target: Type) -> Any:
    if target == Type.nf4:
        codes = xp.searchsorted(xp.asarray(_NF4_BOUNDS), x.astype(np.float32)).astype(np.uint8)
        return xp.where(xp.isnan(x), xp.uint8(0), codes) if x.dtype.kind == "f" else codes
    if target == Type.f8e8m0:
        return _powers_of_two(xp, x.astype(np.float32)).view(target.storage)
    if target == Type.f4e2m1:  # no infinity and no NaN
        x = xp.fmin(x.astype(np.float32), 6)
    elif target.bitwidth < 16:
        x = x.astype(np.float32)
    return x.astype(target.storage)


def _powers_of_two(xp: Any, x: Any) -> Any:
    """Codes of f8e8m0: exponents, a half goes to the even one; the least for 0 and below, infinity is cut."""
    bits = xp.minimum(xp.maximum(x, 2.0**-127), 2.0**127).view(np.uint32)
    codes = (bits + 0x3FFFFF + (bits >> 23 & 1)) >> 23
    return xp.where(xp.isnan(x), 255, codes).astype(np.uint8)


def _integral(x: Any, target: Type) -> Any:
    if target == Type.boolean:
        return x != 0
    if x.dtype.kind == "f" and target.bitwidth < 64:
        x = x.astype(np.int32 if target.bitwidth < 32 or target == Type.i32 else np.int64)
    if not target.packed:
        return x.astype(target.storage)
    low = x.astype(np.uint8) & np.uint8((1 << target.bitwidth) - 1)
    if target == Type.i4:
        low = ((low ^ 8) - 8).astype(np.int8)
    return low.astype(target.storage)


class Conversion(Unary):
    """To the element type `target`. Strings are not converted."""

    exact = True
    lane = True
    source = Type.dynamic  # no attribute: `infer` remembers it, for arrays of codes do not tell their type
    target = Type.dynamic

    @property
    def _identity(self) -> tuple[Any, ...]:
        return (type(self), self.source, self.target)

    def infer_types(self, x: Spec, target: Type) -> tuple[Spec, ...]:
        if Type.string in (x.type, target) and x.type != target:
            raise OpError(f"{x.type.get_type_name()} cannot be converted to {target.get_type_name()}")
        object.__setattr__(self, "source", x.type)
        object.__setattr__(self, "target", target)
        return (Spec(target, x.shape),)

    def fn(self, xp: Any, x: Any) -> Any:
        return x.astype(self.target.storage)

    def symbolic(self, x: Any) -> Any:
        return decide("ne", lambda a, b: a != b, x, 0) if self.target == Type.boolean else x

    def cuda_expression(self, kind: Type) -> str:
        if self.target == Type.boolean:
            return "x != 0"
        return "int(x)" if kind.is_real() and self.target.is_integral() and self.target.bitwidth < 32 else "x"

    def evaluate(self, xp: Any, x: Any, like: Any = None) -> tuple[Any, ...]:
        if x.dtype == object and self.source != Type.string:
            return super().evaluate(xp, x)
        result = converted(xp, x, self.source, self.target)
        return (result.copy() if result is x else result,)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        if self.source != self.target and (self.source in _CODED or self.target in _CODED):
            return NotImplemented
        return super().numpy(k, inputs[:1], outputs, workspace)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        if self.source in _CODED or self.target in _CODED:
            return NotImplemented
        return super().cuda(k, inputs[:1], outputs, workspace)

    def _tape(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Tape:
        return super()._tape(inputs[:1], outputs)


@op("Convert", "opset1")
class Convert(Conversion):
    destination_type: Type

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return self.infer_types(x, self.destination_type)


@op("ConvertLike", "opset1")
class ConvertLike(Conversion):
    """To the element type of the second input, whose values do not matter."""

    lane = False

    def infer(self, x: Spec, like: Spec) -> tuple[Spec, ...]:  # type: ignore[override]
        return self.infer_types(x, like.type)


@op("ConvertPromoteTypes", "opset14")
class ConvertPromoteTypes(Op):
    """Two tensors to the element type that holds the values of both, by the rules of `promoted`."""

    promote_unsafe: bool = False
    pytorch_scalar_promotion: bool = False
    u64_integer_promotion_target: Type = Type.f32

    exact = True
    sources = (Type.dynamic, Type.dynamic)  # no attribute, as `Conversion.source`

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        kind = self._common(a, b)
        object.__setattr__(self, "sources", (a.type, b.type))
        return Spec(kind, a.shape), Spec(kind, b.shape)

    def _common(self, a: Spec, b: Spec) -> Type:
        if a.type == b.type:
            return a.type
        if a.type.is_dynamic() or b.type.is_dynamic():
            return Type.dynamic
        if self.pytorch_scalar_promotion and _rank_of_class(a.type) == _rank_of_class(b.type):
            if a.rank is None or b.rank is None:
                return Type.dynamic
            if (a.rank == 0) != (b.rank == 0):
                kind, scalar = (b.type, a.type) if a.rank == 0 else (a.type, b.type)
                fits = promoted(kind, scalar, self.u64_integer_promotion_target) == kind
                if not (fits or self.promote_unsafe):
                    raise OpError(f"a scalar of {scalar.get_type_name()} may not fit {kind.get_type_name()}")
                return kind
        kind = promoted(a.type, b.type, self.u64_integer_promotion_target)
        if not self.promote_unsafe:
            _check_safe(a.type, b.type, kind)
        return kind

    def evaluate(self, xp: Any, a: Any, b: Any) -> tuple[Any, ...]:
        kind = self._common(Spec(self.sources[0], a.shape), Spec(self.sources[1], b.shape))
        results = [converted(xp, x, source, kind) for x, source in zip((a, b), self.sources)]
        return tuple(r.copy() if r is x else r for r, x in zip(results, (a, b)))


def _rank_of_class(kind: Type) -> int:
    """Booleans give way to integers, and these to floats."""
    return 2 if _is_float(kind) else 1 if kind.is_integral_number() else 0


def _is_float(kind: Type) -> bool:
    return kind.is_real() or kind == Type.nf4


def promoted(a: Type, b: Type, u64_target: Type) -> Type:
    """The common type: of the higher class; within a class the narrowest that holds the values of both."""
    if _rank_of_class(a) != _rank_of_class(b):
        return max(a, b, key=_rank_of_class)
    wide, narrow = (a, b) if a.bitwidth >= b.bitwidth else (b, a)
    if _is_float(a):
        if wide.bitwidth > narrow.bitwidth or wide == narrow:
            return wide
        return Type.f32 if wide.bitwidth == 16 else Type.f16
    if a.is_signed() == b.is_signed():
        return wide
    signed, unsigned = (a, b) if a.is_signed() else (b, a)
    if unsigned == Type.u64:
        return u64_target
    if signed.bitwidth > unsigned.bitwidth:
        return signed
    return next(t for t in (Type.i4, Type.i8, Type.i16, Type.i32, Type.i64) if t.bitwidth >= 2 * unsigned.bitwidth)


def _check_safe(a: Type, b: Type, kind: Type) -> None:
    pair = f"{a.get_type_name()} and {b.get_type_name()}"
    if kind not in (a, b):
        raise OpError(f"{pair} need the wider {kind.get_type_name()}, and promote_unsafe is false")
    other = b if kind == a else a
    if kind.is_real() and other.is_integral_number() and kind.bitwidth < 2 * other.bitwidth:
        raise OpError(f"{pair}: the integer may lose its precision, and promote_unsafe is false")


@op("Identity", "opset16")
class Identity(Op):
    """Its input, unchanged."""

    exact = True
    lane = True

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        return (x.copy(),)

    def view(self, inputs: Any, specs: Any, outputs: Any) -> tuple[View | None]:
        return (inputs[0],)
