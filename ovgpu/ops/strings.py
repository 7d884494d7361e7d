"""Conversion of strings from and to bytes: StringTensorPack, StringTensorUnpack.

Strings are Python `bytes` objects on the host for every device, and both ops run there.
"""

from __future__ import annotations

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import same, unknown
from ovgpu.types import Type


@op("StringTensorPack", "opset15", "type/string-tensor-pack-15")
class StringTensorPack(Op):
    """Strings from bytes: ``begins [...], ends [...], symbols [N] -> strings [...]``. String i has the symbols, bytes
    of UTF-8, from begins[i] up to ends[i]. A range outside the symbols raises OpError.

    >>> string_tensor_pack([0, 2], [2, 5], u8([*b"hello"]))
    ["he", "llo"]
    """

    exact = True

    def infer_specs(self, begins: Spec, ends: Spec, symbols: Spec) -> tuple[Spec, ...]:
        for spec, what in ((begins, "begins"), (ends, "ends")):
            if spec.type not in (Type.dynamic, Type.i32, Type.i64):
                raise OpError(f"{what} must be i32 or i64, not {spec.type.get_type_name()}")
        if begins.type != ends.type and Type.dynamic not in (begins.type, ends.type):
            raise OpError(f"begins are {begins.type.get_type_name()}, ends {ends.type.get_type_name()}")
        if symbols.type not in (Type.dynamic, Type.u8):
            raise OpError(f"symbols must be u8, not {symbols.type.get_type_name()}")
        if symbols.rank not in (None, 1):
            raise OpError(f"symbols must have rank 1, not {symbols.rank}")
        if begins.shape is None or ends.shape is None:
            return (Spec(Type.string, begins.shape or ends.shape),)
        if len(begins.shape) != len(ends.shape):
            raise OpError(f"begins have rank {len(begins.shape)}, ends {len(ends.shape)}")
        shape = (
            same(a, b, f"begins have {{0}}, ends {{1}} elements on axis {axis}")
            for axis, (a, b) in enumerate(zip(begins.shape, ends.shape))
        )
        return (Spec(Type.string, tuple(shape)),)

    def evaluate(self, xp: Adapter, begins: Array, ends: Array, symbols: Array) -> tuple[Array, ...]:
        text = symbols.tobytes()
        if ((begins < 0) | (ends < begins) | (ends > len(text))).any():
            raise OpError(f"begins and ends must be ascending offsets among {len(text)} symbols")
        strings = [text[i:j] for i, j in zip(begins.ravel().tolist(), ends.ravel().tolist())]
        return (np.array(strings, object).reshape(begins.shape),)


@op("StringTensorUnpack", "opset15", "type/string-tensor-unpack-15")
class StringTensorUnpack(Op):
    """Bytes of strings: ``strings [...] -> begins [...], ends [...], symbols [N]``. The symbols are the bytes of all
    strings, one after the other; begins and ends are each string's offsets in them.

    >>> string_tensor_unpack(["he", "llo"])
    ([0, 2], [2, 5], [104, 101, 108, 108, 111])
    """

    exact = True

    def infer_specs(self, strings: Spec) -> tuple[Spec, ...]:
        if strings.type not in (Type.dynamic, Type.string):
            raise OpError(f"strings are expected, not {strings.type.get_type_name()}")
        offset = Spec(Type.i32, strings.shape)
        return offset, offset, Spec(Type.u8, (unknown(),))

    def evaluate(self, xp: Adapter, strings: Array) -> tuple[Array, ...]:
        words = strings.ravel().tolist()
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int32)
        begins, ends = (part.reshape(strings.shape) for part in (offsets[:-1], offsets[1:]))
        return begins, ends, np.frombuffer(b"".join(words), np.uint8)
