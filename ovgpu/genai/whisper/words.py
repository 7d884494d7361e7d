"""Times of words: the frames of speech to which the tokens of a text attend.

The weights of some heads are aligned with the frames by dynamic time warping, as in openai/whisper's timing.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.whisper.results import WhisperWordTiming

Array = np.ndarray[Any, Any]
SECONDS = np.float32(0.02)  # of a position of the encoder
ZERO = np.float32(0)
LEAST_DEVIATION = np.float32(1e-6)
FILTER_WIDTH = 7
LONGEST_MEDIAN = np.float32(0.7)  # seconds of a word
WITHOUT_SPACES = {"zh", "ja", "th", "lo", "my", "yue"}  # languages that put no blanks between words
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
BLANKS = " \t\n\v\f\r"
PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
SENTENCE_ENDS = ".。!！?？"
BEFORE_WORDS = "\"'“¿([{-"
AFTER_WORDS = "\"'.。,，!！?？:：”)]}、"


@dataclass
class _Word:
    """Text and tokens of a word, and its times in seconds."""

    text: str
    tokens: list[int]
    start: np.float32 = ZERO
    end: np.float32 = ZERO


def time_words(
    scores: Array, skipped: int, positions: int, tokens: Sequence[int], tokenizer: Tokenizer, language: str, offset: Any
) -> list[WhisperWordTiming]:
    """Return the words of a window with their times.

    ``scores`` [heads, rows, positions], f32, are those of the attention before its softmax. Their first ``skipped``
    rows are those of tokens in front of the one that says that there are no times. Then follow the rows of the text
    ``tokens`` and of the token that ends it, which ``tokens`` have as well. The speech has so many ``positions``, and
    begins at ``offset`` in seconds.
    """
    words = _split(tokens, tokenizer, language)
    matrix = _costs(scores[:, :, :positions])[skipped:-1]
    if len(words) < 2 or not matrix.size:
        return []
    rows, columns = _warp(matrix)
    first = np.flatnonzero(np.diff(rows, prepend=-1))  # the place in the path where each row begins
    times = columns[first].astype(np.float32) * SECONDS + np.float32(offset)
    ends = np.cumsum([0, *(len(word.tokens) for word in words[:-1])])
    timed = words[:-1]  # without the end of the text
    for word, (start, end) in zip(timed, pairwise(ends)):
        word.start, word.end = times[start], times[end]
    _shorten(timed)
    merged = _merged(timed)
    return [WhisperWordTiming(word.text, float(word.start), float(word.end), word.tokens) for word in merged]


# ---- alignment


def _costs(scores: Array) -> Array:
    """Return the costs [rows, positions] of an alignment, f32: the lower, the more a row attends to a position."""
    shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    shares /= shares.sum(-1, keepdims=True)
    mean = shares.mean(1, keepdims=True)
    deviation = np.sqrt(((shares - mean) ** 2).mean(1, keepdims=True))
    weights = (shares - mean) / np.maximum(deviation, LEAST_DEVIATION)
    costs: Array = -np.mean([_median_filter(head) for head in weights], axis=0)
    return costs


def _median_filter(x: Array) -> Array:
    """Return the median of each element and its neighbours in a row [rows, columns]; at the ends, they are fewer."""
    half, count, found = FILTER_WIDTH // 2, x.shape[1], np.empty_like(x)
    if count >= FILTER_WIDTH:
        windows = np.lib.stride_tricks.sliding_window_view(x, FILTER_WIDTH, axis=1)
        found[:, half:-half] = np.partition(windows, half, axis=-1)[..., half]
    for i in (*range(min(half, count)), *range(max(half, count - half), count)):
        found[:, i] = np.median(x[:, max(0, i - half) : i + half + 1], axis=1)
    return found


def _warp(costs: Array) -> tuple[Array, Array]:
    """Return the rows and columns of the path of least cost from the first to the last element of a matrix.

    A step goes to the next row, the next column, or both. Elements whose row and column have one sum are independent
    of each other, and are computed at once.
    """
    rows, columns = costs.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), 2, np.int8)  # 0: row and column, 1: row, 2: column
    steps[:, 0] = 1
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        is_both, is_row = (both < row) & (both < column), (row < both) & (row < column)
        total[i, j] = costs[i - 1, j - 1] + np.where(is_both, both, np.where(is_row, row, column))
        steps[i, j] = np.where(is_both, 0, np.where(is_row, 1, 2))
    path = []
    place = (rows, columns)
    while place != (0, 0):
        row_, column_ = place
        path.append((max(row_ - 1, 0), max(column_ - 1, 0)))
        step = steps[place]
        place = (row_ - (step != 2), column_ - (step != 1))
    found = np.array(path[::-1])
    return found[:, 0], found[:, 1]


# ---- words


def _split(tokens: Sequence[int], tokenizer: Tokenizer, language: str) -> list[_Word]:
    """Return the words of a text, with blanks in front of them. Tokens of incomplete characters at its end are left
    out."""
    parts, current = list[_Word](), list[int]()
    for token in tokens:
        current.append(token)
        text = tokenizer.decode(current, skip_special_tokens=False)
        if INCOMPLETE not in text:
            parts.append(_Word(text, current))
            current = []
    if language in WITHOUT_SPACES:
        return parts
    words = list[_Word]()
    for part in parts:
        special = part.tokens[0] >= tokenizer.get_eos_token_id()
        stripped = part.text.strip(BLANKS)
        if not words or special or part.text[:1] in [*BLANKS] or (len(stripped) == 1 and stripped in PUNCTUATION):
            words.append(part)
        else:
            words[-1].text += part.text
            words[-1].tokens += part.tokens
    return words


def _shorten(words: Sequence[_Word]) -> None:
    """Shorten words at the begin and the end of sentences that are much longer than others: they contain silence."""
    durations = [word.end - word.start for word in words if word.end > word.start]
    if not durations:
        return
    longest = min(LONGEST_MEDIAN, np.median(np.array(durations, np.float32))) * np.float32(2)
    for before, word in pairwise(words):
        if word.end - word.start > longest:
            if word.text in SENTENCE_ENDS:
                word.end = word.start + longest
            elif before.text in SENTENCE_ENDS:
                word.start = word.end - longest


def _merged(words: list[_Word]) -> list[_Word]:
    """Join punctuation with the words that it belongs to."""
    following = len(words) - 1
    for i in range(len(words) - 2, -1, -1):
        mark, word = words[i], words[following]
        if len(mark.text) > 1 and mark.text[0] == " " and mark.text[1:] in BEFORE_WORDS:
            word.text, word.tokens = mark.text + word.text, mark.tokens + word.tokens
            mark.text, mark.tokens = "", []
        else:
            following = i
    previous = 0
    for j in range(1, len(words)):
        word, mark = words[previous], words[j]
        is_mark = len(mark.text.encode()) == 1 and mark.text in AFTER_WORDS  # as in openai/whisper's, but ASCII alone
        if word.text and not word.text.endswith(" ") and is_mark:
            word.text, word.tokens = word.text + mark.text, word.tokens + mark.tokens
            mark.text, mark.tokens = "", []
        else:
            previous = j
    return [word for word in words if word.text]
