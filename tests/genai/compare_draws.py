"""Compare random draws with those of openvino_genai, and both with their exact distribution.

Run it in an environment with openvino_genai, in the folder of the project:

    python -m tests.genai.compare_draws [MODEL ...]

For each model and rule, tokens of many seeds must be equal. For the first model, 20,000 draws of openvino_genai and of
ovgpu.genai are compared with the distribution that follows from OpenVINO's logits, by chi-square. The exit code is 1 if
something differs.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai import generation_cases
from tests.genai.compare_wheel import EXACT
from tests.genai.sampling_cases import SETTINGS, distance, distribution

MODELS = ("llama", "gpt2", "qwen3")
SEEDS = (*range(10), 2**32 + 5, 2**40 + 7)
DRAWS = 20_000
ROWS = 100  # texts of one generation
ENDS = {5, 9, 11, 17, 40, 41, 42, 43, 44, 45}
FORMS: list[dict[str, Any]] = [
    *SETTINGS,
    {"top_k": 100},
    {"top_k": 30, "min_p": 0.02, "temperature": 1.5},
    {"top_k": 50, "min_new_tokens": 4, "stop_token_ids": ENDS},
    {"num_return_sequences": 3},
    {"num_return_sequences": 3, "top_p": 0.9, "stop_token_ids": ENDS},
    {"num_return_sequences": 4, "top_k": 50, "stop_token_ids": ENDS},
    {"num_return_sequences": 2, "temperature": 1.3, "logprobs": 1},
]
"""Settings of which the tokens are compared. Penalties are not among them with ``num_return_sequences``: openvino_genai
penalises the tokens of all texts of a generation in each of them."""

Array = np.ndarray[Any, Any]


class Logits:
    """Logits of a folder's model by OpenVINO, f32."""

    def __init__(self, folder: Path) -> None:
        import openvino

        model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        self._request, self._names = model.create_infer_request(), {port.any_name for port in model.inputs}

    def after(self, tokens: list[int]) -> Array:
        """Return the logits [v] after tokens."""
        count = len(tokens)
        inputs = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, count), np.int64),
            "position_ids": np.arange(count)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        self._request.reset_state()
        outputs = self._request.infer({name: array for name, array in inputs.items() if name in self._names})
        logits: Array = outputs["logits"][0, -1]
        return logits


def inputs_of(genai: Any, tensor: Any, tokenizer: Any, texts: list[str]) -> Any:
    """Return texts as TokenizedInputs of a module."""
    encoded = tokenizer.encode(texts)
    return genai.TokenizedInputs(tensor(encoded.input_ids.data), tensor(encoded.attention_mask.data))


def compare_tokens(model: str, sides: Any) -> int:
    """Return the number of settings for which a seed gives other tokens, and print it."""
    tokenizer, wrong = sides[0][2].get_tokenizer(), 0
    for form in FORMS:
        differing = total = 0
        for texts in ([generation_cases.PROMPT], generation_cases.OTHERS):
            for seed in SEEDS:
                keywords = {"max_new_tokens": 12, "do_sample": True, "ignore_eos": "stop_token_ids" not in form, **form}
                found, expected = (
                    pipeline.generate(inputs_of(genai, tensor, tokenizer, texts), rng_seed=seed, **keywords)
                    for genai, tensor, pipeline in sides
                )
                total += len(expected.tokens)
                differing += sum(ours != theirs for ours, theirs in zip(found.tokens, expected.tokens, strict=True))
                if not differing:
                    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-3, atol=2e-3)
        wrong += differing > 0
        print(f"{model}: {form}: {total - differing} of {total} texts are equal", flush=True)
    return wrong


def drawn(genai: Any, tensor: Any, pipeline: Any, setting: dict[str, Any]) -> Counter[tuple[int, ...]]:
    """Return how often each text was drawn: a token, or two if penalties of generated tokens are among the rules."""
    length = 1 + bool({"presence_penalty", "frequency_penalty"} & set(setting))
    rows = 1 if length > 1 else ROWS  # in openvino_genai, the texts of a generation share these penalties
    inputs = inputs_of(genai, tensor, pipeline.get_tokenizer(), [generation_cases.PROMPT])
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS // rows):
        result = pipeline.generate(
            inputs,
            max_new_tokens=length,
            ignore_eos=True,
            do_sample=True,
            num_return_sequences=rows,
            rng_seed=seed,
            **setting,
        )
        counts.update(map(tuple, result.tokens))
    return counts


def exact(logits: Logits, prompt: list[int], length: int, setting: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Return the probabilities of all texts with so many tokens."""
    texts: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        texts = {
            (*text, token): probability * share
            for text, probability in texts.items()
            for token, share in enumerate(distribution(logits.after([*prompt, *text]), prompt, text, **setting))
            if share
        }
    return texts


def compare_distributions(folder: Path, sides: Any) -> int:
    """Return the number of settings whose draws have another distribution, and print each."""
    logits, wrong = Logits(folder), 0
    prompt = sides[0][2].get_tokenizer().encode(generation_cases.PROMPT).input_ids.data[0].tolist()
    for setting in SETTINGS:
        for name, side in zip(("ovgpu.genai", "openvino_genai"), sides, strict=True):
            counts = drawn(*side, setting)
            wanted = exact(logits, prompt, len(next(iter(counts))), setting)
            texts = [*wanted, *(set(counts) - set(wanted))]
            found = np.array([counts[text] for text in texts])
            chi_square, most = distance(found, np.array([wanted.get(text, 0.0) for text in texts]))
            wrong += not chi_square <= most
            print(f"{name}: {setting}: chi-square {chi_square:.1f}, at most {most:.1f}", flush=True)
    return wrong


def main() -> None:
    """Compare the models of the command line, or `MODELS`."""
    import openvino
    import openvino_genai

    import ovgpu
    import ovgpu.genai as ours

    wrong = 0
    for number, model in enumerate(sys.argv[1:] or MODELS):
        with tempfile.TemporaryDirectory() as name:
            folder = generation_cases.make_folder(model, Path(name))
            sides = (
                (ours, ovgpu.Tensor, ours.LLMPipeline(folder, "CPU", INFERENCE_PRECISION_HINT="f32")),
                (openvino_genai, openvino.Tensor, openvino_genai.LLMPipeline(folder, "CPU", **EXACT)),
            )
            wrong += compare_tokens(model, sides)
            if number == 0:
                wrong += compare_distributions(folder, sides)
    print(f"{wrong} settings differ")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
