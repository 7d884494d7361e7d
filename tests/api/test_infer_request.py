"""InferRequest: inputs, tensors, state and asynchronous inferences, beside openvino's."""

from __future__ import annotations

import threading
import time
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.ops._op import Op

from . import nets
from .sides import LIBRARIES, agree, check, compiled

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def request(ov: Any, ir: nets.IR, config: Any = None) -> Any:
    return compiled(ov, ir, config).create_infer_request()


# ---- inputs

@agree("""
    req(two()).infer([np.ones((2, 3)), np.array([1, 2])])
    req(two()).infer((np.ones((2, 3)), np.array([1.7, -2])))
    req(two()).infer({"x": np.ones((2, 3)), 1: np.array([1, 2])})
    c = comp(two()); c({c.input(0): np.ones((2, 3), "f4"), "y": np.array([1])})
    comp(two())([np.ones((2, 3)), np.array([1]), np.array([2])])
    comp(two())(np.ones((2, 3)))
    comp(two())({"z": np.ones((2, 3))})
    comp(two())({5: np.ones((2, 3))})
    comp(two())({-1: np.ones((2, 3))})
    comp(two())({1.5: np.ones((2, 3))})
    req(two()).infer({1.5: np.ones((2, 3))})
    req(two()).infer({None: np.ones((2, 3))})
    req(two()).infer({5: np.ones((2, 3))})
    req(two()).infer({"z": np.ones((2, 3))})
    comp(one())(np.ones((2, 3)))
    comp(one())(np.ones((2, 4)))
    comp(one())(np.ones(6))
    req(one()).infer(np.ones((3, 2)))
    req(one((-1, 3))).infer(np.ones((2, 4)))
    comp(one(("2..4", 3)))(np.ones((5, 3)))
    comp(one(("2..4", 3)))(np.ones((1, 3)))
    comp(one(("2..4", 3)))(np.ones((4, 3)))
    comp(one((-1,), "i64"))([1, -2])
    comp(one((-1, 2), "i64"))([[1, -2]])
    req(one((-1,), "i64")).infer([1, -2])
    comp(one((-1,), "i64"))({0: [1, -2]})
    comp(one((-1,), "i64"))((1, 2))
    comp(one((2,), "boolean"))([True, False])
    comp(one(()))(3)
    comp(one(()))({0: -3.5})
    comp(one((1,)))({0: -3.5})
    comp(one((1,)))(np.float64(-3.5))
    comp(one((1,)))(np.array(-3.5))
    comp(one((-1,)))(np.array(-3.5))
    comp(one((2,)))(3.5)
    req(one(())).infer(-3)
    req(one((1,))).infer({"x": np.array(-3.5)})
    comp(one())(ov.Tensor(np.ones((2, 3), "f4")))
    comp(one())([ov.Tensor(np.ones((2, 3), "f4"))])
    comp(one())({"x": ov.Tensor(np.ones((2, 3), "f4"))})
    comp(one())(ov.Tensor(np.ones((2, 3), "f8")))
    comp(one())(ov.Tensor(np.ones((2, 4), "f4")))
    req(one()).infer(ov.Tensor(np.ones((2, 3), "f4")))
    comp(one())({"x": "abc"})
    comp(one())("abc")
    comp(one())(np.array([["a"] * 3] * 2))
    comp(one())({"x": None})
    comp(one())(object())
    comp(one())({"x": object()})
    comp(one())(set())
    comp(one())(np.ones((2, 3), complex))
    comp(one((2,), "boolean"))(np.array([0, 3.5]))
    comp(one((2,), "f16"))(np.array([0, -3.5]))
    comp(one((2, 3), "u8"))(np.array([[300, -1, 2.7]] * 2))
    comp(one((2,), "bf16"))(np.array([0, -3.5], "f2"))
    req(one((2,), "bf16")).infer(np.array([0, -3.5], "f2"))
    comp(one())(np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)))
    req(one()).infer(np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)))
    comp(one())(np.arange(12, dtype="f4").reshape(2, 6)[:, ::2])
    comp(one())(np.arange(6, dtype="f4").reshape(2, 3)[::-1, ::-1])
    comp(one())(np.broadcast_to(np.float32(-2), (2, 3)))
    req(one()).infer(np.broadcast_to(np.float32(-2), (2, 3)))
    comp(one())(np.ones((2, 3), ">f4"))
    comp(one())(np.frombuffer(np.ones((2, 3), "f4").tobytes(), "f4").reshape(2, 3))
    comp(one((0, 3)))(np.ones((0, 3)))
    comp(one((-1, 3)))(np.ones((0, 3)))
    r = req(two()); r.set_tensor("x", ov.Tensor(np.ones((2, 3), "f4"))); r.infer({"y": np.array([1])})
    r = req(one()); r.infer(np.ones((2, 3))); r.infer()
""")
def test_inputs(code: str) -> None:
    check(code)


@LIBRARIES
def test_array_like(ov: Any) -> None:
    """Whatever has `__array__`, as torch's tensors on the CPU."""

    class Like:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return X.astype(np.float64)

    for inputs in (Like(), [Like()], {"x": Like()}, {0: Like()}):
        assert compiled(ov, nets.one())(inputs)[0].tolist() == np.abs(X).tolist()
        assert request(ov, nets.one()).infer(inputs)[0].tolist() == np.abs(X).tolist()


def test_what_is_taken_beyond_openvino() -> None:
    """Lists of other numbers, tuples, DLPack, tensors of openvino, ports of the model, masked shapes."""
    c = compiled(ovgpu, nets.one())

    class Capsule:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return X.__dlpack_device__()

    for inputs in ([[1, -2, 3], [-4, 5, -6]], {0: ((1, -2, 3), (-4, 5, -6))}, Capsule(), openvino.Tensor(X.copy()),
                   {"x": openvino.Tensor(X.copy())}):
        assert c(inputs)[0].tolist() == np.abs(X).tolist()
    with pytest.raises(RuntimeError, match="Failed to set tensor for input with precision: f64"):
        c(openvino.Tensor(X.astype(np.float64)))
    with pytest.raises(TypeError, match="Incompatible inputs"):
        c({0: [[1, 2], [3]]})


def test_shape_errors_name_the_layer() -> None:
    with pytest.raises(ovgpu.Error, match=r"^\[Parameter\] .*\(shape=\[2,3\]\).*\(shape=\[2, 4\]\).*layer 'x'"):
        compiled(ovgpu, nets.one())(np.ones((2, 4)))
    with pytest.raises(ovgpu.Error, match=r"^\[Parameter\] the input tensor is not set, and its shape \[\?\]"):
        compiled(ovgpu, nets.two())({"x": X})


def test_unset_static_input_is_zeros() -> None:
    assert request(ovgpu, nets.one()).infer()[0].tolist() == np.zeros((2, 3)).tolist()


def test_strings() -> None:
    """OpenVINO's plugin damages its heap when it passes strings on, so the expectations are written here."""
    ir = nets.same((-1,), "string")
    r = request(ovgpu, ir)
    for inputs in (["a", "bé"], [np.array(["a", "bé"])], {"x": ["a", "bé"]}, [np.array(["a", "bé"], object)],
                   [np.array([b"a", "bé".encode()])], ovgpu.Tensor(["a", "bé"])):
        result = r.infer(inputs)[0]
        assert result.dtype.kind == "U" and result.tolist() == ["a", "bé"]
        assert compiled(ovgpu, ir)(inputs, share_outputs=True)[0].tolist() == ["a", "bé"]
    raw = r.infer([np.array([b"a\xff", "b"], object)], decode_strings=False)[0]
    assert raw.dtype.kind == "S" and raw.tolist() == [b"a\xff", b"b"]
    assert r.get_output_tensor().str_data.tolist() == ["a\ufffd", "b"]
    assert r.results[0].tolist() == ["a\ufffd", "b"]
    assert request(ovgpu, nets.same((), "string")).infer("abc")[0].tolist() == "abc"
    with pytest.raises(TypeError, match="str and bytes, got int"):
        r.infer({"x": [1, 2]})


def test_bf16() -> None:
    r = request(ovgpu, nets.same((3,), "bf16"))
    values = np.array([1.5, -2, 3], np.float32)
    bits = values.astype(ml_dtypes.bfloat16).view(np.float16)
    for given in (values, values.astype(np.float64), values.astype(ml_dtypes.bfloat16), bits, values.tolist()):
        assert r.infer({"x": given})[0].tolist() == bits.tolist()
    assert r.get_output_tensor().array.astype(np.float32).tolist() == values.tolist()


@pytest.mark.parametrize("kind", ["u4", "i4", "u2", "u1", "u3", "u6"])
def test_packed(kind: str) -> None:
    r = request(ovgpu, nets.same((-1,), kind))
    values = np.array([1, 0, 1, 1, 0])
    for given in (values, values.astype(np.uint8), [1, 0, 1, 1, 0]):
        r.infer({"x": given})
        assert codes(r.get_output_tensor()) == values.tolist()
        assert codes(r.get_input_tensor()) == values.tolist()
    tensor = ovgpu.Tensor(np.array([0xA1, 0x32, 0x17], np.uint8), [4], getattr(ovgpu.Type, kind))
    r.set_input_tensor(tensor)
    r.infer()
    assert codes(r.get_output_tensor()) == codes(tensor) != [0] * 4
    out = ovgpu.Tensor(getattr(ovgpu.Type, kind), [0])
    r.set_output_tensor(out)
    r.infer({"x": values})
    assert codes(out) == values.tolist()


def codes(tensor: Any) -> list[int]:
    return [int(x) for x in np.ascontiguousarray(tensor.array).view(np.uint8)]


@pytest.mark.parametrize("kind", ["u4", "i4", "u1", "u2", "u3"])
def test_packed_values_out_of_range(kind: str) -> None:
    with pytest.raises(ValueError, match="holds"):
        request(ovgpu, nets.same((-1,), kind)).infer({"x": [17]})


# ---- tensors

T = 'ov.Tensor(np.ones((2, 3), "f4"))'


@agree(f"""
    r = req(one()); [r.get_tensor("x").shape, r.get_tensor("out").element_type, r.get_tensor(r.model_inputs[0]).shape]
    r = req(one((-1, 3))); [r.get_input_tensor(), r.get_output_tensor(), r.input_tensors, r.output_tensors]
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
    hasattr(req(one()), "inputs")
    r = req(one(), {{"PERF_COUNT": True}}); r.infer(np.ones((2, 3)));
        {{"Abs_1": str(p.status) for p in r.profiling_info if p.node_name == "Abs_1"}}
    r = req(one()); r.infer(np.ones((2, 3))); [type(p.real_time).__name__ for p in r.get_profiling_info()][:1]
    r = req(one()); r.infer(np.ones((2, 3))); [r.latency > 0, r.latency < 1000]
""")
def test_tensors(code: str) -> None:
    check(code)


@pytest.mark.parametrize("shape", [(2, 3), (300, 300)])
@pytest.mark.parametrize("offset", [0, 1, -1])
def test_output_that_overlaps_the_input(shape: tuple[int, int], offset: int) -> None:
    """The input is read as it was when the inference began, wherever the output lies."""
    net = nets.Net("shift")
    x = net.parameter("f32", shape, "x")
    mean = net.layer("ReduceMean", "opset1", [x, net.const(np.array([0]))], {"keep_dims": True})
    net.result(net.layer("Subtract", "opset1", [net.layer("Reverse", "opset1", [x, net.const(np.array([1]))],
                                                          {"mode": "index"}), mean]))
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
    """A result that is a parameter, a constant or a view of one is its own memory."""
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


@ovgpu.op("RefuseNegative", "api_test_opset")
class RefuseNegative(Op):
    """Gives its input; fails for negative values."""

    def infer(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        if (x < 0).any():
            raise ovgpu.OpError("there are negative values")
        return (x + 0,)


def fragile() -> nets.IR:
    """v becomes v + x, unless x has negative values: then the inference fails."""
    net = nets.Net("fragile")
    v = net.read_value("v", "f32", (2,))
    s = net.layer("Add", "opset1", [v, net.parameter("f32", (2,), "x")])
    net.assign("v", s)
    net.result(net.layer("RefuseNegative", "api_test_opset", [s]))
    return net.build()


def test_a_failed_inference_leaves_everything_usable() -> None:
    r = request(ovgpu, fragile())
    assert r.infer([1, 2])[0].tolist() == [1, 2]
    for run in (lambda: r.infer({"x": [-5, 2]}), lambda: (r.start_async({"x": [-5, 2]}), r.wait()),
                lambda: r.infer({"x": [1, 2, 3]}), lambda: r.start_async({"x": "text"})):
        with pytest.raises((RuntimeError, ValueError)):
            run()
        assert r.query_state()[0].state.data.tolist() == [1, 2]
    assert r.infer({"x": [1, 2]})[0].tolist() == [2, 4]
    r.wait()


# ---- asynchronous

SLOW = 'r = req(slow()); a = np.ones((1000, 300), "f4"); r.start_async(a); '


@agree("""
    r = req(one()); [r.wait(), r.wait_for(1), r.cancel(), r.latency]
    r = req(one()); [r.start_async(-np.ones((2, 3)), "u"), r.wait(), r.userdata, r.latency > 0, r.results]
    r = req(one()); [r.start_async({"x": -np.ones((2, 3), "f4")}, share_inputs=True), r.wait(), r.wait(),
        r.get_tensor("out").data]
    r = req(one()); r.start_async(np.ones((2, 4))); r.wait()
    r = req(one()); L = []; r.set_callback(lambda *a: L.append(a), "cu"); [r.start_async(np.ones((2, 3)), "q"),
        r.wait(), L]
    r = req(one()); L = []; r.set_callback(lambda *a: L.append(a), "cu"); [r.start_async(np.ones((2, 3))),
        r.wait(), L]
    r = req(one()); L = []; r.set_callback(lambda *a: L.append(a), "cu"); [r.infer(np.ones((2, 3))), L]
    r = req(one()); r.set_callback(lambda u: 1 / 0, None); [r.start_async(), r.wait()]
    r = req(one()); r.set_callback(lambda a, b: 0, None); [r.start_async(), r.wait()]
    r = req(one()); r.set_callback(3, None)
    r = req(one()); r.set_callback(None, None)
    r = req(one()); r.set_callback(lambda u: 0, "cu"); [r.userdata, r.start_async(userdata="q"), r.wait(),
        r.userdata, r.start_async(), r.wait(), r.userdata]
    r = req(one()); L = []; r.set_callback(lambda u: (L.append(u), r.start_async() if len(L) < 3 else 0),
        "cu"); [r.start_async(), r.wait(), r.wait(), r.wait(), len(L)]
    r = req(one()); L = []; r.set_callback(lambda u: L.append(r.get_output_tensor().data.sum()), None);
        [r.start_async(-np.ones((2, 3))), r.wait(), L]
    r = req(one()); r.userdata = 3
""")
def test_async(code: str) -> None:
    check(code)


@agree("""
    r.infer()
    r.infer(a)
    r.start_async()
    r.get_input_tensor()
    r.get_output_tensor()
    r.get_tensor("x")
    r.set_input_tensor(ov.Tensor(a))
    r.set_output_tensor(0, ov.Tensor(a))
    r.input_tensors
    r.output_tensors
    r.results
    r.query_state()
    r.profiling_info
    r.set_callback(lambda u: 0, None)
    [r.wait_for(0), r.wait_for(100000), r.wait_for(0)]
    [r.wait(), r.results[0].shape]
""")
def test_busy(code: str) -> None:
    check(SLOW + code)


@LIBRARIES
def test_busy_text(ov: Any) -> None:
    r = request(ov, nets.slow())
    r.start_async(np.ones((1000, 300), "f4"))
    with pytest.raises(RuntimeError, match="Infer Request is busy"):
        r.infer()
    r.wait()
    assert r.infer(np.ones((1, 300)))[0].shape == (1, 300)


def test_callback_errors() -> None:
    r = request(ovgpu, nets.one())
    r.set_callback(lambda u: 1 / 0, None)
    r.start_async(X)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero") as info:
        r.wait()
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert r.infer(X)[0].tolist() == np.abs(X).tolist()
    r.wait()


def test_callback_is_not_called_after_a_failure() -> None:
    r, called = request(ovgpu, fragile()), []
    r.set_callback(called.append, "u")
    r.start_async({"x": [-1, 9]})
    with pytest.raises(RuntimeError, match=r"^\[RefuseNegative\] there are negative values \(layer"):
        r.wait()
    assert not called


def test_waiting_in_a_callback_does_not_hang() -> None:
    r, found = request(ovgpu, nets.one()), []

    def callback(_: Any) -> None:
        r.wait()
        found.append(r.infer(2 * X)[0])

    r.set_callback(callback, None)
    r.start_async(X)
    r.wait()
    assert found[0].tolist() == np.abs(2 * X).tolist()


def test_userdata_without_a_callback_warns() -> None:
    r = request(ovgpu, nets.one())
    with pytest.warns(RuntimeWarning, match="no callback"):
        r.start_async(X, "u")
    r.wait()


def test_cancelled_before_it_begins() -> None:
    """While a callback runs, the next inference is still to begin."""
    r, go = request(ovgpu, nets.one()), threading.Event()
    r.set_callback(lambda _: go.wait(10), None)
    r.start_async(X)
    deadline = time.monotonic() + 10
    while r._busy.locked() and time.monotonic() < deadline:
        time.sleep(0.001)
    r.start_async(X)
    r.cancel()
    go.set()
    with pytest.raises(RuntimeError, match="Infer Request was canceled"):
        r.wait()
    r.start_async(X)
    r.wait()


def test_requests_run_in_parallel() -> None:
    """Each waits in the middle of its inference for the other."""
    barrier = threading.Barrier(2)

    @ovgpu.op("Meet", "meet_opset")
    class Meet(Op):
        def infer(self, x: Any) -> Any:
            return (x,)

        def evaluate(self, xp: Any, x: Any) -> Any:
            barrier.wait(20)
            return (x + 1,)

    net = nets.Net("meet")
    net.result(net.layer("Meet", "meet_opset", [net.parameter("f32", (2,), "x")]))
    c = compiled(ovgpu, net.build())
    requests = [c.create_infer_request() for _ in range(2)]
    for k, r in enumerate(requests):
        r.start_async(np.full(2, k, "f4"))
    for k, r in enumerate(requests):
        r.wait()
        assert r.results[0].tolist() == [k + 1, k + 1]
