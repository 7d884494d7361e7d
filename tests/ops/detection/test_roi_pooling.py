"""ROIPooling, ROIAlign, ROIAlignRotated, PSROIPooling, DeformablePSROIPooling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep
from tests.harness.cases import Array

MAPS, COUNT = (3, 4, 11, 9), 7
ALIGNED = ("asymmetric", "half_pixel", "half_pixel_for_nn")


def boxes(
    count: int, images: int, height: float, width: float, *, numbered: bool = True, proper: bool = False
) -> Callable[..., Array]:
    """Return a function that draws regions (image, x1, y1, x2, y2), which may extend beyond the image and, unless
    ``proper``, have no area."""

    def draw(rng: np.random.Generator) -> Array:
        ends = [np.sort(rng.uniform(-0.2 * n, 1.2 * n, (count, 2)), axis=1) for n in (width, height)]
        if count > 3:  # one without an area, and one outside
            ends[0][1] = ends[0][1, :: 1 if proper else -1]
            ends[1][2] += 2 * height
        columns = [rng.integers(0, images, count), *(end[:, i] for i in (0, 1) for end in ends)]
        return np.stack(columns if numbered else columns[1:], 1).astype(np.float32)

    return draw


def rotated_boxes(count: int, height: float, width: float) -> Callable[..., Array]:
    """Return a function that draws regions (x, y, width, height, angle)."""

    def draw(rng: np.random.Generator) -> Array:
        limits = ((-0.2 * width, 1.2 * width), (-0.2 * height, 1.2 * height), (0.2, width), (0.2, height), (-4, 4))
        return np.stack([rng.uniform(*ends, count) for ends in limits], 1).astype(np.float32)

    return draw


def numbers(count: int, images: int) -> Callable[..., Array]:
    return lambda rng: rng.integers(0, images, count)


def roi(
    op: str,
    version: str,
    maps: Sequence[int],
    draw: Any,
    id: str | None = None,
    *,
    count: int = COUNT,
    kind: str = "f32",
    columns: int = 5,
    others: Sequence[In] = (),
    **attrs: Any,
) -> Case:
    case = {name: attrs.pop(name) for name in ("error", "expect", "rankless") if name in attrs}
    drawn = In((count, columns), kind, draw, const=isinstance(draw, np.ndarray))
    return Case(op, version, [In(maps, kind), drawn, *others], attrs, id=id, **case)


def whole_boxes(rng: np.random.Generator) -> Array:
    """Return regions (x1, y1, x2, y2) of numbers that are exact in 16 bits."""
    return np.sort(rng.integers(0, 20, (COUNT, 2, 2)), 1).reshape(COUNT, 4)


def whole_regions(rng: np.random.Generator) -> Array:
    """Return such regions of the first image, (image, x1, y1, x2, y2)."""
    return np.concatenate([np.zeros((COUNT, 1)), whole_boxes(rng)], 1)


def pooling(
    maps: Sequence[int] = MAPS,
    *args: Any,
    method: str = "max",
    scale: float = 0.7,
    height: int = 2,
    width: int = 3,
    **given: Any,
) -> Case:
    height_of, width_of = (1, 1) if method == "bilinear" else (maps[2] / scale, maps[3] / scale)
    draw = given.pop("draw", boxes(given.get("count", COUNT), maps[0], height_of, width_of))
    return roi(
        "ROIPooling",
        "opset2",
        maps,
        draw,
        *args,
        method=method,
        spatial_scale=scale,
        pooled_h=height,
        pooled_w=width,
        **given,
    )


POOLING = [
    *(
        case
        for method in ("max", "bilinear")
        for case in (
            pooling(method=method, rankless=True),
            pooling(method=method, height=1, width=1),
            pooling(method=method, height=5, width=4),
            pooling((1, 3, 6, 7), method=method, scale=0.125, count=4),
            pooling((2, 1, 40, 33), method=method, scale=1, count=13, height=7, width=6),
            pooling(method=method, height=1),
            *(
                pooling(
                    method=method,
                    kind=kind,
                    draw=boxes(COUNT, 1, 1, 1) if method == "bilinear" else whole_regions,
                    scale=0.5,
                )
                for kind in ("f16", "bf16")
            ),
            pooling(
                (2, 3, 5, 7),
                f"no_regions_{method}",
                method=method,
                count=0,
                draw=None,
                expect=lambda *inputs: np.zeros((0, 3, 2, 3), np.float32),
            ),
        )
    ),
    pooling(
        (2, 1, 2, 3),
        "no_such_image",
        draw=np.array([[5, 0, 0, 2, 1], [1, 0, 0, 2, 1], [-1, 0, 0, 2, 1]]),
        scale=1,
        count=3,
        height=1,
        width=1,
        expect=lambda x, _: x[1].max() * np.float32([0, 1, 0]).reshape(3, 1, 1, 1),
    ),  # the plugin may read them, or stop at -1
    pooling(
        kind="f64",
        scale=1,
        draw=np.array([[0, 1, 2, 3, 4]] * COUNT),
        expect=lambda x, _: np.broadcast_to(x[0, :, 2:5, 1:4].max((1, 2), keepdims=True), (COUNT, 4, 1, 1)),
        height=1,
        width=1,
        id="f64",
    ),
    pooling(MAPS, "scale", scale=-1, draw=None, error="spatial_scale -1.0 is not positive"),
    pooling(MAPS, "size", height=0, error="the pooled size is 0 x 3"),
    pooling(MAPS, "method", method="avg", error="'avg' is not one of max, bilinear"),
    pooling(MAPS, "columns", columns=4, draw=None, error="a region has 4 numbers, not 5"),
    pooling(MAPS, "i32", kind="i32", draw=None, error="element type i32 is not real"),
    roi(
        "ROIPooling",
        "opset2",
        (2, 3, 5),
        None,
        "rank",
        spatial_scale=1,
        pooled_h=1,
        pooled_w=1,
        error="the feature maps must have rank 4, not 3",
    ),
]
test_pooling = check(POOLING)


def align(
    version: int = 9,
    maps: Sequence[int] = MAPS,
    *args: Any,
    mode: str = "avg",
    ratio: int = 2,
    scale: float = 0.7,
    height: int = 2,
    width: int = 3,
    aligned: str | None = None,
    index: str = "i32",
    **given: Any,
) -> Case:
    count = given.setdefault("count", COUNT)
    proper = ratio == 0 and aligned in ("half_pixel", "half_pixel_for_nn")  # else regions of any size
    draw = given.pop("draw", boxes(count, maps[0], maps[2] / scale, maps[3] / scale, numbered=False, proper=proper))
    if aligned is not None:
        given["aligned_mode"] = aligned
    images = given.pop("images", In((count,), index, numbers(count, maps[0])))
    return roi(
        "ROIAlign",
        f"opset{version}",
        maps,
        draw,
        *args,
        columns=given.pop("columns", 4),
        others=[images],
        mode=mode,
        spatial_scale=scale,
        sampling_ratio=ratio,
        pooled_h=height,
        pooled_w=width,
        **given,
    )


def aligned(version: int) -> Iterable[Case]:
    of = functools.partial(align, version)
    for mode in ("avg", "max"):
        yield of(mode=mode, rankless=True)
        yield of(mode=mode, ratio=0)
        yield of(mode=mode, ratio=3, height=5, width=4)
        yield of((1, 3, 6, 7), mode=mode, scale=0.125, count=4, height=1, width=1)
        yield of((2, 1, 40, 33), mode=mode, ratio=0, scale=1, count=13, height=7, width=6)
        yield of((2, 3, 1, 5), mode=mode, scale=1)
    for index in ("i64", "u8"):
        yield of(index=index)
    for kind in ("f16", "bf16"):  # coordinates have 16 bits
        yield of(kind=kind, scale=0.5, draw=whole_boxes)
    yield of(
        MAPS,
        "no_regions",
        count=0,
        draw=None,
        images=In((0,), "i32"),
        expect=lambda *inputs: np.zeros((0, 4, 2, 3), np.float32),
    )
    point = functools.partial(of, (2, 1, 3, 4), scale=1, height=1, width=1, ratio=1)
    yield point(
        "no_such_image",
        count=3,
        images=given(np.int32([-1, 5, 1])),
        draw=np.array([[0, 0, 2, 2]] * 3),
        expect=lambda x, *_: x[1, 0, 1, 1] * np.float32([0, 0, 1]).reshape(3, 1, 1, 1),
    )
    yield point(
        "f64",
        kind="f64",
        count=2,
        images=given(np.int32([0, 1])),
        draw=np.array([[0, 0, 2, 2]] * 2),
        expect=lambda x, *_: x[:, :, 1:2, 1:2],
    )
    for mode, ratio in (("avg", 2), ("max", 2), ("max", 0)):
        yield of(
            MAPS,
            f"not_numbers-{mode}-{ratio}",
            mode=mode,
            ratio=ratio,
            count=1,
            images=given(np.int32([0])),
            draw=np.full((1, 4), np.nan),
            expect=np.zeros((1, 4, 2, 3), np.float32),
        )
    yield of(MAPS, "infinite", scale=np.inf, draw=None, error="spatial_scale inf is not positive and finite")
    yield of(MAPS, "ratio", ratio=-1, error="sampling_ratio -1 is negative")
    yield of(MAPS, "scale", scale=-1, draw=None, error="spatial_scale -1.0 is not positive")
    yield of(MAPS, "mode", mode="min", error="'min' is not one of avg, max")
    yield of(MAPS, "columns", columns=5, draw=None, error="a region has 5 numbers, not 4")
    yield of(MAPS, "images", images=In((COUNT + 1,), "i32"), error="8 numbers of images are given for 7 regions")
    yield of(MAPS, "float_images", images=In((COUNT,)), error="the numbers of the images must be integers")


test_align = check([*aligned(3)])
test_align9 = check(
    [
        *aligned(9),
        *(
            align(aligned=mode, ratio=ratio, mode=pool)
            for mode in ALIGNED
            for ratio, pool in ((2, "avg"), (0, "avg"), (2, "max"))
        ),
        align(9, MAPS, "aligned", aligned="corners", error="'corners' is not one of"),
    ]
)


def rotated(
    maps: Sequence[int] = MAPS,
    *args: Any,
    ratio: int = 2,
    scale: float = 0.7,
    height: int = 2,
    width: int = 3,
    index: str = "i32",
    **given: Any,
) -> Case:
    count = given.setdefault("count", COUNT)
    draw = given.pop("draw", rotated_boxes(count, maps[2] / scale, maps[3] / scale))
    return roi(
        "ROIAlignRotated",
        "opset15",
        maps,
        draw,
        *args,
        others=[In((count,), index, numbers(count, maps[0]))],
        spatial_scale=scale,
        sampling_ratio=ratio,
        pooled_h=height,
        pooled_w=width,
        **given,
    )


ROTATED = [
    rotated(rankless=True),
    rotated(clockwise_mode=True),
    rotated(ratio=0),
    rotated(ratio=0, clockwise_mode=True, scale=1),
    rotated(ratio=3, height=5, width=4),
    rotated((1, 3, 6, 7), scale=0.125, count=4, height=1, width=1),
    rotated((2, 1, 40, 33), ratio=0, scale=1, count=13, height=7, width=6),
    rotated(index="i64", clockwise_mode=False),
    rotated(scale=2),
    rotated((1, 1, 5, 6), ratio=1, height=4, width=4),
    rotated((2, 3, 1, 5), scale=1),
    rotated((2, 3, 7, 1), scale=1, clockwise_mode=True),
    rotated(MAPS, "no_regions", count=0, draw=None, expect=lambda *inputs: np.zeros((0, 4, 2, 3), np.float32)),
    rotated(MAPS, "ratio", ratio=-1, count=0, draw=None, error="sampling_ratio -1 is negative"),
    rotated(MAPS, "columns", columns=4, draw=None, error="a region has 4 numbers, not 5"),
    rotated(MAPS, "size", width=0, error="the pooled size is 2 x 0"),
]
test_rotated = check(ROTATED)


def sensitive(
    maps: Sequence[int] | None = None,
    *args: Any,
    mode: str = "average",
    group: int = 2,
    output: int = 3,
    bins: tuple[int, int] = (2, 3),
    scale: float = 0.7,
    **given: Any,
) -> Case:
    channels = output * (bins[0] * bins[1] if mode == "bilinear" else group**2)
    maps = maps or (3, channels, 11, 9)
    height, width = (1 / scale, 1 / scale) if mode == "bilinear" else (maps[2] / scale, maps[3] / scale)
    draw = given.pop("draw", boxes(given.get("count", COUNT), maps[0], height, width))
    cells = dict(zip(("spatial_bins_y", "spatial_bins_x"), bins if mode == "bilinear" else (1, 1)))
    return roi(
        "PSROIPooling",
        "opset1",
        maps,
        draw,
        *args,
        mode=mode,
        output_dim=output,
        group_size=group,
        spatial_scale=scale,
        **cells,
        **given,
    )


SENSITIVE = [
    *(
        case
        for mode in ("average", "bilinear")
        for case in (
            sensitive(mode=mode, rankless=True),
            sensitive(mode=mode, group=1, output=5),
            sensitive(mode=mode, group=4, output=2, scale=1, count=13),
            sensitive(mode=mode, output=1, scale=0.125),
            sensitive(
                None,
                f"no_regions_{mode}",
                mode=mode,
                count=0,
                draw=None,
                expect=lambda *inputs: np.zeros((0, 3, 2, 2), np.float32),
            ),
        )
    ),
    sensitive(mode="bilinear", bins=(1, 1), group=3),
    sensitive(mode="bilinear", bins=(3, 1), group=2),
    sensitive(kind="f16", scale=0.5, draw=whole_regions),
    sensitive((1, 11, 5, 5), "channels", error="there are 11 channels, not 12"),
    sensitive((1, 12, 5, 5), "cells", mode="bilinear", error="there are 12 channels, not 18"),
    sensitive(None, "group", group=0, error="group_size is 0"),
    sensitive((3, 12, 11, 9), "output", output=0, error="output_dim is 0"),
    sensitive(None, "scale", scale=-1, draw=None, error="spatial_scale -1.0 is not positive"),
    sensitive(None, "mode", mode="max", error="'max' is not one of average, bilinear"),
]
test_sensitive = check(SENSITIVE)


def deformable(
    *args: Any,
    group: int = 2,
    output: int = 4,
    bins: tuple[int, int] = (2, 3),
    scale: float = 0.7,
    classes: int | None = None,
    part: int = 2,
    std: float = 0.3,
    height: int = 11,
    width: int = 9,
    **given: Any,
) -> Case:
    maps, count = (3, output * group**2, height, width), given.setdefault("count", COUNT)
    draw = given.pop("draw", boxes(count, maps[0], height / scale, width / scale))
    if classes is not None:
        offsets = In((count, 2 * classes, part, part), given.get("kind", "f32"), low=-1, high=1)
        given = {"others": [offsets], "trans_std": std, "part_size": part} | given
    return roi(
        "DeformablePSROIPooling",
        "opset1",
        maps,
        draw,
        *args,
        output_dim=output,
        group_size=group,
        spatial_scale=scale,
        spatial_bins_y=bins[0],
        spatial_bins_x=bins[1],
        **given,
    )


NONE: dict[str, Any] = {"count": 0, "draw": None}  # no regions
DEFORMABLE = [
    deformable(rankless=True),
    deformable(classes=1, rankless=True),
    deformable(classes=2),
    deformable(classes=4, part=3, std=1),
    deformable(group=1, output=3, bins=(1, 1)),
    deformable(group=3, classes=1, part=3, std=0.1),
    deformable(group=3, classes=2, part=1, std=0.1, scale=1, count=13),
    deformable(group=3, classes=2, part=5, std=0, bins=(4, 4)),
    deformable(scale=0.125, count=4),
    deformable(height=1, width=5, scale=1),
    deformable("no_regions", count=0, draw=None, expect=lambda *inputs: np.zeros((0, 4, 2, 2), np.float32)),
    deformable(kind="f16", scale=0.5, draw=whole_regions),
    deformable(kind="f16", classes=2, scale=0.5, std=0.25, draw=whole_regions),
    deformable(
        "parts", classes=1, part=3, part_size=2, **NONE, error="the offsets have 3 parts along an axis, part_size is 2"
    ),
    deformable("uneven", classes=3, **NONE, error="4 channels have offsets that do not come out even"),
    deformable("regions", others=[In((3, 2, 2, 2))], part_size=2, **NONE, error="there are 3 offsets for 0 regions"),
    deformable("part_size", classes=1, part_size=0, **NONE, error="part_size is 0"),
    deformable("mode", mode="average", error="mode"),
]
test_deformable = check(DEFORMABLE)


@st.composite
def regions(draw: st.DrawFn) -> Case:
    """Draw a case of any of the ops, with feature maps of any size."""
    maps = (draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 13)), draw(st.integers(1, 13)))
    height, width, ratio = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(0, 3))
    shared: dict[str, Any] = {"scale": draw(st.sampled_from((0.25, 0.7, 1.0, 1.5))), "count": draw(st.integers(1, 9))}
    op = draw(st.sampled_from(("pooling", "align", "rotated", "sensitive", "deformable")))
    if op == "pooling":
        return pooling(maps, method=draw(st.sampled_from(("max", "bilinear"))), height=height, width=width, **shared)
    if op == "align":
        mode, pool = draw(st.sampled_from((None, *ALIGNED))), draw(st.sampled_from(("avg", "max")))
        return align(
            3 if mode is None else 9, maps, aligned=mode, mode=pool, height=height, width=width, ratio=ratio, **shared
        )
    if op == "rotated":
        clockwise = draw(st.booleans())
        return rotated(maps, height=height, width=width, ratio=ratio, clockwise_mode=clockwise, **shared)
    shared |= {"bins": (draw(st.integers(1, 3)), draw(st.integers(1, 3))), "group": height, "output": maps[1]}
    if op == "sensitive":
        return sensitive(mode=draw(st.sampled_from(("average", "bilinear"))), **shared)
    classes = draw(st.sampled_from([None, *(n for n in range(1, maps[1] + 1) if maps[1] % n == 0)]))
    part, std = draw(st.integers(1, 4)), draw(st.sampled_from((0.1, 1.0)))
    return deformable(height=maps[2], width=maps[3], classes=classes, part=part, std=std, **shared)


test_random = sweep(regions())
