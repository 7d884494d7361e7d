"""Constants that passes compute: equal ones are shared while they are in use, and never mistaken for each other."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.batching import SequenceBatcher
from ovgpu.passes import _derived
from ovgpu.passes._derived import derived
from tests.harness.models.drive import DATA

Array = np.ndarray[Any, Any]


def fixed(values: Any) -> Array:
    """Return an array in memory that nobody can write to."""
    return np.frombuffer(np.array(values, np.float32).tobytes(), np.float32)


@pytest.fixture
def calls() -> list[str]:
    return []


def double(source: Array, calls: list[str], rule: str = "double") -> Array:
    def compute() -> Array:
        calls.append(rule)
        return source * 2

    return derived(rule, [source], compute)


def test_a_constant_in_use_is_shared(calls: list[str]) -> None:
    source = fixed([1, 2])
    first = double(source, calls)
    assert double(source[:], calls) is first and calls == ["double"]
    assert double(source[:1], calls) is not first and double(source, calls, "twice") is not first
    assert not first.flags.writeable
    chained = double(first, calls)
    del first
    assert double(double(source, calls), calls) is chained  # though what it was computed from is gone


def test_nothing_is_held(calls: list[str]) -> None:
    gc.collect()
    count = len(_derived._by_key), len(_derived._by_id)
    source = fixed(range(100))
    chained = double(double(source, calls), calls)
    assert len(_derived._by_key) == count[0] + 1  # the constant in between is gone
    del chained
    assert (len(_derived._by_key), len(_derived._by_id)) == count
    double(source, calls)
    assert calls == ["double"] * 3


def test_memory_that_can_change_is_computed_anew(calls: list[str]) -> None:
    source = np.ones(4, np.float32)
    view = source[:]
    view.flags.writeable = False
    for array in source, view:
        first = double(array, calls)
        source += 1
        assert double(array, calls)[0] == first[0] + 2


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("model", ["llama", "gemma2", "lstm_state"])
def test_batchers_take_the_constants_of_their_model(model: str, precision: str, emulated: str) -> None:
    """A compiled model, its requests and a batcher hold each constant once; 1 % may be different."""
    core = ovgpu.Core()
    compiled = core.compile_model(
        core.read_model(DATA / model / "model.xml"), emulated, {"INFERENCE_PRECISION_HINT": precision}
    )
    with SequenceBatcher(compiled, 8) as batcher:
        compilations = compiled._compilation, batcher.compiled_model._compilation
        arrays = [{id(array): array for _, array in c.constants.values()} for c in compilations]
        plain, both = (sum(array.nbytes for array in held.values()) for held in (arrays[0], arrays[0] | arrays[1]))
    assert 0 < plain <= both <= 1.01 * plain
    weights = (DATA / model / "model.bin").stat().st_size * (0.5 if precision == "f16" else 1)
    assert both <= 1.01 * weights


def test_a_batcher_outlives_its_model(emulated: str) -> None:
    core = ovgpu.Core()
    compiled = core.compile_model(core.read_model(DATA / "lstm_state" / "model.xml"), emulated)
    x = np.ones(compiled.inputs[0].shape, np.float32)
    expected = compiled(x)[0]
    with SequenceBatcher(compiled, 2) as batcher:
        del compiled
        gc.collect()
        with batcher.open() as sequence:
            np.testing.assert_allclose(sequence.infer([x])[0], expected, 1e-5, 1e-6)
