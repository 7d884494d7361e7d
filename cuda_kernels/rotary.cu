// Rotary position embeddings (RoPE): pairs of elements (a, b) of a row become (a cos - b sin, b cos + a sin).
#include "accumulator.cuh"
#include "pages.cuh"
#include "stored_tokens.cuh"
#include "vectors.cuh"

// Pairing of elements: i with i + half, or 2 i with 2 i + 1.
enum Pairing { HALVES, PAIRS };

// Strides between the elements of a row.
template <typename I>
struct ElementStrides {
  I x, cos, sin, y;
};

// Load the first and second elements of V pairs, from pair `i` on.
template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void load_pairs(const T* row, I i, I half, I step, T (&a)[V], T (&b)[V]) {
  if constexpr (P == HALVES) {
    load<V>(row + i * step, a);
    load<V>(row + (i + half) * step, b);
  } else {
    T interleaved[2][V];
    load<V>(row + 2 * i * step, interleaved[0]);
    load<V>(row + (2 * i + V) * step, interleaved[1]);
#pragma unroll
    for (int j = 0; j < V; j++) {
      a[j] = interleaved[2 * j / V][2 * j % V];
      b[j] = interleaved[(2 * j + 1) / V][(2 * j + 1) % V];
    }
  }
}

template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void store_pairs(const T (&a)[V], const T (&b)[V], T* row, I i, I half, I step) {
  if constexpr (P == HALVES) {
    store<V>(a, row + i * step);
    store<V>(b, row + (i + half) * step);
  } else {
    T interleaved[2][V];
#pragma unroll
    for (int j = 0; j < V; j++) {
      interleaved[2 * j / V][2 * j % V] = a[j];
      interleaved[(2 * j + 1) / V][(2 * j + 1) % V] = b[j];
    }
    store<V>(interleaved[0], row + 2 * i * step);
    store<V>(interleaved[1], row + (2 * i + V) * step);
  }
}

// Load cos or sin for V pairs: one for each element of a pair if `per_element`, else one for both.
template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void load_factors(const T* row, I i, I half, I step, I per_element, T (&a)[V], T (&b)[V]) {
  if (per_element) {
    load_pairs<P>(row, i, half, step, a, b);
  } else {
    load<V>(row + i * step, a);
#pragma unroll
    for (int j = 0; j < V; j++) b[j] = a[j];
  }
}

// Rotate the `half` pairs of a row, and copy the `rest` elements after them. A row has blockDim.x threads; V divides
// both counts.
template <typename T, Pairing P, int V, typename I>
__device__ __forceinline__ void rotate_row(const T* __restrict__ x, const T* __restrict__ cos,
                                           const T* __restrict__ sin, T* __restrict__ y,
                                           const ElementStrides<I>& stride, I half, I rest, I cos_per_element,
                                           I sin_per_element) {
  using A = typename Accumulator<T>::Type;
  for (I i = threadIdx.x * V; i < half + rest; i += blockDim.x * V) {
    if (i < half) {
      T a[V], b[V], c[V], d[V], s[V], t[V];
      load_pairs<P>(x, i, half, stride.x, a, b);
      load_factors<P>(cos, i, half, stride.cos, cos_per_element, c, d);
      load_factors<P>(sin, i, half, stride.sin, sin_per_element, s, t);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const A first = A(a[j]), second = A(b[j]);
        a[j] = T(first * A(c[j]) - second * A(s[j]));
        b[j] = T(second * A(d[j]) + first * A(t[j]));
      }
      store_pairs<P>(a, b, y, i, half, stride.y);
    } else {
      T copied[V];
      load<V>(x + (half + i) * stride.x, copied);
      store<V>(copied, y + (half + i) * stride.y);
    }
  }
}

// Return element i of a row after rotation, rounded to T. The elements of all rows have a unit stride.
template <Pairing P, typename T, typename I>
__device__ __forceinline__ float rotated_element(const T* x, const T* cos, const T* sin, I i, I half, I cos_per_element,
                                                 I sin_per_element) {
  if (i >= 2 * half) return float(x[i]);
  const I pair = P == PAIRS ? i / 2 : i < half ? i : i - half;
  const bool second = P == PAIRS ? i % 2 : i >= half;
  const float a = float(x[P == PAIRS ? 2 * pair : pair]), b = float(x[P == PAIRS ? 2 * pair + 1 : pair + half]);
  const float c = float(cos[cos_per_element ? i : pair]), s = float(sin[sin_per_element ? i : pair]);
  return float(T(second ? b * c + a * s : a * c - b * s));
}

// Rotate rows. Operands of the axes of rows: x, cos, sin, y.
template <typename T, Pairing P, int V, typename I, int R>
__global__ void rotate(const T* __restrict__ x, const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ y,
                       const Axes<I, R, 4> axes, const ElementStrides<I> stride, I rows, I half, I rest,
                       I cos_per_element, I sin_per_element) {
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  I at[R];
  unravel(axes, row, at);
  rotate_row<T, P, V>(x + offset(axes, at, 0), cos + offset(axes, at, 1), sin + offset(axes, at, 2),
                      y + offset(axes, at, 3), stride, half, rest, cos_per_element, sin_per_element);
}

// Numbers of rows of queries, keys and values, and strides between the rows and the pages of the caches.
template <typename I>
struct AppendSizes {
  I queries, keys, values, key_row, value_row, key_page, value_page;
};

// Decode step: rotate queries to y and keys to their cache, and copy values to theirs, behind the tokens that `lengths`
// has; see `new_token`. blockIdx.y selects queries, keys or values. Rows of values have `width` elements; all rows have
// a unit stride. C is the type that the caches store; if it is not T, a block has at most 32 threads along x.
template <typename T, Pairing P, int V, typename I, int R, bool PAGED = false, typename C = T>
__global__ void rotate_append(const T* __restrict__ queries, const T* __restrict__ keys, const T* __restrict__ values,
                              const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ y,
                              C* __restrict__ key_cache, C* __restrict__ value_cache, const Axes<I, R, 4> query_axes,
                              const Axes<I, R, 4 + 2 * PAGED> key_axes, const Axes<I, R, 2 + 2 * PAGED> value_axes,
                              const AppendSizes<I> sizes, I half, I rest, I width, I cos_per_element, I sin_per_element,
                              const Length<PAGED>* __restrict__ lengths) {
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  const ElementStrides<I> stride = {1, 1, 1, 1};
  I at[R];
  if (blockIdx.y == 0 && row < sizes.queries) {
    unravel(query_axes, row, at);
    rotate_row<T, P, V>(queries + offset(query_axes, at, 0), cos + offset(query_axes, at, 1),
                        sin + offset(query_axes, at, 2), y + offset(query_axes, at, 3), stride, half, rest,
                        cos_per_element, sin_per_element);
  } else if (blockIdx.y == 1 && row < sizes.keys) {
    unravel(key_axes, row, at);
    C* const to = new_token(key_cache, key_axes, at, 3, sizes.key_row, sizes.key_page, lengths);
    if (PAGED && !to) return;
    const T *from = keys + offset(key_axes, at, 0), *c = cos + offset(key_axes, at, 1),
            *s = sin + offset(key_axes, at, 2);
    if constexpr (IS_STORED<T, C>) {
      store_row(to, 2 * half + rest, threadIdx.x, blockDim.x,
                [&](I i) { return rotated_element<P>(from, c, s, i, half, cos_per_element, sin_per_element); });
    } else {
      rotate_row<T, P, V>(from, c, s, to, stride, half, rest, cos_per_element, sin_per_element);
    }
  } else if (blockIdx.y == 2 && row < sizes.values) {
    unravel(value_axes, row, at);
    const T* from = values + offset(value_axes, at, 0);
    C* const to = new_token(value_cache, value_axes, at, 1, sizes.value_row, sizes.value_page, lengths);
    if (PAGED && !to) return;
    if constexpr (IS_STORED<T, C>) {
      store_row(to, width, threadIdx.x, blockDim.x, [&](I i) { return float(from[i]); });
    } else {
      for (I i = threadIdx.x * V; i < width; i += blockDim.x * V) {
        T copied[V];
        load<V>(from + i, copied);
        store<V>(copied, to + i);
      }
    }
  }
}
