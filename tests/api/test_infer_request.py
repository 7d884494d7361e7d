"""InferRequest: tensors and state, compared with openvino's."""

from __future__ import annotations

import numpy as np
import pytest

import ovgpu

from . import nets
from .sides import agree, check, request

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


# ---- tensors

T = 'ov.Tensor(np.ones((2, 3), "f4"))'


@agree(f"""
    r = req(one()); [r.get_tensor("x").shape, r.get_tensor("out").element_type, r.get_tensor(r.model_inputs[0]).shape]
    r = req(one((-1, 3))); [r.get_input_tensor(), r.get_output_tensor(), r.input_tensors, r.output_tensors]
    r = req(one(())); [r.get_input_tensor().shape, r.input_tensors[0].shape, r.get_output_tensor().shape, r.infer(3)]
    r = req(one()); t = r.get_input_tensor(); t.data[:] = -4; r.infer()
    r = req(one((-1, 3))); t = r.get_input_tensor(); t.shape = [2, 3]; t.data[:] = -4; r.infer()
    r = req(one()); t = r.get_output_tensor(); r.infer(np.ones((2, 3))); t.data
    r = req(one((-1, 3))); r.infer(np.ones((2, 3))); t = r.get_output_tensor(); r.infer(-np.ones((4, 3))); t
    r = req(one((-1, 3))); t = r.get_output_tensor(); r.infer(np.ones((4, 3))); r.infer(-np.ones((2, 3))); t
    r = req(one()); r.infer(np.ones((2, 3))); a = r.results[0]; a[:] = 9; [r.results, r.get_output_tensor().data]
    r = req(one()); a = r.infer(np.ones((2, 3)), share_outputs=True)[0]; a[:] = 9; r.results
    r = req(one()); a = -np.ones((2, 3), "f4"); r.infer(a, share_inputs=True); a[:] = -5; r.infer()
    r = req(one()); a = -np.ones((2, 3), "f4"); r.infer(a); a[:] = -5; r.infer()
    r = req(one()); a = -np.ones((2, 3), "f4"); r.infer(a, share_inputs=True); r.get_input_tensor().data
    r = req(one()); r.get_tensor("nope")
    r = req(one()); r.get_tensor(0)
    r = req(one()); r.get_input_tensor(1)
    r = req(one()); r.get_input_tensor("x")
    r = req(two()); r.get_input_tensor()
    r = req(two()); r.get_output_tensor(2)
    r = req(two()); r.get_output_tensor()
    r = req(two()); r.set_input_tensor({T})
    r = req(one()); r.set_input_tensor(np.ones((2, 3), "f4"))
    r = req(one()); r.set_input_tensor(ov.Tensor(np.ones((2, 4), "f4")))
    r = req(one()); r.set_input_tensor(ov.Tensor(np.ones((2, 3), "f8")))
    r = req(one()); r.set_output_tensor(ov.Tensor(np.ones((2, 3), "f8")))
    r = req(one()); r.set_output_tensor(ov.Tensor(np.ones((2, 4), "f4")))
    r = req(one((-1, 3))); r.set_output_tensor(ov.Tensor(np.ones((2, 4), "f4")))
    r = req(one()); r.set_input_tensor({T}); r.infer()
    r = req(one()); r.set_input_tensor(0, {T}); r.infer()
    r = req(one()); r.set_input_tensor(index=0, tensor={T}); r.infer()
    r = req(one()); r.set_input_tensor(tensor={T}); r.infer()
    r = req(one()); r.set_input_tensor(0, 1, {T})
    r = req(one()); r.set_input_tensors([{T}]); r.infer()
    r = req(two()); r.set_input_tensors([{T}, {T}])
    r = req(two()); r.set_input_tensors({{0: {T}, 1: ov.Tensor(np.array([-1]))}}); r.infer()
    r = req(one()); r.set_input_tensors({{3: {T}}})
    r = req(one()); r.set_tensors({{"zz": {T}}})
    r = req(two()); r.set_tensors({{"x": {T}, "y": ov.Tensor(np.array([-1])), "r": {T}}}); r.infer()
    r = req(two()); r.set_output_tensors([{T}])
    r = req(two()); r.set_output_tensors({{0: {T}}}); r.infer([np.zeros((2, 3)), np.array([3])])
    r = req(two()); r.set_tensor("x", {T}); r.set_tensor(r.model_inputs[1], ov.Tensor(np.array([-3]))); r.infer()
    r = req(two()); r.set_tensor(0, {T})
    r = req(two()); r.set_tensor("x", np.ones((2, 3), "f4"))
    r = req(two()); r.set_tensor("zz", {T})
    r = req(one()); t = {T}; r.set_tensor("out", t); [r.infer(-np.ones((2, 3)) * 7), t.data, r.get_tensor("out").data]
    r = req(one()); a = np.zeros((2, 3), "f4"); r.set_output_tensor(ov.Tensor(a, shared_memory=True));
        [r.infer(-np.ones((2, 3))), a]
    r = req(one()); a = -np.ones((2, 3), "f4"); t = ov.Tensor(a, shared_memory=True); r.set_output_tensor(t);
        r.set_input_tensor(t); [r.infer(), a]
    r = req(one((-1, 3))); a = np.zeros((4, 3), "f4"); t = ov.Tensor(a, shared_memory=True);
        r.set_output_tensor(t); [r.infer(-np.ones((2, 3))), a, t.shape[0]]
    r = req(one((-1, 3))); a = np.zeros((1, 3), "f4"); r.set_output_tensor(ov.Tensor(a, shared_memory=True));
        r.infer(np.ones((2, 3)))
    r = req(one((-1, 3))); t = ov.Tensor(ov.Type.f32, ov.Shape([1, 3])); r.set_output_tensor(t);
        [r.infer(-np.ones((2, 3))), t]
    r = req(one((-1, 3))); t = ov.Tensor(ov.Type.f32, ov.Shape([0])); r.set_output_tensor(t);
        [r.infer(-np.ones((2, 3))), t]
    r = req(one()); [r.model_inputs, r.model_outputs, r.latency, r.userdata]
    [ov.ProfilingInfo.Status.EXECUTED, str(ov.ProfilingInfo.Status.NOT_RUN),
        ov.ProfilingInfo.Status.OPTIMIZED_OUT.value]
    r = req(one(), {{"PERF_COUNT": True}}); r.infer(np.ones((2, 3)));
        [p.status == ov.ProfilingInfo.Status.EXECUTED for p in r.profiling_info if p.node_name == "Abs_1"]
    hasattr(req(one()), "inputs")
    r = req(one(), {{"PERF_COUNT": True}}); r.infer(np.ones((2, 3)));
        {{"Abs_1": str(p.status) for p in r.profiling_info if p.node_name == "Abs_1"}}
    r = req(one()); r.infer(np.ones((2, 3))); [type(p.real_time).__name__ for p in r.get_profiling_info()][:1]
    r = req(one()); r.infer(np.ones((2, 3))); [r.latency > 0, r.latency < 1000]
""")
def test_tensors(code: str) -> None:
    check(code)


# ---- state

STATE = 'c = comp(total()); x = np.ones((1, 3), "f4"); c(x); s = c.query_state()[0]; '


@agree("""
    [s.name, s.state]
    t = s.state; c(x); u = s.state; [t.data, u.data]
    s.state = ov.Tensor(np.full((1, 3), 5, "f4")); t = s.state; [c(x)[0], s.reset(), c(x)[0]]
    c.reset_state(); s = c.query_state()[0]; t = s.state; [t.data.copy(), c(x)[0]]
    r = c.create_infer_request(); s = r.query_state()[0]; t = s.state;
        [t.data.copy(), r.infer(x)[0], r.infer(x)[0], c(x)[0]]
    r = c.create_infer_request(); s = r.query_state()[0]; s.state = ov.Tensor(np.full((1, 3), 5, "f4")); r.infer(x)
    r = c.create_infer_request(); [r.infer(x)[0], r.reset_state(), r.infer(x)[0]]
    s.state = ov.Tensor(np.ones((1, 4), "f4")); c(x)
    s.state = ov.Tensor(np.ones((1, 3), "f8")); c(x)
""")
def test_state(code: str) -> None:
    check(STATE + code)


def test_initial_state_that_depends_on_inputs() -> None:
    net = nets.Net("init")
    x = net.parameter("f32", (-1, 2), "x")
    double = net.layer("Multiply", "opset1", [x, net.const(np.float32(2))])
    for name, init in (("a", double), ("b", net.const(np.float32([[7, 8]]))), ("c", None)):
        v = net.read_value(name, "f32", (-1, 2), init)
        net.assign(name, net.layer("Add", "opset1", [v, net.const(np.float32(1))]))
        net.result(v)
    r = request(ovgpu, net.build())
    states = {s.name: s for s in r.query_state()}
    assert [states[n].state.data.tolist() for n in "abc"] == [[], [[7, 8]], []]
    x1, x2 = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])
    a, b, c = r.infer(x1).to_tuple()
    assert (a.tolist(), b.tolist(), c.shape) == ([[2, 4]], [[7, 8]], (0, 2))
    states["a"].reset()
    a, b, c = r.infer(x2).to_tuple()
    assert (a.tolist(), b.tolist()) == ([[6, 8], [10, 12]], [[8, 9]])
    r.reset_state()
    assert r.infer(x1)[0].tolist() == [[2, 4]]


def test_a_failed_inference_leaves_everything_usable() -> None:
    r = request(ovgpu, nets.fragile())
    assert r.infer([1, 2])[0].tolist() == [1, 2]
    for run in (
        lambda: r.infer({"x": [-5, 2]}),
        lambda: (r.start_async({"x": [-5, 2]}), r.wait()),
        lambda: r.infer({"x": [1, 2, 3]}),
        lambda: r.start_async({"x": "text"}),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            run()
        assert r.query_state()[0].state.data.tolist() == [1, 2]
    assert r.infer({"x": [1, 2]})[0].tolist() == [2, 4]
    r.wait()


def test_an_output_that_cannot_take_the_result_changes_nothing() -> None:
    """The inference fails and changes no state, also where the result's shape depends on values."""
    net = nets.Net("found")
    x, v = net.parameter("f32", (3,), "x"), net.read_value("v", "f32", (3,))
    s = net.layer("Add", "opset1", [v, x])
    net.assign("v", s)
    net.result(net.layer("NonZero", "opset3", [s], {"output_type": "i64"}, outputs=["i64"]))
    r = request(ovgpu, net.build())
    assert r.infer([1, 0, 0])[0].tolist() == [[0]]
    r.set_output_tensor(ovgpu.Tensor(np.zeros((1, 1), np.int64), shared_memory=True))
    with pytest.raises(RuntimeError, match=r"^\[Result\] the tensor set for the output cannot take the result"):
        r.infer([0, 1, 1])
    assert r.query_state()[0].state.data.tolist() == [1, 0, 0]
    r.set_output_tensor(ovgpu.Tensor(np.zeros((1, 3), np.int64), shared_memory=True))
    assert r.infer([0, 1, 1])[0].tolist() == [[0, 1, 2]]
