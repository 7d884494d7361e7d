"""Calls of an LLMPipeline that begin like texts of the last call: what they have in common is not read again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai import prefixes
from ovgpu.genai.places import Requests, Sequences
from ovgpu.genai.prefixes import Prefixes
from tests.genai.generation_cases import make_folder

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
PLAIN = {"max_new_tokens": 6, "ignore_eos": True}
FIRST = [1, *range(5, 40)]  # 36 tokens
Pipelines = Callable[..., ov_genai.LLMPipeline]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory, emulated: str) -> Pipelines:
    """Return a function that makes a pipeline, once. ``device`` is CPU or card."""

    @cache
    def make(model: str = "llama", device: str = "CPU") -> ov_genai.LLMPipeline:
        folder = make_folder(model, tmp_path_factory.mktemp(model))
        return ov_genai.LLMPipeline(folder, emulated if device == "card" else device, **EXACT)

    return make


class Calls:
    """Calls of a pipeline, which count the tokens that its model gets."""

    def __init__(self, pipeline: ov_genai.LLMPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pipeline, self.fed = pipeline, 0
        pipeline._engine = None
        for kind in (Requests, Sequences):
            monkeypatch.setattr(kind, "step", self._counted(kind.step))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(places: Any, steps: Any) -> Any:
            self.fed += sum(arrays[0].size for arrays in steps.values())  # of input_ids
            return step(places, steps)

        return counted

    def read(self, rows: list[list[int]], **keywords: Any) -> tuple[list[list[int]], int]:
        """Return the new tokens of prompts of equal length, and how many tokens of the prompts the model got."""
        ids, self.fed = ovgpu.Tensor(np.array(rows)), 0
        found = self.pipeline.generate(ids, **{**PLAIN, **keywords})
        assert found.perf_metrics.get_num_input_tokens() == len(rows[0])
        return found.tokens, self.fed - sum(len(row) - 1 for row in found.tokens)

    def alone(self, rows: list[list[int]], **keywords: Any) -> list[list[int]]:
        """Return the new tokens of prompts without an earlier call."""
        self.pipeline._engine = None
        tokens, read = self.read(rows, **keywords)
        assert read == len(rows) * len(rows[0])
        self.pipeline._engine = None
        return tokens


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("device", ["CPU", "card"])
def test_turns(device: str, count: int, pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every turn, the model gets the tokens behind the last whole block of the turn before."""
    calls = Calls(pipelines(device=device), monkeypatch)
    turns, wanted, read = [[FIRST, [1, *reversed(FIRST[1:])]][:count]], [], []
    for rows in turns:
        wanted.append(calls.alone(rows, max_new_tokens=4))
        if len(turns) < 3:
            turns.append([[*row, *new, *range(10, 20)] for row, new in zip(rows, wanted[-1])])
    for rows, tokens in zip(turns, wanted):
        found, new = calls.read(rows, max_new_tokens=4)
        assert found == tokens
        read.append(new)
    assert read == [count * 36, count * (50 - 32), count * (64 - 48)]


def test_what_is_kept(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of the last call that began, unless it failed, and until the chat is finished."""
    calls = Calls(pipelines(), monkeypatch)
    longer, other = [*FIRST, 3, 4], [2, *FIRST[1:]]
    calls.read([FIRST])
    assert calls.read([longer])[1] == 6
    calls.read([other])
    assert calls.read([longer])[1] == 38
    assert calls.read([longer], num_beams=2)[1] == 38 + 5  # of the second beam
    assert calls.read([longer])[1] == 38
    with pytest.raises(ovgpu.Error, match="temperature"):
        calls.read([longer], temperature=-1.0, do_sample=True)
    assert calls.read([longer])[1] == 6
    with pytest.warns(DeprecationWarning):
        calls.pipeline.finish_chat()
    assert calls.read([longer])[1] == 38
    with pytest.raises(ZeroDivisionError):
        calls.pipeline.generate(ovgpu.Tensor(np.array([longer])), streamer=lambda text: 1 // 0, **PLAIN)
    tokens, read = calls.read([longer])
    assert tokens == calls.alone([longer]) and read == 38


def test_limits_of_blocks(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a SchedulerConfig, its limits say what is kept."""
    calls, config = Calls(pipelines(), monkeypatch), ov_genai.SchedulerConfig()
    first, other = [FIRST, [3, *FIRST[1:]]], [[2, *FIRST[1:]], [4, *FIRST[1:]]]
    three = first, other, [[*row, 3, 4] for row in first]
    for blocks, shares, read in ((40, True, [72, 72, 12]), (7, True, [72, 72, 76]), (40, False, [72, 72, 76])):
        config.num_kv_blocks, config.enable_prefix_caching = blocks, shares
        monkeypatch.setattr(calls.pipeline, "_limits", config.limits(calls.pipeline._decoder))
        calls.pipeline._engine = None
        assert [calls.read(rows)[1] for rows in three] == read
    calls.pipeline._engine = None


@pytest.mark.parametrize("model", ["lfm2", "mamba"])
def test_states_of_fixed_size(model: str, pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot go back to an earlier token: all tokens are read."""
    calls = Calls(pipelines(model), monkeypatch)
    assert [calls.read([FIRST])[1] for _ in range(2)] == [36, 36]


def test_equal_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text is found by its tokens, whatever their hashes are."""
    monkeypatch.setattr(prefixes, "hash", lambda pair: pair[0] + 1, raising=False)
    known, (a, b, c) = Prefixes[str](), ([number] * 16 for number in range(3))
    known.add([*a, *b], "ab")
    known.add([*c, *b, *a], "cba")
    assert known.find([*c, *b, *a]) is None
    assert known.find([*a, *b, *a]) == ("ab", 32)
    known.add([*a, *b, *a], "aba")
    assert known.find([*a, *b, *c]) == ("aba", 32)
    known.remove("ab")
    assert known.find([*a, *b, *a]) == ("aba", 48)
    known.remove("aba")
    known.remove("cba")
    assert known.find([*a, *b]) is None
