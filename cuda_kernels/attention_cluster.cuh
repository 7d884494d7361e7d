// Attention whose keys are split among the blocks of a cluster: they merge their sums in shared memory.
#pragma once

#include "attention.cuh"
#include "cluster.cuh"

// Exchange of partial results among the blocks of a cluster. The first `parts` blocks have keys. Each of them has, for
// every row, WIDTH unnormalised sums of weighted values, the maximum of the scores, and the total of the weights. A
// cluster is a row of the grid; the number of its blocks is a power of two. Block r % gridDim.x merges row r. If there
// is a single part, its own block merges all rows.
template <int WIDTH>
struct ClusterSums {
  static constexpr int CHUNKS = WIDTH / 4 + 1;  // 16 bytes each; maximum and total follow the sums of a row
  static constexpr int MAX_BLOCKS = 16;
  ExpectedStores* const stores;
  uint4* const received;                   // [own rows][parts][CHUNKS]
  const int rows, parts, shift, own_rows;  // the number of blocks that merge rows is 1 << shift

  // Return the bytes of dynamic shared memory for `rows` rows.
  static constexpr int nbytes(int rows) { return 16 * (1 + (rows > MAX_BLOCKS ? rows : MAX_BLOCKS) * CHUNKS); }

  __device__ __forceinline__ ClusterSums(void* memory, int rows, int parts)
      : stores(static_cast<ExpectedStores*>(memory)),
        received(static_cast<uint4*>(memory) + 1),
        rows(rows),
        parts(parts),
        shift(parts > 1 ? 31 - __clz(gridDim.x) : 0),
        own_rows((rows - static_cast<int>(blockIdx.x) + (1 << shift) - 1) >> shift) {}

  // Announce how many bytes this block gets for the rows that it merges. All threads of all blocks that merge rows call
  // it, and then `ready` before they send. Threads that used the memory before call it after a barrier.
  template <SharedMemory MEMORY>
  __device__ __forceinline__ void expect() const {
    if (threadIdx.x == 0) stores->expect(own_rows * parts * CHUNKS * sizeof(uint4));
    if (parts > 1) arrive_at_cluster<MEMORY>();
  }
  __device__ __forceinline__ void ready() const {
    if (parts > 1) {
      wait_for_cluster();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ void send(int row, int chunk, const float4& values) const {
    uint4 bits;
    memcpy(&bits, &values, sizeof(bits));
    const int owner = row & ((1 << shift) - 1);
    if (row < rows) stores->store(received + ((row >> shift) * parts + blockIdx.x) * CHUNKS + chunk, bits, owner);
  }
  // Merge this block's rows once all parts have arrived. `exponential` takes a difference of scores. `write` takes row,
  // column, maximum and total of a row, and its sums of four columns.
  template <class E, class W>
  __device__ __forceinline__ void merge(const E& exponential, const W& write) const {
    stores->wait();
    for (int i = threadIdx.x; i < own_rows * (WIDTH / 4); i += blockDim.x) {
      const int own = i / (WIDTH / 4), chunk = i % (WIDTH / 4);
      const float4* const from = reinterpret_cast<const float4*>(received) + own * parts * CHUNKS;
      float highest = minus_infinity(), total = 0;
      float4 sum = {};
#pragma unroll 4
      for (int p = 0; p < parts; p++) highest = fmaxf(highest, from[p * CHUNKS + CHUNKS - 1].x);
      const float lowered = softmax_shift(highest);
#pragma unroll 4
      for (int p = 0; p < parts; p++) {
        const float4 part = from[p * CHUNKS + chunk], state = from[p * CHUNKS + CHUNKS - 1];
        const float weight = exponential(state.x - lowered);
        sum.x += weight * part.x, sum.y += weight * part.y, sum.z += weight * part.z, sum.w += weight * part.w;
        total += weight * state.y;
      }
      write((own << shift) + static_cast<int>(blockIdx.x), chunk * 4, highest, total, sum);
    }
  }
};
