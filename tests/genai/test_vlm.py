"""VLMPipeline: texts, scores, chats and errors as recorded from openvino_genai, and wrong uses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
import ovgpu.genai
from ovgpu.genai import VLMPipeline
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.places import Requests
from tests.emulator import state
from tests.genai import vlm_cases as cases
from tests.genai.close import assert_close
from tests.genai.record_wheel import VLM
from tests.genai.vlm_model import FAMILIES, TAGS, make_folder

pytest.importorskip("tokenizers")

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
RECORD = json.loads(VLM.read_text())
HI = ("hi", cases.ONE, cases.PLAIN)
Pipelines = Callable[..., VLMPipeline]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: make_folder(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def pipelines(folders: dict[str, Path]) -> Pipelines:
    """Return a function that makes the pipeline of a family on a device, once."""

    @cache
    def make(family: str = "llava", device: str = "CPU", **properties: Any) -> VLMPipeline:
        return VLMPipeline(folders[family], device, **EXACT, **properties)

    return make


def image(*given: int) -> ovgpu.Tensor:
    return ovgpu.Tensor(cases.pixels(*(given or cases.WIDE)))


# ---- comparison with openvino_genai


@pytest.mark.parametrize("family", FAMILIES)
def test_generations(family: str, pipelines: Pipelines) -> None:
    chosen, _ = cases.cases_of(family)
    found = cases.outcomes(ovgpu.genai, ovgpu.Tensor, pipelines(family), TAGS[family], chosen)
    assert list(found) == list(RECORD[family]) and len(found) == len(chosen) > 25
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), RECORD[family][name])


@pytest.mark.parametrize("family", FAMILIES)
def test_chats(family: str, pipelines: Pipelines) -> None:
    _, chosen = cases.cases_of(family)
    found = cases.chats(ovgpu.genai, ovgpu.Tensor, pipelines(family), TAGS[family], chosen)
    expected = RECORD[f"chats of {family}"]
    assert list(found) == list(expected) and len(found) == len(chosen)
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


@pytest.mark.parametrize("family", FAMILIES)
def test_generations_on_a_card(family: str, pipelines: Pipelines, emulated: str) -> None:
    """Two images and a video; of one family, also texts without, penalties, several texts."""
    video: Any = ("hi", {"videos": [{"count": 5, "size": cases.WIDE}]}, cases.PLAIN)
    chosen: list[Any] = [("hi", cases.TWO, cases.PLAIN), video]
    if family == "llava":
        chosen += [case for case in cases.CASES if case[2].get("num_return_sequences", 1) == 2 and "top_k" in case[2]]
        chosen += [case for case in cases.CASES if case[2].get("repetition_penalty") == 1.5]
        assert len(chosen) == 4
    found = cases.outcomes(ovgpu.genai, ovgpu.Tensor, pipelines(family, emulated), TAGS[family], chosen)
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), RECORD[family][name])


@pytest.mark.parametrize("family", ["gemma3", "llava", "qwen2_vl"])
def test_a_decode_step_is_one_graph(family: str, pipelines: Pipelines, emulated: str) -> None:
    """A token and its log probability come back, and nothing is allocated."""
    pipeline, run, seen = pipelines(family, emulated), Requests.step, []

    def counted(self: Requests, inputs: Any) -> Any:
        state.counters.reset()
        found = run(self, inputs)
        counters = state.counters
        seen.append((counters.graph_launches, counters.launches, counters.allocs, counters.d2h_bytes))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Requests, "step", counted)
        pipeline.generate("hi", image=image(), **cases.PLAIN)
    assert seen[3:] == [(1, 0, 0, 8)] * 5


# ---- images


def test_the_middle_of_an_image(pipelines: Pipelines) -> None:
    """LLaVA sees no more of an image."""
    pipeline = pipelines()
    pixels = cases.pixels(28, 60, 7)
    expected = pipeline.generate("hi", image=ovgpu.Tensor(pixels), **cases.PLAIN).texts
    pixels[:, :16] = pixels[:, 44:] = 0
    assert pipeline.generate("hi", image=ovgpu.Tensor(pixels), **cases.PLAIN).texts == expected


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_channels(family: str, pipelines: Pipelines) -> None:
    """Grey images have one channel, and the fourth one is left out."""
    pipeline, pixels, found = pipelines(family), cases.pixels(*cases.WIDE), []
    for channels in ([0, 0, 0], [0], [0, 0, 0, 2]):
        tensor = ovgpu.Tensor(np.ascontiguousarray(pixels[..., channels]))
        found.append(pipeline.generate("hi", image=tensor, **cases.PLAIN).texts)
    assert found[0] == found[1] == found[2] != pipeline.generate("hi", image=image(), **cases.PLAIN).texts


def test_wrong_images(pipelines: Pipelines) -> None:
    shapes = [(0, 4, 3), (4, 4, 2), (0, 4, 4, 3)]
    for shape in shapes:
        with pytest.raises(ovgpu.Error, match=r"an image has pixels with 1, 3 or 4 channels.*not uint8 \["):
            pipelines().generate("hi", image=ovgpu.Tensor(np.zeros(shape, np.uint8)), **cases.PLAIN)
    for images in (np.zeros((4, 4, 3), np.uint8), [3], "x", {}):
        with pytest.raises(TypeError, match="images are a Tensor or a list of them"):
            pipelines().generate("hi", images=images, **cases.PLAIN)
    with pytest.raises(ovgpu.Error, match="an image is at most 200 times as long as wide, not 1 x 201"):
        pipelines("qwen2_vl").generate("hi", image=image(1, 201, 0), **cases.PLAIN)
    with pytest.raises(ovgpu.Error, match="the model takes no videos: pass their frames as images"):
        pipelines().generate("hi", videos=[image()], **cases.PLAIN)
    metadata = ovgpu.genai.VideoMetadata()
    metadata.frames_indices = [0, 9]
    for given, kind, message in (
        (3, TypeError, "videos_metadata is a list of VideoMetadata, not 3"),
        ([metadata], ovgpu.Error, r"frames_indices are \[0, 9\], and the video has 1 frames"),
        ([3], TypeError, "videos_metadata is a list of VideoMetadata"),
    ):
        with pytest.raises(kind, match=message):
            pipelines("qwen2_vl").generate("hi", videos=[image()], videos_metadata=given, **cases.PLAIN)


def test_tokens_without_images(pipelines: Pipelines) -> None:
    """An earlier answer may have the token of an image."""
    history = ovgpu.genai.ChatHistory([{"role": "assistant", "content": "<image>"}, {"role": "user", "content": "hi"}])
    with pytest.raises(ovgpu.Error, match="the prompt has 17 tokens of images, and 16 embeddings of them"):
        pipelines().generate(history, image=image(), **cases.PLAIN)


# ---- wrong uses, and what a failure leaves


def test_a_streamer_that_fails(pipelines: Pipelines) -> None:
    """It ends the generation with its exception. The chat is as before, and so is the pipeline."""
    pipeline = pipelines()
    expected = [pipeline.generate(*HI[:1], image=image(), **cases.PLAIN).texts]

    def fail(text: str) -> None:
        raise KeyboardInterrupt

    history = ovgpu.genai.ChatHistory([{"role": "user", "content": "hi"}])
    fresh = ovgpu.genai.ChatHistory(history.get_messages())
    expected.append(pipeline.generate(fresh, image=image(), **cases.PLAIN).texts)
    for prompt, texts in zip(("hi", history), expected):
        with pytest.raises(KeyboardInterrupt):
            pipeline.generate(prompt, image=image(), streamer=fail, **cases.PLAIN)
        assert pipeline.generate(prompt, image=image(), **cases.PLAIN).texts == texts


@pytest.mark.parametrize("status", [StreamingStatus.STOP, StreamingStatus.CANCEL])
def test_a_chat_that_is_stopped(status: StreamingStatus, pipelines: Pipelines) -> None:
    """A turn that was cancelled is forgotten, with its images; one that was stopped is not. No token follows."""
    pipeline, found = pipelines(), []

    class Streamer(ovgpu.genai.StreamerBase):
        def write(self, token: Any) -> StreamingStatus:
            return status

        def end(self) -> None:
            pass

    with pytest.deprecated_call():
        for stopped in (True, False):
            pipeline.start_chat()
            pipeline.generate("hi", image=image(), **cases.PLAIN)
            if stopped:
                result = pipeline.generate("no", image=image(*cases.TALL), streamer=Streamer(), **cases.PLAIN)
                assert result.perf_metrics.get_num_generated_tokens() == 1
            found.append(pipeline.generate("and", **cases.PLAIN).texts)
            pipeline.finish_chat()
    assert (found[0] == found[1]) == (status == StreamingStatus.CANCEL)


def test_threads_share_a_pipeline(pipelines: Pipelines) -> None:
    pipeline, sizes = pipelines("qwen2_vl"), [cases.WIDE, cases.SQUARE, cases.TALL]
    expected = [pipeline.generate("hi", image=image(*size), **cases.PLAIN).texts for size in sizes]
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda size: pipeline.generate("hi", image=image(*size), **cases.PLAIN).texts, sizes * 2)
        assert [*found] == expected * 2
    with pytest.raises(ovgpu.Error, match="a streamer cannot call generate"):
        pipeline.generate("hi", streamer=lambda text: pipeline.generate("x"), **cases.PLAIN)


def test_arguments(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    config = ovgpu.genai.GenerationConfig(**cases.PLAIN)
    expected = pipeline.generate("hi", image=image(), **cases.PLAIN).texts
    assert pipeline.generate("hi", [image()], [], config).texts == expected
    assert pipeline.generate(prompt="hi", image=image(), generation_config=config).texts == expected
    history = ovgpu.genai.ChatHistory([{"role": "user", "content": "hi"}])
    assert len(pipeline.generate(history=history, images=[image()], generation_config=config).texts) == 1
    assert pipeline.generate("hi", config, images=[image()]).texts == expected
    pieces: list[str] = []
    assert pipeline.generate("hi", image(), config, pieces.append).texts == expected == ["".join(pieces)]
    for arguments in (["hi", [], [], config, None, 3], ["hi", 3], [["hi"]], [3]):
        with pytest.raises(TypeError):
            pipeline.generate(*arguments, **cases.PLAIN)
    with pytest.raises(ovgpu.Error, match="has no field size"):
        pipeline.generate("hi", size=3)
    with pytest.raises(ovgpu.Error, match="pruning_ratio"):
        pipeline.generate("hi", image=image(), pruning_ratio=50, **cases.PLAIN)


def test_configuration(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    before = pipeline.get_generation_config()
    assert before.eos_token_id == 2 and pipeline.get_tokenizer().get_eos_token_id() == 2
    try:
        pipeline.set_generation_config(ovgpu.genai.GenerationConfig(**cases.PLAIN))
        assert pipeline.get_generation_config().eos_token_id == 2
        text = pipeline.generate("hi", image=image()).texts
    finally:
        pipeline.set_generation_config(before)
    assert text == pipeline.generate("hi", image=image(), **cases.PLAIN).texts


def test_a_template_that_trims(folders: dict[str, Path], tmp_path: Path) -> None:
    """Gemma's would cut off the newlines around an image."""
    folder = shutil.copytree(folders["gemma3"], tmp_path / "copy")
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] | trim }}")
    pipeline = VLMPipeline(folder, "CPU", **EXACT)
    expected = pipeline.generate("hi", image=image(), apply_chat_template=False, **cases.PLAIN).perf_metrics
    found = pipeline.generate("hi", image=image(), **cases.PLAIN).perf_metrics
    assert found.get_num_input_tokens() == expected.get_num_input_tokens() - 1  # no token begins the text


def test_chat_template(folders: dict[str, Path]) -> None:
    pipeline = VLMPipeline(folders["llava"], "CPU", **EXACT)
    expected = pipeline.generate("hi ho", apply_chat_template=False, **cases.PLAIN).perf_metrics.get_num_input_tokens()
    pipeline.set_chat_template("{{ messages[0]['content'] }}")
    assert pipeline.generate("hi ho", **cases.PLAIN).perf_metrics.get_num_input_tokens() == expected - 1
    with pytest.deprecated_call():
        pipeline.start_chat()
    with pytest.raises(ovgpu.Error, match="the chat template cannot change in a chat"):
        pipeline.set_chat_template("")


def test_metrics(pipelines: Pipelines) -> None:
    found = pipelines().generate("hi", images=[image(), image()], **cases.PLAIN)
    metrics, raw, own = found.perf_metrics, found.perf_metrics.raw_metrics, found.perf_metrics.vlm_raw_metrics
    assert str(found) == found.texts[0] and metrics.get_load_time() > 0
    assert metrics.get_total_image_slice_count() == 2 and own.per_image_slice_counts == [1, 1]
    total = raw.generate_durations[0]
    before = own.prepare_embeddings_durations[0]
    assert 0 < own.vision_encoding_durations[0] < before < raw.m_times_to_first_token[0] < total
    assert 1e3 * metrics.get_prepare_embeddings_duration().mean == pytest.approx(before)
    assert 0 < metrics.get_vision_encoding_duration().mean < metrics.get_prepare_embeddings_duration().mean
    assert (metrics.get_text_embedding_duration().mean, metrics.get_audio_encoding_duration().mean) == (0, -1)
    assert (metrics + metrics).get_num_input_tokens() == 2 * metrics.get_num_input_tokens()


def test_prompt_lookup(pipelines: Pipelines) -> None:
    """Texts are those of plain generation, with positions of images, too."""
    assisted = {**cases.PLAIN, "num_assistant_tokens": 3, "max_ngram_size": 2}
    for family in ("llava", "qwen2_vl"):
        plain, looking = pipelines(family), pipelines(family, prompt_lookup=True)
        for prompt in ("hihihi", "abcabc"):
            expected = plain.generate(prompt, image=image(), **cases.PLAIN).texts
            assert looking.generate(prompt, image=image(), **assisted).texts == expected
    with pytest.raises(ovgpu.Error, match="a pipeline with prompt_lookup needs num_assistant_tokens"):
        looking.generate("hi", **cases.PLAIN)


def test_structured_output(pipelines: Pipelines) -> None:
    pytest.importorskip("llguidance")
    form = ovgpu.genai.StructuredOutputConfig(regex="[a-c]{4}")
    (text,) = pipelines().generate("hi", image=image(), max_new_tokens=9, structured_output_config=form).texts
    assert len(text) == 4 and {*text} <= {*"abc"}


def test_models_of_a_program(folders: dict[str, Path], pipelines: Pipelines) -> None:
    """Models may come from elsewhere, and each may have properties of its own."""
    folder = folders["qwen2_vl"]
    names = ("language", "text_embeddings", "vision_embeddings", "vision_embeddings_merger")
    files = {name: folder / f"openvino_{name}_model.xml" for name in names}
    models = {
        name: (path.read_text(), ovgpu.Tensor(np.frombuffer(path.with_suffix(".bin").read_bytes(), np.uint8)))
        for name, path in files.items()
    }
    tokenizer = ovgpu.genai.Tokenizer(folder)
    config = ovgpu.genai.GenerationConfig(**cases.PLAIN)
    properties = {"MODEL_PROPERTIES": {"language_model": EXACT, "vision_embeddings_merger": EXACT}}
    pipeline = VLMPipeline(models, tokenizer, folder, "CPU", config, **properties)
    expected = pipelines("qwen2_vl").generate("hi", image=image(), **cases.PLAIN).texts
    assert pipeline.generate("hi", image=image()).texts == expected
    with pytest.raises(ovgpu.Error, match="MODEL_PROPERTIES has properties by model: language_model, "):
        VLMPipeline(models, tokenizer, folder, "CPU", MODEL_PROPERTIES={"language": EXACT})
    del models["vision_embeddings_merger"]
    with pytest.raises(ovgpu.Error, match="the models have no vision_embeddings_merger, only language"):
        VLMPipeline(models=models, tokenizer=tokenizer, config_dir_path=folder, device="CPU")
    with pytest.raises(TypeError, match="VLMPipeline takes"):
        VLMPipeline(models, folder, "CPU")


def test_folders(folders: dict[str, Path], tmp_path: Path) -> None:
    """Files that are missing or faulty, and models of another family."""
    folder = shutil.copytree(folders["qwen2_vl"], tmp_path / "copy")
    with pytest.raises(TypeError, match="VLMPipeline takes"):
        VLMPipeline(3, "CPU")
    with pytest.raises(TypeError, match="VLMPipelineBase has no constructor"):
        ovgpu.genai.VLMPipelineBase()
    with pytest.raises(ovgpu.Error, match="a VLMPipeline does not support draft_model"):
        VLMPipeline(folder, "CPU", draft_model=ovgpu.genai)

    def refused(message: str) -> None:
        with pytest.raises(ovgpu.Error, match=message):
            VLMPipeline(folder, "CPU")

    settings = json.loads((folder / "preprocessor_config.json").read_text())
    for changed, message in (
        ({"image_mean": [1, 2]}, r"image_mean must be 3 numbers, not \[1, 2\]"),
        ({"patch_size": 0}, "patch_size must be an integer above 0, not 0"),
        ({"temporal_patch_size": 3}, "temporal_patch_size must be 2"),
    ):
        (folder / "preprocessor_config.json").write_text(json.dumps({**settings, **changed}))
        refused(message)
    both = {"image_processor": settings, "video_processor": {}}
    (folder / "processor_config.json").write_text(json.dumps(both))
    VLMPipeline(folder, "CPU")
    (folder / "openvino_vision_embeddings_merger_model.xml").unlink()
    refused(r"has no openvino_vision_embeddings_merger_model\.xml: `optimum-cli export")
    (folder / "config.json").write_text(json.dumps({"model_type": "phi3_v"}))
    refused("has the model_type 'phi3_v': a VLMPipeline supports gemma3, llava, llava_next, qwen2_5_vl, qwen2_vl")
    folder = shutil.copytree(folders["llava_next"], tmp_path / "next")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "image_newline": config["image_newline"][1:]}))
    with pytest.raises(ovgpu.Error, match="image_newline has 47 numbers, and a token 48"):
        VLMPipeline(folder, "CPU").generate("hi", image=image(), **cases.PLAIN)
    (folder / "config.json").write_text(json.dumps({"model_type": "llava_next"}))
    refused("has no image_newline, the numbers that end a row of tokens")
    (folder / "config.json").write_text(json.dumps(config))
    for sizes, message in (([[56, 0]], "must be pairs of integers above 0"), ([[56, 9]], "must be at least 28")):
        (folder / "preprocessor_config.json").write_text(json.dumps({**settings, "image_grid_pinpoints": sizes}))
        refused(f"image_grid_pinpoints {message}")


def test_parsers(pipelines: Pipelines) -> None:
    class Length(ovgpu.genai.Parser):
        def parse(self, message: Any) -> None:
            message["length"] = len(message["content"])

    found = pipelines().generate("hi", image=image(), parsers=[Length()], **cases.PLAIN)
    assert found.parsed == [{"content": found.texts[0], "length": len(found.texts[0])}]
