"""Interpolate against OpenVINO: modes, coordinates, rounding, padding, axes, sizes and scales, element types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")
IMAGE = (2, 3, 5, 7)


def resize(
    shape: Sequence[int] | In,
    sizes: Sequence[int] | In | None = (9, 4),
    axes: Sequence[int] | None = (2, 3),
    mode: str = "linear_onnx",
    version: str = "opset11",
    scales: Sequence[float] | None = None,
    coordinates: str | None = None,
    rounding: str | None = None,
    cube: float | None = None,
    attrs: dict[str, object] | None = None,
    **kw: object,
) -> Case:
    """Return a case that resizes by ``scales`` if they are given, else to ``sizes``."""
    data = shape if isinstance(shape, In) else In(shape)
    size = const([1] if sizes is None else sizes) if not isinstance(sizes, In) else sizes
    scale = const([1.0] if scales is None else scales, "f32")
    wanted = [size, scale] if version == "opset4" else [size if scales is None else scale]
    named = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding, "cube_coeff": cube}
    over = [] if axes is None else [const(axes)]
    return Case(
        "Interpolate",
        version,
        [data, *wanted, *over],
        {"mode": mode, "shape_calculation_mode": "sizes" if scales is None else "scales"}
        | {k: v for k, v in named.items() if v is not None}
        | (attrs or {}),
        **kw,
    )


KINDS = ("f16", "bf16", "f64", "u8", "i8", "i32", "i64")


def old(
    shape: Sequence[int],
    sizes: Sequence[int],
    axes: str,
    mode: str,
    align: bool | None = None,
    pads: str | None = None,
    **kw: object,
) -> Case:
    attrs = {"axes": axes, "mode": mode, "align_corners": align, "pads_begin": pads, "pads_end": pads}
    return Case(
        "Interpolate", "opset1", [In(shape), const(sizes)], {k: v for k, v in attrs.items() if v is not None}, **kw
    )


CASES = [
    *(
        resize(IMAGE, mode=mode, version=version, rankless=True)
        for mode in ("nearest", "linear", "linear_onnx", "cubic")
        for version in ("opset4", "opset11")
    ),
    *(
        resize(IMAGE, size, mode="nearest", coordinates=c, rounding=r, id=f"nearest {c} {r} {size}")
        for c in COORDINATES
        for r in ROUNDINGS
        for size in ((9, 4),)
    ),
    *(
        resize(IMAGE, size, mode=mode, coordinates=c, id=f"{mode} {c} {size}")
        for mode in ("linear", "linear_onnx", "cubic")
        for c in COORDINATES
        for size in ((9, 4),)
    ),
    # the plugin ignores antialias
    *(
        resize(IMAGE, size, mode="linear", attrs={"antialias": True}, oracle="evaluate", id=f"antialias {size}")
        for size in ((2, 3), (9, 3), (11, 17))
    ),
    *(
        resize(IMAGE, size, mode=mode, cube=cube, oracle="evaluate", id=f"{mode} {cube} {size}")
        for mode, cube in (("cubic", -0.5), ("bilinear_pillow", None), ("bicubic_pillow", -0.5))
        for size in ((2, 3), (9, 3), (11, 17))
    ),
    # PyTorch's frontend writes -0.75 for torch's -0.5, and relies on the plugin, which ignores it, unlike the reference
    *(
        resize(
            In(IMAGE, kind),
            size,
            mode="bicubic_pillow",
            cube=cube,
            oracle="cpu",
            id=f"bicubic_pillow {cube} {size} {kind}",
        )
        for cube in (None, -0.75, 0.25)
        for size in ((9, 3), (2, 17))
        for kind in ("f32", "u8")
    ),
    *(
        resize(IMAGE, None, scales=(1.7, 0.5), mode=mode, version=version, id=f"scales {mode}")
        for mode in ("nearest", "linear", "linear_onnx", "cubic")
        for version in ("opset4", "opset11")
    ),
    resize(IMAGE, None, scales=(1.9999999, 0.999999), id="scales that nearly are integers"),
    resize((7, 5), axes=None, id="all axes"),
    resize((7, 5), axes=None, version="opset4", id="all axes"),
    resize((5, 7, 6), (9, 4), (1, 2), "nearest", "opset4", coordinates="align_corners", id="rank 3"),
    resize((1, 2, 3, 5, 7), (5, 4, 9), (2, 3, 4), version="opset4", id="volume"),
    resize((2, 5, 7, 3), (9, 4), (1, 2), version="opset4", id="channels last"),
    resize(IMAGE, (5, 7), mode="cubic", id="no other size"),
    resize((5, 7, 6), (9, 4), (1, 2), "nearest", id="rank 3"),
    resize((2, 3, 7), (10,), (2,), "linear_onnx", id="one axis"),
    resize((2, 3, 7), (10,), (2,), "cubic", oracle="evaluate", id="one axis cubic"),
    resize((1, 2, 3, 5, 7), (5, 4, 9), (2, 3, 4), "nearest", id="volume nearest"),
    resize((1, 2, 3, 5, 7), (5, 4, 9), (2, 3, 4), "linear", id="volume linear"),
    resize((1, 2, 3, 5, 7), (5, 4, 9), (2, 3, 4), "linear_onnx", id="volume linear_onnx"),
    resize((1, 2, 3, 5, 7), (5, 4, 9), (2, 3, 4), "cubic", oracle="evaluate", id="volume cubic"),
    resize((2, 5, 7, 3), (9, 4), (1, 2), "linear_onnx", id="channels last"),
    resize((2, 5, 7, 3), (9, 4), (1, 2), "bilinear_pillow", id="channels last pillow"),
    resize(IMAGE, (4, 9), (3, 2), "linear", oracle="evaluate", id="axes in another order"),
    resize(
        IMAGE,
        axes=(-2, -1),
        expect=lambda x, *_: x[:, :, (0, 2, 4)][..., (0, 2, 4, 6)],
        sizes=(3, 4),
        coordinates="align_corners",
        id="axes from the end",
    ),
    *(
        resize(
            IMAGE,
            (12, 4),
            mode=mode,
            attrs={"pads_begin": "0,0,1,2", "pads_end": "0,0,2"},
            oracle="evaluate",
            id=f"pads {mode}",
        )
        for mode in ("nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow")
    ),
    resize(
        IMAGE,
        (8, 9),
        mode="nearest",
        attrs={"pads_begin": "0,1,1,2", "pads_end": "1,0,2"},
        oracle="evaluate",
        id="pads and nothing else",
    ),
    *(
        resize(In(IMAGE, kind), (10, 14), mode=mode, id=f"{mode} {kind}")  # exact weights give exact integers
        for mode in ("nearest", "linear_onnx", "cubic")
        for kind in KINDS
    ),
    *(
        resize(
            In(IMAGE, kind),
            (10, 14),
            mode="nearest",
            id=f"nearest {kind}",
            expect=lambda x, *_: x.repeat(2, axis=2).repeat(2, axis=3),
        )
        for kind in ("u4", "i4", "f8e4m3", "u16")
    ),
    *(
        resize(In(IMAGE, kind, low=-200, high=300), (11, 17), mode=mode, cube=-0.5, id=f"{mode} {kind} saturates")
        for mode in ("linear", "cubic", "bilinear_pillow", "bicubic_pillow")
        for kind in ("u8", "i8")
    ),
    resize(IMAGE, given([9, 4]), id="given sizes"),
    resize(IMAGE, given([9, 4]), mode="nearest", id="given sizes nearest"),
    resize((0, 3, 5, 7), expect=lambda *_: np.zeros((0, 3, 9, 4), np.float32), id="empty"),
    resize(IMAGE, axes=(2, 4), error="axis 4 is out of range for rank 4"),
    resize(IMAGE, axes=(-1, 3), error="name an axis twice"),
    resize(IMAGE, (9, 4, 3), error="3 sizes for 2 axes"),
    resize(IMAGE, None, scales=(1.5,), error="1 scales for 2 axes"),
    resize(IMAGE, None, scales=(1.5, -1.0), error="not all positive"),
    resize(IMAGE, (9, -4), error="size -4 is negative"),
    resize(IMAGE, mode="bilinear_pillow", version="opset4", error="'bilinear_pillow' is not one of"),
    resize(IMAGE, mode="area", error="'area' is not one of"),
    resize(IMAGE, (9,), (2,), mode="bilinear_pillow", error="resizes two axes, not 1"),
    resize(IMAGE, attrs={"pads_begin": "-1"}, error="must not be negative"),
    resize(In(IMAGE, "boolean"), error="element type boolean is no number"),
    resize(IMAGE, const([9.0, 4.0], "f32"), error="sizes must be integers"),
]
OLD = [
    *(
        old(IMAGE, (9, 4), "2,3", mode, align, id=f"{mode} {align}", rankless=True)
        for mode in ("nearest", "linear", "cubic")
        for align in (None, False)
    ),
    old((3, 5, 7), (9, 4), "1,2", "linear", False, id="linear of rank 3"),
    old((1, 2, 3, 5, 7), (5, 4, 9), "2,3,4", "linear", False, id="linear of rank 5"),
    *(old(IMAGE, (12, 9), "2,3", mode, False, "0,0,1,2", id=f"{mode} pads") for mode in ("nearest", "linear")),
    old(IMAGE, (11,), "3", "nearest", True, id="one axis"),
    old((1, 1, 6, 9), (2, 3), "2,3", "linear", True, id="a third"),
    old(IMAGE, (9, 4), "2,3", "area", error="'area' is not one of"),
    old(IMAGE, (9, 4), "2,5", "nearest", error="axis 5 is out of range for rank 4"),
]
test_cases = check(CASES + OLD)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank))
    mode = draw(st.sampled_from(("nearest", "linear", "linear_onnx", "cubic", "bilinear_pillow", "bicubic_pillow")))
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, max_size=min(rank, 3), unique=True))
    pillow, oracle = mode.endswith("pillow"), "evaluate"
    if pillow:
        axes.sort()  # otherwise, the reference mixes up rows and columns
    elif mode == "linear_onnx":  # the plugin judges spatial axes
        axes, oracle = list(range(rank))[2 if rank > 3 else 0 :], "cpu"
    antialias, pads = draw(st.booleans()), st.lists(st.integers(0, 2), max_size=rank)
    begin, end = draw(st.tuples(pads, pads)) if draw(st.booleans()) else ((), ())
    sizes = [draw(st.integers(1, 12)) for _ in axes]
    scaled = not pillow and draw(st.booleans())  # pillow modes have a size of at least 1
    scales = [draw(st.floats(0.25, 3, width=32)) for _ in axes] if scaled else None
    return resize(
        shape,
        sizes,
        axes,
        mode,
        draw(st.sampled_from(("opset4", "opset11"))),
        scales,
        draw(st.sampled_from(COORDINATES)),
        draw(st.sampled_from(ROUNDINGS)),
        -0.5 if mode == "bicubic_pillow" else draw(st.sampled_from((-0.75, -0.5, 0.25))),
        {"antialias": antialias, "pads_begin": str(begin)[1:-1], "pads_end": str(end)[1:-1]},
        oracle=oracle,
    )


@st.composite
def drawn_old(draw: st.DrawFn) -> Case:
    """Draw a case that resizes the last axes, which the plugin supports."""
    rank = draw(st.integers(3, 5))
    shape = draw(st.lists(st.integers(1, 8), min_size=rank, max_size=rank))
    axes = range(2 if rank > 3 else 1, rank)
    mode = draw(st.sampled_from(("nearest", "linear", "cubic")))
    return old(shape, [draw(st.integers(1, 12)) for _ in axes], str(list(axes))[1:-1], mode, draw(st.booleans()))


test_random = sweep(drawn())
test_random_old = sweep(drawn_old(), 100)
