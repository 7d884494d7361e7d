"""Memory of the KV caches of an engine: its limit, all forms of a decoder together, and what happens if it runs out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.batching.pools import Pools, SharedPools
from ovgpu.errors import is_out_of_memory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine, Limits
from ovgpu.genai.enums import GenerationFinishReason
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from ovgpu.runtime.backend import Backend
from tests.genai.generation_cases import model_path

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
PROMPT = [1, *range(5, 40)]  # 36 tokens
Decoders = Callable[..., Decoder]


@pytest.fixture(scope="module")
def decoders(emulated: str) -> Decoders:
    """Return a function that makes a decoder, once. ``device`` is CPU or card."""

    @cache
    def make(device: str, **properties: Any) -> Decoder:
        model = ovgpu.Core().read_model(model_path("llama").with_suffix(".xml"))
        return Decoder(model, emulated if device == "card" else device, {**EXACT, **properties})

    return make


@pytest.fixture
def decoder(decoders: Decoders) -> Decoder:
    """Return a decoder on the CPU without memory for KV caches."""
    return forgetful(decoders("CPU"))


def forgetful(decoder: Decoder) -> Decoder:
    """Return a decoder after it has dropped its memory for KV caches."""
    decoder._batchers.clear()
    decoder._pools = SharedPools()
    return decoder


def generation(prompt: list[int], tokens: int, **fields: Any) -> Generation:
    config = ov_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, **fields)
    return Generation(prompt, config, Stops(config, None), RawPerfMetrics(inference_durations=[0.0]))


def run(engine: Engine, *generations: Generation) -> None:
    """Run generations to their end."""
    engine.add(generations)
    for _ in range(1000):
        if not engine.is_busy:
            return
        engine.step()
    raise AssertionError("the engine does not end")


def tokens_of(generation: Generation) -> list[int]:
    return generation.texts[0].tokens


def pools_of(decoder: Decoder) -> Pools:
    """Return the pools of all forms of a decoder."""
    (pools,) = {
        slots.pools for batcher in decoder._batchers.values() if batcher is not None for slots in batcher._slots
    }
    return pools


def test_forms_share_the_limit(decoder: Decoder) -> None:
    """Texts with penalties, without, and of beam searches have the same blocks, also those of a common beginning."""
    fields: tuple[dict[str, Any], ...] = ({}, {"repetition_penalty": 1.3}, {"num_beams": 2}, {})
    wanted = []
    for own in fields:
        alone = generation(PROMPT, 5, **own)
        run(Engine(decoder), alone)
        wanted.append(tokens_of(alone))
    assert decoder.bytes_per_token == 2 * 2 * 2 * 8 * 4  # keys and values of two layers with two heads
    forgetful(decoder)
    engine = Engine(decoder, Limits(8, None, 20, prefixes=True))
    for own, tokens, blocks in zip(fields, wanted, (3, 4, 5, 6)):  # each has a third block of its own
        found = generation(PROMPT, 5, **own)
        engine.add([found])
        assert engine.step().blocks == blocks
        run(engine)
        assert tokens_of(found) == tokens
    pools = pools_of(decoder)
    assert [len(pool) for pool in pools.arrays] == [21] * 4
    assert sum(pool.nbytes for pool in pools.arrays) == 21 * 16 * decoder.bytes_per_token
    assert engine.blocks == 6 and engine.used_blocks == 0


@pytest.mark.parametrize(
    "device, properties, size",
    [("card", {"INFERENCE_PRECISION_HINT": "f16"}, 8 * 2), ("CPU", {"KV_CACHE_PRECISION": "u8"}, 8 + 8)],
    ids=["f16", "u8"],
)
def test_bytes_of_a_token(device: str, properties: dict[str, str], size: int, decoders: Decoders) -> None:
    """They are those of the stored type, of which a key of 8 numbers takes ``size``; u8 has 8 bytes of parameters."""
    decoder = decoders(device, **properties)
    run(Engine(decoder, Limits(blocks=3)), generation(PROMPT, 2))
    assert decoder.bytes_per_token == 2 * 2 * 2 * size
    assert sum(pool.nbytes for pool in pools_of(decoder).arrays) == 4 * 16 * decoder.bytes_per_token


@pytest.mark.parametrize("device", ["CPU", "card"])
def test_memory_runs_out(
    device: str, decoders: Decoders, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Texts are computed again. One that memory is too small for fails, and no other."""
    decoder, lengths = forgetful(decoders(device)), [8, 30, 7]
    texts = [generation([length] * 10, length) for length in lengths]
    wanted = [generation([length] * 10, length) for length in lengths]
    run(Engine(decoder), *wanted)
    forgetful(decoder)
    extend = Pools._extend

    def limited(self: Pools, backend: Backend, capacity: int, careful: bool) -> None:
        if capacity > 1 + 2:
            raise MemoryError("out of memory: by the test")
        extend(self, backend, capacity, careful)

    monkeypatch.setattr(Pools, "_extend", limited)
    engine = Engine(decoder)
    with caplog.at_level(logging.WARNING):
        run(engine, *texts)
    assert [record.message for record in caplog.records] == [
        "memory is short: KV caches have 2 blocks of 16 tokens, and no more"
    ]
    assert engine.preemptions and engine.limits.blocks == 2 and pools_of(decoder).allocator.capacity == 1 + 2
    for text, alone, length in zip(texts, wanted, lengths, strict=True):
        if length == 30:
            assert str(text.error).startswith("out of memory: KV caches have 2 blocks of 16 tokens")
            assert text.error is not None and is_out_of_memory(text.error)
            assert tokens_of(text) == tokens_of(alone)[: len(tokens_of(text))] and len(tokens_of(text)) == 2 * 16 - 9
        else:
            assert text.error is None and tokens_of(text) == tokens_of(alone)
            assert text.texts[0].reason == GenerationFinishReason.LENGTH
    with pytest.raises(ovgpu.Error, match="the prompt needs 3 blocks of 16 tokens, and there are 2"):
        engine.add([generation([3] * 33, 1)])
    assert engine.blocks == 0 and not engine.is_busy


def test_used_blocks(decoder: Decoder) -> None:
    """Blocks of texts that have ended, which wait for others to share them, are not in use."""
    engine = Engine(decoder, Limits(8, None, 9, prefixes=True))
    run(engine, generation(PROMPT, 2))
    assert (engine.blocks, engine.used_blocks) == (3, 0)
    again = [generation(PROMPT, 2), generation([7] * 17, 3)]
    engine.add(again)
    engine.step()
    assert (engine.blocks, engine.used_blocks) == (3 + 1 + 2, 3 + 2)
    run(engine)
    run(engine, generation([8] * 100, 2))
    assert engine.preemptions == 0 and (engine.blocks, engine.used_blocks) == (9, 0)
    run(engine, *(generation([token] * 60, 40) for token in (8, 9)))
    assert engine.preemptions == 1
