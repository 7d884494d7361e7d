// Inverses of matrices, and products of groups of rows with matrices of their own.
#include "common.cuh"
#include "tile.cuh"

// ---- Inverse

// What a matrix of T is inverted in.
template <typename T>
struct Inverted { typedef float Type; };
template <>
struct Inverted<double> { typedef double Type; };

// Gauss and Jordan in place, with the largest pivot of each column; a block for each matrix, which is in shared memory
// with the rows that were swapped behind it.
template <typename T>
__global__ void inverse(const T* __restrict__ x, T* __restrict__ y, int n, bool adjoint) {
  typedef typename Inverted<T>::Type A;
  OVGPU_DYN_SHARED(A, a);
  int* swapped = reinterpret_cast<int*>(a + n * n);
  const int size = n * n, thread = threadIdx.x, threads = blockDim.x;
  x += static_cast<long long>(blockIdx.x) * size;
  y += static_cast<long long>(blockIdx.x) * size;
  for (int i = thread; i < size; i += threads) a[i] = static_cast<A>(x[adjoint ? i % n * n + i / n : i]);
  for (int k = 0; k < n; k++) {
    __syncthreads();
    if (thread < 32) {
      A best = static_cast<A>(-1);
      int at = k;
      for (int row = k + thread; row < n; row += 32) {
        const A size_of = a[row * n + k] < 0 ? -a[row * n + k] : a[row * n + k];
        if (size_of > best) {
          best = size_of;
          at = row;
        }
      }
#pragma unroll
      for (int lanes = 16; lanes; lanes /= 2) {
        const A other = __shfl_down_sync(0xffffffffu, best, lanes);
        const int there = __shfl_down_sync(0xffffffffu, at, lanes);
        if (other > best) {
          best = other;
          at = there;
        }
      }
      if (thread == 0) swapped[k] = at;
    }
    __syncthreads();
    const int pivot = swapped[k];
    for (int column = thread; pivot != k && column < n; column += threads) {
      const A kept = a[k * n + column];
      a[k * n + column] = a[pivot * n + column];
      a[pivot * n + column] = kept;
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
  for (int row = thread; row < n; row += threads)  // rows swapped before are columns swapped now, the last first
    for (int k = n - 1; k >= 0; k--) {
      const A kept = a[row * n + k];
      a[row * n + k] = a[row * n + swapped[k]];
      a[row * n + swapped[k]] = kept;
    }
  __syncthreads();
  for (int i = thread; i < size; i += threads) y[i] = static_cast<T>(a[i]);
}

// ---- GroupedMatMul

using Strides = Matrix<long long>;

// Where group g stops: not before `start`, where it starts, nor behind all rows.
template <typename I>
__device__ __forceinline__ long long end_of(const I* end, long long g, long long start, long long rows) {
  return max(start, min(static_cast<long long>(end[g]), rows));
}

// out [rows, n] = a [rows, k] @ b [g], for rows of group g: blocks look for theirs. Rows behind all groups are 0.
template <typename T, typename I>
__global__ void __launch_bounds__(TILE* TILE)
    grouped_rows(const T* a, const T* b, const I* end, T* out, long long groups, long long rows, long long n,
                 long long k, bool transposed) {
  const long long across = (n + TILE - 1) / TILE;
  long long number = blockIdx.x / across;
  for (long long g = 0, start = 0, stop; g <= groups; g++, start = stop) {
    stop = g < groups ? end_of(end, g, start, rows) : rows;
    const long long tiles = (stop - start + TILE - 1) / TILE;
    if (number < tiles) {
      multiply_tile(a + start * k, Strides{k, 1}, b + g * n * k, transposed ? Strides{1, k} : Strides{n, 1},
                    out + start * n, Strides{n, 1}, stop - start, n, g < groups ? k : 0, number * TILE,
                    blockIdx.x % across * TILE);
      return;
    }
    number -= tiles;
  }
}

// out [g] = a [m, k] @ b [k, n], summed over what is of group g.
template <typename T, typename I>
__global__ void __launch_bounds__(TILE* TILE)
    grouped_sums(const T* a, const T* b, const I* end, T* out, long long groups, long long m, long long n,
                 long long k) {
  const long long across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
  const long long g = blockIdx.x / (across * down), number = blockIdx.x % (across * down);
  long long start = 0, stop = 0;
  for (long long i = 0; i <= g; i++) {
    start = stop;
    stop = end_of(end, i, start, k);
  }
  multiply_tile(a + start, Strides{k, 1}, b + start * n, Strides{n, 1}, out + g * m * n, Strides{n, 1}, m, n,
                stop - start, number / across * TILE, number % across * TILE);
}
