"""RegionYolo and ReorgYolo."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep


def region(
    shape: tuple[int, ...],
    kind: str = "f32",
    *,
    coords: int = 4,
    classes: int = 3,
    num: int = 2,
    softmax: bool = True,
    mask: str = "",
    axis: int = 1,
    end: int = 3,
    **more: Any,
) -> Case:
    attrs = {
        "anchors": "1.08,1.19",
        "axis": axis,
        "coords": coords,
        "classes": classes,
        "end_axis": end,
        "num": num,
        "do_softmax": softmax,
        "mask": mask,
    }
    return Case("RegionYolo", "opset1", [In(shape, kind)], attrs, [kind], **more)


def reorg(shape: tuple[int, ...], stride: int, kind: str = "f32", **more: Any) -> Case:
    return Case("ReorgYolo", "opset2", [In(shape, kind)], {"stride": stride}, [kind], **more)


CASES = [
    region((1, 16, 3, 5), rankless=True),
    region((2, 16, 3, 5)),
    *(region((2, 16, 3, 5), axis=axis, end=end) for axis, end in ((0, 3), (1, 2), (2, 3), (1, 1), (-3, -1))),
    region((2, 16, 3, 5), softmax=False, mask="0,1"),
    region((1, 24, 3, 5), softmax=False, mask="0,1,2", num=6),
    region((1, 21, 13, 17), coords=5, classes=1, num=3),
    region((1, 22, 3, 5), coords=6, classes=4, softmax=False, mask="3,1", num=6),
    region((1, 16, 3, 5), "f16"),
    region((1, 16, 3, 5), "bf16", softmax=False, mask="0,1"),
    region((0, 16, 3, 5), expect=lambda x: x.reshape(0, 240)),
    region((1, 16, 3), error="data must have rank 4, not 3"),
    region((1, 16, 3, 5), "i32", error="data must be floating-point numbers, not i32"),
    region((0, 15, 3, 5), error="16 channels of regions are more than the 15"),
    region((1, 16, 3, 5), axis=4, error="axis 4 is out of range for rank 4"),
    region((1, 16, 3, 5), coords=1, axis=4, error="coords is 1"),
    reorg((1, 4, 6, 10), 2, rankless=True),
    reorg((3, 8, 6, 10), 2),
    reorg((2, 9, 6, 3), 3),
    reorg((2, 5, 3, 7), 1),
    reorg((2, 32, 4, 12), 4),
    reorg((2, 36, 6, 4), 2, "f16"),
    reorg((2, 36, 6, 4), 2, "bf16"),
    reorg((1, 27, 9, 15), 3),
    reorg((5, 4, 2, 2), 2),
    reorg((2, 12, 6, 4), 2, "i32"),
    reorg((2, 12, 6, 4), 2, "i8"),
    reorg((0, 12, 6, 4), 2, expect=lambda x: x.reshape(0, 48, 3, 2)),
    reorg((1, 4, 6), 2, error="data must have rank 4, not 3"),
    reorg((1, 4, 6, 5), 2, error="W divided by 2 leaves 1"),
    reorg((1, 6, 6, 4), 2, error="C divided by 4 leaves 2"),
    reorg((1, 4, 6), 0, error="stride is 0"),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    n, height, width, num = draw(st.tuples(*[st.integers(1, 4)] * 4))
    if draw(st.booleans()):
        stride = draw(st.integers(1, 3))
        return reorg(
            (n, stride * stride * num, stride * height, stride * width),
            stride,
            draw(st.sampled_from(("f32", "f16", "i32"))),
        )
    coords, classes = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    shape = (n, num * (coords + 1 + classes), height, width)
    kind = draw(st.sampled_from(("f32", "f16")))
    if draw(st.booleans()):
        first = draw(st.integers(0, 3))
        return region(shape, kind, coords=coords, classes=classes, num=num, axis=first, end=draw(st.integers(first, 3)))
    return region(
        shape, kind, coords=coords, classes=classes, num=num + 2, softmax=False, mask=",".join(map(str, range(num)))
    )


test_random = sweep(drawn())
