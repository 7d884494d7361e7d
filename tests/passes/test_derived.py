"""Constants that passes compute: equal ones are shared while they are in use, and never mistaken for each other."""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.batching import SequenceBatcher
from ovgpu.passes import _derived
from ovgpu.passes._derived import derived
from tests.harness import judge
from tests.harness.ir import Net
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


def test_a_constant_that_is_its_source_is_not_held() -> None:
    """Scales in f32 stay as they are. Models of such scales are freed, with their files."""
    source = fixed([1, 2])
    assert derived("same", [source], lambda: source) is source
    gc.collect()
    count = len(_derived._by_key), len(_derived._by_id)
    for _ in range(3):
        ovgpu.Core().compile_model(ovgpu.Core().read_model(DATA / "llama_int8" / "model.xml"), "CPU")
        gc.collect()
        assert (len(_derived._by_key), len(_derived._by_id)) == count


def test_entries_that_an_interruption_left_behind_are_not_used(calls: list[str]) -> None:
    """A signal handler that raises may leave an entry whose constant is gone, and whose number another one has."""
    source, other = fixed([1, 2]), fixed([3, 4])
    first = double(source, calls)
    entry = _derived._by_id[id(first)]
    del first
    _derived._by_key[entry.key] = _derived._by_id[id(other)] = entry
    try:
        np.testing.assert_array_equal(double(other, calls), [6, 8])
        np.testing.assert_array_equal(double(source, calls), [2, 4])
    finally:
        _derived._by_id.pop(id(other), None)
        _derived._by_key.pop(entry.key, None)


def test_memory_of_others_is_not_trusted(tmp_path: Path, calls: list[str]) -> None:
    """A read-only view may show memory that its owner changes."""
    owned = np.ones(4, np.float32)
    (tmp_path / "file").write_bytes(owned.tobytes())
    views = {
        "memoryview": np.frombuffer(memoryview(owned).toreadonly(), np.float32),
        "file": np.memmap(tmp_path / "file", np.float32, "r"),
    }
    held = [double(view, calls) for view in views.values()]
    owned[:] = 5
    with (tmp_path / "file").open("r+b") as file:
        file.write(owned.tobytes())
    for view in views.values():
        np.testing.assert_array_equal(double(view, calls), 10)
    np.testing.assert_array_equal(held, 2)


BYTES = bytes([0x38, 0x40, 0x30, 0x38, 0x39, 0x3A, 0x7C, 0x38])


def test_types_of_the_same_size_are_told_apart() -> None:
    """Files have equal bytes once, also if constants read them as different types."""
    kinds = ("f8e4m3", "f8e8m0", "f8e5m2", "u8", "i8")
    net = Net()
    x = net.parameter("f32", (8,), "x")
    weights = [net.const(np.frombuffer(BYTES, np.uint8), kind) for kind in kinds]
    for weight in weights:
        net.result(
            net.layer("Add", "opset1", [x, net.layer("Convert", "opset1", [weight], {"destination_type": "f32"})])
        )
    xml, _ = net.build()
    xml = re.sub(rb'offset="\d+"', b'offset="0"', xml)
    x0 = np.zeros(8, np.float32)
    model = ovgpu.Core().read_model(xml, BYTES)
    weights_tensor = openvino.Tensor(np.frombuffer(BYTES, np.uint8))
    core: Any = judge.core()
    expected = core.compile_model(core.read_model(xml, weights_tensor), "CPU")(x0)
    for _ in range(2):
        found = ovgpu.Core().compile_model(model, "CPU")(x0)
        for i in range(len(kinds)):
            np.testing.assert_array_equal(found[i], expected[i])


FACTOR = [2.0]


class Scale(ovgpu.Op):
    """Op of a user that reads a global variable."""

    def infer_specs(self, x: Any) -> Any:
        return (type(x)(x.type, x.shape),)

    def evaluate(self, xp: Any, x: Any) -> Any:
        return (x * np.float32(FACTOR[0]),)


class Table(Scale):
    """Op of a user with an attribute that has no hash."""

    values: list[int]

    def evaluate(self, xp: Any, x: Any) -> Any:
        return (x * np.float32(sum(map(int, self.values))),)


def test_ops_of_users_are_computed_anew() -> None:
    for op in (Scale, Table):
        ovgpu.register_op(op.__name__, "derived_test")(op)
    net = Net()
    x = net.parameter("f32", (4,), "x")
    ones = net.const(np.ones(4, np.float32))
    net.result(net.layer("Add", "opset1", [x, net.layer("Scale", "derived_test", [ones])]))
    net.result(net.layer("Add", "opset1", [x, net.layer("Table", "derived_test", [ones], {"values": "12"})]))
    model, x0, held = ovgpu.Core().read_model(*net.build()), np.zeros(4, np.float32), []
    for factor in (2.0, 3.0):
        FACTOR[0] = factor
        held.append(ovgpu.Core().compile_model(model, "CPU"))
        assert [float(y[0]) for y in held[-1](x0).to_tuple()] == [factor, 3]


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
