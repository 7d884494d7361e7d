// Tiles of products of matrices, each by a block of TILE x TILE threads.
#pragma once

#include "sums.cuh"

constexpr int TILE = 16;

template <class I>
struct Matrix {
  I row, column;  // strides in elements
};

// The tile of out [m, n] = a [m, k] @ b [k, n] that begins at (top, side).
template <class T, class I>
__device__ __forceinline__ void multiply_tile(const T* a, Matrix<I> sa, const T* b, Matrix<I> sb, T* out, Matrix<I> so,
                                              I m, I n, I k, I top, I side) {
  using A = typename Sum<T>::Type;
  OVGPU_SHARED(A, left, [TILE][TILE + 1]);
  OVGPU_SHARED(A, right, [TILE][TILE + 1]);
  const int x = threadIdx.x, y = threadIdx.y;
  const I row = top + y, column = side + x;
  A sum = 0;
  for (I start = 0; start < k; start += TILE) {
    left[y][x] = row < m && start + x < k ? A(a[row * sa.row + (start + x) * sa.column]) : A(0);
    right[y][x] = start + y < k && column < n ? A(b[(start + y) * sb.row + column * sb.column]) : A(0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILE; i++) sum += left[y][i] * right[i][x];
    __syncthreads();
  }
  if (row < m && column < n) out[row * so.row + column * so.column] = T(Sum<T>::result(sum));
}
