// EmbeddingBag*, EmbeddingSegmentsSum: sums and means of rows of a table.
#include "segments.cuh"

// Assignment of indices to bags: a fixed number per bag; the offset of each bag; ascending bag numbers of the indices.
enum Bags { PACKED, OFFSETS, SEGMENTS };

// Sum the rows of table [rows, width] that a bag selects, times weights if not null, or average them. `bounds` are the
// offsets or bag numbers; `count` is the number of indices (PACKED: per bag). Indices out of range are skipped. A bag
// without indices gets row `default_row`, or zeros if that is negative. Threads share the work as in segments.cuh.
template <class T, class Index, int V>
__global__ void __launch_bounds__(THREADS, 4)
    embedding_bag(const T* __restrict__ table, const Index* __restrict__ indices, const Index* __restrict__ bounds,
                  const T* __restrict__ weights, T* __restrict__ y, int kind, long long rows, long long width,
                  long long bags, long long count, long long default_row, const Partition partition, bool mean) {
  using A = typename Accumulator<T>::Type;
  const ThreadWork work = thread_work<V>(partition);
  const bool inside = work.group < bags && work.column < width;
  long long begin = 0, end = 0;
  if (inside && kind == PACKED) {
    begin = work.group * count;
    end = begin + count;
  } else if (inside && kind == OFFSETS) {
    begin = max((long long)bounds[work.group], 0LL);
    end = work.group + 1 < bags ? min((long long)bounds[work.group + 1], count) : count;
  } else if (inside) {
    begin = lower_bound(work.group, bounds, count);
    end = begin + lower_bound(work.group + 1, bounds + begin, count - begin);
  }
  A sum[V] = {};
#pragma unroll 4
  for (long long i = begin + work.part; i < end; i += partition.parts) {
    const long long row = indices[i];
    if (row < 0 || row >= rows) continue;
    T part[V];
    load<V>(table + row * width + work.column, part);
    const A weight = weights ? A(weights[i]) : A(1);
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += A(part[j]) * weight;
  }
  fold_parts(sum, Add(), partition.parts);
  if (!inside || work.part) return;
  T result[V];
  if (begin >= end && default_row >= 0) {
    load<V>(table + default_row * width + work.column, result);
  } else {
    const A divisor = mean && begin < end ? A(end - begin) : A(1);
#pragma unroll
    for (int j = 0; j < V; j++) result[j] = T(sum[j] / divisor);
  }
  store<V>(result, y + work.group * width + work.column);
}
