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
TABLE = re.compile(r"(<!-- begin: written by `python -m tests.genai.table` -->\n)(.*?)(<!-- end -->)", re.DOTALL)
DIFFERENCES = {
    "DecodedResults.extended_perf_metrics": "counts all proposed tokens",
    "EncodedResults.extended_perf_metrics": "counts all proposed tokens",
    "AdapterConfig.Mode": "without effect",
    "GenerationConfig.pruning_ratio": "without effect",
    "GenerationConfig.relevance_weight": "without effect",
    "GenerationConfig.tree_depth": "checked, then refused by generate()",
    "GenerationConfig.update_generation_config": "refuses unknown fields",
    "LLMPipeline.generate": "refuses unknown keywords",
    "PerfMetrics.get_grammar_compiler_init_times": "of llguidance, not of xgrammar",
    "PerfMetrics.get_num_generated_tokens": "counts the first token of each text",
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
    "WhisperGenerationConfig.alignment_heads": "also a keyword",
    "WhisperGenerationConfig.prev_sot_token_id": "also a keyword",
    "ASRPipeline.generate": "refuses unknown keywords",
    "ASRGenerationConfig.alignment_heads": "also a keyword",
    "ASRGenerationConfig.prev_sot_token_id": "also a keyword",
    "ASRGenerationConfig.update_generation_config": "refuses unknown fields, and texts of another type",
    "WhisperPipeline.generate": "refuses unknown keywords",
    "WhisperGenerationConfig.update_generation_config": "refuses unknown fields, and texts of another type",
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
    """Return how many members of the classes that are there are the same."""
    members = [f"{name}.{member}" for name in ovgpu.genai.__all__ for member in record["classes"].get(name, ())]
    same = sum(member not in DIFFERENCES for member in members)
    return f"Of {len(members)} fields and methods of these classes, {same} are the same ({same / len(members):.0%})."


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(TABLE.sub(lambda match: match[1] + table() + match[3], PAGE.read_text()))


if __name__ == "__main__":
    main()
