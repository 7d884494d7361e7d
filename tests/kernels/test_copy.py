"""Strided copies on the emulated device against NumPy: each kernel, odd sizes, strides of either sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend, copy
from ovgpu.ops.base.strided import Axes, vectorized
from tests.emulator import cupy_emu, nvrtc
from tests.kernels.gate import ToCompile
from tests.kernels.recorded import replay

Array = np.ndarray[Any, Any]
KINDS = (np.uint8, np.float16, np.float32, np.int64)
ORDERS = ("ascending", "descending", 7)


def whole(x: Any) -> Any:
    return x


# Kernel, shape and view of the source, and shape and view of the target.
CASES: list[tuple[str, tuple[int, ...], Callable[[Any], Any], tuple[int, ...], Callable[[Any], Any]]] = [
    ("dense", (5, 7, 11), whole, (5, 7, 11), whole),
    ("dense", (16,), whole, (4, 4), lambda y: y.reshape(16)),
    ("dense", (3, 1, 5), lambda x: x.transpose(1, 0, 2), (1, 3, 5), whole),
    ("dense", (5000,), whole, (5000,), whole),
    ("strided", (7, 8), lambda x: x[:, ::-1], (7, 8), whole),
    ("strided", (9, 10), lambda x: x[::-2, 1::3], (5, 3), whole),
    ("strided", (3, 4, 5), lambda x: x.transpose(1, 0, 2), (4, 3, 5), whole),
    ("strided", (2, 6, 3, 16), lambda x: x.transpose(0, 2, 1, 3), (2, 3, 6, 16), whole),
    ("strided", (6, 4), whole, (6, 9), lambda y: y[:, 3:7]),
    ("strided", (6, 4), whole, (6, 9), lambda y: y[::-1, :8:2]),
    ("strided", (5, 6), whole, (6, 5), lambda y: y.T),
    ("strided", (7,), lambda x: x, (3, 7), whole),
    ("strided", (7, 1), whole, (4, 7, 3), whole),
    ("strided", (1,), whole, (33,), whole),
    ("strided", (17,), lambda x: x[1:], (16,), whole),
    ("strided", (2, 3, 2, 3, 2, 3), lambda x: x[:, :2, :, :2, :, :2], (2, 2, 2, 2, 2, 2), whole),
    ("transposed", (33, 70), lambda x: x.T, (70, 33), whole),
    ("transposed", (8, 131), lambda x: x.T, (131, 8), whole),
    ("transposed", (3, 9, 40), lambda x: x.transpose(0, 2, 1), (3, 40, 9), whole),
    ("transposed", (9, 3, 40), lambda x: x[::-1].transpose(1, 2, 0), (3, 40, 9), whole),
    ("transposed", (9, 2, 3, 5, 11), lambda x: x.transpose(4, 3, 2, 1, 0), (11, 5, 3, 2, 9), whole),
    ("transposed", (20, 12), lambda x: x.T, (2, 12, 30), lambda y: y[1, :, 3:23]),
]


def drawn(shape: tuple[int, ...], kind: Any, draw: int) -> Array:
    return np.random.default_rng(draw).integers(0, 127, shape).astype(kind)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]} {c[1]} to {c[3]}")
def test_copies(case: Any, kind: Any, backend: CudaBackend) -> None:
    name, shape, source, target, part = case
    draws = [drawn(shape, kind, i) for i in range(3)]
    x, y = cupy_emu.empty(shape, kind), cupy_emu.empty(target, kind)
    launches = copy.launches(source(x), part(y))
    assert launches is not None and launches[0][0].startswith(f"copy_{name}")

    def wanted(draw: int) -> list[Array]:
        out = np.full(y.nbytes, 0xFB, np.uint8).view(kind).reshape(target)
        part(out)[...] = source(draws[draw])
        return [out]

    assert replay(backend, lambda: backend.copy(source(x), part(y)), [(x, draws)], [y], wanted) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda k: np.dtype(k).name)
def test_transposed_in_any_order_of_threads(kind: Any, order: Any, backend: CudaBackend) -> None:
    draws = [drawn((2, 70, 37), kind, i) for i in range(3)]
    x, y = cupy_emu.empty((2, 70, 37), kind), cupy_emu.empty((2, 37, 70), kind)
    with cupy_emu.thread_order(order):
        replay(
            backend,
            lambda: backend.copy(x.transpose(0, 2, 1), y),
            [(x, draws)],
            [y],
            lambda draw: [draws[draw].transpose(0, 2, 1)],
        )


def test_nothing_to_copy(backend: CudaBackend) -> None:
    assert not backend.copy(cupy_emu.empty((0, 3), np.float32), cupy_emu.empty((0, 3), np.float32))


def test_too_many_axes_for_the_kernels(backend: CudaBackend) -> None:
    x, y = (cupy_emu.empty((2,) * 10, np.float32) for _ in range(2))
    x[...] = cupy_emu.asarray(drawn((2,) * 10, np.float32, 0))
    assert copy.launches(x.T, y) is None
    for call in backend.copy(x.T, y):
        call()
    assert np.array_equal(y.get(), x.get().T)


@pytest.mark.parametrize(
    ("values", "count"),
    [
        (np.arange(5), 1),
        (np.float32(2.5), 1),
        (np.arange(40, dtype=np.int32).reshape(2, 20), 1),
        (np.arange(900).reshape(3, 300), 3),
        (np.arange(1604).reshape(2, 802), 1),
        (np.array([True, False]), 1),
    ],
    ids=["5", "scalar", "40", "900", "1604", "mask"],
)
def test_host_numbers(values: Any, count: int, backend: CudaBackend) -> None:
    """Numbers from the host are part of the graph: their array may change later."""
    shape, kind = np.shape(values), np.asarray(values).dtype
    for step in (1, 2):  # dense, and as columns of a wider array
        y = cupy_emu.empty((*shape[:-1], shape[-1] * step) if shape else (), kind)
        given, want = np.array(values), np.array(values)

        def record(given: Array = given, y: Any = y, step: int = step) -> Any:
            calls = backend.copy(given, y[..., ::step] if given.ndim else y)
            given[...] = 0
            return calls

        def wanted(draw: int, y: Any = y, want: Array = want, step: int = step) -> list[Array]:
            out = np.full(y.nbytes, 0xFB, np.uint8).view(y.dtype).reshape(y.shape)
            out[(..., slice(None, None, step)) if want.ndim else ...] = want
            return [out]

        assert replay(backend, record, [], [y], wanted) == count


@pytest.mark.parametrize("value", [np.float32(2.5), np.arange(70, dtype=np.float32)], ids=["scalar", "row"])
def test_a_large_target_is_filled_at_once(value: Any, backend: CudaBackend) -> None:
    y = cupy_emu.empty((50, 70), np.float32)
    wanted = np.broadcast_to(value, (50, 70))
    assert replay(backend, lambda: backend.copy(np.array(value), y), [], [y], lambda _: [wanted]) == 1


def test_adjacent_axes_collapse() -> None:
    assert Axes.collapse((2, 3, 1, 4), (12, 4, 9, 1), (12, 4, 0, 1)) == Axes((24,), ((1,), (1,)))
    assert Axes.collapse((2, 3, 4), (12, 4, 1), (24, 4, 1)) == Axes((2, 12), ((12, 1), (24, 1)))
    assert Axes.collapse((5, 1), (0, 3)) == Axes((5,), ((0,),))


def test_widest_vectors() -> None:
    axes = Axes((6, 8), ((8, 1), (16, 1)))
    assert vectorized(axes, 2, (0, 32)) == (Axes((6,), ((1,), (2,))), 16)
    assert vectorized(axes, 2, (4, 32)) == (Axes((6, 4), ((4, 1), (8, 1))), 4)
    assert vectorized(axes, 2, (2, 32)) == (axes, 2)
    assert vectorized(axes, 16, (0, 0)) == (axes, 16)


def test_divisions_by_multiplication() -> None:
    """The kernels' division by packed reciprocals is exact at the critical extents and numbers."""
    extents = [1, 2, 3, 5, 7, 641, 2**16 + 1, 2**30 - 1, 2**30 + 1, 2**31 - 2000]
    for extent in extents:
        magic, shift = (int(v) & 0xFFFFFFFF for v in Axes((extent,), ()).packed()[1:3, 1])
        for n in (0, 1, extent - 1, extent, extent + 1, 2 * extent - 1, 2**31 - 2, 2**31 - 1):
            assert (((n * magic >> 32) + n) >> shift) == n // extent


def test_indices_beyond_32_bits() -> None:
    assert Axes((2**20, 2**10), ((2**10, 1),)).index == "int"
    assert Axes((2**20, 2**11), ((2**11, 1),)).index == "long long"
    assert Axes((4, 4), ((2**30, 1),)).index == "long long"
    assert Axes((4, 4), ((-(2**30), 1),)).index == "long long"


@pytest.mark.parametrize("form", ["strided", "transposed"])
def test_kernels_with_64_bit_indices(form: str, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    draws = [drawn((3, 20, 33), np.float32, i) for i in range(3)]
    order = (1, 0, 2) if form == "strided" else (2, 0, 1)
    x, y = cupy_emu.empty((3, 20, 33), np.float32), cupy_emu.empty(draws[0].transpose(order).shape, np.float32)
    launches = copy.launches(x.transpose(order), y)
    assert launches is not None and launches[0][0].startswith(f"copy_{form}") and "long long" in launches[0][0]
    replay(
        backend,
        lambda: backend.copy(x.transpose(order), y),
        [(x, draws)],
        [y],
        lambda draw: [draws[draw].transpose(order)],
    )


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_every_instantiation_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    sizes = ("unsigned char", "unsigned short", "unsigned int", "unsigned long long", "uint4")
    expressions = [
        f"copy_{form}<{t}, {i}, {r}>"
        for form in ("strided", "transposed")
        for t in sizes
        for i, r in (("int", 2), ("int", 4), ("int", 8), ("long long", 8))
    ]
    expressions += [f"write_numbers<{t}, {n}, {r}>" for t in sizes[:4] for n, r in zip(copy.NUMBERS_PER_LAUNCH, (2, 8))]
    expressions = to_compile("copy.cu", expressions)
    usage = nvrtc.compile_file("copy.cu", architecture, expressions).usage
    assert len(usage) == len(expressions) + 1
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
