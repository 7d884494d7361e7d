// Groups of rows, which the threads of a block share: along the columns, and several groups or parts of one.
#pragma once

#include "axes.cuh"

constexpr int THREADS = 256;  // of a block, at most

// How groups are shared out: `across` blocks have the columns of a group, and its rows are in `parts`. That is 1, or
// blockDim.y, where a block has a single group.
struct Shares {
  int across, parts;
};

// What a thread does: V columns from `column` on, every `parts`-th row of a group from `part` on.
struct Share {
  long long group, column;
  int part;
};

template <int V>
__device__ __forceinline__ Share share(const Shares& shares) {
  const int row = blockIdx.x / shares.across, block = blockIdx.x % shares.across;
  const bool single = shares.parts > 1;
  return {single ? row : (long long)row * blockDim.y + threadIdx.y,
          ((long long)block * blockDim.x + threadIdx.x) * V, single ? int(threadIdx.y) : 0};
}

// The first place in ascending numbers whose number is not less than `value`.
template <class Index>
__device__ __forceinline__ long long place_of(long long value, const Index* numbers, long long size) {
  long long low = 0;
  while (low < size) {
    const long long middle = low + (size - low) / 2;
    if (numbers[middle] < value) low = middle + 1;
    else size = middle;
  }
  return low;
}

// The fold over the parts of a group; all threads of the block take part.
template <int V, class A, class Fold>
__device__ __forceinline__ void fold_parts(A (&value)[V], Fold fold, int parts) {
  OVGPU_DYN_SHARED(A, scratch);
  if (parts > 1) {
#pragma unroll
    for (int j = 0; j < V; j++) value[j] = fold_column(value[j], fold, scratch);
  }
}
