// SegmentMax: the greatest of the rows in every segment.
#include "segments.cuh"

// NaN wins.
struct Greater {
  template <class A>
  __device__ __forceinline__ A operator()(A a, A b) const {
    return a != a || b < a ? a : b;
  }
};

// `ids` are the ascending numbers of the segments that the rows are in, `least` is not above any element, and an empty
// segment has elements `empty`.
template <class T, class Index, int V>
__global__ void __launch_bounds__(THREADS, V < 16 ? 4 : 3)
    segment_max(const T* __restrict__ x, const Index* __restrict__ ids, T* __restrict__ y, long long rows,
                long long width, long long segments, typename Accumulator<T>::Type least,
                typename Accumulator<T>::Type empty, const Shares shares) {
  using A = typename Accumulator<T>::Type;
  const Share mine = share<V>(shares);
  const bool inside = mine.group < segments && mine.column < width;
  long long begin = 0, end = 0;
  if (inside) {
    begin = place_of(mine.group, ids, rows);
    end = begin + place_of(mine.group + 1, ids + begin, rows - begin);
  }
  A greatest[V];
#pragma unroll
  for (int j = 0; j < V; j++) greatest[j] = least;
#pragma unroll 4
  for (long long i = begin + mine.part; i < end; i += shares.parts) {
    T part[V];
    load<V>(x + i * width + mine.column, part);
#pragma unroll
    for (int j = 0; j < V; j++) greatest[j] = Greater()(greatest[j], A(part[j]));
  }
  fold_parts(greatest, Greater(), shares.parts);
  if (!inside || mine.part) return;
  T result[V];
#pragma unroll
  for (int j = 0; j < V; j++) result[j] = T(begin < end ? greatest[j] : empty);
  store<V>(result, y + mine.group * width + mine.column);
}
