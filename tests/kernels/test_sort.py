"""CumSum and TopK on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import c_type
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.sort.topk import TopK3
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import FLOATS, INTEGERS, ORDERS, check, launches, preload, random
from .gate import ToCompile

DTYPES = (*FLOATS, *INTEGERS)


@pytest.fixture(scope="module", autouse=True)
def compiled(emulated: str) -> None:
    """Compile all kernels of these tests, together for each file."""
    names = [c_type(dtype) for dtype in DTYPES]
    preload("cumsum.cu", *(f"cumsum_{way}<{name}>" for way in ("rows", "columns") for name in names))
    preload(
        "topk.cu",
        *(f"topk<{name}, int>" for name in names),
        "topk<float, long long>",
        *(f"topk_parts<{name}>" for name in names),
        *(f"topk_join<{name}, int>" for name in names),
    )


# ---- CumSum

WAYS = [CumSum(exclusive=e, reverse=r) for e in (False, True) for r in (False, True)]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("op", WAYS, ids=lambda op: f"exclusive={op.exclusive}-reverse={op.reverse}")
@pytest.mark.parametrize("axis", [0, 1, 2, -2])
def test_cumsum_axes(op: CumSum, axis: int) -> None:
    assert check(op, random((3, 5, 7)), [axis]) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 31, 32, 33, 129, 1025, 5000])
def test_cumsum_sizes(n: int, order: Any) -> None:
    with cp.thread_order(order):
        check(CumSum(exclusive=True), random((3, n), np.int32), [1])
        check(CumSum(reverse=True), random((n, 3), np.int32), [0])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cumsum_types(dtype: np.dtype[Any]) -> None:
    check(CumSum(), random((3, 65), dtype, scale=1), [1], tol=4e-2 if dtype.name == "bfloat16" else 1e-3)
    check(CumSum(), random((65, 3), dtype, scale=1), [0], tol=4e-2 if dtype.name == "bfloat16" else 1e-3)


def test_cumsum_strided() -> None:
    for axis in (0, 1, 2):
        check(CumSum(reverse=True), random((4, 6, 5), np.int32), [axis], view=lambda a: a.transpose(2, 0, 1)[:, ::2])
        check(CumSum(), random((4, 6), np.int32), [axis % 2], out=lambda a: a[:, ::2])


def test_empty_cumsum() -> None:
    assert check(CumSum(), random((3, 0)), [1]) == 0


def test_cumsum_of_infinity() -> None:
    row = np.array([[1, np.inf, 2, -np.inf, 3, np.nan, 4]], np.float32)
    for op in WAYS:
        check(op, lambda draw: np.roll(row, draw, 1), [1])


# ---- TopK

CHOICES = [(mode, sort) for mode in ("max", "min") for sort in ("value", "index", "none")]


def top(mode: Any, sort: Any, axis: int = -1, index: Type = Type.i32) -> TopK3:
    return TopK3(axis=axis, mode=mode, sort=sort, index_element_type=index)


def types(dtype: Any, index: Type = Type.i32) -> list[Type]:
    return [Type.of(np.dtype(dtype)), index]


@pytest.mark.parametrize(("mode", "sort"), CHOICES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_topk_axes(mode: str, sort: str, axis: int) -> None:
    for k in (1, 3):
        assert check(top(mode, sort, axis), random((3, 5, 7)), [k], types=types(np.float32)) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("n", "k"),
    [
        (1, 1),
        (2, 2),
        (31, 5),
        (32, 32),
        (33, 1),
        (600, 256),
        (600, 257),
        (600, 599),
        (1025, 40),
        (4096, 4096),
        (4097, 7),
        (4097, 1),
    ],
)
def test_topk_sizes(n: int, k: int, order: Any) -> None:
    with cp.thread_order(order):
        for mode, sort in (("max", "value"), ("min", "index")):
            check(top(mode, sort), random((2, n)), [k], types=types(np.float32))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("shape", "k"), [((1, 16385), 1), ((1, 40001), 50), ((3, 17000), 7), ((2, 70001), 500)], ids=str
)
def test_topk_of_long_rows(shape: tuple[int, ...], k: int, order: Any) -> None:
    """The parts of a few long rows are divided among blocks, in two launches."""
    with cp.thread_order(order):
        for mode, sort in (("max", "value"), ("min", "index")):
            assert check(top(mode, sort), random(shape), [k], types=types(np.float32)) == 2


@pytest.mark.drawn(12)
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_topk_types_of_long_rows(mode: str, dtype: np.dtype[Any]) -> None:
    """The first of equal elements are selected, whose parts differ."""
    low = -3 if dtype.kind != "u" else 0
    check(
        top(mode, "value"),
        lambda draw: random((2, 17000), np.int8)(draw).clip(low, 3).astype(dtype),
        [600],
        types=types(dtype),
    )


def test_topk_of_long_strided_rows() -> None:
    assert (
        check(
            top("max", "value", 1, Type.i64),
            random((2, 17001, 3)),
            [3],
            types=types(np.float32, Type.i64),
            view=lambda a: a[..., ::2],
        )
        == 2
    )
    nan = np.full((1, 17000), np.nan, np.float32)
    nan[:, 9000:9500] = np.arange(500)
    for mode in ("min", "max"):
        check(top(mode, "index"), lambda draw: np.roll(nan, draw, 1), [600], types=types(np.float32))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_topk_types(mode: str, dtype: np.dtype[Any]) -> None:
    """The first of many equal elements are selected."""
    check(
        top(mode, "value"),
        lambda draw: random((3, 100), np.int8)(draw).clip(-3 if dtype.kind != "u" else 0, 3).astype(dtype),
        [20],
        types=types(dtype),
    )
    check(top(mode, "value"), random((2, 33), dtype), [5], types=types(dtype))


@pytest.mark.parametrize("direction", [1, -1])
def test_topk_of_sorted_rows(direction: int) -> None:
    """Sorted rows are the worst case for selection: each element beats all earlier ones, or none does."""
    row = np.arange(9000, dtype=np.float32)[None, ::direction]
    for k in (1, 1000, 3000):
        check(top("max", "value"), lambda draw: np.ascontiguousarray(row + draw), [k], types=types(np.float32))


def test_topk_specials() -> None:
    row = np.array([[1, np.nan, -0.0, 0.0, np.inf, -np.inf, np.nan, 0.0, -0.0, 2]], np.float32)
    for mode in ("max", "min"):
        for k in (1, 3, 10):
            check(top(mode, "value"), lambda draw: np.roll(row, draw, 1), [k], types=types(np.float32))


def test_topk_strided_and_wide_indices() -> None:
    check(
        top("max", "value", 1, Type.i64),
        random((6, 5, 8)),
        [3],
        types=types(np.float32, Type.i64),
        view=lambda a: a.transpose(2, 0, 1)[::2],
    )


def test_empty_topk() -> None:
    assert check(top("max", "value"), random((3, 4)), [0], types=types(np.float32)) == 0
    assert check(top("max", "value", 0), random((3, 0)), [2], types=types(np.float32)) == 0


def test_topk_that_does_not_fit_is_left_to_evaluate() -> None:
    for dtype, k in ((np.float32, 3073), (np.float64, 1537)):
        outputs = [cp.empty((1, k), dtype), cp.empty((1, k), np.int32)]
        with pytest.raises(AssertionError, match="declined"):
            launches(top("max", "value"), cp.zeros((1, 4097), dtype), [np.array(k)], outputs)


def test_kernels_compile_for_devices(to_compile: ToCompile) -> None:
    names = [c_type(dtype) for dtype in (*FLOATS, *map(np.dtype, (np.int32, np.int64, np.uint8)))]
    files = {
        "cumsum.cu": [f"cumsum_{way}<{name}>" for way in ("rows", "columns") for name in names],
        "topk.cu": [*(f"topk<{name}, int>" for name in names), "topk<float, long long>"],
    }
    for architecture in nvrtc.NEWEST:
        for file, expressions in files.items():
            cubin = nvrtc.compile_file(file, architecture, to_compile(file, expressions))
            for name, lowered in cubin.lowered.items():
                usage = cubin.usage[lowered]
                assert usage.spill_stores == usage.spill_loads == 0, name
                assert usage.registers <= 64, name
