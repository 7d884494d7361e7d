"""Generations with LoRA adapters, which `record_wheel.py` runs with openvino_genai, and `test_adapters.py` here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.generation_cases import PROMPT

HIDDEN, INNER, VALUES = 48, 112, 16  # of the llama in tests/models/data
SIZES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (HIDDEN, VALUES),
    "mlp.down_proj": (INNER, HIDDEN),
}  # inputs and outputs
ADAPTERS: dict[str, tuple[tuple[str, ...], int, Any]] = {
    "a": (("self_attn.q_proj", "self_attn.v_proj"), 4, np.float32),
    "b": (("mlp.down_proj", "self_attn.q_proj"), 2, np.float16),
}
"""Layers, rank and type of each adapter."""

SETS: list[list[tuple[str, float]] | None] = [None, [], [("a", 1.0)], [("b", 0.7)], [("b", 2.0), ("a", 0.25)], None]
"""Adapters and factors of the generations of a pipeline; None: those of the pipeline, `OWN`."""

OWN = [("a", 1.0), ("b", 0.5)]
OPTIONS: dict[str, Any] = {"max_new_tokens": 8, "ignore_eos": True, "logprobs": 1}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write tensors of f32 or f16."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        kind = {"float32": "F32", "float16": "F16"}[str(array.dtype)]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_adapter(folder: Path, name: str) -> Path:
    """Write an adapter of `ADAPTERS`, and return its path."""
    layers, rank, dtype = ADAPTERS[name]
    random, tensors = np.random.default_rng(len(layers) * rank), {}
    for layer in layers:
        inputs, outputs = SIZES[layer]
        for block in range(2):
            for part, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                key = f"base_model.model.model.layers.{block}.{layer}.lora_{part}.weight"
                tensors[key] = (random.standard_normal(shape) * 0.3).astype(dtype)
    write_safetensors(folder / f"{name}.safetensors", tensors)
    return folder / f"{name}.safetensors"


def outcomes(genai: Any, make: Any, folder: Path, sets: Any = SETS) -> list[Any]:
    """Return tokens and scores of each set. ``make`` makes a pipeline with properties."""
    adapters = {name: genai.Adapter(write_adapter(folder, name)) for name in ADAPTERS}

    def config(pairs: Any) -> Any:
        return genai.AdapterConfig([(adapters[name], alpha) for name, alpha in pairs])

    pipeline, found = make(adapters=config(OWN)), []
    for pairs in sets:
        more = {} if pairs is None else {"adapters": config(pairs)}
        result = pipeline.generate(pipeline.get_tokenizer().encode(PROMPT), **OPTIONS, **more)
        found.append([result.tokens[0], round(result.scores[0], 2)])
    return found
