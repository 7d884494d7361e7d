// Copies between any two layouts. T only determines the size of elements: 1, 2, 4, 8 or 16 bytes.
#include "items.cuh"
#include "pages.cuh"
#include "ptx.cuh"

// Copy dense memory; x and y are aligned to 16 bytes.
extern "C" __global__ void copy_dense(const unsigned char* x, unsigned char* y, long long bytes) {
  start_next_launch();
  const uint4* source = reinterpret_cast<const uint4*>(x);
  uint4* target = reinterpret_cast<uint4*>(y);
  const long long words = bytes / 16, first = first_item<long long>();
  uint4 word[ITEMS];
  wait_for_launches();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const long long i = first + k * static_cast<long long>(blockDim.x);
    if (i < words) word[k] = source[i];
  }
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const long long i = first + k * static_cast<long long>(blockDim.x);
    if (i < words) target[i] = word[k];
  }
  if (blockIdx.x == 0 && threadIdx.x < bytes % 16) y[words * 16 + threadIdx.x] = x[words * 16 + threadIdx.x];
}

// Copy in the order of the target's memory. Operands of the axes: source, target.
template <typename T, typename I, int R>
__global__ void copy_strided(const T* x, T* y, const Axes<I, R, 2> axes, I size) {
  start_next_launch();
  wait_for_launches();
  set_items(y, axes, size, [&](const I(&at)[R]) { return x[offset(axes, at, 0)]; });
}

// Append to a KV cache: like `copy_strided`, but write to y from row `*start` on. Rows are `step` elements apart.
template <typename T, typename I, int R>
__global__ void write_rows(const T* x, T* y, const Axes<I, R, 2> axes, I size, const long long* start, long long step) {
  start_next_launch();
  wait_for_launches();
  set_items(y + *start * step, axes, size, [&](const I(&at)[R]) { return x[offset(axes, at, 0)]; });
}

// Append to a KV cache in pages; see `new_token`. Operands of the axes: source, pool, token, row of the table.
template <typename T, typename I, int R>
__global__ void write_pages(const T* x, T* pool, const Axes<I, R, 4> axes, I size, I token_stride, I page_stride,
                            const int* table) {
  start_next_launch();
  const I first = first_item<I>();
  wait_for_launches();
#pragma unroll
  for (int k = 0; k < ITEMS; k++) {
    const I i = first + k * static_cast<I>(blockDim.x);
    if (i >= size) continue;
    I at[R];
    unravel(axes, i, at);
    T* const to = new_token(pool, axes, at, 1, token_stride, page_stride, table);
    if (to) *to = x[offset(axes, at, 0)];
  }
}

// Transpose x [columns, rows] to y [rows, columns] for every element of the axes. The last axis of either has a unit
// stride. A block of 32 x 8 threads moves a tile through shared memory. The tile's pitch is an odd number of words,
// which avoids bank conflicts.
template <typename T, typename I, int R>
__global__ void copy_transposed(const T* x, T* y, const Axes<I, R, 2> axes, I rows, I columns, I source_stride,
                                I target_stride) {
  constexpr int TILE = sizeof(T) < 4 ? 64 : 32, PAD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  OVGPU_SHARED(T, tile, [TILE][TILE + PAD]);
  start_next_launch();
  const I column_tiles = (columns + TILE - 1) / TILE, row_tiles = (rows + TILE - 1) / TILE;
  const I block_index = blockIdx.x, batch = block_index / (column_tiles * row_tiles),
          tile_index = block_index - batch * (column_tiles * row_tiles);
  const I row = tile_index / column_tiles * TILE, column = tile_index % column_tiles * TILE;
  I at[R];
  unravel(axes, batch, at);
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
  wait_for_launches();
#pragma unroll
  for (int j = threadIdx.y; j < TILE; j += 8) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE; i += 32) {
      if (row + i < rows && column + j < columns) tile[j][i] = x[(column + j) * source_stride + row + i];
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = threadIdx.y; j < TILE; j += 8) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE; i += 32) {
      if (row + j < rows && column + i < columns) y[(row + j) * target_stride + column + i] = tile[i][j];
    }
  }
}

// Numbers that the host knows, passed by value, so that a captured CUDA graph contains them.
template <typename T, int COUNT>
struct Numbers {
  T value[COUNT];
};

// Write the `count` numbers to y, from element `first` of the axes on.
template <typename T, int COUNT, int R>
__global__ void write_numbers(T* y, const Axes<int, R, 1> axes, const Numbers<T, COUNT> numbers, int first, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  start_next_launch();
  wait_for_launches();
  if (i >= count) return;
  int at[R];
  unravel(axes, first + i, at);
  y[offset(axes, at, 0)] = numbers.value[i];
}
