"""Tensor, compared with openvino's."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import openvino.opset15 as opset
import pytest

from ovgpu.tensor import Tensor
from ovgpu.types import Shape, Type

from .both import OPENVINO, OURS, agree, check, evaluate, members, outcome, product, table

SMALL = "np.arange(6, dtype=np.float32).reshape(2, 3)"
GRID = "a = Tensor(np.arange(16.).reshape(4, 4))"
TYPES = [name for name in dir(openvino.Type) if isinstance(getattr(openvino.Type, name), openvino.Type)]

# Tensors that openvino leaves uninitialised are compared by their description, not by their contents.
DESCRIPTION = "(repr(t), t.shape, t.element_type, t.size, t.byte_size, t.is_continuous(), t.get_size())"

NEW = table("""
    Tensor(Type.f32, [2, 3]) | Tensor(Type.f32, Shape([2, 3])) | Tensor(np.float32, [2])
    Tensor(Type.f32, (2,))
    Tensor(np.dtype('int8'), [2]) | Tensor('float32', [2]) | Tensor(Type.f32, []) | Tensor(Type.f32, [0, 3])
    Tensor(Type.f32, np.array([2, 3])) | Tensor(type=Type.f32, shape=[1])
    Tensor(Tensor(Type.f32, [4, 4]), [1, 1], [3, 3])
""")

FILLED = table(f"""
    Tensor({SMALL}) | Tensor({SMALL}, True)
    Tensor({SMALL}, shared_memory=True) | Tensor({SMALL}.T)
    Tensor(array=np.zeros(2)) | Tensor(np.array(3.0)) | Tensor(np.array(3.0), shared_memory=True)
    Tensor(np.zeros(3, bool)) | Tensor(np.zeros((2, 0))) | Tensor(np.matrix([[1, 2]]))
    Tensor([]) | Tensor([[]]) | Tensor([1, 2]) | Tensor([1.5, 2]) | Tensor([[1, 2], [3, 4]])
    Tensor(['a', 'bc']) | Tensor([b'a']) | Tensor(np.array(['ab', 'c'])) | Tensor(np.array([b'ab', b'c']))
    Tensor([True, False]) | Tensor([np.float32(1)]) | Tensor([1, 2**40])
    Tensor(np.zeros(2, np.uint8), [4], Type.u4) | Tensor(np.zeros(2, np.uint8), Shape([4]), Type.u4)
    Tensor(np.zeros(3, np.uint8), [4], Type.u4) | Tensor(np.zeros(3, np.uint8), [3], Type.u3)
    Tensor(np.zeros(2, np.uint8), type=Type.u1, shape=[16]) | Tensor(np.zeros(8, np.uint8), [1], Type.f32)
    Tensor(np.zeros(4, np.uint8), [2]) | Tensor(np.zeros(4, np.uint8), [2, 2])
    Tensor(np.zeros(4, np.float16), [4], Type.bf16) | Tensor(np.zeros(4, np.uint16), [4], Type.bf16)
    Tensor(np.zeros(4, np.float32), [4], Type.bf16) | Tensor(np.zeros(1, np.float32), [2, 2], Type.u8)
    Tensor(np.zeros(4, np.float32), [2], Type.dynamic)
""")

BAD = table(f"""
    Tensor({SMALL}.T, shared_memory=True) | Tensor({SMALL}[:, ::2], True)
    Tensor(Type.f32, [-1]) | Tensor(Type.f32, 2) | Tensor(Type.f32, ['2']) | Tensor(Type.dynamic, [2])
    Tensor()
    Tensor([[1, 2], [3]]) | Tensor([None]) | Tensor([2**64]) | Tensor([1 + 2j])
    Tensor(np.array(['ab', 'c']), shared_memory=True) | Tensor(np.array(['a', None], dtype=object))
    Tensor(np.array([1], dtype=complex)) | Tensor(np.zeros((4, 2), np.float16).T, [8], Type.bf16)
    Tensor(np.zeros(2, 'M8[s]')) | a = np.zeros(2); a.flags.writeable = False; Tensor(a, True)
    {GRID}; Tensor(a, [1, 1], [3, 5]) | {GRID}; Tensor(a, [1], [3]) | {GRID}; Tensor(a, [3, 3], [1, 1])
    Tensor(Tensor(Type.u4, [4, 4]), [1, 1], [3, 3])
""")


def test_has_every_public_member() -> None:
    assert members(openvino.Tensor) <= members(Tensor)


@agree([*NEW, *FILLED])
def test_constructors(code: str) -> None:
    check(f"t = {code}; {DESCRIPTION}")


@agree(BAD)
def test_constructor_errors(code: str) -> None:
    assert outcome(OPENVINO, code) in ("TypeError", "RuntimeError", "ValueError")
    check(code)


@agree(FILLED)
def test_contents(code: str) -> None:
    check(f"({code}).data")


@agree(product("t = Tensor(Type.<type>, <shape>); <of>", type=TYPES, shape=["[3]", "[2, 5]", "[17]"], of=[
    DESCRIPTION, "(t.get_byte_size(), t.get_element_type(), t.get_strides())", "t.strides",
]) + product("t = Tensor(Type.<type>, <shape>); (t.data.shape, str(t.data.dtype), t.data.flags.writeable)",
             type=[name for name in TYPES if name != "string"], shape=["[3]", "[2, 5]"]))  # fmt: skip
def test_every_element_type(code: str) -> None:
    check(code)


@agree(
    table(f"""
    a = np.zeros(2); t = Tensor(a); a[0] = 5; t.data | a = np.zeros(2); t = Tensor(a, True); a[0] = 5; t.data
    a = np.zeros(2); t = Tensor(a, True); t.data[1] = 5; a | t = Tensor(Type.f32, [2]); t.data = np.ones(2); t
    t = Tensor(Type.f32, [2]); t.data[:] = 1; t.data
    a = np.zeros(4); t = Tensor(a, [2, 2]); t.data[0, 1] = 3; a
    a = np.zeros(4, np.uint8); t = Tensor(a, [2, 4], Type.u4); t.data[0] = 5; (a, t.data)
    a = np.zeros((2, 2), np.float16); t = Tensor(a, [2, 2], Type.bf16); t.data[0, 0] = 5; (a, t.data)
    {GRID}; t = Tensor(a, [1, 1], [3, 3]); t.data[0, 0] = 99; (a.data, t.data, t.strides, t.is_continuous())
    {GRID}; t = Tensor(a, [1, 0], [3, 4]); (t.data, t.strides, t.is_continuous())
    t = Tensor(np.ones(2)); u = copy.copy(t); u.data[0] = 7; t.data
    t = Tensor(np.ones(2)); u = copy.deepcopy(t); u.data[0] = 7; (t.data, u.data)
    Tensor(np.zeros(2)) == Tensor(np.zeros(2)) | len(Tensor(np.zeros(2))) | Tensor(np.zeros(2))[0]
""")
)
def test_sharing(code: str) -> None:
    check(code)


@agree(
    table(f"""
    t = Tensor({SMALL}); t.shape = [3, 2]; t.data | t = Tensor({SMALL}); t.shape = (1,); t.data
    t = Tensor(Type.f32, [2, 3]); t.shape = [4, 4]; t | t = Tensor(Type.f32, [2]); t.set_shape(Shape([7])); t
    t = Tensor(Type.f32, [2]); t.set_shape([-1]); t | t = Tensor(Type.f32, [2]); t.shape = 5; t
    a = np.arange(6.); t = Tensor(a, True); t.shape = [2, 3]; t.data[0, 0] = 9; a
    a = np.arange(6.); t = Tensor(a, True); t.shape = [7]; t
    a = np.arange(6.); t = Tensor(a, True); t.shape = [2]; t.data[0] = 8; t.shape = [6]; t.data
    t = Tensor(np.arange(6.)); t.shape = [2]; t.shape = [6]; t.data
    t = Tensor(Type.string, [2]); t.shape = [3]; t
    t = Tensor(np.array(['ab', 'c'])); t.shape = [1]; t.str_data
    t = Tensor(Type.u4, [4]); t.shape = [9]; t.byte_size
    t = Tensor(np.zeros(2, np.uint8), [4], Type.u4); t.shape = [3]; (t.byte_size, t.data)
    t = Tensor(np.zeros(2, np.uint8), [4], Type.u4); t.shape = [5]; t
    {GRID}; t = Tensor(a, [1, 1], [3, 3]); t.shape = [1, 1]; t.data
    {GRID}; t = Tensor(a, [1, 1], [3, 3]); t.shape = [1, 1]; t.shape = [2, 2]; t.data
    {GRID}; t = Tensor(a, [1, 1], [3, 3]); t.shape = [4, 4]; t
""")
)
def test_set_shape(code: str) -> None:
    check(code)


@agree(product("t = Tensor(Type.f32, [2]); t.copy_from(<source>); t.data", source=table("""
    Tensor(np.ones(2, np.float32)) | Tensor(np.ones(3, np.float32)) | Tensor(np.ones(2))
    np.ones(2, np.float32)
    np.ones((3, 3), np.float32) | np.ones(2) | [1.0, 2.0] | 5 | None | np.arange(8, dtype=np.float32)[::2]
""")) + table("""
    t = Tensor(Type.f64, [2]); t.copy_from([1.0, 2.0, 3.0]); t.data
    t = Tensor(Type.f64, [2]); t.copy_from([1, 2]); t
    t = Tensor(Type.f32, []); t.copy_from(np.ones((), np.float32)); t.data
    t = Tensor(Type.string, [2]); t.copy_from(np.array(['a', 'bcd'])); t.str_data
    t = Tensor(Type.string, [2]); t.copy_from(['a', 'bcd', 'e']); t.str_data
    t = Tensor(np.zeros(2), True); t.copy_from(np.ones(3)); t
    a = np.zeros(2); Tensor(a, True).copy_from([1., 2.]); a
    t = Tensor(Type.u4, [4]); t.copy_from(np.zeros(2, np.uint8)); t
    t = Tensor(Type.u4, [4]); t.copy_from(Tensor(np.ones(2, np.uint8), [4], Type.u4)); t.data
    t = Tensor(Type.bf16, [2]); t.copy_from(np.ones(2, np.float16)); t
    t = Tensor(Type.f64, [3]); Tensor(np.ones(2)).copy_to(t); t.data
    t = Tensor(Type.f32, [2]); Tensor(np.ones(2)).copy_to(t); t | Tensor(np.ones(2)).copy_to(np.zeros(2))
"""))  # fmt: skip
def test_copies(code: str) -> None:
    check(code)


@agree(
    table("""
    t = Tensor(['ab', 'déf']); (t.str_data, t.bytes_data, t.data, t.strides) | Tensor(np.zeros(2)).str_data
    Tensor(np.zeros(2)).bytes_data | Tensor(np.array([b'\\xff\\x00a'])).str_data
    Tensor(np.array([b'\\xff\\x00a'])).data
    t = Tensor(Type.string, [2]); t.str_data = ['x', 'y']; t.str_data
    t = Tensor(['', 'a']); t.str_data = ['x']; t
    t = Tensor(['', 'a']); t.str_data = np.array([['x', 'y']]); t.str_data
    t = Tensor(['a']); t.str_data = [1]; t
    t = Tensor(['', 'a']); t.bytes_data = [b'x', b'yz']; t.str_data | t = Tensor(['a']); t.str_data = 5; t
    t = Tensor(['', 'a']); t.str_data = np.array([b'a', b'b']); t.str_data
    t = Tensor(['a']); t.data[0] = b'x'; t.data
    t = Tensor([1.0]); t.str_data = ['x']; t
    t = Tensor(Type.string, [2]); (t.str_data.shape, t.bytes_data.shape)
    t = Tensor(['ab']); u = copy.copy(t); u.str_data = ['cd']; t.str_data
""")
)
def test_strings(code: str) -> None:
    check(code)


def test_data_of_strings_warns() -> None:
    for library in (openvino.Tensor, Tensor):
        with pytest.warns(RuntimeWarning, match="copied"):
            assert library(["a"]).data.tolist() == [b"a"]


@agree(
    table("""
    Tensor(np.zeros(2, np.uint8), [5], Type.u4) | Tensor(np.zeros(4, np.uint8), [5])
    Tensor(np.zeros(3), [4], Type.f64)
    Tensor(np.zeros(3, np.uint8), [2], Type.string)
""")
)
def test_refuses_to_read_beyond_an_array(code: str) -> None:
    evaluate(OPENVINO, code)
    assert outcome(OURS, code) == "RuntimeError"


@agree(
    table("""
    Tensor(np.array([1, 2], ml_dtypes.bfloat16)) | Tensor(np.array([1, 2], ml_dtypes.int4))
    Tensor(np.zeros(2, np.longlong))
    Tensor(Tensor(Type.f32, [2])) | Tensor(np.float32(3))
""")
)
def test_accepts_more_than_openvino(code: str) -> None:
    assert outcome(OURS, code)[0] == "Tensor"


@pytest.mark.parametrize("source", [(1, 2), 3, 3.5, "abc", {1: 2}, range(3)])
def test_refuses_objects_that_are_no_arrays(source: object) -> None:
    with pytest.raises(TypeError):
        Tensor(source)


def test_converts_byte_order() -> None:
    swapped = np.array([1, 2], ">f4")  # openvino takes the bytes as they are
    assert Tensor(swapped).data.tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="shared"):
        Tensor(swapped, shared_memory=True)


def test_new_memory_is_zero() -> None:
    assert not Tensor(Type.f32, [1000]).data.any() and not Tensor(Type.u4, [9]).data.any()
    assert Tensor(Type.string, [2]).str_data.tolist() == ["", ""]


def test_of_openvino_objects() -> None:
    for name in ("f32", "bf16", "u4", "u3", "f8e4m3"):
        theirs = openvino.Tensor(getattr(openvino.Type, name), [3, 3])
        theirs.data[...] = np.arange(theirs.data.size).reshape(theirs.data.shape)
        mine, shared = Tensor(theirs), Tensor(theirs, shared_memory=True)
        assert mine.element_type is getattr(Type, name) and mine.shape == [3, 3]
        np.testing.assert_array_equal(mine.data, theirs.data)
        theirs.data.reshape(-1)[0] = 9
        assert mine.data.reshape(-1)[0] == 0 and shared.data.reshape(-1)[0] == 9
    assert Tensor(openvino.Tensor(["a", "bc"])).str_data.tolist() == ["a", "bc"]


def test_of_ports() -> None:
    static, dynamic = opset.parameter([2, 3], openvino.Type.f32), opset.parameter([2, -1], openvino.Type.i8)
    assert repr(Tensor(static.output(0))) == repr(openvino.Tensor(static.output(0)))
    assert repr(Tensor(dynamic.output(0))) == repr(openvino.Tensor(dynamic.output(0)))
    array = np.arange(6, dtype=np.float32)
    assert Tensor(static.output(0), array).data.tolist() == array.reshape(2, 3).tolist()


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float32),
        np.zeros(6, np.float32),
        np.zeros((2, 4), np.float32),
        np.zeros((2, 3)),
        np.zeros((3, 3), np.int64),
        np.zeros((2, 2), np.float32),
        np.zeros((2, 2)),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_of_a_port_and_an_array(array: np.ndarray[Any, Any]) -> None:
    port = opset.parameter([2, 3], openvino.Type.f32).output(0)
    found = []
    for library in (openvino.Tensor, Tensor):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                tensor = library(port, array)
                result: Any = list(tensor.shape), np.shares_memory(tensor.data, array)
            except RuntimeError:
                result = "RuntimeError"
        found.append((result, [(str(warning.message), warning.filename) for warning in caught]))
    assert found[0] == found[1]


def test_array_is_one_element_per_item() -> None:
    packed = Tensor(np.array([0x21, 0x43, 0x05], np.uint8), [5], Type.u4)
    assert packed.array.dtype == ml_dtypes.uint4 and packed.array.tolist() == [1, 2, 3, 4, 5]
    bf16 = Tensor(Type.bf16, [2])
    bf16.array[...] = 1.5
    assert bf16.data.view(np.uint16).tolist() == [0x3FC0] * 2
    assert Tensor(["a", "é"]).array.tolist() == [b"a", "é".encode()]


def test_from_array() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    shared = Tensor.from_array(array.T, Type.f32)
    assert np.shares_memory(shared.array, array) and shared.shape == [4, 3] and not shared.is_continuous()
    assert not np.shares_memory(Tensor.from_array(array, Type.f32, share=False).array, array)
    nf4 = Tensor.from_array(np.array([1, 15, 7], np.uint8).view(Type.nf4.storage), Type.nf4)
    assert nf4.data.tolist() == [0xF1, 7] and nf4.array["nf4"].tolist() == [1, 15, 7]
    assert Tensor(nf4.array).element_type is Type.nf4
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    assert not Tensor.from_array(frozen, Type.f64).data.flags.writeable
    with pytest.raises(TypeError, match="f32"):
        Tensor.from_array(np.zeros(2), Type.f32)
    with pytest.raises(RuntimeError, match="shared"):
        shared = Tensor.from_array(np.zeros(2), Type.f64)
        shared.shape = [3]


def test_array_protocol() -> None:
    tensor = Tensor(np.arange(3.0))
    assert np.shares_memory(np.asarray(tensor), tensor.data)
    assert not np.shares_memory(np.array(tensor), tensor.data)
    assert np.asarray(tensor, np.float32).dtype == np.float32
    u4 = Tensor(np.array([0x21], np.uint8), [2], Type.u4)
    assert np.asarray(u4, np.int32).tolist() == [1, 2]
    for source, dtype in ((tensor, np.float32), (u4, None)):
        with pytest.raises(ValueError, match="copy"):
            source.__array__(dtype, copy=False)
    assert (np.ones(3) + tensor).tolist() == [1, 2, 3]


def test_dlpack() -> None:
    tensor = Tensor(np.arange(3.0))
    array = np.from_dlpack(tensor)
    assert np.shares_memory(array, tensor.data)
    assert tensor.__dlpack_device__() == array.__dlpack_device__()
    with pytest.raises(BufferError):
        np.from_dlpack(Tensor(Type.u4, [2]))


class OnlyDlpack:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_takes_dlpack_objects() -> None:
    array = np.arange(3.0)
    assert Tensor(OnlyDlpack(array)).data.tolist() == [0, 1, 2]
    assert np.shares_memory(Tensor(OnlyDlpack(array), shared_memory=True).data, array)


def test_copies_are_independent() -> None:
    tensor = Tensor(np.zeros(2, np.uint8), [4], Type.u4)
    twin = copy.deepcopy(tensor)
    twin.data[0] = 1
    twin.shape = Shape([9])
    assert tensor.data[0] == 0 and tensor.shape == [4]
    strings = Tensor(["ab"])  # openvino frees these twice
    copy.deepcopy(strings).str_data = ["cd"]
    assert strings.str_data.tolist() == ["ab"]


def test_no_warning_from_tensors_of_numbers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in set(TYPES) - {"dynamic", "string"}:
            assert Tensor(getattr(Type, name), [3]).data is not None


def test_read() -> None:
    """Parts are copies, in the dtype of `array`."""
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = Tensor(values, shared_memory=True)
    for index in (1, -1, slice(1), (..., 2), (2, 3), (None, 0), ...):
        part = tensor.read(index)
        np.testing.assert_array_equal(part, values[index])
        assert isinstance(part, np.ndarray) and not np.shares_memory(part, values)
    assert Tensor(np.array([0x21], np.uint8), [2], Type.u4).read(1) == 2
    assert Tensor(values.astype(ml_dtypes.bfloat16)).read((0, 1)).dtype == ml_dtypes.bfloat16
    assert Tensor(["a", "bc"]).read(1) == b"bc"
    for index, error in (
        (3, IndexError),
        ([0], TypeError),
        (True, TypeError),
        (np.array([True]), TypeError),
        (1.0, TypeError),
        ("0", TypeError),
    ):
        with pytest.raises(error):
            tensor.read(index)
