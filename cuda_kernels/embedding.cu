// EmbeddingBag*, EmbeddingSegmentsSum: sums and means of rows of a table.
#include "segments.cuh"

// How indices are told apart: so many in every bag, from an offset to the next one, by ascending numbers of bags.
enum Bags { PACKED, OFFSETS, SEGMENTS };

// `bounds` are the offsets or the numbers, `count` is that of the indices (PACKED: in a bag). Indices out of range are
// passed over, a bag without indices is the row `fallback`, or zeros if that is negative.
template <class T, class Index, int V>
__global__ void __launch_bounds__(THREADS, 4)
    embedding_bag(const T* __restrict__ table, const Index* __restrict__ indices, const Index* __restrict__ bounds,
                  const T* __restrict__ weights, T* __restrict__ y, int kind, long long rows, long long width,
                  long long bags, long long count, long long fallback, const Shares shares, bool mean) {
  using A = typename Accumulator<T>::Type;
  const Share mine = share<V>(shares);
  const bool inside = mine.group < bags && mine.column < width;
  long long begin = 0, end = 0;
  if (inside && kind == PACKED) {
    begin = mine.group * count;
    end = begin + count;
  } else if (inside && kind == OFFSETS) {
    begin = max((long long)bounds[mine.group], 0LL);
    end = mine.group + 1 < bags ? min((long long)bounds[mine.group + 1], count) : count;
  } else if (inside) {
    begin = place_of(mine.group, bounds, count);
    end = begin + place_of(mine.group + 1, bounds + begin, count - begin);
  }
  A sum[V] = {};
#pragma unroll 4
  for (long long i = begin + mine.part; i < end; i += shares.parts) {
    const long long row = indices[i];
    if (row < 0 || row >= rows) continue;
    T part[V];
    load<V>(table + row * width + mine.column, part);
    const A weight = weights ? A(weights[i]) : A(1);
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += A(part[j]) * weight;
  }
  fold_parts(sum, Add(), shares.parts);
  if (!inside || mine.part) return;
  T result[V];
  if (begin >= end && fallback >= 0) {
    load<V>(table + fallback * width + mine.column, result);
  } else {
    const A divisor = mean && begin < end ? A(end - begin) : A(1);
#pragma unroll
    for (int j = 0; j < V; j++) result[j] = T(sum[j] / divisor);
  }
  store<V>(result, y + mine.group * width + mine.column);
}
