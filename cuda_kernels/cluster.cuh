// Clusters: consecutive blocks along x that run at the same time, and store to each other's shared memory. They need
// compute capability 9.0. tests/emulator/cuda_emu_ptx.h implements the same functions on the host.
#pragma once

#include "ptx.cuh"

#ifndef OVGPU_EMU

// Return the index of this block in its cluster, and the index of the cluster in the grid.
__device__ __forceinline__ unsigned rank_in_cluster() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

__device__ __forceinline__ unsigned number_of_cluster() {
  unsigned number = blockIdx.x;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
#endif
  return number;
}

// State of the shared memory that other blocks store to: its own block has not used it yet, or has.
enum SharedMemory { UNTOUCHED, REUSED };

// The two halves of a barrier of the cluster: announce the arrival of this thread, and wait for the arrival of all
// threads of the cluster. Every thread calls both, in this order. With REUSED memory the arrival releases: the thread's
// earlier reads happen before the stores of other blocks.
template <SharedMemory MEMORY>
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  if constexpr (MEMORY == REUSED) {
    asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" : : : "memory");
  }
#else
  __trap();
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#endif
}

// Stores of the blocks of a cluster to the shared memory of one of them, which waits for a number of bytes. A thread of
// the receiving block calls `expect` before it arrives at the cluster; the other blocks store after they have waited
// for the cluster. An object, aligned to 16 bytes, serves for one wait.
struct ExpectedStores {
  unsigned long long barrier;

  __device__ __forceinline__ void expect(unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    const unsigned at = shared_address(&barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" : : "r"(at) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
#endif
  }
  // Store to block `rank` of the cluster; `to` and this object are addressed as in the calling block's own shared
  // memory.
  __device__ __forceinline__ void store(uint4* to, const uint4& value, unsigned rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .u32 to, at;\nmapa.shared::cluster.u32 to, %0, %2;\nmapa.shared::cluster.u32 at, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [to], {%3, %4, %5, %6}, [at];\n}"
        :
        : "r"(shared_address(to)), "r"(shared_address(&barrier)), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z),
          "r"(value.w)
        : "memory");
#endif
  }
  __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred there;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 there, [%0], 0;\n"
        "@!there bra AGAIN;\n}"
        :
        : "r"(shared_address(&barrier))
        : "memory");
#endif
  }
};

#endif  // OVGPU_EMU
