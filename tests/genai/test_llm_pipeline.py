"""LLMPipeline: texts, scores and errors as recorded from openvino_genai, streamers, chats, seeds and wrong uses."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.api.infer_request import InferRequest
from ovgpu.batching import SequenceBatcher
from ovgpu.batching.gathering import Work
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from tests.genai.close import assert_close
from tests.genai.generation_cases import CASES, DRAWS, MODELS, PLAIN, PROMPT, make_folder, name_of, outcomes
from tests.genai.record_wheel import PATH
from tests.harness.ir import Net

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
Pipelines = Callable[..., ov_genai.LLMPipeline]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Return a function that makes the pipeline of a model on a device, once."""

    @cache
    def make(model: str = "llama", device: str = "CPU") -> ov_genai.LLMPipeline:
        return ov_genai.LLMPipeline(make_folder(model, tmp_path_factory.mktemp(model)), device, **EXACT)

    return make


# ---- comparison with openvino_genai


@pytest.mark.parametrize("model", MODELS)
def test_generations(model: str, pipelines: Pipelines) -> None:
    found = outcomes(ov_genai, ovgpu.Tensor, pipelines(model))
    expected = json.loads(PATH.read_text())[f"generations of {model}"]
    assert list(found) == list(expected) and len(found) == len(CASES)
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


def test_generations_on_a_card(pipelines: Pipelines, emulated: str) -> None:
    """Some cases of each kind: single texts, batches of prompts of unequal lengths, penalties, several texts, stops,
    and of beam search, whose choice is the host's, one prompt and several ones."""
    expected = json.loads(PATH.read_text())["generations of llama"]
    chosen = [
        case
        for case in CASES
        if isinstance(expected[name_of(case)], list) and len(expected[name_of(case)]) == 5 and "streamer" not in case[1]
    ][::4]
    _, *between, _ = [case for case in chosen if "num_beams" in case[1]]
    chosen = [case for case in chosen if case not in between]
    found = outcomes(ov_genai, ovgpu.Tensor, pipelines(device=emulated), chosen)
    assert len(found) >= 7
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


# ---- random draws


def tokens(pipeline: ov_genai.LLMPipeline, prompts: list[str], **keywords: Any) -> list[list[int]]:
    ids = pipeline.get_tokenizer().encode(prompts)
    found: list[list[int]] = pipeline.generate(
        ids, max_new_tokens=8, ignore_eos=True, do_sample=True, **keywords
    ).tokens
    return found


@pytest.mark.parametrize("model", MODELS)
def test_draws(model: str, pipelines: Pipelines) -> None:
    """The same tokens as openvino_genai: its random numbers, and its order of tokens."""
    found = outcomes(ov_genai, ovgpu.Tensor, pipelines(model), DRAWS)
    expected = json.loads(PATH.read_text())[f"draws of {model}"]
    assert list(found) == list(expected) and len(found) == len(DRAWS)
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


def test_draws_on_a_card(pipelines: Pipelines, emulated: str) -> None:
    """One case of each order of tokens, and several texts, of which some end early."""
    expected = json.loads(PATH.read_text())["draws of llama"]
    chosen = [DRAWS[1], DRAWS[5], DRAWS[6], DRAWS[-1]]
    for name, outcome in outcomes(ov_genai, ovgpu.Tensor, pipelines(device=emulated), chosen).items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


def test_seeds(pipelines: Pipelines) -> None:
    """Calls and equal prompts repeat the draws; the texts of a prompt take random numbers in turn."""
    pipeline = pipelines()
    first = tokens(pipeline, [PROMPT])
    assert first == tokens(pipeline, [PROMPT]) == tokens(pipeline, [PROMPT], rng_seed=0)
    assert first != tokens(pipeline, [PROMPT], rng_seed=1)
    assert tokens(pipeline, [PROMPT, "a", PROMPT]) == [*first, *tokens(pipeline, ["a"]), *first]
    several = tokens(pipeline, [PROMPT], num_return_sequences=4)
    assert len({tuple(row) for row in several}) == 4 and first[0][0] in {row[0] for row in several}
    assert several == tokens(pipeline, [PROMPT], num_return_sequences=4)
    assert tokens(pipeline, ["a", PROMPT], num_return_sequences=4)[4:] == several


def test_scores_of_draws(pipelines: Pipelines) -> None:
    """Sums of log probabilities, of which those with logprobs are by the logits alone; the highest comes first."""
    pipeline = pipelines()
    ids = pipeline.get_tokenizer().encode(PROMPT)
    options = {"max_new_tokens": 5, "ignore_eos": True, "do_sample": True, "num_return_sequences": 5}
    plain = pipeline.generate(ids, **options, temperature=2.0)
    raw = pipeline.generate(ids, **options, temperature=2.0, logprobs=1)
    assert plain.scores == sorted(plain.scores, reverse=True) and raw.scores == sorted(raw.scores, reverse=True)
    assert sorted(plain.tokens) == sorted(raw.tokens)
    for row, score in zip(raw.tokens, raw.scores):
        forced = 0.0
        for i, token in enumerate(row):  # the same text, one token after the other
            before = ovgpu.Tensor(np.array([ids.input_ids.data[0].tolist() + row[:i]]))
            others = {n for n in range(211)} - {token}
            config = ov_genai.GenerationConfig(max_new_tokens=2, min_new_tokens=1, logprobs=1, stop_token_ids=others)
            result = pipeline.generate(before, config, eos_token_id=min(others))
            assert result.tokens[0][0] == token
            first = pipeline.generate(before, config, eos_token_id=min(others), min_new_tokens=1, max_new_tokens=1)
            forced += first.scores[0]
        assert forced == pytest.approx(score, abs=1e-3)


# ---- streamers


class Recorder(ov_genai.StreamerBase):
    """Streamer that answers with a status after some tokens, and counts its calls."""

    def __init__(self, status: Any = StreamingStatus.RUNNING, after: int = 3) -> None:
        self.tokens: list[int] = []
        self.ends, self._status, self._after = 0, status, after

    def write(self, token: Any) -> StreamingStatus:
        self.tokens += token
        return self._status if len(self.tokens) >= self._after else StreamingStatus.RUNNING

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize(
    "status, reason",
    [
        (StreamingStatus.STOP, GenerationFinishReason.STOP),
        (StreamingStatus.CANCEL, GenerationFinishReason.NONE),
        (StreamingStatus.TOOL_CALL_STOP, GenerationFinishReason.TOOL_CALL),
    ],
)
def test_a_streamer_ends_the_text(
    status: StreamingStatus, reason: GenerationFinishReason, pipelines: Pipelines
) -> None:
    pipeline = pipelines()
    ids = pipeline.get_tokenizer().encode(PROMPT)
    whole = pipeline.generate(ids, max_new_tokens=6, ignore_eos=True).tokens[0]
    streamer = Recorder(status)
    result = pipeline.generate(ids, max_new_tokens=6, ignore_eos=True, streamer=streamer)
    assert result.tokens == [whole[:3]] == [streamer.tokens] and streamer.ends == 1
    assert result.finish_reasons == [reason] and result.perf_metrics.get_num_generated_tokens() == 3


def test_faulty_streamers(pipelines: Pipelines) -> None:
    """The error is raised, and the pipeline generates the same text as before."""
    pipeline = pipelines()
    before = pipeline.generate(PROMPT, **PLAIN)

    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    def again(text: str) -> None:
        pipeline.generate(PROMPT, **PLAIN)

    for streamer, kind, message in (
        (lambda text: 1 // 0, ZeroDivisionError, "division"),
        (interrupt, KeyboardInterrupt, None),
        (again, ovgpu.Error, "a streamer cannot call generate"),
        (lambda text: "on", ovgpu.Error, "returns None, a bool or a StreamingStatus, not 'on'"),
        (Recorder(None, 2), ovgpu.Error, "write of a streamer returns a StreamingStatus, not None"),
        (ov_genai.StreamerBase(), ovgpu.Error, "StreamerBase has no method write"),
    ):
        with pytest.raises(kind, match=message):
            pipeline.generate(PROMPT, **PLAIN, streamer=streamer)
        assert pipeline.generate(PROMPT, **PLAIN) == before


# ---- chats


def test_chats(pipelines: Pipelines) -> None:
    """A chat keeps what was said, except turns that were cancelled or failed."""
    pipeline = pipelines("gpt2")
    tokenizer, options = pipeline.get_tokenizer(), {"max_new_tokens": 4, "ignore_eos": True}
    with pytest.deprecated_call(match="call generate\\(\\) with a ChatHistory"):
        pipeline.start_chat("Be brief")
    history = [{"role": "system", "content": "Be brief"}]
    for text in ("hi", "ho"):
        answer = pipeline.generate(text, **options, apply_chat_template=text == "hi")  # without effect
        history.append({"role": "user", "content": text})
        assert answer == pipeline.generate(ov_genai.ChatHistory(history), **options).texts[0]
        history.append({"role": "assistant", "content": answer})
    pipeline.generate("never mind", **options, streamer=Recorder(StreamingStatus.CANCEL, 2))
    with pytest.raises(ZeroDivisionError):
        pipeline.generate("never mind", **options, streamer=lambda text: 1 // 0)
    with pytest.raises(ovgpu.Error, match="a chat has one prompt at a time, not 2"):
        pipeline.generate(["a", "b"], **options)
    result = pipeline.generate(["more"], **options)
    asked = tokenizer.apply_chat_template([*history, {"role": "user", "content": "more"}], True)
    assert result.perf_metrics.get_num_input_tokens() == tokenizer.encode(asked, False).input_ids.shape[1]
    with pytest.deprecated_call():
        pipeline.finish_chat()
    assert (
        pipeline.generate("hi", **options)
        == pipeline.generate(ov_genai.ChatHistory([{"role": "user", "content": "hi"}]), **options).texts[0]
    )


# ---- configurations


def test_configurations(pipelines: Pipelines, tmp_path: Path) -> None:
    """An own configuration takes only the EOS token from the pipeline's, and keywords change it."""
    folder = make_folder("llama", tmp_path)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 3], "max_new_tokens": 4}))
    pipeline = ov_genai.LLMPipeline(folder, "CPU", **EXACT)
    config = pipeline.get_generation_config()
    assert (config.eos_token_id, config.stop_token_ids, config.max_new_tokens) == (2, {2, 3}, 4)
    config.max_new_tokens = 1
    ids = pipeline.get_tokenizer().encode(PROMPT)
    assert [len(row) for row in pipeline.generate(ids).tokens] == [4]  # it was a copy
    own = ov_genai.GenerationConfig(max_new_tokens=6)
    assert len(pipeline.generate(ids, own).tokens[0]) == 6
    assert len(pipeline.generate(ids, own, max_new_tokens=2).tokens[0]) == 2 and own.max_new_tokens == 6
    assert own.eos_token_id == -1
    pipeline.set_generation_config(own)
    assert pipeline.get_generation_config().eos_token_id == 2 and len(pipeline(ids).tokens[0]) == 6
    for wrong, message in (
        ({"num_beams": 4, "top_k": 3, "do_sample": True}, "beam search does not draw tokens"),
        ({"num_beams": 120, "max_new_tokens": 3}, "num_beams is 120, and the vocabulary has only 211 tokens"),
        ({"num_assistant_tokens": 3, "tree_depth": 2}, "does not support tree_depth"),
        ({"return_omni_outputs": True}, "return_omni_outputs needs a model that generates speech"),
        ({"top_p": 2.0, "do_sample": True}, "top_p must be"),
        ({"unknown": 1}, "GenerationConfig has no field unknown"),
    ):
        with pytest.raises(ovgpu.Error, match=message):
            pipeline.generate(ids, **wrong)
    with pytest.raises(ovgpu.Error, match="max_new_tokens must be greater than 0"):
        pipeline.set_generation_config(ov_genai.GenerationConfig(max_new_tokens=0))
    with pytest.raises(TypeError, match="generation_config is a GenerationConfig, not 3"):
        pipeline.generate(ids, 3)  # type: ignore[arg-type]


def test_metrics(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    metrics = pipeline.generate(["a", PROMPT], max_new_tokens=5, ignore_eos=True).perf_metrics
    raw = metrics.raw_metrics
    assert raw.m_batch_sizes == [2] * 5 and len(raw.m_durations) == 8 and len(raw.token_infer_durations) == 5
    assert [
        len(x) for x in (raw.chat_template_durations, raw.tokenization_durations, raw.detokenization_durations)
    ] == [2] * 3
    assert len(raw.generate_durations) == len(raw.inference_durations) == len(raw.m_times_to_first_token) == 1
    assert 0 < raw.m_times_to_first_token[0] < raw.generate_durations[0] and metrics.get_load_time() > 0
    assert sum(raw.token_infer_durations) == pytest.approx(raw.inference_durations[0])
    total = metrics + pipeline.generate(["a"], max_new_tokens=2, ignore_eos=True).perf_metrics
    assert total.get_num_generated_tokens() == 12


# ---- construction


def test_forms_of_construction(pipelines: Pipelines, tmp_path: Path) -> None:
    folder = make_folder("llama", tmp_path)
    tokenizer = ov_genai.Tokenizer(folder)
    expected = pipelines().generate(PROMPT, **PLAIN)
    xml = (folder / "openvino_model.xml").read_text()
    weights = ovgpu.Tensor(np.fromfile(folder / "openvino_model.bin", np.uint8))
    config = ov_genai.GenerationConfig(max_new_tokens=3, apply_chat_template=False)
    for pipeline in (
        ov_genai.LLMPipeline(str(folder), "CPU", EXACT),
        ov_genai.LLMPipeline(models_path=folder, device="CPU", config=EXACT, ATTENTION_BACKEND="SDPA"),
        ov_genai.LLMPipeline(folder, tokenizer, "CPU", **EXACT),
        ov_genai.LLMPipeline(folder, "CPU", scheduler_config=ov_genai.SchedulerConfig(), **EXACT),
        ov_genai.LLMPipeline(xml, weights, tokenizer, "CPU", **EXACT),
        ov_genai.LLMPipeline(xml, weights, tokenizer, "CPU", config, **EXACT),
    ):
        assert pipeline.generate(PROMPT, **PLAIN) == expected
    assert pipeline.get_generation_config().max_new_tokens == 3 and pipeline.get_tokenizer() is tokenizer


@pytest.mark.parametrize(
    "args, keywords, kind, message",
    [
        ((), {}, TypeError, "LLMPipeline takes"),
        (("folder",), {}, TypeError, "LLMPipeline takes"),
        ((3, "CPU"), {}, TypeError, "LLMPipeline takes"),
        (("folder", "CPU", {}, 1), {}, TypeError, "LLMPipeline takes"),
        (("nothing", "CPU"), {}, ovgpu.Error, "nothing has no openvino_model.xml: `optimum-cli export"),
        (("nothing.GGUF", "CPU"), {}, ovgpu.Error, "nothing.GGUF: GGUF is not read: export the model from which"),
        (("folder", "CPU"), {"draft_model": 1}, TypeError, "draft_model is what the function draft_model returns"),
        (("folder", "CPU"), {"generation_config": ov_genai.GenerationConfig()}, TypeError, "only with weights"),
        (("folder", "CPU"), {"scheduler_config": {}}, TypeError, "scheduler_config is a SchedulerConfig, not"),
        (("folder", "CPU"), {"adapters": 1}, TypeError, "adapters must be None or an AdapterConfig, not 1"),
        (("folder", "TPU"), {}, RuntimeError, "TPU"),
        (("folder", "CPU"), {"UNKNOWN": 1}, RuntimeError, "UNKNOWN"),
    ],
)
def test_wrong_arguments(args: Any, keywords: Any, kind: Any, message: str, tmp_path: Path) -> None:
    folder = make_folder("llama", tmp_path)
    with pytest.raises(kind, match=message):
        ov_genai.LLMPipeline(*[folder if arg == "folder" else arg for arg in args], **keywords)


def test_models_that_are_no_decoders(tmp_path: Path) -> None:
    folder = make_folder("bert", tmp_path)
    with pytest.raises(ovgpu.Error, match="the model has no state, so that it cannot remember the text"):
        ov_genai.LLMPipeline(folder, "CPU")


def test_wrong_inputs(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    mask = ovgpu.Tensor(np.ones((1, 3), np.int64))
    ids = ovgpu.Tensor(np.ones((1, 2), np.int64))
    for inputs, kind, message in (
        ([], ovgpu.Error, "there is no prompt"),
        (np.ones((1, 2), np.int64), TypeError, "generate takes texts, a ChatHistory, a Tensor or TokenizedInputs"),
        ([1, 2], TypeError, "generate takes texts"),
        (ov_genai.TokenizedInputs(ids, mask), ovgpu.Error, r"attention_mask has the shape \[1, 3\], not \[1, 2\]"),
        (ovgpu.Tensor(np.ones((1, 2), np.float32)), ovgpu.Error, r"tokens must be i64 \[batch, length\]"),
    ):
        with pytest.raises(kind, match=message):
            pipeline.generate(inputs, max_new_tokens=2)


# ---- beam search


def refuse(*args: Any, **keywords: Any) -> SequenceBatcher:
    """Stand for `SequenceBatcher`, for a model that mixes the rows of a batch."""
    raise ovgpu.Error("a layer mixes rows")


def test_beams_need_rows_that_can_be_reordered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovgpu.genai.decoder.SequenceBatcher", refuse)
    net = Net()
    ids = net.parameter("i64", (-1, -1), "input_ids")
    table = net.const(np.eye(8, dtype=np.float32))
    logits = net.layer("Gather", "opset8", [table, ids, net.const(np.int64(0))], names=["logits"])
    state = net.read_value("s", "f32", (1, 8), net.const(np.zeros((1, 8), np.float32)))
    net.assign("s", state)
    net.result(logits)
    decoder = Decoder(ovgpu.Core().read_model(*net.build()), "CPU", {})
    with pytest.raises(ovgpu.Error, match="beam search needs a model with the input beam_idx"):
        decoder.ranker(16)


def test_the_best_texts_of_all(pipelines: Pipelines) -> None:
    """With nearly as many beams as tokens, the search finds the best texts of two tokens, which are known."""
    pipeline = pipelines()
    ids = pipeline.get_tokenizer().encode(PROMPT).input_ids
    prompt = ids.data[0].tolist()

    def log_probabilities(row: list[int]) -> Any:
        logits = pipeline._decoder.verifier().step(row, 1)[0].astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    first = log_probabilities(prompt)
    both = np.array([first[n] + log_probabilities([*prompt, n]) for n in range(211)])
    best = np.argsort(-both, axis=None)[:3]
    found = pipeline.generate(ids, max_new_tokens=2, num_beams=100, num_return_sequences=3, length_penalty=0.0)
    assert found.tokens == [[int(n) // 211, int(n) % 211] for n in best]
    assert found.scores == pytest.approx(both.reshape(-1)[best].tolist(), abs=1e-4)


def test_stop_strings_end_beams(pipelines: Pipelines) -> None:
    """In openvino_genai, they are an internal error."""
    pipeline = pipelines()
    tokenizer = pipeline.get_tokenizer()
    ids = tokenizer.encode(PROMPT)
    options = {"max_new_tokens": 8, "num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.0}
    for include in (False, True):
        found = pipeline.generate(ids, **options, stop_strings={"I"}, include_stop_str_in_output=include)
        ended = [row for row, why in zip(found.tokens, found.finish_reasons) if why == GenerationFinishReason.STOP]
        assert ended and found.scores == sorted(found.scores, reverse=True)
        assert all(("I" in tokenizer.decode(row)) == include for row in ended)
        assert not any("I" in tokenizer.decode(row[:-1]) for row in found.tokens)


# ---- many texts


def test_a_model_that_mixes_rows(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Texts that cannot share a batch have requests of their own."""
    monkeypatch.setattr("ovgpu.genai.decoder.SequenceBatcher", refuse)
    pipeline = ov_genai.LLMPipeline(make_folder("llama", tmp_path), "CPU", **EXACT)
    prompts = [PROMPT, "a"]
    assert pipeline.generate(prompts, **PLAIN).texts == [pipelines().generate(text, **PLAIN) for text in prompts]
    beams = {**PLAIN, "num_beams": 3, "num_return_sequences": 3}
    assert pipeline.generate(prompts, **beams).texts == pipelines().generate(prompts, **beams).texts


@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.5}], ids=["plain", "penalties"])
def test_texts_share_inferences(
    penalties: dict[str, float], pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All texts that go on run in one inference, on the constants of the model for one text."""
    pipeline = pipelines("gpt2")
    sizes: list[int] = []
    batcher = pipeline._decoder._batcher_of(pipeline._decoder.chooser(bool(penalties)))
    assert batcher is not None
    slots = batcher._slots[0]
    monkeypatch.setattr(slots, "_observer", lambda run: sizes.append(run.rows))
    ids = pipeline.get_tokenizer().encode([PROMPT] * 3)
    pipeline.generate(ids, max_new_tokens=4, ignore_eos=True, **penalties)
    assert sizes == [3] * 4 and len(batcher) == 3  # whose blocks the next call may share
    pipeline._engine = None
    assert len(batcher) == 0
    own, shared = pipeline._decoder.chooser(False).compiled._compilation, batcher.compiled_model._compilation
    assert {id(x) for _, x in shared.constants.values()} & {id(x) for _, x in own.constants.values()}


def test_threads(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    prompts = [PROMPT, "a", "Hello", "b"]
    expected = [pipeline.generate(text, **PLAIN) for text in prompts]
    found: dict[str, str] = {}
    threads = [
        threading.Thread(target=lambda text=text: found.update({text: pipeline.generate(text, **PLAIN)}))
        for text in prompts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[text] for text in prompts] == expected


@pytest.mark.parametrize("prompts", [[PROMPT], [PROMPT, "a"]], ids=["one", "several"])
def test_interruption(prompts: list[str], pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a generation while it waits for a step. Nothing stays open, and the next one is whole."""
    pipeline = pipelines()
    before = pipeline.generate(prompts, **PLAIN).texts
    kind, name = (InferRequest, "infer") if len(prompts) == 1 else (Work, "exception")
    wait, count = getattr(kind, name), iter(range(1000))

    def interrupted(*args: Any, **keywords: Any) -> Any:
        if next(count) == 5:
            raise KeyboardInterrupt
        return wait(*args, **keywords)

    monkeypatch.setattr(kind, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline.generate(prompts, **PLAIN)
    monkeypatch.undo()
    assert all(len(batcher) == 0 for batcher in pipeline._decoder._batchers.values() if batcher is not None)
    assert pipeline.generate(prompts, **PLAIN).texts == before


def test_a_faulty_model_ends_the_generation(pipelines: Pipelines, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = pipelines()
    before = pipeline.generate([PROMPT, "a"], **PLAIN).texts
    monkeypatch.setattr("ovgpu.genai.runs.checked_token", lambda found: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        pipeline.generate([PROMPT, "a"], **PLAIN)
    monkeypatch.undo()
    assert pipeline.generate([PROMPT, "a"], **PLAIN).texts == before
