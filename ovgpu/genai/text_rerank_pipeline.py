"""Class TextRerankPipeline: texts in the order in which they answer a query."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.fields import Configuration, Integer, OptionalFlag, OptionalInteger, OptionalText
from ovgpu.genai.files import read_json
from ovgpu.genai.text_model import (
    Array,
    TextModel,
    checked_text,
    checked_texts,
    find_output,
    layer,
    output_value,
    read_model,
    replace_outputs,
)
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer
from ovgpu.model import Model, Output
from ovgpu.ops.activation.activation import Sigmoid
from ovgpu.ops.activation.softmax import Softmax8
from ovgpu.ops.movement.gather import Gather8
from ovgpu.passes.keep_last_logits import keep_last_logits


class TextRerankPipeline:
    """Classifier of pairs, or language model that answers yes or no, with the interface of openvino_genai.

    ``models_path`` is a folder with openvino_model.xml, whose output is logits [batch, labels], and a tokenizer that
    takes pairs of texts. The score of a text is the sigmoid of a single label, or else the probability of the second
    one. If config.json has the model_type qwen3, the output is logits [batch, length, vocabulary], and the score is
    the probability of the token "yes" against "no"; the model then gets query and text as one text. Scores are
    computed by layers of the compiled model.

    Keywords are fields of a `Config`, unless there is a ``config``, and properties of `Core.compile_model`. Pairs
    longer than ``max_length``, or than the tokenizer's own limit, are cut, the longer text first. Threads may share a
    pipeline, except for `start_rerank_async` and `wait_rerank`.

    Raises: RuntimeError if a file is missing, or the model has other inputs or outputs; TypeError for arguments of
    another type.
    """

    class Config(Configuration):
        """Configuration of a `TextRerankPipeline`.

        ``top_n`` (an integer, 3) limits the number of results. ``max_length`` (None or an integer) is the limit of
        tokens, ``pad_to_max_length`` (None or bool) pads all texts to it, on the ``padding_side`` ("left", "right", or
        None for that of the tokenizer).

        Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, or an unknown one.
        """

        __slots__ = ()

        max_length = OptionalInteger(None)
        pad_to_max_length = OptionalFlag(None)
        padding_side = OptionalText(None)
        top_n = Integer(3)

    def __init__(
        self, models_path: str | bytes | os.PathLike[str], device: str, config: Config | None = None, **kwargs: Any
    ) -> None:
        self._config, properties = self.Config.split(config, kwargs)
        model, folder = read_model(models_path)
        self._tokenizer = Tokenizer(folder)
        self._is_language_model = read_json(folder / "config.json").get("model_type") == "qwen3"
        if not (self._is_language_model or self._tokenizer.supports_paired_input()):
            raise Error(f"the tokenizer of {folder} takes no pairs of texts")
        self._encode("", [""])  # raises for lengths and padding that are not possible
        _add_scores(model, self._tokenizer if self._is_language_model else None)
        self._model = TextModel(model, device, properties)

    def rerank(self, query: str, texts: Collection[str]) -> list[tuple[int, float]]:
        """Return the indices and scores of the ``top_n`` texts that answer a query best, the best first.

        Texts with equal scores keep their order. Raises: TypeError for values that are no texts.
        """
        return self._best(self._model.infer(self._tokens(query, texts)))

    def start_rerank_async(self, query: str, texts: Collection[str]) -> None:
        """Start `rerank`. Raises: RuntimeError while another call runs."""
        self._model.start(self._tokens(query, texts))

    def wait_rerank(self) -> list[tuple[int, float]]:
        """Wait for what was started, and return the result of `rerank`. Raises: RuntimeError if nothing was."""
        return self._best(self._model.wait())

    # ----

    def _tokens(self, query: Any, texts: Any) -> TokenizedInputs:
        return self._encode(checked_text(query), checked_texts(texts))

    def _encode(self, query: str, texts: list[str]) -> TokenizedInputs:
        config = self._config
        joined: list[Any] = [query + text if self._is_language_model else [query, text] for text in texts]
        return self._tokenizer.encode(
            joined,
            pad_to_max_length=bool(config.pad_to_max_length),
            max_length=config.max_length,
            padding_side=config.padding_side,
            truncation=True,
        )

    def _best(self, scores: Array) -> list[tuple[int, float]]:
        values: list[float] = scores.ravel().tolist()
        return sorted(enumerate(values), key=lambda result: -result[1])[: self._config.top_n]


def _add_scores(model: Model, tokenizer: Tokenizer | None) -> None:
    """Replace the logits of a model by a score of each text, [batch] or [batch, 1], in place.

    ``tokenizer`` has the tokens of a language model; None for a classifier. Raises: Error for logits of another shape,
    and for a vocabulary without the tokens yes and no.
    """
    index = find_output(model, "logits")
    if tokenizer is not None:
        keep_last_logits(model, index)
    logits = output_value(model, index)
    shape = logits.partial_shape
    rank = len(shape) if shape.rank.is_static else None
    if rank == 2 and shape[1] == 1:
        score = layer(Sigmoid(), logits)
    elif tokenizer is None:
        if rank not in (None, 2):
            raise Error(f"logits have the shape [batch, labels], not {shape}")
        score = _second(logits)
    else:
        if rank not in (None, 3):
            raise Error(f"logits have the shape [batch, length, vocabulary], not {shape}")
        vocabulary = tokenizer.get_vocab()
        if not {b"yes", b"no"} <= vocabulary.keys():
            raise Error('the tokenizer has no tokens "yes" and "no", whose probabilities are the scores')
        last = layer(Gather8(), logits, -1, 1)
        score = _second(layer(Gather8(), last, [vocabulary[b"no"], vocabulary[b"yes"]], 1))
    replace_outputs(model, score)


def _second(logits: Output) -> Output:
    """Return the probability [batch] of the second class of logits [batch, classes]."""
    return layer(Gather8(), layer(Softmax8(axis=1), logits), 1, 1)
