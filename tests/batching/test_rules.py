"""Batching rules against what the operations compute, over the cases of all operations.

Every axis of every input of a case is tried as the axis of a batch, alone and together with axes of the other inputs.
Where the rules accept it, each row of the results must depend on the same row of the inputs alone, to the last bit, and
not on its position.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain, islice, product
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.batching.axes import RULES, BatchAxis
from ovgpu.batching.proof import ALL_DIFFER, Proof
from ovgpu.ops.base.op import lookup
from tests.conformance import modules, tables
from tests.harness import Case
from tests.harness.draws import order
from tests.harness.private import read_private

PLAIN = ("f32", "f64", "i8", "u8", "i32", "i64", "boolean")
MAX_CHOICES = 24  # of axes per case
ENOUGH = 6  # choices that a rule accepts
Axes = tuple[int | None, ...]


@cache
def cases() -> dict[str, list[Case]]:
    """Return the cases of all operations that have a rule, by op."""
    found: dict[str, list[Case]] = {}
    for case in tables(*modules("ops")):
        cls = lookup(case.op, case.version) if isinstance(case, Case) else None
        if (
            cls is not None
            and any(base in RULES for base in cls.__mro__)
            and all(x.const or x.dtype in PLAIN for x in case.inputs)
        ):
            found.setdefault(case.op, []).append(case)
    return found


def choices(model: ovgpu.Model) -> Iterator[Axes]:
    """Yield choices of batch axes of the inputs, all of one extent of at least 2."""
    shapes = [tuple(p.shape) if p.partial_shape.is_static else () for p in model.inputs]
    for extent in sorted({d for d in chain(*shapes) if d > 1}):
        axes = [[*(i for i, d in enumerate(shape) if d == extent), None] for shape in shapes]
        yield from (choice for choice in product(*axes) if any(axis is not None for axis in choice))


def prove(model: ovgpu.Model, axes: Axes) -> Proof | None:
    """Return the proof that the rows on these axes are independent, or None. The axes become dynamic."""
    for parameter, axis in zip(model.parameters, axes):
        if axis is not None:
            shape = ovgpu.PartialShape(parameter.op.shape)
            shape[axis] = -1
            parameter.op = replace(parameter.op, shape=shape)
    proof = Proof(model, axes, {}, None, ALL_DIFFER)
    try:
        while not proof.run():
            pass
    except ovgpu.OpError:
        return None
    model.validate_nodes_and_infer_types()
    return proof


def rows_of(array: np.ndarray[Any, Any], axis: BatchAxis, count: int) -> np.ndarray[Any, Any]:
    """Return an array as [rows, outer, inner, ...] of its rows."""
    extents = (axis.outer, count, axis.inner)
    return np.moveaxis(
        array.reshape(*array.shape[: axis.axis], *extents, *array.shape[axis.axis + 1 :]), axis.axis + 1, 0
    )


def compare(rows: np.ndarray[Any, Any], first: np.ndarray[Any, Any], where: str) -> None:
    """Compare rows of the same values; BLAS may round them differently, by their position."""
    if rows.dtype.kind == "f":
        np.testing.assert_allclose(rows, np.broadcast_to(first, rows.shape), 1e-4, 1e-4, err_msg=where)
    else:
        np.testing.assert_array_equal(rows, np.broadcast_to(first, rows.shape), where)


def check(case: Case, axes: Axes) -> bool:
    """Return whether the rules accept the axes. If they do, check that rows are independent."""
    model = read_private(case.net)
    proof = prove(model, axes)
    if proof is None or any(port.element_type.packed for port in model.outputs):
        return False
    found = [proof.axes[result.ports[0]] for result in model.results]
    compiled = ovgpu.Core().compile_model(model, "CPU")
    inputs = [np.array(value, order="C") for value, _ in case.parameters(case.arrays())]
    count = next(x.shape[a] for x, a in zip(inputs, axes) if a is not None)
    whole = compiled(dict(enumerate(inputs))).to_tuple()
    for row in {0, count - 1}:
        same = [x if a is None else np.repeat(x.take([row], a), count, a) for x, a in zip(inputs, axes)]
        for axis, got, wanted in zip(found, compiled(dict(enumerate(same))).to_tuple(), whole):
            where = f"{case.name}, batch axes {axes}, row {row}"
            if axis is None:
                np.testing.assert_array_equal(got, wanted, where)
            else:
                rows = rows_of(got, axis, count)
                np.testing.assert_array_equal(rows[row], rows_of(wanted, axis, count)[row], where)
                compare(rows, rows[:1], where)
    return True


@pytest.mark.parametrize("op", sorted(cases()))
def test_rows_are_independent_where_a_rule_accepts_them(op: str, pytestconfig: pytest.Config) -> None:
    """All cases with ``--long``, else as many drawn ones as have `ENOUGH` batch axes."""
    accepted, enough = 0, math.inf if pytestconfig.getoption("--long") else ENOUGH
    for case in sorted(cases()[op], key=lambda case: order(case.name)):
        model = read_private(case.net)
        accepted += sum([check(case, axes) for axes in islice(choices(model), MAX_CHOICES)])
        if accepted >= enough:
            break
    assert accepted, "no case of the operation has a batch axis"
