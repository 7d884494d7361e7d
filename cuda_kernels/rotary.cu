// Rotary position embeddings: pairs of elements of a row, (a, b), become (a cos - b sin, b cos + a sin).
#include "accumulator.cuh"
#include "strided.cuh"
#include "vectors.cuh"

// How elements are paired: i with i + half, or 2 i with 2 i + 1.
enum Pairing { HALVES, PAIRS };

// Strides of elements within a row.
template <typename I>
struct Steps {
  I x, cos, sin, y;
};

// The first and second elements of V pairs, from pair `i` on.
template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void load_pairs(const T* row, I i, I half, I step, T (&a)[V], T (&b)[V]) {
  if constexpr (P == HALVES) {
    load<V>(row + i * step, a);
    load<V>(row + (i + half) * step, b);
  } else {
    T both[2][V];
    load<V>(row + 2 * i * step, both[0]);
    load<V>(row + (2 * i + V) * step, both[1]);
#pragma unroll
    for (int j = 0; j < V; j++) {
      a[j] = both[2 * j / V][2 * j % V];
      b[j] = both[(2 * j + 1) / V][(2 * j + 1) % V];
    }
  }
}

template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void store_pairs(const T (&a)[V], const T (&b)[V], T* row, I i, I half, I step) {
  if constexpr (P == HALVES) {
    store<V>(a, row + i * step);
    store<V>(b, row + (i + half) * step);
  } else {
    T both[2][V];
#pragma unroll
    for (int j = 0; j < V; j++) {
      both[2 * j / V][2 * j % V] = a[j];
      both[(2 * j + 1) / V][(2 * j + 1) % V] = b[j];
    }
    store<V>(both[0], row + 2 * i * step);
    store<V>(both[1], row + (2 * i + V) * step);
  }
}

// What cos or sin have for V pairs: an element for each of the two (`each`), or one for both.
template <Pairing P, int V, typename T, typename I>
__device__ __forceinline__ void load_factors(const T* row, I i, I half, I step, I each, T (&a)[V], T (&b)[V]) {
  if (each) {
    load_pairs<P>(row, i, half, step, a, b);
  } else {
    load<V>(row + i * step, a);
#pragma unroll
    for (int j = 0; j < V; j++) b[j] = a[j];
  }
}

// A row of blockDim.x threads, which take its `half` pairs, and then the `rest` of its elements, which stay as they are;
// V divides both.
template <typename T, Pairing P, int V, typename I>
__device__ __forceinline__ void rotate_row(const T* __restrict__ x, const T* __restrict__ cos,
                                           const T* __restrict__ sin, T* __restrict__ y, const Steps<I>& step, I half,
                                           I rest, I each_cos, I each_sin) {
  using A = typename Accumulator<T>::Type;
  for (I i = threadIdx.x * V; i < half + rest; i += blockDim.x * V) {
    if (i < half) {
      T a[V], b[V], c[V], d[V], s[V], t[V];
      load_pairs<P>(x, i, half, step.x, a, b);
      load_factors<P>(cos, i, half, step.cos, each_cos, c, d);
      load_factors<P>(sin, i, half, step.sin, each_sin, s, t);
#pragma unroll
      for (int j = 0; j < V; j++) {
        const A first = A(a[j]), second = A(b[j]);
        a[j] = T(first * A(c[j]) - second * A(s[j]));
        b[j] = T(second * A(d[j]) + first * A(t[j]));
      }
      store_pairs<P>(a, b, y, i, half, step.y);
    } else {
      T kept[V];
      load<V>(x + (half + i) * step.x, kept);
      store<V>(kept, y + (half + i) * step.y);
    }
  }
}

// Operands of the axes, which are those of rows: x, cos, sin, y.
template <typename T, Pairing P, int V, typename I, int R>
__global__ void rotate(const T* __restrict__ x, const T* __restrict__ cos, const T* __restrict__ sin,
                       T* __restrict__ y, const Axes<I, R, 4> axes, const Steps<I> step, I rows, I half, I rest,
                       I each_cos, I each_sin) {
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  I at[R];
  unravel(axes, row, at);
  rotate_row<T, P, V>(x + offset(axes, at, 0), cos + offset(axes, at, 1), sin + offset(axes, at, 2),
                      y + offset(axes, at, 3), step, half, rest, each_cos, each_sin);
}

// How many rows there are of queries, keys and values, and how far apart those of the caches are.
template <typename I>
struct Parts {
  I queries, keys, values, key_row, value_row;
};

// A decoder's step: turns queries to y, and keys to their cache from row `*start` on, where values go to theirs.
// blockIdx.y is one of the three. Rows of values have `width` elements; all rows have a unit stride.
template <typename T, Pairing P, int V, typename I, int R>
__global__ void rotate_append(const T* __restrict__ queries, const T* __restrict__ keys, const T* __restrict__ values,
                              const T* __restrict__ cos, const T* __restrict__ sin, T* __restrict__ y,
                              T* __restrict__ key_cache, T* __restrict__ value_cache, const Axes<I, R, 4> query_axes,
                              const Axes<I, R, 4> key_axes, const Axes<I, R, 2> value_axes, const Parts<I> parts,
                              I half, I rest, I width, I each_cos, I each_sin, const long long* __restrict__ start) {
  const I row = static_cast<I>(blockIdx.x) * blockDim.y + threadIdx.y;
  const Steps<I> step = {1, 1, 1, 1};
  I at[R];
  if (blockIdx.y == 0 && row < parts.queries) {
    unravel(query_axes, row, at);
    rotate_row<T, P, V>(queries + offset(query_axes, at, 0), cos + offset(query_axes, at, 1),
                        sin + offset(query_axes, at, 2), y + offset(query_axes, at, 3), step, half, rest, each_cos,
                        each_sin);
  } else if (blockIdx.y == 1 && row < parts.keys) {
    unravel(key_axes, row, at);
    rotate_row<T, P, V>(keys + offset(key_axes, at, 0), cos + offset(key_axes, at, 1), sin + offset(key_axes, at, 2),
                        key_cache + *start * parts.key_row + offset(key_axes, at, 3), step, half, rest, each_cos,
                        each_sin);
  } else if (blockIdx.y == 2 && row < parts.values) {
    unravel(value_axes, row, at);
    const T* from = values + offset(value_axes, at, 0);
    T* to = value_cache + *start * parts.value_row + offset(value_axes, at, 1);
    for (I i = threadIdx.x * V; i < width; i += blockDim.x * V) {
      T kept[V];
      load<V>(from + i, kept);
      store<V>(kept, to + i);
    }
  }
}
