"""ExtractImagePatches and Col2Im against OpenVINO: windows, padding, ranks, element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep

PADS = ("valid", "same_upper", "same_lower")
KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64")


def text(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def extract(
    shape: Sequence[int] | In = (2, 3, 10, 9),
    sizes: Sequence[int] = (3, 2),
    strides: Sequence[int] = (3, 4),
    rates: Sequence[int] = (1, 1),
    pad: str = "valid",
    **kw: object,
) -> Case:
    attrs = {"sizes": text(sizes), "strides": text(strides), "rates": text(rates), "auto_pad": pad}
    return Case("ExtractImagePatches", "opset3", [shape if isinstance(shape, In) else In(shape)], attrs, **kw)


def fold(
    size: Sequence[int] | In,
    kernel: Sequence[int] | In,
    images: Sequence[int] = (2,),
    channels: int = 3,
    kind: str = "f32",
    columns: int | None = None,
    rows: int | None = None,
    strides: Sequence[int] = (1, 1),
    dilations: Sequence[int] = (1, 1),
    begin: Sequence[int] = (0, 0),
    end: Sequence[int] = (0, 0),
    **kw: object,
) -> Case:
    extents, window = (x.data.astype(int).tolist() if isinstance(x, In) else x for x in (size, kernel))
    counts = [
        (e + b + f - d * (k - 1) - 1) // max(s, 1) + 1
        for e, b, f, d, k, s in zip(extents, begin, end, dilations, window, strides)
    ]
    shape = (*images, rows or channels * int(np.prod(window)), counts[0] * counts[1] if columns is None else columns)
    attrs = {"strides": text(strides), "dilations": text(dilations), "pads_begin": text(begin), "pads_end": text(end)}
    inputs = [x if isinstance(x, In) else const(x) for x in (size, kernel)]
    return Case("Col2Im", "opset15", [In(shape, kind), *inputs], attrs, **kw)


EXTRACT = [
    *(
        extract(pad=pad, rates=rates, strides=strides, rankless=True)
        for pad in PADS
        for rates in ((1, 1), (2, 3))
        for strides in ((3, 4), (1, 2))
    ),
    *(extract((1, 1, 10, 10), (4, 4), (8, 9), pad=pad, id=f"far apart {pad}") for pad in PADS),
    *(extract(In((1, 2, 6, 5), kind), strides=(2, 2), pad="same_upper", id=kind) for kind in KINDS),
    extract((1, 3, 2, 2), (3, 3), (1, 1), expect=lambda x: np.zeros((1, 27, 0, 0), np.float32), id="larger than all"),
    extract((1, 3, 2, 2), (5, 5), (1, 1), pad="same_lower", id="larger than all, padded"),
    extract((3, 10, 9), error="the data must have rank 4, not 3"),
    extract(sizes=(3,), error="attribute 'sizes' has 1 elements instead of 2"),
    extract(strides=(0, 1), error="attribute 'strides': 0 is less than 1"),
    extract(rates=(1, -1), error="attribute 'rates': -1 is less than 1"),
    extract(pad="explicit", error="'explicit' is not one of"),
]
FOLD = [
    fold((5, 7), (2, 3)),
    fold((5, 7), (2, 3), (), rankless=True),
    fold((5, 7), (2, 3), strides=(2, 3), begin=(1, 2)),
    fold((8, 9), (3, 2), dilations=(2, 3), begin=(1, 0), end=(2, 1), rankless=True),
    fold((8, 9), (3, 2), strides=(3, 2), dilations=(2, 3), begin=(3, 4), end=(2, 1)),
    fold((8, 9), (1, 1), strides=(3, 2)),
    fold((4, 4), (4, 4), (1,), 1),
    fold((8, 9), (2, 2), strides=(5, 4)),
    fold((20, 19), (3, 3), (3,), 5, begin=(1, 1), end=(1, 1)),
    *(fold((5, 7), (2, 3), kind=kind, tol=Sum(6), id=kind) for kind in KINDS),  # OpenVINO sums in that type
    fold(given([5, 7]), given([2, 3]), id="given sizes"),
    fold((5, 7), (2, 3), images=(0,), expect=lambda *_: np.zeros((0, 3, 5, 7), np.float32), id="no images"),
    fold((5, 7), (2, 3), (2, 2), error="the data must have rank 2 or 3, not 4"),
    fold((5, 7), (2, 3), rows=17, error="17 rows are no multiple of 6"),
    fold((5, 7), (2, 3), columns=19, error="19 positions instead of 20"),
    fold((5, 7), (2, 3), strides=(0, 1), error="attribute 'strides': 0 is less than 1", columns=3),
    fold((5, 7), (2, 0), error=r"kernel size \[2, 0\] has no elements", rows=3),
    fold((5, 7), const([2, 3, 1]), error="the kernel size has 3 elements instead of 2"),
    fold((5, 7), const([2.0, 3.0], "f32"), error="the kernel size must be integers", rows=6),
]
test_extract_image_patches = check(EXTRACT)
test_col2im = check(FOLD)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    def two(least: int, most: int) -> list[int]:
        return draw(st.lists(st.integers(least, most), min_size=2, max_size=2))

    kind = draw(st.sampled_from(("f32", "i32")))
    if draw(st.booleans()):
        shape, pad = (*two(1, 3), *two(1, 12)), draw(st.sampled_from(PADS))
        return extract(In(shape, kind), two(1, 4), two(1, 5), two(1, 3), pad)
    strides, dilations, begin, end, kernel = two(1, 4), two(1, 3), two(0, 3), two(0, 3), two(1, 4)
    least = [d * (k - 1) + 1 for d, k in zip(dilations, kernel)]
    size = [n + more for n, more in zip(least, two(0, 5))]
    return fold(
        size,
        kernel,
        draw(st.sampled_from(((), (1,), (3,)))),
        draw(st.integers(1, 3)),
        kind,
        strides=strides,
        dilations=dilations,
        begin=begin,
        end=end,
    )


test_random = sweep(drawn())
