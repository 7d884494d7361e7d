"""Choice of the next token on the emulated device: the same tokens as NumPy's, to the last one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.generation.sampling import NO_TOKEN, PROMPT, SampleToken, TokenCounts
from tests.emulator import cupy_emu

PLAIN = (1.0, 1.0, 0.0, 1.0, 0.0, 0.0)  # rules without effect


def rules(*rows: dict[int, float]) -> np.ndarray[Any, Any]:
    return np.array([[row.get(i, value) for i, value in enumerate(PLAIN)] for row in rows], np.float64)


def run(backend: CudaBackend, op: Op, draws: list[list[Any]]) -> list[list[np.ndarray[Any, Any]]]:
    """Return what the op computes on the card for inputs of equal shapes: in an eager run, then in replays."""
    arrays = [None if x is None else cupy_emu.empty(x.shape, x.dtype) for x in draws[0]]
    launcher = Launcher(backend.stream, backend.blas)
    graph = outputs = None
    found = []
    for inputs in draws:
        for array, x in zip(arrays, inputs):
            if array is not None:
                array[...] = cupy_emu.asarray(x)
        backend.synchronize()
        if outputs is None:
            outputs = [cupy_emu.empty(x.shape, x.dtype) for x in op.evaluate(NUMPY, *decoded(inputs))]
            assert op.cuda is not None and op.cuda(launcher, arrays, outputs, ()) is None
            for call in launcher.calls:
                call()
        else:
            if graph is None:
                backend.stream.begin_capture()
                for call in launcher.calls:
                    call()
                graph = backend.stream.end_capture()
            graph.launch(backend.stream)
        backend.synchronize()
        found.append([output.get() for output in outputs])
    return found


def decoded(inputs: list[Any]) -> list[Any]:
    return [None if x is None else decode(x) for x in inputs]


def check(backend: CudaBackend, op: Op, draws: list[list[Any]]) -> list[np.ndarray[Any, Any]]:
    """Compare the first output exactly, and log probabilities within rounding. Return the first outputs."""
    wanted = [op.evaluate(NUMPY, *decoded(inputs)) for inputs in draws]
    for found, right in zip(run(backend, op, draws), wanted, strict=True):
        np.testing.assert_array_equal(found[0], right[0])
        for logs, right_logs in zip(found[1:], right[1:], strict=True):
            np.testing.assert_allclose(logs, right_logs, rtol=1e-6, atol=1e-5)
    return [right[0] for right in wanted]


KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
RULES = [
    {},
    {0: 0},  # greedy
    {0: 0.7},
    {0: 1.6, 1: 0.9},
    {0: 0.01},
    {1: 0.5, 2: 0.02},
    {2: 0.3},
    {1: 0.0},
    {3: 1.3, 4: 0.5, 5: 0.25},
    {0: 0, 3: 0.8, 5: 1.5},
    {0: 1e-300},
    {0: 1e46},  # of which 1 / T is 0 in f32
]
TOP_K = [0, 1, 5, 40, 7, 0, 128, 3, 129, 0, 9, 0]


@pytest.mark.parametrize("vocabulary", [1, 7, 2048, 5001])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens(kind: str, vocabulary: int, backend: CudaBackend) -> None:
    random = np.random.default_rng(vocabulary)
    draws = []
    for step in range(3):
        logits = (random.standard_normal((len(RULES), 2, vocabulary)) * (1 + 2 * step)).astype(KINDS[kind])
        counts = random.choice([0, 0, 0, 1, 2, PROMPT, PROMPT + 3], (len(RULES), vocabulary)).astype(np.int32)
        numbers = np.array([[k, random.integers(2**32), 0, row % 2] for row, k in enumerate(TOP_K)])
        biased = np.array([[-1, row % vocabulary] for row in range(len(RULES))])
        biases = random.standard_normal((len(RULES), 2)).astype(np.float32) * 3
        draws.append([logits, rules(*RULES), numbers, counts, biased, biases])
    check(backend, SampleToken(), draws)


@pytest.mark.long
def test_many_rows(backend: CudaBackend) -> None:
    """More rows than a grid has blocks along its second axis."""
    rows = 70_000
    logits = np.random.default_rng(0).standard_normal((rows, 1, 2)).astype(np.float32)
    numbers = np.zeros((rows, 4), np.int64)
    biases = np.zeros((rows, 0), np.int64), np.zeros((rows, 0), np.float32)
    greedy = np.repeat(rules({0: 0}), rows, 0)
    found = run(backend, SampleToken(), [[logits, greedy, numbers, None, *biases]])[0][0]
    np.testing.assert_array_equal(found, logits[:, 0].argmax(1))


EMPTY = np.zeros((1, 0), np.int64), np.zeros((1, 0), np.float32)


@pytest.mark.parametrize("name", ["equal", "few_equal", "pairs", "steep", "infinite", "minus_infinite", "signed_zeros"])
def test_extremes(name: str, backend: CudaBackend) -> None:
    """Ties are in the order of the tokens; the search then reads all digits of their keys."""
    n = 3000
    logits = np.zeros(n, np.float32)
    if name == "few_equal":
        logits[::7] = 2
    elif name == "pairs":
        logits[:] = np.arange(n) // 2 * 1e-4
    elif name == "steep":
        logits[:] = -np.arange(n) * 0.5
    elif name == "infinite":
        logits[[5, 77]] = np.inf
    elif name == "minus_infinite":
        logits[:] = -np.inf
        logits[[9, 1000, 2999]] = -3
    elif name == "signed_zeros":
        logits[::2] = -0.0
    shaped = logits.reshape(1, 1, n)
    draws = [
        [shaped, rules(rule), np.array([[k, random, 0, by_logits]]), None, *EMPTY]
        for rule in ({}, {0: 0}, {1: 0.6}, {2: 0.5, 1: 0.99}, {0: 1e46})
        for k in (0, 1, 2, 100, 1000)
        for random, by_logits in ((0, 0), (0x9E3779B9, 1), (2**32 - 1, 0))
    ]
    check(backend, SampleToken(), draws)


@pytest.mark.parametrize("values", [[np.nan, 1], [1, np.nan], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_without_a_token(values: list[float], temperature: float, backend: CudaBackend) -> None:
    logits = np.array(values, np.float32).reshape(1, 1, 2)
    draw = [logits, rules({0: temperature}), np.array([[0, 0, 0, 1]]), None, *EMPTY]
    assert check(backend, SampleToken(), [draw])[0].tolist() == [NO_TOKEN]


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_counts(dtype: Any, backend: CudaBackend) -> None:
    random = np.random.default_rng(0)
    numbers = np.array([[0, 0, generated, 0] for generated in (0, 1, 0)])
    draws = [
        [
            random.choice([0, 0, 1, PROMPT, PROMPT + 2], (3, 5000)).astype(np.int32),
            random.integers(-2, 5002, (3, 600)).astype(dtype),
            np.roll(numbers, step, 0),
        ]
        for step in range(3)
    ]
    draws[0][1][:, :4] = 17
    check(backend, TokenCounts(), draws)
