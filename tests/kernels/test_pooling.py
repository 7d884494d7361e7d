"""Pooling on the device: paths that the ops' own cases do not reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ovgpu.ops.base.strided import Axes
from ovgpu.ops.pooling.pooling import AdaptiveAvgPool, AdaptiveMax, AdaptiveMaxPool, AvgPool16, MaxPool, MaxPool8
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp

from .forms import FLOATS, INTEGERS, ORDERS, check, launches, random
from .recorded import kernel_name

WINDOWS: dict[str, Any] = {"kernel": (3, 2), "strides": (2, 1), "pads_begin": (1, 0), "pads_end": (1, 1)}
MAX, AVERAGE = MaxPool(**WINDOWS), AvgPool16(**WINDOWS, exclude_pad=False)
BOTH = MaxPool8(**WINDOWS, dilations=(1, 2), index_element_type=Type.i64)
SHAPE = (2, 3, 7, 6)


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


def kernels(op: Any, shape: tuple[int, ...], out: tuple[int, ...], *host: Any) -> list[str]:
    """Return the kernels that one run launches."""
    made = launches(op, cp.empty(shape, np.float32), [np.asarray(h) for h in host], [cp.empty(out, np.float32)])
    return [kernel_name(call) for call in made.calls]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS), ids=str)
def test_types(dtype: Any) -> None:
    for op in (MAX, AVERAGE):
        assert check(op, random(SHAPE, dtype)) == 1


@pytest.mark.parametrize("index", [Type.i32, Type.i64], ids=str)
def test_indices(index: Type) -> None:
    few = random(SHAPE, np.int8)
    for axis in range(4):
        op = MaxPool8(**WINDOWS, index_element_type=index, axis=axis)
        check(op, lambda draw: few(draw) % np.int8(3), types=(Type.i8, index))
    check(AdaptiveMaxPool(index_element_type=index), random(SHAPE), [[3, 4]], types=(Type.f32, index))


def test_specials() -> None:
    """A maximum propagates NaN, and is minus infinity only if the window has no other value."""

    def draw(number: int) -> Any:
        chosen = np.random.default_rng(number).integers(0, 4, SHAPE)
        return np.float32([np.nan, -np.inf, -np.inf, 1])[chosen]

    check(MAX, draw)
    check(BOTH, draw, types=(Type.f32, Type.i64))
    check(AVERAGE, draw)


@pytest.mark.parametrize("order", ORDERS)
def test_orders(order: Any) -> None:
    with cp.thread_order(order):
        check(BOTH, random(SHAPE), types=(Type.f32, Type.i64))
        check(AVERAGE, random(SHAPE))


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "channels_last": lambda a: a.transpose(0, 3, 1, 2),
    "reversed": lambda a: a[:, ::-1, ::2, ::-1],
    "part": lambda a: a[1:, 1:, 1:, 2:],
    "repeated": lambda a: a[:, :1, :, :1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    for op in (MAX, AVERAGE):
        check(op, random((3, 8, 9, 7)), view=LAYOUTS[layout])
        check(op, random((3, 8, 9, 7)), out=LAYOUTS["reversed"])
    check(AdaptiveAvgPool(), random((3, 8, 9, 7)), [[1, 1]], view=LAYOUTS[layout])
    check(AdaptiveMax(), random((3, 8, 9, 7)), [[2, 3]], view=LAYOUTS[layout])


def test_64_bit_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    check(BOTH, random(SHAPE), types=(Type.f32, Type.i64))
    check(AVERAGE, random(SHAPE))


def test_global_pooling_is_a_reduction() -> None:
    whole: dict[str, Any] = {"kernel": (7, 6), "strides": (1, 1)}
    for op in (AvgPool16(**whole), MaxPool(**whole)):
        (name,) = kernels(op, SHAPE, (2, 3, 1, 1))
        assert name.startswith("reduce_rows<M")
    (name,) = kernels(AdaptiveAvgPool(), SHAPE, (2, 3, 1, 1), [1, 1])
    assert name == "reduce_rows<Mean<float>>"
    for op in (AvgPool16(**whole, pads_end=(1, 0), exclude_pad=False), AvgPool16(**whole | {"kernel": (4, 6)})):
        (name,) = kernels(op, SHAPE, (2, 3, 2, 1))
        assert name == "average_pool<float, int>"


def test_empty_windows() -> None:
    for op in (MaxPool, AvgPool16, MaxPool8):
        types = (Type.f32, Type.i64) if op is MaxPool8 else ()
        check(
            op(kernel=(2,), strides=(4,), pads_begin=(1,), pads_end=(1,), rounding_type="ceil"),
            random((2, 3, 5)),
            types=types,
        )


def test_empty() -> None:
    assert check(MAX, random((0, 3, 7, 6))) == 0
    assert check(AdaptiveMaxPool(), random((2, 0, 7)), [[3]], types=(Type.f32, Type.i64)) == 0
