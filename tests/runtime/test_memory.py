"""Memory of an inference: only outputs once warm, and bounded bindings for many shapes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.lowering.program import Buffer
from ovgpu.runtime.memory import MIN_DYNAMIC_BYTES, Layout, capacity, lay_out
from tests.harness import Net
from tests.harness.private import read_private

MODELS = Path(__file__).parents[1] / "models" / "data"


def warm_peak(name: str, size: int) -> int:
    """Return the peak of bytes allocated in a warm inference, with dynamic extents set to ``size``."""
    model = ovgpu.Core().read_model(MODELS / name / "model.xml")
    model.reshape(
        {port: [d.get_length() if d.is_static else size for d in port.partial_shape] for port in model.inputs}
    )
    request = ovgpu.Core().compile_model(model, "CPU").create_infer_request()
    inputs = {i: np.ones(list(p.shape), p.element_type.to_dtype()) for i, p in enumerate(model.inputs)}
    for _ in range(3):
        request.infer(inputs, share_inputs=True, share_outputs=True)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        request.infer(inputs, share_inputs=True, share_outputs=True)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("name", "size"), [("bert", 24), ("gru", 48)])
def test_a_warm_inference_allocates_no_tensors(name: str, size: int) -> None:
    """At this size a tensor has over 100 kB, and NumPy's own buffers for broadcasting have 32 kB."""
    assert warm_peak(name, size) < 64 * 1024


def test_a_warm_stateful_inference_allocates_no_tensors() -> None:
    assert warm_peak("lstm_state", 1) < 8192


def relu_chain(length: int) -> Any:
    net = Net()
    x = net.parameter("f32", (-1, 64), "x")
    weights = net.const(np.eye(64, dtype=np.float32))
    for _ in range(length):
        x = net.layer("Relu", "opset1", [net.layer("MatMul", "opset1", [x, weights])])
    net.result(x)
    return ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU")


def test_a_thousand_shapes_leave_no_more_behind_than_the_largest() -> None:
    request = relu_chain(2).create_infer_request()
    x = np.random.RandomState(0).randn(1000, 64).astype(np.float32)
    request.infer([x])
    tracemalloc.start()
    try:
        for rows in np.random.RandomState(1).permutation(1000):
            (y,) = request.infer([x[: rows + 1]]).to_tuple()
            assert np.array_equal(y, np.maximum(x[: rows + 1], 0))
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert left < 16 * x.nbytes  # at most eight bindings, each with its own input and output


def test_a_chain_of_ten_thousand_layers_runs_in_two_buffers() -> None:
    net = Net()
    x, one = net.parameter("f32", (1, 16), "x"), net.const(np.ones((1, 16), np.float32))
    for _ in range(10_000):
        x = net.layer("Add", "opset1", [x, one])
    net.result(x)
    compiled = ovgpu.Core().compile_model(read_private(net), "CPU")
    request = compiled.create_infer_request()
    (y,) = request.infer([np.zeros((1, 16), np.float32)]).to_tuple()
    assert (y == 10_000).all()
    (executor,) = request._session._executors.values()
    assert executor.layouts[0].nbytes <= 128


# ---- the arena


def overlap(layout: Layout, buffers: list[Buffer], i: int, j: int) -> bool:
    a, b = buffers[i], buffers[j]
    together = a.first <= b.last and b.first <= a.last
    apart = (
        layout.offsets[i] + layout.capacities[i] <= layout.offsets[j]
        or layout.offsets[j] + layout.capacities[j] <= layout.offsets[i]
    )
    return together and not apart and layout.capacities[i] > 0 and layout.capacities[j] > 0


@pytest.mark.parametrize("seed", range(20))
def test_buffers_alive_at_the_same_time_do_not_overlap(seed: int) -> None:
    random = np.random.RandomState(seed)
    starts = np.sort(random.randint(0, 50, 60))
    buffers = [Buffer(i, 0, int(s), int(s + random.randint(0, 12))) for i, s in enumerate(starts)]
    sizes = [int(n) for n in random.choice([0, 1, 64, 100, 4096, 5000], 60)]
    layout = lay_out(buffers, sizes, [i % 20 == 1 for i in range(60)])
    assert all(offset % 64 == 0 for offset in layout.offsets)
    assert all(o + c <= layout.nbytes for o, c in zip(layout.offsets, layout.capacities))
    assert not [(i, j) for i in range(60) for j in range(i) if overlap(layout, buffers, i, j)]
    assert layout.nbytes <= sum(layout.capacities)


def test_memory_is_used_again() -> None:
    buffers = [Buffer(i, 0, i, i + 1) for i in range(100)]
    assert lay_out(buffers, [1024] * 100, [False] * 100).nbytes == 2 * 1024


def test_the_capacity_of_a_dynamic_size_is_at_most_a_quarter_more() -> None:
    for nbytes in (0, 1, 64, 65, 4097, MIN_DYNAMIC_BYTES, MIN_DYNAMIC_BYTES + 1, 10**6, 10**9 + 1):
        reserved_bytes = capacity(nbytes, True)
        assert nbytes <= reserved_bytes <= max(nbytes * 1.25, MIN_DYNAMIC_BYTES) and reserved_bytes % 64 == 0
        assert capacity(nbytes, False) == -(-nbytes // 64) * 64


def test_a_result_too_large_for_memory_is_one_error_that_names_the_layer() -> None:
    net = Net()
    x, shape = net.parameter("f32", (1,), "x"), net.parameter("i64", (2,), "shape")
    net.result(net.layer("Relu", "opset1", [net.layer("Exp", "opset1", [net.layer("Tile", "opset1", [x, shape])])]))
    request = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU").create_infer_request()
    for size in (10**8, 10**14):
        with pytest.raises(ovgpu.Error, match=r"out of memory.*10000000.*layer '"):
            request.infer({"x": np.ones(1, np.float32), "shape": np.array([10**7, size])})
    (y,) = request.infer({"x": np.ones(1, np.float32), "shape": np.array([2, 3])}).to_tuple()
    assert y.shape == (2, 3)
