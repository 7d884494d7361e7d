// Copies of batch rows between tensors: the states of the sequences that share a batch, or pages of their KV caches.
#include "common.cuh"

constexpr int MAX_PAIRS = 256;  // rows that a launch copies: the arguments have less than 4 KB

// A pair of tensors [outer, rows, inner], in elements of T. The number of rows may differ.
struct RowCopy {
  const void* source;
  void* target;
  long long outer, inner, source_rows, target_rows;
};

template <int COUNT>
struct RowCopies {
  RowCopy copy[COUNT];
};

// Row numbers in the source and in the target.
struct RowPairs {
  unsigned int from[MAX_PAIRS], to[MAX_PAIRS];
};

// Copy row from[p] of each source to row to[p] of its target. Blocks (x: parts of a row, y: pair, z: tensors).
template <typename T, int COUNT>
__global__ void copy_rows(const RowCopies<COUNT> copies, const RowPairs pairs) {
  const RowCopy& copy = copies.copy[blockIdx.z];
  const T* source = static_cast<const T*>(copy.source) + pairs.from[blockIdx.y] * copy.inner;
  T* target = static_cast<T*>(copy.target) + pairs.to[blockIdx.y] * copy.inner;
  const long long size = copy.outer * copy.inner, step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += step) {
    const long long outer = i / copy.inner, at = i - outer * copy.inner;
    target[outer * copy.target_rows * copy.inner + at] = source[outer * copy.source_rows * copy.inner + at];
  }
}
