"""Files of models that generate text."""

from __future__ import annotations

from pathlib import Path

GENERATION, EMBEDDINGS, RERANK, TENSORS = TASKS = ("text_generation", "embeddings", "rerank", "tensors")
"""Tasks of models, with the names of OpenVINO Model Server. The last one is for inferences of KServe."""

TOKENIZERS = ("tokenizer.json", "openvino_tokenizer.xml")
TEXT_FILES = (
    *TOKENIZERS,
    "openvino_detokenizer.xml",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
"""Files beside a model with a tokenizer that change its texts."""


def has_tokenizer(file: Path) -> bool:
    """Return whether the folder of a model's file also has a tokenizer, as those of language models do."""
    return file.name == "openvino_model.xml" and any((file.parent / name).exists() for name in TOKENIZERS)
