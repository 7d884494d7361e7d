"""Make the tokenizers of the tests: ``data/tokenizer`` has bytes as tokens, as the decoders in tests/models/data have,
and ``data/pair_tokenizer`` puts the special tokens of BERT around texts and pairs.

Run it in an environment with transformers and openvino_tokenizers: ``python -m tests.genai.make_tokenizer``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "tokenizer"
PAIR_FOLDER = Path(__file__).parent / "data" / "pair_tokenizer"
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
def byte_tokenizer(*special: str) -> Any:
    """Return a tokenizer of 211 tokens: three special tokens, bytes, words that no text has, and ``special`` ones."""
    import tokenizers

    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves as characters
    others = [byte for byte in range(256) if byte not in kept]
    names = {byte: chr(byte) for byte in kept} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    words = ["<pad>", "<s>", "</s>", *(names[byte] for byte in BYTES)]
    words += [f"<unused{n}>" for n in range(len(words), VOCABULARY - len(special))]
    words += special
    found: Any = tokenizers.Tokenizer(tokenizers.models.BPE({word: n for n, word in enumerate(words)}, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.add_special_tokens([*words[:3], *special])
    found.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return found


def pair_tokenizer() -> Any:
    """Return a tokenizer of letters and a few words, which puts [CLS] and [SEP] around texts and pairs."""
    import tokenizers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    merges = [(word[:n], word[n]) for word in ("yes", "no", "cat", "\u0120cat") for n in range(1, len(word))]
    words = [*special, "\u0120", *map(chr, BYTES[1:59]), *("".join(merge) for merge in merges)]
    found: Any = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: n for n, word in enumerate(words)}, merges, unk_token="[UNK]")
    )
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.add_special_tokens(special)
    found.post_processor = tokenizers.processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    return found


def save(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer of transformers, and the models that openvino_tokenizers makes of it."""
    import openvino
    import openvino_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    models = openvino_tokenizers.convert_tokenizer(tokenizer, with_detokenizer=True)
    for model, name in zip(models, ("openvino_tokenizer.xml", "openvino_detokenizer.xml")):
        openvino.save_model(model, folder / name)


def main() -> None:
    """Write the files."""
    import transformers

    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), clean_up_tokenization_spaces=False, **special
    )
    tokenizer.chat_template = TEMPLATE
    save(tokenizer, FOLDER)
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=pair_tokenizer(),
        model_max_length=48,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **special,
    )
    save(tokenizer, PAIR_FOLDER)


if __name__ == "__main__":
    main()
