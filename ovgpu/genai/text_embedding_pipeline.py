"""Class TextEmbeddingPipeline: texts as vectors."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any, TypeAlias

from ovgpu.errors import Error
from ovgpu.genai import enums
from ovgpu.genai.fields import Configuration, Flag, Member, OptionalFlag, OptionalInteger, OptionalText
from ovgpu.genai.text_model import (
    TextModel,
    checked_text,
    checked_texts,
    find_input,
    find_output,
    layer,
    output_value,
    read_model,
    replace_outputs,
)
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer
from ovgpu.model import Model, Output
from ovgpu.ops.arithmetic.arithmetic import Divide, Maximum, Multiply, Subtract
from ovgpu.ops.convert import Convert
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.normalization.normalization import NormalizeL2
from ovgpu.ops.reduction import ReduceSum
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.types import PartialShape, Type

EPSILON = 1e-12  # least sum of squares of a vector that is normalised
MAX_LENGTH = 2**31 - 1


class TextEmbeddingPipeline:
    """Encoder, or decoder without a state, that makes a vector of a text, with the interface of openvino_genai.

    ``models_path`` is a folder with openvino_model.xml, whose output is last_hidden_state [batch, length, width], and a
    tokenizer. Keywords are fields of a `Config`, unless there is a ``config``, and properties of `Core.compile_model`.
    Pooling and normalisation are layers of the compiled model.

    Texts longer than ``max_length``, or than the tokenizer's own limit, are cut. Methods return a list of floats for a
    text (integers if the model's output has integers), and a list of such lists for several. Threads may share a
    pipeline, except for the methods start and wait.

    Raises: RuntimeError if a file is missing, or the model has other inputs or outputs; TypeError for arguments of
    another type.
    """

    PoolingType: TypeAlias = enums.PoolingType

    class Config(Configuration):
        """Configuration of a `TextEmbeddingPipeline`.

        ``pooling_type`` (`PoolingType`, CLS) chooses the vector of a text, ``normalize`` (bool, True) divides it by its
        Euclidean norm. ``query_instruction`` and ``embed_instruction`` (None or str) go before a query, and before each
        document. ``max_length`` (None or an integer) is the limit of tokens, ``pad_to_max_length`` (None or bool) pads
        all texts to it, on the ``padding_side`` ("left", "right", or None for that of the tokenizer). ``batch_size``
        (None or an integer) fixes the number of texts of each call.

        Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, or an unknown one.
        """

        __slots__ = ()

        batch_size = OptionalInteger(None)
        embed_instruction = OptionalText(None)
        max_length = OptionalInteger(None)
        normalize = Flag(True)
        pad_to_max_length = OptionalFlag(None)
        padding_side = OptionalText(None)
        pooling_type = Member(enums.PoolingType.CLS)
        query_instruction = OptionalText(None)

        def validate(self) -> None:
            """Raise RuntimeError for a ``max_length`` or ``batch_size`` that is out of range."""
            for name in ("max_length", "batch_size"):
                value = getattr(self, name)
                if value is not None and not 0 < value <= MAX_LENGTH:
                    raise Error(f"{name} must be from 1 to {MAX_LENGTH}, not {value}")

    def __init__(
        self, models_path: str | bytes | os.PathLike[str], device: str, config: Config | None = None, **kwargs: Any
    ) -> None:
        self._config, properties = self.Config.split(config, kwargs)
        self._config.validate()
        model, folder = read_model(models_path)
        self._tokenizer = Tokenizer(folder)
        self._encode([""])  # raises for lengths and padding that are not possible
        _fix_shapes(model, self._config)
        # NOTE: openvino_genai expects padding on the right unless padding_side is set. If the tokenizer pads on the
        # left, it takes another token than the last one of all but the longest texts.
        side = self._config.padding_side or self._tokenizer.padding_side
        _add_pooling(model, self._config.pooling_type, self._config.normalize, side == "left")
        self._model = TextModel(model, device, properties)

    def embed_documents(self, texts: Collection[str]) -> list[Any]:
        """Return the vector of each text, with ``embed_instruction`` before it.

        Raises: RuntimeError for another number of texts than ``batch_size``; TypeError for values that are no texts.
        """
        vectors: list[Any] = self._model.infer(self._documents(texts)).tolist()
        return vectors

    def embed(self, texts: Collection[str], prompt: str) -> list[Any]:
        """Return the vector of each text, with ``prompt`` before it. Raises: as `embed_documents`."""
        prompt = checked_text(prompt)
        vectors: list[Any] = self._model.infer(self._tokens([prompt + text for text in checked_texts(texts)])).tolist()
        return vectors

    def embed_query(self, text: str) -> list[Any]:
        """Return the vector of a query, with ``query_instruction`` before it.

        Raises: RuntimeError for another ``batch_size`` than 1; TypeError for a value that is no text.
        """
        vector: list[Any] = self._model.infer(self._query(text))[0].tolist()
        return vector

    def start_embed_documents_async(self, texts: Collection[str]) -> None:
        """Start `embed_documents`. Raises: RuntimeError while another call runs."""
        self._model.start(self._documents(texts))

    def wait_embed_documents(self) -> list[Any]:
        """Wait for what was started, and return the vector of each text. Raises: RuntimeError if nothing was."""
        vectors: list[Any] = self._model.wait().tolist()
        return vectors

    def start_embed_query_async(self, text: str) -> None:
        """Start `embed_query`. Raises: RuntimeError while another call runs."""
        self._model.start(self._query(text))

    def wait_embed_query(self) -> list[Any]:
        """Wait for what was started, and return the vector of the first text. Raises: RuntimeError if nothing was."""
        vectors = self._model.wait()
        if not len(vectors):
            raise Error("embeddings of no texts were started, not that of a query")
        vector: list[Any] = vectors[0].tolist()
        return vector

    # ----

    def _documents(self, texts: Any) -> TokenizedInputs:
        return self._tokens([(self._config.embed_instruction or "") + text for text in checked_texts(texts)])

    def _query(self, text: Any) -> TokenizedInputs:
        return self._tokens([(self._config.query_instruction or "") + checked_text(text)])

    def _tokens(self, texts: list[str]) -> TokenizedInputs:
        size = self._config.batch_size
        if size is not None and len(texts) != size:
            raise Error(f"the number of texts must be batch_size, {size}, not {len(texts)}")
        return self._encode(texts)

    def _encode(self, texts: list[str]) -> TokenizedInputs:
        config = self._config
        tokens = self._tokenizer.encode(
            texts,
            pad_to_max_length=bool(config.pad_to_max_length),
            max_length=config.max_length,
            padding_side=config.padding_side,
            truncation=True,
        )
        return TokenizedInputs(tokens.input_ids, tokens.attention_mask)  # all tokens are of type 0


def _fix_shapes(model: Model, config: TextEmbeddingPipeline.Config) -> None:
    """Set the number of texts, and the number of tokens if all texts are padded to it, in place."""
    batch = -1 if config.batch_size is None else config.batch_size
    length = config.max_length if config.max_length is not None and config.pad_to_max_length else -1
    if (batch, length) != (-1, -1):
        texts = [i for i, port in enumerate(model.inputs) if port.partial_shape.rank == 2]
        model.reshape({index: PartialShape([batch, length]) for index in texts})


def _add_pooling(model: Model, pooling: enums.PoolingType, normalize: bool, pads_left: bool) -> None:
    """Replace the hidden states [batch, length, width] of a model by a vector of each text [batch, width], in place.

    ``pads_left`` says on which side padding is. Raises: Error for hidden states of another shape.
    """
    hidden = output_value(model, find_output(model, "last_hidden_state"))
    mask = layer(Convert(destination_type=Type.i64), find_input(model, "attention_mask"))
    shape = hidden.partial_shape
    if shape.rank.is_static and len(shape) != 3:
        raise Error(f"last_hidden_state has the shape [batch, length, width], not {shape}")
    if pooling is enums.PoolingType.MEAN:
        vectors = _mean(hidden, mask)
    elif pooling is enums.PoolingType.CLS:
        vectors = layer(Gather8(), hidden, 0, 1)
    elif pads_left:
        vectors = layer(Gather8(), hidden, -1, 1)
    else:
        last = layer(Subtract(), layer(ReduceSum(), mask, 1), 1)
        vectors = layer(Gather8(batch_dims=1), hidden, last, 1)
    replace_outputs(model, layer(NormalizeL2(eps=EPSILON, eps_mode="max"), vectors, [1]) if normalize else vectors)


def _mean(hidden: Output, mask: Output) -> Output:
    """Return the mean [batch, width] of the hidden states of tokens that are no padding."""
    weights = layer(Unsqueeze(), layer(Convert(destination_type=Type.f32), mask), -1)
    total = layer(ReduceSum(), layer(Multiply(), hidden, weights), 1)
    count = layer(Maximum(), layer(ReduceSum(keep_dims=True), mask, 1), 1)
    return layer(Divide(), total, layer(Convert(destination_type=Type.f32), count))
