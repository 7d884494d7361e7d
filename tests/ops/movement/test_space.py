"""DepthToSpace, SpaceToDepth, ShuffleChannels, BatchToSpace and SpaceToBatch against OpenVINO."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

KINDS = ("f16", "bf16", "i8", "u8", "i32", "i64", "boolean", "u4", "f8e4m3")
MODES = ("blocks_first", "depth_first")
STRINGS = np.array([[["a", "bb", "c"], ["d", "", "é"]]])


def data(shape: Any) -> In:
    return shape if isinstance(shape, In) else In(shape)


def blocks(op: str, shape: Any, mode: str, size: int | None = 2, **kw: Any) -> Case:
    return Case(op, "opset1", [data(shape)], {"mode": mode} | ({} if size is None else {"block_size": size}), **kw)


def of_modes(op: str, shape: Any, size: int | None = 2, **kw: Any) -> list[Case]:
    return [blocks(op, shape, mode, size, **kw) for mode in MODES]


def deep(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return (shape[0], shape[1] * size ** (len(shape) - 2), *shape[2:])


def wide(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    return (*shape[:2], *(size * d for d in shape[2:]))


BLOCKS = [
    case
    for op, fit in (("DepthToSpace", deep), ("SpaceToDepth", wide))
    for case in [
        *of_modes(op, fit((2, 3, 5), 2)),
        *of_modes(op, fit((2, 3, 5, 7), 2), rankless=True),
        *of_modes(op, fit((1, 3, 5, 2), 3), 3),
        *of_modes(op, fit((2, 3, 1, 5, 3), 2)),
        *of_modes(op, fit((3, 1, 1, 1), 2), id=None),
        *of_modes(op, (2, 3, 5, 7), 1),
        *of_modes(op, (2, 3, 5, 7), None, expect=lambda x: x),  # OpenVINO reads a missing size as 0
        *of_modes(op, fit((0, 3, 5, 7), 2)),
        *[blocks(op, In(fit((2, 3, 5, 7), 2), kind), MODES[0]) for kind in KINDS],
        blocks(op, In(fit((2, 3, 5, 7), 2), "f64"), MODES[1]),
        blocks(op, (2, 4), MODES[0], error="rank 2 is less than 3"),
        blocks(op, (2, 4, 4), MODES[0], 0, error="block_size 0 is not positive"),
        blocks(op, (2, 4, 4), "middle", error="'middle' is not one of"),
        blocks(op, (2, 7, 7), MODES[0], error="7, is no multiple of 2"),
    ]
]
STRING_BLOCKS = [
    blocks(
        "DepthToSpace",
        given(STRINGS),
        MODES[0],
        id="strings",
        expect=lambda x: np.stack([x[:, 0], x[:, 1]], -1).reshape(1, 1, 6),
    )
]


def shuffle(shape: Any, axis: int | None = 1, group: int | None = 3, **kw: Any) -> Case:
    attrs = {name: value for name, value in (("axis", axis), ("group", group)) if value is not None}
    return Case("ShuffleChannels", "opset1", [data(shape)], attrs, **kw)


SHUFFLE = [
    shuffle((2, 6, 5, 7), rankless=True),
    shuffle((2, 6, 5, 7), 1, 2),
    shuffle((6, 2, 5), 0),
    shuffle((2, 5, 6), -1),
    shuffle((2, 5, 6, 7, 3), -3, 2),
    shuffle((6,), 0),
    shuffle((2, 6, 5), 1, 6),
    shuffle((2, 6, 5), 1, 1),
    shuffle((2, 6, 5), None, None, id="defaults"),
    shuffle((2, 6, 0)),
    *[shuffle(In((2, 6, 5), kind)) for kind in (*KINDS, "f64")],
    shuffle((2, 6, 5), 3, error="axis 3 is out of range for rank 3"),
    shuffle((2, 6, 5), 1, 0, error="group 0 is not positive"),
    shuffle((2, 6, 5), 1, 4, error="the number of channels, 6, is no multiple of 4"),
]


def batches(op: str, shape: Any, block: Any, begin: Any = None, end: Any = None, **kw: Any) -> Case:
    none = [0] * len(block.data if isinstance(block, In) else block)
    sizes = [v if isinstance(v, In) else const(none if v is None else v) for v in (block, begin, end)]
    return Case(op, "opset2", [data(shape), *sizes], **kw)


def to_space(*args: Any, **kw: Any) -> Case:
    return batches("BatchToSpace", *args, **kw)


def to_batch(*args: Any, **kw: Any) -> Case:
    """Return a case judged by the reference, which needs rank 3."""
    return batches("SpaceToBatch", *args, **{} if "expect" in kw else {"oracle": "evaluate"}, **kw)


TO_SPACE = [
    to_space((10, 3), [1, 5]),
    to_space((10, 3), [1, 5], [0, 2], rankless=True),
    to_space((12, 3, 5), [1, 2, 3], [0, 1, 0], [0, 0, 4]),
    to_space((12, 3, 5, 7), [1, 2, 1, 3], rankless=True),
    to_space((12, 3, 5, 7), [1, 2, 1, 3], [0, 1, 2, 3], [0, 2, 1, 4]),
    to_space((6, 1, 5, 1), [1, 3, 1, 2]),
    to_space((24, 2, 3, 1, 3), [1, 2, 4, 3, 1], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]),
    to_space((3, 5, 7), [1, 1, 1]),
    to_space((3, 5, 7), [1, 1, 1], [0, 1, 2], [0, 1, 0], id="only crops"),
    to_space((4, 3, 5), [1, 2, 1], [0, 3, 0], [0, 3, 0], id="nothing is left"),
    to_space((0, 3, 5), [1, 2, 1], expect=lambda x, *_: x.reshape(0, 6, 5)),  # the plugin divides by zero
    to_space((12, 3, 5), const([1, 2, 3], "i32"), const([0, 1, 0], "i32"), const([0, 0, 4], "i32"), id="i32"),
    to_space((12, 3, 5, 2), given([1, 2, 3, 1]), given([0, 1, 0, 0]), given([0, 0, 4, 0]), id="given sizes"),
    *[to_space(In((4, 3, 5), kind), [1, 2, 1], [0, 1, 0]) for kind in (*KINDS, "f64") if kind != "u4"],
    to_space(In((4, 3, 5), "u4"), [1, 2, 1], [0, 1, 0], expect=lambda x, *_: _to_space(x)[:, 1:]),
    to_space((10, 3), [1, 4], error="the number of batches, 10, is no multiple of 4"),
    to_space((10, 3), [1, 5], [0, 9], [0, 7], error="16 elements are cropped of the 15 of axis 1"),
    to_space((10, 3), [5, 1], error="block_shape 5 of the batch axis is not 1"),
    to_space((10, 3), [1, 0], error="block_shape 0 of axis 1 is less than 1"),
    to_space((10, 3), [1, 5], [0, -1], error="begin -1 of axis 1 is less than 0"),
    to_space((10, 3), [1, 5], [1, 0], error="begin 1 of the batch axis is not 0"),
    to_space((10, 3), [1, 5, 1], error="block_shape has 3 elements for rank 2"),
    to_space((10, 3), const([1.0, 5.0], "f32"), error="block_shape must be integers"),
    to_space((10,), [1], error="rank 1 is less than 2"),
]
TO_BATCH = [
    to_batch((2, 15), [1, 5], expect=lambda x, *_: x.reshape(2, 3, 5).transpose(2, 0, 1).reshape(10, 3)),
    to_batch(
        (2, 13),
        [1, 5],
        [0, 2],
        rankless=True,
        expect=lambda x, *_: np.pad(x, [(0, 0), (2, 0)]).reshape(2, 3, 5).transpose(2, 0, 1).reshape(10, 3),
    ),
    to_batch((2, 5, 9), [1, 2, 3], [0, 1, 0]),
    to_batch((2, 6, 5, 9), [1, 2, 1, 3], rankless=True),
    to_batch((2, 3, 5, 7), [1, 2, 1, 3], [0, 1, 2, 3], [0, 2, 1, 2]),
    to_batch((2, 6, 10, 3, 3), [1, 2, 4, 3, 1], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]),
    to_batch((3, 1, 5, 1), [1, 3, 1, 2], [0, 2, 0, 0], [0, 0, 0, 1]),
    to_batch((3, 5, 7), [1, 1, 1]),
    to_batch((3, 5, 7), [1, 1, 1], [0, 1, 2], [0, 1, 0], id="only pads"),
    to_batch(
        (3, 0, 7), [1, 2, 1], [0, 1, 0], [0, 3, 0], expect=lambda *_: np.zeros((6, 2, 7), np.float32), id="only padding"
    ),
    to_batch(
        (2, 6, 9),
        const([1, 2, 3], "i32"),
        const([0] * 3, "i32"),
        const([0] * 3, "i32"),
        id="i32",
        expect=lambda x, *_: x.reshape(2, 3, 2, 3, 3).transpose(2, 4, 0, 1, 3).reshape(12, 3, 3),
    ),
    to_batch((2, 5, 9, 3), given([1, 2, 3, 1]), given([0, 1, 0, 0]), given([0, 0, 0, 0]), id="given sizes"),
    *[to_batch(In((2, 3, 5), kind), [1, 2, 1], [0, 1, 0]) for kind in (*KINDS, "f64") if kind != "u4"],
    to_batch(
        In((2, 4, 5), "u4"),
        [1, 2, 1],
        expect=lambda x, *_: x.reshape(2, 2, 2, 5).transpose(2, 0, 1, 3).reshape(4, 2, 5),
    ),
    to_batch((2, 15), [1, 4], error="the padded extent of axis 1, 15, is no multiple of 4"),
    to_batch((2, 15), [2, 1], error="block_shape 2 of the batch axis is not 1"),
    to_batch((2, 15), [1, -3], error="block_shape -3 of axis 1 is less than 1"),
    to_batch((2, 15), [1, 4], None, [0, -3], error="end -3 of axis 1 is less than 0"),
    to_batch((2, 15), [1, 3], [1], error="begin has 1 elements for rank 2"),
    to_batch((15,), [1], error="rank 1 is less than 2"),
]


def _to_space(x: Any) -> Any:
    return x.reshape(2, 2, 3, 5).transpose(1, 2, 0, 3).reshape(2, 6, 5)


test_depth = check(BLOCKS + STRING_BLOCKS)
test_shuffle = check(SHUFFLE)
test_batches = check(TO_SPACE + TO_BATCH)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    kind, op = draw(st.sampled_from(("f32", "f16", "u8"))), draw(st.integers(0, 4))
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=3, max_size=5)))
    sizes = [draw(st.integers(1, 3)) for _ in shape]
    if op < 2:
        name, fit = (("DepthToSpace", deep), ("SpaceToDepth", wide))[op]
        return blocks(name, In(fit(shape, sizes[0]), kind), draw(st.sampled_from(MODES)), sizes[0])
    if op == 2:
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        fit = [d * sizes[0] if i == axis % len(shape) else d for i, d in enumerate(shape)]
        return shuffle(In(fit, kind), axis, sizes[0])
    block = [1, *sizes[1:]]
    if op == 3:
        begin = [0, *(draw(st.integers(0, d * b // 2)) for d, b in zip(shape[1:], block[1:]))]
        end = [0, *(draw(st.integers(0, d * b // 2)) for d, b in zip(shape[1:], block[1:]))]
        return to_space(In((shape[0] * int(np.prod(block)), *shape[1:]), kind), block, begin, end)
    begin = [0, *(draw(st.integers(0, 4)) for _ in block[1:])]
    end = [0, *((-d - b) % n + n * draw(st.integers(0, 1)) for d, b, n in zip(shape[1:], begin[1:], block[1:]))]
    return to_batch(In(shape, kind), block, begin, end)


test_random = sweep(drawn())
