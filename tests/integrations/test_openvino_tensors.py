"""Tensors that cross between openvino and ovgpu share memory both ways, except for strings and read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

TYPES = "boolean i4 u4 i8 u8 f8e4m3 i16 u16 f16 bf16 i32 u32 f32 i64 u64 f64".split()
SHAPES = [[2, 3], [], [0, 3]]


def copied(kind: str, shape: Any, dynamic: bool = False) -> ov.Model:
    """Return a model that gives a copy of its input."""
    element = getattr(ov.Type, kind)
    x = ops.parameter(ov.PartialShape([-1] * len(shape)) if dynamic else ov.PartialShape(shape), element, name="x")
    x.output(0).get_tensor().set_names({"x"})
    return ov.Model([ops.result(x)], [x], "copied")


def bits(tensor: ov.Tensor) -> list[int]:
    return np.array(tensor.data).reshape(-1).view(np.uint8).tolist()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inputs_share_memory(core: ov.Core, kind: str, shape: list[int]) -> None:
    request = core.compile_model(copied(kind, shape), "NVIDIA").create_infer_request()
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(shape))
    request.set_tensor("x", tensor)
    again = request.get_tensor("x")
    assert (again.element_type, list(again.shape)) == (tensor.element_type, shape)
    for value in (1, 0, 1):
        tensor.data[...] = value
        request.infer()
        assert bits(request.get_input_tensor(0)) == bits(tensor)
        assert bits(request.get_output_tensor(0)) == bits(tensor)
        assert bits(again) == bits(tensor)
    again.data[...] = 0
    assert bits(tensor) == bits(again)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_own_tensors_share_memory(core: ov.Core, kind: str, shape: list[int]) -> None:
    request = core.compile_model(copied(kind, shape), "NVIDIA").create_infer_request()
    x, y = request.input_tensors[0], request.output_tensors[0]
    assert (x.element_type, list(x.shape)) == (getattr(ov.Type, kind), shape)
    for value in (1, 0, 1):
        x.data[...] = value
        request.infer()
        assert bits(y) == bits(x)


@pytest.mark.parametrize("kind", ["f32", "bf16", "u4", "i64"])
def test_outputs_are_written_into_given_tensors(core: ov.Core, kind: str) -> None:
    request = core.compile_model(copied(kind, [4]), "NVIDIA").create_infer_request()
    x, y = (ov.Tensor(getattr(ov.Type, kind), ov.Shape([4])) for _ in range(2))
    x.data[...], y.data[...] = 1, 0
    request.set_tensors({"x": x})
    request.set_output_tensor(0, y)
    request.infer()
    assert bits(y) == bits(x)


def test_strings_are_copied(core: ov.Core) -> None:
    compiled = core.compile_model(copied("string", [2]), "NVIDIA")
    texts = ["a", "\u00fc" * 30]
    request = compiled.create_infer_request()
    request.set_tensor("x", ov.Tensor(texts))
    request.infer()
    assert request.get_tensor("x").str_data.tolist() == request.get_output_tensor(0).str_data.tolist() == texts
    assert compiled([np.array(texts)])[0].tolist() == texts


def test_read_only_arrays_are_copied(core: ov.Core) -> None:
    array = np.array([1, 2], np.float32)
    array.flags.writeable = False
    compiled = core.compile_model(copied("f32", [2]), "NVIDIA")
    assert compiled([array])[0].tolist() == [1, 2]
    request = compiled.create_infer_request()
    request.set_tensor("x", ov.Tensor(array))
    request.get_tensor("x").data[:] = 7
    assert request.infer()[0].tolist() == [7, 7]
    assert array.tolist() == [1, 2]


def test_dynamic_shapes(core: ov.Core) -> None:
    request = core.compile_model(copied("f32", [0], dynamic=True), "NVIDIA").create_infer_request()
    for count in (3, 5, 0, 2):
        x = ov.Tensor(np.arange(count, dtype=np.float32))
        request.set_input_tensor(x)
        request.infer()
        assert request.get_output_tensor().data.tolist() == x.data.tolist()
        assert list(request.get_tensor("x").shape) == [count]


def test_the_shape_of_an_input_tensor_is_changed(core: ov.Core) -> None:
    """A smaller shape counts, as in openvino; a larger one does not fit into the request's memory, and is an error."""
    request = core.compile_model(copied("f32", [0], dynamic=True), "NVIDIA").create_infer_request()
    for get in (lambda: request.get_input_tensor(), lambda: request.get_tensor("x"), lambda: request.input_tensors[0]):
        request.infer([np.arange(5, dtype=np.float32)])
        tensor = get()
        tensor.shape = [2]
        request.infer()
        assert request.get_output_tensor().data.tolist() == [0, 1]
        request.start_async()
        request.wait()
        assert request.get_output_tensor().data.tolist() == [0, 1]
        assert request.infer([np.arange(4, dtype=np.float32)])[0].tolist() == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="m_capacity"):
            get().shape = [40]
        get().shape = [1]
        request.set_input_tensor(ov.Tensor(np.arange(3, dtype=np.float32)))  # a later tensor counts
        assert request.infer()[0].tolist() == [0, 1, 2]


def test_shared_inputs_and_outputs(core: ov.Core) -> None:
    compiled = core.compile_model(copied("f32", [3]), "NVIDIA")
    array = np.array([1, 2, 3], np.float32)
    first = compiled(array, share_outputs=True)[0]
    assert first.tolist() == [1, 2, 3]
    array[:] = 9
    assert compiled(None)[0].tolist() == [9, 9, 9]
    assert first.tolist() == [9, 9, 9]
    request = compiled.create_infer_request()
    kept = request.infer([array])[0]
    request.infer([array + 1])
    assert kept.tolist() == [9, 9, 9]


def test_types_that_openvino_cannot_compile(core: ov.Core) -> None:
    compiled = core.compile_model(copied("u1", [8]), "NVIDIA")
    assert type(compiled.input(0)) is ov.Output
    x = ov.Tensor(np.array([0b10110010], np.uint8), ov.Shape([8]), ov.Type.u1)
    assert compiled({compiled.input(0): x}).to_tuple()[0].tolist() == [0b10110010]
