// Matrix products that cuBLAS does not do: integers, K = 0, and matrices without a unit stride.
#include "strided.cuh"
#include "sums.cuh"

template <class I>
struct Matrix {
  I row, column;  // strides in elements
};

constexpr int TILE = 16;

// out [m, n] = a [m, k] @ b [k, n] for each batch, in blocks of TILE x TILE; blockIdx.x counts batches and tiles.
template <class T, class I, int R>
__global__ void __launch_bounds__(TILE* TILE)
    matmul(const T* a, const T* b, T* out, Axes<I, R, 3> batch, Matrix<I> sa, Matrix<I> sb, Matrix<I> so, I m, I n,
           I k) {
  using A = typename Sum<T>::Type;
  OVGPU_SHARED(A, left, [TILE][TILE + 1]);
  OVGPU_SHARED(A, right, [TILE][TILE + 1]);
  const I across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
  const I tile = static_cast<I>(blockIdx.x) % (across * down);
  I at[R];
  unravel(batch, static_cast<I>(blockIdx.x) / (across * down), at);
  a += offset(batch, at, 0);
  b += offset(batch, at, 1);
  out += offset(batch, at, 2);
  const int x = threadIdx.x, y = threadIdx.y;
  const I row = tile / across * TILE + y, column = tile % across * TILE + x;
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
