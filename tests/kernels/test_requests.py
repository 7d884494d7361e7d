"""Requests on the emulated device, whose memory is separate from the host's."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.api import nets
from tests.harness.ir import Net

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.fixture
def compiled(emulated: str) -> Any:
    core = ov.Core()
    return lambda ir: core.compile_model(core.read_model(*ir), emulated)


def test_results_are_on_the_host(compiled: Any) -> None:
    model = compiled(nets.one((-1, 3)))
    assert model.get_property("EXECUTION_DEVICES") == ["EMULATED"]
    for x in (X, X[:1], 3 * X):
        np.testing.assert_array_equal(model(x)[model.output(0)], np.abs(x))
    request = model.create_infer_request()
    tensor = request.get_output_tensor()
    for x in (X, X[:1], 3 * X):
        request.start_async(x)
        request.wait()
        assert request.get_output_tensor() is tensor
        np.testing.assert_array_equal(tensor.data, np.abs(x))
    shared = request.infer(X, share_outputs=True)[0]
    request.infer(2 * X)
    np.testing.assert_array_equal(shared, np.abs(2 * X))


def test_bound_tensors(compiled: Any) -> None:
    request = compiled(nets.one((-1, 3))).create_infer_request()
    source, target = X.copy(), np.zeros((4, 3), np.float32)
    request.set_input_tensor(ov.Tensor(source, shared_memory=True))
    request.set_output_tensor(ov.Tensor(target, shared_memory=True))
    for factor in (1, 2, 3):
        source[:] = factor * X
        request.infer()
        np.testing.assert_array_equal(target[:2], np.abs(factor * X))
    assert not target[2:].any() and list(request.get_output_tensor().shape) == [2, 3]
    request.set_output_tensor(ov.Tensor(source, shared_memory=True))
    request.infer()
    np.testing.assert_array_equal(source, np.abs(3 * X))


@pytest.mark.parametrize("init", [None, [[1.0, 2, 3]]])
def test_state(compiled: Any, init: Any) -> None:
    model, x = compiled(nets.total(init=init)), np.ones((1, 3), np.float32)
    begin = np.zeros((1, 3)) if init is None else np.array(init)
    first, second = model.create_infer_request(), model.create_infer_request()
    for k in range(1, 5):
        np.testing.assert_array_equal(first.infer(x)[0], begin + k)
    (state,) = first.query_state()
    np.testing.assert_array_equal(state.state.data, begin + 4)
    np.testing.assert_array_equal(second.infer(x)[0], begin + 1)
    state.state = ov.Tensor(np.full((1, 3), 10, np.float32))
    np.testing.assert_array_equal(first.infer(x)[0], np.full((1, 3), 11))
    state.reset()
    np.testing.assert_array_equal(state.state.data, begin)
    np.testing.assert_array_equal(first.infer(x)[0], begin + 1)
    first.reset_state()
    np.testing.assert_array_equal(first.infer(x)[0], begin + 1)


MEETING = threading.Barrier(3, timeout=60)


@ov.register_op("Meet", "request_tests")
class Meet(ov.Op):
    """Identity that returns once three inferences have reached it."""

    def infer_specs(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        MEETING.wait()
        return (x + 0,)


def test_inferences_overlap(compiled: Any) -> None:
    """Inferences run on streams of their own, and none waits for another to end."""
    net = Net("meeting")
    x = net.layer("Abs", "opset1", [net.parameter("f32", (2, 3), "x")])
    net.result(net.layer("Meet", "request_tests", [x]))
    model = compiled(net.build())
    requests = [model.create_infer_request() for _ in range(3)]
    assert len({request._session.backend.stream.ptr for request in requests}) == 3
    for n in range(3):
        for k, request in enumerate(requests):
            request.start_async([(n + k) * X])
        for k, request in enumerate(requests):
            request.wait()
            np.testing.assert_array_equal(request.get_output_tensor().data, np.abs((n + k) * X))


def test_queue(compiled: Any) -> None:
    queue, found = ov.AsyncInferQueue(compiled(nets.one()), 2), {}
    queue.set_callback(lambda request, item: found.update({item: request.results[0]}))
    for item in range(6):
        queue.start_async([item * X], item)
    queue.wait_all()
    for item in range(6):
        np.testing.assert_array_equal(found[item], np.abs(item * X))
