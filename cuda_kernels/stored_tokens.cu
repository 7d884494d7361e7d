// New tokens of KV caches, stored in the caches' type, and tokens that are restored from it. A warp has one row.
#include "stored_tokens.cuh"

#include "pages.cuh"
#include "ptx.cuh"

// Store rows of x, whose elements are `step` apart, in a cache: behind the tokens that `lengths` has (see `new_token`),
// or if that is null, in the rows of the axes. Operands of the axes: x, cache, and with pages token and row of the table.
template <class T, class C, class I, int R, bool PAGED = false>
__global__ void store_tokens(const T* x, C* cache, const Axes<I, R, 2 + 2 * PAGED> axes, I rows, I width, I step,
                             I token_stride, I page_stride, const Length<PAGED>* lengths) {
  start_next_launch();
  wait_for_launches();
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  I at[R];
  unravel(axes, row, at);
  const T* const from = x + offset(axes, at, 0);
  C* const to =
      lengths ? new_token(cache, axes, at, 1, token_stride, page_stride, lengths) : cache + offset(axes, at, 1);
  if (PAGED && !to) return;
  store_row(to, width, static_cast<int>(threadIdx.x), 32, [&](I i) { return float(from[i * step]); });
}

// Return element i of a stored row, whose parameters are given.
template <class C, class I>
__device__ __forceinline__ float restored(const C* row, I i, const RowParameters&) {
  return float(row[i]);
}
template <class I>
__device__ __forceinline__ float restored(const unsigned char* row, I i, const RowParameters& parameters) {
  return parameters.restore(row[i]);
}

// Write the rows of a cache to y in type T. Operands of the axes: cache, y. With pages, y has a pool with pages of its
// own, which `own_table` refers to: its other operands are the offset of a row of the table, the page of y, and the
// index of the page in its sequence. Pages beyond the end of a sequence are not read.
template <class C, class T, class I, int R, bool PAGED = false>
__global__ void restore_tokens(const C* cache, T* y, const Axes<I, R, 2 + 3 * PAGED> axes, I rows, I width,
                               I page_stride, const int* table, int* own_table) {
  start_next_launch();
  wait_for_launches();
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  I at[R];
  unravel(axes, row, at);
  const C* from = cache + offset(axes, at, 0);
  if constexpr (PAGED) {
    const I start = offset(axes, at, 2), place = offset(axes, at, 4);
    if (own_table && threadIdx.x == 0) {
      own_table[start + FIRST_PAGE + place] = static_cast<int>(offset(axes, at, 3));
      if (place == 0) own_table[start] = table[start], own_table[start + 1] = table[start + 1];
    }
    if (place * PAGE_TOKENS >= table[start + 1]) return;
    from += static_cast<long long>(table[start + FIRST_PAGE + place]) * page_stride;
  }
  RowParameters parameters = {};
  if constexpr (sizeof(C) == 1) parameters = load_parameters<1>(from + width);
  T* const to = y + offset(axes, at, 1);
  for (I i = threadIdx.x; i < width; i += 32) to[i] = T(restored(from, i, parameters));
}
