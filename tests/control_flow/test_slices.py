"""Slices of a TensorIterator's inputs and concatenation of its outputs: any axis, start, end, stride, part size.

OpenVINO's CPU plugin is the oracle where possible. It ignores a start that is not at either end, uses the stride as
part size, and concatenates only parts of the part size, so the other cases are computed with NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.harness import Infer, Net, Scenario, check, feed, take
from tests.harness.layers import add, mul, numbers, scalar, transpose

BACKWARDS = {"start": -1, "end": 0, "stride": -1}


def scan(
    shape: Sequence[int],
    axis: int,
    attrs: dict[str, int] | None = None,
    *,
    out_axis: int | None = None,
    out: dict[str, int] | None = None,
    declared: Sequence[int] | None = None,
) -> Net:
    """Build h = h / 2 + part, starting with zeros. The outputs are the last h and all of them."""
    attrs = attrs or {}
    part = list(shape)
    part[axis] = attrs.get("part_size", 1)
    net, body = Net(), Net()
    x = net.parameter("f32", shape if declared is None else declared, "x")
    xi, h = body.parameter("f32", part), body.parameter("f32", part)
    new = body.result(add(body, mul(body, h, scalar(body, 0.5)), xi))
    start = net.const(np.zeros(part, np.float32))
    out_axis = axis if out_axis is None else out_axis
    last, every = net.tensor_iterator(
        body,
        [feed(x, xi, axis=axis, **attrs), feed(start, h)],
        [take(new), take(new, axis=out_axis, **(out or {}))],
        [(new, h)],
    )
    net.result(last)
    net.result(every)
    return net


def parts(x: Any, axis: int, start: int = 0, end: int = -1, stride: int = 1, part_size: int = 1) -> list[Any]:
    """Return the slices in order of iteration, by the specification."""
    size = x.shape[axis]
    first, last = (v + size + 1 if v < 0 else v for v in (start, end))
    begins = range(first, last, stride) if stride > 0 else [b - part_size for b in range(first, last, stride)]
    return [np.take(x, range(b, b + part_size), axis) for b in begins]


def scanned(
    x: Any,
    axis: int,
    attrs: dict[str, int] | None = None,
    *,
    out_axis: int | None = None,
    out: dict[str, int] | None = None,
) -> Infer:
    """Compute the outputs of `scan` with NumPy."""
    found, h = [], None
    for part in parts(x, axis, **(attrs or {})):
        h = part if h is None else h / 2 + part
        found.append(h)
    if (out or {}).get("stride", 1) < 0:
        found.reverse()
    return Infer([h, np.concatenate(found, axis if out_axis is None else out_axis)], x=x)


def by_plugin(
    name: str, shape: Sequence[int], axis: int, attrs: dict[str, int] | None = None, **kwargs: Any
) -> Scenario:
    return Scenario(name, scan(shape, axis, attrs, **kwargs), [Infer(x=numbers(*shape, seed=n)) for n in range(2)])


def by_value(
    name: str,
    shape: Sequence[int],
    axis: int,
    attrs: dict[str, int] | None = None,
    *,
    declared: Sequence[int] | None = None,
    **kwargs: Any,
) -> Scenario:
    return Scenario(
        name,
        scan(shape, axis, attrs, declared=declared, **kwargs),
        [scanned(numbers(*shape, seed=n), axis, attrs, **kwargs) for n in range(2)],
        oracle="value",
    )


def lengths(name: str, axis: int, attrs: dict[str, int], *counts: int, out: dict[str, int] | None = None) -> Scenario:
    """Run the same iterator over axes of different extents, one after the other."""
    shape = [2, 3, 5]
    declared = list(shape)
    declared[axis] = -1
    steps = []
    for i, count in enumerate(counts):
        shape[axis] = count
        steps.append(scanned(numbers(*shape, seed=i), axis, attrs, out=out))
    return Scenario(name, scan([2, 3, 5], axis, attrs, declared=declared, out=out), steps, oracle="value")


def transposed_input() -> Net:
    """Build an iterator whose sliced input is a transposed view."""
    net, body = Net(), Net()
    x = net.parameter("f32", (3, 5, 2), "x")
    xi, h = body.parameter("f32", (1, 3, 2)), body.parameter("f32", (1, 3, 2))
    new = body.result(add(body, xi, h))
    start = net.const(np.zeros((1, 3, 2), np.float32))
    for port in net.tensor_iterator(
        body,
        [feed(transpose(net, x, [1, 0, 2]), xi, axis=0), feed(start, h)],
        [take(new), take(new, axis=1)],
        [(new, h)],
    ):
        net.result(port)
    return net


def transposed_output() -> Net:
    """Build an iterator whose concatenated output is used transposed and as it is."""
    net, body = Net(), Net()
    x = net.parameter("f32", (5, 2, 3), "x")
    xi = body.parameter("f32", (1, 2, 3))
    new = body.result(mul(body, xi, scalar(body, -2)))
    every = net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(new, axis=0)])
    net.result(transpose(net, every, [2, 0, 1]))
    net.result(mul(net, every, every))
    return net


def two_slices(
    axes: tuple[int, int],
    shapes: Sequence[Sequence[int]],
    attrs: tuple[dict[str, int], ...],
    bodies: Sequence[Sequence[int]],
    out_axis: int,
) -> Net:
    net, body = Net(), Net()
    outer = [net.parameter("f32", shape, name) for shape, name in zip(shapes, "xy")]
    inner = [body.parameter("f32", shape) for shape in bodies]
    new = body.result(mul(body, *inner))
    links = [feed(o, i, axis=axis, **a) for o, i, axis, a in zip(outer, inner, axes, attrs)]
    net.result(net.tensor_iterator(body, links, [take(new, axis=out_axis)]))
    return net


def zipped(
    name: str, axes: tuple[int, int], shapes: Sequence[Sequence[int]], attrs: tuple[dict[str, int], ...], out_axis: int
) -> Scenario:
    bodies = []
    for axis, shape, a in zip(axes, shapes, attrs):
        bodies.append([*shape[:axis], a.get("part_size", 1), *shape[axis + 1 :]])
    steps = []
    for seed in range(2):
        x, y = (numbers(*shape, seed=seed + i) for i, shape in enumerate(shapes))
        pairs = zip(parts(x, axes[0], **attrs[0]), parts(y, axes[1], **attrs[1]))
        steps.append(Infer([np.concatenate([a * b for a, b in pairs], out_axis)], x=x, y=y))
    return Scenario(name, two_slices(axes, shapes, attrs, bodies, out_axis), steps, oracle="value")


def both_sliced_and_whole() -> Net:
    """Build an iterator with an input that is sliced for one parameter and whole for another."""
    net, body = Net(), Net()
    x = net.parameter("f32", (4, 3), "x")
    xi, whole = body.parameter("f32", (1, 3)), body.parameter("f32", (4, 3))
    new = body.result(mul(body, xi, whole))
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0), feed(x, whole)], [take(new, axis=1)]))
    return net


def one_input_forwards_and_backwards() -> Net:
    net, body = Net(), Net()
    x = net.parameter("f32", (4, 3), "x")
    a, b = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(mul(body, a, add(body, b, scalar(body, 1))))
    net.result(net.tensor_iterator(body, [feed(x, a, axis=0), feed(x, b, axis=0, **BACKWARDS)], [take(new, axis=0)]))
    return net


def error(name: str, shape: Sequence[int], axis: int, attrs: dict[str, int], message: str, **kwargs: Any) -> Scenario:
    return Scenario(
        name, scan(shape, axis, attrs, **kwargs), [Infer(x=numbers(*shape))], error=message, error_op="TensorIterator"
    )


SCENARIOS = [
    *[
        by_plugin(f"axis-{axis}-of-{len(shape)}", shape, axis)
        for shape in ((5,), (5, 3), (2, 5, 3), (2, 3, 4, 5))
        for axis in range(len(shape))
    ],
    *[by_plugin(f"axis-{axis}-backwards", (2, 5, 3), axis, BACKWARDS, out=BACKWARDS) for axis in range(3)],
    *[by_value(f"axis-{axis}", (2, 5, 3), axis) for axis in (-1, -2, -3)],
    by_value("axis--1-backwards", (2, 5, 3), -1, BACKWARDS, out=BACKWARDS),
    by_plugin("forwards-in-backwards-out", (2, 5, 3), 1, out=BACKWARDS),
    by_plugin("backwards-in-forwards-out", (2, 5, 3), 1, BACKWARDS),
    by_value("concatenated-along-another-axis", (2, 5, 3), 1, out_axis=0),
    by_value("concatenated-along-the-last-axis", (2, 5, 3), 0, out_axis=2),
    by_value("reversed-along-another-axis", (2, 5, 3), 1, out_axis=2, out=BACKWARDS),
    by_plugin("one-iteration", (2, 1, 3), 1),
    by_plugin("one-iteration-backwards", (2, 1, 3), 1, BACKWARDS, out=BACKWARDS),
    by_plugin("everything-written-out", (2, 5, 3), 1, {"start": 0, "end": -1, "stride": 1, "part_size": 1}),
    by_value("end-is-the-size", (2, 5, 3), 1, {"start": 0, "end": 5}),
    # parts of more than one element
    by_plugin("parts-of-two", (2, 6, 3), 1, {"stride": 2, "part_size": 2}, out={"stride": 2, "part_size": 2}),
    by_plugin(
        "parts-of-three-along-the-first-axis",
        (6, 5),
        0,
        {"stride": 3, "part_size": 3},
        out={"stride": 3, "part_size": 3},
    ),
    by_plugin(
        "parts-of-two-backwards",
        (2, 6, 3),
        1,
        {**BACKWARDS, "stride": -2, "part_size": 2},
        out={**BACKWARDS, "stride": -2, "part_size": 2},
    ),
    by_plugin("one-part-of-all", (2, 5, 3), 1, {"stride": 5, "part_size": 5}, out={"stride": 5, "part_size": 5}),
    # by value from here: see above
    by_value("start", (2, 5, 3), 1, {"start": 2}),
    by_value("start-at-the-last", (2, 5, 3), 1, {"start": 4}),
    by_value("end", (2, 5, 3), 1, {"end": 3}),
    by_value("start-and-end", (7, 3), 0, {"start": 2, "end": 5}),
    by_value("negative-start", (7, 3), 0, {"start": -4}),
    by_value("negative-end", (7, 3), 0, {"end": -3}),
    by_value("negative-start-and-end", (2, 7), 1, {"start": -6, "end": -2}),
    by_value("backwards-from-the-middle", (7, 3), 0, {"start": 5, "end": 0, "stride": -1}),
    by_value("backwards-to-the-middle", (7, 3), 0, {"start": -1, "end": 3, "stride": -1}),
    by_value("backwards-within", (2, 7), 1, {"start": -2, "end": 2, "stride": -1}),
    by_value("every-other", (8, 3), 0, {"stride": 2}),
    by_value("every-third-from-the-second", (3, 7), 1, {"start": 1, "stride": 3}),
    by_value("every-other-backwards", (8, 3), 0, {**BACKWARDS, "stride": -2}),
    by_value("parts-of-two-from-the-third", (8, 3), 0, {"start": 2, "stride": 2, "part_size": 2}),
    by_value("overlapping-parts", (6, 3), 0, {"end": 4, "part_size": 3}),
    by_value("overlapping-parts-backwards", (6, 3), 0, {"start": -1, "end": 2, "stride": -1, "part_size": 3}),
    by_value("parts-with-gaps", (9, 2), 0, {"stride": 3, "part_size": 2}),
    # trip counts from the input's shape
    lengths("length-by-length", 1, {}, 4, 1, 7, 4, 7, 2),
    lengths("length-by-length-first-axis", 0, {}, 4, 1, 7, 4),
    lengths("length-by-length-last-axis", 2, {}, 4, 1, 7, 4),
    lengths("length-by-length-negative-axis", -1, {}, 3, 6, 3),
    lengths("length-by-length-backwards", 1, BACKWARDS, 4, 1, 7, 4, out=BACKWARDS),
    lengths("length-by-length-from-the-second", 1, {"start": 1}, 4, 2, 7),
    lengths("length-by-length-in-parts", 0, {"stride": 2, "part_size": 2}, 4, 2, 8, 6),
    # several sliced inputs
    zipped("two-inputs", (0, 0), ((4, 3), (4, 3)), ({}, {}), 0),
    zipped("two-inputs-along-two-axes", (0, 1), ((4, 3), (1, 4)), ({}, {}), 0),
    zipped("two-inputs-of-two-part-sizes", (0, 0), ((4, 3), (8, 3)), ({}, {"stride": 2, "part_size": 2}), 0),
    zipped("two-inputs-in-opposite-directions", (1, 1), ((2, 5), (2, 5)), ({}, BACKWARDS), 1),
    zipped("two-inputs-of-two-sizes", (0, 0), ((4, 3), (7, 3)), ({}, {"start": 3}), 0),
    Scenario(
        "sliced-and-whole",
        both_sliced_and_whole(),
        [Infer([np.concatenate([row * x for row in x], 1)], x=x) for x in (numbers(4, 3, seed=n) for n in range(2))],
        oracle="value",
    ),
    Scenario(
        "one-input-forwards-and-backwards",
        one_input_forwards_and_backwards(),
        [Infer(x=numbers(4, 3, seed=n)) for n in range(2)],
    ),
    Scenario(
        "transposed-input",
        transposed_input(),
        [
            Infer([np.sum(x, 1)[None], np.cumsum(x, 1).transpose(1, 0, 2).reshape(1, 15, 2)], x=x)
            for x in (numbers(3, 5, 2, seed=n) for n in range(2))
        ],
        oracle="value",
    ),
    Scenario("transposed-output", transposed_output(), [Infer(x=numbers(5, 2, 3, seed=n)) for n in range(2)]),
    # errors
    error("stride-does-not-divide", (2, 5), 1, {"stride": 2, "part_size": 2}, "do not divide"),
    error("stride-does-not-divide-backwards", (2, 5), 1, {**BACKWARDS, "stride": -2, "part_size": 2}, "do not divide"),
    error("end-past-the-axis", (2, 5), 1, {"end": 6}, "past"),
    error("start-past-the-axis", (2, 5), 1, {"start": 6, "end": 7}, "past"),
    error("negative-start-past-the-axis", (2, 5), 1, {"start": -7}, "past|divide"),
    error("end-before-start", (2, 5), 1, {"start": 4, "end": 2}, "do not divide|past|before"),
    error("last-part-past-the-end", (2, 5), 1, {"part_size": 2}, "past"),
    error("axis-out-of-range", (2, 5), 1, {}, "axis 2 of rank 2", out_axis=2),
    Scenario(
        "different-numbers-of-iterations",
        two_slices((0, 0), ((4, 3), (5, 3)), ({}, {}), ((1, 3), (1, 3)), 0),
        [Infer(x=numbers(4, 3), y=numbers(5, 3))],
        error="4 and 5 iterations|5 and 4 iterations",
        error_op="TensorIterator",
    ),
]
test_slices = check(SCENARIOS)
