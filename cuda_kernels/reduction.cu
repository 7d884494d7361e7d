// Reductions: one group of threads per result. Every result is folded in a fixed order, without atomics.
#include "axes.cuh"

template <class T>
__device__ __forceinline__ T narrowed(typename Accumulator<T>::Type x) {
  return T(x);
}
template <>
__device__ __forceinline__ signed char narrowed<signed char>(long long x) {
  return x < -128 ? -128 : x > 127 ? 127 : x;
}
template <>
__device__ __forceinline__ unsigned char narrowed<unsigned char>(long long x) {
  return x < 0 ? 0 : x > 255 ? 255 : x;
}

// A reduction: what is folded of an element, the fold, what it starts from, and the result over `count` elements.
template <class T>
struct Sum {
  using In = T;
  using Out = T;
  using Total = typename Accumulator<T>::Type;
  static __device__ Total start() { return Total(0); }
  static __device__ Total before(T x) { return Total(x); }
  static __device__ Total fold(Total a, Total b) { return a + b; }
  static __device__ T after(Total total, long long) { return narrowed<T>(total); }
};

template <class T>
struct Mean : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ T after(Total total, long long count) {
    return narrowed<T>(count ? total / Total(count) : total);
  }
};

template <class T>
struct Prod : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total start() { return Total(1); }
  static __device__ Total fold(Total a, Total b) { return a * b; }
};

template <class T>
struct L1 : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total before(T x) { return Total(x) < Total(0) ? -Total(x) : Total(x); }
};

// Sums of squares of integers are f64.
template <class T>
struct Squares {
  using Type = double;
};
template <>
struct Squares<float> {
  using Type = float;
};
template <>
struct Squares<__half> {
  using Type = float;
};
template <>
struct Squares<__nv_bfloat16> {
  using Type = float;
};

template <class T>
struct L2 {
  using In = T;
  using Out = T;
  using Total = typename Squares<T>::Type;
  static __device__ Total start() { return Total(0); }
  static __device__ Total before(T x) { return Total(x) * Total(x); }
  static __device__ Total fold(Total a, Total b) { return a + b; }
  static __device__ T after(Total total, long long) {
    return narrowed<T>(typename Accumulator<T>::Type(root(total)));
  }
};

// The least and the greatest value of an accumulator; what Max and Min are over no elements of a type.
template <class T>
struct Limits {  // signed integers
  static constexpr long long bit = sizeof(T) * 8 - 1;
  static __device__ long long least() { return (long long)(~0ull << 63); }
  static __device__ long long greatest() { return ~least(); }
  static __device__ long long first() { return (long long)(~0ull << bit); }
  static __device__ long long last() { return ~first(); }
};
template <class T>
struct UnsignedLimits {
  static __device__ unsigned long long least() { return 0; }
  static __device__ unsigned long long greatest() { return ~0ull; }
  static __device__ unsigned long long first() { return 0; }
  static __device__ unsigned long long last() { return ~0ull >> (64 - 8 * sizeof(T)); }
};
template <class Total>
struct FloatLimits {
  static __device__ Total least() { return Total(__int_as_float(0xff800000)); }  // minus infinity
  static __device__ Total greatest() { return -least(); }
  static __device__ Total first() { return lowest<Total>(); }
  static __device__ Total last() { return greatest(); }
};
template <>
struct Limits<unsigned char> : Limits<short> {
  static __device__ long long first() { return 0; }
  static __device__ long long last() { return 255; }
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

// NaN wins.
template <class T>
struct Max : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total start() { return Limits<T>::least(); }
  static __device__ Total fold(Total a, Total b) { return a > b || a != a ? a : b; }
  static __device__ T after(Total total, long long count) {
    return narrowed<T>(count ? total : Total(Limits<T>::first()));
  }
};

template <class T>
struct Min : Sum<T> {
  using Total = typename Sum<T>::Total;
  static __device__ Total start() { return Limits<T>::greatest(); }
  static __device__ Total fold(Total a, Total b) { return a < b || a != a ? a : b; }
  static __device__ T after(Total total, long long count) {
    return narrowed<T>(count ? total : Total(Limits<T>::last()));
  }
};

template <class T>
struct All {
  using In = T;
  using Out = T;
  using Total = int;
  static __device__ int start() { return 1; }
  static __device__ int before(T x) { return x != T(0); }
  static __device__ int fold(int a, int b) { return a & b; }
  static __device__ T after(int total, long long) { return T(total); }
};

template <class T>
struct Any : All<T> {
  static __device__ int start() { return 0; }
  static __device__ int fold(int a, int b) { return a | b; }
};

template <class F>
struct Folding {
  using Total = typename F::Total;
  __device__ __forceinline__ Total operator()(Total a, Total b) const { return F::fold(a, b); }
};

// The two halves of a reduction over more elements than one block should read.
template <class F>
struct Partial : F {
  using Out = typename F::Total;
  static __device__ Out after(Out total, long long) { return total; }
};
template <class F>
struct Final : F {
  using In = typename F::Total;
  static __device__ In before(In total) { return total; }
};

// The fold of what this thread has of n neighbouring elements, most of them read 16 bytes at a time.
template <class F>
__device__ __forceinline__ typename F::Total fold_neighbours(const typename F::In* x, unsigned n) {
  using T = typename F::In;
  constexpr unsigned V = 16 / sizeof(T);
  const unsigned step = blockDim.x;
  unsigned done = 0;
  typename F::Total total = F::start();
  if (n >= 2 * V * step) {  // else the vectors would leave most threads idle
    const unsigned head = unsigned(-reinterpret_cast<unsigned long long>(x) % 16 / sizeof(T));
    const unsigned vectors = (n - head) / V;
    for (unsigned i = threadIdx.x; i < head; i += step) total = F::fold(total, F::before(x[i]));
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < vectors; i += step) {
      T part[V];
      load<V>(x + head + i * V, part);
      for (unsigned j = 0; j < V; j++) total = F::fold(total, F::before(part[j]));
    }
    done = head + vectors * V;
  }
#pragma unroll 4
  for (unsigned i = done + threadIdx.x; i < n; i += step) total = F::fold(total, F::before(x[i]));
  return total;
}

// A row of threads (see fold_row) per result: best for elements that lie one after another. Of the n elements, block
// (., j) folds those from j * chunk on, into the j-th of neighbouring results.
template <class F>
__global__ void __launch_bounds__(OVGPU_THREADS)
    reduce_rows(const typename F::In* x, typename F::Out* out, const Axes kept, const Axes folded, unsigned rows,
                unsigned n, unsigned chunk, long long count) {
  const unsigned row = blockIdx.x * blockDim.y + threadIdx.y, begin = blockIdx.y * chunk;
  const unsigned size = row < rows ? min(chunk, n - begin) : 0;
  const Place at = place(kept, row);
  typename F::Total total = F::start();
  if (folded.rank == 1 && folded.from[0] == 1) {
    total = fold_neighbours<F>(x + at.from + begin, size);
  } else {
    for (unsigned i = threadIdx.x; i < size; i += blockDim.x)
      total = F::fold(total, F::before(x[at.from + place(folded, begin + i).from]));
  }
  total = fold_row(total, Folding<F>());
  if (threadIdx.x == 0 && row < rows) out[at.to + blockIdx.y] = F::after(total, count);
}

// A column of threads (see fold_column) per result: best for results whose elements lie side by side.
template <class F>
__global__ void __launch_bounds__(OVGPU_THREADS)
    reduce_columns(const typename F::In* x, typename F::Out* out, const Axes kept, const Axes folded,
                   unsigned columns, unsigned n, unsigned chunk, long long count) {
  OVGPU_DYN_SHARED(typename F::Total, scratch);
  const unsigned column = blockIdx.x * blockDim.x + threadIdx.x, begin = blockIdx.y * chunk;
  const unsigned end = column < columns ? min(n, begin + chunk) : 0;
  const Place at = place(kept, column);
  typename F::Total total = F::start();
#pragma unroll 4
  for (unsigned i = begin + threadIdx.y; i < end; i += blockDim.y)
    total = F::fold(total, F::before(x[at.from + place(folded, i).from]));
  total = fold_column(total, Folding<F>(), scratch);
  if (threadIdx.y == 0 && column < columns) out[at.to + blockIdx.y] = F::after(total, count);
}
