"""Decoders with states of fixed size: Mamba, and LFM2, which also has KV caches. OpenVINO computes each text alone,
token by token; openvino_genai takes LFM2."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.backends.cpu import CpuBackend
from ovgpu.genai.assisted import DraftModel
from ovgpu.genai.assisted_metrics import AssistedRecord
from ovgpu.genai.beam_search import BeamSearch
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.stops import Stops
from ovgpu.runtime.state import VariableInfo, Variables
from ovgpu.types import PartialShape, Type
from tests.genai.compare_wheel import agree
from tests.genai.generation_cases import LOOKUP, LOOKUPS_OF_TOKENS, OF_TOKENS, make_folder, model_path, outcomes
from tests.genai.record_wheel import STATES
from tests.genai.stepwise import Stepwise
from tests.harness.ir import Net
from tests.harness.layers import add, broadcast, convert, gather, i64, mul, relu, shape_of

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
MODELS = ("mamba", "lfm2")
PROMPTS = [
    "",
    "a",
    "ab",
    "To be, or not to be, or not",
    "Hello, World! ",
]  # with <s>, some have fewer tokens than the convolution
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
def stepwise(model: str) -> Stepwise:
    return Stepwise(model_path(model), model == "mamba")


def rows_of(pipeline: ov_genai.LLMPipeline, prompts: Sequence[str]) -> list[list[int]]:
    return [pipeline.get_tokenizer().encode(prompt).input_ids.data[0].tolist() for prompt in prompts]


@pytest.mark.parametrize("penalties", [{}, PENALISED], ids=["plain", "penalties"])
@pytest.mark.parametrize("model", MODELS)
def test_texts(model: str, penalties: dict[str, float], pipelines: Pipelines) -> None:
    """Texts alone, and several of unequal length: no text sees the padding or the states of another."""
    pipeline = pipelines(model)
    decode = pipeline.get_tokenizer().decode
    expected = [decode(stepwise(model).greedy(row, 10, **penalties)) for row in rows_of(pipeline, PROMPTS)]
    assert len({*expected}) == len(expected)
    assert [pipeline.generate(prompt, **PLAIN, **penalties) for prompt in PROMPTS] == expected
    assert pipeline.generate(PROMPTS, **PLAIN, **penalties).texts == expected
    batcher = pipeline._decoder._batcher_of(pipeline._decoder.chooser(bool(penalties)))
    assert (batcher is not None) == (model == "mamba")  # whose states take slots of a batch


@pytest.mark.parametrize("kind", ["plain", "lookup"])
def test_records_of_openvino_genai(kind: str, pipelines: Pipelines) -> None:
    expected = json.loads(STATES.read_text())[kind]
    if kind == "plain":
        found = outcomes(ov_genai, ovgpu.Tensor, pipelines("lfm2"), OF_TOKENS)
    else:
        found = outcomes(ov_genai, ovgpu.Tensor, pipelines("lfm2", "CPU", "lookup"), LOOKUPS_OF_TOKENS, LOOKUP)
    assert list(found) == list(expected)
    for name, outcome in found.items():
        assert agree(json.loads(json.dumps(outcome)), expected[name]), name


@pytest.mark.parametrize("model", MODELS)
def test_beams(model: str, pipelines: Pipelines) -> None:
    pipeline = pipelines(model)
    (row,) = rows_of(pipeline, PROMPTS[3:4])

    options = {"max_new_tokens": 6, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}
    config = ov_genai.GenerationConfig(**options, num_return_sequences=4, eos_token_id=2)
    search = BeamSearch(row, config, Stops(config, None), 6)
    texts: list[tuple[int, ...]] = [()]
    while texts:
        logits = np.stack([stepwise(model).logits(row, text) for text in texts])
        logs = logits - np.logaddexp.reduce(logits, -1, keepdims=True)
        search.advance(logs, np.broadcast_to(np.arange(logs.shape[1]), logs.shape))
        texts = [beam.tokens for beam in search.beams]
    found = pipeline.generate(ovgpu.Tensor(np.array([row])), config)
    assert found.tokens == [[*beam.tokens] for beam, _, _ in search.results()]
    assert found.scores == pytest.approx([score for _, score, _ in search.results()], abs=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_on_a_card(model: str, pipelines: Pipelines, emulated: str) -> None:
    pipeline = pipelines(model, emulated)
    prompts, options = PROMPTS[1:4:2], {**PLAIN, "max_new_tokens": 4}
    expected = [stepwise(model).greedy(row, 4) for row in rows_of(pipeline, prompts)]
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
        ("llama", "lfm2", False),
    ],
)
def test_assisted(model: str, assistant: str, on_card: bool, pipelines: Pipelines, emulated: str) -> None:
    """After a refusal, states of fixed size return to what they were, and the accepted tokens are repeated."""
    device = emulated if on_card else "CPU"
    own = LOOKUP if assistant == "lookup" else {}
    prompts = PROMPTS[3:4] if on_card else PROMPTS
    expected = pipelines(model).generate(prompts, **PLAIN).texts
    found = pipelines(model, device, assistant).generate(prompts, **PLAIN, **own)
    assert found.texts == expected
    sizes = found.perf_metrics.raw_metrics.m_batch_sizes
    assert sum(sizes) == 10 * len(prompts)
    if model == assistant:
        assert max(sizes) == 6 and len(sizes) == 3 * len(prompts)


def test_states_that_changed_their_type() -> None:
    """A model that leaves the range of f16 gets states of f32 between a copy and the return to it."""
    infos = [{"s": VariableInfo("s", kind, PartialShape([1, 2]))} for kind in (Type.f16, Type.f32)]
    variables = Variables(infos[0], CpuBackend())
    variables.set("s", np.array([[1.5, 2]], np.float16))
    kept = variables.copy_fixed()
    variables.set("s", np.array([[3, 4]], np.float16))
    variables.change(infos[1])
    variables.drop_tokens(0, kept)
    value = variables.value("s").array
    assert value is not None and (value.dtype, value.tolist()) == (np.float32, [[1.5, 2]])


def test_mamba_takes_one_token_at_a_time(pipelines: Pipelines) -> None:
    for assistant in ("lookup", "mamba"):
        with pytest.raises(ovgpu.Error, match="models that take several tokens at a time; Mamba and Zamba2 take one"):
            pipelines("mamba", "CPU", assistant)
    with pytest.raises(ovgpu.Error, match="models that take several tokens"):
        DraftModel(pipelines("mamba")._decoder, 0.0, AssistedRecord())


@pytest.mark.parametrize("one_by_one", [False, True])
def test_masks_of_new_tokens(one_by_one: bool) -> None:
    """Zamba2 has the inputs and states of other models, but its mask has as many tokens as its input."""
    net = Net()
    ids, mask = (net.parameter("i64", (-1, -1), name) for name in ("input_ids", "attention_mask"))
    hidden = gather(net, net.const(np.eye(8, dtype=np.float32)), ids)
    flags = convert(net, broadcast(net, mask, shape_of(net, ids)), "f32")
    masked = mul(net, hidden, net.layer("Unsqueeze", "opset1", [flags, i64(net, [2])]))
    net.result(net.layer("Relu", "opset1", [masked if one_by_one else hidden], names=["logits"]))
    state = net.read_value("past.conv.0", "f32", (1, 8, 4), net.const(np.zeros((1, 8, 4), np.float32)))
    net.assign("past.conv.0", relu(net, state))
    decoder = Decoder(ovgpu.Core().read_model(*net.build()), "CPU", {})
    inputs = decoder.inputs(decoder.chooser(False).compiled.inputs)
    assert [inputs.next([row])[1].shape[1] for row in ([1, 2, 3], [4])] == [3, 1 if one_by_one else 4]
    with pytest.raises(ovgpu.Error, match="take several tokens") if one_by_one else nullcontext():
        decoder.verifier()


def test_columns_of_no_state() -> None:
    net = Net()
    ids, columns = (
        net.parameter("i64", shape, name) for shape, name in (((-1, -1), "input_ids"), ((-1,), "cache_position"))
    )
    hidden = gather(net, net.const(np.eye(8, dtype=np.float32)), ids)
    net.result(add(net, hidden, convert(net, gather(net, columns, 0), "f32")), "logits")
    state = net.read_value("s", "f32", (1, 8), net.const(np.zeros((1, 8), np.float32)))
    net.assign("s", relu(net, state))
    with pytest.raises(ovgpu.Error, match="the model has the input cache_position, but no states of convolutions"):
        Decoder(ovgpu.Core().read_model(*net.build()), "CPU", {})
