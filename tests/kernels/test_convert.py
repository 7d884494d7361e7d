"""Conversions by lookup table: the tables against the storage types' own rounding, and the kernels for real devices.

The judged cases of Convert run on the emulated device with all others.
"""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.ops.base.storage import encode
from ovgpu.ops.convert import _steps
from ovgpu.types import Type
from tests.emulator import nvrtc

from .gate import ToCompile

SMALL_FLOATS = ("nf4", "f8e8m0", "f4e2m1", "f8e4m3", "f8e5m2")
TYPES = (
    "float",
    "double",
    "__half",
    "__nv_bfloat16",
    "bool",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "int",
    "unsigned int",
    "long long",
    "unsigned long long",
)


@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_steps_round_as_the_type_does(name: str) -> None:
    """The table rounds random bits, and both sides of every bound, as the type does."""
    kind = getattr(Type, name)
    table = _steps(kind)
    bounds, codes = table[:1020].view(np.int32), table[1020:1276]
    rng = np.random.default_rng(3)
    drawn = rng.integers(-(2**31), 2**31, 100_000)
    keys = np.concatenate([drawn, bounds, bounds.astype(np.int64) - 1]).astype(np.int32)
    x = (keys ^ (keys >> 31 & 0x7FFFFFFF)).view(np.float32)
    keys, x = keys[~np.isnan(x)], x[~np.isnan(x)]
    with np.errstate(all="ignore"):
        wanted = encode(x, kind).view(np.uint8)
    assert np.array_equal(codes[np.searchsorted(bounds, keys, "right")], wanted)
    assert table[1276] == encode(np.array([np.nan], np.float32), kind).view(np.uint8)[0]


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"{name}<{t}, {i}, 4>" for name in ("encode", "encode_low") for t in TYPES for i in ("int", "long long")
    ]
    expressions += [
        f"decode<unsigned {t}, int, {rank}>" for t in ("char", "short", "int", "long long") for rank in (2, 8)
    ]
    expressions = to_compile("convert.cu", expressions)
    usage = nvrtc.compile_file("convert.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
