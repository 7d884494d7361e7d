// Tiled matrix products: a block of TILE x TILE threads computes a tile of the result.
#pragma once

#include "product_sum.cuh"

constexpr int TILE = 16;

template <class I>
struct Matrix {
  I row, column;  // strides in elements
};

// Compute the tile at (first_row, first_column) of out [m, n] = a [m, k] @ b [k, n]. One thread per element; tiles of a
// and b are staged in shared memory.
template <class T, class I>
__device__ __forceinline__ void multiply_tile(const T* a, Matrix<I> sa, const T* b, Matrix<I> sb, T* out, Matrix<I> so,
                                              I m, I n, I k, I first_row, I first_column) {
  using A = typename ProductSum<T>::Type;
  OVGPU_SHARED(A, a_tile, [TILE][TILE + 1]);
  OVGPU_SHARED(A, b_tile, [TILE][TILE + 1]);
  const int x = threadIdx.x, y = threadIdx.y;
  const I row = first_row + y, column = first_column + x;
  A sum = 0;
  for (I start = 0; start < k; start += TILE) {
    a_tile[y][x] = row < m && start + x < k ? A(a[row * sa.row + (start + x) * sa.column]) : A(0);
    b_tile[y][x] = start + y < k && column < n ? A(b[(start + y) * sb.row + column * sb.column]) : A(0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i++) sum += a_tile[y][i] * b_tile[i][x];
    __syncthreads();
  }
  if (row < m && column < n) out[row * so.row + column * so.column] = T(ProductSum<T>::result(sum));
}
