// Reductions: one group of threads per result. Every result is reduced in a fixed order, without atomics.
#include "axes.cuh"
#include "ptx.cuh"

template <class T>
__device__ __forceinline__ T saturate(typename Accumulator<T>::Type x) {
  return T(x);
}
template <>
__device__ __forceinline__ signed char saturate<signed char>(long long x) {
  return x < -128 ? -128 : x > 127 ? 127 : x;
}
template <>
__device__ __forceinline__ unsigned char saturate<unsigned char>(long long x) {
  return x < 0 ? 0 : x > 255 ? 255 : x;
}

// A reduction: `identity` is the initial value, `map` is applied to each element, `fold` combines two partial results,
// and `finalize` converts the total over `count` elements.
template <class T>
struct Sum {
  using In = T;
  using Out = T;
  using Total = typename Accumulator<T>::Type;
  static __device__ Total identity() { return Total(0); }
  static __device__ Total map(T x) { return Total(x); }
  static __device__ Total fold(Total a, Total b) { return a + b; }
  static __device__ T finalize(Total total, long long) { return saturate<T>(total); }
};

template <class T>
struct Mean : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ T finalize(Total total, long long count) {
    return saturate<T>(count ? total / Total(count) : total);
  }
};

template <class T>
struct Prod : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total identity() { return Total(1); }
  static __device__ Total fold(Total a, Total b) { return a * b; }
};

template <class T>
struct L1 : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total map(T x) { return Total(x) < Total(0) ? -Total(x) : Total(x); }
};

// Accumulator type of sums of squares: double for integers.
template <class T>
struct SquareSum {
  using Type = double;
};
template <>
struct SquareSum<float> {
  using Type = float;
};
template <>
struct SquareSum<__half> {
  using Type = float;
};
template <>
struct SquareSum<__nv_bfloat16> {
  using Type = float;
};

template <class T>
struct L2 {
  using In = T;
  using Out = T;
  using Total = typename SquareSum<T>::Type;
  static __device__ Total identity() { return Total(0); }
  static __device__ Total map(T x) { return Total(x) * Total(x); }
  static __device__ Total fold(Total a, Total b) { return a + b; }
  static __device__ T finalize(Total total, long long) {
    return saturate<T>(typename Accumulator<T>::Type(math::sqrt(total)));
  }
};

// Limits of an accumulator, the initial values of Min and Max; and the results of these over no elements of type T.
template <class T>
struct Limits {  // signed integers
  static constexpr long long SIGN_BIT = sizeof(T) * 8 - 1;
  static __device__ long long least() { return (long long)(~0ull << 63); }
  static __device__ long long greatest() { return ~least(); }
  static __device__ long long empty_max() { return (long long)(~0ull << SIGN_BIT); }
  static __device__ long long empty_min() { return ~empty_max(); }
};
template <class T>
struct UnsignedLimits {
  static __device__ unsigned long long least() { return 0; }
  static __device__ unsigned long long greatest() { return ~0ull; }
  static __device__ unsigned long long empty_max() { return 0; }
  static __device__ unsigned long long empty_min() { return ~0ull >> (64 - 8 * sizeof(T)); }
};
template <class Total>
struct FloatLimits {
  static __device__ Total least() { return Total(__int_as_float(0xff800000)); }  // -inf
  static __device__ Total greatest() { return -least(); }
  static __device__ Total empty_max() { return lowest<Total>(); }
  static __device__ Total empty_min() { return greatest(); }
};
template <>
struct Limits<unsigned char> : Limits<short> {
  static __device__ long long empty_max() { return 0; }
  static __device__ long long empty_min() { return 255; }
};
template <>
struct Limits<unsigned short> : UnsignedLimits<unsigned short> {};
template <>
struct Limits<unsigned> : UnsignedLimits<unsigned> {};
template <>
struct Limits<unsigned long long> : UnsignedLimits<unsigned long long> {};
template <>
struct Limits<float> : FloatLimits<float> {};
template <>
struct Limits<__half> : FloatLimits<float> {};
template <>
struct Limits<__nv_bfloat16> : FloatLimits<float> {};
template <>
struct Limits<double> : FloatLimits<double> {};

// Max and Min propagate NaN.
template <class T>
struct Max : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total identity() { return Limits<T>::least(); }
  static __device__ Total fold(Total a, Total b) { return a > b || a != a ? a : b; }
  static __device__ T finalize(Total total, long long count) {
    return saturate<T>(count ? total : Total(Limits<T>::empty_max()));
  }
};

template <class T>
struct Min : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total identity() { return Limits<T>::greatest(); }
  static __device__ Total fold(Total a, Total b) { return a < b || a != a ? a : b; }
  static __device__ T finalize(Total total, long long count) {
    return saturate<T>(count ? total : Total(Limits<T>::empty_min()));
  }
};

template <class T>
struct All {
  using In = T;
  using Out = T;
  using Total = int;
  static __device__ int identity() { return 1; }
  static __device__ int map(T x) { return x != T(0); }
  static __device__ int fold(int a, int b) { return a & b; }
  static __device__ T finalize(int total, long long) { return T(total); }
};

template <class T>
struct Any : All<T> {
  static __device__ int identity() { return 0; }
  static __device__ int fold(int a, int b) { return a | b; }
};

template <class F>
struct FoldFunction {
  using Total = typename F::Total;
  __device__ __forceinline__ Total operator()(Total a, Total b) const { return F::fold(a, b); }
};

// The two passes of a reduction of more elements than one block should read.
template <class F>
struct Partial : F {
  using Out = typename F::Total;
  static __device__ Out finalize(Out total, long long) { return total; }
};
template <class F>
struct Final : F {
  using In = typename F::Total;
  static __device__ In map(In total) { return total; }
};

// Reduce this thread's part of n contiguous elements. Most of them are read 16 bytes at a time.
template <class F>
__device__ __forceinline__ typename F::Total fold_contiguous(const typename F::In* x, unsigned n) {
  using T = typename F::In;
  constexpr unsigned V = 16 / sizeof(T);
  const unsigned step = blockDim.x;
  unsigned done = 0;
  typename F::Total total = F::identity();
  if (n >= 2 * V * step) {  // otherwise vectors would leave most threads idle
    const unsigned head = unsigned(-reinterpret_cast<unsigned long long>(x) % 16 / sizeof(T));
    const unsigned vectors = (n - head) / V;
    for (unsigned i = threadIdx.x; i < head; i += step) total = F::fold(total, F::map(x[i]));
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < vectors; i += step) {
      T part[V];
      load<V>(x + head + i * V, part);
      for (unsigned j = 0; j < V; j++) total = F::fold(total, F::map(part[j]));
    }
    done = head + vectors * V;
  }
#pragma unroll 4
  for (unsigned i = done + threadIdx.x; i < n; i += step) total = F::fold(total, F::map(x[i]));
  return total;
}

// Reduce along rows, with blockDim.x threads per result (see fold_row): best for elements that are contiguous along
// `inner`, the reduced axes. Block (x, j) reduces elements [j * chunk, (j + 1) * chunk) to result j of a row.
template <class F>
__global__ void __launch_bounds__(OVGPU_THREADS)
    reduce_rows(const typename F::In* x, typename F::Out* out, const MappedAxes outer, const MappedAxes inner,
                unsigned rows, unsigned n, unsigned chunk, long long count) {
  start_next_launch();
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, begin = blockIdx.y * chunk;
  const unsigned size = row < rows ? min(chunk, n - begin) : 0;
  const Offsets at = offsets_of(outer, row);
  typename F::Total total = F::identity();
  wait_for_launches();
  if (inner.rank == 1 && inner.from[0] == 1) {
    total = fold_contiguous<F>(x + at.from + begin, size);
  } else {
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x)
      total = F::fold(total, F::map(x[at.from + offsets_of(inner, begin + i).from]));
  }
  total = fold_row(total, FoldFunction<F>());
  if (threadIdx.x == 0 && row < rows) out[at.to + blockIdx.y] = F::finalize(total, count);
}

// Reduce along columns, with blockDim.y threads per result (see fold_column): best for contiguous columns.
template <class F>
__global__ void __launch_bounds__(OVGPU_THREADS)
    reduce_columns(const typename F::In* x, typename F::Out* out, const MappedAxes outer, const MappedAxes inner,
                   unsigned columns, unsigned n, unsigned chunk, long long count) {
  OVGPU_DYN_SHARED(typename F::Total, scratch);
  start_next_launch();
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * chunk;
  const unsigned end = column < columns ? min(n, begin + chunk) : 0;
  const Offsets at = offsets_of(outer, column);
  typename F::Total total = F::identity();
  wait_for_launches();
#pragma unroll 4
  for (unsigned i = begin + threadIdx.y; i < end; i += blockDim.y)
    total = F::fold(total, F::map(x[at.from + offsets_of(inner, i).from]));
  total = fold_column(total, FoldFunction<F>(), scratch);
  if (threadIdx.y == 0 && column < columns) out[at.to + blockIdx.y] = F::finalize(total, count);
}

// Like reduce_columns, for V neighbouring columns per thread, 16 bytes of them: `outer` and `columns` count such
// vectors, and the results of neighbouring columns are `to_step` elements apart.
template <class F>
__global__ void __launch_bounds__(OVGPU_THREADS)
    reduce_vectors(const typename F::In* x, typename F::Out* out, const MappedAxes outer, const MappedAxes inner,
                   unsigned columns, unsigned n, unsigned chunk, long long count, unsigned to_step) {
  using In = typename F::In;
  using Total = typename F::Total;
  constexpr int V = 16 / sizeof(In);
  OVGPU_DYN_SHARED(Total, scratch);  // [V][blockDim.y][blockDim.x]
  start_next_launch();
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * chunk;
  const unsigned end = column < columns ? min(n, begin + chunk) : 0;
  const Offsets at = offsets_of(outer, column);
  Total total[V];
#pragma unroll
  for (int j = 0; j < V; j++) total[j] = F::identity();
  wait_for_launches();
#pragma unroll 4
  for (unsigned i = begin + threadIdx.y; i < end; i += blockDim.y) {
    In part[V];
    load<V>(x + at.from + offsets_of(inner, i).from, part);
#pragma unroll
    for (int j = 0; j < V; j++) total[j] = F::fold(total[j], F::map(part[j]));
  }
  const unsigned threads = blockDim.x * blockDim.y;
#pragma unroll
  for (int j = 0; j < V; j++) scratch[j * threads + threadIdx.y * blockDim.x + threadIdx.x] = total[j];
  __syncthreads();
  for (unsigned j = threadIdx.y; j < V && column < columns; j += blockDim.y) {
    const Total* const parts = scratch + j * threads + threadIdx.x;
    Total whole = parts[0];
    for (unsigned y = 1; y < blockDim.y; y++) whole = F::fold(whole, parts[y * blockDim.x]);
    out[at.to + j * to_step + blockIdx.y] = F::finalize(whole, count);
  }
}
