"""Class EngineThread: generations that come, go and fail while a thread steps their engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.batching import BatchFullError
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine, Limits
from ovgpu.genai.engine_thread import EngineThread
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from tests.genai.generation_cases import model_path

SECONDS = 60.0
PROMPT = [5, 9, 33, 12, 7]
ENDLESS = 1 << 30


class Reader:
    """Counts of changes of generations, and a wait for one."""

    def __init__(self) -> None:
        self.count, self._condition = 0, threading.Condition()

    def __call__(self) -> None:
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self._condition:
            assert self._condition.wait_for(holds, SECONDS)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(ovgpu.Core().read_model(model_path("llama")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})


@pytest.fixture
def engine(decoder: Decoder) -> Engine:
    return Engine(decoder, Limits(4))


@pytest.fixture
def thread(engine: Engine) -> Iterator[EngineThread]:
    found = EngineThread(engine, 6)
    yield found
    found.close()


def generation(tokens: int = 6, prompt: list[int] = PROMPT, **fields: Any) -> Generation:
    config = ov_genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, **fields)
    return Generation(prompt, config, Stops(config, None), RawPerfMetrics(inference_durations=[0.0]))


def ended(*generations: Generation) -> Callable[[], bool]:
    return lambda: not any(one.is_running for one in generations)


def test_texts_are_those_of_an_engine_alone(decoder: Decoder, thread: EngineThread) -> None:
    prompts = [PROMPT, [5], [7] * 9]
    wanted = []
    for prompt in prompts:
        alone, one = Engine(decoder), generation(prompt=prompt)
        alone.add([one])
        while alone.is_busy:
            alone.step()
        wanted.append(one.texts[0].tokens)
    reader, found = Reader(), [generation(prompt=prompt) for prompt in prompts]
    thread.submit(found[:2], reader)
    thread.submit(found[2:], reader)
    reader.wait(ended(*found))
    assert [one.texts[0].tokens for one in found] == wanted
    assert reader.count <= 6 * 2  # one call for each step, whatever the number of texts


def test_bias(decoder: Decoder, thread: EngineThread) -> None:
    biased = generation(3)
    biased.logit_bias = {17: 1e9}
    reader, other = Reader(), generation(3)
    thread.submit([biased, other], reader)
    reader.wait(ended(biased, other))
    assert biased.texts[0].tokens == [17] * 3 != other.texts[0].tokens


def test_cancelled(engine: Engine, thread: EngineThread) -> None:
    """A text that is cancelled frees its place, also one that waits."""
    reader, several = Reader(), [generation(ENDLESS) for _ in range(6)]
    thread.submit(several, reader)
    reader.wait(lambda: all(one.texts[0].tokens for one in several[:4]))
    assert engine.waiting == 2
    for one in (several[0], several[5]):
        one.status = StreamingStatus.CANCEL
    reader.wait(lambda: bool(several[4].texts[0].tokens) and ended(several[0], several[5])())
    assert several[5].texts[0].tokens == [] and several[5].texts[0].reason is GenerationFinishReason.NONE
    reader.wait(lambda: len(thread) == 4)
    assert not engine.waiting


def test_capacity_and_close(decoder: Decoder, engine: Engine, thread: EngineThread) -> None:
    reader, several = Reader(), [generation(ENDLESS) for _ in range(5)]
    thread.submit(several, reader)
    with pytest.raises(BatchFullError, match="5 texts run or wait, of at most 6"):
        thread.submit([generation(), generation()], reader)
    reader.wait(lambda: reader.count > 2)
    thread.close()
    assert ended(*several)() and not engine.is_busy and len(thread) == 0
    assert all(one.error is None for one in several)
    batcher = decoder._batcher_of(decoder.chooser(penalties=False))
    assert batcher is None or len(batcher) == 0
    with pytest.raises(ovgpu.Error, match="the engine is closed"):
        thread.submit([generation()], reader)


def test_a_refused_generation_does_not_hurt_others(thread: EngineThread) -> None:
    reader, sound = Reader(), generation()
    refused = generation(do_sample=True, num_return_sequences=5)  # more than the texts of the limits
    thread.submit([refused, sound], reader)
    reader.wait(ended(refused, sound))
    assert isinstance(refused.error, ovgpu.Error) and sound.error is None and len(sound.texts[0].tokens) == 6


def test_a_step_that_fails(engine: Engine, thread: EngineThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails the texts that run or wait. Later ones run."""
    reader, several = Reader(), [generation(ENDLESS) for _ in range(6)]
    thread.submit(several, reader)
    reader.wait(lambda: reader.count > 1)
    broken = ValueError("the device is gone")
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_infer", lambda plan: (_ for _ in ()).throw(broken))
        reader.wait(ended(*several))
    assert [one.error for one in several] == [broken] * 6
    later = generation()
    thread.submit([later], reader)
    reader.wait(ended(later))
    assert later.error is None and len(later.texts[0].tokens) == 6


def test_a_reader_that_fails(engine: Engine, thread: EngineThread) -> None:
    """Its texts are cancelled. Those of other readers go on."""

    def broken() -> None:
        raise RuntimeError("the reader is gone")

    reader, lost, kept = Reader(), generation(ENDLESS), generation(20)
    thread.submit([lost], broken)
    thread.submit([kept], reader)
    reader.wait(ended(lost, kept))
    assert len(kept.texts[0].tokens) == 20


def test_idle(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without generations, the thread waits: it looks for work once for each step."""
    steps, looks = [], []
    take = EngineThread._take
    monkeypatch.setattr(EngineThread, "_take", lambda self: looks.append(None) or take(self))
    thread = EngineThread(Engine(decoder), 6, lambda usage, seconds: steps.append((usage.advanced, seconds)))
    try:
        for _ in range(2):
            reader, one = Reader(), generation(4)
            thread.submit([one], reader)
            reader.wait(lambda: len(thread) == 0)
        assert [advanced for advanced, _ in steps] == [1] * 8
    finally:
        thread.close()
    assert len(looks) == 9
