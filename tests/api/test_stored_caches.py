"""KV caches that are stored in another type than the model computes in: KV_CACHE_PRECISION of u8, i8, f16 and bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov
from tests.emulator import state
from tests.harness.models.drive import DATA

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


@pytest.mark.parametrize("config", [{**EXACT, CACHE: "f16"}, {**EXACT, CACHE: "u8"}, {PRECISION: "f16", CACHE: "u8"}, {CACHE: "u8"}], ids=str)
def test_steps_are_one_graph(config: dict[str, str], emulated: str) -> None:
    """A decode step launches no more kernels than with caches of the model's type, alone and in a batch."""
    same = {"f16": "f32", "u8": "f16"}[config[CACHE]]
    counts = []
    for each in ({**config, CACHE: same if config is not None else same}, config):
        model = compiled(each, emulated)
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
        assert (state.counters.graph_launches, state.counters.launches) == (1, 0)
        counts.append(found[1][1][1])
        limit = (2e-3 if config[CACHE] == "f16" else 3e-2) * abs(found[-1][0]).max()
        for row in together[-1]:
            np.testing.assert_allclose(row, found[-1][0], rtol=0, atol=limit)
    assert counts[1] <= counts[0]
