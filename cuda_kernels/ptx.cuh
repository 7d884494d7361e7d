// PTX instructions, each behind a function, for compute capability 8.0 and up unless they say otherwise. Their twins for
// the host are in tests/emulator/cuda_emu_ptx.h.
#pragma once

#include "common.cuh"

#ifndef OVGPU_EMU

// 2^x; 0 for what would be subnormal.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// atomicInc by one thread of a block: what the block wrote before a barrier is visible to those who see the result, and
// what others wrote before theirs is visible to the block after a barrier. Cheaper than fences of all threads.
__device__ __forceinline__ unsigned increment_acquire_release(unsigned* at, unsigned limit) {
  unsigned before;
#if __CUDA_ARCH__ >= 700
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(limit) : "memory");
#else
  __threadfence();
  before = atomicInc(at, limit);
  __threadfence();
#endif
  return before;
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

// Four matrices of 8 x 8 elements of 16 bits for a warp: lane 8 i + r says where row r of matrix i begins, a multiple
// of 16 bytes. to[i] has elements 2 (lane % 4) and the next one of row lane / 4 of matrix i.
__device__ __forceinline__ void load_matrices(const void* row, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same of the transposed matrices: elements of column lane / 4.
__device__ __forceinline__ void load_transposed(const void* row, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// sum += a b by a warp: a is 16 x 16, b 16 x 8 and sum 16 x 8. With row = lane / 4 and column = 2 (lane % 4), a lane
// has two neighbours of a from (row, column), (row + 8, column), (row, column + 8) and (row + 8, column + 8); of b those
// of column `row` from rows `column` and `column + 8`; of sum those from (row, column) and (row + 8, column).
template <class T>
__device__ void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4]);
#define OVGPU_MULTIPLY_ADD(T, name)                                                                          \
  template <>                                                                                                \
  __device__ __forceinline__ void multiply_add<T>(const unsigned (&a)[4], unsigned b0, unsigned b1,          \
                                                  float (&sum)[4]) {                                         \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "                              \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                           \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                            \
  }
OVGPU_MULTIPLY_ADD(__half, "f16")
OVGPU_MULTIPLY_ADD(__nv_bfloat16, "bf16")
#undef OVGPU_MULTIPLY_ADD

// Copies 16 bytes from global to shared memory, zeros unless `there`. They have arrived after wait_copies by this
// thread; others see them after a barrier.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

#endif  // OVGPU_EMU
