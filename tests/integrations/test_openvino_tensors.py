"""Tensors that cross between openvino and ovgpu share memory both ways, except for strings and read-only arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

import ovgpu

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


GETTERS: dict[str, Any] = {
    "get_input_tensor": lambda request: request.get_input_tensor(),
    "get_tensor": lambda request: request.get_tensor("x"),
    "input_tensors": lambda request: request.input_tensors[0],
}


@pytest.mark.parametrize("kind", ["f32", "f16", "i64", "u8"])
@pytest.mark.parametrize("get", GETTERS.values(), ids=GETTERS)
def test_a_program_resizes_input_tensors(core: ov.Core, get: Any, kind: str) -> None:
    """Shapes that a program sets count, larger ones as well, for tensors that it got and for tensors that it set."""
    model = copied(kind, [0], dynamic=True)
    expected, found = (
        resized(core.compile_model(model, name).create_infer_request(), get) for name in ("CPU", "NVIDIA")
    )
    assert found == expected


def resized(request: ov.InferRequest, get: Any) -> list[Any]:
    """Return what a request computes, and what its input tensor holds, after changes of the tensor's shape."""
    seen: list[Any] = []

    def run(tensor: ov.Tensor, count: int, start: int) -> None:
        tensor.shape = [count]
        tensor.data[:] = np.arange(start, start + count)
        request.infer()
        seen.append(request.get_output_tensor().data.tolist())
        request.start_async()
        request.wait()
        seen.append((request.get_output_tensor().data.tolist(), get(request).data.tolist()))

    first = get(request)
    seen.append(list(first.shape))
    for count in (3, 2, 40, 0, 1):
        run(first, count, 5)
    seen.append(request.infer([np.arange(4).astype(first.data.dtype)])[0].tolist())
    run(get(request), 70, 1)
    run(first, 80, 2)
    own = ov.Tensor(ov.Type(first.data.dtype), ov.Shape([2]))
    for bind in (request.set_input_tensor, lambda own: request.set_tensor("x", own), lambda own: request.infer([own])):
        bind(own)
        run(own, 90, 3)
        run(get(request), 100, 4)
        seen.append(list(own.shape))
        own.shape = [2]
    return seen


@pytest.mark.parametrize("name", ["CPU", "NVIDIA"])
def test_a_shared_array_shrinks(core: ov.Core, name: str) -> None:
    request = core.compile_model(copied("f32", [0], dynamic=True), name).create_infer_request()
    request.infer([np.arange(5, dtype=np.float32)], share_inputs=True)
    tensor = request.get_input_tensor()
    with pytest.raises(RuntimeError, match="m_capacity"):
        tensor.shape = [40]
    tensor.shape = [2]
    assert request.infer()[0].tolist() == [0, 1]


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


@pytest.mark.parametrize("get", GETTERS.values(), ids=GETTERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_program_writes_strings(core: ov.Core, get: Any, dynamic: bool) -> None:
    """Strings that a program sets count, for tensors that it got and for tensors that it set."""
    request = core.compile_model(copied("string", [2], dynamic), "NVIDIA").create_infer_request()
    tensor = get(request)
    if dynamic:
        tensor.shape = [2]
    for words in (["a", "longer than the one before"], ["", "x"]):
        tensor.str_data = words
        request.infer()
        assert request.get_output_tensor().str_data.tolist() == words
    assert request.infer(["p", "q"])[0].tolist() == ["p", "q"]
    own = ov.Tensor(["one", "two"])
    for bind in (request.set_input_tensor, lambda own: request.set_tensor("x", own), lambda own: request.infer([own])):
        bind(own)
        own.str_data = ["three", "four"]
        request.infer()
        assert request.get_output_tensor().str_data.tolist() == ["three", "four"]
        get(request).bytes_data = [b"five", b"six"]
        assert own.str_data.tolist() == ["five", "six"]


def test_batches_of_tensors(core: ov.Core) -> None:
    model = copied("f32", [3, 2])
    model.input(0).node.set_layout(ov.Layout("NC"))
    request = core.compile_model(model, "NVIDIA").create_infer_request()
    tensors = [ov.Tensor(np.full((1, 2), v, np.float32)) for v in range(3)]
    port = request.model_inputs[0]
    for bind in (
        lambda: request.set_input_tensors(tensors),
        lambda: request.set_input_tensors(0, tensors),
        lambda: request.set_tensors("x", tensors),
        lambda: request.set_tensors(port, tensors),
    ):
        bind()
        tensors[1].data[:] += 5
        assert request.infer()[0].tolist() == [tensor.data[0].tolist() for tensor in tensors]
        with pytest.raises(RuntimeError, match="get_tensor shall not be used together with batched set_tensors"):
            request.get_tensor("x")
        request.set_input_tensors({0: ov.Tensor(np.ones((3, 2), np.float32))})
        assert request.infer()[0].tolist() == [[1, 1]] * 3


@pytest.mark.parametrize("name", ["CPU", "NVIDIA"])
def test_names_of_tensors_are_given_once(core: ov.Core, name: str) -> None:
    request = core.compile_model(copied("f32", [2, 3]), name).create_infer_request()
    tensor, port = request.get_tensor(name="x"), request.model_inputs[0]
    assert request.get_tensor(port=port).shape == tensor.shape
    for empty in (request.set_tensors, request.set_input_tensors, request.set_output_tensors):
        empty({})
    for call in (
        lambda: request.get_tensor(),
        lambda: request.get_tensor(other="x"),
        lambda: request.get_tensor("x", name="x"),
        lambda: request.set_tensor("x", tensor, port=port),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(RuntimeError):
        request.set_tensor(name="", tensor=tensor)


BINDERS: dict[str, Any] = {
    "set_tensor": lambda request, tensor: request.set_tensor("x", tensor),
    "set_input_tensor": lambda request, tensor: request.set_input_tensor(tensor),
    "infer": lambda request, tensor: request.infer({"x": tensor}),
}


@pytest.mark.parametrize("bind", BINDERS.values(), ids=BINDERS)
def test_a_tensor_of_the_program_that_no_longer_fits(core: ov.Core, bind: Any) -> None:
    """openvino refuses a tensor that was resized; the memory that it had is not read."""
    for name in ("CPU", "NVIDIA"):
        request = core.compile_model(copied("f32", [2, 3]), name).create_infer_request()
        tensor = ov.Tensor(np.ones((2, 3), np.float32))
        bind(request, tensor)
        request.infer()
        for shape in ([400, 3], [1, 3]):
            tensor.shape = shape
            with pytest.raises(RuntimeError):
                request.infer()
        tensor.shape = [2, 3]
        tensor.data[:] = 5
        assert request.infer()[0].tolist() == [[5] * 3] * 2


@pytest.mark.parametrize("kind", ["f32", "string"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_arrays_are_copied_into_the_tensor_of_the_program(core: ov.Core, kind: str, dynamic: bool) -> None:
    found = []
    for name in ("CPU", "NVIDIA"):
        if kind == "string" and name == "CPU":
            continue
        request = core.compile_model(copied(kind, [2], dynamic), name).create_infer_request()
        first, second = (["a", "bb"], ["ccc", ""]) if kind == "string" else ([1, 2], [3, 4])
        dtype = np.str_ if kind == "string" else np.float32
        own = ov.Tensor(np.array(second, dtype))
        request.set_input_tensor(own)
        seen = [request.infer([np.array(first, dtype)])[0].tolist()]
        seen.append((own.str_data if kind == "string" else own.data).tolist())
        if kind == "string":
            own.str_data = second
        else:
            own.data[:] = second
        seen.append(request.infer()[0].tolist())
        seen.append(request.infer([ov.Tensor(np.array(first, dtype))])[0].tolist())  # another tensor takes its place
        seen.append((own.str_data if kind == "string" else own.data).tolist())
        found.append(seen)
        assert seen == [first, first, second, first, second]
    assert all(seen == found[0] for seen in found)


def test_regions_of_tensors(core: ov.Core) -> None:
    whole = ov.Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    for name in ("CPU", "NVIDIA"):
        request = core.compile_model(copied("f32", [3, 2]), name).create_infer_request()
        request.set_input_tensor(ov.Tensor(whole, ov.Coordinate([0, 1]), ov.Coordinate([3, 3])))
        assert request.infer()[0].tolist() == [[1, 2], [5, 6], [9, 10]]


def test_names_of_arguments(core: ov.Core) -> None:
    for name in ("CPU", "NVIDIA"):
        request = core.compile_model(copied("f32", [2]), name).create_infer_request()
        port, tensor = request.model_inputs[0], ov.Tensor(np.float32([1, 2]))
        for method, arguments in (
            (request.set_tensor, {"name": "x", "tensor": tensor}),
            (request.set_tensor, {"port": port, "tensor": tensor}),
            (request.set_tensors, {"inputs": {"x": tensor}}),
            (request.set_input_tensors, {"inputs": {0: tensor}}),
        ):
            method(**arguments)
            assert request.infer()[0].tolist() == [1, 2]
        assert request.get_tensor(name="x").data.tolist() == request.get_tensor(port=port).data.tolist() == [1, 2]


def test_no_strings() -> None:
    """openvino cannot give the bytes of a tensor of no strings."""
    tensor = ovgpu.Tensor(ov.Tensor(ov.Type.string, ov.Shape([0, 3])))
    assert (tensor.shape, tensor.str_data.size) == ([0, 3], 0)
