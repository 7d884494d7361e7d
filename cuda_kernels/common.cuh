// What every kernel file includes first: 16-bit float types, shared-memory declarations, grid barrier.
#pragma once

#ifndef OVGPU_EMU

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// OVGPU_SHARED(float, tile, [16][17]); declares an array per block.
#define OVGPU_SHARED(T, name, dims) __shared__ __align__(16) T name dims

// OVGPU_DYN_SHARED(float, row); is the launch's dynamic shared memory as a T*.
#define OVGPU_DYN_SHARED(T, name)                                    \
  extern __shared__ __align__(16) unsigned char ovgpu_dyn_shared[]; \
  T* name = reinterpret_cast<T*>(ovgpu_dyn_shared)

#endif  // OVGPU_EMU

// Every block of a cooperative launch waits for all the others. `arrived` is zero before the launch;
// `generation` counts the barriers passed so far and is the same in every block.
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
