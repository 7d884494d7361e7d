"""Reductions on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import c_type
from ovgpu.ops.reduction import (
    ReduceL1,
    ReduceL2,
    ReduceLogicalAnd,
    ReduceLogicalOr,
    ReduceMax,
    ReduceMean,
    ReduceMin,
    ReduceProd,
    ReduceSum,
    Reduction,
)
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import BF16, FLOATS, INTEGERS, ORDERS, TOLERANCE, check, launches, preload, random
from .gate import ToCompile
from .recorded import kernel_name

ARITHMETIC: tuple[type[Reduction], ...] = (ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2)
LOGICAL: tuple[type[Reduction], ...] = (ReduceLogicalAnd, ReduceLogicalOr)
DTYPES = (*FLOATS, *INTEGERS)
F32 = np.dtype(np.float32)


def kernels(cls: type[Reduction], dtype: np.dtype[Any], parts: bool = False) -> list[str]:
    reduction = f"{cls.kernel}<{c_type(dtype)}>"
    names = [f"reduce_rows<{reduction}>", f"reduce_columns<{reduction}>"]
    if parts:
        names += [
            f"reduce_rows<Partial<{reduction}>>",
            f"reduce_columns<Partial<{reduction}>>",
            f"reduce_rows<Final<{reduction}>>",
        ]
    return names


@pytest.fixture(scope="module", autouse=True)
def compiled(emulated: str) -> None:
    """Compile all kernels of this file together."""
    names = {name for cls in ARITHMETIC for name in kernels(cls, F32)}
    names |= {name for dtype in DTYPES for cls in (ReduceSum, ReduceMin) for name in kernels(cls, dtype)[:1]}
    names |= {name for cls in (ReduceSum, ReduceMax) for name in kernels(cls, F32, parts=True)}
    names |= {
        name
        for cls in ARITHMETIC
        for dtype in (np.dtype(np.int8), np.dtype(np.int32))
        for name in kernels(cls, dtype)[:1]
    }
    names |= {name for cls in LOGICAL for name in kernels(cls, np.dtype(bool))}
    preload("reduction.cu", *sorted(names))


@pytest.mark.drawn(24)
@pytest.mark.parametrize("cls", ARITHMETIC)
@pytest.mark.parametrize("axes", [[2], [0], [1], [0, 2], [1, 2], [0, 1, 2], [-1, -3], []], ids=str)
def test_axes(cls: type[Reduction], axes: list[int]) -> None:
    for keep_dims in (False, True):
        assert check(cls(keep_dims=keep_dims), random((3, 5, 7), scale=1), [np.array(axes, np.int64)]) == 1


@pytest.mark.drawn(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cls", [ReduceSum, ReduceMin])
def test_types(cls: type[Reduction], dtype: np.dtype[Any]) -> None:
    for n in (3, 1025):
        check(cls(), random((4, n), dtype), [[1]], tol=1e-4 if dtype == F32 else None)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("dtype", [np.int8, np.int32])
@pytest.mark.parametrize("cls", ARITHMETIC)
def test_integers_saturate_or_wrap(cls: type[Reduction], dtype: Any) -> None:
    check(cls(), random((3, 5), dtype), [[1]])


@pytest.mark.parametrize("cls", LOGICAL)
def test_logical(cls: type[Reduction]) -> None:
    for shape, axis in (((5, 3), 1), ((3, 7), 0), ((2, 0), 1)):
        check(cls(), random(shape, bool), [[axis]])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 255, 256, 1025, 4099])
def test_sizes(n: int, order: Any) -> None:
    with cp.thread_order(order):
        check(ReduceSum(), random((3, n)), [[1]], tol=1e-4)
        check(ReduceMax(), random((n, 3)), [[0]])


@pytest.mark.parametrize("order", ORDERS)
def test_parts(order: Any) -> None:
    """Few results of many elements take two launches, each of which fills the device."""
    with cp.thread_order(order):
        assert check(ReduceSum(), random((40011,)), [[0]], tol=1e-3) == 2
        assert check(ReduceMax(), random((1, 16385)), [[1]]) == 2
        assert check(ReduceMax(), random((1, 16384)), [[1]]) == 1
        assert check(ReduceSum(), random((3, 33001)), [[1]], tol=1e-3) == 2
        assert check(ReduceMax(), random((4103, 5)), [[0]]) == 2
        assert check(ReduceMax(keep_dims=True), random((2, 4103, 5)), [[1]], out=lambda a: a[:, :, ::2]) == 2


VIEWS = {
    "transposed": lambda a: a.transpose(2, 0, 1),
    "steps": lambda a: a[:, ::2, ::3],
    "backwards": lambda a: a[::-1, :, ::-1],
    "misaligned": lambda a: a[:, :, 1:],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strided(view: Any) -> None:
    for axes in ([0], [1], [2], [0, 2]):
        check(ReduceSum(), random((4, 6, 37)), [axes], view=view, tol=1e-4)


@pytest.mark.parametrize("dtype", [F32, np.dtype(np.float16), BF16], ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_neighbouring_columns(order: Any, dtype: Any) -> None:
    """A thread reduces 16 bytes of neighbouring columns, as of images whose channels are adjacent; their results may
    lie apart. Some threads have no elements."""

    def adjacent(x: Any) -> Any:
        return x.transpose(0, 3, 1, 2)

    tolerance = TOLERANCE.get(dtype.name)
    for cls in (ReduceSum, ReduceMax):
        with cp.thread_order(order):
            check(cls(keep_dims=True), random((3, 7, 7, 24), dtype), [[2, 3]], view=adjacent, tol=tolerance)
            check(cls(), random((2, 3, 9, 40), dtype), [[1, 2]], out=lambda a: a[:, ::2], tol=tolerance)
            check(cls(), random((40, 8), dtype), [[0]], tol=tolerance)


def test_neighbouring_columns_in_parts() -> None:
    """Blocks divide the elements of a few columns among themselves, and write the totals of neighbours apart."""
    for cls in (ReduceSum, ReduceMax):
        assert check(cls(), random((9000, 16)), [[0]], tol=1e-3) == 2
    x = cp.empty((3, 7, 7, 24), np.float32)
    for view, name in ((x, "reduce_vectors<"), (x[..., 1:], "reduce_columns<"), (x[..., :22], "reduce_columns<")):
        out = cp.empty((3, view.shape[-1]), np.float32)
        launcher = launches(ReduceSum(), view, [np.array([1, 2])], [out])
        assert kernel_name(launcher.calls[0]).startswith(name)


def test_broadcast() -> None:
    check(
        ReduceSum(),
        random((3, 1, 5)),
        [[1, 2]],
        view=lambda a: cp.broadcast_to(a, (3, 4, 5)) if isinstance(a, cp.ndarray) else np.broadcast_to(a, (3, 4, 5)),
    )


def test_vectors_start_where_they_are_aligned() -> None:
    for first in range(9):
        check(ReduceMin(), random((1, 5000), np.int8), [[1]], view=lambda a, first=first: a[:, first:])


@pytest.mark.parametrize("cls", ARITHMETIC)
def test_empty(cls: type[Reduction]) -> None:
    check(cls(), random((3, 0, 2)), [[1]])
    check(cls(), random((3, 0)), [[1]])
    assert check(cls(), random((0, 3)), [[1]]) == 0
    check(cls(), random((4, 0), np.int8), [[1]])


def test_nan_and_infinity() -> None:
    rows = np.array([[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, -np.inf, -np.inf], [np.inf, np.inf, np.inf]], np.float32)
    for cls in (ReduceMax, ReduceMin, ReduceSum):
        check(cls(), lambda draw: np.roll(rows, draw, 0), [[1]])
        check(cls(), lambda draw: np.roll(rows, draw, 0), [[0]])


def test_many_axes_are_left_to_evaluate(emulated: str) -> None:
    x = cp.zeros((2,) * 14, np.float32)
    with pytest.raises(AssertionError, match="declined"):
        launches(ReduceSum(), x, [np.arange(0, 14, 2)], [cp.empty((2,) * 7, np.float32)])


def test_kernels_compile_for_devices(to_compile: ToCompile) -> None:
    names = {name for cls in ARITHMETIC for name in kernels(cls, F32)}
    names |= {name for dtype in (np.dtype(np.float16), BF16) for name in kernels(ReduceSum, dtype)}
    names |= {kernels(ReduceMax, dtype)[0] for dtype in DTYPES}
    names |= {*kernels(ReduceSum, F32, parts=True), kernels(ReduceLogicalAnd, np.dtype(bool))[0]}
    for architecture in nvrtc.NEWEST:
        cubin = nvrtc.compile_file("reduction.cu", architecture, to_compile("reduction.cu", sorted(names)))
        for name, lowered in cubin.lowered.items():
            usage = cubin.usage[lowered]
            assert usage.spill_stores == usage.spill_loads == 0, name
            assert usage.registers <= 64, name
