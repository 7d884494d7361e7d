"""openvino_tokenizers: a tokenizer that stays on openvino's CPU, beside a decoder on the device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .optimum import REQUIREMENTS as OPTIMUM
from .optimum import TEXT, UNWANTED

__all__ = ["REQUIREMENTS", "UNWANTED", "prepare", "run"]

REQUIREMENTS = [*OPTIMUM, "openvino-tokenizers"]
SENTENCES = ["a cat on a mat", "the dog and the cat", "on and on"]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def prepare(folder: Path) -> None:
    """Write a tokenizer of words, its conversions, and a decoder."""
    import openvino as ov
    import torch
    import transformers
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    for name, model in zip(("tokenizer", "detokenizer"), convert_tokenizer(tokenizer, with_detokenizer=True)):
        ov.save_model(model, folder / f"{name}.xml")
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT | {"vocab_size": len(vocabulary)}))
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    module.save_pretrained(folder / "torch")
    OVModelForCausalLM.from_pretrained(folder / "torch", export=True, compile=False, stateful=True).save_pretrained(
        folder / "decoder"
    )


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return tokens of the sentences, the tokens that follow, and their text."""
    import openvino as ov
    import openvino_tokenizers  # noqa: F401  registers its operations

    core = ov.Core()
    tokenizer = core.compile_model(folder / "tokenizer.xml", "CPU")
    detokenizer = core.compile_model(folder / "detokenizer.xml", "CPU")
    request = core.compile_model(folder / "decoder" / "openvino_model.xml", device).create_infer_request()
    results = {}
    for number, sentence in enumerate(SENTENCES):
        found = tokenizer([sentence])
        ids, mask = found["input_ids"], found["attention_mask"]
        results[f"{number}/tokens"] = ids
        request.reset_state()
        written = ids
        for _ in range(8):
            positions = np.arange(mask.shape[1] - written.shape[1], mask.shape[1])[None]
            logits = request.infer(
                {
                    "input_ids": written,
                    "attention_mask": mask,
                    "position_ids": positions,
                    "beam_idx": np.zeros(1, np.int32),
                }
            )["logits"]
            written = logits[:, -1:].argmax(-1)
            mask = np.ones((1, mask.shape[1] + 1), np.int64)
            ids = np.concatenate([ids, written], axis=1)
        results[f"{number}/generated"] = ids
        results[f"{number}/text"] = np.array(detokenizer([ids])[0])
    return results
