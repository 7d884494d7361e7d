"""Softmax and LogSoftmax on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import Launcher, c_type
from ovgpu.ops.activation.softmax import LogSoftmax, Softmax8
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import FLOATS, ORDERS, check, random
from .gate import ToCompile

OPS = (Softmax8, LogSoftmax)
SIZES = (1, 2, 7, 8, 31, 32, 33, 64, 256, 1000, 1025, 4100, 17001)


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", SIZES)
def test_rows(n: int, order: Any) -> None:
    with cp.thread_order(order):
        assert check(Softmax8(axis=-1), random((3, n)), tol=1e-6) == (1 if n < 17000 else 2)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(1, 40003), (1, 70000), (7, 17000), (2, 3, 20000)], ids=str)
def test_long_rows(shape: tuple[int, ...], order: Any) -> None:
    """The parts of a few long rows are divided among blocks, in two launches; many rows have one block each."""
    with cp.thread_order(order):
        for op in OPS:
            assert check(op(axis=-1), random(shape)) == 2
        assert check(LogSoftmax(axis=-1), random(shape), inplace=True) == 2


def test_many_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "multiprocessors", 2)
    assert check(Softmax8(axis=-1), random((3, 17001))) == 1


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types_of_long_rows(dtype: np.dtype[Any]) -> None:
    for n in (40000, 33001):
        assert check(Softmax8(axis=-1), random((2, n), dtype), tol=4e-3 if dtype.itemsize == 2 else 1e-6) == 2


@pytest.mark.drawn(2)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("special", [(-np.inf,), (np.inf,), (np.nan,), (3e38, -3e38), (-np.inf, np.inf)], ids=str)
def test_extremes_in_some_parts(op: Any, special: tuple[float, ...]) -> None:
    """A part may have nothing but -inf, and other extremes may be in different parts."""
    row = random((1, 40000))(0)
    row[:, :6000] = special[0]
    row[:, -1] = special[-1]
    check(op(axis=-1), lambda draw: np.roll(row, 3000 * draw, 1))
    check(op(axis=-1), lambda draw: np.full((1, 40000), special[0], np.float32))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("n", [7, 1025])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_types(op: Any, dtype: np.dtype[Any], n: int) -> None:
    check(op(axis=-1), random((3, n), dtype), tol=4e-3 if dtype.itemsize == 2 and op is Softmax8 else None)


@pytest.mark.parametrize("dtype", FLOATS[1:3], ids=str)
def test_vectors_of_16_bit_types(dtype: np.dtype[Any]) -> None:
    for shape in ((3, 64), (2, 2048)):
        check(Softmax8(axis=-1), random(shape, dtype), tol=4e-3)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS)
def test_columns(op: Any, order: Any) -> None:
    with cp.thread_order(order):
        for shape, axis in (((3, 5, 7), 1), ((1025, 3), 0), ((2, 33, 65), -2), ((4, 1, 5), 1)):
            assert check(op(axis=axis), random(shape)) == 1


def test_a_warp_per_row() -> None:
    check(Softmax8(axis=-1), random((1056, 300)), tol=1e-6)


@pytest.mark.parametrize("op", OPS)
def test_in_place(op: Any) -> None:
    for shape, axis in (((3, 33), -1), ((2, 17001), -1), ((3, 33, 2), 1)):
        check(op(axis=axis), random(shape), inplace=True)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_extremes(op: Any, axis: int) -> None:
    inf, nan = np.inf, np.nan
    rows = np.array(
        [
            [-inf, 1, 2, 3],
            [1e30, -1e30, 0, 1],
            [-inf] * 4,
            [inf, 0, 1, inf],
            [nan, 1, inf, 2],
            [-100, 0, 88, 100],
            [3e38, -3e38, 3e38, 0],
        ],
        np.float32,
    )
    check(op(axis=axis), lambda draw: np.ascontiguousarray(np.roll(rows if axis else rows.T, draw, 1 - axis)))


def test_empty() -> None:
    assert check(Softmax8(axis=1), random((3, 0))) == 0
    assert check(Softmax8(axis=1), random((0, 3))) == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("value", [1, np.inf, np.nan])
def test_scalar(op: Any, value: float) -> None:
    check(op(axis=0), lambda draw: np.array(value, np.float32))


def test_kernels_compile_for_devices(to_compile: ToCompile) -> None:
    rows = [
        f"softmax_rows<{kind}, {log}, {v}, {n}>"
        for kind, log, v, n in (
            ("float", "false", 4, 1),
            ("float", "false", 4, 8),
            ("float", "false", 1, 16),
            ("float", "true", 1, 8),
            ("__half", "false", 8, 4),
            ("__half", "true", 8, 1),
            ("__nv_bfloat16", "false", 8, 4),
            ("__nv_bfloat16", "false", 1, 16),
            ("double", "false", 2, 8),
        )
    ]
    columns = [f"softmax_columns<{c_type(dtype)}, {log}>" for dtype in FLOATS for log in ("false", "true")]
    columns += [
        f"softmax_{stage}, {v}>" for stage in ("parts<float", "join<float, false", "join<float, true") for v in (1, 4)
    ]
    for architecture in nvrtc.NEWEST:
        cubin = nvrtc.compile_file("softmax.cu", architecture, to_compile("softmax.cu", [*rows, *columns]))
        for name, lowered in cubin.lowered.items():
            usage = cubin.usage[lowered]
            hot = "double" not in name
            assert not hot or usage.spill_stores == usage.spill_loads == 0, name
            assert usage.registers <= 96, name
