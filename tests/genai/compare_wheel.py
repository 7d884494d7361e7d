"""Compare generations of all decoders of the tests with those of openvino_genai, case by case.

Run it in an environment with openvino_genai, in the folder of the project:

    python -m tests.genai.compare_wheel [MODEL ...]

Prints each outcome that differs, and at last the number of those that agree. The exit code is 1 if one differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.genai import generation_cases

DECODERS = (
    "gemma2",
    "gpt2",
    "llama",
    "llama_int4_asym",
    "llama_int4_sym",
    "llama_int8",
    "llama_nf4",
    "mistral",
    "mixtral",
    "qwen3",
)
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
ABSOLUTE, RELATIVE = 2e-3, 1e-3  # of scores; `tests.models` allows logits of compressed weights the same


def agree(found: Any, expected: Any) -> bool:
    """Return whether two outcomes are equal, numbers within the tolerance."""
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(agree, found, expected))
    if isinstance(expected, float):
        return isinstance(found, float) and abs(found - expected) <= ABSOLUTE + RELATIVE * abs(expected)
    return bool(found == expected)


def compare(model: str) -> tuple[int, int]:
    """Return the number of cases, and of those that differ, which are printed."""
    import openvino
    import openvino_genai

    import ovgpu
    import ovgpu.genai as ours

    with tempfile.TemporaryDirectory() as name:
        folder = generation_cases.make_folder(model, Path(name))
        (folder / "tokenizer.json").unlink()  # both use openvino_tokenizers: bytes that are no UTF-8 differ elsewhere
        found, expected = (
            generation_cases.outcomes(genai, tensor, genai.LLMPipeline(folder, "CPU", **properties))
            for genai, tensor, properties in (
                (ours, ovgpu.Tensor, {"INFERENCE_PRECISION_HINT": "f32"}),
                (openvino_genai, openvino.Tensor, EXACT),
            )
        )
    differing = 0
    for case, outcome in expected.items():
        if not agree(json.loads(json.dumps(found[case])), json.loads(json.dumps(outcome))):
            differing += 1
            print(f"{model}: {case}\n  openvino_genai {outcome}\n  ovgpu.genai    {found[case]}")
    return len(expected), differing


def main() -> None:
    """Compare the models of the command line, or all."""
    total = wrong = 0
    for model in sys.argv[1:] or DECODERS:
        cases, differing = compare(model)
        print(f"{model}: {cases - differing} of {cases} agree", flush=True)
        total, wrong = total + cases, wrong + differing
    print(f"{total - wrong} of {total} agree")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
