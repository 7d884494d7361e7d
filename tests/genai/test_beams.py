"""Beam searches in an engine: side by side with other texts, in blocks that beams share, within the limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.batching.gathering import Work
from ovgpu.batching.sequence_batcher import SequenceBatcher
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine, Limits
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.places import Sequences
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from tests.genai.generation_cases import model_path

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
PROMPT = [1, *range(5, 40)]  # 36 tokens: two whole blocks, and a part of one
Decoders = Callable[[str], Decoder]


@pytest.fixture(scope="module")
def decoders(emulated: str) -> Decoders:
    """Return a function that makes a decoder for a device, "CPU" or "card", once."""

    @cache
    def make(device: str) -> Decoder:
        return Decoder(ovgpu.Core().read_model(model_path("llama")), emulated if device == "card" else "CPU", EXACT)

    return make


def search(prompt: Sequence[int] = PROMPT, **fields: Any) -> Generation:
    """Return a generation, by default one of a beam search for three texts."""
    fields = {"num_beams": 3, "num_return_sequences": fields.get("num_beams", 3), **fields}
    config = ov_genai.GenerationConfig(**{"max_new_tokens": 6, **fields})
    return Generation([*prompt], config, Stops(config, None), RawPerfMetrics(inference_durations=[0.0]))


def run(engine: Engine, *generations: Generation, steps: int = 100) -> list[int]:
    """Run generations to their end, and return the blocks that each step took."""
    blocks = list[int]()
    engine.add(generations)
    for _ in range(steps):
        if not engine.is_busy:
            break
        blocks.append(engine.step().blocks)
    assert not engine.is_busy and not any(generation.error for generation in generations)
    return blocks


def tokens(generation: Generation) -> list[list[int]]:
    return [text.tokens for text in generation.texts]


def batcher_of(decoder: Decoder, count: int | None = 1) -> SequenceBatcher:
    batcher = decoder._batcher_of(decoder.ranker(count))
    assert batcher is not None
    return batcher


@pytest.mark.parametrize("device", ["CPU", "card"])
def test_side_by_side(device: str, decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """All beams of all searches run in one inference. They share the blocks of the prompt, which is read once."""
    decoder, sizes = decoders(device), list[int]()
    several = [PROMPT, [*PROMPT[:3], 9], PROMPT[:20]]
    wanted = []
    for prompt in several:
        alone = search(prompt)
        blocks = run(Engine(decoder), alone)
        assert prompt != PROMPT or (blocks[0] == 3 and max(blocks) <= 2 + 3)
        wanted.append(tokens(alone))
    monkeypatch.setattr(batcher_of(decoder)._slots[0], "_observer", lambda one: sizes.append(one.rows))
    searches = [search(prompt) for prompt in several]
    run(Engine(decoder), *searches)
    assert list(map(tokens, searches)) == wanted
    assert sizes == [1, 1, 1, *[9] * 5]
    assert len(batcher_of(decoder)) == 0 and batcher_of(decoder)._slots[0].request.pools.allocator.free


@pytest.mark.parametrize("limits", [Limits(4, 5), Limits(8, None, 9), Limits(2, 4, 7)], ids=str)
def test_limits(limits: Limits, decoders: Decoders) -> None:
    """Pieces of prompts, few blocks, and more beams than texts change no text, and the limits hold."""
    decoder = decoders("CPU")
    several = [search(PROMPT), search([1, 2], num_beams=1, max_new_tokens=12), search(PROMPT[:17])]
    wanted = [search(PROMPT), search([1, 2], num_beams=1, max_new_tokens=12), search(PROMPT[:17])]
    for one in wanted:
        run(Engine(decoder), one)
    engine = Engine(decoder, limits)
    blocks = run(engine, *several, steps=300)
    assert list(map(tokens, several)) == list(map(tokens, wanted))
    assert limits.blocks is None or max(blocks) <= limits.blocks
    assert [sum(one.raw.m_batch_sizes) for one in several] == [6, 12, 6]
    assert engine.blocks == 0


def test_no_blocks_left(decoders: Decoders) -> None:
    """A search that is alone and needs more blocks ends as at its limit of tokens."""
    generation = search(PROMPT, max_new_tokens=40)
    run(Engine(decoders("CPU"), Limits(8, None, 5)), generation)
    assert {text.reason for text in generation.texts} == {GenerationFinishReason.LENGTH}
    assert [len(text.tokens) for text in generation.texts] == [13] * 3  # 12 of which the blocks have


def test_prefixes(decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search begins behind the blocks of an earlier one."""
    decoder, step, fed = decoders("CPU"), Sequences.step, list[int]()

    def counted(self: Sequences, steps: Any) -> Any:
        fed.append(sum(arrays[0].size for arrays in steps.values()))  # of input_ids
        return step(self, steps)

    engine = Engine(decoder, Limits(8, 40, None, True, prefixes=True))
    for prompt, new in ((PROMPT, 36), ([*PROMPT[:33], 3], 2)):
        alone, generation = search(prompt), search(prompt)
        run(Engine(decoder), alone)
        monkeypatch.setattr(Sequences, "step", counted)
        run(engine, generation)
        monkeypatch.undo()
        assert tokens(generation) == tokens(alone) and fed == [new, *[3] * 5]
        fed.clear()
    assert len(batcher_of(decoder)) == 2 == len(engine._ended)
    engine.forget()
    assert len(batcher_of(decoder)) == 0 == engine.blocks


def test_candidates(decoders: Decoders) -> None:
    """The most likely tokens come to the host, or all where n-grams are not to be repeated."""
    decoder = decoders("CPU")
    for count, wanted in ((6, 16), (17, 32), (None, 211), (300, 211)):
        ranker = decoder.ranker(count)
        ports = ranker.compiled.outputs[ranker.output :]
        assert [port.partial_shape[2].get_length() for port in ports] == [wanted] * (2 if wanted < 211 else 1)
    chosen = decoder.ranker(16)
    results = [
        form.request.infer(decoder.inputs(form.compiled.inputs).next([PROMPT])).to_tuple()
        for form in (chosen, decoder.ranker(None))
    ]
    best = np.argsort(-results[1][0][0, 0], kind="stable")[:16]
    assert results[0][1][0, 0].tolist() == best.tolist()
    np.testing.assert_array_equal(results[0][0][0, 0], results[1][0][0, 0][best])


@pytest.mark.parametrize("status", [StreamingStatus.CANCEL, None])
def test_interruptions(status: StreamingStatus | None, decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that is cancelled frees its places. One whose step is interrupted begins again."""
    decoder, generation, alone = decoders("CPU"), search(), search()
    run(Engine(decoder), alone)
    engine, wait, count = Engine(decoder), Work.exception, iter(range(1000))
    engine.add([generation])
    for _ in range(3):
        engine.step()
    if status is None:

        def interrupted(self: Work, *args: Any) -> Any:
            if next(count) == 1:
                raise KeyboardInterrupt
            return wait(self, *args)

        monkeypatch.setattr(Work, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert engine.blocks == 0
        run(engine)
        assert tokens(generation) == tokens(alone) and sum(generation.raw.m_batch_sizes) == 6
    else:
        generation.status = status
        engine.step()
        assert not engine.is_busy and tokens(generation) == [[]]
    assert len(batcher_of(decoder)) == 0 == engine.blocks
