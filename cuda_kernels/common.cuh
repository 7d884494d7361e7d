// Header that every kernel file includes: 16-bit float types, macros for shared memory, and a grid barrier.
#pragma once

#ifndef OVGPU_EMU

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// OVGPU_SHARED(float, tile, [16][17]); declares a static shared-memory array.
#define OVGPU_SHARED(T, name, dims) __shared__ __align__(16) T name dims

// OVGPU_DYN_SHARED(float, row); declares `row` as a float* to the launch's dynamic shared memory.
#define OVGPU_DYN_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char ovgpu_dyn_shared[]; \
  T* name = reinterpret_cast<T*>(ovgpu_dyn_shared)

#endif  // OVGPU_EMU

// Wait until all blocks of a cooperative launch have called this function. `arrived` is a counter in global memory,
// zero before the launch; `generation` is the number of barriers that the kernel has passed so far, the same in every
// block.
__device__ __forceinline__ void ovgpu_grid_barrier(unsigned* arrived, unsigned generation) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    const unsigned blocks = gridDim.x * gridDim.y * gridDim.z;
    while (*static_cast<volatile unsigned*>(arrived) < (generation + 1) * blocks) __nanosleep(20);
    __threadfence();
  }
  __syncthreads();
}
