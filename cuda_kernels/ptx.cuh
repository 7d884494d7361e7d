// Wrappers of PTX instructions. mma and cp.async need compute capability 8.0, ldmatrix needs 7.5; griddepcontrol
// needs 9.0, and is left out for older cards.
// tests/emulator/cuda_emu_ptx.h implements the same functions on the host.
#pragma once

#include "common.cuh"

#ifndef OVGPU_EMU

// Wait until the launches before this one have ended and their writes are visible (griddepcontrol.wait). A kernel that
// is launched early (programmatic dependent launch) calls it in every thread, before it reads memory that another
// launch of the inference writes, or writes memory that another one accesses. Launched in another way, it need not
// wait.
__device__ __forceinline__ void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// Let the next launch begin, if it is an early one, as soon as all blocks of this launch have called this function.
__device__ __forceinline__ void start_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Return 2^x approximately; subnormal results become 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Perform an atomicInc with acquire-release semantics; one thread of each block calls it. Everything that a block wrote
// before a barrier and its call is visible to each block that reads the incremented value, after a barrier of its own.
// This is cheaper than a memory fence in every thread.
__device__ __forceinline__ unsigned increment_acquire_release(unsigned* address, unsigned limit) {
  unsigned before;
#if __CUDA_ARCH__ >= 700
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(limit) : "memory");
#else
  __threadfence();
  before = atomicInc(address, limit);
  __threadfence();
#endif
  return before;
}

__device__ __forceinline__ unsigned shared_address(const void* address) {
  return static_cast<unsigned>(__cvta_generic_to_shared(address));
}

// Load four 8 x 8 matrices of 16-bit elements into the registers of a warp (ldmatrix). Lane 8 i + r passes the address
// of row r of matrix i, aligned to 16 bytes. to[i] gets elements 2 (lane % 4) and 2 (lane % 4) + 1 of row lane / 4 of
// matrix i.
__device__ __forceinline__ void load_matrices(const void* row, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// Like load_matrices, but transpose each matrix: a lane gets elements of column lane / 4.
__device__ __forceinline__ void load_transposed(const void* row, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// Compute sum += a b in a warp on tensor cores (mma.m16n8k16): a is 16 x 16, b 16 x 8, sum 16 x 8 in f32. Let row =
// lane / 4 and column = 2 (lane % 4). A register holds two neighbouring elements. a[0] to a[3] begin at (row, column),
// (row + 8, column), (row, column + 8) and (row + 8, column + 8). b0 and b1 are from column `row` of b and begin at
// rows `column` and `column + 8`. The pairs of sum begin at (row, column) and (row + 8, column).
template <class T>
__device__ void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4]);
#define OVGPU_MULTIPLY_ADD(T, name)                                                                                    \
  template <>                                                                                                          \
  __device__ __forceinline__ void multiply_add<T>(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4]) { \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                                                \
                 ".f32 "                                                                                               \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                     \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                      \
  }
OVGPU_MULTIPLY_ADD(__half, "f16")
OVGPU_MULTIPLY_ADD(__nv_bfloat16, "bf16")
#undef OVGPU_MULTIPLY_ADD

// Compute sum += a b in TF32 (mma.m16n8k8): a is 16 x 8, b 8 x 8, sum as above. A register holds one f32 element, of
// which the hardware ignores the low 13 bits. Let row = lane / 4 and column = lane % 4. a[0] to a[3] are at (row,
// column), (row + 8, column), (row, column + 4) and (row + 8, column + 4). b0 and b1 are from column `row` of b, and
// from rows `column` and `column + 4`.
template <>
__device__ __forceinline__ void multiply_add<float>(const unsigned (&a)[4], unsigned b0, unsigned b1, float (&sum)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Compute sum += a b of 8-bit integers (mma.m16n8k32): a is 16 x 32, b 32 x 8, sum 16 x 8 in s32, where it wraps
// around. A register holds four neighbouring elements. Let row = lane / 4 and column = 4 (lane % 4). a[0] to a[3] begin
// at (row, column), (row + 8, column), (row, column + 16) and (row + 8, column + 16). b0 and b1 are from column `row`
// of b and begin at rows `column` and `column + 16`. The pairs of sum are those of 16-bit elements.
template <class T>
__device__ void multiply_add(const unsigned (&a)[4], unsigned b0, unsigned b1, int (&sum)[4]);
template <>
__device__ __forceinline__ void multiply_add<signed char>(const unsigned (&a)[4], unsigned b0, unsigned b1,
                                                          int (&sum)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Start a copy of 16 bytes, or of 4 or 8, from global to shared memory (cp.async); write zeros unless `valid`. The data
// is visible to this thread after wait_copies, and to other threads after a barrier that follows.
template <int BYTES = 16>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool valid) {
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0)
                 : "memory");
  }
}

__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" : : : "memory"); }

// Make a group of the copies that this thread has started since the last group (cp.async.commit_group).
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Wait until all groups of copies but the last `COUNT` ones have arrived; see wait_copies.
template <int COUNT>
__device__ __forceinline__ void wait_copies_but() {
  asm volatile("cp.async.wait_group %0;" : : "n"(COUNT) : "memory");
}

#endif  // OVGPU_EMU
