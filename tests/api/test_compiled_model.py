"""CompiledModel: calls, ports and the private request, compared with openvino's."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import ovgpu

from . import nets
from .sides import LIBRARIES, agree, check, compiled

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@agree("""
    c = comp(two()); [c.inputs, c.outputs, c.input(0), c.input("x"), c.output("rr"), c.output(1)]
    c = comp(one()); [c.input(), c.output()]
    comp(two()).input()
    comp(two()).output()
    comp(two()).input("z")
    comp(two()).input(7)
    comp(two()).output(-1)
    comp(two()).output(1.5)
    c = comp(two()); [c.input(0).any_name, c.output(0).any_name, c.output(0).get_index(), c.input(1).get_names()]
    c = comp(two()); [c.input(0).node.friendly_name, c.output(0).get_node().get_type_name(),
        c.input(0).get_shape()[1]]
    c = comp(two()); [str(c.input(1).partial_shape), c.input(1).partial_shape.is_dynamic, c.input(1).element_type]
    comp(two()).input(1).shape
    c = comp(two()); [c.output(0) == c.output(0), c.output(0) == c.output(1), c.output(0) == 3,
        c.output(0) != c.output(0)]
    c = comp(two()); {c.output(0): 1}[c.create_infer_request().model_outputs[0]]
    c = comp(one()); repr(c)
    c = comp(one()); repr(c.create_infer_request())
    c = comp(one()); [c.create_infer_request().get_compiled_model() == c,
        c.create_infer_request().get_compiled_model().inputs]
    comp(one()).get_runtime_model().friendly_name
    [comp(one()).release_memory(), comp(one())(np.ones((2, 3)))[0]]
    c = comp(total()); x = np.ones((1, 3), "f4"); [c(x)[0], c(x)[0], c.reset_state(), c(x)[0]]
    c = comp(total()); x = np.ones((1, 3), "f4"); c(x); [c.infer_new_request(x)[0], c(x)[0],
        c.create_infer_request().infer(x)[0]]
    c = comp(total()); x = np.ones((1, 3), "f4"); c(x); [s.name for s in c.query_state()]
""")
def test_agrees(code: str) -> None:
    check(code)


@LIBRARIES
def test_execution_graph(ov: Any) -> None:
    """Nodes have the information that tools read: times if the model is profiled and has run."""
    for profiled in (False, True):
        c = compiled(ov, nets.one(), {"PERF_COUNT": profiled})
        c(X)
        nodes = c.get_runtime_model().get_ordered_ops()
        info = {
            node.get_friendly_name(): {key: value.value for key, value in node.get_rt_info().items()} for node in nodes
        }
        assert all(
            {
                "execOrder",
                "execTimeMcs",
                "layerType",
                "originalLayersNames",
                "outputLayouts",
                "outputPrecisions",
                "primitiveType",
                "runtimePrecision",
            }
            == entries.keys()
            for entries in info.values()
        )
        assert [int(entries["execOrder"]) for entries in info.values()] == list(range(len(nodes)))
        assert {"Input", "Output"} <= {entries["layerType"] for entries in info.values()}
        assert any(entries["execTimeMcs"].isdigit() for entries in info.values()) is profiled
        assert info["x"]["outputPrecisions"] == "f32" and info["x"]["outputLayouts"] == "ab"


def test_ports_of_the_model_are_those_of_the_compiled_one() -> None:
    """Ports from before and after compiling are equal, as keys of inputs and of results."""
    model = ovgpu.Core().read_model(*nets.two())
    before, inputs = model.output(1), model.inputs
    c = ovgpu.Core().compile_model(model, "CPU")
    assert before == c.output(1) and c.output(1) == before and hash(before) == hash(c.output(1))
    assert before != c.output(0) and c.output(1) not in inputs
    result = c({inputs[0]: X, c.input(1): [-7]})
    assert result[before].tolist() == result[c.output(1)].tolist() == [7]
    again = ovgpu.Core().compile_model(model, "CPU")
    assert result[again.output(1)].tolist() == [7]
    assert result[c.create_infer_request().model_outputs[1]].tolist() == [7]


def test_ports_do_not_follow_the_model() -> None:
    model = ovgpu.Core().read_model(*nets.two())
    c = ovgpu.Core().compile_model(model, "CPU")
    model.reshape({"y": [5]})
    model.output(0).set_names({"other"})
    assert str(c.input(1).partial_shape) == "[?]" and c.output(0).get_names() == {"r", "rr"}
    c.output(0).get_names().add("more")
    assert c.output(0).get_names() == {"r", "rr"}
    with pytest.raises(TypeError):
        c.output(0).set_names({"no"})
    assert c([X, [1, 2]])[1].tolist() == [1, 2]


@LIBRARIES
def test_shares_inputs_by_default(ov: Any) -> None:
    """The request reads the array when the inference runs, and makes no copy before."""
    c = compiled(ov, nets.one((300, 300)))
    x = np.full((300, 300), -1, np.float32)
    assert c(x)[0][0, 0] == 1
    x[:] = -2
    assert c()[0][0, 0] == 2
    y = np.full((300, 300), -3, np.float32)
    assert c(y, share_inputs=False)[0][0, 0] == 3
    y[:] = -4
    assert c()[0][0, 0] == 3


@LIBRARIES
def test_results_are_copies_unless_shared(ov: Any) -> None:
    c = compiled(ov, nets.one())
    copied, shared = c(X)[0], c(X, share_outputs=True)[0]
    assert copied.flags.owndata and not shared.flags.owndata
    c(np.zeros_like(X))
    assert copied.tolist() == np.abs(X).tolist() and shared.tolist() == np.zeros_like(X).tolist()


@pytest.mark.parametrize("shape", [(2, 3), (200, 300)])
def test_a_shared_output_as_the_next_input(shape: tuple[int, int]) -> None:
    """The inference does not overwrite an input that it still reads (OpenVINO's CPU plugin does)."""
    net = nets.Net("turn")
    x = net.parameter("f32", shape, "x")
    flipped = net.layer("Reverse", "opset1", [x, net.const(np.array([1]))], {"mode": "index"})
    net.result(net.layer("Add", "opset1", [flipped, net.const(np.float32(1))]))
    c = compiled(ovgpu, net.build())
    expected = value = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    for _ in range(3):
        value, expected = c(value, share_outputs=True)[0], expected[:, ::-1] + 1
    np.testing.assert_array_equal(value, expected)


def test_private_request_is_made_once() -> None:
    c = compiled(ovgpu, nets.total())
    start = threading.Barrier(8)
    found = []

    def first() -> None:
        start.wait()
        found.append(c._request())

    threads = [threading.Thread(target=first) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_threads_with_requests_of_their_own(dynamic: bool) -> None:
    """Several threads build programs and constants of one model at the same time."""
    net = nets.Net("mlp")
    x = net.parameter("f32", None if dynamic else (-1, 4), "x")
    w = np.arange(16, dtype="f4").reshape(4, 4)
    y = net.layer("MatMul", "opset1", [x, net.const(w)], {"transpose_a": False, "transpose_b": False})
    v = net.read_value("v", "f32", (-1, 4) if not dynamic else None, net.const(np.zeros((1, 4), "f4")))
    s = net.layer("Add", "opset1", [y, v])
    net.assign("v", s)
    net.result(s)
    c = compiled(ovgpu, net.build())
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def work(seed: int) -> None:
        try:
            start.wait()
            request, total = c.create_infer_request(), np.zeros((1, 4), "f4")
            for k in range(20):
                a = np.full((1 + (seed + k) % 3, 4), seed, "f4")
                if total.shape != a.shape and len(total) > 1:
                    request.reset_state()
                    total = np.zeros((1, 4), "f4")
                total = a @ w + total
                np.testing.assert_array_equal(request.infer([a])[0], total)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_ranks_met_at_run_time() -> None:
    c = compiled(ovgpu, nets.one(None))
    for shape in ((3,), (2, 3), (), (1, 2, 3), (3,)):
        assert c(np.full(shape, -1, "f4"))[0].tolist() == np.ones(shape).tolist()


def test_request_keeps_the_model_and_not_the_reverse() -> None:
    """A request keeps the compilation alive; the compiled model itself is freed without the garbage collector."""
    c = compiled(ovgpu, nets.total())
    c(np.ones((1, 3), "f4"))
    request, shared = c.create_infer_request(), weakref.ref(c._compilation)
    gone = weakref.ref(c)
    gc.disable()
    try:
        del c
        assert gone() is None and shared() is not None
        assert request.infer(np.ones((1, 3), "f4"))[0].tolist() == [[1, 1, 1]]
        del request
    finally:
        gc.enable()
    gc.collect()
    assert shared() is None
