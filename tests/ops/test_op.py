"""What every op class has: attributes as a frozen dataclass would have them, at less cost."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from ovgpu.ops._op import Op, registry, unregistered


class _Scale(Op):
    factor: float
    axis: int = 1


@unregistered
class Shifted(_Scale):
    """With a base that declares attributes as well."""

    name: ClassVar[str] = "Shifted"
    by: list[int] = field(default_factory=list)
    axis: int = 2


def test_attributes() -> None:
    op: Any = Shifted(factor=0.5)
    assert op.attributes() == {"factor": 0.5, "axis": 2, "by": []}
    assert repr(op) == "Shifted(factor=0.5, axis=2, by=[])"
    assert op.by is not Shifted(factor=1.0).by
    assert [f.name for f in fields(Shifted)] == ["factor", "axis", "by"]
    other = replace(op, axis=3)
    assert (type(other), other.factor, other.axis, op.axis) == (Shifted, 0.5, 3, 2)


def test_immutable() -> None:
    op = Shifted(factor=0.5)
    with pytest.raises(FrozenInstanceError, match="'axis'"):
        op.axis = 4  # type: ignore[misc]


@pytest.mark.parametrize(("values", "message"), [
    ({}, "Shifted needs the attribute 'factor'"),
    ({"factor": 1.0, "axes": 1}, "Shifted has no attribute 'axes'"),
])
def test_wrong_attributes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Shifted(**values)


def test_methods_are_shared() -> None:
    assert not {"__init__", "__repr__", "__setattr__"} & {name for cls in registry() for name in vars(cls)}
