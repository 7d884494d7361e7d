"""Inputs that a request accepts, compared with openvino."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import openvino
import pytest

import ovgpu

from . import nets
from .sides import LIBRARIES, agree, check, compiled, request

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.mark.drawn(2)
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
    """Objects with `__array__`, such as torch's tensors on the CPU, are accepted."""

    class Like:
        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return X.astype(np.float64)

    for inputs in (Like(), [Like()], {"x": Like()}, {0: Like()}):
        assert compiled(ov, nets.one())(inputs)[0].tolist() == np.abs(X).tolist()
        assert request(ov, nets.one()).infer(inputs)[0].tolist() == np.abs(X).tolist()


def test_what_is_taken_beyond_openvino() -> None:
    """Nested lists and tuples of numbers, DLPack objects and tensors of openvino are accepted."""
    c = compiled(ovgpu, nets.one())

    class Capsule:
        def __dlpack__(self, **options: Any) -> Any:
            return X.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return X.__dlpack_device__()

    for inputs in (
        [[1, -2, 3], [-4, 5, -6]],
        {0: ((1, -2, 3), (-4, 5, -6))},
        Capsule(),
        openvino.Tensor(X.copy()),
        {"x": openvino.Tensor(X.copy())},
    ):
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
    """Strings pass through. The expected values are written here, as OpenVINO's plugin damages its heap."""
    ir = nets.same((-1,), "string")
    r = request(ovgpu, ir)
    for inputs in (
        ["a", "bé"],
        [np.array(["a", "bé"])],
        {"x": ["a", "bé"]},
        [np.array(["a", "bé"], object)],
        [np.array([b"a", "bé".encode()])],
        ovgpu.Tensor(["a", "bé"]),
    ):
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
    with pytest.raises(ovgpu.Error, match=r"^\[Parameter\] .* holds .*layer 'x'"):
        request(ovgpu, nets.same((-1,), kind)).infer({"x": [17]})
