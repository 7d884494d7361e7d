"""Choice of the next token on the device of a decoder, so that the logits stay there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.generation.sampling import NO_TOKEN, Number, Rule, SampleToken, TokenCounts
from ovgpu.ops.infrastructure.graph import Constant, Parameter, Result
from ovgpu.ops.movement.broadcast import Broadcast3
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Concat
from ovgpu.ops.shape.shape import ShapeOf3
from ovgpu.types import Dimension, PartialShape, Type

Array = np.ndarray[Any, Any]
INPUTS = {"sampling_rules": Type.f64, "sampling_numbers": Type.i64, "biased_tokens": Type.i64, "biases": Type.f32}
"""Inputs that `add_sampling` adds, [batch, n]: `Rule` and `Number` name the columns of the first two."""

HISTORY = {"prompt_tokens": Type.i64, "generated_tokens": Type.i64}
"""Inputs that `add_sampling` adds for penalties, [batch, n]: the tokens of each text so far; -1 stands for none."""

MAX_INTEGER = 1 << 63
MAX_BIAS = float(np.finfo(np.float32).max)
MAX_SEED = (1 << 64) - 1
OUTPUT = "next_token"
LOG_PROBABILITIES = "log_probabilities"
GREATEST = np.float32(2**32 - 2**8)  # f32 below 2**32
WORDS = 64  # random words that are made at a time
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True)
class Sampling:
    """Rules for the next token: the most likely one, or with ``sample`` a random one that the other rules allow.

    They apply in this order, as in openvino_genai: ``logit_bias`` (numbers added to the logits of tokens, -inf excludes
    one), repetition, presence and frequency penalty, top-k, temperature, min-p, top-p. Neutral values are 0 for
    ``top_k``, ``min_p`` and the last two penalties, and 1 for the others. The log probability of a token is that among
    the tokens that the rules kept; with ``by_logits``, that by the logits alone. Raises: ValueError for a value out of
    range.
    """

    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    by_logits: bool = False

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
        """True if the rules need the tokens of the text, see `HISTORY`."""
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
    """Replace an output of logits [batch, length, vocabulary] in place by the next tokens [batch], i32.

    ``logits`` is its index. The model gets the inputs `INPUTS`, and with ``penalties`` also `HISTORY`, whose values a
    `Sampler` has. Without, the three penalties have no effect. The output after that of the tokens has their log
    probabilities [batch], f32, see `SampleToken`. Return the index of the tokens among the outputs.

    Raises: Error for logits of another shape, and, if there are penalties, for a vocabulary of unknown size.
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
    counts = None
    if penalties:
        history = [_parameter(name, kind, [batch, -1]) for name, kind in HISTORY.items()]
        counts = _token_counts(vocabulary, numbers, *(node.ports[0] for node in history))
        inputs += history
    tokens, logs = Node(SampleToken(), [source, rules, numbers, counts, *biases], 2, name=OUTPUT).ports
    tokens.set_names({OUTPUT})
    logs.set_names({LOG_PROBABILITIES})
    model.remove_result(result)
    model.add_parameters(inputs)
    model.add_results([Node(Result(), [port], name=f"{port.get_any_name()}/result") for port in (tokens, logs)])
    model.validate_nodes_and_infer_types()
    return len(model.results) - 2


def _token_counts(vocabulary: Dimension, numbers: Output, prompt: Output, generated: Output) -> Output:
    """Return the counts [batch, vocabulary] of the tokens of prompts and of generated ones, both [batch, n].

    They are computed anew in each inference. As a state, they would keep a decoder out of batches of sequences, which
    have no other states beside KV caches.
    """
    if vocabulary.is_dynamic:
        raise Error("penalties need logits with a vocabulary of known size")
    shape = Node(ShapeOf3(), [numbers]).ports[0]
    rows = Node(Gather(), [shape, _constant([0]), _constant([0])]).ports[0]
    target = Node(Concat(axis=0), [rows, _constant([vocabulary.get_length()])]).ports[0]
    zeros = Node(Broadcast3(), [_constant(0, np.int32), target]).ports[0]
    counts = Node(TokenCounts(), [zeros, prompt, numbers], name="prompt_counts").ports[0]
    flag = _constant([[int(column == Number.GENERATED) for column in Number]])
    own_numbers = Node(Add(), [numbers, flag]).ports[0]
    return Node(TokenCounts(), [counts, generated, own_numbers], name="token_counts").ports[0]


def _parameter(name: str, kind: Type, shape: list[Any]) -> Node:
    node = Node(Parameter(element_type=kind, shape=PartialShape(shape)), [], name=name)
    node.ports[0].set_names({name})
    return node


def _constant(value: Any, dtype: Any = np.int64) -> Output:
    array = np.array(value, dtype)
    return Node(Constant(element_type=Type.of(array.dtype), value=array), []).ports[0]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sampling_of(config: GenerationConfig) -> Sampling:
    """Return the rules for the next token of a configuration that is valid."""
    others = {name: getattr(config, name) for name in PENALTIES} | {"by_logits": config.logprobs > 0}
    if not config.do_sample:
        return Sampling(**others)
    top_k = config.top_k if config.top_k < MAX_INTEGER else 0
    return Sampling(True, config.temperature, top_k, config.top_p, config.min_p, **others)


def random_numbers(seed: int) -> Iterator[int]:
    """Return random numbers of 32 bits without end, which the texts of a prompt take in turn.

    They are those of openvino_genai, multiplied by 2**32: std::uniform_real_distribution<float> rounds words of
    std::mt19937 to f32. Raises: ValueError for a seed that is no integer of 64 bits.
    """
    if not (_is_number(seed) and isinstance(seed, int) and 0 <= seed <= MAX_SEED):
        raise ValueError(f"seed must be an integer from 0 to {MAX_SEED}, not {seed!r}")
    return _rounded_words(seed & 0xFFFFFFFF)  # the seed of std::mt19937 has 32 bits


def _rounded_words(seed: int) -> Iterator[int]:
    state = np.random.RandomState(seed)  # MT19937
    while True:
        words = state.randint(0, 1 << 32, WORDS, np.uint32).astype(np.float32)
        yield from np.minimum(words, GREATEST).astype(np.int64).tolist()


class Sampler:
    """Values of the inputs that `add_sampling` adds, for one text."""

    def __init__(
        self,
        ports: Sequence[Output],
        sampling: Sampling,
        numbers: Iterator[int] | None = None,
        prompt: Sequence[int] = (),
        longest: int = 0,
    ) -> None:
        """``ports`` are the inputs of the compiled model; without, only `choose` is for use. Each token that is drawn
        takes one of ``numbers``; greedy search needs none. ``prompt`` has the tokens for the repetition penalty. Texts
        that share a batch have the same ``longest``, which is at least the length of their prompts.
        """
        index_of = {name: i for i, port in enumerate(ports) for name in port.get_names()}
        self._indices = [index_of[name] for name in INPUTS if name in index_of]
        self._history = [index_of[name] for name in HISTORY if name in index_of]
        self._rules = np.zeros((1, len(Rule)))
        self._rules[0, Rule.TEMPERATURE] = sampling.temperature if sampling.sample else 0
        self._rules[0, Rule.TOP_P] = sampling.top_p
        self._rules[0, Rule.MIN_P] = sampling.min_p
        self._rules[0, Rule.REPETITION_PENALTY] = sampling.repetition_penalty
        self._rules[0, Rule.PRESENCE_PENALTY] = sampling.presence_penalty
        self._rules[0, Rule.FREQUENCY_PENALTY] = sampling.frequency_penalty
        self._numbers = np.zeros((1, len(Number)), np.int64)
        self._numbers[0, Number.TOP_K] = sampling.top_k
        self._numbers[0, Number.BY_LOGITS] = sampling.by_logits
        self._random = numbers if sampling.sample else None
        self._drawn = 0  # tokens that have their number
        self._bias, self._penalises = sampling.logit_bias, sampling.penalises
        self._biases = _arrays(self._bias)
        self._every: Array | None = None  # all tokens
        self._prompt = _padded(prompt, max(longest, len(prompt)))
        self._generated = _padded((), 0)

    def next(
        self,
        generated: Sequence[int] = (),
        banned: Iterable[int] = (),
        allowed: Array | None = None,
        chooses: bool = True,
    ) -> dict[int, Array]:
        """Return the arrays by input index for the inference after some generated tokens.

        Tokens in ``banned``, and those that are not in ``allowed``, bool [vocabulary], are not chosen. Without
        ``chooses``, the inference's token is of no use, and takes no random number.
        """
        arrays = dict(zip(self._indices, self._values(len(generated), banned, allowed, chooses)))
        if self._history:
            arrays |= zip(self._history, self._tokens(generated))
        return arrays

    def choose(
        self, logits: Array, generated: Sequence[int], banned: Iterable[int] = (), allowed: Array | None = None
    ) -> tuple[int, float]:
        """Return the token that logits [vocabulary] give after some generated tokens, and its log probability.

        The token is that of a model with `add_sampling`. Raises: Error if the logits are not numbers.
        """
        rules, numbers, *biases = self._values(len(generated), banned, allowed)
        counts = None
        if self._penalises:
            counts = np.zeros((1, len(logits)), np.int32)
            for tokens, flag in zip(self._tokens(generated), (0, 1)):
                own_numbers = numbers.copy()
                own_numbers[0, Number.GENERATED] = flag
                (counts,) = TokenCounts().evaluate(NUMPY, counts, tokens, own_numbers)
        tokens, logs = SampleToken().evaluate(NUMPY, logits[None, None], rules, numbers, counts, *biases)
        return checked_token(tokens), float(logs[0])

    def _values(
        self, generated: int, banned: Iterable[int], allowed: Array | None, chooses: bool = True
    ) -> tuple[Array, ...]:
        """Return the arrays of `INPUTS` for the token after so many generated ones. It keeps its random number."""
        if self._random is not None and chooses and generated >= self._drawn:
            self._numbers[0, Number.RANDOM] = next(self._random)
            self._drawn = generated + 1
        if allowed is not None:  # a bias for every token, so that the shapes stay the same
            every = np.where(allowed, np.float32(0), np.float32(-inf))
            for token, bias in {**self._bias, **dict.fromkeys(banned, -inf)}.items():
                every[token : token + 1] += bias  # none for a token outside the vocabulary
            if self._every is None:
                self._every = np.arange(len(every))[None]
            return self._rules, self._numbers, self._every, every[None]
        biases = _arrays({**self._bias, **dict.fromkeys(banned, -inf)}) if banned else self._biases
        return self._rules, self._numbers, *biases

    def _tokens(self, generated: Sequence[int]) -> tuple[Array, Array]:
        """Return the arrays of `HISTORY`."""
        if len(generated) > self._generated.shape[1]:
            self._generated = _padded(generated, len(generated))
        self._generated[0, : len(generated)] = generated
        return self._prompt, self._generated


def _padded(tokens: Sequence[int], count: int) -> Array:
    """Return tokens [1, capacity] with -1 behind them. The capacity for ``count`` tokens is a power of two, so that few
    shapes occur."""
    array = np.full((1, max(64, 1 << (count - 1).bit_length())), -1, np.int64)
    array[0, : len(tokens)] = tokens
    return array


def _arrays(bias: Mapping[int, float]) -> tuple[Array, Array]:
    """Return tokens and biases [1, n]."""
    tokens, biases = np.array([*bias], np.int64), np.array([*bias.values()], np.float32)
    return tokens.reshape(1, -1), biases.reshape(1, -1)


def checked_token(tokens: Array) -> int:
    """Return the token of one text. Raises Error if the logits are not numbers."""
    token = int(tokens[0])
    if token == NO_TOKEN:
        raise Error("the logits have NaN, or are all -inf: the model, or its computation on this device, is faulty")
    return token
