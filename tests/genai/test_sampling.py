"""Sampling as a part of a decoder's plan: the order of the rules, draws, penalties, and what goes to the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.genai import decoder as decoders
from ovgpu.genai.batch import fix_batch
from ovgpu.genai.sampling import Sampler, Sampling, add_sampling, checked_token, random_numbers
from ovgpu.ops.generation.sampling import Number
from ovgpu.passes.keep_last_logits import keep_last_logits
from tests.emulator import state
from tests.genai.sampling_cases import RULES, SETTINGS, distance, distribution
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, Decoder

TEXT = [1, 37, 80, 9, 12, 13, 60]
DRAWS = 500
Array = np.ndarray[Any, Any]


def head(vocabulary: int, penalties: bool = False, device: str = "CPU") -> Any:
    """Return a compiled model [?,?] x [?,?,vocabulary] -> tokens [?], whose second input has the logits."""
    net = Net("head")
    ids = net.parameter("i64", (-1, -1), "input_ids")
    logits = net.parameter("f32", (-1, -1, vocabulary), "logits")
    net.result(net.layer("Add", "opset1", [logits, net.const(np.zeros(1, "f4"))], names=["logits"]))
    net.result(net.layer("ShapeOf", "opset3", [ids], {"output_type": "i64"}, names=["shape"]))
    model = ovgpu.Core().read_model(*net.build())
    assert add_sampling(model, 0, penalties) == 1
    return ovgpu.Core().compile_model(model, device)


def draw(compiled: Any, logits: Any, arrays: dict[int, Array], words: Any) -> Array:
    """Return the tokens that random numbers give, a row for each."""
    arrays = {i: np.repeat(x, len(words) // len(x), 0) for i, x in arrays.items()}
    arrays[3][:, Number.RANDOM] = words
    arrays |= {0: np.zeros((len(words), 1), np.int64), 1: np.tile(np.array(logits, np.float32), (len(words), 1, 1))}
    tokens: Array = compiled(arrays)["next_token"]
    return tokens


def frequencies(logits: Any, sampling: Sampling, prompt: list[int] | None = None, text: Any = ()) -> Array:
    """Return how often each token is drawn after a prompt and a text that was generated, with numbers at equal
    distances."""
    compiled = head(len(logits), penalties=sampling.penalises)
    sampler = Sampler(compiled.inputs, sampling, random_numbers(0), prompt or [])
    words = ((np.arange(DRAWS) + 0.5) / DRAWS * 2**32).astype(np.int64)
    return np.bincount(draw(compiled, logits, sampler.next(text), words), minlength=len(logits))


def check(found: Array, probabilities: Any) -> None:
    """Compare frequencies with probabilities: the interval of a token has its share of the numbers, or one more or
    less."""
    wanted = np.array(probabilities) / np.sum(probabilities) * found.sum()
    assert not found[wanted == 0].any()
    assert (np.abs(found - wanted) < 1.05).all()


PROBABILITIES = [0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.04, 0.03, 0.02, 0.01, 0.005, 0.005]


@pytest.mark.parametrize(
    "sampling, wanted",
    [
        (Sampling(True, top_k=0), PROBABILITIES),
        (Sampling(True, top_k=4), [0.4, 0.2667, 0.2, 0.1333]),
        (Sampling(True, top_k=4, top_p=0.75), [0.4615, 0.3077, 0.2308]),  # 0.65 of all, 0.87 of the four
        (Sampling(True, 0.5, 0, top_p=0.6), [0.6923, 0.3077]),
        (Sampling(True, top_k=0, top_p=0.3 - 1e-6), [1]),
        (Sampling(True, top_k=0, min_p=0.499), [0.4615, 0.3077, 0.2308]),
        (Sampling(True, top_k=6, min_p=0.499, top_p=0.9), [0.4615, 0.3077, 0.2308]),
        (Sampling(True, top_k=2, min_p=0.1), [0.6, 0.4]),
    ],
    ids=str,
)
def test_filters(sampling: Sampling, wanted: list[float]) -> None:
    """The probabilities that openvino_genai 2026.4.1 reports: top-k, temperature, min-p, top-p, in this order."""
    check(frequencies(np.log(PROBABILITIES), sampling), wanted + [0] * (12 - len(wanted)))


@pytest.mark.parametrize(
    "sampling, kept",
    [
        (Sampling(), [1] * 12),
        (Sampling(True, top_k=0), PROBABILITIES),
        (Sampling(True, top_k=4, top_p=0.75), [0.4615, 0.3077, 0.2308]),
        (Sampling(True, 0.5, 0, top_p=0.6), [0.6923, 0.3077]),
    ],
    ids=str,
)
def test_log_probabilities(sampling: Sampling, kept: list[float]) -> None:
    """Among the tokens that are kept, or by the logits alone, without temperature and biases."""
    compiled = head(12)
    samplers = [
        Sampler(compiled.inputs, replace(sampling, by_logits=by_logits), random_numbers(5))
        for by_logits in (False, True)
    ]
    logits = np.log(np.array(PROBABILITIES, np.float32)) + 3
    tokens = set()
    for number in range(20):
        given = {0: np.zeros((1, 1), np.int64), 1: logits.reshape(1, 1, -1)}
        results = [compiled(sampler.next([0] * number, banned=[11]) | given) for sampler in samplers]
        token, logs = int(results[0]["next_token"][0]), [float(each["log_probabilities"][0]) for each in results]
        tokens.add(token)
        share = kept[token] / (sum(kept) - (kept[11] if len(kept) > 11 and sampling.sample else 0))
        expected = [np.log(share) if sampling.sample else 0, np.log(PROBABILITIES[token] / sum(PROBABILITIES))]
        np.testing.assert_allclose(logs, expected, atol=1e-3)
    assert 11 not in tokens and (len(tokens) > 1) == sampling.sample


LOGITS = np.array([3, 2.5, 2, 1, -1, -2, -3, -4, 0.5, 0, -0.5, -9])


@pytest.mark.parametrize(
    "sampling, prompt, text, changed",
    [
        (Sampling(True, repetition_penalty=2), [0, 4, 4], [], {0: 1.5, 4: -2}),
        (Sampling(True, repetition_penalty=2), [0], [4, 4, 0], {0: 1.5, 4: -2}),
        (Sampling(True, presence_penalty=1.5), [0, 4], [], {}),
        (Sampling(True, presence_penalty=1.5), [1], [0, 4, 4], {0: 1.5, 4: 0.5}),
        (Sampling(True, frequency_penalty=0.5), [1], [0, 4, 4], {0: 2.5, 4: 0}),
        (Sampling(True, frequency_penalty=0.5), [0, 0], [0, 0], {0: 2}),
        (
            Sampling(True, repetition_penalty=2, presence_penalty=0.5, frequency_penalty=0.25),
            [1],
            [0, 5],
            {1: 1.25, 0: 0.75, 5: -3.25},
        ),
        (Sampling(True, logit_bias={3: 2.0, 0: -np.inf}), [0], [], {0: -np.inf, 3: 3}),
        (Sampling(True, logit_bias={4: 3.0}, repetition_penalty=2), [4], [], {4: 1}),
        (Sampling(True, frequency_penalty=0.01), [1], [0] * 100, {0: 2}),  # more than the first capacity
    ],
    ids=lambda value: str(value) if isinstance(value, Sampling) else "",
)
def test_penalties(sampling: Sampling, prompt: list[int], text: list[int], changed: dict[int, float]) -> None:
    """As in openvino_genai: negative logits are multiplied by the repetition penalty, and raised by the others, which
    count generated tokens only."""
    logits = LOGITS.copy()
    logits[list(changed)] = list(changed.values())
    check(frequencies(LOGITS, sampling, prompt, text), np.exp(logits))


def test_random_numbers() -> None:
    """The C++ standard says what std::mt19937 has in 10,000th place with the seed 5489: 4123659995."""
    numbers = random_numbers(5489 + 2**32)
    found = [next(numbers) for _ in range(10_000)]
    assert found[-1] == int(np.float32(4123659995)) and all(0 <= n < 2**32 for n in found)


def test_distributions(emulated: str) -> None:
    """20,000 draws, by chi-square: without rules, with each one, and with all pairs."""
    bias = {"logit_bias": {3: 2.0}}
    settings = [*SETTINGS, bias, *({**bias, name: RULES[name]} for name in RULES)]
    each, few = 20_000 // len(settings), 4
    numbers, prompt, text = random_numbers(1), [0, 4, 4], [1, 5, 5, 8]
    words = np.array([[next(numbers) for _ in range(each)] for _ in settings])
    found = []
    for device, count in (("CPU", each), (emulated, few)):
        compiled = head(len(LOGITS), penalties=True, device=device)
        rows = [
            Sampler(compiled.inputs, Sampling(True, **{"logit_bias": {0: 0.0}, **setting}), numbers, prompt).next(text)
            for setting in settings
        ]
        arrays = {i: np.concatenate([row[i] for row in rows]) for i in rows[0]}
        found.append(draw(compiled, LOGITS, arrays, words[:, :count].ravel()).reshape(len(settings), count))
    np.testing.assert_array_equal(found[0][:, :few], found[1])
    for setting, tokens in zip(settings, found[0]):
        wanted = distribution(LOGITS, prompt, text, **setting)
        chi_square, most = distance(np.bincount(tokens, minlength=len(LOGITS)), wanted)
        assert chi_square <= most, setting


def test_values_out_of_range() -> None:
    for values, message in (
        ({"temperature": 0}, "temperature must be a number above 0, not 0"),
        ({"temperature": "0.7"}, "temperature must be a number above 0, not '0.7'"),
        ({"top_k": -1}, "top_k must be an integer from 0 on, not -1"),
        ({"top_k": 2.5}, "top_k must be an integer from 0 on, not 2.5"),
        ({"top_k": True}, "top_k must be an integer from 0 on, not True"),
        ({"top_k": 2**63}, "top_k must be an integer from 0 on, not 9223372036854775808"),
        ({"top_p": 1.5}, "top_p must be a number from 0 to 1, not 1.5"),
        ({"min_p": 1}, "min_p must be a number from 0 to below 1, not 1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0, not 0"),
        ({"presence_penalty": np.nan}, "presence_penalty must be a finite number, not nan"),
        ({"frequency_penalty": np.inf}, "frequency_penalty must be a finite number, not inf"),
        ({"logit_bias": {3: np.nan}}, "the logit bias of token 3 must be a number or -inf, not nan"),
        ({"logit_bias": {3: 1e39}}, r"the logit bias of token 3 must be a number or -inf, not 1e\+39"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias has the token -1, which is no integer from 0 on"),
        ({"logit_bias": {1.5: 1.0}}, "logit_bias has the token 1.5, which is no integer from 0 on"),
    ):
        with pytest.raises(ValueError, match=message):
            Sampling(**values)  # type: ignore[arg-type]
    for seed in (-1, 2**64, 1.0, True):
        with pytest.raises(ValueError, match="seed must be an integer from 0 to 18446744073709551615"):
            random_numbers(seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["CPU", "EMULATED"])
@pytest.mark.parametrize(
    "index, shape, message",
    [
        (2, (1, 6), r"rules have 1 rows, not 3"),
        (3, (1, 4), r"tokens have 3 rows, not 1"),
        (4, (1, 2), r"biased tokens have 1 rows, not 3"),
        (5, (3, 1), r"biases have 1 columns, not 2"),
        (6, (1, 2), r"tokens have 1 rows, not 3"),
        (7, (2, 2), r"tokens have 2 rows, not 3"),
    ],
)
def test_inputs_that_do_not_fit(index: int, shape: tuple[int, int], message: str, device: str, emulated: str) -> None:
    """One error on both devices, instead of memory that nobody has written."""
    compiled = head(8, penalties=True, device=emulated if device == "EMULATED" else device)
    shapes = {0: (3, 2), 1: (3, 1, 8), 2: (3, 6), 3: (3, 4), 4: (3, 2), 5: (3, 2), 6: (3, 1), 7: (3, 1)} | {
        index: shape
    }
    arrays = {i: np.zeros(shapes[i], port.element_type.to_dtype()) for i, port in enumerate(compiled.inputs)}
    with pytest.raises(ovgpu.Error, match=message):
        compiled(arrays)


def test_logits_of_another_shape() -> None:
    net = Net()
    net.result(net.parameter("f32", (-1, 8), "logits"))
    with pytest.raises(ovgpu.Error, match=r"logits have the shape \[batch, length, vocabulary\], not \[\?,8\]"):
        add_sampling(ovgpu.Core().read_model(*net.build()), 0, penalties=False)


def test_models_without_counts() -> None:
    net = Net()
    net.result(net.parameter("f32", (1, -1, -1), "logits"))
    with pytest.raises(ovgpu.Error, match="penalties need logits with a vocabulary of known size"):
        add_sampling(ovgpu.Core().read_model(*net.build()), 0, penalties=True)


def steps(model: str, device: str, sampling: Sampling, **options: Any) -> tuple[decoders.Decoder, Iterator[int]]:
    """Return a decoder, and an iterator of 12 tokens that it chooses after `TEXT`, step by step."""
    decoder = decoders.Decoder(ovgpu.Core().read_model(DATA / model / "model.xml"), device, options)
    return decoder, tokens_of(decoder, sampling)


def tokens_of(decoder: decoders.Decoder, sampling: Sampling) -> Iterator[int]:
    chooser = decoder.chooser(sampling.penalises)
    ports = chooser.compiled.inputs
    inputs, tokens = decoders.DecoderInputs(ports), list[int]()
    sampler = Sampler(ports, sampling, random_numbers(7), TEXT)
    chooser.request.reset_state()
    for _ in range(12):
        arrays = inputs.next([tokens[-1:] or TEXT]) | sampler.next(tokens)
        outputs = chooser.request.infer(arrays, share_inputs=True, share_outputs=True)
        tokens.append(checked_token(outputs[chooser.output]))
        yield tokens[-1]


MODES = [
    Sampling(),
    Sampling(True, 1.5, 20, 0.9),
    Sampling(True, 1.3, 0, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.4),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sampling", MODES, ids=str)
@pytest.mark.parametrize("model", ["llama", "gpt2", "llama_int4_sym", "mixtral"])
def test_the_same_tokens_on_both_devices(model: str, sampling: Sampling, emulated: str) -> None:
    options = {"INFERENCE_PRECISION_HINT": "f32"}
    decoder, tokens = steps(model, "CPU", sampling, **options)
    on_host = list(tokens)
    assert list(steps(model, emulated, sampling, **options)[1]) == on_host
    assert list(tokens_of(decoder, sampling)) == on_host


@pytest.mark.parametrize("sampling", MODES, ids=str)
def test_a_decode_step_stays_one_graph(sampling: Sampling, emulated: str) -> None:
    """Sampling adds three kernels, and counts add five. A token and its log probability go to the host, 8 bytes, and
    nothing is allocated."""
    read = ovgpu.Core().read_model(DATA / "llama" / "model.xml")
    assert fix_batch(read) and keep_last_logits(read, 0)
    decoder = Decoder(ovgpu.Core().compile_model(read, emulated))
    token = decoder.start(np.array([TEXT]))
    for _ in range(3):
        state.counters.reset()
        token = decoder.step(token)
    kernels, uploaded = state.counters.graph_kernels, state.counters.h2d_bytes
    _, tokens = steps("llama", emulated, sampling)
    for count, _ in enumerate(tokens):
        counters = state.counters
        if count > 3:  # states have two buffers, with a graph for each
            assert (counters.graph_launches, counters.launches, counters.allocs, counters.d2h_bytes) == (1, 0, 0, 8)
            assert counters.graph_kernels == kernels + 3 + 5 * sampling.penalises
            history = 2 * 64 * 8 * sampling.penalises
            assert counters.h2d_bytes <= uploaded + 6 * 8 + 4 * 8 + history  # rules and numbers
        counters.reset()
