"""KV caches that are stored in another type than the model computes in: KV_CACHE_PRECISION of u8, i8, f16 and bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.emulator import state
from tests.harness.models.drive import DATA
from tests.harness.models.transformer import Sizes, llama

PRECISION, CACHE = "INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"
EXACT = {PRECISION: "f32"}
MODEL = DATA / "llama" / "model.xml"


def arrays(begin: int, tokens: list[int], rows: int = 1) -> dict[str, Any]:
    end = begin + len(tokens)
    inputs = {"input_ids": np.array([tokens] * rows), "attention_mask": np.ones((rows, end), np.int64)}
    positions = np.tile(np.arange(begin, end), (rows, 1))
    return {**inputs, "position_ids": positions, "beam_idx": np.arange(rows, dtype=np.int32)}


STEPS = [arrays(0, [5, 6, 7]), *(arrays(n, [n]) for n in range(3, 9)), arrays(9, [1, 2, 3, 4])]


def compiled(config: dict[str, str], device: str = "CPU", library: Any = ov) -> Any:
    core = library.Core()
    return core.compile_model(core.read_model(MODEL), device, config)


def logits(model: Any, steps: Any = STEPS) -> list[Any]:
    request = model.create_infer_request()
    return [request.infer(step)[0].copy() for step in steps]


def launches(request: Any, step: Any) -> tuple[Any, tuple[int, int]]:
    state.counters.reset()
    found = request.infer(step)[0].copy()
    return found, (state.counters.graph_launches, state.counters.launches)


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ({**EXACT, CACHE: "f16"}, "f32"),
        ({**EXACT, CACHE: "u8"}, "f32"),
        ({PRECISION: "f16", CACHE: "u8"}, "f16"),
        ({CACHE: "u8"}, "f16"),
    ],
    ids=str,
)
def test_a_step_is_one_graph(config: dict[str, str], same: str, emulated: str) -> None:
    """A decode step launches no more kernels than one with caches of type ``same``, also in a batch."""
    counts = []
    for cache in (same, config[CACHE]):
        model = compiled({**config, CACHE: cache}, emulated)
        request = model.create_infer_request()
        found = [launches(request, step) for step in STEPS[:5]]
        assert found[-1][1] == (1, 0)
        with ov.SequenceBatcher(model, 2) as batcher:
            sequences, together = [batcher.open() for _ in range(2)], []
            for step in STEPS[:5]:
                state.counters.reset()
                with batcher.together():
                    futures = [sequence.submit(step) for sequence in sequences]
                together.append([future.result()[0].copy() for future in futures])
                counts.append((state.counters.graph_launches, state.counters.launches))
        assert counts[-1] == (1, 0)
        counts[-5:] = [(found[1][1][1], counts[-4][1])]
        limit = (3e-2 if cache == "u8" else 2e-3) * abs(found[-1][0]).max()
        for row in together[-1]:
            np.testing.assert_allclose(row, found[-1][0], rtol=0, atol=limit)
    assert all(own <= other for own, other in zip(counts[1], counts[0])), counts


def test_a_step_reads_half_the_bytes(emulated: str) -> None:
    """With u8, attention reads D + 8 bytes of a key in place of 2 D."""
    head, steps = 64, 20
    model = ov.Core().read_model(*llama(1, Sizes(1, 2 * head, 2, 32, 50, 64)).ir)
    read, kernels = {}, {}
    for cache in ("f16", "u8"):
        request = ov.Core().compile_model(model, emulated, {PRECISION: "f16", CACHE: cache}).create_infer_request()
        for n in range(steps):
            found = launches(request, arrays(n, [n]))
        assert found[1] == (1, 0)
        (step,) = (step for step in request.plan().steps if step.op == "RotaryAttention")
        read[cache], kernels[cache] = step.bytes_read, step.calls
    assert kernels["u8"] == kernels["f16"]
    assert read["f16"] - read["u8"] == 2 * 2 * steps * (2 * head - (head + 8))
