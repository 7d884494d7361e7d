// Copies of batch rows between tensors: the states of the sequences that share a batch.
#include "common.cuh"

constexpr int MAX_PAIRS = 256;  // rows that a launch copies, or slots whose rows it moves

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
  unsigned short from[MAX_PAIRS], to[MAX_PAIRS];
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

constexpr int MAX_TOKEN_ROWS = 128;  // slots whose tokens a launch copies: the arguments have less than 4 KB

// A pair of KV caches [slots, outer, capacity, inner], in elements of T. Slots and capacity may differ.
struct TokenCopy {
  const void* source;
  void* target;
  long long outer, inner, source_capacity, target_capacity;
};

template <int COUNT>
struct TokenCopies {
  TokenCopy copy[COUNT];
};

// Slots in the source and in the target, the number of tokens that are copied, and the end of those that are written.
struct TokenRows {
  unsigned int copied[MAX_TOKEN_ROWS], end[MAX_TOKEN_ROWS];
  unsigned short from[MAX_TOKEN_ROWS], to[MAX_TOKEN_ROWS];
};

// Copy tokens 0 to copied[p] of slot from[p] of each source to slot to[p] of its target, where tokens copied[p] to
// end[p] become zero. If source and target are the same, tokens stay where they are. Blocks (x: parts of a slot,
// y: slot, z: caches).
template <typename T, int COUNT>
__global__ void copy_tokens(const TokenCopies<COUNT> copies, const TokenRows rows) {
  const TokenCopy& copy = copies.copy[blockIdx.z];
  const unsigned int slot = blockIdx.y;
  const long long source_size = copy.source_capacity * copy.inner, target_size = copy.target_capacity * copy.inner;
  const T* source = static_cast<const T*>(copy.source) + rows.from[slot] * copy.outer * source_size;
  T* target = static_cast<T*>(copy.target) + rows.to[slot] * copy.outer * target_size;
  const long long copied = rows.copied[slot] * copy.inner, end = rows.end[slot] * copy.inner;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < copy.outer * end; i += step) {
    const long long outer = i / end, at = i - outer * end;
    if (at >= copied) {
      target[outer * target_size + at] = T{};
    } else if (copy.source != copy.target) {
      target[outer * target_size + at] = source[outer * source_size + at];
    }
  }
}

// A KV cache [slots, outer, capacity, inner], in elements of T.
struct Cache {
  void* memory;
  long long outer, capacity, inner;
};

template <int COUNT>
struct Caches {
  Cache cache[COUNT];
};

// Slots whose rows are moved, and the first row that each writes; CLEAR for a slot whose rows become zero in place.
constexpr unsigned int CLEAR = 0xffffffff;  // no row has this index

struct Moves {
  unsigned int to[MAX_PAIRS];
  unsigned short slot[MAX_PAIRS];
};

// Move `count` rows of caches from row `from` on to row to[p] < from, in slot slot[p]. The ranges may overlap: a thread
// moves an element of all rows in ascending order. Blocks (x: elements of a row, y: slot, z: caches).
template <typename T, int COUNT>
__global__ void move_rows(const Caches<COUNT> caches, const Moves moves, unsigned int from, unsigned int count) {
  const Cache& cache = caches.cache[blockIdx.z];
  const long long row = cache.outer * cache.inner, step = static_cast<long long>(gridDim.x) * blockDim.x;
  T* memory = static_cast<T*>(cache.memory) + moves.slot[blockIdx.y] * row * cache.capacity;
  const unsigned int to = moves.to[blockIdx.y];
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < row; i += step) {
    const long long outer = i / cache.inner, at = i - outer * cache.inner;
    T* elements = memory + outer * cache.capacity * cache.inner + at;
    for (unsigned int k = 0; k < count; k++) {
      if (to == CLEAR) {
        elements[(from + k) * cache.inner] = T{};
      } else {
        elements[(to + k) * cache.inner] = elements[(from + k) * cache.inner];
      }
    }
  }
}
