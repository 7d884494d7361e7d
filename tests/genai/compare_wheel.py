"""Compare generations of all decoders of the tests with those of openvino_genai, case by case.

Run it in an environment with openvino_genai, in the folder of the project:

    python -m tests.genai.compare_wheel [--token-by-token] [MODEL or FOLDER ...]

A FOLDER has a model and the tokenizer of the tests; `tests.genai.catalogue` makes such. Models run alone, with prompt
lookup, and with a draft model, which is that of FOLDER_int4, if it exists, or else the model itself. OpenVINO is the
judge, token by token, of models that openvino_genai refuses, and with --token-by-token of all models: the README names
some of which openvino_genai's default backend has other texts.

Prints each outcome that differs, and at last the number of those that agree. The exit code is 1 if one differs.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.genai import generation_cases
from tests.genai.stepwise import Stepwise

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
OWN = {"INFERENCE_PRECISION_HINT": "f32"}
ABSOLUTE, RELATIVE = 2e-3, 1e-3  # of scores; `tests.models` allows logits of compressed weights the same


def agree(found: Any, expected: Any) -> bool:
    """Return whether two outcomes are equal, numbers within the tolerance."""
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(agree, found, expected))
    if isinstance(expected, float):
        return isinstance(found, float) and abs(found - expected) <= ABSOLUTE + RELATIVE * abs(expected)
    return bool(found == expected)


def outcomes(genai: Any, tensor: Any, folder: Path, draft: Path, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the outcomes of all cases, of chats, and of generations with an assistant."""
    pipeline = genai.LLMPipeline(folder, "CPU", **properties)
    found = generation_cases.outcomes(genai, tensor, pipeline) | generation_cases.chats(genai, pipeline)
    drafted = {"draft_model": genai.draft_model(draft, "CPU", **properties)}
    for name, own, cases, keywords in (
        ("lookup", {"prompt_lookup": True}, generation_cases.LOOKUPS, generation_cases.LOOKUP),
        ("draft", drafted, generation_cases.ASSISTED, {}),
    ):
        try:
            assisted = genai.LLMPipeline(folder, "CPU", **own, **properties)
            of_cases = generation_cases.outcomes(genai, tensor, assisted, cases, keywords)
        except RuntimeError:
            of_cases = {generation_cases.name_of(case): "RuntimeError" for case in cases}
        found |= {f"{name}: {case}": outcome for case, outcome in of_cases.items()}
    return found


def is_refused(folder: Path) -> bool:
    """Return whether openvino_genai generates no text with a model, such as one without position_ids."""
    import openvino_genai

    try:
        openvino_genai.LLMPipeline(folder, "CPU", **EXACT).generate("a", max_new_tokens=2)
    except RuntimeError:
        return True
    return False


def token_by_token(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return texts that OpenVINO computes alone, and those of an `LLMPipeline` for all prompts at once."""
    import ovgpu.genai as ours

    pipeline = ours.LLMPipeline(folder, "CPU", **OWN)
    judge = Stepwise(folder / "openvino_model.xml", pipeline._decoder._one_by_one)
    tokenizer = pipeline.get_tokenizer()
    prompts = ["", *generation_cases.OTHERS, generation_cases.REPEATED]
    rows = [tokenizer.encode(prompt).input_ids.data[0].tolist() for prompt in prompts]
    expected, found = dict[str, Any](), dict[str, Any]()
    for penalties in ({}, {"repetition_penalty": 1.5, "frequency_penalty": 0.5}):
        name = f"{prompts}, {penalties}"
        expected[name] = [tokenizer.decode(judge.greedy(row, 12, **penalties)) for row in rows]
        found[name] = pipeline.generate(prompts, **generation_cases.PLAIN, **penalties).texts
        with suppress(RuntimeError):  # of Mamba
            assisted = ours.LLMPipeline(folder, "CPU", prompt_lookup=True, **OWN)
            expected[f"lookup: {name}"] = expected[name]
            found[f"lookup: {name}"] = assisted.generate(
                prompts, **generation_cases.PLAIN, **generation_cases.LOOKUP, **penalties
            ).texts
    return expected, found


def compare(model: str, alone: bool = False) -> tuple[int, int]:
    """Return the number of cases, and of those that differ, which are printed."""
    import openvino
    import openvino_genai

    import ovgpu
    import ovgpu.genai as ours

    with tempfile.TemporaryDirectory() as name:
        folder, draft = Path(name) / "model", Path(name) / "draft"
        if model in DECODERS:
            generation_cases.make_folder(model, folder)
        else:
            shutil.copytree(model, folder)
        smaller = Path(f"{model}_int4")
        shutil.copytree(smaller if smaller.is_dir() else folder, draft)
        for path in (folder, draft):
            # both use openvino_tokenizers: bytes that are no UTF-8 differ elsewhere
            (path / "tokenizer.json").unlink()
        if alone or is_refused(folder):
            print(f"{model}: compared with OpenVINO, token by token")
            expected, found = token_by_token(folder)
        else:
            expected = outcomes(openvino_genai, openvino.Tensor, folder, draft, EXACT)
            found = outcomes(ours, ovgpu.Tensor, folder, draft, OWN)
    differing = 0
    for case, outcome in expected.items():
        if not agree(json.loads(json.dumps(found[case])), json.loads(json.dumps(outcome))):
            differing += 1
            print(f"{model}: {case}\n  openvino_genai {outcome}\n  ovgpu.genai    {found[case]}")
    return len(expected), differing


def main() -> None:
    """Compare the models of the command line, or all."""
    total = wrong = 0
    options, models = (
        [argument for argument in sys.argv[1:] if argument.startswith("--") == is_option] for is_option in (True, False)
    )
    for model in models or DECODERS:
        cases, differing = compare(model, "--token-by-token" in options)
        print(f"{model}: {cases - differing} of {cases} agree", flush=True)
        total, wrong = total + cases, wrong + differing
    print(f"{total - wrong} of {total} agree")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
