"""Internal ops that choose the next token of a text: SampleToken, and TokenCounts, whose counts its penalties need.

Both are row-wise: each row of a batch is a text of its own, with rules and random numbers of its own.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import check_integers, check_reals
from ovgpu.ops.base.special import polynomial
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS, blocks, strides_of
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import same
from ovgpu.types import Type


class Rule(IntEnum):
    """Columns of ``rules``, f64. In brackets: the value without effect."""

    TEMPERATURE = 0  # (1) divides the logits; at 0, the most likely token is chosen, and only penalties apply
    TOP_P = 1  # (1) keeps the fewest most likely tokens whose probabilities add up to more than this
    MIN_P = 2  # (0) keeps tokens at least this times as likely as the most likely one
    REPETITION_PENALTY = 3  # (1) divides positive logits of earlier tokens, and multiplies negative ones
    PRESENCE_PENALTY = 4  # (0) is subtracted from logits of generated tokens, and added to negative ones
    FREQUENCY_PENALTY = 5  # (0) the same, times the number of times that the token was generated


class Number(IntEnum):
    """Columns of ``numbers``, i64."""

    TOP_K = 0  # keeps so many of the most likely tokens; 0 keeps all
    RANDOM = 1  # a random number of 32 bits
    GENERATED = 2  # whether the tokens that the model got were generated (1) or are a prompt (0)
    BY_LOGITS = 3  # whether the log probability is that by the logits alone (1), or among the tokens kept (0)


PROMPT = 1 << 30  # flag of a token in TokenCounts: it is in the prompt
NO_TOKEN = -1  # instead of a token, if the logits have NaN or all are -inf

# Weights of tokens. Their sums are whole numbers, so that any order of summation gives the same token.
LOG2_E = 1 / np.log(2)
LOWEST = -40.0  # tokens that are less likely than the most likely one by more than this power of two have no weight
WEIGHT_ONE = np.float32(2.0**40)  # weight of the most likely token
POWERS_OF_TWO = tuple(
    np.array(
        [1, 0.6931470632, 0.2402293086, 0.05548528209, 0.009675451554, 0.001246784581, 0.0002161291486], np.float32
    )
)  # of 2**x on [0, 1): a fit with relative error 2e-9, 1 at 0

# As in sampling.cu:
INDEX_BITS = 20  # of a token's index
TOP_K_IN_HEAP = 128  # the most tokens whose order is that of a heap
TILE = 2048  # tokens of a block
TILE_THREADS = 256
DRAW_THREADS = 1024
BINS = 1281  # of the histogram of weights


@internal_op
class TokenCounts(Op):
    """``counts [b, v] i32, tokens [b, n], numbers [b, 4] i64 -> counts [b, v]``: how often each token was generated.

    Tokens of a prompt set the flag `PROMPT` instead. A prompt after generated tokens begins a new answer: all tokens
    until then belong to the prompt of that. Tokens outside the vocabulary are left out.
    """

    name: ClassVar[str] = "TokenCounts"
    exact = True
    layout = "dense"

    def infer_specs(self, counts: Spec, tokens: Spec, numbers: Spec) -> tuple[Spec, ...]:
        check_integers(tokens, "tokens", ranks=(2,))
        _check("counts", counts, Type.i32, counts.shape and counts.shape[0])
        _check("tokens", tokens, tokens.type, counts.shape and counts.shape[0])
        _check("numbers", numbers, Type.i64, counts.shape and counts.shape[0], len(Number))
        return (Spec(Type.i32, counts.shape),)

    def evaluate(self, xp: Adapter, counts: Array, tokens: Array, numbers: Array) -> tuple[Array, ...]:
        counts = xp.array(counts)
        for row, generated in enumerate(xp.asnumpy(numbers)[:, Number.GENERATED].tolist()):
            known = tokens[row][(tokens[row] >= 0) & (tokens[row] < counts.shape[1])].astype(np.int64)
            if generated:
                counts[row] += xp.bincount(known, minlength=counts.shape[1]).astype(np.int32)
            else:
                counts[row] = xp.where(counts[row] != 0, np.int32(PROMPT), np.int32(0))
                counts[row, known] = np.int32(PROMPT)
        return (counts,)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        counts, tokens, numbers = inputs
        rows, vocabulary = counts.shape
        if not counts.size:
            return
        k.kernel(
            "sampling.cu",
            "start_counts",
            (rows, *blocks(vocabulary)),
            (THREADS,),
            (counts, numbers, outputs[0], np.int32(vocabulary)),
        )
        if tokens.size:
            k.kernel(
                "sampling.cu",
                f"count_tokens<{k.c_type(tokens.dtype)}>",
                (rows, *blocks(tokens.shape[1])),
                (THREADS,),
                (tokens, numbers, outputs[0], np.int32(tokens.shape[1]), np.int32(vocabulary)),
            )


@internal_op
class SampleToken(Op):
    """Choice of the token that follows the last position of each row.

    ``logits [b, t, v], rules [b, 6] f64, numbers [b, 4] i64, counts [b, v] i32, biased tokens [b, n] i64, biases [b, n]
    f32 -> tokens [b] i32, log_probabilities [b] f32``; counts are those of `TokenCounts`, and may be absent. `Rule`
    and `Number` name the columns. The log probability is that of the token among those that the rules kept, 0 for the
    most likely token at temperature 0, or that of the token by its logits alone.

    Biases are added to the logits of their tokens, which are distinct; negative ones are left out. The rules then apply
    in the order of openvino_genai: repetition, presence and frequency penalty, top-k, temperature, min-p, top-p, whose
    probabilities are those of the top k. Of equal tokens, the first is the most likely. The result is `NO_TOKEN` if the
    logits have NaN.

    The tokens that are left share the interval [0, 1) by their probabilities, and the random number, divided by 2**32,
    is in the part of the drawn one. Their order is that of openvino_genai, so that the same random numbers give the
    same tokens: the most likely first with top-p, else that of the vocabulary, or with top-k that of
    `heap_of_greatest`, for up to `TOP_K_IN_HEAP` tokens, which a card puts there one by one.
    """

    name: ClassVar[str] = "SampleToken"

    def infer_specs(
        self, logits: Spec, rules: Spec, numbers: Spec, counts: Spec | None, biased: Spec, biases: Spec
    ) -> tuple[Spec, ...]:
        check_reals(logits, "logits", ranks=(3,))
        rows = logits.shape and logits.shape[0]
        _check("rules", rules, Type.f64, rows, len(Rule))
        _check("numbers", numbers, Type.i64, rows, len(Number))
        _check("biased tokens", biased, Type.i64, rows)
        _check("biases", biases, Type.f32, rows, biased.shape and biased.shape[1])
        if counts is not None:
            _check("counts", counts, Type.i32, rows, logits.shape and logits.shape[2])
        shape = None if rows is None else (rows,)
        return Spec(Type.i32, shape), Spec(Type.f32, shape)

    def evaluate(
        self, xp: Adapter, logits: Array, rules: Array, numbers: Array, counts: Any, biased: Array, biases: Array
    ) -> tuple[Array, ...]:
        if not logits.shape[1] * logits.shape[2]:
            raise OpError(f"there are no logits: their shape is {list(logits.shape)}")
        own_rules, own_numbers = xp.asnumpy(rules), xp.asnumpy(numbers).tolist()
        tokens, logs = [], []
        for row, bias in enumerate(zip(biased, biases)):
            own_counts = None if counts is None else counts[row]
            scores = self._scores(xp, logits[row, -1], own_rules[row], own_counts, *bias)
            token, log = self._choose(xp, scores, own_rules[row], own_numbers[row])
            if token != NO_TOKEN and own_numbers[row][Number.BY_LOGITS]:
                log = log_probability(xp, logits[row, -1], token)
            tokens.append(token)
            logs.append(log)
        return xp.asarray(np.array(tokens, np.int32)), xp.asarray(np.array(logs, np.float32))

    def _scores(self, xp: Adapter, logits: Array, rules: Any, counts: Any, biased: Array, biases: Array) -> Array:
        """Return the logits [v] of one row, f32, with biases and penalties."""
        scores = logits.astype(np.float32)
        known = (biased >= 0) & (biased < len(scores))
        scores[biased[known]] += biases[known]
        if counts is not None:
            penalise(xp, scores, counts, rules)
        return scores

    def _choose(self, xp: Adapter, scores: Array, rules: Any, numbers: list[int]) -> tuple[int, float]:
        """Return the token of one row, and its log probability among the tokens that the rules keep."""
        best = int(scores.argmax())  # of NaN, if there is one
        if not float(scores[best]) > -np.inf:
            return NO_TOKEN, np.nan
        if rules[Rule.TEMPERATURE] == 0:
            return best, 0.0
        weights = relative_weights(xp, scores, scores[best], rules[Rule.TEMPERATURE])
        top_k = numbers[Number.TOP_K] if numbers[Number.TOP_K] < len(scores) else 0
        if rules[Rule.TOP_P] < 1 or top_k > TOP_K_IN_HEAP:
            tokens, sums, kept = self._most_likely_first(xp, weights, top_k, rules)
        else:
            tokens = heap_of_greatest(xp, scores, top_k) if top_k else xp.arange(len(scores))
            weights = weights[tokens]
            sums = _sums(xp, xp.where(weights >= np.float32(rules[Rule.MIN_P]), weights, np.float32(0)))
            kept = int(sums[-1])
        drawn = np.uint64((numbers[Number.RANDOM] & 0xFFFFFFFF) * kept >> 32)
        position = int((sums <= drawn).sum())
        share = int(sums[position]) - (int(sums[position - 1]) if position else 0)
        return int(tokens[position]), float(np.log(share / kept))

    def _most_likely_first(self, xp: Adapter, weights: Array, top_k: int, rules: Any) -> tuple[Array, Array, int]:
        """Return the top tokens in order, the sums of their weights, and the sum of those that the rules keep."""
        tokens = xp.flatnonzero(weights)
        keys = weights[tokens].view(np.uint32).astype(np.uint64) << np.uint64(32) | (
            np.uint64(2**32 - 1) - tokens.astype(np.uint64)
        )
        count = min(top_k or len(keys), len(keys))
        keys = xp.flip(xp.sort(xp.partition(keys, len(keys) - count)[len(keys) - count :]), 0)
        weights = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
        sums = _sums(xp, weights)
        likely = max(int((weights >= np.float32(rules[Rule.MIN_P])).sum()), 1)
        kept = int(sums[likely - 1])
        if rules[Rule.TOP_P] < 1:
            limit = np.uint64(np.float64(int(sums[-1])) * rules[Rule.TOP_P])
            kept = min(kept, int(sums[min(int((sums <= limit).sum()), count - 1)]))
        return np.uint64(2**32 - 1) - (keys & np.uint64(2**32 - 1)), sums, kept

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        logits, rules, numbers, counts, biased, biases = inputs
        rows, length, vocabulary = logits.shape
        if not is_plain(logits.dtype) or vocabulary > 2**INDEX_BITS or not length * vocabulary:
            return NotImplemented
        if not rows:
            return None
        last = logits[:, -1]
        tiles, size = -(-vocabulary // TILE), np.int32(vocabulary)
        scores = k.scratch((rows, vocabulary), np.dtype(np.float32))
        best = k.scratch((rows, tiles), np.dtype(np.uint64))
        sums = k.scratch((rows, tiles, 2), np.dtype(np.float32))
        bin_counts = k.scratch((rows, BINS), np.dtype(np.uint32))
        bin_sums = k.scratch((rows, BINS), np.dtype(np.uint64))
        k.kernel(
            "sampling.cu",
            f"score_tokens<{k.c_type(logits.dtype)}, {str(counts is not None).lower()}>",
            (rows, tiles),
            (TILE_THREADS,),
            (
                last,
                *map(np.int64, strides_of(last)),
                rules,
                counts,
                biased,
                biases,
                np.int32(biased.shape[1]),
                scores,
                best,
                sums,
                bin_counts,
                bin_sums,
                size,
            ),
        )
        k.kernel(
            "sampling.cu",
            "weigh_tokens",
            (rows, tiles),
            (TILE_THREADS,),
            (scores, rules, numbers, best, bin_counts, bin_sums, size),
        )
        k.kernel(
            "sampling.cu",
            f"draw_token<{k.c_type(logits.dtype)}>",
            (rows,),
            (DRAW_THREADS,),
            (
                last,
                *map(np.int64, strides_of(last)),
                scores,
                rules,
                numbers,
                best,
                sums,
                np.int32(tiles),
                bin_counts,
                bin_sums,
                *outputs,
                size,
            ),
        )
        return None


def _check(what: str, spec: Spec, dtype: Type, rows: Any, columns: Any = None) -> None:
    """Raise OpError unless a tensor is [rows, columns] of a type, as far as known. None is any number."""
    if spec.type not in (Type.dynamic, dtype):
        raise OpError(f"{what} have type {spec.type.get_type_name()}, not {dtype.get_type_name()}")
    if spec.shape is None:
        return
    if len(spec.shape) != 2:
        raise OpError(f"{what} have rank {len(spec.shape)}, not 2")
    for extent, wanted, name in zip(spec.shape, (rows, columns), ("rows", "columns")):
        if wanted is not None:
            same(extent, wanted, f"{what} have {{0}} {name}, not {{1}}")


def penalise(xp: Adapter, scores: Array, counts: Array, rules: Any) -> None:
    """Apply the three penalties to the scores [v] of a row, in place. Each one rounds the scores to f32."""
    seen, generated = xp.flatnonzero(counts), xp.flatnonzero(counts & (PROMPT - 1))
    old, repetition = scores[seen].astype(np.float64), rules[Rule.REPETITION_PENALTY]
    scores[seen] = xp.where(old < 0, old * repetition, old / repetition).astype(np.float32)
    times = counts[generated] & (PROMPT - 1)
    for penalty in (rules[Rule.PRESENCE_PENALTY], rules[Rule.FREQUENCY_PENALTY] * times):
        old = scores[generated].astype(np.float64)  # as in openvino_genai, the penalty raises negative ones
        scores[generated] = xp.where(old < 0, old + penalty, old - penalty).astype(np.float32)


def relative_weights(xp: Adapter, scores: Array, best: Any, temperature: float) -> Array:
    """Return ``exp((scores - best) / temperature)``, f32, and 0 where it is less than 2**`LOWEST`.

    It is computed by single operations of f32, so that a card gets the same bits.
    """
    factor = np.float32(min(LOG2_E / temperature, float(np.finfo(np.float32).max)))
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = xp.where(scores == best, np.float32(0), scores - best) * factor
    has_weight = exponent >= np.float32(LOWEST)  # not for NaN: -inf times 0
    exponent = xp.where(has_weight, exponent, np.float32(LOWEST))
    whole = xp.floor(exponent)
    power = polynomial(exponent - whole, POWERS_OF_TWO)
    scaled = (power.view(np.int32) + (whole.astype(np.int32) << 23)).view(np.float32)
    return xp.where(has_weight, scaled, np.float32(0))


def log_probability(xp: Adapter, logits: Array, token: int) -> float:
    """Return the log probability of a token by logits [v]; NaN if one is infinite."""
    values = logits.astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):
        shifted = values - values.max()
        return float(shifted[token]) - float(np.log(float(xp.exp(shifted).sum())))


def heap_of_greatest(xp: Adapter, scores: Array, count: int) -> Array:
    """Return the tokens with the greatest of scores [v], f32, in the order of a heap whose root is the least.

    The heap begins with the first ``count`` tokens. For each later one that is greater than the root, the root is
    removed, and the token inserted. openvino_genai does this by std::make_heap, std::pop_heap and std::push_heap.
    """
    values = xp.asnumpy(scores)
    heap = [_Score.of(values, token) for token in range(count)]
    heapify(heap)
    begin = count
    while begin < len(values):
        for token in (begin + np.flatnonzero(values[begin : 2 * begin] > heap[0])).tolist():
            if values[token] > heap[0]:
                heappop(heap)
                heappush(heap, _Score.of(values, token))
        begin *= 2
    return xp.asarray(np.array([score.token for score in heap]))


class _Score(float):
    """Score of a token. Only scores are compared."""

    token: int

    @staticmethod
    def of(values: Array, token: int) -> _Score:
        score = _Score(values[token])
        score.token = token
        return score


def _sums(xp: Adapter, weights: Array) -> Array:
    """Return the sums of the first weights [n], u64."""
    return xp.cumsum((weights * WEIGHT_ONE).astype(np.uint64), dtype=np.uint64)
