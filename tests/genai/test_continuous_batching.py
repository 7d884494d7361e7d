"""Class ContinuousBatchingPipeline beside openvino_genai, and its scheduler under random arrivals and limits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.batching.gathering import Work
from ovgpu.genai import runs
from ovgpu.genai.engine import Engine, Limits
from ovgpu.genai.enums import GenerationFinishReason, GenerationStatus, StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from tests.genai import continuous_cases as cases
from tests.genai.close import assert_close
from tests.genai.continuous_cases import PLAIN, PROMPT
from tests.genai.generation_cases import make_folder
from tests.genai.record_wheel import CONTINUOUS

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
RECORD = json.loads(CONTINUOUS.read_text())
Pipelines = Callable[..., ov_genai.ContinuousBatchingPipeline]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def pipelines(folder: Path) -> Pipelines:
    """Return a function that makes a pipeline for a device and settings of the scheduler, once."""

    @cache
    def make(device: str = "CPU", **settings: Any) -> ov_genai.ContinuousBatchingPipeline:
        return ov_genai.ContinuousBatchingPipeline(folder, scheduler(**settings), device, EXACT)

    return make


def scheduler(**settings: Any) -> ov_genai.SchedulerConfig:
    config = ov_genai.SchedulerConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return config


def config(**fields: Any) -> ov_genai.GenerationConfig:
    return ov_genai.GenerationConfig(**{**PLAIN, **fields})


# ---- comparison with openvino_genai


@pytest.mark.parametrize("device", ["CPU", "card"])
def test_runs(device: str, pipelines: Pipelines, emulated: str) -> None:
    pipeline = pipelines(emulated if device == "card" else device)
    whole = pipeline._engine

    def limited(config: ov_genai.SchedulerConfig) -> ov_genai.ContinuousBatchingPipeline:
        """Return the pipeline, whose model is compiled, with other limits."""
        pipeline._engine = Engine(pipeline._decoder, config.limits(pipeline._decoder))
        return pipeline

    found = cases.outcomes(ov_genai, limited, RECORD["runs"] if device == "CPU" else ("join", "pieces", "penalties"))
    pipeline._engine = whole
    for run, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), RECORD["runs"][run])


def test_generate(pipelines: Pipelines) -> None:
    assert_close(json.loads(json.dumps(cases.generated(ov_genai, pipelines()))), RECORD["generated"])


def test_scheduler_config() -> None:
    assert cases.settings(ov_genai.SchedulerConfig) == RECORD["settings"]


# ---- the scheduler


def expected(
    pipeline: ov_genai.ContinuousBatchingPipeline, prompt: str, fields: ov_genai.GenerationConfig
) -> list[int]:
    """Return the tokens of a prompt that runs alone."""
    ids = pipeline.get_tokenizer().encode(prompt).input_ids
    (result,) = pipeline.generate([ids], [fields])
    return result.m_generation_ids[0]


@pytest.mark.parametrize("limits", [Limits(8, 5), Limits(8, None, 7), Limits(3, 4, 7)], ids=str)
def test_texts_of_a_prompt(limits: Limits, pipelines: Pipelines) -> None:
    """They take random numbers in turn, whatever else runs."""
    pipeline = pipelines()
    fields = config(do_sample=True, num_return_sequences=3, rng_seed=3, max_new_tokens=5)
    ids = pipeline.get_tokenizer().encode("abcabcabcabc").input_ids
    (wanted,) = pipeline.generate([ids], [fields])
    prompt = ids.data[0].tolist()
    several = [
        Generation(tokens, own, Stops(own, None), RawPerfMetrics(inference_durations=[0.0]))
        for tokens, own in ((prompt[:7], config()), (prompt, fields), (prompt[:3], config()))
    ]
    scheduled = Engine(pipeline._decoder, limits)
    for generation in several:
        scheduled.add([generation])
        scheduled.step()
    for _ in range(100):
        scheduled.step()
    assert not scheduled.is_busy
    assert [text.tokens for text in several[1].best_first] == wanted.m_generation_ids


def test_more_texts_than_blocks(pipelines: Pipelines) -> None:
    """Texts of a prompt that never fit together run nevertheless."""
    fields = config(do_sample=True, num_return_sequences=3)
    generation = Generation([1] * 30, fields, Stops(fields, None), RawPerfMetrics(inference_durations=[0.0]))
    scheduled = Engine(pipelines()._decoder, Limits(8, None, 4))
    scheduled.add([generation])
    for _ in range(100):
        scheduled.step()
    assert not scheduled.is_busy and [len(text.tokens) for text in generation.texts] == [6] * 3


def test_no_blocks_left(pipelines: Pipelines) -> None:
    """A text that is alone ends as at its limit of tokens. A prompt that never fits is refused."""
    pipeline = pipelines(num_kv_blocks=2)
    handle = pipeline.add_request(0, "a", config(max_new_tokens=100))
    while pipeline.has_non_finished_requests():
        pipeline.step()
    (output,) = handle.read_all()
    assert output.finish_reason == GenerationFinishReason.LENGTH and len(output.generated_ids) == 2 * PAGE_TOKENS - 1
    with pytest.raises(ovgpu.Error, match="the prompt needs 3 blocks of 16 tokens, and there are 2"):
        pipeline.add_request(1, "a" * 40, config())
    assert pipeline.get_metrics().max_cache_usage == 100


def test_an_error_fails_one_request(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipelines()
    wanted = expected(pipeline, "a", config())
    handles = [pipeline.add_request(number, "a", config()) for number in range(3)]
    pipeline.step()
    checked, count = runs.checked_token, iter(range(1000))

    def faulty(tokens: Any) -> int:
        if next(count) == 1:
            raise ovgpu.Error("the logits have NaN")
        return checked(tokens)

    monkeypatch.setattr(runs, "checked_token", faulty)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    assert [handle.get_status() for handle in handles] == [
        GenerationStatus.FINISHED,
        GenerationStatus.IGNORED,
        GenerationStatus.FINISHED,
    ]
    assert handles[0].read_all()[0].generated_ids == handles[2].read_all()[0].generated_ids == wanted
    assert not handles[1].can_read()
    with pytest.raises(ovgpu.Error, match="NaN"):
        handles[1].read()


def test_an_interrupted_step(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its texts are computed again."""
    pipeline = pipelines()
    wanted = expected(pipeline, PROMPT, config())
    handles = [pipeline.add_request(number, PROMPT, config()) for number in range(2)]
    pipeline.step()
    wait, count = Work.exception, iter(range(1000))

    def interrupted(self: Work, *args: Any) -> Any:
        if next(count) == 1:
            raise KeyboardInterrupt
        return wait(self, *args)

    monkeypatch.setattr(Work, "exception", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.step()
    while pipeline.has_non_finished_requests():
        pipeline.step()
    assert [handle.read_all()[0].generated_ids for handle in handles] == [wanted] * 2


# ---- the pipeline


def test_handles(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    handle = pipeline.add_request(0, "a", config(echo=True))
    assert handle.get_status() == GenerationStatus.RUNNING and not handle.can_read() and handle.read_all() == []
    with pytest.raises(ovgpu.Error, match=r"there is nothing to read: ask can_read\(\) before"):
        handle.read()
    with pytest.raises(ovgpu.Error, match="the generation has not ended"):
        handle.get_perf_metrics()
    with pytest.raises(ovgpu.Error, match="request 0 has not ended"):
        pipeline.add_request(0, "b", config())
    with pytest.raises(ovgpu.Error, match=r"generate\(\) cannot run while requests do"):
        pipeline.generate("a", config())
    pipeline.step()
    first = handle.read()[0]
    assert first.generated_ids[:-1] == pipeline.get_tokenizer().encode("a").input_ids.data[0].tolist()
    assert len(first.generated_log_probs) == len(first.generated_ids)
    with pytest.raises(ovgpu.Error, match="finish_reason must be STOP or TOOL_CALL"):
        handle.stop(GenerationFinishReason.LENGTH)
    handle.stop(GenerationFinishReason.TOOL_CALL)
    while pipeline.has_non_finished_requests():
        pipeline.step()
    (end,) = handle.read_all()
    assert handle.get_status() == GenerationStatus.STOP and end.finish_reason == GenerationFinishReason.TOOL_CALL
    assert handle.get_perf_metrics().get_num_generated_tokens() == 1
    handle.cancel()
    assert handle.get_status() == GenerationStatus.STOP


def test_stop_strings_are_not_read(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    tokens = expected(pipeline, PROMPT, config(max_new_tokens=12))
    stop = pipeline.get_tokenizer().decode(tokens[2:5])
    handle = pipeline.add_request(0, PROMPT, config(max_new_tokens=12, stop_strings={stop}))
    read = []
    while pipeline.has_non_finished_requests():
        pipeline.step()
        read += [token for output in handle.read_all() for token in output.generated_ids]
    assert read == tokens[:2] and handle.get_status() == GenerationStatus.FINISHED


def test_streams(pipelines: Pipelines) -> None:
    pipeline, pieces = pipelines(), list[str]()
    (result,) = pipeline.generate(PROMPT, config(max_new_tokens=20), pieces.append)
    assert "".join(pieces) == result.m_generation_ids[0]
    (result,) = pipeline.generate(PROMPT, config(max_new_tokens=20), lambda piece: StreamingStatus.STOP)
    assert result.m_status == GenerationStatus.STOP
    with pytest.raises(ovgpu.Error, match="a streamer takes a single text"):
        pipeline.generate(["a", "b"], [config()] * 2, pieces.append)
    with pytest.raises(ValueError, match="of the program"):
        pipeline.generate(PROMPT, config(), lambda piece: int("of the program"))
    assert not pipeline.has_non_finished_requests()


def test_chats(pipelines: Pipelines, folder: Path) -> None:
    """As those of LLMPipeline."""
    pipeline, other = pipelines(), ov_genai.LLMPipeline(folder, "CPU", **EXACT)
    pipeline.start_chat("be kind")
    with pytest.warns(DeprecationWarning):
        other.start_chat("be kind")
    for prompt in ("hi", "why", "so"):
        assert pipeline.generate(prompt, config())[0].get_generation_ids() == [other.generate(prompt, config())]
    pipeline.finish_chat()
    assert pipeline.generate("hi", config())[0].m_generation_ids != [other.generate("hi", config())]


def test_threads(pipelines: Pipelines) -> None:
    """One thread steps, others add requests and read them."""
    pipeline = pipelines()
    prompts = ["a", "b", PROMPT, "ab"]
    wanted = [expected(pipeline, prompt, config()) for prompt in prompts]
    found: dict[int, list[int]] = {}
    done = threading.Event()

    def ask(number: int) -> None:
        handle, tokens = pipeline.add_request(number, prompts[number], config()), list[int]()
        for _ in range(10_000):
            tokens += [token for output in handle.read_all() for token in output.generated_ids]
            if handle.get_status() != GenerationStatus.RUNNING and not handle.can_read():
                break
            done.wait(0.001)
        found[number] = tokens

    threads = [threading.Thread(target=ask, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        pipeline.step()
    assert [found[number] for number in range(4)] == wanted


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens"])
def test_limits_without_a_text(name: str, folder: Path) -> None:
    with pytest.raises(ovgpu.Error, match=f"{name} must be at least 1"):
        ov_genai.ContinuousBatchingPipeline(folder, scheduler(**{name: 0}), "CPU")


def test_wrong_arguments(folder: Path, pipelines: Pipelines) -> None:
    limits = scheduler()
    for args, kind, message in (
        ((folder, "CPU"), TypeError, "scheduler_config is a SchedulerConfig"),
        ((folder, limits, "CPU", 3), TypeError, "properties are a dict"),
        ((folder, limits, "CPU", {}, {}, {}, 3), TypeError, "ContinuousBatchingPipeline takes"),
        ((folder, limits, "CPU", {"prompt_lookup": True}), ovgpu.Error, "has no assisted generation"),
        ((folder / "none", limits, "CPU"), ovgpu.Error, "has no openvino_model.xml"),
    ):
        with pytest.raises(kind, match=message):
            ov_genai.ContinuousBatchingPipeline(*args)
    pipeline = pipelines(max_num_seqs=2, dynamic_split_fuse=False, max_num_batched_tokens=8)
    ids = pipeline.get_tokenizer().encode(["a", "bcd"]).input_ids
    for prompt, own, message in (
        (ids, config(), "the prompt has 2 rows, not 1"),
        ("a" * 20, config(), "more than the 8 of max_num_batched_tokens"),
        ("a", config(num_return_sequences=3, do_sample=True), "num_return_sequences is 3, and max_num_seqs 2"),
    ):
        with pytest.raises(ovgpu.Error, match=message):
            pipeline.add_request(0, prompt, own)
    assert not pipeline.has_non_finished_requests()


def test_cache_size(folder: Path) -> None:
    """In gigabytes, of which a token takes some bytes; and the limits of an LLMPipeline."""
    pipeline = ov_genai.LLMPipeline(folder, "CPU", scheduler_config=scheduler(cache_size=1), **EXACT)
    size = pipeline._decoder.bytes_per_token
    assert size == 2 * 2 * 2 * 8 * 4  # keys and values of two layers with two heads
    assert pipeline._limits == Limits(256, 256, 2**30 // (16 * size), True)
    assert (
        pipeline.generate(["a", "b"], **PLAIN).texts
        == ov_genai.LLMPipeline(folder, "CPU", **EXACT).generate(["a", "b"], **PLAIN).texts
    )
    with pytest.raises(TypeError, match="scheduler_config is a SchedulerConfig"):
        ov_genai.LLMPipeline(folder, "CPU", scheduler_config=3)


# ---- shared blocks


def begun(pipeline: ov_genai.ContinuousBatchingPipeline, prompt: list[int], fields: Any) -> Generation:
    return Generation(prompt, fields, Stops(fields, None), RawPerfMetrics(inference_durations=[0.0]))


@pytest.mark.parametrize("device", ["CPU", "card"])
def test_texts_of_a_prompt_share_its_blocks(device: str, pipelines: Pipelines, emulated: str) -> None:
    """The prompt is computed once. Each text has a copy of the last block, and others as it grows."""
    pipeline = pipelines(emulated if device == "card" else device)
    fields = config(num_return_sequences=3, max_new_tokens=9, do_sample=True)
    scheduled = Engine(pipeline._decoder, Limits(8, 16))
    generation = begun(pipeline, [1, *range(5, 40)], fields)  # 36 tokens: two whole blocks
    scheduled.add([generation])
    blocks = [scheduled.step().blocks for _ in range(3)]
    assert blocks == [1, 2, 3]
    runs = [*scheduled._running]
    assert len(runs) == 1 and runs[0].feed.fed == 35
    assert scheduled.step().blocks == 2 + 3
    for _ in range(8):
        scheduled.step()
    assert not scheduled.is_busy and scheduled.blocks == 0
    alone = Engine(pipeline._decoder, Limits(8, None))
    again = begun(pipeline, [1, *range(5, 40)], fields)
    alone.add([again], alone=True)
    for _ in range(20):
        alone.step()
    assert [text.tokens for text in generation.texts] == [text.tokens for text in again.texts]


@pytest.mark.parametrize("device, blocks", [("CPU", 14), ("CPU", 4), ("card", 14)])
def test_prefixes(device: str, blocks: int, pipelines: Pipelines, emulated: str) -> None:
    """A prompt that begins like a text, also one that has ended, begins behind the blocks of that, if these are still
    there."""
    pipeline = pipelines(emulated if device == "card" else device)
    scheduled = Engine(pipeline._decoder, Limits(8, 40, blocks, True, prefixes=True))
    first = [1, *range(5, 40)]
    prompts = [first, [*first, 7, 7], [*first[:20], 9], [2, *first[1:]], first, first[:16], first[:17]]
    wanted, taken = [], []
    for prompt in prompts:
        own = begun(pipeline, prompt, config())
        alone = Engine(pipeline._decoder)
        alone.add([own], alone=True)
        while alone.is_busy:
            alone.step()
        wanted.append(own.texts[0].tokens)
    for prompt, tokens in zip(prompts, wanted):
        generation = begun(pipeline, prompt, config())
        scheduled.add([generation])
        before = scheduled.blocks
        taken.append(scheduled.step().blocks - before)
        assert scheduled.blocks <= blocks
        while scheduled.is_busy:
            scheduled.step()
        assert generation.texts[0].tokens == tokens
    if blocks == 14:
        assert taken == [3, 1, 1, 3, 1, 1, 1]
    batcher = pipeline._decoder._batcher_of(pipeline._decoder.chooser(penalties=False))
    assert batcher is not None and len(batcher) == len(scheduled._ended) >= 1
    scheduled.forget()
    assert len(batcher) == 0 and scheduled.blocks == 0
