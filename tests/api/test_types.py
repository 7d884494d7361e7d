"""Element types and bit layouts, compared with openvino's."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import openvino.opset15 as opset
import pytest

from ovgpu.types import NF4, Type, nbytes, pack, unpack

from .both import agree, check, members, product, table

NAMES = [name for name in dir(openvino.Type) if isinstance(getattr(openvino.Type, name), openvino.Type)]
PACKED = ("u1", "u2", "u3", "u4", "u6", "i4", "nf4", "f4e2m1")
BYTES = ("u8", "i8", "boolean", "bf16", "f16", "f32", "f8e4m3", "f8e5m2", "f8e8m0")
OUT_OF_RANGE = {"i4": 8, "u1": 2, "u2": 4, "u3": 8, "u4": -1, "u6": 64, "nf4": 16, "u8": 256, "i8": -129}


def test_has_every_public_member() -> None:
    assert members(openvino.Type.f32) <= members(Type.f32)


@pytest.mark.parametrize("name", NAMES)
def test_type_answers(name: str) -> None:
    mine, theirs = getattr(Type, name), getattr(openvino.Type, name)
    for member in sorted(members(openvino.Type) - {"to_dtype", "compatible", "merge", *NAMES}):
        mine_value, theirs_value = getattr(mine, member), getattr(theirs, member)
        if callable(theirs_value):
            mine_value, theirs_value = mine_value(), theirs_value()
        assert mine_value == theirs_value, member
    assert (hash(mine), repr(mine), str(mine)) == (hash(theirs), repr(theirs), str(theirs))
    if mine.is_static():
        assert mine.to_dtype() == theirs.to_dtype()
        assert Type.parse(name) is mine
        assert mine.packed == (theirs.bitwidth < 8)
        assert mine.storage.hasobject if name == "string" else mine.storage.itemsize == mine.size


def test_storage_is_an_ml_dtype_where_numpy_has_none() -> None:
    names = {
        "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu",
        "f4e2m1": "float4_e2m1fn", "i4": "int4", "u4": "uint4", "u2": "uint2",
    }  # fmt: skip
    for name, storage in names.items():
        assert getattr(Type, name).storage == np.dtype(getattr(ml_dtypes, storage))
        assert Type.of(getattr(Type, name).storage) is getattr(Type, name)
    assert Type.of(np.uint8) is Type.u8
    with pytest.raises(TypeError):
        _ = Type.dynamic.storage


def test_storage_tells_the_type() -> None:
    for name in set(NAMES) - {"dynamic", "string"}:
        assert Type.of(getattr(Type, name).storage) is getattr(Type, name)
    for name in ("u1", "u3", "u6", "nf4"):  # bytes in a field whose name is the type
        codes = np.arange(2, dtype=np.uint8).view(getattr(Type, name).storage)
        assert codes.dtype.names == (name,) and codes[name].tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="Unsupported"):
        Type.of(np.dtype([("nf4", np.uint8), ("u1", np.uint8)]))


@agree([
    *product("Type.<a>.merge(Type.<b>)", a=table("f32 | dynamic | u4"), b=table("f32 | i32 | dynamic")),
    *product("Type.<a>.compatible(Type.<b>)", a=table("f32 | dynamic"), b=table("f32 | i32 | dynamic")),
    *product("Type(<a>)", a=table("""
        np.float32 | 'float32' | np.dtype('float16') | np.bool_ | bool | int | float | str | np.str_ | bytes
        'u1' | 'u4' | 'i4' | 'half' | 'h' | '>f4' | 'S3' | 'U8' | np.uint16 | np.intp
        'nope' | object | 3 | np.complex64 | 'M8[s]'
    """)),
    *table("""
        Type.dynamic.to_dtype() | Type.f32 == 'f32' | Type.f32 == None | Type.f32 != Type.f16 | Type()
        Type.f32 < Type.f16 | Type.f32.merge(3) | Type.f32.compatible('f32') | Type.f32 == Type(np.float32)
    """),
])  # fmt: skip
def test_type_expressions(code: str) -> None:
    check(code)


def test_type_constructor_accepts_more_than_openvino() -> None:
    assert Type("f32") is Type.f32 and Type("FP16") is Type.f16 and Type(Type.u4) is Type.u4
    assert Type(ml_dtypes.bfloat16) is Type.bf16 and Type(np.longlong) is Type.i64
    assert Type.undefined is Type.dynamic


def test_type_survives_copies() -> None:
    for twin in (copy.copy(Type.bf16), copy.deepcopy(Type.bf16), pickle.loads(pickle.dumps(Type.bf16))):
        assert twin is Type.bf16


IR = """<net name="m" version="11"><layers>
<layer id="0" name="x" type="Parameter" version="opset1"><data shape="2" element_type="{element_type}"/>
<output><port id="0" precision="{precision}"><dim>2</dim></port></output></layer>
<layer id="1" name="r" type="Result" version="opset1">
<input><port id="0" precision="FP32"><dim>2</dim></port></input></layer></layers>
<edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges></net>"""


def readable(**attributes: str) -> openvino.Model | None:
    text = IR.format(**{"element_type": "f32", "precision": "FP32"} | attributes)
    try:
        return openvino.Core().read_model(text.encode())
    except RuntimeError:
        return None


def test_parses_what_model_files_hold() -> None:
    legacy = ["undefined", "UNSPECIFIED", "BOOL", "FP16", "FP32", "FP64", "BIN", "bin"]
    names = [*NAMES, *(name.upper() for name in NAMES), *legacy]
    for name in names:
        model = readable(element_type=name)
        if model is not None:
            assert Type.parse(name).to_string() == model.input().element_type.to_string()
        assert model is not None or readable(precision=name) is not None, name
    expected = ["dynamic", "dynamic", "boolean", "f16", "f32", "f64", "u1", "u1"]
    assert [Type.parse(name).type_name for name in legacy] == expected


@pytest.mark.parametrize("text", ["", "Q78", "CUSTOM", "MIXED", "float", "int4", " f32"])
def test_rejects_what_no_model_file_holds(text: str) -> None:
    assert readable(element_type=text) is None and readable(precision=text) is None
    with pytest.raises(ValueError, match=f"'{text}'"):
        Type.parse(text)


# --- bit layouts ---


def converted(raw: np.ndarray[Any, Any], name: str, count: int) -> np.ndarray[Any, Any]:
    """Return the float32 values that openvino's Convert computes from a constant of these bytes."""
    source = openvino.Tensor(raw, [count], getattr(openvino.Type, name))
    target = openvino.Tensor(openvino.Type.f32, [count])
    model = openvino.Model([opset.convert(openvino.op.Constant(source), "f32")], [])
    assert model.evaluate([target], [])
    return target.data.copy()


def values(array: np.ndarray[Any, Any], type: Type) -> np.ndarray[Any, Any]:
    return NF4[array["nf4"]] if type is Type.nf4 else array.astype(np.float32)


@pytest.mark.parametrize("name", [*PACKED, *BYTES])
def test_unpack_reads_bits_as_openvino(name: str) -> None:
    type = getattr(Type, name)
    top = 2 if name == "boolean" else 256
    random = np.random.default_rng(0).integers(0, 256, 512)
    raw = (np.concatenate([np.arange(256), random]) % top).astype(np.uint8)
    count = raw.size * 8 // type.bitwidth
    array = unpack(raw, type, [count])
    assert array.dtype == type.storage
    np.testing.assert_array_equal(values(array, type), converted(raw, name, count))
    np.testing.assert_array_equal(pack(array, type), raw)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17])
@pytest.mark.parametrize("name", PACKED)
def test_pack_pads_as_openvino(name: str, count: int) -> None:
    type = getattr(Type, name)
    codes = np.random.default_rng(count).integers(0, 1 << type.bitwidth, count).astype(np.uint8)
    array = unpack(pack_codes(codes, type), type, [count])
    raw = pack(array, type)
    assert raw.size == openvino.Tensor(getattr(openvino.Type, name), [count]).byte_size
    np.testing.assert_array_equal(array.view(np.uint8) & ((1 << type.bitwidth) - 1), codes)
    np.testing.assert_array_equal(converted(raw, name, count), values(array, type))


def pack_codes(codes: np.ndarray[Any, Any], type: Type) -> np.ndarray[Any, Any]:
    """Pack raw codes into bytes, bit by bit, by openvino's definition."""
    raw = [0] * nbytes(type, codes.shape)
    for index, code in enumerate(codes.tolist()):
        if type is Type.u1:
            raw[index // 8] |= code << (7 - index % 8)
        elif type is Type.u3:
            group, item = divmod(index, 8)
            raw[group * 3 + item // 4] |= (code & 3) << (6 - item % 4 * 2)
            raw[group * 3 + 2] |= (code >> 2) << (7 - item)
        elif type is Type.u6:
            group, item = divmod(index, 4)
            raw[group * 3 + item // 2] |= (code & 15) << (4 - item % 2 * 4)
            raw[group * 3 + 2] |= (code >> 4) << (6 - item * 2)
        else:
            each = 8 // type.bitwidth
            raw[index // each] |= code << (index % each * type.bitwidth)
    return np.array(raw, np.uint8)


def test_byte_sized_types_are_views() -> None:
    raw = np.arange(8, dtype=np.uint8)
    for type in (Type.f32, Type.bf16, Type.f8e4m3, Type.u8):
        assert np.shares_memory(unpack(raw, type, [8 // type.size]), raw)
    unaligned = bytes(5)[1:]
    assert unpack(unaligned, Type.f32, []).shape == ()
    assert unpack(np.array([0, 2], np.uint8), Type.boolean, [2]).tolist() == [False, True]


def test_pack_checks_values() -> None:
    np.testing.assert_array_equal(pack(np.array([7, -8, 1]), Type.i4), [0x87, 0x01])
    np.testing.assert_array_equal(pack(np.array([1, -2]), Type.i16), [1, 0, 0xFE, 0xFF])
    for name, bad in OUT_OF_RANGE.items():
        with pytest.raises(ValueError, match=name):
            pack(np.array([0, bad]), getattr(Type, name))
        if getattr(Type, name).storage.names:
            with pytest.raises(ValueError, match=name):
                pack(np.array([0, bad], np.uint8).view(getattr(Type, name).storage), getattr(Type, name))
    for name, dtype in {"f32": "float64", "f4e2m1": "uint8", "u4": "float32", "boolean": "uint8"}.items():
        with pytest.raises(TypeError, match=name):
            pack(np.zeros(2, dtype), getattr(Type, name))


def test_nbytes_is_exact() -> None:
    for name in set(NAMES) - {"dynamic", "string"}:
        for shape in ([], [0], [3, 5], [33]):
            expected = openvino.Tensor(getattr(openvino.Type, name), shape).byte_size
            assert nbytes(getattr(Type, name), shape) == expected, (name, shape)
    assert nbytes(Type.f64, [2**40, 2**40]) == 2**83
    assert nbytes(Type.u4, np.array([3, 3], np.int8)) == 5
    for type, shape in ((Type.f32, [-1]), (Type.dynamic, [1]), (Type.string, [1])):
        with pytest.raises(ValueError):
            nbytes(type, shape)


def test_empty_tensors() -> None:
    for name in (*PACKED, *BYTES):
        array = unpack(b"", getattr(Type, name), [2, 0])
        assert array.shape == (2, 0) and pack(array, getattr(Type, name)).size == 0
    assert pack(np.zeros(0, np.int64), Type.u4).size == 0


def test_unpack_wants_exact_sizes() -> None:
    for name, shape, size in (("f32", [2], 7), ("u4", [3], 3), ("u3", [1], 1), ("f32", [2**40], 4)):
        with pytest.raises(ValueError, match="bytes"):
            unpack(bytes(size), getattr(Type, name), shape)


def test_strings_of_weights_files(tmp_path: Any) -> None:
    words = np.array([["ab", "c"], ["", "déf"]])
    model = openvino.Model([opset.result(openvino.op.Constant(openvino.Tensor(words)))], [])
    openvino.serialize(model, tmp_path / "m.xml", tmp_path / "m.bin")
    raw = (tmp_path / "m.bin").read_bytes()
    array = unpack(raw, Type.string, [2, 2])
    assert array.tolist() == [[b"ab", b"c"], [b"", "déf".encode()]]
    assert pack(array, Type.string).tobytes() == raw
    for broken in (raw[:8], raw[:-1], b"\5" + raw[1:], raw[:12] + b"\xff\xff\xff\xff" + raw[16:]):
        with pytest.raises(ValueError, match="string"):
            unpack(broken, Type.string, [2, 2])
