"""Rules for the next token of a transcription: tokens that are suppressed, and times in pairs that do not decrease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.whisper.config import WhisperGenerationConfig
from ovgpu.model import Model, Node, Output
from ovgpu.ops.activation.softmax import LogSoftmax
from ovgpu.ops.arithmetic.arithmetic import Add, Exp, Subtract
from ovgpu.ops.comparison import Greater, GreaterEqual, Less, LogicalAnd, Select
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.movement import Split
from ovgpu.ops.movement.scatter import ScatterUpdate
from ovgpu.ops.movement.slicing import Slice
from ovgpu.ops.reduction import ReduceMax, ReduceSum
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.types import PartialShape, Type

Array = np.ndarray[Any, Any]
SUPPRESSED = "suppressed_tokens"
LIMITS = "token_limits"
END = 2**31 - 1  # a bound that Slice reads as the end of the axis


@dataclass(frozen=True)
class TokenRules:
    """Rules for the tokens of a window, with times or without."""

    config: WhisperGenerationConfig
    vocabulary: int
    timestamps: bool

    @property
    def first_time(self) -> int:
        """The token of the time 0."""
        return self.config.no_timestamps_token_id + 1

    def suppressed(self, generated: Sequence[int]) -> Array:
        """Return the tokens [n], i64, that cannot follow those generated so far."""
        return self._suppressed[bool(generated)]

    @cached_property
    def _suppressed(self) -> tuple[Array, Array]:
        """The tokens that cannot be the first one, and those that cannot follow it."""
        config = self.config
        later = {*config.suppress_tokens, *([config.no_timestamps_token_id] if self.timestamps else ())}
        groups = [sorted(later | {*config.begin_suppress_tokens}), sorted(later)]
        first, other = (np.array([t for t in tokens if 0 <= t < self.vocabulary], np.int64) for tokens in groups)
        return first, other

    def limits(self, generated: Sequence[int]) -> list[int]:
        """Return four limits of the token that follows those generated so far.

        They are the first text token that may follow, the number of text tokens, which the times follow, and the range
        of times that may follow. Times come in pairs, the end of a chunk and the begin of the next, and do not
        decrease. At first, there is a single one.
        """
        if not self.timestamps:
            return [0, self.vocabulary, 0, 0]
        begin = self.first_time
        if not generated:
            return [begin, begin, begin, begin + min(self.config.max_initial_timestamp_index, self.vocabulary) + 1]
        is_time = [token >= begin for token in generated[-2:]]
        paired = is_time[-1] and is_time[0]  # a second time of a pair, or the first token of all
        text = self.config.eos_token_id if is_time[-1] and not paired else 0
        last = next((token for token in reversed(generated) if token >= begin), begin - 1)
        low = last if is_time[-1] and not paired else last + 1
        return [text, begin, low, low if paired else self.vocabulary]


@dataclass(frozen=True)
class LanguageRules(TokenRules):
    """Rules for the token of the language."""

    def suppressed(self, generated: Sequence[int]) -> Array:
        """Return all tokens but those of languages."""
        return np.setdiff1d(np.arange(self.vocabulary), [*self.config.lang_to_id.values()])


def add_rules(model: Model, logits: int, normalise: bool) -> None:
    """Restrict an output of logits [batch, length, vocabulary] in place to the tokens that may follow.

    ``logits`` is its index. It becomes [batch, 1, vocabulary] of the last position, with -inf for other tokens. The
    model gets the inputs `SUPPRESSED` [n] and `LIMITS` [batch, 1, 4], i64, with the values of `TokenRules`. If all
    times together are more likely than each text token, a time follows. With ``normalise``, the output has the log
    probabilities among all tokens.

    Raises: Error for logits of another shape, or a vocabulary of unknown size.
    """
    result = model.results[logits]
    (source,) = result.sources
    assert source is not None
    shape = source.partial_shape
    if shape.rank.is_dynamic or len(shape) != 3 or shape[2].is_dynamic:
        raise Error(f"logits have the shape [batch, length, vocabulary], of a known vocabulary, not {shape}")
    batch, _, vocabulary = shape
    size = vocabulary.get_length()
    suppressed, limits = _parameter(SUPPRESSED, [-1]), _parameter(LIMITS, [batch, 1, 4])
    bounds = [_constant([value]) for value in (-1, END, 1, 1)]  # start, stop, step, axis
    scores = _port(Slice(), source, *bounds)
    if normalise:
        scores = _port(LogSoftmax(axis=-1), scores)
    infinite = _constant(-np.inf, np.float32)
    updates = _port(Broadcast3(), infinite, _port(ShapeOf3(), suppressed.ports[0]))
    zeros = _constant(np.zeros(size), np.float32)
    scores = _port(Add(), scores, _port(ScatterUpdate(), zeros, suppressed.ports[0], updates, _constant(0)))

    tokens = _constant(np.arange(size).reshape(1, 1, -1))
    text, texts, low, high = Node(Split(num_splits=4), [limits.ports[0], _constant(2)], 4).ports
    is_text = _port(Less(), tokens, texts)
    in_range = _port(LogicalAnd(), _port(GreaterEqual(), tokens, low), _port(Less(), tokens, high))
    allowed = _port(Select(), is_text, _port(GreaterEqual(), tokens, text), in_range)
    scores = _port(Select(), allowed, scores, infinite)

    last = _constant([-1])
    top = _port(ReduceMax(keep_dims=True), scores, last)
    shares = _port(Exp(), _port(Subtract(), scores, top))
    time = _port(ReduceSum(keep_dims=True), _port(Select(), is_text, _constant(0, np.float32), shares), last)
    word = _port(ReduceMax(keep_dims=True), _port(Select(), is_text, shares, _constant(0, np.float32)), last)
    must = _port(LogicalAnd(), is_text, _port(Greater(), time, word))
    scores = _port(Select(), must, infinite, scores)
    result.sources[0] = scores
    model.add_parameters([suppressed, limits])
    model.changed()
    model.validate_nodes_and_infer_types()


def _port(op: Any, *sources: Output) -> Output:
    return Node(op, [*sources]).ports[0]


def _parameter(name: str, shape: list[Any]) -> Node:
    node = Node(Parameter(element_type=Type.i64, shape=PartialShape(shape)), [], name=name)
    node.ports[0].set_names({name})
    return node


def _constant(value: Any, dtype: Any = np.int64) -> Output:
    array = np.array(value, dtype)
    return Node(Constant(element_type=Type.of(array.dtype), value=array), []).ports[0]
