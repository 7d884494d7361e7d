"""The table of openvino_genai's classes in ovgpu/genai/README.md: which members are the same, differ, or are absent.

    python -m tests.genai.table

writes it. Classes and members are those that were recorded from openvino_genai.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ovgpu.genai
from ovgpu.genai.absent import REASONS
from tests.genai.record_wheel import PATH

PAGE = Path(ovgpu.genai.__file__).with_name("README.md")
ABOUT_IMAGES = re.compile(r"\.(images|vlm)\.")
TABLE = re.compile(r"(<!-- begin: written by `python -m tests.genai.table` -->\n)(.*?)(<!-- end -->)", re.DOTALL)
PIPELINES_OF_IMAGES = ("Text2ImagePipeline", "Image2ImagePipeline", "InpaintingPipeline")
DIFFERENCES = {
    "ContinuousBatchingPipeline.add_request": "refuses the number of a request that runs, and images",
    "DecodedResults.extended_perf_metrics": "counts all proposed tokens",
    "EncodedResults.extended_perf_metrics": "counts all proposed tokens",
    "AdapterConfig.Mode": "without effect",
    "GenerationConfig.pruning_ratio": "without effect",
    "GenerationConfig.relevance_weight": "without effect",
    "GenerationConfig.tree_depth": "checked, then refused by generate()",
    "GenerationConfig.update_generation_config": "refuses unknown fields",
    "GenerationResult.extended_perf_metrics": "None",
    "GenerationStatus.IGNORED": "a request that failed; cancelled and stopped ones stay CANCEL and STOP",
    "LLMPipeline.generate": "refuses unknown keywords",
    "PerfMetrics.get_grammar_compiler_init_times": "of llguidance, not of xgrammar",
    "PerfMetrics.get_num_generated_tokens": "counts the first token of each text",
    "SchedulerConfig.cache_eviction_config": "only None",
    "SchedulerConfig.cache_interval_multiplier": "without effect",
    "SchedulerConfig.num_linear_attention_blocks": "without effect",
    "SchedulerConfig.sparse_attention_config": "only None",
    "SchedulerConfig.use_cache_eviction": "only False",
    "SchedulerConfig.use_sparse_attention": "only False",
    "StreamerBase.end": "called once",
    "TextEmbeddingPipeline.Config": "refuses unknown keywords, and numbers for texts",
    "TextEmbeddingPipeline.wait_embed_documents": "refuses to wait for nothing",
    "TextEmbeddingPipeline.wait_embed_query": "refuses to wait for nothing",
    "TextRerankPipeline.Config": "refuses unknown keywords, and numbers for texts",
    "TextRerankPipeline.rerank": "texts with equal scores keep their order",
    "TextRerankPipeline.wait_rerank": "refuses to wait for nothing",
    "Tokenizer.apply_chat_template": "by jinja2",
    "Tokenizer.encode": "refuses lengths that make no sense",
    "Tokenizer.get_vocab_vector": "replaces bytes that are no UTF-8",
    "Tokenizer.supports_paired_input": "True for tokenizer.json",
    "VLMDecodedResults.extended_perf_metrics": "None",
    "VLMDecodedResults.full_token_ids": "empty: no model speaks",
    "VLMDecodedResults.intermediate_hidden_states": "empty: no model speaks",
    "VLMDecodedResults.parsed": "those of `LLMPipeline`",
    "VLMPipeline.generate": "refuses unknown keywords, and pruning_ratio",
    "VLMPipeline.set_chat_template": "replaces it, outside of chats",
    "WhisperGenerationConfig.alignment_heads": "also a keyword",
    "WhisperGenerationConfig.prev_sot_token_id": "also a keyword",
    "ASRPipeline.generate": "refuses unknown keywords",
    "ASRGenerationConfig.alignment_heads": "also a keyword",
    "ASRGenerationConfig.prev_sot_token_id": "also a keyword",
    "ASRGenerationConfig.update_generation_config": "refuses unknown fields, and texts of another type",
    "WhisperPipeline.generate": "refuses unknown keywords",
    "WhisperGenerationConfig.update_generation_config": "refuses unknown fields, and texts of another type",
    **{f"CppStdGenerator.{name}": "1 number in 300 differs in its last bit" for name in ("next", "randn_tensor")},
    **{f"{kind}.export_model": "refused" for kind in ("AutoencoderKL", "CLIPTextModel", "UNet2DConditionModel")},
    **{f"{kind}.set_adapters": "only None" for kind in ("CLIPTextModel", "UNet2DConditionModel")},
    **{f"ImageGenerationConfig.{name}": "only None" for name in ("adapters", "taylorseer_config")},
    "ImageGenerationConfig.update_generation_config": "refuses unknown fields, and values of another type",
    "AutoencoderKL.reshape": "the encoder takes one image",
    "InpaintingPipeline.flux_fill": "refused",
    "Scheduler.from_config": "refuses FlowMatchEulerDiscreteScheduler",
    **{
        f"{kind}.{name}": difference
        for kind in PIPELINES_OF_IMAGES
        for name, difference in {
            "flux": "refused",
            "generate": "refuses unknown keywords, and takes `generation_config`",
            "stable_diffusion_3": "refused",
            "stable_diffusion_xl": "refused",
        }.items()
    },
    **{f"{kind}.reshape": "the configuration follows" for kind in PIPELINES_OF_IMAGES[1:]},
    **{f"{kind}GenerationConfig.structured_output_config": "only None" for kind in ("Whisper", "ASR")},
    **{f"{kind}GenerationConfig.adapters": "only None" for kind in ("Whisper", "ASR")},
}


def table() -> str:
    """Return the table, in Markdown."""
    record = json.loads(PATH.read_text())
    lines = [summary(record), "", "| Class | Members that are the same | Members that differ |", "| --- | --- | --- |"]
    for name in ovgpu.genai.__all__:
        members = record["classes"].get(name)
        if members is None:
            continue
        same = [member for member in members if f"{name}.{member}" not in DIFFERENCES]
        differ = [f"`{m}`: {DIFFERENCES[f'{name}.{m}']}" for m in members if m not in same]
        listed = f"{len(same)} fields and methods" if len(same) > 20 else ", ".join(f"`{member}`" for member in same)
        lines.append(f"| `{name}` | {listed or '-'} | {'; '.join(differ) or '-'} |")
    lines += ["", "| Not there | Why |", "| --- | --- |"]
    lines += [
        f"| {', '.join(f'`{name}`' for name in sorted(names.split()))} | {why} |" for why, names in REASONS.items()
    ]
    return "\n".join(lines) + "\n"


def summary(record: dict[str, Any]) -> str:
    """Return how many members of the classes that are there are the same, of all and of those for texts and speech."""
    names = [name for name in ovgpu.genai.__all__ if name in record["classes"]]
    own = [name for name in names if not ABOUT_IMAGES.search(getattr(ovgpu.genai, name).__module__)]
    counted = []
    for chosen in (names, own):
        members = [f"{name}.{member}" for name in chosen for member in record["classes"][name]]
        same = sum(member not in DIFFERENCES for member in members)
        counted.append(f"{same} of {len(members)} ({same / len(members):.0%})")
    return f"Fields and methods that are the same: {counted[0]}; without the classes for images, {counted[1]}."


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(TABLE.sub(lambda match: match[1] + table() + match[3], PAGE.read_text()))


if __name__ == "__main__":
    main()
