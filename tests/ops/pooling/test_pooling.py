"""Pooling: sliding windows, padding, rounding and indices, and adaptive pooling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

X1, X2, X3 = (2, 3, 11), (2, 3, 9, 12), (2, 2, 5, 7, 6)
ONCE = np.float32([[[[-1, 2, 3], [4, 5, -6], [-7, 8, 9]]]])  # the specification's example


def pool(
    op: str,
    version: str,
    x: In | Sequence[int],
    kernel: Sequence[int],
    id: str | None = None,
    *,
    kind: str = "f32",
    outputs: Any = 1,
    **attrs: Any,
) -> Case:
    axes = len(kernel)
    case = {name: attrs.pop(name) for name in ("error", "expect", "oracle", "rankless", "dynamic") if name in attrs}
    attrs = {"kernel": kernel, "strides": (1,) * axes, "pads_begin": (0,) * axes, "pads_end": (0,) * axes} | attrs
    texts = {
        name.replace("exclude_pad", "exclude-pad"): value
        if isinstance(value, str | bool | int)
        else ",".join(map(str, value))
        for name, value in attrs.items()
    }
    return Case(op, version, [x if isinstance(x, In) else In(x, kind)], texts, outputs, id=id, **case)


def shapes(of: Callable[..., Case]) -> Iterable[Case]:
    """Yield cases for all versions of both ops."""
    yield of(X1, (3,), strides=(2,))
    yield of(X1, (4,), strides=(3,), pads_begin=(2,), pads_end=(1,), rankless=True)
    yield of(X2, (3, 3), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1))
    yield of(X2, (2, 5), strides=(2, 1), pads_begin=(0, 2), pads_end=(1, 0))
    yield of(X2, (9, 12), rankless=True)
    yield of(X2, (1, 1), strides=(2, 3))
    yield of(X2, (1, 1))
    yield of(X3, (2, 3, 2), strides=(1, 2, 2), pads_begin=(1, 0, 1), pads_end=(0, 1, 1))
    yield of(X3, (3, 1, 4), strides=(2, 1, 1))
    for auto in ("same_upper", "same_lower", "valid"):
        yield of(X2, (4, 3), strides=(2, 3), auto_pad=auto, pads_begin=(1, 1), rankless=auto == "same_lower")
    for auto in ("explicit", "valid", "same_upper"):
        yield of(X2, (4, 5), strides=(3, 2), rounding_type="ceil", auto_pad=auto, rankless=auto == "explicit")
    yield of(X2, (4, 3), strides=(4, 4), rounding_type="ceil", pads_begin=(0, 1), pads_end=(1, 0))
    for kind in ("f16", "bf16", "f64", "i8", "u8", "i32"):
        yield of(X2, (3, 2), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 0), kind=kind)


def empty(of: Callable[..., Case]) -> Iterable[Case]:
    yield of((2, 0, 5, 7), (3, 2), "no_channels", expect=lambda x: np.zeros((2, 0, 3, 6), np.float32))
    yield of((0, 3, 5, 7), (3, 2), "no_batch", expect=lambda x: np.zeros((0, 3, 3, 6), np.float32))


def torch_shapes(of: Callable[..., Case]) -> Iterable[Case]:
    """Yield cases of ceil_torch, which exists since opset14."""
    for strides, begin, end in (((2, 2), (1, 1), (1, 1)), ((3, 4), (1, 0), (1, 0)), ((4, 2), (0, 1), (1, 1))):
        yield of(
            X2,
            (2, 3),
            strides=strides,
            pads_begin=begin,
            pads_end=end,
            rounding_type="ceil_torch",
            rankless=strides == (2, 2),
        )


def errors(of: Callable[..., Case]) -> Iterable[Case]:
    for name, error, attrs in (
        ("strides_0", "'strides': 0 is less than 1", {"strides": (0, 1)}),
        ("strides", "'strides' has 3 elements for 2 spatial axes", {"strides": (1, 1, 1)}),
        ("no_strides", "'strides' is missing", {"strides": ""}),
        ("pads", "'pads_end': -1 is less than 0", {"pads_end": (-1, 0)}),
        ("lengths", "'pads_begin' has 1 elements for 2 spatial axes", {"pads_begin": (1,)}),
        ("kernel_0", "the kernel is empty along spatial axis 1", {"kernel": (2, 0)}),
        ("reach", "reaches 10 far does not fit into 9 along spatial axis 0", {"kernel": (10, 2)}),
        ("rounding", "'up' is not one of floor, ceil", {"rounding_type": "up"}),
        ("auto_pad", "'same' is not one of", {"auto_pad": "same"}),
    ):
        yield of(X2, **{"kernel": (2, 2), "id": name, "error": error} | attrs)
    yield of(X2, (2,), "axes", error="the data has 2 spatial axes, the kernel 1")
    yield of(X2, (), "no_kernel", strides=(1,), error="the kernel must have rank 1 or 2 or 3, not 0")
    yield of((2, 3), (2,), "rank", error="the data must have rank 3 or 4 or 5, not 2")
    yield of(X2, (2, 2), "boolean", kind="boolean", error="element type boolean is not a number")


MAX1, MAX8, MAX14 = (functools.partial(pool, "MaxPool", v) for v in ("opset1", "opset8", "opset14"))
AVG1, AVG14, AVG16 = (functools.partial(pool, "AvgPool", v) for v in ("opset1", "opset14", "opset16"))

MAX = [
    *shapes(MAX1),
    *empty(MAX1),
    *errors(MAX1),
    MAX1(given(ONCE), (2, 2), pads_begin=(1, 1), pads_end=(1, 1)),
    MAX1(
        given(np.float32([[[-np.inf, -np.inf, 1, np.nan, 2]]])),
        (2,),
        "specials",
        pads_begin=(1,),
        expect=np.float32([[[-np.inf, -np.inf, 1, np.nan, np.nan]]]),
    ),  # the plugin gives finite numbers
    MAX1(X2, (3, 2), dilations=(2, 3)),  # an attribute that this version does not have
    MAX1((1, 2, 5), (2,), "past_the_end", strides=(4,), pads_begin=(1,), pads_end=(1,), rounding_type="ceil"),
]
test_max = check(MAX)


def max8(
    x: In | Sequence[int], kernel: Sequence[int], *args: Any, version: str = "opset8", kind: str = "f32", **attrs: Any
) -> Case:
    """Return a MaxPool-8 or MaxPool-14 with both outputs, and with dilations: otherwise, the plugin reads out of
    bounds."""
    outputs = [kind, attrs.get("index_element_type", "i64")]
    return pool(
        "MaxPool", version, x, kernel, *args, kind=kind, outputs=outputs, **{"dilations": (1,) * len(kernel)} | attrs
    )


def indices(of: Callable[..., Case]) -> Iterable[Case]:
    yield of(X1, (3,), strides=(2,), dilations=(2,))
    yield of(X1, (4,), strides=(3,), pads_begin=(2,), pads_end=(1,), rankless=True)
    yield of(X2, (3, 3), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1))
    yield of(X2, (2, 5), strides=(2, 1), pads_begin=(0, 2), pads_end=(1, 0), dilations=(2, 1), rankless=True)
    yield of(X2, (9, 12))
    yield of(X3, (2, 3, 2), strides=(1, 2, 2), pads_begin=(1, 0, 1), pads_end=(0, 1, 1), dilations=(2, 1, 3))
    for auto in ("same_upper", "same_lower", "valid"):
        yield of(X2, (4, 3), strides=(2, 3), auto_pad=auto, dilations=(1, 2))
    yield of(X2, (2, 5), strides=(3, 2), rounding_type="ceil", rankless=True)
    for axis in (1, 2, 3, -1, -4):
        yield of(X2, (3, 2), strides=(2, 2), axis=axis, index_element_type="i32")
    for kind in ("f16", "f64", "i8", "u8", "i32", "i64"):
        yield of(X2, (3, 2), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 0), kind=kind)
    yield of(given(ONCE), (2, 2), pads_begin=(1, 1), pads_end=(1, 1))
    yield of(given(np.zeros((1, 2, 4, 5), np.float32)), (3, 2), "equal")
    yield of(
        given(np.arange(12).reshape(1, 2, 2, 3), "f32"),
        (2, 2),
        "no_dilations",
        dilations="",
        expect=(np.float32([[[[4, 5]], [[10, 11]]]]), np.array([[[[4, 5]], [[10, 11]]]])),
    )
    yield of(X2, (3, 3), "axis", axis=4, error="axis 4 is out of range for rank 4")
    yield of((0, 3, 9, 12), (3, 3), "index", index_element_type="i8", error="index_element_type is i8, not i32 or i64")


MAX8, MAX14 = max8, functools.partial(max8, version="opset14")
test_max8 = check([*indices(MAX8), *errors(MAX8)])
test_max14 = check([*indices(MAX14), *torch_shapes(MAX14), *errors(MAX14)])


def averages(of: Callable[..., Case]) -> Iterable[Case]:
    for exclude in (True, False):
        yield from shapes(functools.partial(of, exclude_pad=exclude))
    yield from empty(of)
    yield from errors(of)
    yield of(X2, (2, 3), strides=(2, 2), pads_begin=(2, 0), exclude_pad=False)
    yield of(X2, (2, 3), strides=(2, 2), pads_begin=(1, 0))
    yield of(given(np.arange(-12, 12).reshape(1, 2, 12), "i32"), (2,), "halves", strides=(2,))
    yield of(X2, (2, 3), "padding_only", pads_begin=(2, 0), error="in the padding, which is excluded")
    yield of(
        (1, 2, 5),
        (2,),
        "past_the_end",
        strides=(4,),
        pads_begin=(1,),
        pads_end=(1,),
        rounding_type="ceil",
        expect=lambda x: np.stack([x[..., 0], x[..., 3:].mean(-1), 0 * x[..., 0]], -1),
    )


def dilated(of: Callable[..., Case]) -> Iterable[Case]:
    yield of(X1, (3,), strides=(2,), pads_begin=(1,), pads_end=(3,), dilations=(2,))
    yield of(X2, (3, 2), pads_begin=(1, 3), pads_end=(2, 0), dilations=(2, 3), exclude_pad=True)
    yield of(X2, (3, 2), strides=(2, 1), auto_pad="same_lower", dilations=(2, 3), rankless=True)
    yield of(X2, (2, 3), strides=(2, 3), rounding_type="ceil", dilations=(3, 2))
    yield of(X3, (2, 3, 2), dilations=(2, 1, 3), pads_end=(0, 2, 1))
    yield of(X2, (3, 2), "dilations", dilations=(1, 0), error="'dilations': 0 is less than 1")


def avg16(x: In | Sequence[int], kernel: Sequence[int], *args: Any, **attrs: Any) -> Case:
    """Return an AvgPool-16 with dilations."""
    return pool("AvgPool", "opset16", x, kernel, *args, **{"dilations": (1,) * len(kernel)} | attrs)


AVG1, AVG14 = functools.partial(pool, "AvgPool", "opset1"), functools.partial(pool, "AvgPool", "opset14")
test_average = check(
    [
        *averages(AVG1),
        AVG1(X2, (3, 2), dilations=(2, 3)),
        AVG1(X2, (2, 2), rounding_type="ceil_torch", error="'ceil_torch' is not one of floor, ceil"),
    ]
)
test_average14 = check(
    [
        AVG14(X2, (3, 2), dilations=(2, 3)),
        *torch_shapes(AVG14),
        *torch_shapes(functools.partial(AVG14, exclude_pad=False)),
        *(AVG14(X2, (3, k), strides=(2, 1), pads_begin=(1, 1), exclude_pad=k > 3) for k in range(2, 8)),
    ]
)
test_average16 = check(
    [*dilated(avg16), *torch_shapes(avg16), *(avg16(X2, (3, k), strides=(2, 1)) for k in range(2, 8))]
)


def adaptive(x: In | Sequence[int], sizes: Any, id: str | None = None, *, kind: str = "f32", **given: Any) -> Case:
    inputs = [In(x, kind), sizes if isinstance(sizes, In) else const(sizes)]
    return Case("AdaptiveAvgPool", "opset8", inputs, id=id, **given)


def adaptive_max(*args: Any, index: str = "i32", kind: str = "f32", **given: Any) -> Case:
    """Return an AdaptiveMaxPool with both outputs; the plugin does not support 64-bit indices."""
    case = adaptive(*args, kind=kind, **given)
    return replace(case, op="AdaptiveMaxPool", attrs={"index_element_type": index}, outputs=[kind, index])


def parts(of: Callable[..., Case]) -> Iterable[Case]:
    yield of(X1, [4])
    yield of(X1, [17], rankless=True)
    yield of(X2, [1, 1])
    yield of(X2, [3, 5], rankless=True)
    yield of(X2, [9, 12])
    yield of(X2, [10, 7])
    yield of(X3, [3, 2, 5])
    yield of(X3, [1, 7, 1])
    yield of(X2, const([4, 5], "i32"))
    yield of(X2, given([4, 5]), "sizes_given")
    yield of(X2, given([4, 5], "i32"), "i32_sizes_given", rankless=True)
    for kind in ("f16", "bf16", "f64"):
        yield of(X2, [4, 5], kind=kind)
    yield of(X2, [3], "too_few", error="1 sizes do not fit rank 4")
    yield of(X2, [3, 0], "zero", error="0 is no size of an output")
    yield of(X2, given([0, 5]), "size_of_nothing_given", error="0 is no size of an output", rankless=True)
    yield of((2, 3), [3], "rank", error="the data must have rank 3 or 4 or 5, not 2")
    yield of(X2, const([3.0, 2.0], "f32"), "float", error="the output's sizes must be integers")
    yield of(X2, [3, 2], "i32", kind="i32", error="element type i32 is not real")


test_adaptive_average = check(
    [
        *parts(adaptive),
        adaptive((0, 3, 5, 7), [2, 3], "no_batch", expect=lambda x, _: np.zeros((0, 3, 2, 3), np.float32)),
    ]
)
test_adaptive_max = check(
    [
        *parts(adaptive_max),
        adaptive_max(
            (2, 1, 6),
            [2],
            "i64_indices",
            index="i64",
            expect=lambda x, _: (x.reshape(2, 1, 2, 3).max(3), np.add(x.reshape(2, 1, 2, 3).argmax(3), (0, 3))),
        ),
        adaptive_max(X2, [4, 5], "u8_indices", index="u8", error="index_element_type is u8, not i32"),
    ]
)


@st.composite
def pools(draw: st.DrawFn) -> Case:
    """Draw a case of any of the ops in which no window is empty: the plugin's mean of an empty window is NaN or 0."""
    op, version = draw(
        st.sampled_from(
            [("MaxPool", 1), ("MaxPool", 8), ("MaxPool", 14), ("AvgPool", 1), ("AvgPool", 14), ("AvgPool", 16)]
        )
    )
    axes = draw(st.integers(1, 3))
    kind = draw(st.sampled_from(("f32",) * 4 + ("f16", "i32", "u8")))
    kernel = [draw(st.integers(1, 4)) for _ in range(axes)]
    attrs: dict[str, Any] = {"strides": [draw(st.integers(1, 3)) for _ in kernel], "dilations": [1] * axes}
    if version in (8, 16) or (op == "MaxPool" and version == 14):
        attrs["dilations"] = [draw(st.integers(1, 2)) for _ in kernel]
    for name in ("pads_begin", "pads_end"):
        attrs[name] = [draw(st.integers(0, k - 1)) for k in kernel]
    rounding = ("floor", "ceil", "ceil_torch") if version >= 14 else ("floor", "ceil")
    attrs["rounding_type"] = draw(st.sampled_from(rounding))
    attrs["auto_pad"] = draw(st.sampled_from(("explicit", "explicit", "valid", "same_upper", "same_lower")))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilations"])]
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(draw(st.integers(r, r + 6)) for r in reach)]
    for n, r, step, *pads in zip(shape[2:], reach, attrs["strides"], attrs["pads_begin"], attrs["pads_end"]):
        if step > r or any(-(-(n + b + e - r) // step) * step >= n + b for b, e in (pads, (0, 0))):
            attrs["rounding_type"] = "floor"
    data = In(shape, kind, low=1 if kind == "u8" else None)  # the plugin gives index 0 for the type's lowest value
    case = functools.partial(pool, op, f"opset{version}", data, kernel)
    if op == "AvgPool":
        return case(exclude_pad=draw(st.booleans()), **attrs)
    if version == 1:
        return case(**attrs)
    index = draw(st.sampled_from(("i32", "i64")))
    axis = draw(st.integers(-axes - 2, axes + 1))
    return case(outputs=[kind, index], index_element_type=index, axis=axis, **attrs)


test_random = sweep(pools())


@st.composite
def adaptive_pools(draw: st.DrawFn) -> Case:
    of, kind = draw(st.sampled_from((adaptive, adaptive_max))), draw(st.sampled_from(("f32", "f32", "f16", "f64")))
    sizes = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3))
    shape = [draw(st.integers(1, 3)), draw(st.integers(1, 3)), *(draw(st.integers(1, 9)) for _ in sizes)]
    return of(shape, sizes, kind=kind)


test_random_adaptive = sweep(adaptive_pools(), 100)
