"""Gathers on the emulated device against their definitions: batches, indices out of range, odd rows, other layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.movement.gather import Gather, Gather8
from ovgpu.ops.movement.gather_elements import GatherElements, GatherND8, GatherTree
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc
from tests.kernels.recorded import axis, draws, replay, run_op

from .gate import ToCompile

SHAPES = [  # data, indices, axis, batch_dims
    ((7, 12), (5,), 0, 0),
    ((7, 12), (2, 3), 1, 0),
    ((7,), (), 0, 0),
    ((3, 5, 8), (4,), 1, 0),
    ((4, 6, 16), (4, 3), 1, 1),
    ((4, 6, 5), (4, 3), 2, 1),
    ((2, 3, 4, 6), (2, 3, 5), 3, 2),
    ((2, 3, 4, 6), (2, 3, 2, 2), 2, -2),
    ((9, 1), (5, 1), 0, 0),
    ((300, 33), (41,), 0, 0),
    ((1, 4), (3,), 0, 0),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gathers(shapes: Any, backend: CudaBackend) -> None:
    data, indices, where, batch = shapes
    extent = data[where]
    names = run_op(
        backend,
        Gather8(batch_dims=batch),
        [draws(data, np.float32), draws(indices, np.int64, -extent - 1, extent + 1), axis(where)],
    )
    assert len(names) == 1


@pytest.mark.parametrize("index", [np.int32, np.uint8, np.int8, np.uint64])
def test_types_of_indices(index: Any, backend: CudaBackend) -> None:
    run_op(backend, Gather(), [draws((6, 4), np.float16), draws((5,), index, 0, 7), axis(0)])


@pytest.mark.parametrize(
    ("columns", "width"), [(16, "uint4"), (4, "unsigned long long"), (6, "unsigned int"), (5, "unsigned short")]
)
def test_widest_vectors_of_rows(columns: int, width: str, backend: CudaBackend) -> None:
    names = run_op(backend, Gather(), [draws((6, columns), np.float16), draws((5,), np.int64, -6, 6), axis(0)])
    assert names == [f"gather<{width}, long long, int, 2>"]


FAR = {
    np.int8: [-128, 127, -3, 2],
    np.int64: [2**63 - 1, -(2**63), 2**32 + 1, -(2**32) - 1],
    np.int32: [2**31 - 1, -(2**31), 3, -4],
    np.uint32: [2**32 - 1, 2**31, 3, 2],
    np.uint64: [2**64 - 1, 2**63, 2**63 - 1, 2],
}


@pytest.mark.parametrize("index", FAR, ids=lambda i: np.dtype(i).name)
def test_indices_far_out_of_range_give_zeros(index: Any, backend: CudaBackend) -> None:
    x, far = draws((3, 4), np.float32, 1), np.array(FAR[index], index)
    run_op(backend, Gather8(), [x, [far, far[::-1].copy(), far[:1].repeat(4)], axis(0)])
    (found,) = evaluate(Gather8(), NUMPY, [x[0], far, axis(0)], [Type.f32])
    for got, i in zip(found, FAR[index]):
        assert got.tolist() == (x[0][i].tolist() if -3 <= i < 3 else [0] * 4)


@pytest.mark.parametrize("where", [0, 1])
def test_out_of_range_memory_is_not_read(where: int, backend: CudaBackend) -> None:
    """Indices out of range do not read the memory around the data, which belongs to the same allocation."""
    memory = cupy_emu.asarray(np.full((5, 9), 7, np.float32))
    x, indices = memory[1:4, 2:6], cupy_emu.asarray(np.arange(-9, 9))
    extent = x.shape[where]
    x[...] = 1
    out = cupy_emu.empty((*x.shape[:where], 18, *x.shape[where + 1 :]), np.float32)
    launcher = Launcher(backend.stream, backend.blas)
    Gather8().cuda(launcher, [x, indices, axis(where)], [out], ())
    for call in launcher.calls:
        call()
    backend.synchronize()
    inside = [float(-extent <= i < extent) for i in range(-9, 9)]
    assert np.array_equal(np.moveaxis(out.get(), where, -1), np.broadcast_to(inside, (x.size // extent, 18)))


def test_an_empty_axis_gives_zeros(backend: CudaBackend) -> None:
    run_op(backend, Gather(), [draws((0, 3), np.float32), draws((4,), np.int32), axis(0)])


def test_other_layouts(backend: CudaBackend) -> None:
    run_op(
        backend,
        Gather(),
        [draws((6, 8), np.int32), draws((5, 2), np.int64, -9, 9), axis(1)],
        lambda x: x[::-1, ::2] if x.shape == (6, 8) else x.T,
    )


def test_into_a_part_of_another_array(backend: CudaBackend) -> None:
    data, indices = draws((6, 4), np.float32), draws((3,), np.int64, -6, 6)
    x, i, y = cupy_emu.empty((6, 4), np.float32), cupy_emu.empty((3,), np.int64), cupy_emu.empty((3, 9), np.float32)

    def record() -> Any:
        launcher = Launcher(backend.stream, backend.blas)
        Gather().cuda(launcher, [x, i, axis(0)], [y[:, 2:6]], ())
        return launcher.calls

    def wanted(draw: int) -> Any:
        out = np.full(y.nbytes, 0xFB, np.uint8).view(np.float32).reshape(y.shape)
        out[:, 2:6] = data[draw][indices[draw]]
        return [out]

    replay(backend, record, [(x, data), (i, indices)], [y], wanted)


def test_64_bit_offsets(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    names = run_op(backend, Gather(), [draws((3, 6, 5), np.float32), draws((4,), np.int64, -7, 7), axis(1)])
    assert names == ["gather<unsigned int, long long, long long, 4>"]


ND = [  # data, indices, batch_dims
    ((7, 12), (5, 1), 0),
    ((7, 12), (5, 2), 0),
    ((3, 5, 8), (2, 3, 2), 0),
    ((3, 5, 8), (3, 4, 1), 1),
    ((2, 3, 4, 6), (2, 3, 5, 2), 2),
    ((1, 3, 4, 6), (5, 1, 2), 1),
    ((40, 33), (60, 1), 0),
    ((6, 5), (3, 0), 0),
]


@pytest.mark.parametrize("shapes", ND, ids=str)
def test_gather_nd(shapes: Any, backend: CudaBackend) -> None:
    data, indices, batch = shapes
    names = run_op(backend, GatherND8(batch_dims=batch), [draws(data, np.float32), draws(indices, np.int64, -8, 8)])
    assert len(names) == 1


@pytest.mark.parametrize(("columns", "width"), [(16, "uint4"), (6, "unsigned int"), (5, "unsigned short")])
def test_widest_vectors_of_slices(columns: int, width: str, backend: CudaBackend) -> None:
    names = run_op(backend, GatherND8(), [draws((6, 3, columns), np.float16), draws((5, 2), np.int32, -3, 3)])
    assert names == [f"gather_nd<{width}, int, int, 2>"]


def test_elements_of_other_layouts(backend: CudaBackend) -> None:
    data, indices = draws((6, 8), np.int16), draws((6, 8), np.int32, -5, 5)
    for op in (GatherElements(axis=0), GatherElements(axis=1)):
        run_op(backend, op, [data, indices], lambda x: x[::-1, ::2])
    tuples = draws((3, 2), np.int64, -3, 3)
    run_op(backend, GatherND8(), [data, tuples], lambda x: x.T if x.shape == (6, 8) else x[::-1])


@pytest.mark.parametrize("kind", [np.int32, np.float16, np.uint8, np.int64], ids=lambda k: np.dtype(k).name)
def test_trees(kind: Any, backend: CudaBackend) -> None:
    ids, parents = draws((30, 7, 40), kind, 1, 99), draws((30, 7, 40), kind, 0, 41)
    names = run_op(backend, GatherTree(), [ids, parents, draws((7,), kind, 0, 33), draws((), kind, 5, 9)])
    assert names == [f"gather_tree<{Launcher.c_type(np.dtype(kind))}>"]


def test_64_bit_tuples(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    names = run_op(backend, GatherND8(), [draws((3, 6, 5), np.float32), draws((4, 2), np.int64, -7, 7)])
    assert names == ["gather_nd<unsigned int, long long, long long, 2>"]


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    sizes = ("unsigned char", "unsigned short", "unsigned int", "unsigned long long", "uint4")
    expressions = [
        f"gather<{t}, {index}, {i}, {r}>"
        for t in sizes
        for index in ("int", "long long")
        for i, r in (("int", 2), ("int", 4), ("long long", 8))
    ]
    expressions += [
        f"gather_nd<{t}, {index}, {i}, {r}>"
        for t, index, i, r in (
            ("unsigned char", "long long", "int", 2),
            ("unsigned int", "int", "int", 4),
            ("uint4", "int", "int", 4),
            ("unsigned long long", "long long", "long long", 8),
        )
    ]
    expressions += [f"gather_tree<{t}>" for t in ("int", "long long", "float", "__half", "__nv_bfloat16")]
    expressions = to_compile("gather.cu", expressions)
    usage = nvrtc.compile_file("gather.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
