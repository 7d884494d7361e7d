"""PriorBox and PriorBoxClustered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

GRID, IMAGE = const([3, 5]), const([37, 53])


def priors(op: str, version: str, attrs: dict[str, Any], grid: In = GRID, image: In = IMAGE, **more: Any) -> Case:
    texts = {name: ",".join(map(str, v)) if isinstance(v, tuple) else v for name, v in attrs.items()}
    return Case(op, version, [grid, image], {"offset": 0.5} | texts, ["f32"], **more)


def boxes(version: str) -> Iterator[Case]:
    sizes: dict[str, Any] = {"min_size": (16.0, 20.0), "max_size": (38.46, 41.0), "aspect_ratio": (2.0, 3.0)}
    fixed: dict[str, Any] = {"fixed_size": (9.0, 16.5), "density": (2.0, 3.0)}
    for flip in (False, True):
        for clip in (False, True):
            yield priors("PriorBox", version, sizes | {"flip": flip, "clip": clip})
    yield priors("PriorBox", version, sizes | {"step": 16.0, "variance": (0.1, 0.1, 0.2, 0.2)})
    yield priors("PriorBox", version, sizes | {"step": 11.0, "offset": 0.25, "variance": (0.3,)})
    yield priors("PriorBox", version, {"min_size": (16.0,), "aspect_ratio": (1.0, 2.0, 2.0)}, id="repeated_ratios")
    yield priors(
        "PriorBox",
        version,
        {"min_size": (0.2, 0.3), "aspect_ratio": (2.0,), "scale_all_sizes": False, "step": -1.0},
        id="relative",
    )
    yield priors(
        "PriorBox",
        version,
        {"min_size": (0.2, 0.3), "aspect_ratio": (2.0,), "scale_all_sizes": False, "step": 0.25, "flip": True},
        id="relative_step",
    )
    yield priors("PriorBox", version, sizes, const([-3, -5]), id="negative", expect=np.zeros((2, 0), np.float32))
    yield priors("PriorBox", version, sizes, given([3, -5]), id="negative_given", expect=np.zeros((2, 0), np.float32))
    yield priors("PriorBox", version, fixed, id="fixed")
    yield priors("PriorBox", version, fixed | {"aspect_ratio": (2.0,), "flip": True}, id="fixed_ratios")
    yield priors("PriorBox", version, fixed | {"fixed_ratio": (2.0,), "clip": True}, id="fixed_ratio")
    yield priors("PriorBox", version, sizes, given([3, 5], "i32"), given([37, 53], "i32"), id="at_run_time")
    yield priors(
        "PriorBox", version, {"min_size": (16.0,)}, const([3, 0]), id="empty", expect=np.zeros((2, 0), np.float32)
    )
    yield priors("PriorBox", version, sizes, const([3, 5, 7]), error="output_size must have 2 elements, not 3")
    yield priors("PriorBox", version, sizes, image=const([3.0, 5.0], "f32"), error="image_size must be integers")
    yield priors("PriorBox", version, sizes | {"variance": (1.0, 2.0)}, error="variance has 2 elements")
    yield priors(
        "PriorBox",
        version,
        sizes | {"fixed_size": (5.0,)},
        const([3, 5, 7]),
        error="density has 0 elements, and fixed_size 1",
    )
    yield priors("PriorBox", version, {"min_size": (-2.0,)}, error="min_size has the element -2")


def clustered() -> Iterator[Case]:
    sizes: dict[str, Any] = {"width": (86.0, 13.0, 57.0), "height": (44.0, 10.0, 30.0)}
    for more in (
        {},
        {"clip": False},
        {"step": 16.0},
        {"step_w": 7.0, "step_h": 5.0},
        {"step_w": 7.0, "step": 3.0},
        {"offset": 0.0, "clip": False},
        {"step_h": 9.0},
        {"offset": 3.5},
        {"step": 0.5, "clip": True},
        {"variance": (0.1, 0.1, 0.2, 0.2)},
        {"variance": (0.3,)},
    ):
        yield priors("PriorBoxClustered", "opset1", sizes | more)
    yield priors("PriorBoxClustered", "opset1", sizes, given([3, 5], "i32"), given([37, 53], "i32"), id="at_run_time")
    yield priors("PriorBoxClustered", "opset1", {"width": (1.0, 2.0)}, error="there are 2 widths and 1 heights")
    yield priors("PriorBoxClustered", "opset1", sizes | {"variance": (1.0, 2.0)}, error="variance has 2 elements")


CASES = [
    *boxes("opset1"),
    *boxes("opset8"),
    *clustered(),
    *(
        priors(
            "PriorBox",
            "opset8",
            {
                "min_size": (16.0, 20.0),
                "max_size": (38.46, 41.0),
                "aspect_ratio": (2.0,),
                "flip": True,
                "min_max_aspect_ratios_order": order,
            },
        )
        for order in (False, True)
    ),
]
test_cases = check(CASES)

POSITIVE = st.floats(1, 60, width=32)
RATIOS = st.lists(st.sampled_from((1.0, 2.0, 3.0, 0.5, 1.7)), max_size=3).map(tuple)
VARIANCES = st.sampled_from(((), (0.3,), (0.1, 0.1, 0.2, 0.2)))


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    extents = st.tuples(st.integers(1, 9), st.integers(1, 9))
    grid, image = (const(draw(extents)) for _ in range(2))
    attrs = {
        "clip": draw(st.booleans()),
        "offset": draw(st.sampled_from((0.0, 0.5, 0.3))),
        "step": draw(st.sampled_from((0.0, 4.0, 0.7))),
        "variance": draw(VARIANCES),
    }
    if draw(st.booleans()):
        count = draw(st.integers(1, 4))
        sides = st.lists(POSITIVE, min_size=count, max_size=count).map(tuple)
        attrs |= {"width": draw(sides), "height": draw(sides)}
        return priors("PriorBoxClustered", "opset1", attrs, grid, image, id="random")
    attrs |= {"aspect_ratio": draw(RATIOS), "flip": draw(st.booleans())}
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        sizes, densities = (
            st.lists(each, min_size=count, max_size=count).map(tuple)
            for each in (POSITIVE, st.sampled_from((1.0, 2.0, 3.0)))
        )
        attrs |= {"fixed_size": draw(sizes), "density": draw(densities)}
    else:
        least = draw(st.lists(POSITIVE, min_size=1, max_size=3).map(tuple))
        whole = draw(st.booleans())
        most = draw(st.integers(0, len(least))) if whole else 0
        attrs |= {"min_size": least, "max_size": tuple(s + 3 for s in least[:most]), "scale_all_sizes": whole}
    version = draw(st.sampled_from(("opset1", "opset8")))
    if version == "opset8":
        attrs |= {"min_max_aspect_ratios_order": draw(st.booleans())}
    return priors("PriorBox", version, attrs, grid, image, id="random")


test_random = sweep(drawn())
