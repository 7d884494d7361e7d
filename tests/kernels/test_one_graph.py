"""Whole models as one graph per inference on the emulated device: launches, allocations, and transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.control_flow import test_tensor_iterator as iterators
from tests.harness.layers import numbers
from tests.harness.models.recurrent import lstm_state
from tests.harness.models.spec import spec_tensor_iterator
from tests.kernels.recorded import counted

IR = tuple[bytes, bytes]
Inputs = list[Any]


def requests(ir: IR, emulated: str) -> tuple[Any, Any]:
    """Return a request of a model on the CPU, and one on the emulated device."""
    core = ov.Core()
    host, device = (core.compile_model(core.read_model(*ir), name) for name in ("CPU", emulated))
    return host.create_infer_request(), device.create_infer_request()


def close(actual: Any, expected: Any) -> None:
    for a, e in zip(actual.to_tuple(), expected.to_tuple(), strict=True):
        assert a.shape == e.shape and a.dtype == e.dtype
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def random_inputs(*shapes: tuple[int, ...]) -> Iterator[Inputs]:
    rng = np.random.default_rng(5)
    while True:
        yield [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


MODELS = {
    "tensor-iterator": (spec_tensor_iterator(3), ((1, 25, 512), (1, 256), (1, 256))),
    "lstm-state": (lstm_state(3), ((1, 40),)),
}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_the_cpus(name: str, emulated: str) -> None:
    ir, shapes = MODELS[name]
    host, device = requests(ir, emulated)
    for n, inputs in zip(range(10), random_inputs(*shapes)):
        if n == 6:
            host.reset_state()
            device.reset_state()
        close(device.infer(inputs), host.infer(inputs))
    for a, b in zip(device.query_state(), host.query_state(), strict=True):
        np.testing.assert_allclose(a.state.data, b.state.data, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_per_inference(name: str, emulated: str) -> None:
    """From the third inference on, there is one launch, no allocation, and no transfer but inputs and outputs."""
    ir, shapes = MODELS[name]
    _, device = requests(ir, emulated)
    for n, inputs in zip(range(8), random_inputs(*shapes)):
        found, counters = counted(lambda: device.infer(inputs))  # noqa: B023
        if n >= 2:
            assert (counters.graph_launches, counters.launches) == (1, 0), f"inference {n}: {counters}"
            assert counters.h2d_bytes == sum(x.nbytes for x in inputs)
            assert counters.d2h_bytes == sum(y.nbytes for y in found.to_tuple())
            assert counters.captured_loads == 0
        if n >= 4:  # both parities of the variables are captured
            assert counters.allocs == 0 and counters.d2d_bytes == 0


def test_one_graph_after_a_reset(emulated: str) -> None:
    """A reset restores the initial values, and the graphs remain valid."""
    ir, shapes = MODELS["lstm-state"]
    host, device = requests(ir, emulated)
    inputs = random_inputs(*shapes)
    for n in range(12):
        if n in (5, 8):
            host.reset_state()
            device.reset_state()
        given = next(inputs)
        found, counters = counted(lambda: device.infer(given))  # noqa: B023
        close(found, host.infer(given))
        if n >= 2:  # six initial values are copied to the variables; two of them are new zeros
            assert (counters.graph_launches, counters.launches) == (1, 8 if n in (5, 8) else 0), f"{n}: {counters}"


def test_a_state_is_downloaded_only_when_read(emulated: str) -> None:
    ir, shapes = MODELS["lstm-state"]
    _, device = requests(ir, emulated)
    for _, inputs in zip(range(4), random_inputs(*shapes)):
        device.infer(inputs)
    _, counters = counted(lambda: [s.state.data for s in device.query_state()])
    assert counters.d2h_bytes == 6 * 48 * 4 and counters.graph_launches == 0


def test_requests_have_graphs_of_their_own(emulated: str) -> None:
    core = ov.Core()
    ir, shapes = MODELS["lstm-state"]
    compiled = core.compile_model(core.read_model(*ir), emulated)
    reference = core.compile_model(core.read_model(*ir), "CPU")
    pairs = [(compiled.create_infer_request(), reference.create_infer_request()) for _ in range(2)]
    for n, inputs in zip(range(9), random_inputs(*shapes)):
        device, host = pairs[n % 3 == 0]
        close(device.infer(inputs), host.infer(inputs))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_iterators_of_changing_lengths(batch: int, axis: int, backwards: bool, emulated: str) -> None:
    """Slices run along either axis, and alternating lengths have graphs."""
    net = iterators.cell("LSTMCell", batch, axis, backwards)
    host, device = requests(net.build(), emulated)
    for n, length in enumerate([4, 4, 6, 6, 4, 4, 1, 6, 6]):
        x = numbers(*((batch, length, 5) if axis == 1 else (length, batch, 5)), seed=n)
        found, counters = counted(lambda: device.infer([x]))  # noqa: B023
        close(found, host.infer([x]))
    assert counters.graph_launches == 1 and counters.launches == 0


@pytest.mark.parametrize(
    "scenario",
    [
        s
        for s in iterators.SCENARIOS
        if s.id
        in (
            "last",
            "all",
            "last-and-all",
            "two-back-edges",
            "swap",
            "swap-without-maths",
            "rotation",
            "delay-of-three",
            "fed-back-view",
            "both-directions",
            "two-stacked",
            "long",
            "iterator-in-an-iterator",
        )
    ],
    ids=lambda s: s.id,
)
def test_iterators(scenario: Any, emulated: str) -> None:
    """Graphs give the CPU's results repeatedly, with other inputs in between."""
    host, device = requests(scenario.net.build(), emulated)
    for _ in range(3):
        for step in scenario.steps:
            if len(step.inputs["x"]) < 100:
                close(device.infer(step.inputs), host.infer(step.inputs))
