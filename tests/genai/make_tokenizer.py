"""Make the tokenizer of the tests, ``data/tokenizer``: bytes as tokens, as the decoders in tests/models/data have.

Run it in an environment with transformers and openvino_tokenizers: ``python -m tests.genai.make_tokenizer``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "tokenizer"
VOCABULARY = 211
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
BYTES = [
    *b"\n !',.?",
    *range(ord("a"), ord("z") + 1),
    *range(ord("A"), ord("Z") + 1),
    *range(0x80, 0xC0),
    *range(0xC2, 0xF5),
]  # enough for any character that is not ASCII


@cache
def byte_tokenizer() -> Any:
    """Return a tokenizer of 211 tokens: three special tokens, bytes, and words that no text has."""
    import tokenizers

    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves as characters
    others = [byte for byte in range(256) if byte not in kept]
    names = {byte: chr(byte) for byte in kept} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    words = ["<pad>", "<s>", "</s>", *(names[byte] for byte in BYTES)]
    words += [f"<unused{n}>" for n in range(len(words), VOCABULARY)]
    found: Any = tokenizers.Tokenizer(tokenizers.models.BPE({word: n for n, word in enumerate(words)}, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.add_special_tokens(words[:3])
    found.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return found


def main() -> None:
    """Write the files."""
    import openvino
    import openvino_tokenizers
    import transformers

    FOLDER.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), clean_up_tokenization_spaces=False, **special
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(FOLDER)
    models = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)
    for model, name in zip(models, ("openvino_tokenizer.xml", "openvino_detokenizer.xml")):
        openvino.save_model(model, FOLDER / name)


if __name__ == "__main__":
    main()
