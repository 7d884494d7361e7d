"""BinaryConvolution against the plugin, and against sums of products where the plugin has no kernel."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array

AROUND = {"pads_begin": "1,1", "pads_end": "1,1"}
ATTRS = {
    "strides": "1,1",
    "dilations": "1,1",
    "pads_begin": "0,0",
    "pads_end": "0,0",
    "mode": "xnor-popcount",
    "pad_value": "0",
}


def judged(
    x: tuple[int, ...], kernel: tuple[int, ...], *, rankless: bool = False, kind: str = "f32", **attrs: str
) -> Case:
    return Case(
        "BinaryConvolution",
        "opset1",
        [
            In(x, kind, lambda rng: rng.integers(0, 2, x)),
            In(kernel, "u1", lambda rng: rng.integers(0, 2, kernel), const=True),
        ],
        ATTRS | attrs,
        rankless=rankless,
    )


def bits(*shapes: tuple[int, ...], kind: str = "f32") -> list[In]:
    x, kernel = shapes
    return [In(x, kind, lambda rng: rng.integers(0, 2, x)), In(kernel, "u1", lambda rng: rng.integers(0, 2, kernel))]


def convolved(x: Array, kernel: Array, pad: float, strides: tuple[int, int] = (1, 1), dilation: int = 1) -> Array:
    """Return the convolution by sums of products, with one pixel of padding on all sides."""
    signs = np.pad(np.where(x == 1, 1, -1), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=pad)[:, None]
    height, width = ((k - 1) * dilation + 1 for k in kernel.shape[2:])
    rows, columns = (range(0, n - k + 1, s) for n, k, s in zip(signs.shape[3:], (height, width), strides))
    weights = np.where(kernel == 1, 1, -1)
    sums = [
        [(signs[..., i : i + height : dilation, j : j + width : dilation] * weights).sum((2, 3, 4)) for j in columns]
        for i in rows
    ]
    return np.array(sums).transpose(2, 3, 0, 1).astype(x.dtype)


def low_first(kernel: Array) -> Array:
    """Return the kernel that the same bytes hold if the first bit of each is the least significant one."""
    bits = np.unpackbits(np.packbits(kernel.astype(np.uint8)), bitorder="little")
    return bits[: kernel.size].reshape(kernel.shape)


ODD = (1, 3, 3, 3)  # a kernel whose bits do not fill its bytes

CASES = [
    judged((2, 8, 5, 7), (3, 8, 3, 2), rankless=True),
    judged((2, 32, 5, 7), (16, 32, 3, 3), strides="2,1", pad_value="1", pads_begin="1,0", pads_end="0,1"),
    judged((2, 8, 6, 7), (5, 8, 3, 3), dilations="2,1", pad_value="-1", pads_begin="1,1", pads_end="1,1"),
    judged((2, 16, 6, 7), (5, 16, 2, 3), auto_pad="same_upper", strides="1,2", pad_value="1"),
    judged((2, 16, 6, 7), (5, 16, 2, 3), auto_pad="same_lower", strides="1,2", pad_value="-1"),
    judged((2, 8, 6, 7), (5, 8, 1, 1), auto_pad="valid", strides="2,3"),
    judged((1, 24, 6, 7), (8, 24, 2, 2), kind="f16"),
    Case("BinaryConvolution", "opset1", [In((2, 16, 6, 7)), In((5, 16, 2, 3), "u1", const=True)], ATTRS, id="real"),
    judged((1, 8, 4, 4), (2, 8, 3, 3), pads_begin="1,1", pads_end="1,1"),
    Case(
        "BinaryConvolution",
        "opset1",
        [
            In((2, 3, 5, 7), "f32", lambda rng: rng.integers(0, 2, (2, 3, 5, 7))),
            In(ODD, "u1", lambda rng: rng.integers(0, 2, ODD), const=True),
        ],
        ATTRS | AROUND,
        expect=lambda x, kernel: convolved(x, low_first(kernel), 0),
        id="channels_in_parts_of_bytes",
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        bits((2, 3, 5, 7), (4, 3, 3, 2)),
        ATTRS | AROUND,
        expect=lambda x, kernel: convolved(x, kernel, 0),
        id="padded_by_0",
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        bits((2, 3, 5, 7), (4, 3, 3, 2)),
        ATTRS | AROUND | {"pad_value": "1.0", "strides": "2,3"},
        expect=lambda x, kernel: convolved(x, kernel, 1, (2, 3)),
        id="padded_by_1",
        rankless=True,
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        bits((2, 8, 6, 9), (3, 8, 2, 3)),
        ATTRS | AROUND | {"strides": "1,3", "dilations": "2,2"},
        expect=lambda x, kernel: convolved(x, kernel, 0, (1, 3), 2),
        id="dilated",
    ),
    *(
        Case(
            "BinaryConvolution",
            "opset1",
            bits((2, 3, 5, 7), (4, 3, 3, 2), kind=kind),
            ATTRS | AROUND,
            expect=lambda x, kernel: convolved(x, kernel, 0),
            id=kind,
        )
        for kind in ("i32", "u8", "bf16")
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        bits((2, 3, 5, 7), (4, 5, 3, 2)),
        ATTRS,
        id="channels",
        error="the data has 3 channels, the kernel takes 5",
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        [In((2, 4, 5, 7)), In((4, 3, 3, 2))],
        ATTRS,
        id="type",
        error="the kernel must be of u1, not f32",
    ),
    Case(
        "BinaryConvolution",
        "opset1",
        bits((2, 3, 5, 7), (4, 3, 3, 2)),
        ATTRS | {"mode": "dot"},
        id="mode",
        error="'dot' is not one of xnor-popcount",
    ),
]
test_cases = check(CASES)


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    def two(*values: int) -> str:
        return ",".join(str(draw(st.sampled_from(values))) for _ in "hw")

    n, out, rows, columns, height, width = (
        draw(st.integers(*span)) for span in ((1, 3), (1, 17), (5, 9), (5, 9), (1, 3), (1, 3))
    )
    channels, dilations = draw(st.sampled_from((8, 16, 24, 32))), two(1, 2)
    # where columns are 3 apart and dilated, the plugin errs
    strides = two(1, 2) if dilations.endswith("2") else two(1, 2, 3)
    return judged(
        (n, channels, rows, columns),
        (out, channels, height, width),
        strides=strides,
        dilations=dilations,
        pads_begin=two(0, 1),
        pads_end=two(0, 1),
        pad_value=draw(st.sampled_from(("-1", "0", "1"))),
        auto_pad=draw(st.sampled_from(("explicit", "valid", "same_upper", "same_lower"))),
    )


test_random = sweep(convolutions(), 100)
