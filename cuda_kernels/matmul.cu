// Matrix products that cuBLAS does not support: integers, K = 0, and matrices without a unit stride.
#include "strided.cuh"
#include "tile.cuh"

// Compute out [m, n] = a [m, k] @ b [k, n] for each batch. A block computes a tile of TILE x TILE elements; blockIdx.x
// enumerates batches and tiles.
template <class T, class I, int R>
__global__ void __launch_bounds__(TILE* TILE) matmul(const T* a, const T* b, T* out, Axes<I, R, 3> batch, Matrix<I> sa,
                                                     Matrix<I> sb, Matrix<I> so, I m, I n, I k) {
  const I column_tiles = (n + TILE - 1) / TILE, row_tiles = (m + TILE - 1) / TILE;
  const I tile = static_cast<I>(blockIdx.x) % (column_tiles * row_tiles);
  I at[R];
  unravel(batch, static_cast<I>(blockIdx.x) / (column_tiles * row_tiles), at);
  multiply_tile(a + offset(batch, at, 0), sa, b + offset(batch, at, 1), sb, out + offset(batch, at, 2), so, m, n, k,
                tile / column_tiles * TILE, tile % column_tiles * TILE);
}
