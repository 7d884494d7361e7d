"""StringTensorPack and StringTensorUnpack against OpenVINO."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

TEXT = "Grüße, 世界! from OpenVINO 2026"  # 35 bytes of UTF-8
WORDS = ["OMZ", "", "GenAI", " ", "2024", "日本語"]


def symbols(count: int) -> In:
    """Return random letters."""
    letters = np.frombuffer(string.ascii_letters.encode(), np.uint8)
    return In((count,), "u8", lambda rng: rng.choice(letters, count))


def pack(begins: Any, ends: Any, text: str | int | In = TEXT, kind: str = "i32", **case: Any) -> Case:
    """Return a StringTensorPack of a given text, or of ``text`` random letters."""
    if not isinstance(text, In):
        text = given(np.frombuffer(text.encode(), np.uint8)) if isinstance(text, str) else symbols(text)
    bounds = [x if isinstance(x, In) else given(np.array(x, kind.replace("i", "int")), kind) for x in (begins, ends)]
    return Case("StringTensorPack", "opset15", [*bounds, text], outputs=["string"], **case)


def unpack(words: Any, **case: Any) -> Case:
    x = words if isinstance(words, In) else In(np.shape(words), "string", np.array(words, str))
    return Case("StringTensorUnpack", "opset15", [x], outputs=["i32", "i32", "u8"], **case)


PACK = [
    pack([0, 5], [5, 13], "IntelOpenVINO", id="two"),
    pack([0, 5], [5, 13], "IntelOpenVINO", "i64", id="two_i64"),
    pack([0, 3, 3, 8, 9], [3, 3, 8, 9, 13], "OMZGenAI 2024", id="one_is_empty", rankless=True),
    pack([0, 8], [1, 9], "123456789", id="symbols_are_skipped"),
    pack([[0, 5, 13], [16, 21, 21]], [[5, 13, 16], [21, 21, 23]], 23, id="matrix", rankless=True),
    pack([7, 2, 0], [11, 7, 11], 11, id="overlapping_in_any_order"),
    pack([0, 7, 9, 15, 18], [7, 9, 15, 18, 35], id="utf8"),
    pack([0, 10, 8], [3, 12, 9], id="cut_letters"),
    pack(4, 9, 11, id="scalar"),
    pack([0, 0], [0, 0], 0, id="no_symbols"),
    pack(np.zeros((2, 0)), np.zeros((2, 0)), 5, "i64", id="no_strings"),
    pack(const([[[0, 0]], [[2, 6]]], "i64"), const([[[0, 2]], [[6, 9]]], "i64"), 9, id="constant_places"),
    pack([1, 3], [3, 6], const(list(b"letters"), "u8"), id="constant_symbols"),
    pack(
        const([1, 3], "i32"),
        const([3, 6], "i32"),
        const(list(b"letters"), "u8"),
        id="constant",
        expect=np.array(["et", "ter"]),
    ),  # OpenVINO cannot compute it
]

UNPACK = [
    unpack(["Intel", "OpenVINO"]),
    unpack(WORDS, id="utf8", rankless=True),
    unpack([WORDS[:3], WORDS[3:]], id="matrix", rankless=True),
    unpack("scalar"),
    unpack(["", ""], id="empty_strings"),
    unpack(np.zeros((3, 0), str), id="no_strings"),
    unpack(In((2, 3, 5), "string")),
    unpack(In((1031,), "string")),
    unpack(In((7,), "string"), id="one_axis"),
    unpack(In((7, 1), "string"), id="two_axes"),
    unpack(In((2, 5), "string", const=True)),
    unpack(const(WORDS, "string"), id="constant_utf8"),
]

ERRORS = [
    pack(const([0]), const([14]), "IntelOpenVINO", id="behind_the_last_symbol", error="offsets among 13 symbols"),
    pack(const([-1]), const([4]), 5, id="before_the_first_symbol", error="offsets among 5 symbols"),
    pack(
        const([3], "i32"),
        const([2], "i32"),
        const(list(b"letters"), "u8"),
        id="ends_before_it_begins",
        error="offsets among 7 symbols",
    ),
    pack([0], [1], In((3,), "i8"), id="i8_symbols", error="symbols must be u8, not i8"),
    pack([0], [1], In((3, 1), "u8"), id="symbols_of_rank_2", error="symbols must have rank 1, not 2"),
    pack([0], [1], 3, "i16", id="i16", error="begins must be i32 or i64, not i16"),
    pack(const([0]), const([1], "i32"), 3, id="two_types", error="begins are i64, ends i32"),
    pack([0], [[1]], 3, id="two_ranks", error="begins have rank 1, ends 2"),
    pack([0, 1], [1, 1, 1], 3, id="two_shapes", error="begins have 2, ends 3 elements on axis 0"),
    unpack(In((3,), "u8"), error="strings are expected, not u8"),
]

test_cases = check(PACK + UNPACK + ERRORS)


SHAPES = st.lists(st.sampled_from((0, 1, 2, 3, 5, 7)), max_size=3).map(tuple)


@st.composite
def packs(draw: st.DrawFn) -> Case:
    shape, count = draw(SHAPES), draw(st.integers(0, 40))
    cuts: Sequence[np.ndarray[Any, Any]] = np.sort(
        np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, count, (2, *shape), endpoint=True), axis=0
    )
    kind, fixed = draw(st.sampled_from(("i32", "i64"))), draw(st.booleans())
    return pack(*(const(cut, kind) if fixed else given(cut, kind) for cut in cuts), symbols(count))


@st.composite
def unpacks(draw: st.DrawFn) -> Case:
    return unpack(In(draw(SHAPES), "string", const=draw(st.booleans())))


test_random = sweep(packs() | unpacks(), 100)
