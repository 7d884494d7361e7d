// Work distribution for reductions over groups of rows (segments, bags): threads share the columns and the rows.
#pragma once

#include "axes.cuh"

constexpr int THREADS = 256;  // maximum per block

// Distribution of the groups over blocks. `column_blocks` blocks share the columns of a group. Its rows are divided
// among `parts` threads per column: blockDim.y if a block has a single group, else 1.
struct Partition {
  int column_blocks, parts;
};

// Work of one thread: V columns from `column`, and every `parts`-th row of a group from row `part`.
struct ThreadWork {
  long long group, column;
  int part;
};

template <int V>
__device__ __forceinline__ ThreadWork thread_work(const Partition& partition) {
  const int row = blockIdx.x / partition.column_blocks, block = blockIdx.x % partition.column_blocks;
  const bool single = partition.parts > 1;
  return {single ? row : (long long)row * blockDim.y + threadIdx.y, ((long long)block * blockDim.x + threadIdx.x) * V,
          single ? int(threadIdx.y) : 0};
}

// Return the index of the first number that is not less than `value`, by binary search in ascending numbers.
template <class Index>
__device__ __forceinline__ long long lower_bound(long long value, const Index* sorted, long long size) {
  long long first = 0;
  while (first < size) {
    const long long middle = first + (size - first) / 2;
    if (sorted[middle] < value)
      first = middle + 1;
    else
      size = middle;
  }
  return first;
}

// Reduce `value` over the parts of a group. All threads of the block take part.
template <int V, class A, class Fold>
__device__ __forceinline__ void fold_parts(A (&value)[V], Fold fold, int parts) {
  OVGPU_DYN_SHARED(A, scratch);
  if (parts > 1) {
#pragma unroll
    for (int j = 0; j < V; j++) value[j] = fold_column(value[j], fold, scratch);
  }
}
