"""Record what openvino_genai has and does, with which tests compare, into ``data/wheel.json``, ``retrieval.json``,
``states.json``, ``whisper.json``, ``continuous.json``, ``images.json`` and ``vlm.json``.

Run it in an environment with openvino_genai and pytest, in the folder of the project: ``python -m
tests.genai.record_wheel``.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "data" / "wheel.json"
RETRIEVAL = PATH.with_name("retrieval.json")
STATES = PATH.with_name("states.json")
WHISPER = PATH.with_name("whisper.json")
CONTINUOUS = PATH.with_name("continuous.json")
IMAGES = PATH.with_name("images.json")
VLM = PATH.with_name("vlm.json")


def members(kind: type) -> dict[str, str]:
    """Return the public members of a class, and whether each is a field, a method or a class."""
    names = [name for name in dir(kind) if not name.startswith("_") or name in ("__call__", "__add__", "__iter__")]
    return {name: _kind_of(getattr(kind, name)) for name in names if name != "__class__"}


def _kind_of(member: Any) -> str:
    return "class" if inspect.isclass(member) else "method" if callable(member) else "field"


def _lines(record: dict[str, Any]) -> str:
    """Return JSON with a line for each entry of a group."""
    groups = []
    for name, group in record.items():
        entries = (
            [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in group.items()]
            if isinstance(group, dict)
            else None
        )
        text = json.dumps(group) if entries is None else "{\n  " + ",\n  ".join(entries) + "\n }"
        groups.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(groups) + "\n}"


def main() -> None:
    """Write the file."""
    import openvino
    import openvino_genai

    from tests.genai import (
        adapter_cases,
        config_cases,
        generation_cases,
        parser_cases,
        retrieval_cases,
        streamer_cases,
        tokenizer_cases,
    )
    from tests.genai.make_tokenizer import FOLDER

    def make_pipeline(model: str, folder: str, **properties: Any) -> Any:
        path = generation_cases.make_folder(model, Path(folder))
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        return openvino_genai.LLMPipeline(path, "CPU", **exact, **properties)

    def generations(model: str, cases: Any = generation_cases.CASES) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            pipeline = make_pipeline(model, folder)
            return generation_cases.outcomes(openvino_genai, openvino.Tensor, pipeline, cases)

    def adapted_generations() -> list[Any]:
        with tempfile.TemporaryDirectory() as folder:
            make = partial(make_pipeline, "llama", folder)
            return adapter_cases.outcomes(openvino_genai, make, Path(folder))

    def parsed_generations() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return parser_cases.generated(openvino_genai, make_pipeline("llama", folder))

    def make(kind: Any, model: str, **keywords: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = retrieval_cases.make_folder(model, Path(folder))
            return kind(path, "CPU", INFERENCE_PRECISION_HINT="f32", **keywords)

    names = [name for name in dir(openvino_genai) if not name.startswith("_")]
    public = {
        name: getattr(openvino_genai, name) for name in names if not inspect.ismodule(getattr(openvino_genai, name))
    }
    record = {
        "version": openvino_genai.__version__,
        "classes": {name: members(value) for name, value in public.items() if inspect.isclass(value)},
        "functions": [name for name, value in public.items() if not inspect.isclass(value)],
        "generation_config": config_cases.fields_of(openvino_genai.GenerationConfig()),
        **{f"generations of {model}": generations(model) for model in generation_cases.MODELS},
        **{f"draws of {model}": generations(model, generation_cases.DRAWS) for model in generation_cases.MODELS},
        "grammars": generations("llama", generation_cases.GRAMMARS),
        **config_cases.outcomes(openvino_genai.GenerationConfig),
        "streams": streamer_cases.outcomes(openvino_genai.TextStreamer, openvino_genai.Tokenizer(FOLDER)),
        "perf_metrics": streamer_cases.measures(openvino_genai.PerfMetrics()),
        "parsed": parser_cases.parsed(openvino_genai),
        "parsed_pieces": parser_cases.streamed(openvino_genai),
        "parsed_streams": parser_cases.streams(openvino_genai, openvino_genai.Tokenizer(FOLDER)),
        "parsed_generations": parsed_generations(),
        "adapters": adapted_generations(),
        "tokenizer": tokenizer_cases.outcomes(openvino_genai.Tokenizer(FOLDER)),
    }
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(_lines(record) + "\n")
    RETRIEVAL.write_text(_lines(retrieval_cases.record(openvino_genai, make)) + "\n")
    record_continuous()
    record_states()
    record_whisper()
    record_images()
    record_vlm()


def record_continuous() -> None:
    """Write the file about ContinuousBatchingPipeline."""
    import openvino_genai

    from tests.genai import continuous_cases, generation_cases

    with tempfile.TemporaryDirectory() as name:
        folder = generation_cases.make_folder("llama", Path(name))
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}

        def make(scheduler: Any) -> Any:
            return openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", exact)

        record = {
            "runs": continuous_cases.outcomes(openvino_genai, make),
            "generated": continuous_cases.generated(openvino_genai, make(openvino_genai.SchedulerConfig())),
            "settings": continuous_cases.settings(openvino_genai.SchedulerConfig),
        }
    CONTINUOUS.write_text(_lines(record) + "\n")


def record_states() -> None:
    """Write the file about a decoder with states of fixed size beside KV caches."""
    import openvino
    import openvino_genai

    from tests.genai import generation_cases

    exact: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    with tempfile.TemporaryDirectory() as folder:
        path = generation_cases.make_folder("lfm2", Path(folder))
        exact["scheduler_config"] = openvino_genai.SchedulerConfig()  # without a cache of prefixes, unlike the default
        plain = openvino_genai.LLMPipeline(path, "CPU", **exact)
        assisted = openvino_genai.LLMPipeline(path, "CPU", prompt_lookup=True, **exact)
        record = {
            name: generation_cases.outcomes(openvino_genai, openvino.Tensor, pipeline, cases, keywords)
            for name, pipeline, cases, keywords in (
                ("plain", plain, generation_cases.OF_TOKENS, {}),
                ("lookup", assisted, generation_cases.LOOKUPS_OF_TOKENS, generation_cases.LOOKUP),
            )
        }
    STATES.write_text(_lines(record) + "\n")


def record_whisper() -> None:
    """Write the file about WhisperPipeline."""
    import openvino
    import openvino_genai

    from tests.genai import (
        config_cases,
        whisper_cases,
        whisper_config_cases,
        whisper_features_cases,
        whisper_model,
    )

    kind = openvino_genai.WhisperGenerationConfig
    record: dict[str, Any] = {
        "fields": config_cases.fields_of(kind()),
        **config_cases.outcomes(kind, whisper_config_cases),
        "asr_fields": config_cases.fields_of(openvino_genai.ASRGenerationConfig()),
        "asr_combinations": config_cases.outcomes(openvino_genai.ASRGenerationConfig, whisper_config_cases)[
            "combinations"
        ],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = whisper_model.make_folder(Path(name))
        whisper_model.add_tokenizer_models(folder)
        exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
        pipeline = openvino_genai.WhisperPipeline(folder, "CPU", **exact)
        record["transcriptions"] = whisper_cases.outcomes(openvino_genai, pipeline)
        pipeline = openvino_genai.WhisperPipeline(folder, "CPU", **exact, word_timestamps=True)
        record["words"] = whisper_cases.outcomes(openvino_genai, pipeline, whisper_cases.WORDS)
        pipeline = openvino_genai.ASRPipeline(folder, "CPU", **exact, word_timestamps=True)
        record["asr"] = whisper_cases.asr_outcomes(pipeline)
        record["features"] = whisper_features_cases.told(folder, openvino_genai, openvino)
    WHISPER.write_text(_lines(record) + "\n")


def record_images() -> None:
    """Write the file about pipelines of images."""
    import openvino
    import openvino_genai

    from tests.genai import image_cases as cases
    from tests.genai import image_config_cases, image_parts_cases

    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = cases.Asked(openvino_genai, openvino.Tensor, folder, **exact)
        record = {
            **image_config_cases.config_outcomes(openvino_genai.ImageGenerationConfig),
            "generators": image_config_cases.generator_outcomes(openvino_genai, openvino.Shape),
            "scheduler_types": image_config_cases.scheduler_types(openvino_genai),
            "metrics": image_config_cases.metrics_outcomes(openvino_genai),
            "files": {cases.name_of(case): asked.file(*case) for case in cases.FILES},
            "latents": {cases.name_of(case): asked.latents(*case) for case in cases.DENOISED},
            "components": image_parts_cases.component_outcomes(openvino_genai, openvino.Tensor, folder, **exact),
            "pipelines": image_parts_cases.pipeline_outcomes(openvino_genai, openvino.Tensor, folder, **exact),
            "images": {cases.name_of(case): asked.outcome(*case) for case in cases.CASES},
        }
    IMAGES.write_text(_lines(record) + "\n")


def record_vlm() -> None:
    """Write the file about VLMPipeline."""
    import openvino
    import openvino_genai

    from tests.genai import vlm_cases, vlm_model

    record: dict[str, Any] = {}
    for family in vlm_model.FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            folder = vlm_model.make_folder(family, Path(name))
            vlm_model.add_tokenizer_models(family, folder)
            exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
            pipeline = openvino_genai.VLMPipeline(folder, "CPU", **exact)
            arguments = openvino_genai, openvino.Tensor, pipeline, vlm_model.TAGS[family]
            cases, chats = vlm_cases.cases_of(family)
            record[family] = vlm_cases.outcomes(*arguments, cases)
            record[f"chats of {family}"] = vlm_cases.chats(*arguments, chats)
    VLM.write_text(_lines(record) + "\n")


if __name__ == "__main__":
    main()
