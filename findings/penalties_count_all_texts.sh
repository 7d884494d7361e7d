#!/usr/bin/env bash
# Penalties of openvino_genai count the tokens of all num_return_sequences: a text changes with the number of texts.
# Version: openvino_genai 2026.4.1.0.
# Source: GenerationConfig of openvino_genai: frequency_penalty "reduces absolute log prob as many times as the token
# was generated".
# Expected: with top_k=1, all texts of a prompt are equal, and a second one changes nothing: [0, 0, 1]. Seen: of two
# texts, each counts the tokens of the other, too, also those of the same step: [0, 1, 1] and [0, 0, 0].
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
LOGITS = [1.0, 0.8, 0.0, -5.0]


def named(shape, dtype, name):
    node = op.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def model(logits):
    """Return a decoder whose logits are always the same; its caches hold the tokens, since the pipeline needs some."""
    ids, mask = named([-1, -1], np.int64, "input_ids"), named([-1, -1], np.int64, "attention_mask")
    beams = named([-1], np.int32, "beam_idx")
    tokens = op.unsqueeze(op.convert(ids, np.float32), np.int64([1, 3]))
    rows = op.gather(op.shape_of(ids), np.int64([0]), np.int64(0))
    empty = op.broadcast(np.float32(0), op.concat([rows, np.int64([1, 0, 1])], 0))
    sums, sinks = op.reduce_sum(op.convert(mask, np.float32), np.int64([0, 1]), False), []
    for name in "past_key_values.0.keypresent.0.key", "past_key_values.0.valuepresent.0.value":
        past = op.gather(op.read_value(empty, name, np.float32, ov.PartialShape([-1, 1, -1, 1])), beams, np.int64(0))
        cache = op.concat([past, tokens], 2)
        sinks.append(op.assign(cache, name))
        sums = op.add(sums, op.reduce_sum(cache, np.int64([0, 1, 2, 3]), False))
    result = op.add(op.gather(np.tile(logits, (4, 1)), ids, np.int64(0)), op.multiply(sums, np.float32(0)))
    result.output(0).set_names({"logits"})
    return ov.Model([op.result(result)], sinks, [ids, mask, beams], "decoder")


ov.save_model(model(np.float32(LOGITS)), folder / "openvino_model.xml", False)
tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(4)}, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
parts = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t3"), with_detokenizer=True)
for name, part in zip(("tokenizer", "detokenizer"), parts):
    ov.save_model(part, folder / f"openvino_{name}.xml")
(folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 4}')
pipeline = openvino_genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA")


def texts(count):
    """Return the tokens of texts that take the most likely token, with a penalty for each that they have."""
    prompt = openvino_genai.TokenizedInputs(*(ov.Tensor(np.full((1, 1), n, np.int64)) for n in (2, 1)))
    config = openvino_genai.GenerationConfig(max_new_tokens=3, ignore_eos=True, do_sample=True, top_k=1)
    config.update_generation_config(frequency_penalty=0.15, num_return_sequences=count)
    return pipeline.generate(prompt, config).tokens


print("openvino_genai", openvino_genai.__version__)
one, two = texts(1), texts(2)
print("tokens of one text:", one, "of two:", two)
assert one == [[0, 0, 1]], "a text does not count its own tokens"
assert two == [[0, 1, 1], [0, 0, 0]], "two texts do not count the tokens of both"
PYTHON
