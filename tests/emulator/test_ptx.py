"""Host versions of the instructions in cuda_kernels/ptx.cuh: matrix products by a warp, and asynchronous copies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from .state import LANDINGS, CUDARuntimeError
from .test_kernels import ORDERS, kernel

CODE = r"""
#include "ptx.cuh"

template <class T, bool TRANSPOSED>
__device__ void product(const T* a, const T* b, float* sum) {  // a [16, 16]; b [8, 16] or, transposed, [16, 8]
  OVGPU_SHARED(T, left, [16][24]);
  OVGPU_SHARED(T, right, [16][24]);
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) left[i / 16][i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) right[TRANSPOSED ? i / 8 : i / 16][TRANSPOSED ? i % 8 : i % 16] = b[i];
  __syncwarp();
  unsigned x[4], y[4];
  load_matrices(&left[lane % 16][lane / 16 * 8], x);
  if (TRANSPOSED) load_transposed(&right[lane % 16][0], y);
  else load_matrices(&right[lane % 8][lane / 8 % 2 * 8], y);
  float own[4] = {1.f, 1.f, 1.f, 1.f};
  multiply_add<T>(x, y[0], y[1], own);
  for (int i = 0; i < 4; i++) sum[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = own[i];
}
extern "C" __global__ void half_rows(const __half* a, const __half* b, float* sum) {
  product<__half, false>(a, b, sum);
}
extern "C" __global__ void bf16_columns(const __nv_bfloat16* a, const __nv_bfloat16* b, float* sum) {
  product<__nv_bfloat16, true>(a, b, sum);
}

extern "C" __global__ void tf32_rows(const float* a, const float* b, float* sum) {  // a [16, 8]; b [8, 8]
  OVGPU_SHARED(float, left, [16][12]);
  OVGPU_SHARED(float, right, [8][12]);
  const int lane = threadIdx.x;
  for (int i = lane; i < 128; i += 32) left[i / 8][i % 8] = a[i];
  for (int i = lane; i < 64; i += 32) right[i / 8][i % 8] = b[i];
  __syncwarp();
  unsigned x[4], y[4];
  load_matrices(&left[lane % 16][lane / 16 * 4], x);
  load_matrices(&right[lane % 8][lane / 8 % 2 * 4], y);
  float own[4] = {1.f, 1.f, 1.f, 1.f};
  multiply_add<float>(x, y[0], y[1], own);
  for (int i = 0; i < 4; i++) sum[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = own[i];
}

extern "C" __global__ void s8_rows(const signed char* a, const signed char* b, int* sum) {  // a [16, 32]; b [8, 32]
  OVGPU_SHARED(signed char, left, [16][48]);
  OVGPU_SHARED(signed char, right, [8][48]);
  const int lane = threadIdx.x;
  for (int i = lane; i < 512; i += 32) left[i / 32][i % 32] = a[i];
  for (int i = lane; i < 256; i += 32) right[i / 32][i % 32] = b[i];
  __syncwarp();
  unsigned x[4], y[4];
  load_matrices(&left[lane % 16][lane / 16 * 16], x);
  load_matrices(&right[lane % 8][lane / 8 % 2 * 16], y);
  int own[4];
  for (int i = 0; i < 4; i++) own[i] = sum[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2];
  multiply_add<signed char>(x, y[0], y[1], own);
  for (int i = 0; i < 4; i++) sum[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = own[i];
}

extern "C" __global__ void copied(const int* from, int* out, int wait, int shift) {
  OVGPU_SHARED(int, to, [8]);
  if (threadIdx.x < 2) copy_async(to + threadIdx.x * 4, from + threadIdx.x * 4 + shift, threadIdx.x == 0);
  if (wait) wait_copies();
  __syncthreads();
  if (threadIdx.x < 8) out[threadIdx.x] = to[threadIdx.x];
}

extern "C" __global__ void overwritten(const int* from, int* out, int wait) {
  OVGPU_SHARED(int, to, [4]);
  if (threadIdx.x == 0) copy_async(to, from, true);
  __syncthreads();
  if (threadIdx.x == 5) to[2] = 7;
  __syncthreads();
  if (wait) wait_copies();
  if (threadIdx.x < 4) out[threadIdx.x] = to[threadIdx.x];
}

extern "C" __global__ void narrow(const int* from, int* out) {  // 4 bytes, zeros in place of 4, 8 bytes
  OVGPU_SHARED(int, to, [4]);
  copy_async<4>(to, from, true);
  copy_async<4>(to + 1, from + 1, false);
  copy_async<8>(to + 2, from + 2, true);
  wait_copies();
  for (int i = 0; i < 4; i++) out[i] = to[i];
}

extern "C" __global__ void grouped(const int* from, int* out) {  // two copies, then one, and one that is in no group
  OVGPU_SHARED(int, to, [16]);
  for (int i = 0; i < 4; i++) {
    copy_async(to + i * 4, from + i * 4, true);
    if (i == 1 || i == 2) commit_copies();
  }
  wait_copies_but<1>();
  for (int i = 0; i < 16; i++) out[i] = to[i];
  wait_copies_but<0>();
  for (int i = 0; i < 16; i++) out[16 + i] = to[i];
  wait_copies();
  for (int i = 0; i < 16; i++) out[32 + i] = to[i];
}
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("name", "kind"), [("half_rows", np.float16), ("bf16_columns", ml_dtypes.bfloat16)])
def test_products(name: str, kind: Any, order: Any) -> None:
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((16, n)).astype(kind) for n in (16, 8))
    out = cp.empty((16, 8), np.float32)
    with cp.thread_order(order):
        kernel(CODE, name)((1,), (32,), (cp.asarray(a), cp.asarray(b if name == "bf16_columns" else b.T.copy()), out))
    np.testing.assert_allclose(out.get(), 1 + a.astype("f8") @ b.astype("f8"), 1e-6, 1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_products_in_tf32(order: Any) -> None:
    """Eight columns at a time are multiplied; 13 bits of the operands are ignored."""
    random = np.random.default_rng(4)
    a, b = (random.standard_normal((n, 8)).astype(np.float32) for n in (16, 8))
    out = cp.empty((16, 8), np.float32)
    with cp.thread_order(order):
        kernel(CODE, "tf32_rows")((1,), (32,), (cp.asarray(a), cp.asarray(b), out))
    left, right = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32).astype("f8") for x in (a, b))
    np.testing.assert_allclose(out.get(), 1 + left @ right.T, 1e-6, 1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_products_of_integers(order: Any) -> None:
    """The sum wraps around."""
    random = np.random.default_rng(5)
    a, b = (random.integers(-128, 128, (n, 32), np.int8) for n in (16, 8))
    a[:8], b[:4] = 127, 127
    begin = np.full((16, 8), 2**31 - 1, np.int32)
    out = cp.asarray(begin)
    with cp.thread_order(order):
        kernel(CODE, "s8_rows")((1,), (32,), (cp.asarray(a), cp.asarray(b), out))
    wanted = begin.astype(np.int64) + a.astype(np.int64) @ b.T.astype(np.int64)
    np.testing.assert_array_equal(out.get(), wanted.astype(np.uint32).view(np.int32))


ARRIVED, POISON = [1, 2, 3, 4, 0, 0, 0, 0], [-1] * 4


def copied(wait: bool, shift: int = 0) -> list[int]:
    out = cp.empty(8, np.int32)
    source = cp.asarray(np.arange(1, 17, dtype=np.int32))
    kernel(CODE, "copied")((1,), (32,), (source, out, np.int32(wait), np.int32(shift)))
    return out.get().tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("landing", LANDINGS)
def test_copies_that_are_waited_for(landing: int) -> None:
    with cp.landing(landing):
        assert copied(True) == ARRIVED


def test_copies_that_are_not_waited_for() -> None:
    """They land at once, after the end, or in between."""
    with cp.landing("early"):
        assert copied(False) == ARRIVED
    with cp.landing("late"):
        assert copied(False) == POISON * 2
    found = set()
    for seed in range(2, 42):
        with cp.landing(seed):
            found.add((*copied(False),))
    assert found == {(*first, *second) for first in (ARRIVED[:4], POISON) for second in (ARRIVED[4:], POISON)}


def test_results_that_depend_on_when_copies_land() -> None:
    with cp.landing("all"):
        assert copied(True) == ARRIVED
        with pytest.raises(CUDARuntimeError, match="depend on when asynchronous copies and stores land"):
            copied(False)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("landings", [["late"], range(2, 22)], ids=["late", "drawn"])
def test_writes_to_memory_that_a_copy_is_on_its_way_to(landings: Any, waits: bool) -> None:
    """The copy is waited for too late, or not at all: the block's end notices it."""
    source, out = cp.asarray(np.arange(4, dtype=np.int32)), cp.empty(4, np.int32)
    with pytest.raises(CUDARuntimeError, match="while an asynchronous copy to it was on its way"):
        for landing in landings:
            with cp.landing(landing):
                kernel(CODE, "overwritten")((1,), (32,), (source, out, np.int32(waits)))


def test_a_copy_from_a_misaligned_address() -> None:
    with pytest.raises(CUDARuntimeError, match="which are not multiples of 16 bytes"):
        copied(True, 1)


def test_narrow_copies() -> None:
    out = cp.empty(4, np.int32)
    kernel(CODE, "narrow")((1,), (1,), (cp.asarray(np.arange(1, 5, dtype=np.int32)), out))
    assert out.get().tolist() == [1, 0, 3, 4]


def test_groups_of_copies() -> None:
    """The groups before the last ones arrive; copies that are in no group are not waited for."""
    out, numbers = cp.empty(48, np.int32), np.arange(1, 17, dtype=np.int32)
    with cp.landing("late"):
        kernel(CODE, "grouped")((1,), (1,), (cp.asarray(numbers), out))
    arrived = [int((row == numbers).sum()) for row in out.get().reshape(3, 16)]
    assert arrived == [8, 12, 16]
