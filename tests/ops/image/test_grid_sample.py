"""GridSample against OpenVINO: modes, padding, corners, element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep

MODES = ("bilinear", "bicubic", "nearest")
PADDINGS = ("zeros", "border", "reflection")


def sample(shape: Sequence[int] | In = (2, 3, 5, 7), grid: Sequence[int] | In = (2, 4, 9, 2), **kw: object) -> Case:
    """Return a case with these attributes, and grid points up to twice the image's extent."""
    attrs = {name: kw.pop(name) for name in ("mode", "padding_mode", "align_corners") if name in kw}
    data = shape if isinstance(shape, In) else In(shape)
    return Case("GridSample", "opset9", [data, grid if isinstance(grid, In) else In(grid, low=-2, high=2)], attrs, **kw)


CASES = [
    *(
        sample(mode=mode, padding_mode=padding, align_corners=align)
        for mode in MODES
        for padding in PADDINGS
        for align in (False, True)
    ),
    sample(rankless=True, id="defaults"),
    *(
        sample(
            (1, 2, 1, 1),
            (1, 3, 3, 2),
            mode=mode,
            padding_mode=padding,
            align_corners=align,
            id=f"one pixel {mode} {padding} {align}",
        )
        for mode in ("bilinear", "nearest")
        for padding in PADDINGS
        for align in (False, True)
    ),
    *(
        sample(In((2, 3, 5, 7), kind), mode=mode, id=f"{kind} {mode}")
        for kind in ("f16", "bf16", "f64", "u8", "i8", "i32")
        for mode in MODES
    ),
    sample(In((1, 2, 5, 7), "u8", low=0, high=255), (1, 6, 6, 2), mode="bicubic", id="saturated"),
    sample(grid=In((2, 4, 9, 2), "f16", low=-2, high=2), id="f16 grid"),
    sample(
        grid=given(np.float32([[[[-1, -1], [1, 1], [0, 0], [-1, 1], [0.25, -0.5], [9, 0], [-0.8, 0.6]]]])),
        shape=(1, 2, 5, 7),
        mode="nearest",
        id="halves",
    ),
    sample((2, 3, 0, 7), padding_mode="border", expect=lambda x, g: np.zeros((2, 3, 4, 9), np.float32), id="no rows"),
    sample((2, 3, 5, 7), (2, 0, 9, 2), expect=lambda x, g: np.zeros((2, 3, 0, 9), np.float32), id="no places"),
    sample((3, 5, 7), error="the data must have rank 4, not 3"),
    sample(grid=(2, 4, 2), error="the grid must have rank 4, not 3"),
    sample(grid=(2, 4, 9, 3), error="last dim is 3 instead of 2"),
    sample(grid=(3, 4, 9, 2), error="the data has 2 images, the grid 3"),
    sample(grid=In((2, 4, 9, 2), "i32"), error="the grid must have floating-point numbers, not i32"),
    sample(mode="cubic", error="'cubic' is not one of"),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    n, channels, *extents = (draw(st.integers(1, most)) for most in (3, 4, 9, 9, 6, 6))
    reach = draw(st.sampled_from((0.9, 1.5, 5)))
    return sample(
        (n, channels, *extents[:2]),
        In((n, *extents[2:], 2), low=-reach, high=reach),
        mode=draw(st.sampled_from(MODES)),
        padding_mode=draw(st.sampled_from(PADDINGS)),
        align_corners=draw(st.booleans()),
    )


test_random = sweep(drawn())
