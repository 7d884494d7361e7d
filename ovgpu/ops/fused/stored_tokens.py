"""Keys and values that are stored in another type than attention computes in: f16, bf16, or u8 with parameters.

A token of u8 is a row of bytes for each head: a code for each of its D elements, then in f32 the `scale` and the
`minimum`, ``x = minimum + scale * code``. The scale divides the range of the row's elements into 255 steps, as in
OpenVINO's CPU plugin. Elements of a row that has infinities or NaN are read as NaN.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import decode
from ovgpu.ops.convert import ConvertDown, converted
from ovgpu.spec import Spec
from ovgpu.types import Type

PARAMETER_BYTES = 8  # scale and minimum, as in stored_tokens.cuh
STEPS = 255  # between the codes of a row
U8 = np.dtype(np.uint8)


def quantize_tokens(xp: Any, x: Array) -> Array:
    """Return the rows [..., D + 8] of u8 that store x [..., D], real. D must not be 0."""
    x = decode(x, xp).astype(np.float32)
    with np.errstate(all="ignore"):
        minimum = x.min(axis=-1, keepdims=True)
        scale = (x.max(axis=-1, keepdims=True) - minimum) / np.float32(STEPS)
        codes = xp.rint((x - minimum) / scale)
        codes = xp.fmin(xp.fmax(codes, np.float32(0)), np.float32(STEPS)).astype(np.uint8)  # NaN becomes 0
    parameters = xp.concatenate([scale, minimum], axis=-1).view(np.uint8)
    result: Array = xp.concatenate([codes, parameters], axis=-1)
    return result


def dequantize_tokens(xp: Any, rows: Array) -> Array:
    """Return the elements [..., D], f32, that the rows [..., D + 8] store."""
    width = rows.shape[-1] - PARAMETER_BYTES
    parameters = xp.ascontiguousarray(rows[..., width:]).view(np.float32)
    with np.errstate(all="ignore"):
        result: Array = rows[..., :width].astype(np.float32) * parameters[..., :1] + parameters[..., 1:]
    return result


def stored(xp: Any, x: Array, dtype: np.dtype[Any]) -> Array:
    """Return tokens as they are stored in a cache of this dtype. Numbers beyond the range of 16 bits become its largest
    ones."""
    if x.dtype == dtype:
        return x
    if dtype == U8:
        return quantize_tokens(xp, x)
    result: Array = ConvertDown(destination_type=Type.of(dtype)).evaluate(xp, decode(x, xp))[0]
    return result


def restored(xp: Any, tokens: Array, dtype: np.dtype[Any]) -> Array:
    """Return tokens of a cache in the dtype that attention computes in."""
    if tokens.dtype == dtype:
        return tokens
    if tokens.dtype == U8:
        tokens = dequantize_tokens(xp, tokens)
    return tokens if tokens.dtype == dtype else converted(xp, tokens, Type.of(dtype))


def restored_spec(tokens: Spec, element_type: Type) -> Spec:
    """Return the spec of `restored`."""
    if tokens.type != Type.u8 or tokens.shape is None:
        return replace(tokens, type=element_type)
    return Spec(element_type, (*tokens.shape[:-1], tokens.shape[-1] - PARAMETER_BYTES))
