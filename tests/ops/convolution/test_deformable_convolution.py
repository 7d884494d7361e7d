"""DeformableConvolution: offsets of every size, groups of both kinds, masks, values between pixels and outside."""

from __future__ import annotations

from math import prod
from typing import Any

from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check
from tests.harness.sweep import sweep


def case(
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    extents: tuple[int, ...],
    version: str = "opset1",
    kind: str = "f32",
    *,
    mask: bool = False,
    far: float = 2.5,
    deformed: int = 1,
    rankless: bool = False,
    id: str | None = None,
    error: str | None = None,
    **attrs: Any,
) -> Case:
    """Return a case whose output has the spatial ``extents``, with offsets from -``far`` to ``far``."""
    taps = prod(kernel[2:])
    given = {
        "strides": "1,1",
        "dilations": "1,1",
        "pads_begin": "0,0",
        "pads_end": "0,0",
        "group": 1,
        "deformable_group": deformed,
    }
    inputs = [In(x, kind), In((x[0], deformed * taps * 2, *extents), kind, low=-far, high=far), In(kernel, kind)]
    if mask:
        inputs.append(In((x[0], deformed * taps, *extents), kind, low=0, high=1))
    return Case(
        "DeformableConvolution",
        version,
        inputs,
        given | attrs,
        tol=Sum(prod(kernel[1:])),
        rankless=rankless,
        id=id,
        error=error,
    )


CASES = [
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8)),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), far=20, rankless=True, id="far"),
    case((2, 3, 7, 9), (5, 3, 3, 3), (4, 3), strides="2,3", pads_begin="1,0", pads_end="1,0"),
    case((2, 3, 7, 9), (5, 3, 3, 3), (5, 6), dilations="2,3", pads_begin="1,1", pads_end="1,2"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (4, 9), auto_pad="same_upper", strides="2,1", rankless=True),
    case((2, 3, 7, 9), (5, 3, 3, 2), (7, 9), auto_pad="same_lower"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), auto_pad="valid", pads_begin="1,1"),
    case((2, 6, 7, 9), (4, 3, 3, 2), (5, 8), group=2),
    case((2, 6, 7, 9), (4, 6, 3, 2), (5, 8), deformed=3),
    case((2, 6, 7, 9), (4, 3, 3, 2), (5, 8), group=2, deformed=3),
    *(case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), kind=kind, far=0.9) for kind in ("f16", "bf16", "f64")),
    case((0, 3, 7, 9), (5, 3, 3, 2), (5, 8), id="zero_batch"),
    case((2, 3, 7, 9), (5, 4, 3, 2), (5, 8), id="channels", error="the data has 3 channels, the kernel takes 4"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 7), id="places", error="offsets have 7 instead of 8 along axis 3"),
    case((2, 4, 7, 9), (5, 2, 3, 2), (5, 8), id="group", group=2, error="5 outputs do not divide into 'group' 2"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), id="deformed", deformed=2, error="3 channels do not divide into"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), id="group_0", group=0, error="attribute 'group': 0 is less than 1"),
]
test_cases = check(CASES)

FADES = {"bilinear_interpolation_pad": "true"}
CASES_8 = [
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), "opset8"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), "opset8", mask=True, far=20, rankless=True),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), "opset8", **FADES, far=9, id="far_fades"),
    case((2, 3, 4, 5), (5, 3, 3, 3), (4, 5), "opset8", mask=True, **FADES, pads_begin="1,1", pads_end="1,1"),
    case((2, 6, 7, 9), (4, 3, 3, 2), (3, 4), "opset8", mask=True, group=2, deformed=3, strides="2,2"),
    case((2, 6, 7, 9), (4, 6, 3, 2), (5, 8), "opset8", mask=True, deformed=2, **FADES),
    case((2, 3, 7, 9), (5, 3, 3, 2), (4, 9), "opset8", mask=True, auto_pad="same_upper", strides="2,1"),
    case((2, 3, 7, 9), (5, 3, 3, 2), (5, 6), "opset8", mask=True, auto_pad="valid", dilations="1,3", **FADES),
    case((2, 3, 7, 9), (5, 3, 1, 1), (7, 9), "opset8", mask=True, far=0.5),
    case((1, 4, 7, 9), (6, 2, 3, 3), (7, 9), "opset8", auto_pad="same_lower", group=2, deformed=4, rankless=True),
    *(case((2, 3, 7, 9), (5, 3, 3, 2), (5, 8), "opset8", kind=kind, mask=True, far=0.9) for kind in ("f16", "bf16")),
]
test_opset8 = check(CASES_8)


@st.composite
def deformed(draw: st.DrawFn) -> Case:
    """Draw a case with any attributes and sizes."""

    def pairs(low: int, high: int) -> tuple[int, int]:
        return draw(st.integers(low, high)), draw(st.integers(low, high))

    strides, dilations, begin, end = pairs(1, 3), pairs(1, 2), pairs(0, 2), pairs(0, 2)
    taps, group, deformed = pairs(1, 3), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    extents = pairs(1, 5)
    size = [
        max((n - 1) * s + (t - 1) * d + 1 - b - e, 1)
        for n, s, t, d, b, e in zip(extents, strides, taps, dilations, begin, end)
    ]
    extents = tuple(
        (z + b + e - (t - 1) * d - 1) // s + 1 for z, s, t, d, b, e in zip(size, strides, taps, dilations, begin, end)
    )
    channels = draw(st.integers(1, 2)) * group * deformed
    attrs = {"strides": strides, "dilations": dilations, "pads_begin": begin, "pads_end": end}
    version = draw(st.sampled_from(("opset1", "opset8")))
    fades = {"bilinear_interpolation_pad": draw(st.sampled_from(("true", "false")))} if version == "opset8" else {}
    return case(
        (draw(st.integers(1, 2)), channels, *size),
        (draw(st.integers(1, 3)) * group, channels // group, *taps),
        extents,
        version,
        mask=version == "opset8" and draw(st.booleans()),
        far=draw(st.floats(0.5, 5)),
        deformed=deformed,
        group=group,
        **fades,
        **{name: ",".join(map(str, value)) for name, value in attrs.items()},
    )


test_random = sweep(deformed())
