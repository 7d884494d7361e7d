// Matrix products that cuBLAS does not do: integers, K = 0, and matrices without a unit stride.
#include "strided.cuh"
#include "tile.cuh"

// out [m, n] = a [m, k] @ b [k, n] for each batch, in blocks of TILE x TILE; blockIdx.x counts batches and tiles.
template <class T, class I, int R>
__global__ void __launch_bounds__(TILE* TILE)
    matmul(const T* a, const T* b, T* out, Axes<I, R, 3> batch, Matrix<I> sa, Matrix<I> sb, Matrix<I> so, I m, I n,
           I k) {
  const I across = (n + TILE - 1) / TILE, down = (m + TILE - 1) / TILE;
  const I tile = static_cast<I>(blockIdx.x) % (across * down);
  I at[R];
  unravel(batch, static_cast<I>(blockIdx.x) / (across * down), at);
  multiply_tile(a + offset(batch, at, 0), sa, b + offset(batch, at, 1), sb, out + offset(batch, at, 2), so, m, n, k,
                tile / across * TILE, tile % across * TILE);
}
