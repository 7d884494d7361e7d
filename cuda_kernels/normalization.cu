// Normalisation over axes: less the mean, over the deviation, the Euclidean norm or the root of the mean square; then,
// for fused layers, times a scale and plus a shift per normalised element. The output may lie where an input does.
#include "axes.cuh"

enum Kind { CENTRE, MVN, L2, NONZERO, RMS };  // NONZERO: 1 wherever x is not 0
enum Epsilon { INSIDE, OUTSIDE, BOUND };  // added to what the root is taken of, added to the root, or its lower bound

// What elements are multiplied by, from the mean of their squares (of the sum of them, for L2).
template <class A>
__device__ __forceinline__ A scale_of(A squares, A eps, int mode) {
  return A(1) / (mode == INSIDE    ? root(squares + eps)
                 : mode == OUTSIDE ? root(squares) + eps
                                   : root(larger(squares, eps)));
}

template <int KIND, class A>
__device__ __forceinline__ A normalized(A value, A mean, A factor) {
  return KIND == NONZERO ? A(value != A(0)) : (value - mean) * factor;
}

// The normalised row of which each thread holds N vectors of V elements, and their sum (see fold_row). scale, shift: of
// n elements each, or null.
template <int KIND, int V, int N, class T, class A>
__device__ __forceinline__ void write_row(const A (&value)[N][V], A sum, A part_of_sum, T* out, const T* scale,
                                           const T* shift, unsigned size, unsigned n, A eps, int mode) {
  const A mean = KIND == CENTRE || KIND == MVN ? fold_row(sum, Add()) / A(n) : A(0);
  A factor = 1;
  if (KIND == MVN || KIND == L2 || KIND == RMS) {
    A squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
      if ((k * blockDim.x + threadIdx.x) * V < size) {
#pragma unroll
        for (int j = 0; j < V; j++) squares += (value[k][j] - mean) * (value[k][j] - mean);
      }
    }
    squares = fold_row(squares, Add());
    factor = scale_of(KIND == L2 ? squares : squares * part_of_sum, eps, mode);
  }
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V], times[V], plus[V];
      if (scale) load<V>(scale + i, times);
      if (shift) load<V>(shift + i, plus);
#pragma unroll
      for (int j = 0; j < V; j++) {
        A result = normalized<KIND>(value[k][j], mean, factor);
        if (scale) result *= A(times[j]);
        if (shift) result += A(plus[j]);
        part[j] = T(result);
      }
      store<V>(part, out + i);
    }
  }
}

// Rows anywhere of n neighbouring elements, which stay in registers: N vectors of V elements in each thread of a row.
// blockDim.x * N * V >= n, and n is a multiple of V. scale, shift: n elements each, or null.
template <class T, int KIND, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_rows(const T* x, T* out, const T* scale, const T* shift, const Axes kept, unsigned rows,
                   unsigned n, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const Place start = place(kept, row);
  const A part_of_sum = A(1) / A(n);  // before there is much to keep in registers: a division may be a call
  A value[N][V];
  A sum = 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V];
      load<V>(x + start.from + i, part);
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] = A(part[j]);
        sum += value[k][j];
      }
    }
  }
  write_row<KIND>(value, sum, part_of_sum, out + start.to, scale, shift, size, n, eps, mode);
}

template <int V, class T>
__device__ __forceinline__ void add_row(T (&to)[V], const T* from) {
  using A = typename Accumulator<T>::Type;
  T part[V];
  load<V>(from, part);
#pragma unroll
  for (int j = 0; j < V; j++) to[j] = T(A(to[j]) + A(part[j]));
}

// The same for rows of (x + y) + z, every sum rounded; z may be null. Each of them has its own number of rows, after
// which it begins anew. `total`: where to write the sums, or null.
template <class T, int KIND, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS)
    add_normalize_rows(const T* x, const T* y, const T* z, T* out, T* total, const T* scale, const T* shift,
                       unsigned x_rows, unsigned y_rows, unsigned z_rows, unsigned rows, unsigned n,
                       typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const unsigned long long start = (unsigned long long)row * n;
  const A part_of_sum = A(1) / A(n);
  x += (unsigned long long)(row % x_rows) * n;
  y += (unsigned long long)(row % y_rows) * n;
  if (z) z += (unsigned long long)(row % z_rows) * n;
  A value[N][V];
  A sum = 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V];
      load<V>(x + i, part);
      add_row(part, y + i);
      if (z) add_row(part, z + i);
      if (total) store<V>(part, total + start + i);
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] = A(part[j]);
        sum += value[k][j];
      }
    }
  }
  write_row<KIND>(value, sum, part_of_sum, out + start, scale, shift, size, n, eps, mode);
}

// Columns of n elements anywhere, blockDim.x of them per block (see fold_column).
template <class T, int KIND>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_columns(const T* x, T* out, const T* scale, const T* shift, const Axes kept, const Axes over,
                      unsigned columns, unsigned n, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, scratch);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, size = column < columns ? n : 0;
  const Place start = place(kept, column);
  A mean = 0;
  if (KIND == CENTRE || KIND == MVN) {
#pragma unroll 4
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) mean += A(x[start.from + place(over, i).from]);
    mean = fold_column(mean, Add(), scratch) / A(n);
  }
  A factor = 1;
  if (KIND == MVN || KIND == L2 || KIND == RMS) {
    A squares = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
      const A centred = A(x[start.from + place(over, i).from]) - mean;
      squares += centred * centred;
    }
    squares = fold_column(squares, Add(), scratch);
    factor = scale_of(KIND == L2 ? squares : squares / A(n), eps, mode);
  }
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const Place at = place(over, i);
    A result = normalized<KIND>(A(x[start.from + at.from]), mean, factor);
    if (scale) result *= A(scale[i]);
    if (shift) result += A(shift[i]);
    out[start.to + at.to] = T(result);
  }
}

// Dense rows of the output whose n elements lie `step` apart in x, where neighbouring rows lie side by side: channels that
// come first in x, and last in the output. blockDim.x rows per block turn in shared memory, which holds n elements of
// one row more, behind one per thread.
template <class T, int KIND>
__global__ void __launch_bounds__(OVGPU_THREADS)
    normalize_transposed(const T* x, T* out, const T* scale, const T* shift, const Axes kept, long long step, unsigned rows,
                     unsigned n, typename Accumulator<T>::Type eps, int mode) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, scratch);
  const unsigned first = blockIdx.x * blockDim.x, row = first + threadIdx.x, size = row < rows ? n : 0;
  const unsigned width = blockDim.x + 1, threads = blockDim.x * blockDim.y;
  A* tile = scratch + threads + threadIdx.x;
  x += place(kept, row).from;
  A mean = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const A value = A(x[i * step]);
    tile[i * width] = value;
    mean += value;
  }
  mean = KIND == CENTRE || KIND == MVN ? fold_column(mean, Add(), scratch) / A(n) : A(0);
  A factor = 1;
  if (KIND == MVN || KIND == RMS) {
    A squares = 0;
    for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
      squares += (tile[i * width] - mean) * (tile[i * width] - mean);
    }
    factor = scale_of(fold_column(squares, Add(), scratch) / A(n), eps, mode);
  }
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    tile[i * width] = normalized<KIND>(tile[i * width], mean, factor);
  }
  __syncthreads();
  tile = scratch + threads;
  out += (unsigned long long)first * n;
  const unsigned count = (rows - first < blockDim.x ? rows - first : blockDim.x) * n;
  for (unsigned k = threadIdx.y * blockDim.x + threadIdx.x; k < count; k += threads) {
    const unsigned in_row = k / n, i = k - in_row * n;
    A result = tile[i * width + in_row];
    if (scale) result *= A(scale[i]);
    if (shift) result += A(shift[i]);
    out[k] = T(result);
  }
}
