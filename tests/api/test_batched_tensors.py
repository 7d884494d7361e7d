"""Batches of tensors for one input, `set_input_tensors` and `set_tensors`, compared with openvino's."""

from __future__ import annotations

import numpy as np
import pytest

import ovgpu as ov
from tests.emulator import cupy_emu as cp

from . import nets
from .sides import agree, check

MODEL = """m = ov.Core().read_model(*one({shape}, "{kind}")); m.input().node.set_layout(ov.Layout("{layout}"));
    r = ov.compile_model(m, "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}}).create_infer_request();
    T = lambda v, shape=(1, 2), k="f4": ov.Tensor(np.full(shape, v, k)); t = [T(-1), T(-2), T(-3)]; """


def model(shape: str = "(3, 2)", layout: str = "NC", kind: str = "f32") -> str:
    """Return the code of a request of a model of one input, and of the batch ``t``."""
    return MODEL.format(shape=shape, layout=layout, kind=kind).replace("\n", "")


@agree("""
    r.set_input_tensors(t); r.infer()
    r.set_input_tensors(0, t); r.infer()
    r.set_input_tensors(idx=0, tensors=t); r.infer()
    r.set_input_tensors(tensors=t); r.infer()
    r.set_input_tensors(1, t)
    r.set_tensors("x", t); r.infer()
    r.set_tensors(r.model_inputs[0], t); r.infer()
    r.set_tensors("nope", t)
    r.set_tensors(r.model_outputs[0], t)
    r.set_input_tensors(t); r.start_async(); r.wait(); r.get_output_tensor()
    r.set_input_tensors(t); r.infer(); t[1].data[:] = -9; r.infer()
    r.set_input_tensors(t); r.set_input_tensor(T(-4, (3, 2))); [r.infer(), r.get_input_tensor()]
    r.set_input_tensors([T(-4, (3, 2))]); [r.infer(), r.get_input_tensor()]
    r.set_input_tensors([T(-4)])
    r.set_input_tensors(t[:2])
    r.set_input_tensors([])
    r.set_input_tensors(tuple(t))
    r.set_input_tensors([T(1), T(2, k="i4"), T(3)])
    r.set_input_tensors([T(1), T(2, (1, 3)), T(3)])
    r.set_input_tensors([T(1, (2, 2)), T(2)])
    r.set_input_tensors([T(1, (2,))] * 3)
    r.set_input_tensors(t); r.get_tensor("x")
    r.set_input_tensors(t); r.get_tensor(r.model_inputs[0])
    r.set_input_tensors(t); r.get_input_tensor()
    r.set_input_tensors(t); r.get_input_tensor(0)
    r.set_input_tensors(t); r.input_tensors
    big = T(-1, (2, 6)); big.data[:] = np.arange(12).reshape(2, 6); row = ov.Tensor(big, [0, 1], [1, 3]);
        r.set_input_tensors([row, row, row]); r.infer()
""")
def test_batches(code: str) -> None:
    check(model() + code)


@agree("""
    ("(3, 2)", "N...", "f32")
    ("(-1, 2)", "NC", "f32")
    ("(-1, -1)", "NC", "f32")
    ("(3, 2)", "CH", "f32")
    ("(3, 2)", "CN", "f32")
    ("(3, 2)", "...", "f32")
    ("(1, 2)", "NC", "f32")
    ("(3, 2)", "NC", "f32")
""")
def test_models(code: str) -> None:
    check(model(*eval(code)) + "r.set_input_tensors(t); r.infer()")


@agree("""
    ("i64", "i8")
    ("f16", "f2")
    ("boolean", "?")
""")
def test_types(code: str) -> None:
    kind, dtype = eval(code)
    check(model(kind=kind) + f"r.set_input_tensors([T(v, k='{dtype}') for v in (-1, -2, 0)]); r.infer()")


def request(device: str, shape: tuple[int, ...] = (3, 2)) -> ov.InferRequest:
    found = ov.Core().read_model(*nets.one(shape))
    found.input().node.set_layout(ov.Layout("NC"))
    return ov.compile_model(found, device).create_infer_request()


def test_on_a_device(device: str) -> None:
    r = request(device)
    tensors = [ov.Tensor(np.full((1, 2), -v, np.float32)) for v in range(3)]
    r.set_input_tensors(tensors)
    for step in range(4):
        tensors[step % 3].data[:] = -10 - step
        assert r.infer()[0].tolist() == [np.abs(t.data)[0].tolist() for t in tensors]
    with pytest.raises(RuntimeError, match=r"\(layer 'x', id 0\)"):
        r.set_input_tensors(tensors[:2])
    assert r.infer([np.ones((3, 2))])[0].tolist() == [[1, 1]] * 3


def test_large_items(device: str) -> None:
    r = request(device, (2, 300_000))
    tensors = [ov.Tensor(np.full((1, 300_000), -v, np.float32)) for v in (1, 2)]
    r.set_input_tensors(tensors)
    for v in (3, 4):
        tensors[1].data[:] = -v
        assert r.infer()[0][:, ::1000].tolist() == [[1] * 300, [v] * 300]


@pytest.mark.parametrize("on_host", [(), (1,)])
def test_items_in_device_memory(emulated: str, on_host: tuple[int, ...]) -> None:
    r = request(emulated)
    arrays = [cp.asarray(np.full((1, 2), -v, np.float32)) for v in range(3)]
    tensors = [ov.Tensor(array, shared_memory=True) for array in arrays]
    for number in on_host:
        tensors[number] = ov.Tensor(np.full((1, 2), -number, np.float32))
    r.set_input_tensors(tensors)
    for v in (2, 7):
        arrays[2][...] = cp.asarray(np.full((1, 2), -v, np.float32))
        assert r.infer()[0].tolist() == [[0, 0], [1, 1], [v, v]]
    with pytest.raises(RuntimeError, match="copy it to the host"):
        request("CPU").set_input_tensors(tensors)


@pytest.mark.parametrize("on_card", [(), (0,), (0, 1)])
def test_items_of_other_shapes(device: str, on_card: tuple[int, ...]) -> None:
    """A program may give all items another shape that the input takes. Others are an error."""
    if on_card and device == "CPU":
        return
    r = request(device, (2, -1))
    tensors = [ov.Tensor(ov.Type.f32, ov.Shape([1, 2])) for _ in range(2)]
    for number in on_card:
        context = ov.Core().get_default_context(device)
        tensors[number] = context.create_tensor(ov.Type.f32, [1, 2])
    r.set_input_tensors(tensors)
    for columns in (2, 4, 400, 1, 600_000):
        for number, tensor in enumerate(tensors):
            tensor.copy_from(ov.Tensor(np.full((1, columns), -number - 1, np.float32)))
        result = r.infer()[0]
        assert result.shape == (2, columns) and result[:, -1].tolist() == [1, 2]
        tensors[1].set_shape([1, 3])
        with pytest.raises(RuntimeError, match="are no batch"):
            r.infer()
