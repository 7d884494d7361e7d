"""Ops that draw random numbers: RandomUniform, RandomPoisson, Multinomial."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count as counting
from math import exp, lgamma, log, pi, prod
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import check_integers, integer, integers, length, unknowns
from ovgpu.ops.base.special import polynomial
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, unknown
from ovgpu.types import Type

MANTISSA_BITS = {Type.f64: 52, Type.f32: 23, Type.f16: 10, Type.bf16: 7}
BLOCKS_PER_ELEMENT = 256  # Philox blocks by which each element advances the counter, as in OpenVINO
REJECTION_RATE = 10  # Poisson rates from here on are sampled by rejection, smaller ones by multiplication
LOG_FACTORIALS = np.array([lgamma(n + 1) for n in range(32)])  # log(n!)

_state_lock = threading.Lock()  # the requests of a compiled model share the states, and may run at the same time


class Generating(Op):
    """Base of ops that draw 32-bit words from a generator: Philox 4x32-10 (Salmon et al. 2011), which continues from
    one inference to the next, or a Mersenne twister, which restarts in every inference."""

    global_seed: int = 0
    op_seed: int = 0
    alignment: Literal["tensorflow", "pytorch"] = "tensorflow"

    effect = True

    def rng_state(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the initial state [3], u64: index of the next block of words, key, and upper half of the counter."""
        key = self.global_seed if self.global_seed or self.op_seed else int.from_bytes(os.urandom(8), "little")
        return (np.array([0, key, self.op_seed], np.uint64),)


@op("RandomUniform", "opset8", "generation/random-uniform-8")
class RandomUniform(Generating):
    """``shape [n], low [], high [] -> [shape]``: uniform numbers in [low, high), of ``output_type``.

    The words come from Philox (alignment tensorflow), which continues from one inference to the next, or from a
    Mersenne twister (pytorch), which restarts in every inference. An i64 takes one word of 32 bits if its bounds fit,
    else two. As specified, f16 and f64 use words and rounding of their own; OpenVINO's plugin computes them in f32.
    Without seeds, every compiled model has a different sequence.

    >>> random_uniform([3], 5, 6, output_type="i64")
    [5, 5, 5]
    """

    output_type: Type

    host_inputs = (0,)

    def infer_specs(self, shape: Spec, low: Spec, high: Spec) -> tuple[Spec, ...]:
        dtype = self.output_type
        if dtype not in (*MANTISSA_BITS, Type.i32, Type.i64):
            raise OpError(f"output_type is {dtype.get_type_name()}, not f16, bf16, f32, f64, i32 or i64")
        _check_seeds(self)
        check_integers(shape, "the shape")
        for spec, what in ((low, "the lower bound"), (high, "the upper bound")):
            if not (spec.type.is_dynamic() or spec.type == dtype):
                raise OpError(f"{what} is {spec.type.get_type_name()}, output_type is {dtype.get_type_name()}")
            _check_single(spec, what)
        if low.constant is not None and high.constant is not None and not _element(low) < _element(high):
            raise OpError(f"there is no number from {_element(low)} on that is below {_element(high)}")
        extents = shape.ints()
        for extent in extents or ():
            if not isinstance(extent, Sym) and extent < 0:
                raise OpError(f"the shape has an extent of {extent}")
        return (Spec(dtype, unknowns(length(shape)) if extents is None else tuple(extents)),)

    def evaluate(self, xp: Adapter, shape: Array, low: Array, high: Array, state: Array) -> tuple[Array, ...]:
        extents = integers(shape)
        low, high = low.reshape(()), high.reshape(())
        wide = self.output_type == Type.f64 or (self.output_type == Type.i64 and self._is_wide(int(low), int(high)))
        count = prod(extents)
        words = self._words(xp, count, state)[: count * (1 + wide)].astype(np.uint64)
        if wide:
            first, second = words[0::2], words[1::2]
            if self.output_type == Type.i64 and self.alignment == "tensorflow":
                first, second = second, first
            words = first << np.uint64(32) | second
        return (self._between(xp, words, low, high).reshape(extents),)

    def _is_wide(self, low: int, high: int) -> bool:
        """Return whether integers between these bounds take two words."""
        if self.alignment == "tensorflow":
            return low < -(2**31) or high >= 2**31
        return low >= 2**32 or high >= 2**32

    def _words(self, xp: Adapter, count: int, state: Array) -> Array:
        """Return random words for ``count`` elements, two for each element of 64 bits."""
        needed = count * self.output_type.size // 4 if self.output_type.size > 4 else count
        if self.alignment == "pytorch":
            return xp.asarray(mersenne(int(state[1]), needed))
        return philox(
            xp, take_blocks(state, count) + xp.arange(-(-needed // 4), dtype=np.uint64), state[1:2], state[2:3]
        )

    def _between(self, xp: Adapter, words: Array, low: Array, high: Array) -> Array:
        if self.output_type.is_integral():
            span = (high - low).astype(f"u{high.itemsize}").astype(np.uint64)
            return low + (words % xp.maximum(span, np.uint64(1))).astype(low.dtype)
        digits = MANTISSA_BITS[self.output_type] + (self.alignment == "pytorch")
        span = (high - low).astype(self.output_type.storage).astype(low.dtype)
        wide = np.float64 if self.alignment == "tensorflow" else low.dtype.type  # f64 does not round the product
        part = (words & np.uint64(2**digits - 1)).astype(wide) * wide(0.5**digits)
        return (part * span + low).astype(low.dtype)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        (_, low, high, state), out = inputs, outputs[0]
        if not out.size:
            return
        c_type, size = k.c_type(out.dtype), np.int64(out.size)
        if self.alignment == "pytorch":
            words = self._words(NUMPY, out.size, state.get(stream=k.stream))
            drawn = k.scratch(words.shape, words.dtype)
            drawn.set(words, stream=k.stream)
            k.kernel(
                "random.cu", f"mersenne<{c_type}>", blocks(out.size, THREADS), (THREADS,), (drawn, low, high, out, size)
            )
            return
        first = k.scratch((1,), state.dtype)
        k.kernel("random.cu", "take", (1,), (1,), (state, first, np.uint64(out.size * BLOCKS_PER_ELEMENT)))
        elements_per_thread = 2 if out.itemsize == 8 else 4
        k.kernel(
            "random.cu",
            f"philox<{c_type}>",
            blocks(out.size, THREADS * elements_per_thread),
            (THREADS,),
            (state, first, low, high, out, size),
        )


def take_blocks(state: Any, count: int) -> Any:
    """Return the index [1] of the next block of words, and advance ``state`` by the blocks of ``count`` elements."""
    with _state_lock:
        first = state[:1].copy()
        state[:1] += np.uint64(count * BLOCKS_PER_ELEMENT)
    return first


def philox(xp: Adapter, block_index: Array, key: Array, counter: Array) -> Array:
    """Return the words of the Philox 4x32-10 blocks with these indices: four per block, u32."""
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    a, b = block_index & low, block_index >> half
    c, d = counter & low, counter >> half
    k, m = key & low, key >> half
    for _ in range(10):
        p, q = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (q >> half) ^ b ^ k, q & low, (p >> half) ^ d ^ m, p & low
        k, m = (k + np.uint64(0x9E3779B9)) & low, (m + np.uint64(0xBB67AE85)) & low
    return xp.stack([a, b, c, d], axis=1).reshape(-1).astype(np.uint32)


def mersenne(seed: int, count: int) -> np.ndarray[Any, Any]:
    """Return the first ``count`` words of MT19937 with this seed, u32."""
    return np.random.RandomState(seed & 0xFFFFFFFF).randint(0, 2**32, count, np.uint32)


@op("RandomPoisson", "opset17", "generation/random-poisson-17")
class RandomPoisson(Generating):
    """``rates [...] -> [...]``: a sample of the Poisson distribution of each rate.

    Every element has its own blocks of Philox (alignment tensorflow), which continue from one inference to the next as
    in RandomUniform; or all draw in turn from one Mersenne twister (pytorch), which restarts in every inference. Two
    words make a number, and everything is computed in f64. A rate of 0 or infinity is its own sample and takes no
    words. The specification does not mention infinity.
    """

    def infer_specs(self, rates: Spec) -> tuple[Spec, ...]:
        _check_seeds(self)
        if rates.type not in (Type.dynamic, *MANTISSA_BITS):
            raise OpError(f"the rates are {rates.type.get_type_name()}, not f16, bf16, f32 or f64")
        if rates.rank == 0:
            raise OpError("the rates are a scalar")
        return (Spec(rates.type, rates.shape),)

    def evaluate(self, xp: Adapter, rates: Array, state: Array) -> tuple[Array, ...]:
        if not (rates >= 0).all():
            raise OpError("a rate is negative or NaN")
        shape, rates = rates.shape, rates.reshape(-1).astype(np.float64)
        if self.alignment == "pytorch":
            return (xp.asarray(sequential_draws(xp.asnumpy(rates), int(state[1]))).reshape(shape),)
        first = take_blocks(state, rates.size)

        def uniform(elements: Any, index: int) -> Any:
            """Return two numbers from block ``index`` of each element; the last words of a block come first."""
            block = first + elements.astype(np.uint64) * np.uint64(BLOCKS_PER_ELEMENT) + np.uint64(index)
            words = philox(xp, block, state[1:2], state[2:3]).reshape(-1, 2, 2)
            return unit_numbers(words[:, 1], 52), unit_numbers(words[:, 0], 52)

        counts = rates.copy()
        sample_by_product(xp, rates, counts, xp.flatnonzero((rates > 0) & (rates < REJECTION_RATE)), uniform)
        sample_by_rejection(xp, rates, counts, xp.flatnonzero((rates >= REJECTION_RATE) & (rates < np.inf)), uniform)
        return (counts.reshape(shape),)


def unit_numbers(words: Any, digits: int) -> Any:
    """Return f64 numbers in [0, 1) of ``digits`` binary digits, from two words each: [n, 2] -> [n]."""
    whole = words[:, 0].astype(np.uint64) << np.uint64(32) | words[:, 1]
    return (whole & np.uint64(2**digits - 1)).astype(np.float64) * 0.5**digits


def sample_by_product(
    xp: Adapter, rates: Array, counts: Array, pending: Array, uniform: Callable[[Any, int], Any]
) -> None:
    """Write the Poisson samples of the elements ``pending`` into ``counts`` by Knuth's method.

    A sample is the number of uniform factors for which the product stays above exp(-rate).
    """
    limit, product = xp.exp(-rates[pending]), xp.ones(pending.shape)
    for index in counting():
        if not pending.size:
            return
        u, v = uniform(pending, index)
        once = product * u
        product = once * v
        counts[pending] = 2 * index + (once > limit)
        more = product > limit
        pending, limit, product = pending[more], limit[more], product[more]


def sample_by_rejection(
    xp: Adapter, rates: Array, counts: Array, pending: Array, uniform: Callable[[Any, int], Any]
) -> None:
    """Write the Poisson samples of the elements ``pending`` into ``counts`` by transformed rejection (Hörmann 1993).

    Two uniform numbers propose a sample, until one is accepted.
    """
    for index in counting():
        if not pending.size:
            return
        counts[pending], accepted = propose(xp, rates[pending], *uniform(pending, index))
        pending = pending[~accepted]


def propose(xp: Adapter, rate: Array, u: Array, v: Array) -> tuple[Array, Array]:
    """Return the count that transformed rejection proposes from two numbers, and whether it is accepted."""
    b = 0.931 + 2.53 * xp.sqrt(rate)
    a = -0.059 + 0.02483 * b
    u = u - 0.5
    margin = 0.5 - abs(u)
    count = xp.floor((2 * a / margin + b) * u + rate + 0.43)
    squeezed = (margin >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    refused = (count < 0) | ((margin < 0.013) & (v > margin))
    density = xp.log(v) + xp.log(1.1239 + 1.1328 / (b - 3.4)) - xp.log(a / (margin * margin) + b)
    likely = density <= -rate + count * xp.log(rate) - log_factorial(xp, count)
    return count, squeezed | (~refused & likely)


def log_factorial(xp: Adapter, n: Array) -> Array:
    """Return ``log(n!)`` of whole numbers in f64: from a table, or by Stirling's series where four terms suffice."""
    far = xp.maximum(n, float(len(LOG_FACTORIALS)))
    series = polynomial(1 / (far * far), (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)) / far
    near = xp.asarray(LOG_FACTORIALS)[xp.clip(n, 0, len(LOG_FACTORIALS) - 1).astype(np.int64)]
    return xp.where(n < far, near, (far + 0.5) * xp.log(far) - far + 0.5 * log(2 * pi) + series)


def sequential_draws(rates: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Return Poisson samples drawn in turn from one Mersenne twister: each starts where the one before stopped."""
    counts, uniform = rates.copy(), mersenne_numbers(seed)
    for i in np.flatnonzero((rates > 0) & (rates < np.inf)):
        if rates[i] < REJECTION_RATE:
            limit, product = exp(-rates[i]), next(uniform)
            counts[i] = 0
            while product > limit:
                product *= next(uniform)
                counts[i] += 1
        else:
            accepted = False
            while not accepted:
                counts[i], accepted = propose(NUMPY, rates[i], next(uniform), next(uniform))
    return counts


def mersenne_numbers(seed: int) -> Iterator[float]:
    """Yield numbers in [0, 1) of 53 binary digits, from the words of MT19937, without end."""
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    while True:
        yield from unit_numbers(generator.randint(0, 2**32, (512, 2), np.uint32), 53).tolist()


@op("Multinomial", "opset13", "generation/multinomial-13")
class Multinomial(Op):
    """``probs [batch, classes], number of samples [] -> [batch, samples]``: classes, sampled by their probabilities.

    With ``log_probs``, the inputs are logarithms of probabilities; without replacement, no class is drawn twice. The
    words come from a Mersenne twister, as in OpenVINO's plugin. They are the same in every inference, unless there are
    no seeds. Sums are in f32.

    >>> multinomial([[0.0, 1, 0]], 2, convert_type="i32", with_replacement=True, log_probs=False)
    [[1, 1]]
    """

    convert_type: Type
    with_replacement: bool
    log_probs: bool
    global_seed: int = 0
    op_seed: int = 0

    host_inputs = (1,)
    effect = True

    def infer_specs(self, probs: Spec, samples: Spec) -> tuple[Spec, ...]:
        if self.convert_type not in (Type.i32, Type.i64):
            raise OpError(f"convert_type is {self.convert_type.get_type_name()}, not i32 or i64")
        _check_seeds(self)
        if not (probs.type.is_dynamic() or probs.type.is_real()):
            raise OpError(f"the probabilities are {probs.type.get_type_name()}, which is no floating-point type")
        if probs.rank not in (None, 2):
            raise OpError(f"the probabilities have rank {probs.rank}, not 2")
        check_integers(samples, "the number of samples", ranks=None)
        _check_single(samples, "the number of samples")
        known = samples.ints()
        count: Int = unknown() if known is None else known[0]
        classes = None if probs.shape is None else probs.shape[1]
        if not isinstance(count, Sym):
            if count < 0:
                raise OpError(f"the number of samples is {count}")
            if isinstance(classes, int):
                self._check_count(count, classes)
        return (Spec(self.convert_type, (unknown() if probs.shape is None else probs.shape[0], count)),)

    def _check_count(self, count: int, classes: int) -> None:
        if not self.with_replacement and count > classes:
            raise OpError(f"{count} samples of {classes} classes need replacement")

    def evaluate(self, xp: Adapter, probs: Array, samples: Array) -> tuple[Array, ...]:
        count = integer(samples, "the number of samples")
        self._check_count(count, probs.shape[1])
        probs = probs.astype(np.float32)
        sums = xp.cumsum(xp.exp(probs) if self.log_probs else probs, axis=1, dtype=np.float32)
        sums = sums / xp.maximum(sums[:, -1:], np.finfo(np.float32).tiny)
        drawn = xp.asarray(self._draw(probs.shape[0] * count)).reshape(probs.shape[0], count)
        limit = probs.shape[1]  # negative probabilities or rounding reach it: OpenVINO gives the first class
        if self.with_replacement:
            classes_drawn = [xp.searchsorted(row, sample) for row, sample in zip(sums, drawn)]
            return (xp.stack(classes_drawn) % limit if classes_drawn else xp.zeros(drawn.shape, np.int64),)
        classes = xp.arange(limit)
        classes_drawn = []
        for n in range(count):
            chosen = (drawn[:, n : n + 1] > sums).sum(axis=1, keepdims=True) % limit
            padded = xp.concatenate([xp.zeros_like(sums[:, :1]), sums], axis=1)
            part = xp.take_along_axis(padded, chosen + 1, axis=1) - xp.take_along_axis(padded, chosen, axis=1)
            sums = xp.where(classes >= chosen, sums - part, sums) / (1 - part)
            classes_drawn.append(chosen)
        return (xp.concatenate(classes_drawn, axis=1) if classes_drawn else xp.zeros(drawn.shape, np.int64),)

    def _draw(self, count: int) -> np.ndarray[Any, Any]:
        """Return ``count`` random f32 numbers from 0 to 1."""
        generator = np.random.RandomState()
        if self.global_seed or self.op_seed:
            generator.set_state(("MT19937", seed_sequence(self.global_seed, self.op_seed), 624, 0, 0.0))
        return generator.randint(0, 2**32, count, np.uint32).astype(np.float32) / np.float32(2**32)


@cache
def seed_sequence(*seeds: int) -> np.ndarray[Any, Any]:
    """Return the MT19937 state that C++'s std::seed_seq generates from these seeds: [624], u32."""
    n, p, q, low = 624, 306, 317, 0xFFFFFFFF
    state = [0x8B8B8B8B] * n
    added = [len(seeds), *(seed & low for seed in seeds)]
    for k in range(2 * n):
        i, j, m = k % n, (k + p) % n, (k + q) % n
        if k < n:
            mixed = state[i] ^ state[j] ^ state[i - 1]
            first = 1664525 * (mixed ^ mixed >> 27) & low
            second = (first + i + (added[k] if k < len(added) else 0)) & low
            state[j], state[m] = (state[j] + first) & low, (state[m] + second) & low
        else:
            mixed = (state[i] + state[j] + state[i - 1]) & low
            first = 1566083941 * (mixed ^ mixed >> 27) & low
            second = (first - i) & low
            state[j], state[m] = state[j] ^ first, state[m] ^ second
        state[i] = second
    return np.array(state, np.uint32)


def _check_seeds(op: Any) -> None:
    for name in ("global_seed", "op_seed"):
        if not 0 <= getattr(op, name) < 2**64:
            raise OpError(f"{name} is {getattr(op, name)}")


def _check_single(spec: Spec, what: str) -> None:
    """Raise OpError unless the tensor has one element, as far as that is known."""
    if spec.rank not in (None, 0, 1) or length(spec) not in (None, 1):
        raise OpError(f"{what} has shape {spec.partial_shape}, not one element")


def _element(spec: Spec) -> Any:
    assert spec.constant is not None
    return spec.constant.reshape(-1)[0]
