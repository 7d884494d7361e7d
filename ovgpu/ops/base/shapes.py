"""What shape inference of movement ops shares: axes, integers on the host, checks on extents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.symbolic import Int, Shape, Spec, Sym, bounds, unknown
from ovgpu.types import Type

MAX_RANK = 64  # NumPy's


def normalize_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front. OpError unless it is in ``[-rank, rank)``."""
    if not -rank <= axis < rank:
        raise OpError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def normalize_axes(axes: Iterable[int], rank: int) -> list[int]:
    """Distinct axes in ascending order, counted from the front."""
    return sorted({normalize_axis(axis, rank) for axis in axes})


def unknowns(rank: int | None) -> Shape:
    """A shape of that rank of which nothing else is known."""
    if rank is not None and rank > MAX_RANK:
        raise OpError(f"rank {rank} is larger than {MAX_RANK}")
    return None if rank is None else tuple(unknown() for _ in range(rank))


def check_count(count: int, least: int, most: float | None = None) -> None:
    """OpError unless there are ``least`` inputs, or up to ``most``."""
    if not least <= count <= (least if most is None else most):
        raise OpError(f"{count} inputs are not what the operation takes")


def check_integers(spec: Spec, what: str, *, ranks: Sequence[int] | None = (1,)) -> None:
    """OpError unless ``spec`` has an integer type and one of these ranks (None: any), if that is known."""
    if not spec.type.is_dynamic() and (not spec.type.is_integral_number() or spec.type in (Type.string, Type.nf4)):
        raise OpError(f"{what} must be integers, not {spec.type.get_type_name()}")
    if ranks is not None and spec.rank is not None and spec.rank not in ranks:
        raise OpError(f"{what} must have rank {' or '.join(map(str, ranks))}, not {spec.rank}")


def check_reals(spec: Spec, what: str, *, ranks: Sequence[int] | None = None) -> None:
    """OpError unless ``spec`` has a floating-point type and one of these ranks (None: any), if that is known."""
    if not (spec.type.is_dynamic() or spec.type.is_real()):
        raise OpError(f"{what} must be floating-point numbers, not {spec.type.get_type_name()}")
    if ranks is not None and spec.rank is not None and spec.rank not in ranks:
        raise OpError(f"{what} must have rank {' or '.join(map(str, ranks))}, not {spec.rank}")


def length(spec: Spec) -> int | None:
    """How many elements a vector or scalar has, if that is known."""
    if spec.shape is None:
        return None
    count = spec.shape[0] if spec.shape else 1
    return None if isinstance(count, Sym) else count


def constants(spec: Spec) -> list[int] | None:
    """The elements of an integer tensor, if all of them are known."""
    known = [v for v in spec.ints() or () if not isinstance(v, Sym)]
    return known if spec.value is not None and len(known) == spec.value.size else None


def check_axes(spec: Spec, rank: int | None, *, ranks: Sequence[int] = (1,)) -> None:
    """OpError unless ``spec`` has integers, of one of these ranks, that name axes of a tensor of rank ``rank``."""
    check_integers(spec, "axes", ranks=ranks)
    known = constants(spec)
    if rank is not None and known is not None:
        normalize_axes(known, rank)


def constant_axis(spec: Spec, rank: int) -> int | None:
    """The axis that a one-element tensor holds, if it is known."""
    values = constants(spec)
    return None if values is None else one_axis(values, rank)


def one_axis(values: Sequence[int], rank: int) -> int:
    """Return the axis that the elements of a tensor name, from the front. OpError unless it is one, and in range."""
    if len(values) != 1:
        raise OpError(f"one axis is expected, not {len(values)}")
    return normalize_axis(values[0], rank)


def at_most(a: Int, b: Int, message: str) -> None:
    """Demand ``a <= b`` now, or when run; ``message`` may use ``{0}`` and ``{1}`` for the two."""
    (alo, ahi), (blo, bhi) = bounds(a), bounds(b)
    if ahi is not None and ahi <= blo:
        return
    if bhi is not None and alo > bhi:
        raise OpError(message.format(a, b))
    table = next(v.table for v in (a, b) if isinstance(v, Sym))
    table.require("le", a, b, message)


def is_read(value: Int) -> bool:
    """Whether ``value`` comes from tensor elements that only running gives, so that it may be negative."""
    if not isinstance(value, Sym) or value.lo >= 0:
        return False
    atoms = [atom for monomial, _ in value.terms for atom in monomial]
    return any(atom.op == "item" or any(is_read(arg) for arg in atom.args) for atom in atoms)


def integer(values: Any, what: str) -> int:
    """The element of a host tensor; OpError unless there is one."""
    found = integers(values)
    if len(found) != 1:
        raise OpError(f"{what} must have one element, not {len(found)}")
    return found[0]


def first(values: Any, what: str) -> int:
    """The first element of a host tensor; OpError if there is none. OpenVINO ignores the others of conditions."""
    found = integers(values)
    if not found:
        raise OpError(f"{what} has no element")
    return found[0]


def integers(values: Any) -> list[int]:
    """The elements of a host tensor as Python ints; of one with symbolic elements, a TypeError."""
    return np.asarray(values).astype(np.int64).ravel().tolist()
