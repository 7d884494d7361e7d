"""A tiny Whisper for tests: the two models of tests/models/data, with another table of logits, and a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parents[1] / "models" / "data"
FRAMES = 60  # of a window
POSITIONS = FRAMES // 2
SAMPLES = 160 * FRAMES  # of a window
VOCABULARY = 211
LANGUAGES = ("de", "en", "zh")
LEADS = (0xC3, 0xE4, 0xE5, 0xE6)  # first bytes of characters that are not ASCII
BYTES = [*b"\n !',.?-\"", *range(ord("a"), ord("z") + 1), *range(ord("A"), ord("Z") + 1), *LEADS, *range(0x80, 0xC0)]
SPECIAL = [
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{language}|>" for language in LANGUAGES),
    "<|translate|>",
    "<|transcribe|>",
    "<|startofprev|>",
    "<|notimestamps|>",
]
TIMES = [f"<|{n / POSITIONS:.2f}|>" for n in range(POSITIONS + 1)]
END, START, DE, EN, ZH, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_TIMES = range(
    VOCABULARY - len(TIMES) - len(SPECIAL), VOCABULARY - len(TIMES)
)
"""Special tokens. Texts have the tokens before them, times those after them."""
FORCED = [(11 * n + 3) % END for n in range(30)] + [END] * 34
WORDS = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it"]


def tokenizer() -> Any:
    """Return the tokenizer: bytes, letters after a blank, pairs of letters, then the special tokens and the times."""
    import tokenizers

    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves as characters
    others = [byte for byte in range(256) if byte not in kept]
    names = {byte: chr(byte) for byte in kept} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    pairs = [(names[32], letter) for letter in "abcdefghijklmnopqrstuvwxyz"] + [(a, b) for a, b in WORDS]
    words = [*(names[byte] for byte in BYTES), *(a + b for a, b in pairs)][:END]
    found: Any = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: n for n, word in enumerate(words)}, [p for p in pairs if "".join(p) in words])
    )
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.add_special_tokens(SPECIAL)
    found.add_tokens([tokenizers.AddedToken(time, normalized=False) for time in TIMES])
    return found


def make_folder(folder: Path, cache_position: bool = False, **settings: Any) -> Path:
    """Write the files of the model, and return their folder. ``settings`` change generation_config.json.

    With ``cache_position``, the decoder has this input, and after a token at position n the n-th of `FORCED` follows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("xml", "bin"):
        shutil.copy(DATA / "whisper_encoder" / f"model.{suffix}", folder / f"openvino_encoder_model.{suffix}")
    _write_decoder(folder, cache_position)
    tokenizer().save(str(folder / "tokenizer.json"))
    texts = {f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "pad")}
    files: dict[str, Any] = {
        "config": {
            "model_type": "whisper",
            "max_source_positions": POSITIONS,
            "eos_token_id": END,
            "pad_token_id": END,
            "bos_token_id": END,
        },
        "generation_config": {
            "alignment_heads": [[0, 1], [1, 0], [1, 3]],
            "begin_suppress_tokens": [BYTES.index(ord(" ")), END],
            "decoder_start_token_id": START,
            "eos_token_id": END,
            "is_multilingual": True,
            "lang_to_id": dict(zip((f"<|{language}|>" for language in LANGUAGES), (DE, EN, ZH))),
            "max_initial_timestamp_index": 8,
            "max_length": 44,
            "no_timestamps_token_id": NO_TIMES,
            "pad_token_id": END,
            "prev_sot_token_id": PREVIOUS,
            "suppress_tokens": [BYTES.index(ord("-")), START, DE, EN, ZH, TRANSLATE, TRANSCRIBE, PREVIOUS],
            "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
            **settings,
        },
        "preprocessor_config": {
            "chunk_length": 1,
            "feature_size": 20,
            "hop_length": 160,
            "n_fft": 400,
            "n_samples": SAMPLES,
            "nb_max_frames": FRAMES,
            "sampling_rate": 16000,
        },
        "special_tokens_map": texts,
        "tokenizer_config": texts,
    }
    for name, contents in files.items():
        (folder / f"{name}.json").write_text(json.dumps(contents))
    return folder


def add_tokenizer_models(folder: Path) -> None:
    """Write the models of the tokenizer, which openvino_genai needs, with transformers and openvino_tokenizers."""
    import openvino
    import openvino_tokenizers
    import transformers

    texts = {f"{name}_token": "<|endoftext|>" for name in ("bos", "eos", "pad")}
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer(), clean_up_tokenization_spaces=False, **texts
    )
    models = openvino_tokenizers.convert_tokenizer(made, with_detokenizer=True)
    for model, name in zip(models, ("openvino_tokenizer.xml", "openvino_detokenizer.xml")):
        openvino.save_model(model, folder / name)


def sound(seconds: float, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return samples of chirps with noise, 16 kHz."""
    random = np.random.RandomState(seed)
    time = np.arange(round(16000 * seconds)) / 16000
    waves = [
        np.sin(2 * np.pi * time * (low + rise * np.sin(2 * np.pi * time * rate)))
        for low, rise, rate in random.uniform([100, 50, 0.5], [2500, 400, 4], (3, 3))
    ]
    loud = 0.1 + 0.9 * (np.sin(2 * np.pi * time * random.uniform(1, 4)) > 0)
    found: np.ndarray[Any, np.dtype[np.float32]] = (
        loud * sum(waves) / 3 + 0.02 * random.normal(size=len(time))
    ).astype(np.float32)
    return found


# ---- the decoder


def _logits() -> np.ndarray[Any, Any]:
    """Return logits [vocabulary, vocabulary] that are added: of each token after each, for texts with some order."""
    random = np.random.RandomState(7)
    table = random.normal(0, 2.5, (VOCABULARY, VOCABULARY))
    leads, rests = [BYTES.index(byte) for byte in LEADS], [*range(len(BYTES) - 64, len(BYTES))]
    times = slice(NO_TIMES + 1, None)
    table[:, rests] -= 30
    table[np.ix_(leads, rests)] += 60
    table[np.ix_(rests, rests)] += 27
    table[:, leads] -= 0.5
    table[:, BYTES.index(ord(" "))] += 2
    table[:END, BYTES.index(ord("."))] += 1
    table[:, END:] -= 12
    table[:, END] += 9
    table[START, DE : ZH + 1] += [0, 3.5, -1]
    table[: NO_TIMES + 1, times] += 10.7
    table[times, times] += 12
    table[times, END] += 3
    np.fill_diagonal(table[:END, :END], -20)
    return table.astype(np.float32)


def _write_decoder(folder: Path, cache_position: bool) -> None:
    """Write the decoder: its logits are scaled, and `_logits` are added by the tokens of its input."""
    from lxml import etree

    source = DATA / "whisper_decoder"
    tree = etree.parse(source / "model.xml")
    root = tree.getroot()
    weights = (source / "model.bin").read_bytes()
    layers, edges = root.find("layers"), root.find("edges")
    assert layers is not None and edges is not None
    result = next(layer for layer in layers if layer.get("type") == "Result")
    edge = next(edge for edge in edges if edge.get("to-layer") == result.get("id"))
    ids = next(layer for layer in layers if layer.get("type") == "Parameter")
    size = VOCABULARY

    def layer(
        number: int, kind: str, data: str, inputs: list[str], output: str, precision: str = "FP32", names: str = ""
    ) -> None:
        dims = lambda shape: "".join(f"<dim>{extent}</dim>" for extent in shape.split())
        ports = "".join(f'<port id="{n}" precision="FP32">{dims(shape)}</port>' for n, shape in enumerate(inputs))
        text = (
            f'<layer id="{number}" name="added_{number}" type="{kind}" version="opset{8 if kind == "Gather" else 1}">'
            f"{data}{f'<input>{ports}</input>' if inputs else ''}<output>"
            f'<port id="{len(inputs)}" precision="{precision}" names="{names}">{dims(output)}</port></output></layer>'
        )
        layers.insert(layers.index(result), etree.fromstring(text))

    def constant(number: int, array: np.ndarray[Any, Any], kind: str) -> None:
        nonlocal weights
        shape = ", ".join(map(str, array.shape))
        data = f'<data element_type="{kind}" shape="{shape}" offset="{len(weights)}" size="{array.nbytes}"/>'
        weights += array.tobytes()
        layer(number, "Const", data, [], " ".join(map(str, array.shape)))

    def connect(start: Any, port: Any, end: int, to: int) -> None:
        edges.append(
            etree.fromstring(f'<edge from-layer="{start}" from-port="{port}" to-layer="{end}" to-port="{to}"/>')
        )

    text = f"-1 -1 {size}"
    constant(900000, _logits(), "f32")
    constant(900001, np.array(0, np.int64), "i64")
    constant(900005, np.array(1.6, np.float32), "f32")
    layer(900002, "Gather", '<data batch_dims="0"/>', [f"{size} {size}", "-1 -1", ""], text)
    layer(900003, "Multiply", '<data auto_broadcast="numpy"/>', [text, ""], text)
    layer(900004, "Add", '<data auto_broadcast="numpy"/>', [text, text], text, names="" if cache_position else "logits")
    connect(900000, 0, 900002, 0)
    connect(ids.get("id"), 0, 900002, 1)
    connect(900001, 0, 900002, 2)
    connect(edge.get("from-layer"), edge.get("from-port"), 900003, 0)
    connect(900005, 0, 900003, 1)
    connect(900003, 2, 900004, 0)
    connect(900002, 3, 900004, 1)
    last = 900004
    if cache_position:
        last = 900010
        data = '<data element_type="i64" shape="-1"/>'
        layer(900006, "Parameter", data, [], "-1", "I64", "cache_position")
        constant(900007, (1000 * np.eye(size)[FORCED]).astype(np.float32), "f32")
        layer(900008, "Gather", '<data batch_dims="0"/>', [f"{len(FORCED)} {size}", "-1", ""], f"-1 {size}")
        layer(900010, "Add", '<data auto_broadcast="numpy"/>', [text, f"-1 {size}"], text, names="logits")
        connect(900007, 0, 900008, 0)
        connect(900006, 0, 900008, 1)
        connect(900001, 0, 900008, 2)
        connect(900004, 2, 900010, 0)
        connect(900008, 3, 900010, 1)
    edge.set("from-layer", str(last))
    edge.set("from-port", "2")
    for layer_ in layers:
        for port in layer_.iter("port"):
            if port.get("names") == "logits" and layer_.get("id") != str(last):
                del port.attrib["names"]
    tree.write(folder / "openvino_decoder_model.xml")
    (folder / "openvino_decoder_model.bin").write_bytes(weights)
