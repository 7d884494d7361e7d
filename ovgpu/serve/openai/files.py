"""Files of models that generate text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

TASKS = ("text_generation", "embeddings", "rerank", "speech2text", "tensors")
GENERATION, EMBEDDINGS, RERANK, SPEECH, TENSORS = TASKS
"""Tasks of models, with the names of OpenVINO Model Server. The last one is for inferences of KServe."""

TOKENIZERS = ("tokenizer.json", "openvino_tokenizer.xml")
TEXT_FILES = (
    *TOKENIZERS,
    "openvino_detokenizer.xml",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
"""Files beside a model with a tokenizer that change its texts."""


ENCODER, DECODER = "openvino_encoder_model.xml", "openvino_decoder_model.xml"  # of models of speech


def text_files(file: Path) -> Iterator[Path]:
    """Yield the files beside a model's file that change its texts: those of a language model, or one of speech."""
    is_speech = file.name == ENCODER
    if is_speech or has_tokenizer(file):
        decoder = file.with_name(DECODER)
        for name in (*((decoder.name, decoder.with_suffix(".bin").name) if is_speech else ()), *TEXT_FILES):
            if (part := file.with_name(name)).exists():
                yield part


def speech_file(folder: Path) -> Path | None:
    """Return the file that stands for a Whisper model in its folder, None for a folder of others."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_whisper = isinstance(config, dict) and config.get("model_type") == "whisper"
    encoder = folder / ENCODER
    return encoder if is_whisper and encoder.exists() and (folder / DECODER).exists() else None


def has_tokenizer(file: Path) -> bool:
    """Return whether the folder of a model's file also has a tokenizer, as those of language models do."""
    return file.name == "openvino_model.xml" and any((file.parent / name).exists() for name in TOKENIZERS)
