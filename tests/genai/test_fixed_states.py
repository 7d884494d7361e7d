"""Decoders with states of fixed size: Mamba, and LFM2, which also has KV caches. OpenVINO computes each text alone,
token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai import generation
from ovgpu.genai.decoder import DecoderInputs, convolution_columns
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import Sampler, Sampling
from ovgpu.genai.stops import Stops
from tests.genai.generation_cases import make_folder, model_path
from tests.harness import judge
from tests.harness.ir import Net

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
MODELS = ("mamba", "lfm2")
COLUMNS = 4  # of Mamba's states of convolutions
PROMPTS = [
    "",
    "a",
    "ab",
    "To be, or not to be, or not",
    "Hello, World! ",
]  # with <s>, one has fewer tokens than columns
PLAIN = {"max_new_tokens": 10, "ignore_eos": True, "apply_chat_template": False}
PENALISED = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
Pipelines = Callable[..., ov_genai.LLMPipeline]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Return a function that makes the pipeline of a model on a device, once, with an assistant or without."""

    @cache
    def make(model: str, device: str = "CPU", assistant: str = "") -> ov_genai.LLMPipeline:
        own: dict[str, Any] = {"prompt_lookup": True} if assistant == "lookup" else {}
        if assistant not in ("", "lookup"):
            own = {"draft_model": ov_genai.draft_model(make_folder(assistant, tmp_path_factory.mktemp(assistant)))}
        return ov_genai.LLMPipeline(make_folder(model, tmp_path_factory.mktemp(model)), device, **own, **EXACT)

    return make


@cache
def request(model: str) -> Any:
    core: Any = judge.core()
    return core.compile_model(core.read_model(model_path(model)), "CPU", judge.CONFIG).create_infer_request()


@cache
def logits(model: str, prompt: tuple[int, ...], tokens: tuple[int, ...]) -> Array:
    """Return OpenVINO's logits after a prompt and later tokens, which it gets one by one."""
    one = request(model)
    names = {port.get_any_name() for port in one.model_inputs}
    one.reset_state()
    past = 0
    for new in (prompt, *((token,) for token in tokens)):
        past += len(new)
        inputs = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, len(new) if model == "mamba" else past), np.int64),
            "cache_position": np.arange(COLUMNS) if past == len(prompt) else np.array([COLUMNS - 1]),
            "beam_idx": np.zeros(1, np.int32),
        }
        one.infer({name: array for name, array in inputs.items() if name in names})
    found: Array = one.get_tensor("logits").data[0, -1].copy()
    return found


def greedy(model: str, prompt: Sequence[int], count: int, **penalties: float) -> list[int]:
    """Return the tokens after a prompt by OpenVINO's logits."""
    tokens: list[int] = []
    sampler = Sampler((), Sampling(**penalties), 0, prompt=prompt)
    for _ in range(count):
        tokens.append(sampler.choose(logits(model, tuple(prompt), tuple(tokens)), tokens)[0])
    return tokens


def rows_of(pipeline: ov_genai.LLMPipeline, prompts: Sequence[str]) -> list[list[int]]:
    return [pipeline.get_tokenizer().encode(prompt).input_ids.data[0].tolist() for prompt in prompts]


@pytest.mark.parametrize("penalties", [{}, PENALISED], ids=["plain", "penalties"])
@pytest.mark.parametrize("model", MODELS)
def test_texts(model: str, penalties: dict[str, float], pipelines: Pipelines) -> None:
    """Texts alone, and several of unequal length: no text sees the padding or the states of another."""
    pipeline = pipelines(model)
    decode = pipeline.get_tokenizer().decode
    expected = [decode(greedy(model, row, 10, **penalties)) for row in rows_of(pipeline, PROMPTS)]
    assert len({*expected}) == len(expected)
    assert [pipeline.generate(prompt, **PLAIN, **penalties) for prompt in PROMPTS] == expected
    assert pipeline.generate(PROMPTS, **PLAIN, **penalties).texts == expected
    batcher = pipeline._decoder._batchers[bool(penalties)]
    assert (batcher is not None) == (model == "mamba")  # whose states take slots of a batch


@pytest.mark.parametrize("model", MODELS)
def test_beams(model: str, pipelines: Pipelines) -> None:
    pipeline = pipelines(model)
    (row,) = rows_of(pipeline, PROMPTS[3:4])

    class Texts:
        """Rows of beam search, each of which OpenVINO computes alone."""

        texts: tuple[tuple[int, ...], ...] = ((),)

        def step(self, rows: Sequence[Sequence[int]], parents: Sequence[int]) -> Array:
            if rows != [row]:
                self.texts = tuple((*self.texts[parent], *new) for parent, new in zip(parents, rows))
            return np.stack([logits(model, tuple(row), text) for text in self.texts])

    class Stepwise:
        log_probabilities = False

        def beams(self) -> Texts:
            return Texts()

    options = {"max_new_tokens": 6, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    config = ov_genai.GenerationConfig(**options, num_return_sequences=4, eos_token_id=2)
    stepwise: Any = Stepwise()
    expected = generation.generate(stepwise, [row], config, Stops(config, None), None, RawPerfMetrics())
    found = pipeline.generate(ovgpu.Tensor(np.array([row])), config)
    assert found.tokens == [text.tokens for text in expected.texts]
    assert found.scores == pytest.approx([text.score for text in expected.texts], abs=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_on_a_card(model: str, pipelines: Pipelines, emulated: str) -> None:
    pipeline = pipelines(model, emulated)
    prompts, options = PROMPTS[1:4:2], {**PLAIN, "max_new_tokens": 4}
    expected = [greedy(model, row, 4) for row in rows_of(pipeline, prompts)]
    ids = pipeline.get_tokenizer().encode(prompts[1])
    assert pipeline.generate(ids, **options).tokens == expected[1:]
    assert pipeline.generate(prompts, **options).texts == [pipeline.get_tokenizer().decode(row) for row in expected]


# ---- assisted generation


@pytest.mark.parametrize(
    "model, assistant, on_card",
    [
        ("lfm2", "lookup", False),
        ("lfm2", "lookup", True),
        ("lfm2", "lfm2", False),
        ("lfm2", "llama", False),
        ("llama", "lfm2", False),
    ],
)
def test_assisted(model: str, assistant: str, on_card: bool, pipelines: Pipelines, emulated: str) -> None:
    """After a refusal, states of fixed size return to what they were, and the accepted tokens are repeated."""
    device = emulated if on_card else "CPU"
    own = {"num_assistant_tokens": 3, "max_ngram_size": 2} if assistant == "lookup" else {}
    prompts = PROMPTS[3:4] if on_card else PROMPTS
    expected = pipelines(model).generate(prompts, **PLAIN).texts
    found = pipelines(model, device, assistant).generate(prompts, **PLAIN, **own)
    assert found.texts == expected
    sizes = found.perf_metrics.raw_metrics.m_batch_sizes
    assert sum(sizes) == 10 * len(prompts)
    if model == assistant:
        assert max(sizes) == 6 and len(sizes) == 3 * len(prompts)


def test_mamba_takes_one_token_at_a_time(pipelines: Pipelines) -> None:
    message = "assisted generation needs a model that takes several tokens at a time"
    with pytest.raises(ovgpu.Error, match=message):
        pipelines("mamba", "CPU", "lookup")
    with pytest.raises(ovgpu.Error, match=message):
        pipelines("llama", "CPU", "mamba").generate("a", max_new_tokens=3)


def test_cache_position_of_other_models() -> None:
    """The positions of the new tokens."""
    net = Net()
    for name in ("input_ids", "cache_position"):
        net.result(net.parameter("i64", (-1,), name))
    model = ovgpu.Core().read_model(*net.build())
    inputs = DecoderInputs(model.inputs, convolution_columns(model))
    assert [inputs.next([row])[1].tolist() for row in ([5, 6, 7], [8])] == [[0, 1, 2], [3]] and not inputs.one_by_one
