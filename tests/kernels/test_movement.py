"""Ops that move elements, on the emulated device: their launches, and the cases of their tables in whole models."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.movement import Reverse, Split, Transpose, VariadicSplit
from ovgpu.ops.movement.slicing import Slice, StridedSlice
from ovgpu.ops.movement.tile import Tile
from ovgpu.ops.shape.reshape import Reshape
from tests.harness import Case
from tests.kernels.recorded import axis, draws, run_op

FILES = (
    "movement.test_broadcast",
    "movement.test_gather",
    "movement.test_movement",
    "movement.test_pad",
    "movement.test_scatter",
    "movement.test_slicing",
    "movement.test_tile",
    "sequence.test_one_hot",
    "shape.test_reshape",
    "shape.test_shape",
)
WITHOUT_CUPY = ("string", "u1", "u2", "u3", "u4", "u6", "i4", "nf4", "f4e2m1", "f8e4m3", "f8e5m2", "f8e8m0")
INTERVAL = 25  # every 25th case is tested besides the first of each op version, and its first one of f16


def of(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def test_transpose(backend: CudaBackend) -> None:
    assert run_op(backend, Transpose(), [draws((2, 9, 3, 8), np.float32), of(0, 2, 1, 3)]) == [
        "copy_strided<uint4, int, 4>"
    ]
    assert run_op(backend, Transpose(), [draws((40, 33), np.float16), of(1, 0)]) == [
        "copy_transposed<unsigned short, int, 2>"
    ]


def test_reverse(backend: CudaBackend) -> None:
    run_op(backend, Reverse(mode="index"), [draws((3, 4, 5), np.float32), of(0, -1)])
    run_op(backend, Reverse(mode="mask"), [draws((3, 4), np.float32), np.array([False, True])])


def test_splits(backend: CudaBackend) -> None:
    assert len(run_op(backend, Split(num_splits=3), [draws((2, 6, 5), np.float32), axis(-2)])) == 3
    run_op(backend, VariadicSplit(), [draws((7, 4), np.float32), axis(0), of(2, -1, 0, 4)])


def test_reshape(backend: CudaBackend) -> None:
    assert run_op(backend, Reshape(), [draws((6, 4), np.float32), of(3, -1)]) == ["copy_dense"]
    run_op(backend, Reshape(), [draws((6, 4), np.float32), of(3, -1)], lambda x: x[:, ::-1].T)


def test_slices(backend: CudaBackend) -> None:
    run_op(backend, Slice(), [draws((7, 9), np.float32), of(5, 1), of(0, 9), of(-2, 3)])
    run_op(
        backend,
        StridedSlice(begin_mask=(0, 0, 0), end_mask=(0, 0, 1), new_axis_mask=(0, 1, 0), shrink_axis_mask=(1, 0, 0)),
        [draws((7, 9), np.float32), of(-2, 0, 1), of(0, 0, 0), of(1, 1, 2)],
    )


@pytest.mark.parametrize("repeats", [(2, 3), (1, 1), (3,), (2, 1, 3), (0, 2)], ids=str)
def test_tile(repeats: Any, backend: CudaBackend) -> None:
    assert len(run_op(backend, Tile(), [draws((4, 5), np.float32), of(*repeats)])) == (0 not in repeats)


def test_broadcast(backend: CudaBackend) -> None:
    run_op(backend, Broadcast3(mode="numpy"), [draws((3, 1), np.float32), of(2, 3, 4)])
    run_op(backend, Broadcast3(mode="explicit"), [draws((3, 4), np.int8), of(3, 2, 4), of(0, 2)])
    run_op(backend, Broadcast3(mode="bidirectional"), [draws((3, 4), np.int64), of(2, 1, 1)])


def cases() -> Iterator[Case]:
    seen = set()
    for file in FILES:
        tables = [t.cases for t in vars(importlib.import_module(f"tests.ops.{file}")).values() if hasattr(t, "cases")]
        for number, case in enumerate(case for table in tables for case in table):
            kinds = [i.dtype for i in case.inputs]
            if case.judged and not {*kinds, case.attrs.get("output_type")} & {*WITHOUT_CUPY}:
                key = case.op, case.version, kinds[0] == "f16"
                if key not in seen or number % INTERVAL == 0:
                    yield case
                seen.add(key)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in cases()])
def test_in_models(case: Case, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case is run, captured with other inputs, and replayed, without falling back to `evaluate`."""

    def refuse(*_: Any) -> None:
        raise AssertionError(f"{case.op} has no CUDA form for this")

    monkeypatch.setattr(CudaBackend, "_evaluate_into", refuse)
    case.run("dynamic" if "dynamic" in case.variants else "static", emulated)
