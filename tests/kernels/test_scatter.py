"""Scatters on the emulated device against their definitions, with several updates of an element in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.movement.scatter import (
    ScatterElementsUpdate,
    ScatterElementsUpdate12,
    ScatterNDUpdate,
    ScatterNDUpdate15,
    ScatterUpdate,
)
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc
from tests.harness import Net
from tests.kernels.gate import ToCompile
from tests.kernels.recorded import axis, draws, run_op

REDUCTIONS: tuple[Any, ...] = ("none", "sum", "prod", "min", "max", "mean")
SHAPES = [  # data, updates, axis: by threads, then by warps
    ((7, 5), (4, 5), 0),
    ((7, 5), (3, 2), 1),
    ((2, 6, 9), (2, 4, 3), -2),
    ((5,), (1,), 0),
    ((3, 4), (3, 0), 1),
    ((40,), (100,), 0),
    ((3, 50), (2, 45), 1),
    ((2, 3, 6), (2, 3, 33), 2),
]


def given(data: Any, updates: Any, where: int, kind: Any, index: Any = np.int64) -> list[Any]:
    extent = data[where]
    return [
        draws(data, kind, 1, 9),
        draws(updates, index, -extent if np.dtype(index).kind == "i" else 0, extent),
        draws(updates, kind, 1, 4),
        axis(where),
    ]


@pytest.mark.parametrize("kind", [np.float32, np.int8], ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_the_last_update_wins(shapes: Any, kind: Any, backend: CudaBackend) -> None:
    names = run_op(backend, ScatterElementsUpdate(), given(*shapes, kind))
    assert len(names) == (4 if shapes[1] == (100,) else 1 + (0 not in shapes[1]))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("keeps", [True, False], ids=["from data", "from neutral"])
@pytest.mark.parametrize("reduction", REDUCTIONS[1:])
@pytest.mark.parametrize("shapes", [SHAPES[2], SHAPES[6]], ids=["threads", "warps"])
def test_reductions(shapes: Any, reduction: Any, keeps: bool, backend: CudaBackend) -> None:
    for kind in (np.float32, np.int32):
        inputs = given(*shapes, kind)
        if reduction == "prod":  # few factors other than 1, so that products are exact
            inputs[2] = [np.where(np.arange(u.size).reshape(u.shape) % 7, 1, 2).astype(kind) for u in inputs[2]]
        run_op(backend, ScatterElementsUpdate12(reduction=reduction, use_init_val=keeps), inputs)


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_any_order_of_threads(reduction: Any, order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        run_op(backend, ScatterElementsUpdate12(reduction=reduction), given((9,), (130,), 0, np.float32))


@pytest.mark.parametrize("reduction", ["sum", "prod", "min", "max"])
def test_booleans(reduction: Any, backend: CudaBackend) -> None:
    inputs = [draws((4, 6), np.bool_, 0, 2), draws((4, 5), np.int32, 0, 6), draws((4, 5), np.bool_, 0, 2), axis(1)]
    run_op(backend, ScatterElementsUpdate12(reduction=reduction), inputs)


@pytest.mark.parametrize("kind", [np.float64, np.uint8, np.int64], ids=lambda k: np.dtype(k).name)
def test_other_types(kind: Any, backend: CudaBackend) -> None:
    run_op(backend, ScatterElementsUpdate12(reduction="sum"), given((4, 6), (3, 6), 0, kind, np.uint8))


def test_nan_propagates(backend: CudaBackend) -> None:
    inputs = given((40,), (100,), 0, np.float32)
    for data, updates in zip(inputs[0], inputs[2]):
        data[::7] = updates[::9] = np.nan
    for reduction in REDUCTIONS[3:5]:
        run_op(backend, ScatterElementsUpdate12(reduction=reduction), inputs)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("repeats", [1, 7], ids=["threads", "warps"])
@pytest.mark.parametrize(
    "indices",
    [
        np.array([-5, -4, 1, 4, 2**40, -(2**63), 2**63 - 1]),
        np.array([2**64 - 1, 0, 1, 2**63, 4], np.uint64),
        np.array([127, -128, 0, 1, -5], np.int8),
    ],
    ids=lambda i: str(i.dtype),
)
def test_indices_out_of_range_are_ignored(indices: Any, repeats: int, reduction: Any, backend: CudaBackend) -> None:
    """Indices out of range do not change the memory around the data, in the same allocation."""
    memory = cupy_emu.asarray(np.full(12, 7, np.float32))
    data, out = cupy_emu.asarray(np.full(4, 6, np.float32)), memory[4:8]
    given = np.tile(indices, repeats)
    updates = cupy_emu.asarray(np.full(given.size, 2 if reduction in ("none", "mean") else 1, np.float32))
    launcher = Launcher(backend.stream, backend.blas)
    op = ScatterElementsUpdate12(reduction=reduction)
    assert op.cuda(launcher, [data, cupy_emu.asarray(given), updates, axis(0)], [out], ()) is None
    for call in launcher.calls:
        call()
    backend.synchronize()
    updated = {"none": 2, "sum": 6 + repeats, "prod": 6, "min": 1, "max": 6, "mean": (6 + 2 * repeats) / (repeats + 1)}
    want = np.full(12, 7, np.float32)
    want[4:8] = np.float32([updated[reduction]] * 2 + [6] * 2)
    assert memory.get().tolist() == want.tolist()


def scattered(device: str, indices: Any, const: bool, extent: int = 4) -> Any:
    """Return the result of a compiled model that scatters ones into zeros."""
    net = Net()
    x = net.parameter("f32", (-1,), "x")
    i = net.const(indices) if const else net.parameter("i64", (len(indices),), "i")
    ones = net.const(np.ones(len(indices), np.float32), "f32")
    net.result(net.layer("ScatterElementsUpdate", "opset3", [x, i, ones, net.const(0)]))
    core = ovgpu.Core()
    request = core.compile_model(core.read_model(*net.build()), device).create_infer_request()
    feeds = {"x": np.zeros(extent, np.float32)} | ({} if const else {"i": np.asarray(indices, np.int64)})
    return request.infer(feeds)[0].tolist()


@pytest.mark.parametrize("index", [4, -5, 2**40])
def test_models_with_indices_out_of_range(index: int, emulated: str) -> None:
    """Constant indices out of range are an error on every device, and computed ones only on the CPU."""
    for device in ("CPU", emulated):
        assert scattered(device, [0, -1], True) == [1, 0, 0, 1]
        with pytest.raises(ovgpu.OpError, match=rf"\[ScatterElementsUpdate\] index {index} is out of range"):
            scattered(device, [0, index], True)
    with pytest.raises(ovgpu.OpError, match=r"\[ScatterElementsUpdate\] an index is out of range for extent 4"):
        scattered("CPU", [0, index], False)
    assert scattered(emulated, [0, index], False) == [1, 0, 0, 0]


def test_other_layouts(backend: CudaBackend) -> None:
    inputs = [draws((6, 8), np.float32), draws((6, 8), np.int64, -4, 4), draws((6, 8), np.float32), axis(1)]
    run_op(backend, ScatterElementsUpdate12(reduction="mean"), inputs, lambda x: x[::-1, ::2])


@pytest.mark.parametrize("kind", [np.float16, Type.bf16.storage], ids=lambda k: np.dtype(k).name)
def test_short_types_are_rounded_once(kind: Any, backend: CudaBackend) -> None:
    """Short types are upcast: the launches are two conversions, the scatter, and one conversion back."""
    inputs = [draws((40,), kind, 0, 2), draws((100,), np.int64, -40, 40), draws((100,), kind, 0, 2), axis(0)]
    assert len(run_op(backend, ScatterElementsUpdate12(reduction="sum"), inputs)) == 4


SLICES = [  # data, indices, axis, launches: with updates in order, then with the last updates alone
    ((7, 5), (3,), 0, 2),
    ((7, 5), (3,), 1, 2),
    ((2, 6, 9), (2, 4), 1, 2),
    ((2, 6, 9), (), 1, 2),
    ((6, 5), (1,), 0, 2),
    ((7, 5), (60,), 0, 4),
    ((3, 50), (45,), 1, 4),
    ((2, 30, 6), (5, 9), 1, 4),
    ((90,), (300,), 0, 4),
]


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.float16], ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize("shapes", SLICES, ids=str)
def test_slices(shapes: Any, kind: Any, backend: CudaBackend) -> None:
    data, indices, where, launches = shapes
    updates = draws((*data[:where], *indices, *data[where + 1 :]), kind)
    inputs = [draws(data, kind), draws(indices, np.int64, -data[where], data[where]), updates, axis(where)]
    assert len(run_op(backend, ScatterUpdate(), inputs)) == launches


ND = [  # data, indices, launches
    ((7, 5), (3, 1), 2),
    ((7, 5), (3, 2), 3),
    ((7, 5), (2, 3, 2), 3),
    ((3, 4, 5, 6), (4, 3), 3),
    ((6, 8), (2, 0), 3),
    ((7, 5), (60, 1), 4),
    ((7, 5), (60, 2), 5),
    ((20, 5, 16), (50, 2), 5),
]


@pytest.mark.parametrize("shapes", ND, ids=str)
def test_scatter_nd(shapes: Any, backend: CudaBackend) -> None:
    data, indices, launches = shapes
    inputs = [
        draws(data, np.float32),
        draws(indices, np.int32, -3, 3),
        draws((*indices[:-1], *data[indices[-1] :]), np.float32),
    ]
    assert len(run_op(backend, ScatterNDUpdate(), inputs)) == launches


@pytest.mark.drawn(2)
@pytest.mark.parametrize("reduction", ["sum", "sub", "prod", "min", "max"])
@pytest.mark.parametrize("kind", [np.float32, np.int32, np.bool_], ids=lambda k: np.dtype(k).name)
def test_scatter_nd_reductions(kind: Any, reduction: Any, backend: CudaBackend) -> None:
    for data, indices in (((7, 5), (90, 2)), ((7, 5), (9, 1))):
        updates = (*indices[:-1], *data[indices[-1] :])
        inputs = [draws(data, kind, 0, 3), draws(indices, np.int64, -5, 5), draws(updates, kind, 0, 2)]
        run_op(backend, ScatterNDUpdate15(reduction=reduction), inputs)


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_the_last_of_many_wins(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        run_op(
            backend,
            ScatterNDUpdate(),
            [draws((9, 3), np.float32), draws((130, 1), np.int64, 0, 9), draws((130, 3), np.float32)],
        )


@pytest.mark.parametrize("repeats", [1, 9], ids=["few", "many"])
def test_tuples_out_of_range_are_ignored(repeats: int, backend: CudaBackend) -> None:
    memory = cupy_emu.asarray(np.full((5, 4), 7, np.float32))
    data = cupy_emu.asarray(np.full((3, 4), 6, np.float32))
    tuples = np.tile(np.array([[3, 0], [-4, 0], [0, 4], [2, -5], [2**40, 0], [-3, -4], [2, 3]]), (repeats, 1))
    launcher = Launcher(backend.stream, backend.blas)
    updates = cupy_emu.asarray(np.full(7 * repeats, 2, np.float32))
    assert ScatterNDUpdate().cuda(launcher, [data, cupy_emu.asarray(tuples), updates], [memory[1:4]], ()) is None
    for call in launcher.calls:
        call()
    backend.synchronize()
    want = np.full((5, 4), 7, np.float32)
    want[1:4] = 6
    want[1, 0] = want[3, 3] = 2
    assert np.array_equal(memory.get(), want)


def test_slices_of_other_layouts(backend: CudaBackend) -> None:
    inputs = [draws((6, 8), np.float32), draws((4, 6), np.int64, -4, 4), draws((6, 8, 3), np.float32), axis(1)]
    run_op(backend, ScatterUpdate(), inputs, lambda x: x[::-1, ::2])
    inputs = [draws((6, 8), np.float32), draws((4, 2), np.int64, -3, 3), draws((2, 8), np.float32)]
    run_op(backend, ScatterNDUpdate(), inputs, lambda x: x[::2, ::2] if x.shape != (2, 8) else x[:, ::2])


def test_64_bit_offsets(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    for shapes in (SHAPES[2], SHAPES[6]):
        run_op(backend, ScatterElementsUpdate(), given(*shapes, np.float32))
    inputs = [draws((7, 6), np.float32), draws((60,), np.int64, 0, 7), draws((60, 6), np.float32), axis(0)]
    assert "long long, 2>" in run_op(backend, ScatterUpdate(), inputs)[-1]


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"scatter_elements<{t}, {index}, {r.upper()}, {i}, 4, {lanes}>"
        for r in REDUCTIONS
        for t in (
            ("unsigned char", "unsigned short", "unsigned int", "unsigned long long")
            if r == "none"
            else ("float", "double", "int", "long long")
            if r == "mean"
            else ("float", "int", "bool")
        )
        for index, i, lanes in (("int", "int", 1), ("long long", "long long", 32))
    ]
    expressions += [
        "scatter_elements<float, int, SUB, int, 4, 1>",
        "number_tuples<long long>",
        "find_last<int>",
        "scatter_last<unsigned int, int, int, 4>",
        "scatter_last<uint4, long long, long long, 8>",
    ]
    expressions = to_compile("scatter.cu", expressions)
    usage = nvrtc.compile_file("scatter.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())


@pytest.mark.parametrize("aliased", [False, True])
def test_in_place(aliased: bool, emulated: str) -> None:
    """Data without later users is updated in place, by one launch and no copy, unless it is also the updates."""
    net = Net()
    x, i, u = net.parameter("f32", (6,), "x"), net.parameter("i64", (6,), "i"), net.parameter("f32", (6,), "u")
    data = net.layer("Relu", "opset1", [x])
    updated = net.layer("ScatterElementsUpdate", "opset3", [data, i, data if aliased else u, net.const(0)])
    net.result(net.layer("Relu", "opset1", [updated]))
    net.result(net.layer("Relu", "opset1", [u]))
    core = ovgpu.Core()
    request = core.compile_model(core.read_model(*net.build()), emulated).create_infer_request()
    numbers = np.arange(6, dtype=np.float32)
    for run in range(3):
        cupy_emu.counters.reset()
        found = request.infer({"x": numbers, "i": np.array([5, 4, 3, 2, 1, 0]), "u": numbers})
        assert found[0].tolist() == [5, 4, 3, 2, 1, 0]
        if run == 0 and not aliased:
            assert cupy_emu.counters.launches == 4
