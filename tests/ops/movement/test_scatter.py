"""The Scatter family against OpenVINO."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

OLD, NEW = ("ScatterElementsUpdate", "opset3"), ("ScatterElementsUpdate", "opset12")


def scatter(
    version: tuple[str, str],
    shape: tuple[int, ...],
    at: tuple[int, ...],
    axis: int = 0,
    *,
    kind: str = "f32",
    index: str = "i64",
    negative: bool = False,
    id: str = "",
    **kw: Any,
) -> Case:
    """Return a case with updates of shape ``at``: indices along ``axis`` are distinct, or repeat with a reduction."""
    attrs = {name: kw.pop(name) for name in ("reduction", "use_init_val") if name in kw}
    random = np.random.RandomState(len(id) + 7 * axis + sum(at))
    length, count, i = shape[axis], at[axis], axis % len(shape)
    if attrs.get("reduction", "none") == "none" and count <= length:
        indices = np.argsort(random.rand(*at[:i], length, *at[i + 1 :]), axis=i).take(range(count), axis=i)
    else:
        indices = random.randint(0, length, at)
    if negative:
        indices = indices - length * random.randint(0, 2, at)
    return Case(
        *version,
        [In(shape, kind), In(at, index, data=indices), In(at, kind), const(axis)],
        attrs,
        id=id or f"{kind}-{'x'.join(map(str, shape))}-axis{axis}",
        **kw,
    )


def plain(version: tuple[str, str]) -> list[Case]:
    return [
        scatter(version, (5,), (3,), id="vector"),
        scatter(version, (5, 3), (2, 3), id="rows"),
        scatter(version, (5, 7), (5, 3), 1, id="columns"),
        scatter(version, (5, 7), (3, 2), 1, id="part"),
        scatter(version, (2, 5, 3), (2, 4, 3), 1, id="middle"),
        scatter(version, (2, 3, 5), (1, 2, 4), -1, id="negative-axis"),
        scatter(version, (5, 7), (3, 7), index="i32", id="i32-indices"),
        scatter(version, (5, 7), (5, 3), 1, negative=True, id="negative-indices"),
        scatter(version, (5, 7), (2, 7), kind="i32", id="i32"),
        scatter(version, (5, 7), (2, 7), kind="i64", id="i64"),
        scatter(version, (5, 7), (2, 7), kind="f16", id="f16"),
        scatter(version, (5, 7), (2, 7), kind="u8", id="u8"),
        scatter(version, (5, 7), (2, 7), kind="boolean", id="boolean"),
        scatter(version, (5, 7), (0, 7), id="no-updates"),
    ]


REDUCED = (
    [
        scatter(
            NEW,
            (5, 7),
            (4, 7),
            kind=kind,
            id=f"{kind}-{reduction}-{initial}",
            reduction=reduction,
            use_init_val=initial,
            **{"oracle": "evaluate"} if kind == "i32" and reduction == "mean" else {},
        )
        for kind in ("f32", "i32")  # the plugin truncates means of integers, and the specification rounds them down
        for reduction in ("sum", "prod", "min", "max", "mean")
        for initial in (True, False)
    ]
    + [
        scatter(NEW, (5, 7), (4, 7), kind=kind, id=f"{kind}-{reduction}", reduction=reduction)
        for kind, reduction in (
            ("f16", "sum"),
            ("f16", "mean"),
            ("bf16", "sum"),
            ("bf16", "prod"),
            ("u8", "sum"),
            ("i8", "prod"),
            ("i64", "max"),
            ("boolean", "sum"),
            ("boolean", "prod"),
            ("boolean", "min"),
            ("boolean", "max"),
        )
    ]
    + [
        scatter(NEW, (3, 5), (3, 9), 1, reduction="sum", id="more-updates-than-data"),
        scatter(NEW, (5, 3), (70, 3), reduction="mean", use_init_val=False, id="many-updates"),
        scatter(NEW, (5, 7), (4, 7), kind="u4", reduction="max", id="u4", expect=lambda x, i, u, _: _maximum(x, i, u)),
        Case(
            *NEW,
            [given(np.float32([1, 2])), given(np.array([0, 0])), given(np.float32([np.inf, np.inf])), const(0)],
            {"reduction": "min", "use_init_val": False},
            expect=np.float32([np.inf, 2]),
            id="infinity",
        ),
    ]
)


def _maximum(x: Any, i: Any, u: Any) -> Any:
    found = x.astype(np.uint8)
    np.maximum.at(found, (i, np.arange(7)), u.astype(np.uint8))
    return found.astype(x.dtype)


FEW_BITS = [
    Case(
        *version,
        [In((5, 2), low=1), In((2, 2), "u4", data=[[0, 4], [3, 1]]), In((2, 2), low=1), const(0)],
        attrs,
        expect=lambda x, i, u, _: np.stack(
            [[u[0, 0], x[0, 1]], [x[1, 0], u[1, 1]], x[2], [u[1, 0], x[3, 1]], [x[4, 0], u[0, 1]]]
        ),
        id="u4-indices",
    )
    for version, attrs in ((OLD, {}), (NEW, {"reduction": "sum", "use_init_val": False}))
]

ERRORS = [
    Case(*NEW, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((2, 7)), const(2)], error="axis 2"),
    Case(*NEW, [In((5, 7)), In((2,), "i64", data=np.zeros(2)), In((2, 7)), const(0)], error="rank"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((3, 7)), const(0)], error="differ"),
    Case(
        *OLD,
        [In((0, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((2, 7)), const(0)],
        error="index is out of",
        id="past the end",
    ),
    Case(
        *OLD,
        [In((0, 7)), In((2, 7), "i64", data=np.full((2, 7), -1)), In((2, 7)), const(0)],
        error="index is out of",
        id="before the start",
    ),
    Case(
        *NEW,
        [In((0, 7)), In((2, 7), "i64", const=True, data=np.zeros((2, 7))), In((2, 7)), const(0)],
        error="index 0 is out of range for extent 0",
    ),
    Case(
        *NEW,
        [In((0, 7)), In((2, 7), "i32", const=True, data=np.full((2, 7), -1)), In((2, 7)), const(0)],
        error="index -1 is out of range for extent 0",
    ),
]

ERRORS += [
    scatter(NEW, (5, 7, 0), (4, 8, 0), id="past-another-axis", error="indices have 8 elements on axis 1, data has 7"),
    scatter(NEW, (5, 7), (4, 7), kind="boolean", reduction="mean", id="boolean-mean", error="no mean of booleans"),
]


def slices(
    shape: tuple[int, ...],
    at: tuple[int, ...],
    axis: int,
    *,
    kind: str = "f32",
    index: str = "i64",
    indices: Any = None,
    updates: Any = None,
    id: str = "",
    **kw: Any,
) -> Case:
    """Return a ScatterUpdate with random indices of shape ``at``, which differ at every inference."""
    length, i = shape[axis], axis % len(shape)
    given = In(at, index, lambda rng: rng.integers(0, length, at)) if indices is None else indices
    updated = (*shape[:i], *at, *shape[i + 1 :])
    return Case(
        "ScatterUpdate",
        "opset3",
        [In(shape, kind), given, In(updates or updated, kind), const(axis)],
        id=id or f"{kind}-{'x'.join(map(str, shape))}-{'x'.join(map(str, at))}-axis{axis}",
        **kw,
    )


SLICES = [
    slices((5,), (3,), 0),
    slices((5, 7), (3,), 0, rankless=True),
    slices((5, 7), (4,), 1),
    slices((3, 5, 7), (4,), -2),
    slices((3, 5, 7), (2, 4), 1, rankless=True),
    slices((3, 5, 7), (2, 1, 3), -1),
    slices((3, 5, 7), (), 1),
    slices((2, 3, 9, 4), (1,), 2),
    slices((9, 3), (50,), 0, id="many updates"),
    slices((3, 40, 2), (70,), 1, id="many updates in the middle"),
    slices((3, 40), (9, 8), 1, id="many updates of rank 2"),
    slices((5, 7), (3,), 0, index="i32", id="i32 indices"),
    slices((5, 7), (3,), 0, index="u8", id="u8 indices"),
    *[slices((5, 7), (3,), 1, kind=kind) for kind in ("f16", "bf16", "i8", "u8", "i32", "i64")],
    slices((5, 7), (3,), 1, kind="f64", oracle="evaluate"),
    slices((5, 7), (2,), 0, indices=const([3, 1]), id="constant indices"),
    slices(
        (5, 7),
        (2,),
        0,
        indices=const([-1, 1]),
        id="negative",
        expect=lambda x, i, u, _: np.stack([x[0], u[1], x[2], x[3], u[0]]),
    ),  # by value
    slices((5, 7), (0,), 0, id="no updates"),
    slices((0, 7), (0,), 0, id="no data", expect=lambda x, *_: x),  # by value
    Case(
        "ScatterUpdate",
        "opset3",
        [In((5, 7)), const([1]), In((1, 7)), const(2)],
        error="axis 2 is out of range for rank 2",
        id="axis",
    ),
    slices((5, 7), (2,), 0, updates=(2, 7, 1), error="updates of rank 3 do not fit data of rank 2", id="rank"),
    slices((5, 7), (2,), 0, updates=(3, 7), error="updates have extent 3 on axis 0, where it should be 2", id="extent"),
    slices((5, 0), (1,), 0, indices=const([5]), error="index 5 is out of range for extent 5", id="constant index"),
    slices((5, 0), (1,), 0, indices=given(np.array([-6])), error="an index is out of range for extent 5", id="index"),
]


def tuples(
    shape: tuple[int, ...],
    at: tuple[int, ...],
    *,
    kind: str = "f32",
    indices: Any = None,
    updates: Any = None,
    id: str = "",
    version: str = "opset4",
    **kw: Any,
) -> Case:
    """Return a ScatterNDUpdate with tuples of random indices, which differ at every inference."""
    extents = shape[: at[-1]]
    given = In(at, "i64", lambda rng: rng.integers([-d for d in extents], extents, at)) if indices is None else indices
    attrs = {"reduction": kw.pop("reduction")} if "reduction" in kw else {}
    wanted = (*at[:-1], *shape[at[-1] :]) if updates is None else updates
    return Case(
        "ScatterNDUpdate",
        version,
        [In(shape, kind), given, In(wanted, kind)],
        attrs,
        id=id or "-".join([kind, "x".join(map(str, shape)), "x".join(map(str, at)), *attrs.values()]),
        **kw,
    )


ND = across(
    ["opset4", "opset15"],
    [
        tuples((5,), (3, 1)),
        tuples((5,), (1,), rankless=True),
        tuples((5,), (1,), updates=(1,), id="one update of rank 1"),
        tuples((5, 7), (3, 1), rankless=True),
        tuples((5, 7), (3, 2)),
        tuples((5, 7), (2, 4, 2)),
        tuples((3, 5, 7), (4, 2)),
        tuples((3, 5, 7), (4, 3), rankless=True),
        tuples((3, 5, 7), (2, 3, 1)),
        tuples((2, 3, 5, 7), (4, 3)),
        tuples((5, 7), (90, 2), id="many updates"),
        tuples((9, 4), (60, 1), id="many slices"),
        tuples((5, 7), (3, 2), indices=In((3, 2), "i32", lambda rng: rng.integers(0, 5, (3, 2))), id="i32 indices"),
        tuples((5, 7), (2, 2), indices=const([[4, -7], [0, 6]]), id="constant indices"),
        *[tuples((5, 7), (3, 1), kind=kind) for kind in ("f16", "bf16", "i8", "u8", "i32", "i64", "boolean")],
        tuples((5, 7), (3, 1), kind="f64"),
        tuples((5, 7), (0, 1), id="no updates", expect=lambda x, *_: x),
        tuples((5, 7), (2, 0), id="empty tuples", expect=lambda x, i, u: u[1]),
        tuples((2,) * 9, (3, 9), id="nine indices"),
        tuples(
            (5, 7),
            (3, 3),
            indices=const(np.zeros((3, 3))),
            updates=(3,),
            error="tuples of 3 indices do not fit rank 2",
            id="long",
        ),
        tuples((5, 7), (3, 1), updates=(3,), error="updates of rank 1 are given, where 2 is needed", id="rank"),
        tuples(
            (5, 7), (3, 1), updates=(3, 5), error="updates have extent 5 on axis 1, where it should be 7", id="extent"
        ),
        tuples((5, 0), (2, 1), indices=const([[0], [5]]), error="index 5 is out of range for extent 5", id="constant"),
        tuples(
            (5, 0), (2, 1), indices=given([[0], [-6]], "i64"), error="an index is out of range for extent 5", id="index"
        ),
    ],
)
ND_REDUCED = (
    [
        tuples(
            (5, 7),
            at,
            kind=kind,
            version="opset15",
            reduction=reduction,
            **{"oracle": "evaluate"} if (kind, reduction) == ("boolean", "sub") else {},
        )  # the plugin computes OR
        for at, kind in (((9, 2), "f32"), ((4, 1), "i32"), ((9, 2), "boolean"), ((4, 1), "f16"))
        for reduction in ("none", "sum", "sub", "prod", "min", "max")
        if at != (9, 2) or kind != "f16"
    ]
    + [tuples((5, 7), (90, 2), kind=kind, version="opset15", reduction="sum") for kind in ("f32", "i64", "u8")]
    + [tuples((5, 7), (4, 2), version="opset15", reduction="mean", error="'mean' is not one of", id="mean")]
)

test_elements = check(plain(OLD) + plain(NEW) + REDUCED + FEW_BITS + ERRORS)
test_slices = check(SLICES)
test_nd = check(ND + ND_REDUCED)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(("f32", "i32", "u8", "f16")))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    what = draw(st.sampled_from(("elements", "slices", "tuples")))
    if what == "slices":
        return slices(shape, tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))), axis, kind=kind)
    if what == "tuples":
        at = (*draw(st.lists(st.integers(1, 5), max_size=2)), draw(st.integers(1, len(shape))))
        if draw(st.booleans()):
            return tuples(shape, at, kind=kind)
        reduction = draw(st.sampled_from(("none", "sum", "sub", "prod", "min", "max")))
        return tuples(shape, at, kind=kind, version="opset15", reduction=reduction)
    at = tuple(draw(st.integers(1, 9 if i == axis % len(shape) else d)) for i, d in enumerate(shape))
    name = f"{shape}-{at}-{axis}-{kind}"
    if draw(st.booleans()) and at[axis] <= shape[axis]:
        return scatter(OLD, shape, at, axis, kind=kind, negative=draw(st.booleans()), id=name)
    reduction = draw(st.sampled_from(("none", "sum", "prod", "min", "max", "mean")))
    mean = {"oracle": "evaluate"} if reduction == "mean" else {}
    return scatter(
        NEW,
        shape,
        at,
        axis,
        kind=kind,
        negative=draw(st.booleans()),
        reduction=reduction,
        use_init_val=draw(st.booleans()),
        id=name,
        **mean,
    )


test_random = sweep(drawn())
