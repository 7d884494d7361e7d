"""Helpers of shape inference: axes, integers on the host, checks of types, ranks and extents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, Sym, bounds, unknown
from ovgpu.types import Type

MAX_RANK = 64  # the limit of NumPy
UP_TO_F32 = (Type.f16, Type.bf16, Type.f32)


def normalize_axis(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the front. Raises OpError unless it is in ``[-rank, rank)``."""
    if not -rank <= axis < rank:
        raise OpError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of_scalar(axes: Sequence[int], rank: int) -> bool:
    """Return whether these are axes of a scalar. For a scalar, OpenVINO accepts axes 0 and -1 of operations that do
    nothing along an axis of one element."""
    return rank == 0 and set(axes) <= {0, -1}


def normalize_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Return the distinct axes in ascending order, counted from the front. Raises OpError if one is out of range."""
    return sorted({normalize_axis(axis, rank) for axis in axes})


def unknowns(rank: int | None) -> Shape:
    """Return a shape of fresh unknown extents, None for an unknown rank. Raises OpError if the rank is too large."""
    if rank is not None and rank > MAX_RANK:
        raise OpError(f"rank {rank} is larger than {MAX_RANK}")
    return None if rank is None else tuple(unknown() for _ in range(rank))


def check_count(count: int, least: int, most: float | None = None) -> None:
    """Raise OpError unless the number of inputs ``count`` is ``least``, or from ``least`` to ``most`` if that is
    given."""
    if not least <= count <= (least if most is None else most):
        raise OpError(f"{count} inputs are not what the operation takes")


def check_integers(spec: Spec, what: str, *, ranks: Sequence[int] | None = (1,)) -> None:
    """Raise OpError unless ``spec`` has an integer type and one of these ranks (None: any), as far as known."""
    if not spec.type.is_dynamic() and (not spec.type.is_integral_number() or spec.type in (Type.string, Type.nf4)):
        raise OpError(f"{what} must be integers, not {spec.type.get_type_name()}")
    if ranks is not None and spec.rank is not None and spec.rank not in ranks:
        raise OpError(f"{what} must have rank {' or '.join(map(str, ranks))}, not {spec.rank}")


def check_reals(
    spec: Spec, what: str, *, ranks: Sequence[int] | None = None, types: Sequence[Type] | None = None
) -> None:
    """Raise OpError unless ``spec`` has one of these floating-point types and ranks (None: any), as far as known."""
    if not (spec.type.is_dynamic() or spec.type.is_real()):
        raise OpError(f"{what} must be floating-point numbers, not {spec.type.get_type_name()}")
    if not (types is None or spec.type.is_dynamic() or spec.type in types):
        allowed = " or ".join(dtype.get_type_name() for dtype in types)
        raise OpError(f"{what} must have the type {allowed}, not {spec.type.get_type_name()}")
    if ranks is not None and spec.rank is not None and spec.rank not in ranks:
        raise OpError(f"{what} must have rank {' or '.join(map(str, ranks))}, not {spec.rank}")


def length(spec: Spec) -> int | None:
    """Return the number of elements of a vector or scalar, None if it is unknown."""
    if spec.shape is None:
        return None
    count = spec.shape[0] if spec.shape else 1
    return None if isinstance(count, Sym) else count


def constants(spec: Spec) -> list[int] | None:
    """Return the elements of an integer tensor, None unless all of them are known."""
    known = [v for v in spec.ints() or () if not isinstance(v, Sym)]
    return known if spec.value is not None and len(known) == spec.value.size else None


def check_axes(spec: Spec, rank: int | None, *, ranks: Sequence[int] = (1,)) -> None:
    """Raise OpError unless ``spec`` is an integer tensor of one of these ranks with axes of a tensor of rank ``rank``,
    as far as known."""
    check_integers(spec, "axes", ranks=ranks)
    known = constants(spec)
    if rank is not None and known is not None:
        normalize_axes(known, rank)


def constant_axis(spec: Spec, rank: int) -> int | None:
    """Return the axis that a one-element tensor holds, counted from the front, None if it is unknown."""
    values = constants(spec)
    return None if values is None else one_axis(values, rank)


def one_axis(values: Sequence[int], rank: int) -> int:
    """Return the only element of ``values`` as an axis counted from the front. Raises OpError unless there is one
    element, in range."""
    if len(values) != 1:
        raise OpError(f"one axis is expected, not {len(values)}")
    return normalize_axis(values[0], rank)


def at_most(a: Int, b: Int, message: str) -> None:
    """Demand ``a <= b``: raise OpError now, or at run time if they are symbolic. ``message`` may use ``{0}`` for a and
    ``{1}`` for b."""
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    if a is b or (ahi is not None and ahi <= blo):
        return
    if bhi is not None and alo > bhi:
        raise OpError(message.format(a, b))
    table = next(v.table for v in (a, b) if isinstance(v, Sym))
    table.require("le", a, b, message)


def is_read(value: Int) -> bool:
    """Return whether ``value`` depends on tensor elements known only at run time, so that it may be negative."""
    if not isinstance(value, Sym) or value.lo >= 0:
        return False
    atoms = [atom for monomial, _ in value.terms for atom in monomial]
    return any(atom.op == "item" or any(is_read(arg) for arg in atom.args) for atom in atoms)


def integer(values: Any, what: str) -> int:
    """Return the only element of a host tensor. Raises OpError unless there is exactly one."""
    elements = integers(values)
    if len(elements) != 1:
        raise OpError(f"{what} must have one element, not {len(elements)}")
    return elements[0]


def first(values: Any, what: str) -> int:
    """Return the first element of a host tensor. Raises OpError if there is none. OpenVINO reads conditions like this,
    and ignores further elements."""
    elements = integers(values)
    if not elements:
        raise OpError(f"{what} has no element")
    return elements[0]


def integers(values: Any) -> list[int]:
    """Return the elements of a host tensor as Python ints. Raises TypeError if one is symbolic."""
    return np.asarray(values).astype(np.int64).ravel().tolist()
