// Softmax and log-softmax along one axis. The output may be in the memory of the input.
#include "axes.cuh"

// Softmax of rows of n contiguous elements. They stay in registers, N vectors of V elements per thread (see fold_row):
// blockDim.x * N * V >= n, and n is a multiple of V.
template <class T, bool LOG, int V, int N>
__global__ void __launch_bounds__(OVGPU_THREADS) softmax_rows(const T* x, T* out, unsigned rows, unsigned n) {
  using A = typename Accumulator<T>::Type;
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, size = row < rows ? n : 0;
  const unsigned long long start = (unsigned long long)row * n;
  A value[N][V];
  A maximum = lowest<A>(), sum = 0;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V];
      load<V>(x + start + i, part);
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] = A(part[j]);
        maximum = math::max(maximum, value[k][j]);
      }
    }
  }
  maximum = fold_row(maximum, Maximum());
#pragma unroll
  for (int k = 0; k < N; k++) {
    if ((k * blockDim.x + threadIdx.x) * V < size) {
#pragma unroll
      for (int j = 0; j < V; j++) {
        value[k][j] -= maximum;
        const A e = math::exp(value[k][j]);
        if (!LOG) value[k][j] = e;
        sum += e;
      }
    }
  }
  sum = fold_row(sum, Add());
  const A scale = LOG ? math::log(sum) : A(1) / sum;
#pragma unroll
  for (int k = 0; k < N; k++) {
    const unsigned i = (k * blockDim.x + threadIdx.x) * V;
    if (i < size) {
      T part[V];
#pragma unroll
      for (int j = 0; j < V; j++) part[j] = T(LOG ? value[k][j] - scale : value[k][j] * scale);
      store<V>(part, out + start + i);
    }
  }
}

// Softmax of columns of n elements that are `stride` apart, blockDim.x of them per block (see fold_column). The first
// pass computes maximum and sum together, as online softmax (Milakov & Gimelshein 2018); the second one writes the
// result. Contiguous columns (stride 1) are read efficiently if a block has only one column.
template <class T, bool LOG>
__global__ void __launch_bounds__(OVGPU_THREADS)
    softmax_columns(const T* x, T* out, unsigned columns, unsigned n, unsigned stride) {
  using A = typename Accumulator<T>::Type;
  OVGPU_DYN_SHARED(A, scratch);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, size = column < columns ? n : 0;
  const unsigned long long start = (unsigned long long)(column / stride) * n * stride + column % stride;
  A maximum = lowest<A>(), sum = 0;
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const A value = A(x[start + (unsigned long long)i * stride]), before = maximum;
    maximum = math::max(maximum, value);
    sum = sum * math::exp(before - maximum) + math::exp(value - maximum);
  }
  const A greatest = fold_column(maximum, Maximum(), scratch);
  sum = fold_column(sum * math::exp(maximum - greatest), Add(), scratch);
  const A scale = LOG ? math::log(sum) : A(1) / sum;
#pragma unroll 4
  for (unsigned i = threadIdx.y; i < size; i += blockDim.y) {
    const unsigned long long at = start + (unsigned long long)i * stride;
    const A shifted = A(x[at]) - greatest;
    out[at] = T(LOG ? shifted - scale : math::exp(shifted) * scale);
  }
}

// The two stages of the softmax of a few long rows, whose parts of `chunk` elements are divided among blocks:
// blockIdx.x is the part, blockIdx.y the row. `parts` [rows][gridDim.x][2] gets the maximum of each part, and the sum
// of the exponentials of its elements less the maximum. n and chunk are multiples of V.
template <class T, int V>
__global__ void __launch_bounds__(OVGPU_THREADS)
    softmax_parts(const T* x, typename Accumulator<T>::Type* parts, unsigned n, unsigned chunk) {
  using A = typename Accumulator<T>::Type;
  const unsigned long long row = blockIdx.y;
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  x += row * n + begin;
  A maximum = lowest<A>(), sum = 0;
#pragma unroll(sizeof(T) == 8 ? 1 : 4)  // f64 would spill registers
  for (unsigned i = threadIdx.x * V; i < size; i += blockDim.x * V) {
    T part[V];
    load<V>(x + i, part);
    const A before = maximum;
#pragma unroll
    for (int j = 0; j < V; j++) maximum = math::max(maximum, A(part[j]));
    sum *= math::exp(before - maximum);
#pragma unroll
    for (int j = 0; j < V; j++) sum += math::exp(A(part[j]) - maximum);
  }
  const A greatest = fold_row(maximum, Maximum());
  sum = fold_row(sum * math::exp(maximum - greatest), Add());
  if (threadIdx.x == 0) {
    parts += (row * gridDim.x + blockIdx.x) * 2;
    parts[0] = greatest;
    parts[1] = sum;
  }
}

template <class T, bool LOG, int V>
__global__ void __launch_bounds__(OVGPU_THREADS)
    softmax_join(const T* x, T* out, const typename Accumulator<T>::Type* parts, unsigned n, unsigned chunk) {
  using A = typename Accumulator<T>::Type;
  const unsigned long long row = blockIdx.y;
  const unsigned begin = blockIdx.x * chunk, size = min(chunk, n - begin);
  x += row * n + begin;
  out += row * n + begin;
  parts += row * gridDim.x * 2;
  A maximum = lowest<A>(), sum = 0;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    const A before = maximum;
    maximum = math::max(maximum, parts[2 * i]);
    sum = sum * math::exp(before - maximum) + parts[2 * i + 1] * math::exp(parts[2 * i] - maximum);
  }
  const A greatest = fold_row(maximum, Maximum());
  sum = fold_row(sum * math::exp(maximum - greatest), Add());
  const A scale = LOG ? math::log(sum) : A(1) / sum;
#pragma unroll 4
  for (unsigned i = threadIdx.x * V; i < size; i += blockDim.x * V) {
    T part[V];
    load<V>(x + i, part);
#pragma unroll
    for (int j = 0; j < V; j++) {
      const A shifted = A(part[j]) - greatest;
      part[j] = T(LOG ? shifted - scale : math::exp(shifted) * scale);
    }
    store<V>(part, out + i);
  }
}
