"""Recurrent models on the emulated device: each inference is one graph of few kernels, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.emulator import cupy_emu
from tests.harness import Net
from tests.harness.layers import numbers
from tests.harness.models.recurrent import lstm_sequence, lstm_state
from tests.harness.models.spec import spec_tensor_iterator
from tests.passes.recurrent_nets import BACKWARDS, FEATURES, cell, looped, over_time, stateful
from tests.passes.test_recurrent_maths import classic_gru, torch_lstm

SPEC = [(1, 25, 512), (1, 256), (1, 256)]
BOTH = ((0, True), (0, False), (1, False))
STACK = [(1, 6, 8), (1, 1, 8), (1, 1, 8)]

MODELS: dict[str, tuple[Any, list[tuple[int, ...]], int]] = {
    "tensor-iterator": (spec_tensor_iterator(3), SPEC, 2),
    "tensor-iterator-of-the-document": (spec_tensor_iterator(3, document=True), SPEC, 2),
    "lstm-state": (lstm_state(3), [(1, 40)], 4),
    "lstm-sequence": (lstm_sequence(3, steps=6, features=8, hidden=8), STACK, 2),
    "gru-time-first": (over_time(cell("GRUCell"), axis=0, batch=3), [(7, 3, FEATURES)], 2),
    "backwards": (over_time(cell("LSTMCell"), 2, BOTH, into=BACKWARDS), [(2, 7, FEATURES)], 2),
    "loop": (looped(cell("LSTMCell"), 2, axis=0), [(6, 2, FEATURES)], 2),
    "between-states": (stateful(), [(1, 7, FEATURES)], 2),
    "lstm-in-maths": (over_time(torch_lstm(), 2, BOTH), [(2, 7, FEATURES)], 2),
    "gru-in-maths": (over_time(classic_gru("plain", True)), [(2, 7, FEATURES)], 2),
}


def compiled(name: str, device: str) -> Any:
    model = MODELS[name][0]
    ir = model.build() if isinstance(model, Net) else model
    return ov.Core().compile_model(ov.Core().read_model(*ir), device)


def inputs(shapes: Sequence[tuple[int, ...]], run: int) -> list[Any]:
    return [numbers(*shape, seed=run + i) / 8 for i, shape in enumerate(shapes)]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", MODELS)
def test_launches(name: str, emulated: str) -> None:
    """After warm-up, an inference runs kernels alone, without copies or allocations."""
    _, shapes, most = MODELS[name]
    request, host = (compiled(name, device).create_infer_request() for device in (emulated, "CPU"))
    for run in range(7):
        given = inputs(shapes, run)
        cupy_emu.counters.reset()
        found = request.infer(given).to_tuple()
        counters = replace(cupy_emu.counters)
        for a, b in zip(found, host.infer(given).to_tuple(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        if run >= 4:
            assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0, 0), f"{run}: {counters}"
            assert counters.graph_kernels <= most and counters.d2d_bytes == 0, f"{run}: {counters}"
            assert counters.h2d_bytes == sum(x.nbytes for x in given)
            assert counters.d2h_bytes == sum(y.nbytes for y in found)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", [n for n in MODELS if "lstm-s" not in n])
def test_plan(name: str, emulated: str) -> None:
    """The plan has one sequence, whose outputs are written directly to the results."""
    request = compiled(name, emulated).create_infer_request()
    request.infer(inputs(MODELS[name][1], 0))
    plan = request.plan()
    steps = [s for s in plan.steps if s.kind not in ("view", "upload", "download")]
    assert [(s.kind, s.op[-8:]) for s in steps] == [("bound", "Sequence")]
    assert plan.copies() == []


def test_state_is_neither_read_nor_written_by_copies(emulated: str) -> None:
    request = compiled("lstm-state", emulated).create_infer_request()
    for run in range(3):
        request.infer(inputs([(1, 40)], run))
    steps = [s for s in request.plan().steps if s.kind not in ("view", "upload", "download")]
    assert [(s.kind, s.op) for s in steps] == [("bound", "LSTMCell")] * 3 + [("bound", "MatMul")]


@pytest.mark.parametrize("axis", [0, 1])
def test_changing_lengths(axis: int, emulated: str) -> None:
    """Sequences have zero, one or many steps, and each recurring length has a graph."""
    net = over_time(cell("GRUCell"), axis=axis)
    request, host = (
        ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()
        for device in (emulated, "CPU")
    )
    for run, steps in enumerate((3, 0, 1, 3, 0, 1, 40, 3, 0)):
        x = numbers(*((2, steps) if axis else (steps, 2)), FEATURES, seed=run) / 8
        cupy_emu.counters.reset()
        for a, b in zip(request.infer([x]).to_tuple(), host.infer([x]).to_tuple(), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        if run > 6:
            assert (cupy_emu.counters.graph_launches, cupy_emu.counters.launches) == (1, 0)
