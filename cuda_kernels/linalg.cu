// Matrix inverses, and matrix products of groups of rows with one matrix per group.
#include "common.cuh"
#include "tile.cuh"

// ---- Inverse

// Type in which a matrix of T is inverted.
template <typename T>
struct ComputeType {
  typedef float Type;
};
template <>
struct ComputeType<double> {
  typedef double Type;
};

// Invert a matrix per block by in-place Gauss-Jordan elimination with partial pivoting. Shared memory holds the matrix,
// followed by the index of each pivot row. `adjoint` transposes x first.
template <typename T>
__global__ void inverse(const T* __restrict__ x, T* __restrict__ y, int n, bool adjoint) {
  typedef typename ComputeType<T>::Type A;
  OVGPU_DYN_SHARED(A, a);
  int* pivots = reinterpret_cast<int*>(a + n * n);
  const int size = n * n, thread = threadIdx.x, threads = blockDim.x;
  x += static_cast<long long>(blockIdx.x) * size;
  y += static_cast<long long>(blockIdx.x) * size;
  for (int i = thread; i < size; i += threads) a[i] = static_cast<A>(x[adjoint ? i % n * n + i / n : i]);
  for (int k = 0; k < n; k++) {
    __syncthreads();
    if (thread < 32) {
      A best = static_cast<A>(-1);
      int best_row = k;
      for (int row = k + thread; row < n; row += 32) {
        const A magnitude = a[row * n + k] < 0 ? -a[row * n + k] : a[row * n + k];
        if (magnitude > best) {
          best = magnitude;
          best_row = row;
        }
      }
#pragma unroll
      for (int lanes = 16; lanes; lanes /= 2) {
        const A other = __shfl_down_sync(0xffffffffu, best, lanes);
        const int other_row = __shfl_down_sync(0xffffffffu, best_row, lanes);
        if (other > best) {
          best = other;
          best_row = other_row;
        }
      }
      if (thread == 0) pivots[k] = best_row;
    }
    __syncthreads();
    const int pivot = pivots[k];
    for (int column = thread; pivot != k && column < n; column += threads) {
      const A saved = a[k * n + column];
      a[k * n + column] = a[pivot * n + column];
      a[pivot * n + column] = saved;
    }
    __syncthreads();
    const A scale = static_cast<A>(1) / a[k * n + k];
    for (int i = thread; i < size; i += threads) {
      const int row = i / n, column = i % n;
      if (row != k && column != k) a[i] -= a[row * n + k] * (a[k * n + column] * scale);
    }
    __syncthreads();
    for (int i = thread; i < n; i += threads) {
      if (i == k) continue;
      a[i * n + k] *= -scale;
      a[k * n + i] *= scale;
    }
    if (thread == 0) a[k * n + k] = scale;
  }
  __syncthreads();
  for (int row = thread; row < n; row += threads)  // undo row swaps as column swaps, last first
    for (int k = n - 1; k >= 0; k--) {
      const A saved = a[row * n + k];
      a[row * n + k] = a[row * n + pivots[k]];
      a[row * n + pivots[k]] = saved;
    }
  __syncthreads();
  for (int i = thread; i < size; i += threads) y[i] = static_cast<T>(a[i]);
}

// ---- GroupedMatMul

using Strides = Matrix<long long>;

// Return the end of the rows of group g, clamped to [start, rows].
template <typename I>
__device__ __forceinline__ long long group_end(const I* end, long long g, long long start, long long rows) {
  return max(start, min(static_cast<long long>(end[g]), rows));
}

// Compute out [rows, n] = a [rows, k] @ b [g] for the rows of each group g. A block finds the group of its tile of
// rows. Rows after the last group are 0.
template <typename T, typename I>
__global__ void __launch_bounds__(TILE* TILE)
    grouped_rows(const T* a, const T* b, const I* end, T* out, long long groups, long long rows, long long n,
                 long long k, bool transposed) {
  const long long column_tiles = (n + TILE - 1) / TILE;
  long long tile_index = blockIdx.x / column_tiles;
  for (long long g = 0, start = 0, stop; g <= groups; g++, start = stop) {
    stop = g < groups ? group_end(end, g, start, rows) : rows;
    const long long tiles = (stop - start + TILE - 1) / TILE;
    if (tile_index < tiles) {
      multiply_tile(a + start * k, Strides{k, 1}, b + g * n * k, transposed ? Strides{1, k} : Strides{n, 1},
                    out + start * n, Strides{n, 1}, stop - start, n, g < groups ? k : 0, tile_index * TILE,
                    blockIdx.x % column_tiles * TILE);
      return;
    }
    tile_index -= tiles;
  }
}

// Compute out [g] = a [m, k] @ b [k, n], summed over the part of k that belongs to group g.
template <typename T, typename I>
__global__ void __launch_bounds__(TILE* TILE) grouped_sums(const T* a, const T* b, const I* end, T* out,
                                                           long long groups, long long m, long long n, long long k) {
  const long long column_tiles = (n + TILE - 1) / TILE, row_tiles = (m + TILE - 1) / TILE;
  const long long g = blockIdx.x / (column_tiles * row_tiles), tile_index = blockIdx.x % (column_tiles * row_tiles);
  long long start = 0, stop = 0;
  for (long long i = 0; i <= g; i++) {
    start = stop;
    stop = group_end(end, i, start, k);
  }
  multiply_tile(a + start, Strides{k, 1}, b + start * n, Strides{n, 1}, out + g * m * n, Strides{n, 1}, m, n,
                stop - start, tile_index / column_tiles * TILE, tile_index % column_tiles * TILE);
}
