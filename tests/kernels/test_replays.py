"""Replays of an earlier inference, which search and make no bindings, but check the replay's conditions each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.runtime.executor import Executor
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net
from tests.harness.layers import add, scalar

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
Count = Callable[[], int]


@pytest.fixture
def search_count(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Return a function that gives the number of executors' searches for a binding since its last call."""
    found, bound = [0], Executor._binding_for

    def count(*args: Any) -> Any:
        found[0] += 1
        return bound(*args)

    def take() -> int:
        count, found[0] = found[0], 0
        return count

    monkeypatch.setattr(Executor, "_binding_for", count)
    return take


def resident(array: Any) -> Any:
    return ov.Tensor(cp.asarray(array), shared_memory=True)


def running(names: int = 2) -> Any:
    """Return a model whose variables each sum up all inputs so far."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    for name in map(str, range(names)):
        after = add(net, net.read_value(name, "f32", (2, 3), net.const(np.zeros((2, 3), np.float32))), x)
        net.assign(name, after)
        net.result(add(net, after, scalar(net, float(name))))
    return net.build()


def test_tensors_on_the_device(compiled: Any, search_count: Count) -> None:
    request = compiled(nets.one()).create_infer_request()
    request.set_input_tensor(resident(X)), request.set_output_tensor(resident(0 * X))
    for n in range(6):
        request.get_input_tensor().device_array[...] = cp.asarray(n * X)
        cp.counters.reset()
        found = request.infer()[0]
        np.testing.assert_array_equal(found.get(), np.abs(n * X))
        if n > 1:
            assert not search_count() and (cp.counters.graph_launches, cp.counters.launches, cp.counters.allocs) == (
                1,
                0,
                0,
            )
        else:
            assert search_count()


def test_arrays_on_the_device(compiled: Any, search_count: Count) -> None:
    """Arrays that are shared with each call are replayed where they are, from their third call on."""
    model = compiled(nets.one())
    x, y = (cp.asarray(X) for _ in range(2))
    for n in range(5):
        x[...] = cp.asarray(n * X)
        np.testing.assert_array_equal(model([x])[0], np.abs(n * X))
        assert (search_count() == 0) == (n > 2)
    x[...] = cp.asarray(X)
    for n in range(5):  # other addresses, in turn
        y[...] = cp.asarray((n - 2) * X)
        for array, wanted in ((y, (n - 2) * X), (x, X)):
            np.testing.assert_array_equal(model([array])[0], np.abs(wanted))
        assert (search_count() == 0) == (n > 2)
    np.testing.assert_array_equal(model([cp.asarray(2 * X.astype(np.float64))])[0], np.abs(2 * X))  # it is converted
    np.testing.assert_array_equal(model([cp.asarray(np.ones((3, 2), np.float32)).T])[0], np.ones((2, 3)))
    np.testing.assert_array_equal(model([3 * X])[0], np.abs(3 * X))


def test_tensors_on_the_host(compiled: Any, search_count: Count) -> None:
    """Inferences with the request's own tensors are replayed, and those with tensors and arrays that are copied."""
    request = compiled(nets.one()).create_infer_request()
    for n in range(6):
        np.testing.assert_array_equal(request.infer([n * X])[0], np.abs(n * X))
        assert (search_count() == 0) == (n > 1)
    x = X.copy()
    request.set_input_tensor(ov.Tensor(x, shared_memory=True))
    for n in range(6):
        x[...] = n * X
        np.testing.assert_array_equal(request.infer()[0], np.abs(n * X))
        assert (search_count() == 0) == (n > 1)
    for n in range(6):
        np.testing.assert_array_equal(request.infer([n * X], share_inputs=True)[0], np.abs(n * X))
        assert not search_count()  # its copies lie where those of the tensor did


def test_other_addresses(compiled: Any, search_count: Count) -> None:
    """Each pair of addresses has its own graph, and replays distinguish the last few pairs."""
    request = compiled(nets.one()).create_infer_request()
    inputs, outputs = [resident(n * X) for n in range(3)], [resident(0 * X) for _ in range(2)]
    for n in range(30):
        request.set_input_tensor(inputs[n % 3]), request.set_output_tensor(outputs[n % 2])
        np.testing.assert_array_equal(request.infer()[0].get(), np.abs(n % 3 * X))
    search_count()
    for n in range(8):
        request.set_input_tensor(inputs[n % 2]), request.set_output_tensor(outputs[n % 2])
        np.testing.assert_array_equal(request.infer()[0].get(), np.abs(n % 2 * X))
        count = search_count()
        assert n < 2 or not count


def test_other_shapes(compiled: Any) -> None:
    request = compiled(nets.one((-1, 3))).create_infer_request()
    for n in range(24):
        x = np.tile(X, (1 + n // 4 % 3, 1)) * n
        if n % 8 < 4:
            found = request.infer([x])[0]
        else:
            request.set_input_tensor(resident(x))
            found = request.infer()[0]
        np.testing.assert_array_equal(found, np.abs(x))


def test_replaced_tensors_are_released(compiled: Any) -> None:
    """A request does not retain replaced device tensors beyond its last few bindings."""
    request = compiled(nets.one()).create_infer_request()
    pool, used = cp.get_default_memory_pool(), []
    for n in range(20):
        request.set_input_tensor(resident(n * X)), request.set_output_tensor(resident(0 * X))
        for _ in range(4):
            np.testing.assert_array_equal(request.infer()[0].get(), np.abs(n * X))
        used.append(pool.used_bytes())
    assert used[-1] == used[10]


def test_states(compiled: Any, search_count: Count) -> None:
    request = compiled(running()).create_infer_request()
    request.set_input_tensor(resident(X))
    total = 0 * X

    def check(times: int) -> None:
        nonlocal total
        for _ in range(times):
            total = total + X
            for number, found in enumerate(request.infer().to_tuple()):
                np.testing.assert_array_equal(found, total + number)
        np.testing.assert_array_equal(request.query_state()[0].state.data, total)

    check(8)
    search_count()
    check(5)
    assert not search_count()
    request.reset_state()
    total = 0 * X
    check(5)
    total = np.full_like(X, 9)
    for state in request.query_state():
        state.state = ov.Tensor(total)
    search_count()
    check(3)
    assert not search_count()
    request._release_memory()
    check(5)


def test_failures(compiled: Any, search_count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed replay leaves the states unchanged and the request usable."""
    request = compiled(running()).create_infer_request()
    request.set_input_tensor(resident(X))
    for _ in range(7):
        request.infer()
    search_count()

    def fail() -> None:
        raise ValueError("no")

    with monkeypatch.context() as patch:
        patch.setattr(request._session.backend, "synchronize", fail)
        with pytest.raises(ov.Error, match="ValueError: no"):
            request.infer()
    np.testing.assert_array_equal(request.query_state()[1].state.data, 7 * X)
    np.testing.assert_array_equal(request.infer()[0], 8 * X)
    assert not search_count()


def test_one_event_for_arrays_of_one_stream(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(nets.two()).create_infer_request()
    for number, array in enumerate((X, np.arange(4))):
        request.set_input_tensor(number, resident(array))
    for _ in range(3):
        request.infer()
    streams = type(request._session.backend.stream)
    waited, wait = [0], streams.wait_event

    def count(*args: Any) -> None:
        waited[0] += 1
        wait(*args)

    monkeypatch.setattr(streams, "wait_event", count)
    request.infer()
    assert waited[0] == 1


def test_a_replaced_arena_is_freed(emulated: str) -> None:
    """A replay does not keep an arena alive that a larger one has replaced."""
    net = Net()
    x = net.parameter("f32", (-1, 64), "x")
    y = net.layer("SoftMax", "opset8", [net.layer("SoftMax", "opset8", [x], {"axis": 0})], {"axis": 1})
    net.result(y)
    core = ov.Core()
    request = core.compile_model(core.read_model(*net.build()), emulated).create_infer_request()
    for _ in range(4):
        request.infer([np.ones((500, 64), np.float32)])
    (binding,) = request._session.last.bindings[0].values()
    old = ref(binding)
    del binding
    request.infer([np.ones((5000, 64), np.float32)])
    assert old() is None
