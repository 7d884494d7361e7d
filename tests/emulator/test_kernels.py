"""Kernels on the host: right results, and injected bugs of each kind, caught in separate processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from .isolation import isolated
from .nvrtc import AMPERE, KERNELS, compile_source
from .state import CUDARuntimeError
from .toolchain import EmulatorError

OPTIONS = (f"-I{KERNELS}",)
F32 = np.dtype(np.float32)
ORDERS = ("ascending", "descending", 7, 8)

CODE = r"""
#include "common.cuh"

template <class T>
__device__ T warp_max(T v) {
  for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
}
template <class T>
__device__ T warp_sum(T v) {
  for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}

// One block per row.
template <class T>
__global__ void softmax(const T* __restrict__ x, T* __restrict__ y, int n) {
  OVGPU_SHARED(float, partial, [32]);
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, warps = (blockDim.x + 31) >> 5;
  x += static_cast<size_t>(blockIdx.x) * n;
  y += static_cast<size_t>(blockIdx.x) * n;
  float m = __int_as_float(0xff800000);
  for (int i = t; i < n; i += blockDim.x) m = fmaxf(m, static_cast<float>(x[i]));
  m = warp_max(m);
  if (lane == 0) partial[warp] = m;
  __syncthreads();  // FIRST
  m = warp_max(lane < warps ? partial[lane] : __int_as_float(0xff800000));
  __syncthreads();  // SECOND
  float s = 0.f;
  for (int i = t; i < n; i += blockDim.x) s += __expf(static_cast<float>(x[i]) - m);
  s = warp_sum(s);
  if (lane == 0) partial[warp] = s;
  __syncthreads();  // THIRD
  s = warp_sum(lane < warps ? partial[lane] : 0.f);
  for (int i = t; i < n; i += blockDim.x) y[i] = T(__expf(static_cast<float>(x[i]) - m) / s);
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
  OVGPU_SHARED(float, sa, [16][17]);
  OVGPU_SHARED(float, sb, [16][17]);
  const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * 16 + ty, col = blockIdx.x * 16 + tx;
  float sum = 0.f;
  for (int k0 = 0; k0 < k; k0 += 16) {
    sa[ty][tx] = (row < m && k0 + tx < k) ? a[row * k + k0 + tx] : 0.f;
    sb[ty][tx] = (k0 + ty < k && col < n) ? b[(k0 + ty) * n + col] : 0.f;
    __syncthreads();  // LOAD
    for (int i = 0; i < 16; ++i) sum += sa[ty][i] * sb[i][tx];
    __syncthreads();  // USE
  }
  if (row < m && col < n) c[row * n + col] = sum;
}
"""


def module(code: str, names: tuple[str, ...] = (), **kwargs: object) -> cp.RawModule:
    return cp.RawModule(code=code, options=OPTIONS, name_expressions=names, **kwargs)


def kernel(code: str, name: str = "kernel") -> cp.RawKernel:
    return module(code).get_function(name)


def softmax_error(code: str, dtype: np.dtype, name: str, n: int = 77) -> float:
    x = (np.random.default_rng(0).standard_normal((4, n)) * 3).astype(dtype)
    device_x, y = cp.asarray(x), cp.empty(x.shape, dtype)
    module(code, (name,)).get_function(name)((4,), (96,), (device_x, y, np.int32(n)))
    wide = x.astype(np.float64)
    expected = np.exp(wide - wide.max(-1, keepdims=True))
    return float(np.abs(y.get().astype(np.float64) - expected / expected.sum(-1, keepdims=True)).max())


def matmul_error(code: str) -> float:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((33, 65), (65, 47)))
    c = cp.empty((33, 47), np.float32)
    sizes = [np.int32(n) for n in (33, 47, 65)]
    module(code).get_function("matmul")((3, 3), (16, 16), (cp.asarray(a), cp.asarray(b), c, *sizes))
    return float(np.abs(c.get() - a @ b).max())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("dtype", "name", "tolerance"),
    [
        (np.float32, "softmax<float>", 1e-7),
        (np.float16, "softmax<__half>", 5e-4),
        (ml_dtypes.bfloat16, "softmax<__nv_bfloat16>", 4e-3),
    ],
)
def test_softmax(order: object, dtype: np.dtype, name: str, tolerance: float) -> None:
    with cp.thread_order(order):
        for n in (1, 31, 77, 300):
            assert softmax_error(CODE, np.dtype(dtype), name, n) < tolerance


@pytest.mark.parametrize("order", ORDERS)
def test_tiled_matmul(order: object) -> None:
    with cp.thread_order(order):
        assert matmul_error(CODE) < 1e-4


@pytest.mark.parametrize(
    ("sound", "broken"),
    [
        ("__syncthreads();  // FIRST", ""),
        ("__syncthreads();  // SECOND", ""),
        ("__syncthreads();  // THIRD", ""),
        ("int m = 16; m; m >>= 1) v +=", "int m = 8; m; m >>= 1) v +="),
        ("lane < warps ? partial[lane] : 0.f", "lane <= warps ? partial[lane] : 0.f"),
        ("__syncthreads();  // LOAD", ""),
        ("__syncthreads();  // USE", ""),
        ("(row < m && k0 + tx < k) ?", "(k0 + tx < k) ?"),
        ("sb[i][tx]", "sb[tx][i]"),
    ],
)
@isolated
def test_a_broken_kernel_is_noticed(sound: str, broken: str) -> None:
    assert sound in CODE
    code = CODE.replace(sound, broken)
    errors = []
    for order in ORDERS:
        with cp.thread_order(order):
            try:
                errors.append(not softmax_error(code, np.dtype(np.float32), "softmax<float>") < 1e-6)
                errors.append(not matmul_error(code) < 1e-3)
            except CUDARuntimeError:
                errors.append(True)
    assert any(errors)


@isolated
def test_barrier_that_some_threads_miss() -> None:
    code = 'extern "C" __global__ void kernel() { if (threadIdx.x < 40) __syncthreads(); }'
    with pytest.raises(CUDARuntimeError, match=r"kernel: divergent barrier.*line 1 .*every thread.*block \(0, 0, 0\)"):
        kernel(code)((1,), (64,), ())


@isolated
def test_barriers_of_two_branches() -> None:
    code = """extern "C" __global__ void kernel() {
      if (threadIdx.x < 32) {
        __syncthreads();
      } else {
        __syncthreads();
      }
    }"""
    with pytest.raises(CUDARuntimeError, match=r"divergent barrier.*lines 3 and 5"):
        kernel(code)((1,), (64,), ())


@isolated
def test_collective_that_some_lanes_miss() -> None:
    code = """extern "C" __global__ void kernel(int* y) {
      if (threadIdx.x == 3) __syncthreads();
      y[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 0);
    }"""
    with pytest.raises(CUDARuntimeError, match=r"line 3: warp collective.*never reach"):
        kernel(code)((1,), (32,), (cp.empty(32, np.int32),))


@isolated
def test_collective_of_a_lane_outside_its_mask() -> None:
    code = 'extern "C" __global__ void kernel() { __syncwarp(0xffffu); }'
    with pytest.raises(CUDARuntimeError, match=r"lane 16 is not in the mask"):
        kernel(code)((1,), (32,), ())


@pytest.mark.parametrize("n", [64, 77])
@isolated
def test_read_past_the_end(n: int) -> None:
    code = 'extern "C" __global__ void kernel(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 4]; }'
    y = cp.empty(n, np.float32)
    with pytest.raises(CUDARuntimeError, match=r"past the end of a device array of \d+ bytes \(block .*thread"):
        kernel(code)((1,), (n,), (cp.zeros(n, np.float32), y))
    assert y.get().size == n  # the process goes on


@isolated
def test_write_right_past_the_end() -> None:
    code = 'extern "C" __global__ void kernel(float* y, int n) { if (threadIdx.x <= n) y[threadIdx.x] = 1.f; }'
    y = cp.empty(77, np.float32)  # 12 bytes before the guard page
    with pytest.raises(CUDARuntimeError, match="went past the end of a device array of 308 bytes"):
        kernel(code)((1,), (96,), (y, np.int32(77)))


@isolated
def test_access_before_the_start_of_memory() -> None:
    code = 'extern "C" __global__ void kernel(int* y) { y[-2000] = 1; }'
    with pytest.raises(CUDARuntimeError, match="illegal memory access"):
        kernel(code)((1,), (1,), (cp.empty(1, np.int32),))


@isolated
def test_index_outside_a_shared_array() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel(float* y) {
      OVGPU_SHARED(float, s, [32]);
      s[threadIdx.x] = 1.f;
      y[threadIdx.x] = s[threadIdx.x];
    }"""
    with pytest.raises(CUDARuntimeError, match=r"array index out of bounds.*thread \(32, 0, 0\)"):
        kernel(code)((1,), (64,), (cp.empty(64, np.float32),))


@isolated
def test_past_the_end_of_dynamic_shared_memory() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel() { OVGPU_DYN_SHARED(float, s); s[threadIdx.x] = 1.f; }"""
    kernel(code)((1,), (64,), (), shared_mem=256)
    with pytest.raises(CUDARuntimeError, match="past the end of dynamic shared memory"):
        kernel(code)((1,), (68,), (), shared_mem=256)


@isolated
def test_uninitialised_memory_is_poison() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel(unsigned* y) {
      OVGPU_SHARED(unsigned, s, [4]);
      OVGPU_DYN_SHARED(unsigned, d);
      y[0] = s[1], y[1] = d[1];
      s[1] = 5, d[1] = 5;
    }"""
    y = cp.empty(3, np.uint32)
    for _ in range(2):  # nor does a later block see what an earlier one left
        kernel(code)((2,), (1,), (y,), shared_mem=16)
        assert y.get().tolist() == [0xFBFBFBFB] * 3


@isolated
def test_integer_division_by_zero() -> None:
    code = 'extern "C" __global__ void kernel(int* y) { y[0] = 7 / y[0]; }'
    with pytest.raises(CUDARuntimeError, match="integer division by zero"):
        kernel(code)((1,), (1,), (cp.zeros(1, np.int32),))


@isolated
def test_stack_overflow() -> None:
    code = """__device__ __noinline__ int deep(volatile int* y, int n) {
      volatile char frame[4096];
      frame[n % 4096] = 1;
      return n ? deep(y, n - 1) + frame[n % 4096] : y[0];
    }
    extern "C" __global__ void kernel(int* y) { y[0] = deep(y, 1000); }"""
    with pytest.raises(CUDARuntimeError, match="stack overflow"):
        kernel(code)((1,), (1,), (cp.zeros(1, np.int32),))


def test_bare_shared_memory_does_not_compile() -> None:
    with pytest.raises(EmulatorError, match="declare shared memory with OVGPU_SHARED"):
        kernel('extern "C" __global__ void kernel() { __shared__ float s[4]; s[0] = 0; }')


ARGUMENTS = 'extern "C" __global__ void kernel(float* y, int n, float a) { if (threadIdx.x < n) y[threadIdx.x] = a; }'


@pytest.mark.parametrize(
    ("args", "match"),
    [
        ((np.int32(4),), "1 arguments given, the kernel takes 3"),
        ((None, 4, np.float32(1)), "argument 1 has 8 bytes"),
        ((None, np.int64(4), np.float32(1)), "argument 1 has 8 bytes"),
        ((None, np.int32(4), 1.0), "argument 2 has 8 bytes"),
        ((None, np.int32(4), np.int32(1)), "argument 2 is of kind 'i'"),
        ((np.zeros(1, np.float32), np.int32(4), np.float32(1)), "Unsupported type <class 'numpy.ndarray'>"),
        ((np.zeros(4, np.float32), np.int32(4), np.float32(1)), "only those of size one are passed by value"),
        (("y", np.int32(4), np.float32(1)), "Unsupported type <class 'str'>"),
    ],
)
def test_arguments_that_do_not_fit(args: tuple[object, ...], match: str) -> None:
    with pytest.raises(TypeError, match=match):
        kernel(ARGUMENTS)((1,), (32,), args)


@isolated
def test_a_host_address_is_no_device_pointer() -> None:
    host = np.zeros(4, np.float32)
    with pytest.raises(CUDARuntimeError, match=r"argument 0 points to .* not device memory"):
        kernel(ARGUMENTS)((1,), (32,), (np.uint64(host.ctypes.data), np.int32(4), np.float32(1)))


def test_structs_pass_by_value() -> None:
    code = """struct Shape { int n; float scale; };
    extern "C" __global__ void kernel(float* y, Shape s) {
      if (threadIdx.x < s.n) y[threadIdx.x] = s.scale;
    }"""
    y = cp.zeros(4, np.float32)
    shape = np.array([(3, 2.5)], dtype=[("n", np.int32), ("scale", np.float32)])
    kernel(code)((1,), (32,), (y, shape))
    assert y.get().tolist() == [2.5, 2.5, 2.5, 0]


@pytest.mark.parametrize(("grid", "block"), [((0,), (32,)), ((1, 65536), (32,)), ((1,), (2048,)), ((1,), (1, 1, 65))])
def test_geometry_that_no_device_takes(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    with pytest.raises(CUDARuntimeError, match=r"invalid (grid|block)"):
        kernel(ARGUMENTS)(grid, block, (None, np.int32(0), np.float32(1)))


def test_launch_bounds() -> None:
    code = 'extern "C" __global__ void __launch_bounds__(64) kernel() {}'
    kernel(code)((1,), (64,), ())
    with pytest.raises(CUDARuntimeError, match="at most 64 threads"):
        kernel(code)((1,), (96,), ())
    for constant in ("#define LIMIT 64\n", "constexpr int LIMIT = 64, OTHER = 2;"):
        named = constant + code.replace("(64)", "(LIMIT, sizeof(float) == 4 ? 2 : 1)")
        with pytest.raises(CUDARuntimeError, match="at most 64 threads"):
            kernel(named)((1,), (96,), ())


@isolated
def test_shared_memory_limits() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel(int use) {
      if (!use) return;
      OVGPU_SHARED(float, s, [4096]);
      s[threadIdx.x] = 0.f;
    }"""
    run = kernel(code)
    run((1,), (32,), (np.int32(1),), shared_mem=32 << 10)
    with pytest.raises(CUDARuntimeError, match="exceed 48 KB"):
        run((1,), (32,), (np.int32(0),), shared_mem=50 << 10)
    with pytest.raises(CUDARuntimeError, match="exceeds 48 KB"):
        run((1,), (32,), (np.int32(1),), shared_mem=40 << 10)
    run.max_dynamic_shared_size_bytes = 200 << 10
    run((1,), (32,), (np.int32(1),), shared_mem=200 << 10)
    with pytest.raises(CUDARuntimeError, match="exceed 227 KB"):
        run.max_dynamic_shared_size_bytes = 228 << 10


def test_names() -> None:
    code = "template <class T> __global__ void f(T* y) { *y = T(3); }\n__global__ void g() {}"
    two = module(code, ("f<int>", "f<float>"))
    y = cp.empty(1, np.int32)
    two.get_function("f<int>")((1,), (1,), (y,))
    assert y.get().tolist() == [3]
    with pytest.raises(CUDARuntimeError, match="named symbol not found: g is not extern"):
        two.get_function("g")
    with pytest.raises(EmulatorError, match="compilation failed"):
        two.get_function("missing")


def test_kernels_that_macros_declare() -> None:
    code = '#define FILL(T) extern "C" __global__ void fill_##T(T* y) { *y = 4; }\nFILL(int) FILL(float)'
    y = cp.empty(1, np.float32)
    module(code).get_function("fill_float")((1,), (1,), (y,))
    assert y.get().tolist() == [4]


@isolated
def test_blocks_that_wait_for_each_other() -> None:
    code = """#include "common.cuh"
    extern "C" __global__ void kernel(unsigned* arrived, int* y) {
      for (unsigned step = 0; step < 3; ++step) {
        if (threadIdx.x == 0) atomicAdd(y + step, (step ? y[step - 1] : 1));
        ovgpu_grid_barrier(arrived, step);
      }
    }"""
    y, arrived = cp.zeros(3, np.int32), cp.zeros(1, np.uint32)
    module(code, enable_cooperative_groups=True).get_function("kernel")((4,), (32,), (arrived, y))
    assert y.get().tolist() == [4, 16, 64]
    arrived.fill(0)
    with pytest.raises(CUDARuntimeError, match="waits for another block in a launch that is not cooperative"):
        module(code).get_function("kernel")((4,), (32,), (arrived, y))


@pytest.mark.parametrize("order", ORDERS)
def test_groups_of_blocks_that_wait_for_each_other(order: str | int) -> None:
    """The blocks of a row have a barrier of their own, and work while they wait."""
    code = """#include "barrier.cuh"
    extern "C" __global__ void kernel(unsigned* arrived, int* y) {
      y += blockIdx.y * 3;
      for (unsigned step = 0; step < 2 + blockIdx.y; ++step) {
        if (threadIdx.x == 0) atomicAdd(y + step, (step ? y[step - 1] : 1));
        __syncthreads();
        if (threadIdx.x == 0) arrive(arrived + blockIdx.y);
        if (threadIdx.x == 0) wait_for_arrivals(arrived + blockIdx.y, (step + 1) * gridDim.x);
        __syncthreads();
      }
    }"""
    y, arrived = cp.zeros(6, np.int32), cp.zeros(2, np.uint32)
    with cp.thread_order(order):
        module(code, enable_cooperative_groups=True).get_function("kernel")((4, 2), (32,), (arrived, y))
    assert y.get().tolist() == [4, 16, 0, 4, 16, 64] and arrived.get().tolist() == [8, 12]


@isolated
def test_cooperative_groups() -> None:
    code = """#include <cooperative_groups.h>
    extern "C" __global__ void kernel(int* y) {
      atomicAdd(y, 1);
      cooperative_groups::this_grid().sync();
      if (threadIdx.x == 0) y[1 + blockIdx.x] = y[0];
      if (blockIdx.x == 1 && threadIdx.x == 5 && y[0] != 96) y[-4000] = 1;
    }"""
    run = module(code, enable_cooperative_groups=True).get_function("kernel")
    y = cp.zeros(4, np.int32)
    run((3,), (32,), (y,))
    assert y.get().tolist() == [96, 96, 96, 96]
    with pytest.raises(CUDARuntimeError, match=r"illegal memory access.*block \(1, 0, 0\), thread \(5, 0, 0\)"):
        run((3,), (32,), (y,))  # a fault in one of several OS threads
    with pytest.raises(CUDARuntimeError, match="cooperative launch"):
        run((1000,), (32,), (y,))


def test_launches_from_several_python_threads() -> None:
    def work(_: int) -> float:
        with cp.cuda.Stream(non_blocking=True):
            return max(matmul_error(CODE) for _ in range(5)) + softmax_error(CODE, F32, "softmax<float>", 50)

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(8))) < 1e-4


@isolated
def test_a_fault_does_not_spoil_later_launches() -> None:
    code = CODE.replace("c[row * n + col] = sum", "c[row * n + col + (row == 20 ? 1 << 20 : 0)] = sum")
    for _ in range(20):
        with pytest.raises(CUDARuntimeError, match=r"matmul: illegal memory access.*thread \(\d+, 4, 0\)"):
            matmul_error(code)
        assert matmul_error(CODE) < 1e-4


def test_host_twin_of_a_tensor_core_instruction() -> None:
    """One function wraps mma.sync.m16n8k16: PTX on a device, `emu::gather` on the host."""
    code = r"""#include "common.cuh"
    struct FragmentA { unsigned r[4]; };
    struct FragmentB { unsigned r[2]; };
    __device__ void mma(float (&d)[4], FragmentA a, FragmentB b) {
    #ifdef OVGPU_EMU
      FragmentA rows[32];
      FragmentB columns[32];
      emu::gather(a, rows, __LINE__);
      emu::gather(b, columns, __LINE__);
      const int lane = threadIdx.x;
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) {
          const unsigned x = rows[row % 8 * 4 + k % 8 / 2].r[row / 8 + k / 8 * 2] >> (k % 2 * 16);
          const unsigned y = columns[column * 4 + k % 8 / 2].r[k / 8] >> (k % 2 * 16);
          d[i] += __half2float(__ushort_as_half(x)) * __half2float(__ushort_as_half(y));
        }
      }
    #else
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
    #endif
    }
    extern "C" __global__ void kernel(const unsigned short* a, const unsigned short* b, float* c) {
      const int group = threadIdx.x / 4, pair = threadIdx.x % 4 * 2;
      FragmentA fa;
      FragmentB fb;
      for (int i = 0; i < 4; ++i) {
        const unsigned short* p = a + (group + i % 2 * 8) * 16 + pair + i / 2 * 8;
        fa.r[i] = p[0] | unsigned(p[1]) << 16;
      }
      for (int i = 0; i < 2; ++i) {
        const unsigned short* p = b + (pair + i * 8) * 8 + group;
        fb.r[i] = p[0] | unsigned(p[8]) << 16;
      }
      float d[4] = {};
      mma(d, fa, fb);
      for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + pair + i % 2] = d[i];
    }"""
    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((16, 16)).astype(np.float16), rng.standard_normal((16, 8)).astype(np.float16)
    c = cp.empty((16, 8), np.float32)
    kernel(code)((1,), (32,), (cp.asarray(a), cp.asarray(b), c))
    np.testing.assert_allclose(c.get(), a.astype(np.float32) @ b.astype(np.float32), rtol=1e-5, atol=1e-5)
    for architecture in AMPERE:
        assert compile_source(code, architecture).usage["kernel"].spill_stores == 0
