"""Embeddings and rerankings by tiny models, which `record_wheel.py` computes with openvino_genai, and
`test_retrieval.py` here, and calls of a tokenizer of pairs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.genai.make_tokenizer import PAIR_FOLDER
from tests.harness.models.transformer import Sizes, bert

SIZES = Sizes(layers=2, width=16, heads=2, inner=32, vocabulary=80, positions=48)
DECODER = Path(__file__).parents[1] / "models" / "data" / "qwen3"
MODELS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "decoder": {"causal": True},
    "sigmoid": {"labels": 1},
    "softmax": {"labels": 2},
    "three": {"labels": 3},
}
TEXTS = ["cat sat, on a mat", "no", "", "to be or not to be, that is the cat", "a " * 60]
DOCUMENTS = [*TEXTS, "yes cat"]

EMBEDDINGS: list[tuple[str, dict[str, Any]]] = [
    *(
        (model, {"pooling_type": pooling})
        for model in ("encoder", "decoder")
        for pooling in ("CLS", "MEAN", "LAST_TOKEN")
    ),
    *((model, {"pooling_type": "LAST_TOKEN", "padding_side": "left"}) for model in ("encoder", "decoder")),
    ("encoder", {"pooling_type": "MEAN", "normalize": False}),
    ("encoder", {"pooling_type": "MEAN", "padding_side": "left"}),
    ("encoder", {"max_length": 6}),
    ("encoder", {"max_length": 2, "pooling_type": "MEAN"}),
    ("encoder", {"max_length": 9, "pad_to_max_length": True, "pooling_type": "MEAN"}),
    ("encoder", {"max_length": 48, "pad_to_max_length": True, "padding_side": "left", "pooling_type": "LAST_TOKEN"}),
    ("decoder", {"max_length": 30, "pad_to_max_length": True, "pooling_type": "LAST_TOKEN"}),
    ("encoder", {"pad_to_max_length": True, "pooling_type": "MEAN", "padding_side": "left"}),
    ("encoder", {"batch_size": 5, "max_length": 12, "pad_to_max_length": True}),
    ("encoder", {"batch_size": 1}),
    ("encoder", {"embed_instruction": "document:", "query_instruction": "query: "}),
]
"""Models, and keywords of a TextEmbeddingPipeline."""

RERANKINGS: list[tuple[str, dict[str, Any]]] = [
    *((model, {"top_n": 10}) for model in ("sigmoid", "softmax", "three", "qwen3")),
    *((model, {}) for model in ("sigmoid", "qwen3")),
    ("sigmoid", {"top_n": 0}),
    ("softmax", {"top_n": 1}),
    ("softmax", {"max_length": 9, "top_n": 10}),
    ("sigmoid", {"max_length": 3, "top_n": 1}),
    ("sigmoid", {"max_length": 40, "pad_to_max_length": True}),
    ("sigmoid", {"padding_side": "left"}),
    ("qwen3", {"max_length": 12, "padding_side": "left"}),
]
"""Models, and keywords of a TextRerankPipeline."""

VALUES = (None, True, False, 0, 3, -3, 2.5, "a", [1])
ENCODED = ("a", "aaaa", "bbbbbbb")


def make_folder(model: str, folder: Path) -> Path:
    """Write the folder of a model, with the tokenizer of pairs, and return it."""
    shutil.copytree(PAIR_FOLDER, folder, dirs_exist_ok=True)
    config: dict[str, Any] = {"max_position_embeddings": SIZES.positions}
    if model == "qwen3":
        for suffix in ("xml", "bin"):
            shutil.copy(DECODER / f"model.{suffix}", folder / f"openvino_model.{suffix}")
        config = {"model_type": "qwen3"}
    else:
        xml, weights = bert(7, SIZES, **MODELS[model]).ir
        (folder / "openvino_model.xml").write_bytes(xml)
        (folder / "openvino_model.bin").write_bytes(weights)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    """Return a case as text."""
    model, keywords = case
    return ", ".join([model, *(f"{key}={value!r}" for key, value in keywords.items())])


def attempt(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the name of its exception."""
    try:
        return call()
    except (RuntimeError, TypeError, AttributeError) as e:
        return next(kind.__name__ for kind in (RuntimeError, TypeError, AttributeError) if isinstance(e, kind))


def embeddings(genai: Any, make: Callable[..., Any], cases: Iterable[Any] = EMBEDDINGS) -> dict[str, Any]:
    """Return the vectors of documents, of a document with a prompt, and of a query, for each case.

    ``make`` makes the pipeline of a class and a model with keywords.
    """
    found = {}
    for model, keywords in cases:
        values = dict(keywords)
        if "pooling_type" in values:
            values["pooling_type"] = genai.TextEmbeddingPipeline.PoolingType.__members__[values["pooling_type"]]
        pipeline = make(genai.TextEmbeddingPipeline, model, **values)
        found[name_of((model, keywords))] = [
            attempt(lambda pipeline=pipeline: pipeline.embed_documents(TEXTS)),
            attempt(lambda pipeline=pipeline: pipeline.embed(["cat"], "no ")),
            attempt(lambda pipeline=pipeline: pipeline.embed_query(TEXTS[0])),
        ]
    return found


def rerankings(genai: Any, make: Callable[..., Any], cases: Iterable[Any] = RERANKINGS) -> dict[str, Any]:
    """Return the results of a short and of a long query, for each case."""
    found = {}
    for case in cases:
        pipeline = make(genai.TextRerankPipeline, case[0], **case[1])
        found[name_of(case)] = [pipeline.rerank(query, DOCUMENTS) for query in ("the cat", TEXTS[3])]
    return found


def tokens(tokenizer: Any, of_pairs: Any) -> dict[str, Any]:
    """Return the tokens of texts, and of pairs, that are cut to each length."""
    found = {}
    for length in range(4, 14):
        cut = {"max_length": length, "truncation": True}
        found[str(length)] = [
            tokenizer.encode(list(ENCODED), **cut).input_ids.data.tolist(),
            *(of_pairs.encode([a], list(ENCODED), **cut).input_ids.data.tolist() for a in ENCODED),
        ]
    return found


def configurations(kind: Any) -> dict[str, Any]:
    """Return the defaults of a class Config, and what its fields are after assignments and with keywords."""

    def plain(value: Any) -> Any:
        return value.name if hasattr(type(value), "__members__") else value

    def assigned(name: str, value: Any) -> Any:
        config = kind()
        setattr(config, name, value)
        return plain(getattr(config, name))

    names = [name for name in dir(kind) if not name.startswith("_") and not callable(getattr(kind, name))]
    found = {name: plain(getattr(kind(), name)) for name in names}
    for name in [*names, "unknown"]:
        for value in VALUES:
            found[f"{name} = {value!r}"] = attempt(lambda name=name, value=value: assigned(name, value))
    for name in names:
        for value in VALUES:
            found[f"{name}={value!r}"] = attempt(
                lambda name=name, value=value: plain(getattr(kind(**{name: value}), name))
            )
    return found


def record(genai: Any, make: Callable[..., Any]) -> dict[str, Any]:
    """Return everything that tests compare, with floats rounded to seven digits."""
    found = {
        "embeddings": embeddings(genai, make),
        "rerankings": rerankings(genai, make),
        "tokens": tokens(genai.Tokenizer(PAIR_FOLDER), genai.Tokenizer(PAIR_FOLDER, add_second_input=True)),
        "embedding_config": configurations(genai.TextEmbeddingPipeline.Config),
        "rerank_config": configurations(genai.TextRerankPipeline.Config),
    }
    rounded: dict[str, Any] = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 7))
    return rounded
