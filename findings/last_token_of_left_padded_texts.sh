#!/usr/bin/env bash
# TextEmbeddingPipeline of openvino_genai pools a padding token by LAST_TOKEN if the tokenizer pads on the left.
# Version: openvino_genai 2026.4.1.0.
# Source: TextEmbeddingPipeline of openvino_genai: PoolingType.LAST_TOKEN is "Last token embeddings", and
# padding_side "Side to use for padding"; without it, the tokenizer's own side is used.
# Expected: with a tokenizer that pads on the left, the shorter of two texts has the vector of its own last token, as it
# has alone, and as with padding_side="left". Seen: without padding_side, it has that of an earlier position, which is
# padding.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 \
    tokenizers==0.23.3 transformers==5.24.0 "numpy<3"
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op
import openvino_genai
from openvino_tokenizers import convert_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

folder = Path(sys.argv[1])
WORDS = ["pad", "one", "two", "three", "four"]


def named(name):
    node = op.parameter([-1, -1], np.int64, name=name)
    node.output(0).set_names({name})
    return node


# The hidden state of a token is a vector with 1 at its number; the mask has no effect.
ids, mask = named("input_ids"), named("attention_mask")
unused = op.multiply(op.reduce_sum(op.convert(mask, np.float32), np.int64([0, 1]), False), np.float32(0))
hidden = op.add(op.gather(np.eye(len(WORDS), dtype=np.float32), ids, np.int64(0)), unused)
hidden.output(0).set_names({"last_hidden_state"})
ov.save_model(ov.Model([op.result(hidden)], [ids, mask], "encoder"), folder / "openvino_model.xml", False)

tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="pad"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="pad", padding_side="left")
parts = convert_tokenizer(fast, with_detokenizer=True)
for name, part in zip(("tokenizer", "detokenizer"), parts):
    ov.save_model(part, folder / f"openvino_{name}.xml")
(folder / "config.json").write_text('{"model_type": "bert"}')


def pooled(texts, **options):
    """Return the words whose vectors the texts have."""
    pooling = openvino_genai.TextEmbeddingPipeline.PoolingType.LAST_TOKEN
    pipeline = openvino_genai.TextEmbeddingPipeline(folder, "CPU", pooling_type=pooling, **options)
    return [WORDS[int(np.argmax(vector))] for vector in pipeline.embed_documents(texts)]


print("openvino_genai", openvino_genai.__version__)
texts = ["one two three four", "one two"]
alone, both, told = pooled(texts[1:]), pooled(texts), pooled(texts, padding_side="left")
print(f"last token of {texts[1]!r}: alone {alone[0]}, beside a longer text {both[1]}, with padding_side='left' {told[1]}")
assert alone == ["two"] and told == ["four", "two"]
assert both == ["four", "pad"], "the last token is found"
PYTHON
