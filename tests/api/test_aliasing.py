"""Memory that inputs, outputs and the caller share: when it is read and written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ovgpu

from . import nets
from .sides import request

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.mark.parametrize("shape", [(2, 3), (300, 300)])
@pytest.mark.parametrize("offset", [0, 1, -1])
def test_output_that_overlaps_the_input(shape: tuple[int, int], offset: int) -> None:
    """The inference uses the input as it was at its start, even if the output overlaps it."""
    net = nets.Net("shift")
    x = net.parameter("f32", shape, "x")
    mean = net.layer("ReduceMean", "opset1", [x, net.const(np.array([0]))], {"keep_dims": True})
    net.result(
        net.layer(
            "Subtract",
            "opset1",
            [net.layer("Reverse", "opset1", [x, net.const(np.array([1]))], {"mode": "index"}), mean],
        )
    )
    size = shape[0] * shape[1]
    memory = np.random.RandomState(1).standard_normal(size + 2).astype("f4")
    source = memory[1 : size + 1].reshape(shape)
    target = memory[1 + offset : size + 1 + offset].reshape(shape)
    expected = source[:, ::-1] - source.mean(0, keepdims=True)
    r = request(ovgpu, net.build())
    r.set_input_tensor(ovgpu.Tensor(source, shared_memory=True))
    r.set_output_tensor(ovgpu.Tensor(target, shared_memory=True))
    r.infer()
    np.testing.assert_allclose(target, expected, rtol=1e-5, atol=1e-5)


def test_bound_outputs_are_written_in_place() -> None:
    r = request(ovgpu, nets.one((-1, 3)))
    tensor = ovgpu.Tensor(ovgpu.Type.f32, [4, 3])
    memory = tensor.data
    r.set_output_tensor(tensor)
    for rows in (4, 2, 3):
        r.infer(np.full((rows, 3), -rows, "f4"))
        assert list(tensor.shape) == [rows, 3]
        assert np.shares_memory(tensor.data, memory) and (memory[:rows] == rows).all()
    assert r.get_output_tensor() is tensor


def test_outputs_that_are_inputs() -> None:
    """A result that is a parameter, a constant or a view of one does not share their memory."""
    net = nets.Net("straight")
    x = net.parameter("f32", (2, 3), "x")
    net.result(x)
    net.result(net.const(np.float32([1, 2])))
    net.result(net.layer("Transpose", "opset1", [x, net.const(np.array([1, 0]))]))
    r = request(ovgpu, net.build())
    a = X.copy()
    first = r.infer(a, share_inputs=True, share_outputs=True)
    first[0][:] = 9
    first[1][:] = 9
    assert a.tolist() == X.tolist()
    again = r.infer(a)
    assert again[0].tolist() == X.tolist() and again[1].tolist() == [1, 2] and again[2].tolist() == X.T.tolist()


def test_an_array_that_does_not_fit_the_bound_tensor() -> None:
    """The request's own tensor takes it. An array that fits goes into the bound tensor, as in OpenVINO."""
    memory = np.full((2, 3), 9, np.float32)
    r = request(ovgpu, nets.one((-1, 3)))
    r.set_input_tensor(ovgpu.Tensor(memory, shared_memory=True))
    assert r.infer([-X])[0].tolist() == np.abs(X).tolist() and memory.tolist() == (-X).tolist()
    assert r.infer([np.full((4, 3), -5)])[0].tolist() == [[5] * 3] * 4
    assert r.infer([-X + 1])[0].tolist() == np.abs(1 - X).tolist() and memory.tolist() == (-X).tolist()


ACTIONS = st.tuples(
    st.sampled_from(["infer", "infer", "async", "bind input", "bind output", "own output", "mutate", "feed back"]),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([3, 20000]), st.lists(ACTIONS, min_size=1, max_size=12))
def test_any_sequence(width: int, actions: list[tuple[str, int, bool, bool]]) -> None:
    """Results are right whatever was shared before. Copies and the caller's inputs do not change."""
    net = nets.Net("mix")
    x = net.parameter("f32", (-1, width), "x")
    reversed_x = net.layer("Reverse", "opset1", [x, net.const(np.array([1]))], {"mode": "index"})
    net.result(net.layer("Subtract", "opset1", [reversed_x, net.const(np.float32(1))]))
    r = request(ovgpu, net.build())
    current: np.ndarray | None = None  # the memory that the request reads
    copies: list[tuple[np.ndarray, np.ndarray]] = []  # results returned as copies, and their values then
    shared: list[tuple[np.ndarray, np.ndarray]] = []  # inputs of the caller, and their values then
    number = 0.0

    def fresh(rows: int) -> np.ndarray:
        nonlocal number
        number += 1
        return np.arange(rows * width, dtype=np.float32).reshape(rows, width) + np.float32(number)

    for action, rows, share, share_outputs in actions:
        array = fresh(rows)
        if action == "bind input":
            r.set_input_tensor(ovgpu.Tensor(array, shared_memory=True))
            current = array
            continue
        if action == "bind output":
            r.set_output_tensor(ovgpu.Tensor(np.zeros((4, width), np.float32), shared_memory=True))
            continue
        if action == "own output":
            r.set_output_tensor(ovgpu.Tensor(ovgpu.Type.f32, [0, width]))
            continue
        if action == "mutate":
            if current is None or not any(current is a for a, _ in shared):
                continue
            shared = [(a, b) for a, b in shared if a is not current]
            current += 1
            expected, inputs = current[:, ::-1] - 1, None
        elif action == "feed back" and current is not None:
            inputs = r.infer(share_outputs=True)[0]
            expected, current, share = inputs[:, ::-1] - 1, None, True
        else:
            inputs, expected, current = array, array[:, ::-1] - 1, array if share else None
            shared.append((array, array.copy()))
        if action == "async":
            r.start_async(inputs, share_inputs=share)
            r.wait()
            result = r.results[0]
        else:
            result = r.infer(inputs, share_inputs=share, share_outputs=share_outputs)[0]
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(r.get_output_tensor().data, expected)
        if action == "async" or not share_outputs:
            copies.append((result, result.copy()))
        for array, before in copies + shared:
            np.testing.assert_array_equal(array, before)
