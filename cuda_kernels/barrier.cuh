// Barrier among some of the blocks of a cooperative launch, in two halves: work between them overlaps with waiting.
// The instructions need compute capability 7.0. tests/emulator/cuda_emu_ptx.h implements the functions on the host.
#pragma once

#include "common.cuh"

#ifndef OVGPU_EMU

// Add 1 to a counter in global memory with release semantics (red.release). One thread of each block calls it, after
// __syncthreads.
__device__ __forceinline__ void arrive(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(counter) : "memory");
}

// Wait until the counter has reached `count` (ld.acquire). After a __syncthreads that follows, the block sees
// everything that the arrived blocks wrote before they called `arrive`.
__device__ __forceinline__ void wait_for_arrivals(const unsigned* counter, unsigned count) {
  unsigned arrived;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
  } while (arrived < count);
}

#endif  // OVGPU_EMU
