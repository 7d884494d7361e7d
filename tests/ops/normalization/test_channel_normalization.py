"""BatchNormInference, GroupNormalization, LRN, GRN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep
from tests.harness.cases import Array

KINDS = ("f16", "bf16", "f64")


def batch(
    version: int,
    shape: Sequence[int],
    id: str | None = None,
    *,
    kind: str = "f32",
    constant: bool = False,
    channels: int | None = None,
    epsilon: float = 1e-3,
    **given: Any,
) -> Case:
    shape_of_numbers = (shape[1] if channels is None else channels,)
    numbers = [In(shape_of_numbers, kind, const=constant, low=low) for low in (-4, -4, -4, 0)]
    inputs = [In(shape, kind), *numbers]
    if version == 1:
        inputs = [*inputs[1:3], inputs[0], *inputs[3:]]
    return Case("BatchNormInference", f"opset{version}", inputs, {"epsilon": epsilon}, id=id, **given)


BATCH = [
    case
    for version in (1, 5)
    for case in (
        batch(version, (2, 3), rankless=True),
        batch(version, (2, 3, 7)),
        batch(version, (2, 5, 7, 6), rankless=True),
        batch(version, (2, 5, 7, 6), constant=True),
        batch(version, (1, 5, 3, 7, 6), epsilon=0.5),
        batch(version, (3, 5, 7), constant=True, rankless=True),
        batch(version, (2, 3, 130, 129)),
        *(batch(version, (2, 5, 7, 6), kind=kind) for kind in KINDS),
        batch(version, (2, 5, 7, 6), kind="f16", constant=True),
        batch(version, (0, 5, 7), "no_batch", expect=lambda *inputs: np.zeros((0, 5, 7), np.float32)),
        batch(version, (2, 5), "zero", epsilon=0),
        batch(version, (2, 5, 7), "channels", channels=4, error="5 channels have 4 numbers"),
        batch(version, (2, 5, 7), "i32", kind="i32", error="element type i32 is not real"),
        batch(version, (2, 5, 7), "epsilon", epsilon=-1, error="epsilon -1.0 is negative"),
        batch(version, (2, 5, 7), "no_epsilon", epsilon=None, error="'epsilon'"),
    )
]
BATCH += [
    Case(
        "BatchNormInference",
        "opset5",
        [In((5,)), *[In((5,))] * 4],
        {"epsilon": 0.1},
        id="rank",
        error="the data must have rank 2 or more, not 1",
    ),
    Case(
        "BatchNormInference",
        "opset5",
        [In((2, 5)), In((5, 1)), *[In((5,))] * 3],
        {"epsilon": 0.1},
        id="of_rank_2",
        error="one number per channel, not a tensor of rank 2",
    ),
    Case(
        "BatchNormInference",
        "opset5",
        [In((2, 5)), In((5,), "f16"), *[In((5,))] * 3],
        {"epsilon": 0.1},
        id="types",
        error="element types differ",
    ),
]
test_batch = check(BATCH)


def group(
    shape: Sequence[int],
    groups: int,
    id: str | None = None,
    *,
    kind: str = "f32",
    channels: int | None = None,
    low: float | None = None,
    constant: bool = False,
    epsilon: float = 1e-5,
    **given: Any,
) -> Case:
    numbers = [In((shape[1] if channels is None else channels,), kind, const=constant)] * 2
    return Case(
        "GroupNormalization",
        "opset12",
        [In(shape, kind, low=low), *numbers],
        {"num_groups": groups, "epsilon": epsilon},
        id=id,
        **given,
    )


def groups_of(groups: int) -> Any:
    """Return GroupNormalization with the default epsilon, for a type that the plugin rejects."""

    def expect(x: Array, *numbers: Array) -> Array:
        rows = x.astype(np.float64).reshape(len(x), groups, -1)
        rows = (rows - rows.mean(2, keepdims=True)) / np.sqrt(rows.var(2, keepdims=True) + 1e-5)
        scale, bias = (v.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2)) for v in numbers)
        return (rows.reshape(x.shape) * scale + bias).astype(x.dtype)

    return expect


GROUP = [
    group((2, 6, 7, 5), 3, rankless=True),
    group((2, 6, 7, 5), 1),
    group((2, 6, 7, 5), 6),
    group((3, 6, 11), 2, rankless=True),
    group((3, 10), 5),
    group((1, 6, 4, 8), 2, constant=True),
    group((2, 4, 3, 5, 7), 2),
    group((1, 12, 30, 41), 4, epsilon=0.1),
    group((2, 6, 70, 52), 1),
    group((1, 2, 130, 257), 2, low=3.5, tol=Sum(130 * 257)),  # f32 means of many values far from 0
    *(group((2, 6, 7, 5), 3, kind=kind) for kind in ("f16", "f64")),
    group((2, 6, 7, 5), 3, kind="bf16", expect=groups_of(3)),
    group((1, 6, 16, 8), 2, kind="f16"),
    group((0, 6, 5), 3, "no_batch", expect=lambda *inputs: np.zeros((0, 6, 5), np.float32)),
    group((2, 6, 5), 4, "uneven", error="the channels do not come out even in 4 groups"),
    group((2, 6, 5), 0, "none", error="num_groups is 0"),
    group((2, 6, 5), 3, "channels", channels=3, error="6 channels have 3 numbers"),
    group((2, 6, 5), 3, "epsilon", epsilon=-0.01),
    group((2, 6, 5), 3, "i32", kind="i32", error="element type i32 is not real"),
]
test_group = check(GROUP)


def lrn(
    shape: Sequence[int],
    axes: Any,
    size: int = 3,
    id: str | None = None,
    *,
    kind: str = "f32",
    alpha: float = 0.5,
    beta: float = 0.75,
    bias: float = 2,
    **given: Any,
) -> Case:
    inputs = [In(shape, kind), axes if isinstance(axes, In) else const(np.array(axes, np.int64))]
    return Case("LRN", "opset1", inputs, {"alpha": alpha, "beta": beta, "bias": bias, "size": size}, id=id, **given)


def local(size: int, bias: float = 2) -> Any:
    """Return LRN by the specification's formula, for cases that the plugin rejects or misinterprets."""

    def expect(x: Array, axes: Array) -> Array:
        total = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            region = tuple(
                slice(max(i - size // 2, 0), i + size // 2 + 1) if axis in axes % x.ndim else i
                for axis, i in enumerate(at)
            )
            total[at] = (x[region].astype(np.float64) ** 2).sum()
        return (x / (bias + 0.5 / size ** len(axes) * total) ** 0.75).astype(x.dtype)

    return expect


LRN = [
    lrn((2, 7, 5, 3), [1], rankless=True),
    lrn((2, 7, 5, 3), [1], 5),
    lrn((2, 7, 5, 3), [1], 1),
    lrn((2, 7, 5, 3), [1], 15),
    lrn((2, 7, 5, 3), [2, 3]),
    lrn((2, 7, 5, 3), [3, 2], 5, rankless=True),
    lrn((2, 7), [1]),
    lrn((2, 7, 3), [1], alpha=1e-4, bias=1),
    lrn((2, 3, 7), [2], 5, beta=0.5),
    lrn((2, 7, 5, 3, 2), [1]),
    lrn((2, 7, 5, 3), const([1], "i32")),
    *(lrn((2, 7, 5, 3), [1], kind=kind) for kind in ("f16", "bf16")),
    lrn((2, 7, 5, 3), [1], kind="f64", expect=local(3)),
    lrn((2, 7, 5, 3), [1], bias=1.5, expect=local(3, 1.5)),
    lrn((2, 7, 5), [1], 4, "even", expect=local(4)),
    lrn((2, 7, 5), [-1, 0], 3, "other_axes", expect=local(3)),
    lrn((2, 4, 5, 3), [1, 2, 3], 3, "three_axes", expect=local(3)),
    lrn((2, 7, 5), [], 3, "no_axes", expect=local(3)),
    lrn((2, 7, 5), given([1]), 3, "axes_given", expect=local(3)),
    lrn((0, 7, 5), [1], 3, "no_batch", expect=lambda x, _: x),
    lrn((2, 7, 5), [3], error="axis 3 is out of range for rank 3"),
    lrn((2, 7, 5), [1], 0, error="size is 0"),
    lrn((2, 7, 5), [1], kind="i32", error="element type i32 is not real"),
    lrn((2, 7, 5), const([1.0], "f32"), id="float_axes", error="axes must be integers"),
]
test_lrn = check(LRN)


def grn(shape: Sequence[int], bias: float = 0.25, id: str | None = None, *, kind: str = "f32", **given: Any) -> Case:
    return Case("GRN", "opset1", [In(shape, kind)], {"bias": bias}, id=id, **given)


GRN = [
    grn((2, 7)),
    grn((2, 3, 7)),
    grn((2, 5, 7, 3), rankless=True),
    grn((2, 5, 7, 3), 1e-4),
    grn((1, 33, 5, 6)),
    grn((3, 1, 5)),
    grn((2, 5, 70, 30)),
    grn((3, 130)),
    *(grn((2, 5, 7, 3), kind=kind) for kind in KINDS),
    grn((0, 5, 7), id="no_batch", expect=lambda x: x),
    grn((5,), id="rank_1", error="rank 2 or 3 or 4, not 1"),
    grn((2, 3, 4, 5, 6), id="rank_5", error="rank 2 or 3 or 4, not 5"),
    grn((2, 5), kind="i32", error="element type i32 is not real"),
]
test_grn = check(GRN)


@st.composite
def norms(draw: st.DrawFn) -> Case:
    """Draw a case of any of the ops, over axes that the plugin supports."""
    kind = draw(st.sampled_from(("f32", "f32", "f16", "bf16")))
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 12)), *draw(st.lists(st.integers(1, 9), max_size=3))]
    op = draw(st.sampled_from(("batch", "batch", "group", "lrn", "grn")))
    eps = draw(st.sampled_from((1e-5, 1e-3, 0.5)))
    if op == "batch":  # the plugin folds 16-bit constants to a 16-bit scale
        constant = kind == "f32" and draw(st.booleans())
        return batch(draw(st.sampled_from((1, 5))), shape, kind=kind, constant=constant, epsilon=eps)
    if op == "group":
        groups = draw(st.sampled_from([g for g in range(1, shape[1] + 1) if shape[1] % g == 0]))
        return group(shape, groups, kind=kind, epsilon=eps)
    if op == "grn":
        return grn(shape[:4], eps, kind=kind)
    axes = draw(st.sampled_from([[1], list(range(2, len(shape)))] if len(shape) in (3, 4) else [[1]]))
    beta = draw(st.sampled_from((0.5, 0.75, 1)))
    return lrn(shape, axes, draw(st.sampled_from((1, 3, 5))), kind=kind, alpha=eps, beta=beta)


test_random = sweep(norms())
