// Copies of any layout into any other. T stands for elements of its size: 1, 2, 4, 8 or 16 bytes.
#include "items.cuh"

// Dense to dense, both aligned to 16 bytes.
extern "C" __global__ void copy_dense(const unsigned char* __restrict__ x, unsigned char* __restrict__ y,
                                      long long bytes) {
  const uint4* source = reinterpret_cast<const uint4*>(x);
  uint4* target = reinterpret_cast<uint4*>(y);
  const long long words = bytes / 16, first = first_item<long long>();
  uint4 word[ITEMS];
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

// In the order of the target's memory. Operands of the axes: source, target.
template <typename T, typename I, int R>
__global__ void copy_strided(const T* __restrict__ x, T* __restrict__ y, const Axes<I, R, 2> axes, I size) {
  set_items(y, axes, size, [&](const I(&at)[R]) { return x[offset(axes, at, 0)]; });
}

// As `copy_strided`, to y from row `*start` on; rows are `step` elements apart.
template <typename T, typename I, int R>
__global__ void write_rows(const T* __restrict__ x, T* __restrict__ y, const Axes<I, R, 2> axes, I size,
                           const long long* __restrict__ start, long long step) {
  set_items(y + *start * step, axes, size, [&](const I(&at)[R]) { return x[offset(axes, at, 0)]; });
}

// Transposes x [columns, rows], where rows lie densely, to y [rows, columns], where columns do, for each element of
// the axes. A tile is read along rows and written along columns; its pitch is an odd number of words, which
// keeps the threads of a warp in different banks. Blocks have 32 x 8 threads.
template <typename T, typename I, int R>
__global__ void copy_transposed(const T* __restrict__ x, T* __restrict__ y, const Axes<I, R, 2> axes, I rows, I columns,
                                I source_stride, I target_stride) {
  constexpr int TILE = sizeof(T) < 4 ? 64 : 32, PAD = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  OVGPU_SHARED(T, tile, [TILE][TILE + PAD]);
  const I across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
  const I number = blockIdx.x, batch = number / (across * down), place = number - batch * (across * down);
  const I row = place / across * TILE, column = place % across * TILE;
  I at[R];
  unravel(axes, batch, at);
  x += offset(axes, at, 0);
  y += offset(axes, at, 1);
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

// Numbers known on the host, as an argument: a captured graph holds them.
template <typename T, int COUNT>
struct Numbers {
  T value[COUNT];
};

// Writes the `count` numbers from element `first` of the axes on.
template <typename T, int COUNT, int R>
__global__ void write_numbers(T* y, const Axes<int, R, 1> axes, const Numbers<T, COUNT> numbers, int first, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int at[R];
  unravel(axes, first + i, at);
  y[offset(axes, at, 0)] = numbers.value[i];
}
