"""Choice of the next token on the device of a decoder, so that the logits stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.model import Model, Node, Output
from ovgpu.ops.generation.sampling import NO_TOKEN, Number, Rule, SampleToken, TokenCounts
from ovgpu.ops.infrastructure.graph import Constant, Parameter, Result
from ovgpu.ops.infrastructure.state import Assign6, ReadValue6
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.types import Dimension, PartialShape, Type

Array = np.ndarray[Any, Any]
INPUTS = {"sampling_rules": Type.f64, "sampling_numbers": Type.i64, "biased_tokens": Type.i64, "biases": Type.f32}
"""Inputs that `add_sampling` adds, [batch, n]: `Rule` and `Number` name the columns of the first two."""

MAX_INTEGER = 1 << 63
MAX_BIAS = float(np.finfo(np.float32).max)
OUTPUT = "next_token"
COUNTS = "token_counts"  # variable with the counts of `TokenCounts`


@dataclass(frozen=True)
class Sampling:
    """Rules for the next token: the most likely one, or with ``sample`` a random one that the other rules allow.

    They apply in this order, as in openvino_genai: ``logit_bias`` (numbers added to the logits of tokens, -inf excludes
    one), repetition, presence and frequency penalty, top-k, temperature, min-p, top-p. Neutral values are 0 for
    ``top_k``, ``min_p`` and the last two penalties, and 1 for the others. Raises: ValueError for a value out of range.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, holds, range_ in (
            ("temperature", lambda x: 0 < x < inf, "a number above 0"),
            ("top_k", lambda x: isinstance(x, int) and 0 <= x < MAX_INTEGER, "an integer from 0 on"),
            ("top_p", lambda x: 0 <= x <= 1, "a number from 0 to 1"),
            ("min_p", lambda x: 0 <= x < 1, "a number from 0 to below 1"),
            ("repetition_penalty", lambda x: 0 < x < inf, "a number above 0"),
            ("presence_penalty", isfinite, "a finite number"),
            ("frequency_penalty", isfinite, "a finite number"),
        ):
            value = getattr(self, name)
            if not (_is_number(value) and holds(value)):
                raise ValueError(f"{name} must be {range_}, not {value!r}")
        for token, bias in self.logit_bias.items():
            if not (_is_number(token) and isinstance(token, int) and 0 <= token < MAX_INTEGER):
                raise ValueError(f"logit_bias has the token {token!r}, which is no integer from 0 on")
            if not (_is_number(bias) and -inf <= bias <= MAX_BIAS):
                raise ValueError(f"the logit bias of token {token} must be a number or -inf, not {bias!r}")

    @property
    def penalises(self) -> bool:
        """True if the rules need the tokens of the text, see `add_sampling`."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    def __str__(self) -> str:
        rules = [f"repetition penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1 else []
        rules += [f"presence penalty {self.presence_penalty:g}"] if self.presence_penalty else []
        rules += [f"frequency penalty {self.frequency_penalty:g}"] if self.frequency_penalty else []
        if self.sample:
            rules += [f"top-k {self.top_k}"] if self.top_k else []
            rules += [f"temperature {self.temperature:g}"]
            rules += [f"min-p {self.min_p:g}"] if self.min_p else []
            rules += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        return ", ".join(["sampled" if self.sample else "greedy", *rules])


def add_sampling(model: Model, logits: int, penalties: bool) -> int:
    """Replace an output of logits [batch, length, vocabulary] in place by the next tokens [batch], i64.

    ``logits`` is its index. The model gets the inputs `INPUTS`, whose values a `Sampler` has. With ``penalties``, it
    gets a variable with the counts of tokens, which it takes from its input input_ids; without, the three penalties
    have no effect. Return the index of the tokens among the outputs.

    Raises: Error for logits of another shape, and, if there are penalties, for a model without input_ids or with a
    vocabulary of unknown size.
    """
    result = model.results[logits]
    (source,) = result.sources
    assert source is not None
    if source.partial_shape.rank.is_dynamic or len(source.partial_shape) != 3:
        raise Error(f"logits have the shape [batch, length, vocabulary], not {source.partial_shape}")
    batch, _, vocabulary = source.partial_shape
    columns = (len(Rule), len(Number), -1, -1)
    inputs = [_parameter(name, kind, [batch, n]) for (name, kind), n in zip(INPUTS.items(), columns)]
    rules, numbers, *biases = (node.ports[0] for node in inputs)
    counts, sinks = _token_counts(model, batch, vocabulary, numbers) if penalties else (None, [])
    tokens = Node(SampleToken(), [source, rules, numbers, counts, *biases], name=OUTPUT).ports[0]
    tokens.set_names({OUTPUT})
    model.remove_result(result)
    model.add_parameters(inputs)
    model.add_sinks(sinks)
    model.add_results([Node(Result(), [tokens], name=f"{OUTPUT}/result")])
    model.validate_nodes_and_infer_types()
    return len(model.results) - 1


def _token_counts(model: Model, batch: Dimension, vocabulary: Dimension, numbers: Output) -> tuple[Output, list[Node]]:
    """Return the counts of all tokens up to this inference, and the Assign that keeps them."""
    ids = next((port for port in model.inputs if "input_ids" in port.get_names()), None)
    if ids is None or vocabulary.is_dynamic:
        raise Error("penalties need a model with the input input_ids, and a vocabulary of known size")
    shape = PartialShape([batch, vocabulary])
    initial = [] if shape.is_static else [_zeros(ids, vocabulary)]
    read = Node(ReadValue6(variable_id=COUNTS, variable_type=Type.i32, variable_shape=shape), initial, name=COUNTS)
    counts = Node(TokenCounts(), [read.ports[0], ids, numbers], name=f"{COUNTS}/new").ports[0]
    return counts, [Node(Assign6(variable_id=COUNTS), [counts], name=f"{COUNTS}/assign")]


def _zeros(ids: Output, vocabulary: Dimension) -> Output:
    """Return zeros [batch, vocabulary], i32."""
    shape = Node(ShapeOf3(), [ids]).ports[0]
    rows = Node(Gather(), [shape, _constant([0]), _constant([0])]).ports[0]
    target = Node(Concat(axis=0), [rows, _constant([vocabulary.get_length()])]).ports[0]
    return Node(Broadcast3(), [_constant(0, np.int32), target]).ports[0]


def _parameter(name: str, kind: Type, shape: list[Any]) -> Node:
    node = Node(Parameter(element_type=kind, shape=PartialShape(shape)), [], name=name)
    node.ports[0].set_names({name})
    return node


def _constant(value: Any, dtype: Any = np.int64) -> Output:
    array = np.array(value, dtype)
    return Node(Constant(element_type=Type.of(array.dtype), value=array), []).ports[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_seed(seed: Any) -> None:
    """Raise ValueError for a seed that is no integer of 63 bits."""
    if not (_is_number(seed) and isinstance(seed, int) and 0 <= seed < MAX_INTEGER):
        raise ValueError(f"seed must be an integer from 0 to {MAX_INTEGER - 1}, not {seed!r}")


class Sampler:
    """Values of the inputs that `add_sampling` adds, for one text at a time."""

    def __init__(self, ports: Sequence[Output], sampling: Sampling, seed: int) -> None:
        """``ports`` are the inputs of the compiled model. Raises: ValueError for a seed out of range."""
        check_seed(seed)
        self._indices = [next(i for i, port in enumerate(ports) if name in port.get_names()) for name in INPUTS]
        rules = np.zeros((1, len(Rule)))
        rules[0, Rule.TEMPERATURE] = sampling.temperature if sampling.sample else 0
        rules[0, Rule.TOP_P] = sampling.top_p
        rules[0, Rule.MIN_P] = sampling.min_p
        rules[0, Rule.REPETITION_PENALTY] = sampling.repetition_penalty
        rules[0, Rule.PRESENCE_PENALTY] = sampling.presence_penalty
        rules[0, Rule.FREQUENCY_PENALTY] = sampling.frequency_penalty
        numbers = np.zeros((1, len(Number)), np.int64)
        numbers[0, Number.TOP_K], numbers[0, Number.SEED], numbers[0, Number.STEP] = sampling.top_k, seed, -1
        self._numbers = numbers
        bias = sampling.logit_bias
        self._arrays = (
            rules,
            numbers,
            np.array([[*bias]], np.int64).reshape(1, -1),
            np.array([[*bias.values()]], np.float32).reshape(1, -1),
        )

    def next(self, generated: bool) -> dict[int, Array]:
        """Return the arrays by input index for the next inference, which gets a generated token, or a prompt."""
        self._numbers[0, Number.GENERATED] = generated
        self._numbers[0, Number.STEP] += 1
        return dict(zip(self._indices, self._arrays))


def checked_token(tokens: Array) -> int:
    """Return the token of one text. Raises Error if the logits are not numbers."""
    token = int(tokens[0])
    if token == NO_TOKEN:
        raise Error("the logits have NaN, or are all -inf: the model, or its computation on this device, is faulty")
    return token
