"""Convolutions: paddings, strides, dilations, groups, one to three axes, dynamic extents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from ovgpu.ops.base import tasks
from ovgpu.ops.base.op import Op
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convolution import _columns
from ovgpu.ops.convolution.convolution import (
    Convolution,
    ConvolutionBackpropData,
    GroupConvolution,
    GroupConvolutionBackpropData,
)
from tests.harness import Case, In, Sum, check, const
from tests.harness.cases import Array
from tests.harness.sweep import sweep


def conv(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    kind: str = "f32",
    *,
    op: str = "Convolution",
    leading: int = 2,
    constant: bool = False,
    rankless: bool = False,
    id: str | None = None,
    error: str | None = None,
    **attrs: Any,
) -> Case:
    axes = len(kernel) - leading
    given = {"strides": (1,) * axes, "dilations": (1,) * axes, "pads_begin": (0,) * axes, "pads_end": (0,) * axes}
    texts = {name: v if isinstance(v, str) else ",".join(map(str, v)) for name, v in (given | attrs).items()}
    inputs = [In(x, kind), In(kernel, kind, const=constant)]
    return Case(
        op, "opset1", inputs, texts, tol=Sum(prod(kernel[leading - 1 :])), rankless=rankless, id=id, error=error
    )


def grouped(x: tuple[int, ...], kernel: tuple[int, ...], kind: str = "f32", **given: Any) -> Case:
    return conv(x, kernel, kind, op="GroupConvolution", leading=3, **given)


CASES = [
    conv((2, 3, 7), (5, 3, 3), strides=(2,), pads_begin=(1,), pads_end=(2,)),
    conv((2, 3, 7, 9), (5, 3, 3, 2), rankless=True),
    conv((1, 6, 9, 11), (7, 6, 3, 3), pads_begin=(1, 1), pads_end=(1, 1), constant=True),
    conv((2, 6, 9, 11), (7, 6, 3, 5), pads_begin=(0, 2), pads_end=(1, 3), strides=(2, 3), dilations=(2, 1)),
    conv((2, 3, 5, 6, 7), (5, 3, 2, 3, 1), pads_begin=(1, 0, 2), pads_end=(0, 1, 2), strides=(2, 1, 3)),
    conv((2, 5, 7, 9), (6, 5, 1, 1), constant=True),
    conv((1, 67, 12, 13), (70, 67, 3, 3), auto_pad="same_upper", constant=True),
    conv((2, 67, 5, 7), (9, 67, 3, 3), "f16", constant=True),
    conv((3, 5, 7, 9), (6, 5, 1, 1), strides=(2, 3)),
    *(
        conv(
            (2, 3, 10, 13), (5, 3, 4, 3), auto_pad=auto, strides=strides, dilations=dilations, rankless=dilations[0] > 1
        )
        for auto in ("same_upper", "same_lower", "valid")
        for strides, dilations in (((1, 1), (1, 1)), ((2, 3), (1, 2)), ((3, 1), (2, 3)))
    ),
    *(
        conv((2, 3, 11), (4, 3, 2), auto_pad=auto, strides=(2,), pads_begin=(3,))
        for auto in ("same_lower", "same_upper")
    ),
    *(
        conv((2, 3, 7, 9), (5, 3, 3, 3), kind, pads_begin=(1, 0), pads_end=(1, 2))
        for kind in ("f16", "bf16", "f64", "u8", "i32", "i64")
    ),
    # even weights: the plugin halves them where the processor has no VNNI instructions
    replace(
        conv((2, 3, 7, 9), (5, 3, 3, 3), "i8", pads_begin=(1, 0), pads_end=(1, 2), id="i8"),
        inputs=[In((2, 3, 7, 9), "i8"), In((5, 3, 3, 3), "i8", lambda rng: 2 * rng.integers(-4, 5, (5, 3, 3, 3)))],
    ),
    Case(
        "Convolution",
        "opset1",
        [
            In(shape, "f8e4m3", lambda rng, shape=shape: rng.integers(-2, 3, shape))
            for shape in ((2, 3, 7, 9), (5, 3, 3, 3))
        ],
        id="f8",
    ),
    conv((0, 3, 7, 9), (5, 3, 3, 2), id="zero_batch"),
    replace(
        conv((2, 3, 0, 5), (4, 3, 1, 2), id="no_pixels", auto_pad="same_upper", strides=(2, 2)),
        expect=np.zeros((2, 4, 0, 3), np.float32),
    ),
    replace(conv((2, 0, 5, 6), (4, 0, 3, 2), id="no_channels"), expect=np.zeros((2, 4, 3, 5), np.float32)),
    conv((2, 3, 7, 9), (5, 3, 3, 3), id="strides_0", strides=(0, 1), error="attribute 'strides': 0 is less than 1"),
    conv((2, 3, 7, 9), (5, 3, 3, 3), id="dilations", dilations=(1, -1), error="attribute 'dilations': -1 is less"),
    conv((2, 3, 7, 9), (5, 3, 3, 3), id="pads", pads_begin=(-1, 0), error="attribute 'pads_begin': -1 is less"),
    conv((2, 3, 7, 9), (5, 3, 3, 3), id="length", strides=(1, 1, 1), error="'strides' has 3 elements for 2 spatial"),
    conv((2, 3, 7, 9), (5, 4, 3, 3), id="channels", error="the data has 3 channels, the kernel takes 4"),
    conv((2, 3, 7, 9), (5, 3, 3), id="ranks", error="the data has 2 spatial axes, the kernel 1"),
    conv((2, 3), (5, 3, 3), id="rank_2", error="the data must have rank 3 or 4 or 5, not 2"),
    conv((2, 3, 7, 9), (5, 3, 9, 3), id="reach", pads_begin=(1, 0), error="reaches 9 far does not fit into 8 along"),
    conv((2, 3, 7, 9), (5, 3, 3, 3), "boolean", id="boolean", error="element type boolean is not a number"),
]
test_cases = check(CASES)

GROUPED = [
    grouped((2, 6, 7), (3, 4, 2, 3), strides=(2,), pads_begin=(1,)),
    grouped((2, 6, 9, 11), (6, 1, 1, 3, 3), pads_begin=(1, 1), pads_end=(1, 1), constant=True),
    grouped((2, 6, 9, 11), (6, 1, 1, 3, 3), pads_begin=(0, 1), pads_end=(1, 0), strides=(2, 2), constant=True),
    grouped((2, 6, 9, 11), (6, 2, 1, 3, 5), pads_begin=(1, 2), pads_end=(1, 2), dilations=(2, 1), rankless=True),
    grouped((2, 6, 9, 11), (3, 5, 2, 3, 3), auto_pad="same_upper", strides=(2, 1), rankless=True),
    grouped((2, 6, 9, 11), (2, 5, 3, 1, 1), constant=True),
    grouped((2, 6, 9, 11), (1, 5, 6, 3, 3)),
    grouped((2, 6, 5, 6, 7), (2, 4, 3, 2, 3, 2), strides=(1, 2, 1), auto_pad="same_lower"),
    grouped((2, 6, 5, 6, 7), (6, 1, 1, 2, 3, 2), pads_begin=(1, 0, 1)),
    *(grouped((2, 6, 9, 11), (6, 1, 1, 3, 3), kind, auto_pad="valid") for kind in ("f16", "bf16", "i32")),
    grouped((2, 6, 9, 11), (4, 1, 1, 3, 3), id="groups", error="the data has 6 channels, the kernel takes 4"),
    grouped((2, 6, 9, 11), (6, 1, 3, 3), id="kernel_rank", error="the data has 2 spatial axes, the kernel 1"),
]
test_grouped = check(GROUPED)


def transposed(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    kind: str = "f32",
    *,
    shape: tuple[int, ...] | None = None,
    **given: Any,
) -> Case:
    case = conv(x, kernel, kind, op="ConvolutionBackpropData", **given)
    inputs = [*case.inputs] if shape is None else [*case.inputs, const(shape)]
    return replace(case, inputs=inputs, tol=Sum(prod(kernel) // kernel[1]))


def transposed_groups(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    kind: str = "f32",
    *,
    shape: tuple[int, ...] | None = None,
    **given: Any,
) -> Case:
    case = conv(x, kernel, kind, op="GroupConvolutionBackpropData", leading=3, **given)
    inputs = [*case.inputs] if shape is None else [*case.inputs, const(shape)]
    return replace(case, inputs=inputs, tol=Sum(prod(kernel) // kernel[0] // kernel[2]))


TRANSPOSED = [
    transposed((2, 3, 7), (3, 5, 3), strides=(2,), pads_begin=(1,), output_padding=(1,)),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), rankless=True),
    transposed((2, 3, 5, 7), (3, 4, 2, 2), strides=(2, 2), constant=True),
    transposed((2, 6, 5, 7), (6, 4, 4, 4), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1), constant=True),
    transposed((2, 3, 5, 7), (3, 4, 3, 2), strides=(3, 2), dilations=(2, 1), pads_begin=(1, 0), pads_end=(0, 1)),
    transposed((2, 3, 5, 7), (3, 4, 1, 1), strides=(2, 1), output_padding=(1, 0)),
    transposed((2, 3, 5, 7), (3, 4, 1, 1), constant=True),
    transposed((2, 3, 5, 6, 7), (3, 4, 2, 3, 1), strides=(2, 1, 3), pads_end=(1, 1, 0)),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), auto_pad="same_upper", strides=(2, 2), rankless=True),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), auto_pad="valid", strides=(2, 2), pads_begin=(1, 1)),
    *(
        transposed((2, 3, 5, 7), (3, 4, 3, 3), auto_pad=auto, strides=(2, 3), shape=shape, rankless=auto == "valid")
        for auto in ("explicit", "same_upper", "same_lower", "valid")
        for shape in ((10, 18), (13, 21))
    ),
    transposed(
        (2, 3, 5, 7), (3, 4, 3, 3), auto_pad="same_upper", strides=(2, 3), shape=(10, 19), output_padding=(1, 1)
    ),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), strides=(2, 3), shape=(9, 19), pads_begin=(1, 2), pads_end=(2, 2)),
    *(transposed((2, 3, 5, 7), (3, 4, 3, 3), kind, strides=(2, 1)) for kind in ("f16", "bf16", "f64", "i32", "i8")),
    transposed((0, 3, 5, 7), (3, 4, 3, 3), id="zero_batch"),
    replace(transposed((2, 3, 5, 7), (3, 4, 0, 3), "f16", id="no_taps"), expect=np.zeros((2, 4, 4, 9), np.float16)),
    replace(transposed((2, 0, 3, 5), (0, 4, 1, 3), id="no_channels"), expect=np.zeros((2, 4, 3, 7), np.float32)),
    transposed((2, 3, 5, 7), (4, 4, 3, 3), id="channels", error="the data has 3 channels, the kernel takes 4"),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), id="shape", shape=(9, 9, 9), error="has 3 elements for 2 spatial axes"),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), id="padding", output_padding=(1,), error="'output_padding' has 1 elements"),
    transposed((2, 3, 5, 7), (3, 4, 3, 3), id="nothing", pads_begin=(8, 0), error="padding leaves -1 elements"),
]
test_transposed = check(TRANSPOSED)

TRANSPOSED_GROUPS = [
    transposed_groups((2, 6, 7), (3, 2, 4, 3), strides=(2,), pads_begin=(1,)),
    transposed_groups((2, 6, 5, 7), (6, 1, 1, 4, 4), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1), constant=True),
    transposed_groups(
        (2, 6, 5, 7), (2, 3, 4, 3, 3), auto_pad="same_lower", strides=(2, 2), shape=(9, 14), rankless=True
    ),
    transposed_groups((2, 6, 5, 7), (2, 3, 4, 3, 2), strides=(1, 3), dilations=(2, 3), output_padding=(0, 2)),
    transposed_groups((2, 6, 5, 7), (6, 1, 2, 1, 1), strides=(2, 2)),
    transposed_groups((2, 6, 5, 6, 7), (2, 3, 1, 2, 3, 1), strides=(2, 1, 3)),
    transposed_groups((2, 6, 5, 7), (2, 3, 4, 3, 3), auto_pad="same_upper", strides=(3, 2), shape=(14, 13)),
    transposed_groups((2, 24, 5, 7), (2, 12, 10, 2, 3), strides=(2, 1), pads_end=(0, 2), constant=True),
    transposed_groups((2, 6, 11), (6, 1, 1, 4), auto_pad="valid", strides=(3,), rankless=True),
    transposed_groups((2, 6, 4, 3, 5), (3, 2, 2, 2, 2, 2), strides=(2, 2, 2), output_padding=(1, 0, 1)),
    *(transposed_groups((2, 6, 5, 7), (3, 2, 4, 3, 3), kind, strides=(2, 1)) for kind in ("f16", "bf16", "i32")),
    transposed_groups((2, 6, 5, 7), (4, 2, 4, 3, 3), id="groups", error="the data has 6 channels, the kernel takes 8"),
]
test_transposed_groups = check(TRANSPOSED_GROUPS)


def run_numpy(op: Op, x: Array, kernel: Array, out: Array, sizes: Sequence[int]) -> None:
    """Write ``out`` by the NumPy form, with workspaces of these numbers of elements for every worker."""
    calls: list[Callable[[], Any]] = []
    done = op.numpy(
        lambda *args: calls.append(partial(*args)),
        [x, kernel],
        [out],  # type: ignore[misc]
        [np.full(tasks.WORKERS * elements, np.nan, x.dtype) for elements in sizes],
    )
    assert done is not NotImplemented
    for call in calls:
        call()


BLOCKED: list[tuple[Op, tuple[int, ...], tuple[int, ...], tuple[int, int]]] = [
    (Convolution(pads_begin=(1, 0)), (5, 3, 6, 7), (4, 3, 3, 2), (1500, 500)),  # two images of 648 columns at a time
    (Convolution(pads_begin=(1, 0)), (5, 3, 6, 7), (4, 3, 3, 2), (10**6, 150)),  # one image in its frame
    (Convolution(strides=(1, 2)), (2, 3, 6, 7), (4, 3, 3, 2), (120, 0)),  # two rows
    (Convolution(auto_pad="same_upper"), (2, 3, 6, 7), (4, 3, 3, 2), (60, 192)),  # three pixels
    (Convolution(auto_pad="same_lower"), (2, 3, 4, 6, 7), (4, 3, 3, 2, 2), (300, 1008)),  # a row of a plane
    (GroupConvolution(pads_end=(0, 1)), (2, 6, 6, 7), (3, 2, 2, 3, 3), (500, 1000)),
    (GroupConvolution(pads_begin=(1, 2)), (3, 7, 5, 6), (7, 1, 1, 3, 2), (700, 1000)),  # runs of three channels
    (GroupConvolution(dilations=(2, 1)), (3, 7, 5, 6), (7, 1, 1, 2, 3), (400, 0)),  # unpadded data, read in place
    (GroupConvolution(pads_begin=(1, 2)), (3, 7, 5, 6), (7, 1, 1, 3, 2), (200, 1000)),  # not even one channel fits
    (GroupConvolution(strides=(2, 3), pads_end=(1, 1)), (1, 7, 5, 6), (7, 1, 1, 3, 2), (400, 300)),  # no runs
    (Convolution(), (1, 3, 6, 7), (4, 3, 1, 1), (0, 0)),  # products: the outputs are divided among workers
    (Convolution(), (1, 3, 6, 7), (2, 3, 1, 1), (0, 0)),  # or the pixels, if there are more workers than outputs
    (GroupConvolution(), (1, 6, 5, 7), (2, 3, 3, 1, 1), (0, 0)),  # or if there are groups
    (Convolution(pads_begin=(1, 1)), (1, 3, 3, 4), (4, 3, 3, 3), (1500, 500)),  # outputs of few pixels
    (Convolution(pads_begin=(4, 5), pads_end=(5, 4)), (1, 2, 2, 3), (4, 2, 3, 3), (200, 100)),  # parts without data
    (ConvolutionBackpropData(), (1, 3, 4, 5), (3, 4, 1, 1), (60, 0)),
    (ConvolutionBackpropData(strides=(2, 1)), (2, 3, 4, 5), (3, 4, 3, 2), (360, 0)),  # three outputs
    (GroupConvolutionBackpropData(strides=(2, 2)), (2, 6, 4, 5), (6, 1, 1, 2, 2), (360, 0)),  # four groups
]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize(("op", "x", "kernel", "sizes"), BLOCKED)
def test_blocks(
    op: Op,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    sizes: tuple[int, int],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "WORKERS", workers)
    for name, value in {"BLOCK_ELEMENTS": sizes[0], "PARALLEL_PRODUCTS": 0, "MIN_OUTPUTS": 1, "FEW_PIXELS": 10}.items():
        monkeypatch.setattr(_columns, name, value)
    rng = np.random.default_rng(3)
    data, weights = (rng.integers(-4, 5, shape).astype(np.float64) for shape in (x, kernel))
    (wanted,) = op.evaluate(NUMPY, data, weights)
    out = np.full(wanted.shape, np.nan)
    run_numpy(op, data, weights, out, sizes)
    np.testing.assert_array_equal(out, wanted)
    # the output is part of a Concat, and the input part of a larger tensor
    whole = np.full((len(out), 2 * out.shape[1] + 1, *out.shape[2:]), np.nan)
    wide = np.repeat(data, 2, axis=1)
    run_numpy(op, wide[:, ::2], weights, whole[:, 1 : 1 + out.shape[1]], sizes)
    np.testing.assert_array_equal(whole[:, 1 : 1 + out.shape[1]], wanted)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    """Draw a case of one of the four convolutions, with one to three spatial axes."""
    axes, groups = draw(st.sampled_from((1, 2, 2, 2, 3))), draw(st.sampled_from((0, 0, 1, 2, 3)))
    backwards = draw(st.booleans())
    channels = draw(st.integers(1, 5))
    outputs = draw(st.integers(1 if groups > 1 else 2, 5))  # with a single output, the plugin mixes up images and rows

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    taps, size = each(1, 4), each(1, 7 if axes < 3 else 5)
    auto = draw(st.sampled_from(("explicit", "explicit", "same_upper", "same_lower", "valid")))
    attrs: dict[str, Any] = {
        "strides": each(1, 3),
        "dilations": each(1, 2),
        "pads_begin": each(0, 2),
        "pads_end": each(0, 2),
        "auto_pad": auto,
    }
    kernel = (*((groups,) if groups else ()), *((channels, outputs) if backwards else (outputs, channels)), *taps)
    kind = draw(st.sampled_from(("f32", "f32", "f32", "f16", "bf16", "i32")))
    padded = attrs["pads_begin"][-1] + attrs["pads_end"][-1] if auto == "explicit" else 0
    spanned = 0 if auto.startswith("same") else (taps[-1] - 1) * attrs["dilations"][-1]
    if size[-1] + padded - spanned <= attrs["strides"][-1]:  # the plugin mixes up rows
        attrs["strides"] = (*attrs["strides"][:-1], 1)
    inputs = [
        In((draw(st.integers(1, 3)), channels * max(groups, 1), *size), kind),
        In(kernel, kind, const=draw(st.booleans())),
    ]
    if backwards:
        attrs["output_padding"] = tuple(draw(st.integers(0, s - 1)) for s in attrs["strides"])
        if draw(st.booleans()):
            whole = [
                (n - 1) * s + (t - 1) * d + 1 for n, s, t, d in zip(size, attrs["strides"], taps, attrs["dilations"])
            ]
            inputs.append(const([max(n + draw(st.integers(-2, 2)), 1) for n in whole]))
            if prod(taps) == 1:  # the plugin leaves out the padding where the output shape is the input's
                attrs["pads_begin"] = attrs["pads_end"] = (0,) * axes
    name = ("Group" if groups else "") + "Convolution" + ("BackpropData" if backwards else "")
    return Case(
        name,
        "opset1",
        inputs,
        {key: v if isinstance(v, str) else ",".join(map(str, v)) for key, v in attrs.items()},
        tol=Sum(channels * prod(taps)),
    )


test_random = sweep(convolutions())
