#!/usr/bin/env bash
# Sampled texts of openvino_genai are the same for all rows of a batch, and in every call, unless rng_seed changes.
# Version: openvino_genai 2026.4.1.0.
# Source: GenerationConfig of openvino_genai: rng_seed "initializes random generator"; nothing says for which of these.
# Expected: with do_sample, three equal prompts in a batch, and two calls, draw tokens of their own. Seen: they have the
# same tokens to the last one. Only num_return_sequences draws different texts.
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
PROBABILITIES = [0.4, 0.3, 0.2, 0.1]


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


ov.save_model(model(np.log(np.float32(PROBABILITIES))), folder / "openvino_model.xml", False)
tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(4)}, unk_token="t0"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
parts = convert_tokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t3"), with_detokenizer=True)
for name, part in zip(("tokenizer", "detokenizer"), parts):
    ov.save_model(part, folder / f"openvino_{name}.xml")
(folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 4}')
pipeline = openvino_genai.LLMPipeline(folder, "CPU", ATTENTION_BACKEND="SDPA")


def generated(rows=1, **rules):
    prompt = openvino_genai.TokenizedInputs(*(ov.Tensor(np.full((rows, 1), n, np.int64)) for n in (2, 1)))
    config = openvino_genai.GenerationConfig(max_new_tokens=20, ignore_eos=True, do_sample=True, **rules)
    return [tuple(tokens) for tokens in pipeline.generate(prompt, config).tokens]


print("openvino_genai", openvino_genai.__version__)
rows, again, returned = generated(3), generated(), generated(num_return_sequences=3)
print("different texts: of three rows", len(set(rows)), "- of two calls", len({rows[0], again[0]}), end=" ")
print("- of num_return_sequences=3", len(set(returned)), "- of another seed", len({rows[0], *generated(rng_seed=1)}))
assert len(set(rows)) == 1, "rows of a batch draw numbers of their own"
assert rows[0] == again[0], "another call draws other numbers"
assert len(set(returned)) == 3 and generated(rng_seed=1)[0] != rows[0]
PYTHON
