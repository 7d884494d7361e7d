"""Pieces of texts, and stop strings in them, however the tokens are split."""

from __future__ import annotations

from random import Random

import pytest

from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.serve.openai.pieces import Pieces, StopStrings
from tests.genai.make_tokenizer import FOLDER

pytest.importorskip("tokenizers")

TEXT = "naïve € 😀 text!\nof many, MANY words. " * 4


def split(random: Random, items: list[int]) -> list[list[int]]:
    parts = []
    while items:
        count = random.randint(1, 5)
        parts.append(items[:count])
        items = items[count:]
    return parts


@pytest.mark.parametrize("seed", range(4))
def test_pieces(seed: int) -> None:
    """They are the text of all tokens, and never show a part of a character. The tokens are bytes."""
    random, tokenizer = Random(seed), Tokenizer(FOLDER)
    tokens = tokenizer.encode(TEXT, add_special_tokens=False).input_ids.data[0].tolist()
    if seed % 2:  # bytes that are no UTF-8, and tokens without text
        tokens = [token if random.random() < 0.7 else random.randrange(211) for token in tokens]
    pieces, found = Pieces(tokenizer), []
    for part in split(random, tokens):
        found.append(pieces.add(part))
        if not seed % 2:
            assert "".join(found) == TEXT[: len("".join(found))]
    found.append(pieces.end())
    assert "".join(found) == tokenizer.decode(tokens)
    assert sum(map(bool, found)) > 20


@pytest.mark.parametrize("seed", range(20))
def test_stop_strings(seed: int) -> None:
    """The text ends before the first one. Nothing waits that no stop string begins with."""
    random = Random(seed)
    text = "".join(random.choices("abc", k=30))
    stops = ["".join(random.choices("abc", k=random.randint(1, 6))) for _ in range(random.randint(0, 3))]
    for include in (False, True):
        search, found = StopStrings(stops, include), ""
        for character in text:
            found += search.add(character)
            if search.found:
                break
            waiting = text[len(found) :][: len(search._waiting)]
            assert waiting == search._waiting and (not waiting or any(stop.startswith(waiting) for stop in stops))
        found += search.end()
        ends = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        if ends:
            end, length = min(ends)
            assert search.found and found == text[: end if include else end + length]
        else:
            assert not search.found and found == text
