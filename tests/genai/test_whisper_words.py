"""Times of words: alignment and filters against plain loops, and the rules for words one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.genai.whisper import words
from ovgpu.genai.whisper.words import _median_filter, _merged, _shorten, _split, _warp, _Word

Array = np.ndarray[Any, Any]


def plain_warp(costs: Array) -> list[tuple[int, int]]:
    """Return the path of least cost, as the loops of openai/whisper's timing.py find it."""
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    steps = np.full((rows + 1, columns + 1), -1)
    total[0, 0] = 0
    for j in range(1, columns + 1):
        for i in range(1, rows + 1):
            both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            if both < row and both < column:
                least, steps[i, j] = both, 0
            elif row < both and row < column:
                least, steps[i, j] = row, 1
            else:
                least, steps[i, j] = column, 2
            total[i, j] = costs[i - 1, j - 1] + least
    steps[0, :], steps[:, 0] = 2, 1
    i, j, path = rows, columns, []
    while i > 0 or j > 0:
        path.append((max(i - 1, 0), max(j - 1, 0)))
        step = steps[i, j]
        i, j = i - (step != 2), j - (step != 1)
    return path[::-1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (7, 30), (30, 7), (12, 12)])
def test_warp(shape: tuple[int, int]) -> None:
    """Small integers have many paths of equal cost."""
    random = np.random.RandomState(1)
    for costs in (random.normal(size=shape), random.randint(0, 3, shape), np.zeros(shape)):
        found = _warp(costs.astype(np.float32))
        assert [*zip(*(part.tolist() for part in found))] == plain_warp(costs.astype(np.float32))


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 6, 7, 8, 30])
def test_median_filter(columns: int) -> None:
    x = np.random.RandomState(2).normal(size=(3, columns)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (3, 3)), constant_values=np.nan)
    expected = [np.nanmedian(padded[:, i : i + 7], axis=1) for i in range(columns)]
    np.testing.assert_array_equal(_median_filter(x), np.array(expected).T)


def of(*parts: tuple[str, float, float]) -> list[_Word]:
    return [_Word(text, [n], np.float32(start), np.float32(end)) for n, (text, start, end) in enumerate(parts)]


def test_punctuation_joins_words() -> None:
    found = _merged(of((' "', 0, 1), ("Oh", 1, 2), (",", 2, 3), ("!", 3, 4), (" ", 4, 5), (".", 5, 6), ("。", 6, 7)))
    assert [(word.text, word.tokens) for word in found] == [
        (' "Oh,!', [0, 1, 2, 3]),
        (" ", [4]),
        (".", [5]),
        ("。", [6]),
    ]
    assert (found[0].start, found[0].end) == (1, 2)
    assert [word.text for word in _merged(of((" (", 0, 1), (" [", 1, 2), ("a", 2, 3)))] == [" ( [a"]
    assert [word.text for word in _merged(of((",", 0, 1)))] == [","]


def test_long_words_are_shortened() -> None:
    """Beside the end of a sentence, to twice the median of all words, which is 0.7 s at most."""
    found = of(("a", 0, 0.5), (".", 0.5, 3), ("b", 3, 6), ("c", 6, 9), ("d", 9, 9))
    _shorten(found)
    times = [(float(word.start), float(word.end)) for word in found]
    longest = pytest.approx(1.4)
    assert times[1][0] == 0.5 and times[1][1] - 0.5 == longest
    assert times[2][1] == 6 and 6 - times[2][0] == longest
    assert times[3] == (6, 9) and times[0] == (0, 0.5) and times[4] == (9, 9)
    still = of(("a", 1, 1), ("b", 1, 1))
    _shorten(still)
    assert [(word.start, word.end) for word in still] == [(1, 1)] * 2


class Letters:
    """Tokenizer whose tokens are parts of texts; the last one is the end of the text."""

    def __init__(self, *parts: bytes) -> None:
        self.parts = [*parts, b"<|endoftext|>"]

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return b"".join(self.parts[token] for token in tokens).decode(errors="replace")

    def get_eos_token_id(self) -> int:
        return len(self.parts) - 1


def test_tokens_form_words() -> None:
    tokenizer: Any = Letters(b" Oh", b"my", b",", b" \xe4", b"\xbd", b"\xa0", b"a", b"\xe4")
    tokens = [0, 1, 2, 3, 4, 5, 6]
    found = [(word.text, word.tokens) for word in _split([*tokens, 8], tokenizer, "en")]
    assert found == [(" Ohmy", [0, 1]), (",", [2]), (" 你a", [3, 4, 5, 6]), ("<|endoftext|>", [8])]
    found = [(word.text, word.tokens) for word in _split([*tokens, 8], tokenizer, "zh")]
    assert [text for text, _ in found] == [" Oh", "my", ",", " 你", "a", "<|endoftext|>"]
    assert [word.text for word in _split([0, 7, 8], tokenizer, "en")] == [" Oh"]  # the last character is not complete


def test_no_positions() -> None:
    """Speech that ended before the window has no words."""
    tokenizer: Any = Letters(b" a", b" b")
    scores = np.zeros((2, 6, 8), np.float32)
    assert words.time_words(scores, 2, 0, [0, 1, 2], tokenizer, "en", 0) == []
    found = words.time_words(scores, 2, 8, [0, 1, 2], tokenizer, "en", 10)
    assert [word.word for word in found] == [" a", " b"] and all(10 <= word.start_ts <= 10.16 for word in found)
