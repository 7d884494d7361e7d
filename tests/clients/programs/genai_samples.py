"""OpenVINO GenAI's Python samples: texts, chats, beams, assistants, JSON, speech, embeddings, rankings.

They are in no package: ``--samples`` names a copy of samples/python of OpenVINO GenAI's repository.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from .optimum import REQUIREMENTS as OPTIMUM
from .optimum import TEXT, UNWANTED
from .samples import directory

__all__ = ["REQUIREMENTS", "UNWANTED", "prepare", "run"]

REQUIREMENTS = [
    *OPTIMUM,
    "openvino-genai",
    "tokenizers",
    "jinja2",
    "llguidance",
    "pydantic",
    "librosa",
    "json5",
    "requests",
]
LINES = [
    "The quick brown fox jumps over the lazy dog, and the dog looks at the fox.",
    "Why is the sky blue? The sky is blue because air scatters blue light more than red light.",
    "Paris is the capital of France, and London is the capital of England.",
    'Objects have keys and values: {"name": "Anna", "age": 30, "city": "Dublin"}.',
]
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
QUESTION = "Why is the sky blue?"
DOCUMENTS = [LINES[0], LINES[2], "a red fox", LINES[1]]

SPEECH = "automatic_speech_recognition"
NUMBER = re.compile(r"-?\d+\.\d+")

Array = np.ndarray[Any, Any]


# ---- models


def prepare(folder: Path) -> None:
    """Write a decoder, a draft model, a decoder that is sure of its tokens, encoders, a Whisper, and its sound."""
    from optimum.intel import OVModelForCausalLM, OVModelForFeatureExtraction, OVModelForSequenceClassification

    words = byte_pairs()
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    sizes = {**TEXT, "vocab_size": len(words), "max_position_embeddings": 2048, **ids}
    llama = {**sizes, "num_key_value_heads": 2}
    for name, module in (
        ("llama", built("LlamaForCausalLM", llama)),
        ("draft", built("LlamaForCausalLM", {**llama, "num_hidden_layers": 1})),
        ("sure", sure(built("PhiForCausalLM", sizes), words)),
    ):
        export(folder / name, module, OVModelForCausalLM, words, stateful=True)
    pieces = word_pieces()
    bert = {**TEXT, "vocab_size": len(pieces), "max_position_embeddings": 128, "pad_token_id": 0}
    export(folder / "embedding", built("BertModel", bert), OVModelForFeatureExtraction, pieces)
    ranker = built("BertForSequenceClassification", {**bert, "num_labels": 1})
    export(folder / "rerank", ranker, OVModelForSequenceClassification, pieces)
    write_speech(folder)


def write_speech(folder: Path) -> None:
    """Write a Whisper, and its sound."""
    from tests.genai import whisper_model

    whisper_model.add_tokenizer_models(whisper_model.make_folder(folder / "whisper"))
    with wave.open(str(folder / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", ""))
        file.writeframes((whisper_model.sound(1.3, 9) * 29491).astype("<i2").tobytes())


def sure(module: Any, tokenizer: Any) -> Any:
    """Return a model whose next token is nearly certain, so that random draws are those of greedy search.

    Blanks are the last choice, and digits that before, so that JSON ends.
    """
    import torch

    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    module.lm_head.weight.data *= 1e4
    module.lm_head.bias.data = torch.tensor(
        [-1e7 if re.search(r"\s", text) else -1e6 if re.search(r"\d", text) else 0.0 for text in texts]
    )
    return module


def built(kind: str, config: dict[str, Any]) -> Any:
    """Return a model of transformers with random weights."""
    import torch
    import transformers

    module = getattr(transformers, kind)(getattr(transformers, kind).config_class(**config))
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return module


def export(folder: Path, module: Any, kind: Any, tokenizer: Any, **options: Any) -> None:
    """Write a model as optimum-intel exports it, with its tokenizer."""
    from tests.genai.make_tokenizer import save

    module.save_pretrained(folder / "torch")
    kind.from_pretrained(folder / "torch", export=True, compile=False, **options).save_pretrained(folder)
    save(tokenizer, folder)


def byte_pairs() -> Any:
    """Return a tokenizer of 400 pairs of bytes that is trained on `LINES`, with a chat template."""
    import tokenizers
    import transformers

    trained: Any = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<s>", "</s>"]
    trained.train_from_iterator(
        LINES * 4,
        tokenizers.trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=sorted(alphabet), show_progress=False
        ),
    )
    trained.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=trained,
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
        **dict(zip(("pad_token", "bos_token", "eos_token"), special)),
    )


def word_pieces() -> Any:
    """Return a tokenizer of pieces of words that is trained on `LINES`, with BERT's special tokens."""
    import tokenizers
    import transformers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained: Any = tokenizers.BertWordPieceTokenizer()
    trained.train_from_iterator(LINES * 4, vocab_size=200, special_tokens=special, show_progress=False)
    return transformers.BertTokenizerFast(tokenizer_object=trained._tokenizer, model_max_length=128)


# ---- samples


def run(folder: Path, device: str) -> dict[str, Array]:
    """Return the lines and numbers that the samples print, without times, and the vectors of one that prints none."""
    llama, draft, certain = (str(folder / name) for name in ("llama", "draft", "sure"))
    results: dict[str, Array] = {}

    def keep(label: str, lines: list[str]) -> None:
        numbers = [float(number) for line in lines for number in NUMBER.findall(line)]
        results[label] = np.array([NUMBER.sub("", line) for line in lines])
        if numbers:
            results[f"{label}/numbers"] = np.array(numbers, np.float32)

    def texts(label: str, name: str, *arguments: str, **options: Any) -> list[str]:
        lines = sample(f"text_generation/{name}", *arguments, device=device, **options)
        keep(label, lines)
        return lines

    texts("greedy", "greedy_causal_lm", llama, QUESTION)
    texts("chat", "chat_sample", llama, takes_device=True, typed=f"{QUESTION}\nAnd the fox?\n")
    texts("beams", "beam_search_causal_lm", llama, QUESTION, LINES[0])
    texts("draws", "multinomial_causal_lm", certain, QUESTION)
    texts("lookup", "prompt_lookup_decoding_lm", llama, " ".join(LINES))
    texts("encrypted", "encrypted_model_causal_lm", llama, QUESTION)
    texts("react", "react_sample", llama)
    texts("structured", "structured_output_generation", certain, typed="1 person, 1 car\n")
    lines = sample("text_generation/speculative_decoding_lm", llama, draft, QUESTION, device=device)
    keep("draft", lines[: lines.index("MAIN MODEL")] if "MAIN MODEL" in lines else lines)
    lines = sample("text_generation/benchmark_genai", "-m", llama, "-n", "2", device=device)
    keep("benchmark", [line if "size" in line else line.partition(":")[0] for line in lines])
    speech = str(folder / "whisper"), str(folder / "sound.wav")
    keep("speech", sample(f"{SPEECH}/{SPEECH}", *speech, device=device, takes_device=True))
    keep("ranking", sample("rag/text_rerank", str(folder / "rerank"), QUESTION, *DOCUMENTS, device=device))
    with vectors() as found:
        sample("rag/text_embeddings", str(folder / "embedding"), *DOCUMENTS, device=device)
    results["vectors"] = np.array(found, np.float32)
    return results


@contextlib.contextmanager
def vectors() -> Iterator[list[list[float]]]:
    """Return the list of all vectors that `embed_documents` and `embed_query` return in the block."""
    import openvino_genai  # by now that of the samples before

    found: list[list[float]] = []
    kind = openvino_genai.TextEmbeddingPipeline
    documents, query = kind.embed_documents, kind.embed_query

    def embed_documents(self: Any, texts: list[str]) -> Any:
        found.extend(result := documents(self, texts))
        return result

    def embed_query(self: Any, text: str) -> Any:
        found.append(result := query(self, text))
        return result

    with mock.patch.multiple(kind, embed_documents=embed_documents, embed_query=embed_query):
        yield found


def sample(name: str, *arguments: str, device: str, takes_device: bool = False, typed: str = "") -> list[str]:
    """Run a sample unmodified, with ``typed`` on stdin; return the lines that it prints."""
    folder, _, name = name.rpartition("/")
    return printed(directory(folder) / f"{name}.py", *arguments, device=device, takes_device=takes_device, typed=typed)


def printed(script: Path, *arguments: str, device: str, takes_device: bool = False, typed: str = "") -> list[str]:
    """Run a script, whose last argument is the device if it takes one; return the lines that it prints.

    `run_with_openvino` runs it, if the device is NVIDIA, or if OVGPU_INSTALL_AS is set. A script that takes no device
    names the CPU.
    """
    words = [str(script), *arguments, *[device] * takes_device]
    by_ovgpu = device == "NVIDIA" or "OVGPU_INSTALL_AS" in os.environ
    options = ["--as", "CPU"] if device == "NVIDIA" and not takes_device else []
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [__file__, *options, *words] if by_ovgpu else words),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        mock.patch.object(sys, "stdin", io.StringIO(typed)),
        contextlib.redirect_stdout(output),
    ):
        if by_ovgpu:
            runpy.run_module("ovgpu.run_with_openvino", run_name="__main__")
        else:
            runpy.run_path(str(script), run_name="__main__")
    return output.getvalue().splitlines()
