"""Warp collectives, atomics and the 16-bit types against NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from .test_kernels import ORDERS, kernel


def run(body: str, *arrays: np.ndarray, threads: int = 32, blocks: int = 1, out: np.ndarray) -> np.ndarray:
    """Run `body` as a kernel with inputs a, b, ... and output y; return y."""
    types = {
        "int32": "int",
        "uint32": "unsigned",
        "float32": "float",
        "uint16": "unsigned short",
        "int64": "long long",
    }
    names = "abcd"[: len(arrays)]
    parameters = [f"const {types[array.dtype.name]}* {name}" for array, name in zip(arrays, names)]
    parameters.append(f"{types[out.dtype.name]}* y")
    code = f"""extern "C" __global__ void kernel({", ".join(parameters)}) {{
      const int t = blockIdx.x * blockDim.x + threadIdx.x;
      const unsigned all = 0xffffffffu;
      {body}
    }}"""
    y = cp.asarray(out)
    kernel(code)((blocks,), (threads,), (*map(cp.asarray, arrays), y))
    return y.get()


LANES = np.arange(32, dtype=np.int32)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__shfl_sync(all, t * 3, 5)", np.full(32, 15)),
        ("__shfl_sync(all, t, t + 1, 8)", LANES // 8 * 8 + (LANES + 1) % 8),
        ("__shfl_xor_sync(all, t, 3)", LANES ^ 3),
        ("__shfl_up_sync(all, t, 2)", np.where(LANES < 2, LANES, LANES - 2)),
        ("__shfl_up_sync(all, t, 1, 4)", np.where(LANES % 4 == 0, LANES, LANES - 1)),
        ("__shfl_down_sync(all, t, 30)", np.where(LANES < 2, LANES + 30, LANES)),
        ("__shfl_down_sync(all, t, 1, 16)", np.where(LANES % 16 == 15, LANES, LANES + 1)),
        ("(int)__ballot_sync(all, t % 3 == 0)", np.full(32, sum(1 << i for i in range(0, 31, 3)))),
        ("__any_sync(all, t == 31) * 2 + __all_sync(all, t < 31)", np.full(32, 2)),
        ("(int)__match_any_sync(all, t / 16)", np.where(LANES < 16, 0xFFFF, -65536)),
        ("__reduce_add_sync(all, t)", np.full(32, 496)),
        ("__reduce_max_sync(all, -t)", np.zeros(32)),
        ("__popc(__ballot_sync(all, t & 1))", np.full(32, 16)),
        ("__syncthreads_count(t < 7)", np.full(32, 7)),
        ("__syncthreads_or(t == 9) * 2 + __syncthreads_and(t < 31)", np.full(32, 2)),
    ],
)
def test_collectives(order: object, expression: str, expected: np.ndarray) -> None:
    with cp.thread_order(order):
        assert run(f"y[t] = {expression};", out=LANES).tolist() == expected.tolist()


def test_masks_split_a_warp() -> None:
    body = """
      if (t < 16) {
        for (int i = 0; i < 3; ++i) y[t] = __shfl_xor_sync(0xffffu, y[t], 1);
      } else {
        y[t] = __shfl_sync(0xffff0000u, t, 20);
      }"""
    expected = [*(LANES[:16] ^ 1), *[20] * 16]
    assert run(body, out=LANES).tolist() == expected


def test_a_lane_that_takes_no_part_delivers_poison() -> None:
    assert run("y[t] = __shfl_sync(all, t, 31);", threads=20, out=LANES)[0] == np.int32(0xFBFBFBFB - 2**32)


@pytest.mark.parametrize(
    ("body", "dtype", "expected"),
    [
        ("atomicAdd(y, t);", np.int32, 2016),
        ("atomicAdd(y, 0.5f);", np.float32, 32),
        ("atomicSub(y, 1);", np.int32, -64),
        ("atomicMax(y, t);", np.int32, 63),
        ("atomicMin(y, -t);", np.int32, -63),
        ("atomicOr(y, 1 << t % 32);", np.uint32, 2**32 - 1),
        ("atomicExch(y, 7u);", np.uint32, 7),
        (
            "int old, seen = *y; do old = seen; while ((seen = atomicCAS(y, old, old + 2)) != old);",
            np.int32,
            128,
        ),
        ("atomicInc(y, 9u);", np.uint32, 4),
        ("atomicAdd(y, 1LL << 33);", np.int64, 64 << 33),
    ],
)
def test_atomics(body: str, dtype: type, expected: float) -> None:
    assert run(body, threads=32, blocks=2, out=np.zeros(1, dtype))[0] == expected


def test_16_bit_floats_decode() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    for name, dtype in (
        ("__half2float(__ushort_as_half(a[t]))", np.float16),
        ("__bfloat162float(__ushort_as_bfloat16(a[t]))", ml_dtypes.bfloat16),
    ):
        got = run(f"y[t] = {name};", bits, threads=256, blocks=256, out=np.zeros(65536, np.float32))
        np.testing.assert_array_equal(got, bits.view(dtype).astype(np.float32))


def test_16_bit_floats_encode() -> None:
    rng = np.random.default_rng(2)
    values = rng.integers(0, 2**32, 32768, dtype=np.uint32).view(np.float32)
    halfway = rng.integers(0, 0x7C00, 16384, dtype=np.uint16).view(np.float16).astype(np.float32)
    near = np.ldexp(rng.standard_normal(16384).astype(np.float32), rng.integers(-26, 17, 16384)).astype(np.float32)
    values = np.concatenate([values, halfway * np.float32(1 + 2**-11), near])
    values = values[~np.isnan(values)][: 65536 - 512]
    with np.errstate(over="ignore"):
        for name, dtype in (
            ("__half_as_ushort(__float2half_rn(a[t]))", np.float16),
            ("__bfloat16_as_ushort(__float2bfloat16_rn(a[t]))", ml_dtypes.bfloat16),
        ):
            got = run(f"y[t] = {name};", values, threads=256, blocks=values.size // 256,
                      out=np.zeros(values.size, np.uint16))  # fmt: skip
            count = values.size // 256 * 256
            np.testing.assert_array_equal(got[:count], values.astype(dtype).view(np.uint16)[:count])


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("__float2int_rz(3e9f)", 2**31 - 1),
        ("__float2int_rn(2.5f)", 2),
        ("__float2int_rn(__int_as_float(0x7fffffff))", 0),
        ("__float2int_rd(-0.5f)", -1),
        ("__clz(1)", 31),
        ("__ffs(8)", 4),
        ("__brev(1u) >> 31", 1),
        ("__dp4a(0x01020304, 0x01010101, 5)", 15),
        ("__umulhi(1u << 31, 6u)", 3),
        ("__byte_perm(0x11223344, 0, 0x0123)", 0x44332211),
        ("min(3, 4u)", 3),
        ("(int)max(2.5f, __int_as_float(0x7fffffff))", 2),
        ("float(__half(2049)) == 2048.f", 1),
        ("float(__half(1.f) + __half(0.0004f)) == 1.f", 1),
        ("__half(65520.f) == __half(1e9f)", 1),
        ("0x7fffffff + t + 1 < 0", 1),
        ("(int)(signed char)200", -56),
        ("sizeof(float4) + alignof(float4)", 32),
        ("sizeof(long)", 8),
    ],
)
def test_intrinsics(expression: str, expected: int) -> None:
    assert run(f"y[0] = {expression};", threads=1, out=np.zeros(1, np.int32))[0] == expected
