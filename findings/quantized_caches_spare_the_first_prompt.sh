#!/usr/bin/env bash
# With KV_CACHE_PRECISION u8, OpenVINO's CPU plugin computes a sequence's first inference without the quantized cache.
# Version: openvino 2026.4.1.
# Source: openvino/runtime/properties.hpp: "Hint for device to use specified precision for kv cache compression".
# Expected: attention reads the cache, so that all results differ from those with a cache in f32. Seen: the result for a
# prompt is the same bit for bit, although the cache that it leaves behind is not; errors begin with the next token. A
# comparison of the results for a prompt alone therefore says nothing about a quantized cache.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet openvino==2026.4.1 "numpy<3"
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import openvino as ov
import openvino.opset13 as op

HEADS, WIDTH = 2, 32


def named(shape, dtype, name):
    node = op.parameter(shape, dtype, name=name)
    node.output(0).set_names({name})
    return node


def attention():
    """Return attention to two variables, which grow by the keys and values of each inference."""
    query, *new = (named([-1, HEADS, -1, WIDTH], np.float32, name) for name in ("query", "key", "value"))
    beams = named([-1], np.int32, "beam_idx")
    rows = op.gather(op.shape_of(query), np.int64([0]), np.int64(0))
    empty = op.broadcast(np.float32(0), op.concat([rows, np.int64([HEADS, 0, WIDTH])], 0))
    caches, sinks = [], []
    for name, tokens in zip(("keys", "values"), new):
        variable = op.read_value(empty, name, np.float32, ov.PartialShape([-1, HEADS, -1, WIDTH]))
        caches.append(op.concat([op.gather(variable, beams, np.int64(0)), tokens], 2))
        sinks.append(op.assign(caches[-1], name))
    result = op.scaled_dot_product_attention(query, *caches)
    result.output(0).set_names({"out"})
    return ov.Model([op.result(result)], sinks, [query, *new, beams], "attention")


random = np.random.default_rng(0)
steps = []
for tokens in (8, 1, 1):
    arrays = random.standard_normal((3, 1, HEADS, tokens, WIDTH)).astype(np.float32)
    steps.append({**dict(zip(("query", "key", "value"), arrays)), "beam_idx": np.zeros(1, np.int32)})


def run(precision):
    """Return the result of each inference, and the keys after the prompt."""
    config = {"KV_CACHE_PRECISION": precision, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(attention(), "CPU", config).create_infer_request()
    results, keys = [], None
    for step in steps:
        results.append(request.infer(step)["out"].copy())
        if keys is None:
            keys = next(state for state in request.query_state() if state.name == "keys").state.data.copy()
    return results, keys


(exact, exact_keys), (quantized, quantized_keys) = run("f32"), run("u8")
errors = [float(abs(a - b).max()) for a, b in zip(exact, quantized)]
print("openvino", ov.__version__)
print("largest error of the cached keys after the prompt:", float(abs(exact_keys - quantized_keys).max()))
print("largest errors of the prompt and of two tokens:", errors)
assert abs(exact_keys - quantized_keys).max() > 1e-4, "the cache is not quantized"
assert errors[0] == 0, "the result for the prompt has the errors of the quantized cache"
assert min(errors[1:]) > 1e-4, "results for tokens have no errors"
PYTHON
