"""Tile against OpenVINO."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])
NONE = const(np.zeros(0))


def data(shape) -> In:
    return shape if isinstance(shape, In) else In(shape)


def tile(shape, repeats, **kw) -> Case:
    return Case("Tile", "opset1", [data(shape), repeats if isinstance(repeats, In) else const(repeats)], **kw)


TILE = [
    tile((2, 3, 4), [1, 2, 3], rankless=True),
    tile((2, 3), [5, 1, 2]),
    tile((5, 2, 3), [2, 2]),
    tile((2, 3), [1, 1]),
    tile((3,), [4]),
    tile((), [2, 2]),
    tile((2, 3), [0, 2]),
    tile((2, 3), [-1, 2]),
    tile((0, 3), [2, 2]),
    tile((1, 3), [4, 1]),
    tile((2, 3), const([2, 1], "i32")),
    tile((2, 3), given([2, 3]), id="given repeats"),
    *[tile(In((3, 2), kind), [2, 3]) for kind in KINDS],
    tile(given(STRINGS), [2, 1], expect=lambda x, _: np.tile(x, (2, 1)), id="strings"),
    tile((2, 3), const(2), error="rank 1"),
    tile((2, 3), const([2.0, 1.0], "f32"), error="must be integers"),
]
test_tile = check(TILE)

TYPES = st.sampled_from(("f32", "f16", "i32", "u8"))


@st.composite
def tiles(draw: st.DrawFn) -> Case:
    """Draw a Tile, judged by NumPy: for rank 4 or more, the plugin may not write the output, and the reference may
    never return."""
    shape = draw(st.lists(st.integers(0, 6), max_size=4))
    repeats = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    fed = draw(st.booleans())
    return tile(In(shape, draw(TYPES)), given(np.array(repeats)) if fed else repeats, expect=lambda x, n: np.tile(x, n))


test_random = sweep(tiles(), 60)
