// SegmentMax: the maximum of the rows in every segment.
#include "segments.cuh"

// Maximum that propagates NaN.
struct MaximumOrNaN {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a != a || b < a ? a : b;
  }
};

// Reduce x [rows, width] to y [segments, width]. `ids` are the ascending segment numbers of the rows; `initial` is not
// above any element; an empty segment gets `empty`. Threads share the work as in segments.cuh.
template <class T, class Index, int V>
__global__ void __launch_bounds__(THREADS, V < 16 ? 4 : 3)
    segment_max(const T* __restrict__ x, const Index* __restrict__ ids, T* __restrict__ y, long long rows,
                long long width, long long segments, typename Accumulator<T>::Type initial,
                typename Accumulator<T>::Type empty, const Partition partition) {
  using A = typename Accumulator<T>::Type;
  const ThreadWork work = thread_work<V>(partition);
  const bool inside = work.group < segments && work.column < width;
  long long begin = 0, end = 0;
  if (inside) {
    begin = lower_bound(work.group, ids, rows);
    end = begin + lower_bound(work.group + 1, ids + begin, rows - begin);
  }
  A maximum[V];
#pragma unroll
  for (int j = 0; j < V; j++) maximum[j] = initial;
#pragma unroll 4
  for (long long i = begin + work.part; i < end; i += partition.parts) {
    T part[V];
    load<V>(x + i * width + work.column, part);
#pragma unroll
    for (int j = 0; j < V; j++) maximum[j] = MaximumOrNaN()(maximum[j], A(part[j]));
  }
  fold_parts(maximum, MaximumOrNaN(), partition.parts);
  if (!inside || work.part) return;
  T result[V];
#pragma unroll
  for (int j = 0; j < V; j++) result[j] = T(begin < end ? maximum[j] : empty);
  store<V>(result, y + work.group * width + work.column);
}
