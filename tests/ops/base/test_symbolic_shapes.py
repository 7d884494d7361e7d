"""Shape inference with symbolic extents: exact expressions, values of shape arithmetic, and deferred checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ovgpu.errors import OpError
from ovgpu.ops import Op, lookup
from ovgpu.spec import Spec
from ovgpu.symbolic import Sym, Table, atoms, broadcast
from ovgpu.types import Type

TOP = -(2**63)


@pytest.fixture
def table() -> Iterator[Table]:
    with Table() as table:
        yield table


@pytest.fixture
def batch(table: Table) -> Any:
    return table.atom("dim", 0, 0)


@pytest.fixture
def length(table: Table) -> Any:
    return table.atom("dim", 0, 1)


@pytest.fixture
def past(table: Table) -> Any:
    return table.atom("dim", 1, 2)


def tensor(*shape: Any) -> Spec:
    return Spec(Type.f32, shape)


def ints(*values: Any) -> Spec:
    """Return the spec of an i64 vector with these values, which may be symbols."""
    kind = object if any(isinstance(v, Sym) for v in values) else np.int64
    array = np.empty(len(values), kind)
    array[:] = values
    return Spec(Type.i64, (len(values),), array)


def scalar(value: Any) -> Spec:
    if isinstance(value, float):
        return Spec(Type.f32, (), np.array(value, np.float32))
    given = ints(value).value
    assert given is not None
    return Spec(Type.i64, (), given.reshape(()))


def infer(op: str, version: str, *inputs: Any, **attributes: Any) -> Any:
    """Return the output's spec with its value, or a list for several outputs."""
    cls = lookup(op, version)
    assert cls is not None
    made: Op = cls(**attributes)
    outputs = made.propagate(inputs, made.infer_specs(*inputs))
    return outputs[0] if len(outputs) == 1 else outputs


def shape(*args: Any, **kw: Any) -> Any:
    return infer(*args, **kw).shape


def reshape(x: Spec, target: Spec, special_zero: bool = True) -> Any:
    return shape("Reshape", "opset1", x, target, special_zero=special_zero)


# ---- Reshape


def test_reshape_divides_exactly(table: Table, batch: Any, length: Any, past: Any) -> None:
    assert reshape(tensor(batch, length, 768), ints(0, 0, 12, -1)) == (batch, length, 12, 64)
    assert reshape(tensor(batch, length, 12, 64), ints(0, 0, -1)) == (batch, length, 768)
    assert reshape(tensor(batch, length, 768), ints(-1, 768)) == (batch * length, 768)
    assert reshape(tensor(batch * length, 768), ints(batch, -1, 768)) == (batch, length, 768)
    assert reshape(tensor(batch, 4, past + length, 64), ints(batch, -1, past + length, 64)) == (
        batch,
        4,
        past + length,
        64,
    )
    assert not table.checks


def test_reshape_checks_divisibility_at_run_time(table: Table, length: Any) -> None:
    (rest, four) = reshape(tensor(length, 6), ints(-1, 4))
    assert four == 4 and isinstance(rest, Sym)
    (check,) = table.checks
    assert check.op == "same" and {check.a, check.b} == {length * 6, rest * 4}


def test_reshape_to_extents_that_are_symbols(table: Table, batch: Any, length: Any) -> None:
    assert reshape(tensor(batch, length, 768), ints(batch, length, 12, 64)) == (batch, length, 12, 64)
    assert not table.checks
    assert reshape(tensor(batch, 768), ints(length, 768)) == (length, 768)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("same", batch * 768, length * 768)]


def test_reshape_to_a_target_that_is_read(table: Table, batch: Any) -> None:
    read = table.atom("item", 0, 0, lo=TOP)
    (first, second) = reshape(tensor(batch, 6), ints(read, 6))
    assert all(isinstance(d, Sym) and d.lo == 0 for d in (first, second))


def test_reshape_without_rank_or_value() -> None:
    with Table():
        assert [isinstance(d, Sym) for d in reshape(Spec(Type.f32, None), ints(0, 7, -1))] == [True, False, True]
        assert len(reshape(tensor(2, 3), Spec(Type.i64, (4,)))) == 4
        assert reshape(tensor(2, 3), Spec(Type.i64, None)) is None


# ---- Squeeze, Unsqueeze, Transpose


def test_squeeze_of_symbolic_extents(table: Table, batch: Any) -> None:
    assert shape("Squeeze", "opset1", tensor(batch, 1, 3)) is None
    assert shape("Squeeze", "opset1", tensor(2, 1, 3)) == (2, 3)
    assert shape("Squeeze", "opset15", tensor(batch, 3), ints(0), allow_axis_skip=True) is None
    assert shape("Squeeze", "opset1", tensor(batch, 3), ints(0)) == (3,)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("same", batch, 1)]


def test_axes_that_are_not_known(table: Table, batch: Any) -> None:
    unknown = Spec(Type.i64, (1,))
    assert len(shape("Unsqueeze", "opset1", tensor(batch, 3), unknown)) == 3
    assert len(shape("Squeeze", "opset1", tensor(batch, 3), unknown)) == 1
    assert len(shape("Transpose", "opset1", tensor(batch, 3), Spec(Type.i64, (2,)))) == 2
    assert shape("Unsqueeze", "opset1", tensor(batch, 3), Spec(Type.i64, None)) is None


# ---- Concat, Split, VariadicSplit


def test_concat_adds(table: Table, batch: Any, length: Any, past: Any) -> None:
    joined = infer("Concat", "opset1", tensor(batch, past, 4), tensor(batch, length, 4), axis=1)
    assert joined.shape == (batch, past + length, 4)
    assert not table.checks
    infer("Concat", "opset1", tensor(batch, 4), tensor(length, 4), axis=1)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("same", batch, length)]


def test_splits(table: Table, batch: Any, length: Any) -> None:
    parts = infer("Split", "opset1", tensor(batch, 6 * length), scalar(-1), num_splits=3)
    assert [p.shape for p in parts] == [(batch, 2 * length)] * 3
    assert not table.checks
    parts = infer("VariadicSplit", "opset1", tensor(batch, length), scalar(1), ints(3, -1))
    assert [p.shape for p in parts] == [(batch, 3), (batch, length - 3)]
    assert [(c.op, c.a, c.b) for c in table.checks] == [("le", 3, length)]


# ---- Slice, StridedSlice


def test_slices(table: Table, batch: Any, length: Any, past: Any) -> None:
    rest = shape("Slice", "opset8", tensor(batch, past + length), ints(past), ints(past + length), ints(1), ints(1))
    assert rest == (batch, length)
    assert shape("Slice", "opset8", tensor(batch, 8), ints(0), ints(2**63 - 1), ints(1), ints(0)) == (batch, 8)
    masks = {"begin_mask": (1, 0), "end_mask": (1, 0)}
    assert shape(
        "StridedSlice",
        "opset1",
        tensor(batch, length, 8),
        ints(0, 0),
        ints(0, 1),
        ints(1, 1),
        shrink_axis_mask=(0, 1),
        **masks,
    ) == (batch, 8)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("le", 1, length)]


# ---- Broadcast, Tile, Pad, Gather, OneHot


def test_broadcasts(table: Table, batch: Any, length: Any) -> None:
    assert shape("Broadcast", "opset3", tensor(1, 8), ints(batch, 8)) == (batch, 8)
    assert shape("Broadcast", "opset3", tensor(batch, 1), ints(1, length), mode="bidirectional") == (batch, length)
    assert not table.checks
    assert shape("Broadcast", "opset3", tensor(batch), ints(length)) == (length,)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("onto", batch, length)]
    assert len(shape("Broadcast", "opset3", tensor(2, 3), Spec(Type.i64, (2,)), mode="bidirectional")) == 2


def test_a_range_that_contains_1_broadcasts(table: Table) -> None:
    few = table.atom("dim", "few", lo=0, hi=4)
    assert broadcast(few, 13) == broadcast(13, few) == 13
    assert [(c.op, c.a, c.b) for c in table.checks] == [("onto", few, 13)]
    with pytest.raises(OpError, match=r"dimensions 2\.\.4 and 13 do not broadcast"):
        broadcast(table.atom("dim", "more", lo=2, hi=4), 13)


def test_bounds_beyond_those_of_a_dimension(table: Table) -> None:
    shape = (table.atom("dim", "far", lo=2**64, hi=2**65), table.atom("dim", "wide", lo=2, hi=2**64))
    assert str(Spec(Type.f32, shape).partial_shape) == "[?,2..]"


def test_extents_by_arithmetic(table: Table, batch: Any, length: Any) -> None:
    assert shape("Tile", "opset1", tensor(batch, 3), ints(1, length)) == (batch, 3 * length)
    assert shape("Pad", "opset12", tensor(batch, length), ints(0, 1), ints(0, 2), pad_mode="constant") == (
        batch,
        length + 3,
    )
    assert shape("Gather", "opset8", tensor(5, 7), Spec(Type.i64, (batch, length)), scalar(0)) == (batch, length, 7)
    on, off = tensor(), tensor()
    assert shape("OneHot", "opset1", Spec(Type.i64, (batch,)), scalar(length), on, off, axis=-1) == (batch, length)
    assert not table.checks


def test_reflected_pads_are_checked_at_run_time(table: Table, length: Any) -> None:
    assert shape("Pad", "opset12", tensor(length), ints(2), ints(0), pad_mode="reflect") == (length + 2,)
    assert [(c.op, c.a, c.b) for c in table.checks] == [("le", 2, length - 1)]


# ---- shape arithmetic


def test_values_of_shape_arithmetic(table: Table, batch: Any, length: Any) -> None:
    extents = infer("ShapeOf", "opset3", tensor(batch, length, 768))
    assert extents.ints() == [batch, length, 768]
    first = infer("Gather", "opset8", extents, ints(0), scalar(0))
    assert first.ints() == [batch]
    last = infer("StridedSlice", "opset1", extents, ints(-1), ints(0), ints(1), begin_mask=(0,), end_mask=(1,))
    assert last.ints() == [768]
    target = infer("Concat", "opset1", first, ints(-1), last, axis=0)
    assert target.ints() == [batch, -1, 768]
    assert infer("Squeeze", "opset1", first, ints(0)).ints() == [batch]
    assert infer("Unsqueeze", "opset1", infer("Gather", "opset8", extents, scalar(1), scalar(0)), ints(0)).ints() == [
        length
    ]
    assert infer("Broadcast", "opset3", first, ints(2)).ints() == [batch, batch]
    assert infer("Tile", "opset1", first, ints(2)).ints() == [batch, batch]
    assert infer("Reverse", "opset1", extents, ints(0), mode="index").ints() == [768, length, batch]
    assert infer("Transpose", "opset1", extents, ints(0)).ints() == [batch, length, 768]
    assert infer("Reshape", "opset1", extents, ints(3, 1), special_zero=False).ints() == [batch, length, 768]
    head, remainder = infer("VariadicSplit", "opset1", extents, scalar(0), ints(1, -1))
    assert head.ints() == [batch] and remainder.ints() == [length, 768]
    assert infer("Pad", "opset12", first, ints(1), ints(0), scalar(1), pad_mode="constant").ints() == [1, batch]


def test_shape_of_known_extents_is_a_constant(table: Table) -> None:
    spec = infer("ShapeOf", "opset3", tensor(2, 3), output_type=Type.i32)
    assert spec.value.dtype == np.int32 and spec.value.tolist() == [2, 3]
    assert infer("ShapeOf", "opset1", Spec(Type.f32, None)).rank == 1


def test_range_of_symbols(table: Table, length: Any, past: Any) -> None:
    def count(start: Any, stop: Any, step: Any, kind: Type = Type.i64) -> Any:
        (extent,) = shape("Range", "opset4", scalar(start), scalar(stop), scalar(step), output_type=kind)
        return extent

    assert count(0, length, 1) is length
    assert count(past, past + length, 1) is length
    assert count(0, 4 * length, 4) is length
    assert isinstance(count(0, 5, length), Sym)
    assert count(0.0, length, 1.0, Type.f32) is length
    assert count(0.0, length, 0.5, Type.f32) not in (length, 2 * length)
    assert infer("Range", "opset4", scalar(0), scalar(3), scalar(1), output_type=Type.i64).ints() == [0, 1, 2]


def test_errors_that_symbols_do_not_hide(table: Table, batch: Any) -> None:
    with pytest.raises(OpError, match="batch dim 0 is 2 of the data and 3 of the indices"):
        shape("Gather", "opset8", tensor(2, batch), Spec(Type.i64, (3, batch)), scalar(1), batch_dims=1)
    with pytest.raises(OpError, match="cannot be reshaped"):
        reshape(tensor(2, 3), ints(-1, 4))
    with pytest.raises(OpError, match="differ"):
        infer("Concat", "opset1", tensor(batch, 2), tensor(batch, 3), axis=0)


def test_messages_keep_the_order(table: Table) -> None:
    long = table.atom("dim", 0, 0, lo=7)
    for a, b in ((3, 5), (5, 3), (5, long), (long, 5)):
        with pytest.raises(OpError, match=re.escape(f"dimensions {a} and {b} do not broadcast")):
            broadcast(a, b)


def test_shared_atoms_are_found_once(table: Table, length: Any) -> None:
    value = length
    for _ in range(100):
        value = value // 2 + value // 3
    assert len(atoms(value)) == 1 + 2 * 100
