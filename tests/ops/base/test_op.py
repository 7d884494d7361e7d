"""Attributes of op classes, which behave like those of a frozen dataclass at less cost."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Op, build, internal_op, registry


class _Scale(Op):
    factor: float
    axis: int = 1


@internal_op
class Shifted(_Scale):
    """An op whose base class also declares attributes."""

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


class Attributed(Op):
    """An op with an attribute of each type, all with defaults."""

    yes: bool = True
    no: bool = False
    count: int = 3
    rate: float = 0.5
    sizes: tuple[int, ...] = ()


internal_op(Attributed)


@pytest.mark.parametrize("text", ["", " true", "true ", "yes", "no", "2", "false1"])
def test_invalid_booleans_give_the_default(text: str) -> None:
    op: Any = build(Attributed, {"yes": text, "no": text})
    assert op.yes and not op.no


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("1", True), ("False", False), ("0", False)]
)
def test_booleans(text: str, value: bool) -> None:
    op: Any = build(Attributed, {"yes": text, "no": text})
    assert op.yes is value and op.no is value


@pytest.mark.parametrize(
    ("name", "text"),
    [("count", "1_000"), ("count", "\uff12"), ("rate", "1_0.5"), ("sizes", "1,2_0"), ("count", ""), ("rate", "half")],
)
def test_texts_that_are_no_numbers(name: str, text: str) -> None:
    with pytest.raises(OpError, match=f"attribute '{name}'"):
        build(Attributed, {name: text})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("count", " 7 ", 7), ("count", "7.0", 7), ("rate", ".5e1", 5.0), ("sizes", "1, 2,", (1, 2))],
)
def test_numbers(name: str, text: str, value: Any) -> None:
    assert getattr(build(Attributed, {name: text}), name) == value


def test_immutable() -> None:
    op = Shifted(factor=0.5)
    with pytest.raises(FrozenInstanceError, match="'axis'"):
        op.axis = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Shifted needs the attribute 'factor'"),
        ({"factor": 1.0, "axes": 1}, "Shifted has no attribute 'axes'"),
    ],
)
def test_wrong_attributes(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Shifted(**values)


def test_methods_are_shared() -> None:
    assert not {"__init__", "__repr__", "__setattr__"} & {name for cls in registry() for name in vars(cls)}
