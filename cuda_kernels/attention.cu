// Scaled dot product attention by online softmax (Milakov & Gimelshein 2018), as in FlashAttention: scores stay on
// chip. Sums are f32, and f64 for f64. attention_mma.cu and attention_stream.cu use tensor cores.
#include "accumulator.cuh"
#include "attention.cuh"
#include "stored_tokens.cuh"

constexpr int TILE = 64;         // queries per block, and keys per step
constexpr int DEPTH = 32;        // columns of q and k that are staged at a time
constexpr int PITCH = TILE + 4;  // floats between staged rows; keeps them aligned to 16 bytes

__device__ __forceinline__ void load4(const float* from, float (&to)[4]) {
  const float4 vector = *reinterpret_cast<const float4*>(from);
  to[0] = vector.x, to[1] = vector.y, to[2] = vector.z, to[3] = vector.w;
}

// Compute sum[i][j] += a[n][i] b[n][j] for n in [0, N). The rows of a and b are PITCH apart in shared memory.
template <int N>
__device__ __forceinline__ void multiply(const float* a, const float* b, float (&sum)[4][4]) {
#pragma unroll 8
  for (int n = 0; n < N; n++) {
    float x[4], y[4];
    load4(a + n * PITCH, x);
    load4(b + n * PITCH, y);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
    }
  }
}

// Stage columns [start, start + DEPTH) of TILE rows transposed, as [DEPTH][PITCH]. A warp copies 8 x 4 elements at a
// time, which lie in different banks.
// `at` gives the offset of a row.
template <class T, class I, class F>
__device__ __forceinline__ void stage_transposed(const T* from, const F& at, I rows, I start, I columns, float* to) {
  const int column = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
  for (int r = row; r < TILE; r += 32) {
#pragma unroll
    for (int c = column; c < DEPTH; c += 8) {
      const bool inside = r < rows && start + c < columns;
      to[c * PITCH + r] = inside ? float(from[at(static_cast<I>(r)) + start + c]) : 0.f;
    }
  }
}

// Attention for many queries. A block of 256 threads computes TILE rows of the output; blockIdx.x enumerates batches
// and tiles of queries. A thread holds 4 x 4 scores of a tile, and 4 x 4 elements of each of the COLUMNS tiles that
// make up the rows of the output.
template <class T, Mask MASK, int COLUMNS, class I, int R, bool PAGED = false>
__global__ void __launch_bounds__(256)
    attend_tiles(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, T* out,
                 Axes<I, R, 6 + PAGED> batch, Strides<I> stride, I queries, I keys, I depth, I width, float factor,
                 const Length<PAGED>* length) {
  OVGPU_SHARED(float, stage, [TILE * PITCH]);
  OVGPU_SHARED(float, weight, [TILE * PITCH]);
  const I tiles = (queries + TILE - 1) / TILE;
  const I first_query = (tiles - 1 - static_cast<I>(blockIdx.x) % tiles) * TILE;  // causal: longest tiles first
  KeyRows<PAGED> key_rows = {length};
  key_rows.select_batch(batch, static_cast<I>(blockIdx.x) / tiles);
  keys = key_rows.count(keys);
  I mask_at, sink_at;
  select_batch(batch, static_cast<I>(blockIdx.x) / tiles, q, k, v, mask_at, sink_at, out);
  q += first_query * stride.q;
  if (scale) factor = float(*scale);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const I row = first_query + ty * 4;

  float sum[COLUMNS][4][4] = {}, maximum[4], total[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool has_sink = sink && row + i < queries;
    maximum[i] = has_sink ? float(sink[sink_at + (row + i) * stride.sink]) : minus_infinity();
    total[i] = has_sink && tx == 0 ? 1.f : 0.f;  // this thread's part of the row's total
  }
  const I visible_keys = MASK == CAUSAL && first_query + TILE < keys ? first_query + TILE : keys;
  for (I begin = 0; begin < visible_keys; begin += TILE) {
    float score[4][4] = {};
    for (I start = 0; start < depth; start += DEPTH) {
      __syncthreads();
      stage_transposed(q, [&](I r) { return r * stride.q; }, queries - first_query, start, depth, stage);
      stage_transposed(
          k, [&](I r) { return key_rows.offset(begin + r, true, stride.k, stride.key_page); }, keys - begin, start,
          depth, stage + DEPTH * PITCH);
      __syncthreads();
      multiply<DEPTH>(stage + ty * 4, stage + DEPTH * PITCH + tx * 4, score);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float highest = maximum[i];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const I key = begin + tx * 4 + j;
        const bool inside = key < keys && row + i < queries;
        score[i][j] = inside ? masked<T, MASK>(score[i][j] * factor, mask,
                                               mask_at + (row + i) * stride.mask + key * stride.column, row + i, key)
                             : minus_infinity();
        highest = fmaxf(highest, score[i][j]);
      }
      for (int step = 8; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step));
      const float shift = softmax_shift(highest), rescale = __expf(maximum[i] - shift);
      maximum[i] = highest;
      total[i] *= rescale;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        score[i][j] = __expf(score[i][j] - shift);
        total[i] += score[i][j];
        weight[(tx * 4 + j) * PITCH + ty * 4 + i] = score[i][j];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[c][i][j] *= rescale;
      }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      __syncthreads();
      const I column = c * TILE + threadIdx.x % TILE;
      for (int key = threadIdx.x / TILE; key < TILE; key += 256 / TILE) {
        const bool inside = begin + key < keys && column < width;
        const auto at = [&] { return key_rows.offset(begin + key, true, stride.v, stride.value_page) + column; };
        stage[key * PITCH + threadIdx.x % TILE] = inside ? float(v[at()]) : 0.f;
      }
      __syncthreads();
      multiply<TILE>(weight + ty * 4, stage + tx * 4, sum[c]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    for (int step = 8; step > 0; step /= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], step);
    if (row + i >= queries) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const I column = c * TILE + tx * 4 + j;
        if (column < width) out[(row + i) * stride.out + column] = T(sum[c][i][j] / total[i]);
      }
    }
  }
}

constexpr int WARPS = 4;  // per block

// Return the number of lanes that share a key: the fewest whose registers hold its elements.
template <class A>
__device__ constexpr int lanes_per_key() {
  return sizeof(A) == 4 ? 8 : 16;
}

template <class T, int V>
struct __align__(sizeof(T) * V) Vector {
  T at[V];
};

// Load this lane's P elements of a row, as vectors of V elements that are interleaved among the lanes of a key.
template <int V, int P, class T, class A, class I>
__device__ __forceinline__ void load_row(const T* row, I n, bool inside, int lane, A (&to)[P]) {
#pragma unroll
  for (int p = 0; p < P; p += V) {
    const int column = p * lanes_per_key<A>() + lane * V;
    Vector<T, V> part;
    const bool read = inside && column < n;
    if (read) part = *reinterpret_cast<const Vector<T, V>*>(row + column);
#pragma unroll
    for (int j = 0; j < V; j++) to[p + j] = read ? A(part.at[j]) : A(0);
  }
}

template <int V, int P, class A, class I>
__device__ __forceinline__ void load_row(const unsigned char* row, I n, bool inside, int lane, A (&to)[P]) {
  RowParameters parameters = {};
  if (inside) parameters = load_parameters<V>(row + n);
#pragma unroll
  for (int p = 0; p < P; p += V) {
    const int column = p * lanes_per_key<A>() + lane * V;
    Vector<unsigned char, V> part;
    const bool read = inside && column < n;
    if (read) part = *reinterpret_cast<const Vector<unsigned char, V>*>(row + column);
#pragma unroll
    for (int j = 0; j < V; j++) to[p + j] = read ? A(parameters.restore(part.at[j])) : A(0);
  }
}

// Merge the partial results of one row for different keys. `parts` has `count` records: n unnormalised sums, then the
// maximum and the total. Return the merged sum of column `c`, and update `maximum` and `total`. Their initial values
// are those of a sink, or -inf and 0.
template <class A>
__device__ __forceinline__ A merge(const A* parts, int count, int pitch, int n, int c, A& maximum, A& total) {
  A highest = maximum, sum = 0;
  for (int i = 0; i < count; i++) highest = math::max(highest, parts[i * pitch + n]);
  total *= math::exp_fast(maximum - softmax_shift(highest));
  for (int i = 0; i < count; i++) {
    const A rescale = math::exp_fast(parts[i * pitch + n] - softmax_shift(highest));
    sum += parts[i * pitch + c] * rescale;
    total += parts[i * pitch + n + 1] * rescale;
  }
  maximum = highest;
  return sum;
}

// Split-KV attention (flash-decoding, Dao et al. 2023) for few queries, and for any number in f64. A block computes Q
// queries over one of at most gridDim.y ranges of the keys. LANES lanes share a key, P elements each. The block that
// finishes last for its queries merges the partial results of all ranges.
template <class T, Mask MASK, int V, int P, int Q, class I, int R, bool PAGED = false, class C = T,
          class A = typename Accumulator<T>::Type>
__global__ void __launch_bounds__(WARPS * 32, 2)
    attend_split(const T* q, const C* k, const C* v, const void* mask, const T* scale, const T* sink, T* out,
                 Axes<I, R, 6 + PAGED> batch, Strides<I> stride, I queries, I keys, I depth, I width, A factor,
                 const Length<PAGED>* length, A* parts, unsigned* arrived) {
  constexpr int LANES = lanes_per_key<A>(), GROUPS = WARPS * (32 / LANES);  // keys that a block reads at a time
  constexpr int N = LANES * P, RECORD = N + 2;
  static_assert(WARPS * RECORD >= MAX_SPLITS, "shared memory holds a weight per split");
  OVGPU_SHARED(A, shared, [WARPS * Q * RECORD]);
  OVGPU_SHARED(bool, last, [1]);
  const I query_blocks = (queries + Q - 1) / Q, first_query = static_cast<I>(blockIdx.x) % query_blocks * Q;
  KeyRows<PAGED> key_rows = {length};
  key_rows.select_batch(batch, static_cast<I>(blockIdx.x) / query_blocks);
  keys = key_rows.count(keys);
  I begin, end;
  const int splits = split_keys<4 * GROUPS, I>(keys, gridDim.y, blockIdx.y, begin, end);
  if (static_cast<int>(blockIdx.y) >= splits) return;
  I mask_at, sink_at;
  select_batch(batch, static_cast<I>(blockIdx.x) / query_blocks, q, k, v, mask_at, sink_at, out);
  if (scale) factor = A(*scale);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES, group = threadIdx.x / LANES;

  A query[Q][P], sum[Q][P] = {}, maximum[Q], total[Q] = {};
#pragma unroll
  for (int i = 0; i < Q; i++) {
    load_row<V>(q + (first_query + i) * stride.q, depth, first_query + i < queries, lane, query[i]);
    maximum[i] = minus_infinity();
  }
  for (I start = begin; start < end; start += GROUPS) {
    const I key = start + group;
    A x[P], y[P];
    load_row<V>(k + key_rows.offset(key, key < end, stride.k, stride.key_page), depth, key < end, lane, x);
    load_row<V>(v + key_rows.offset(key, key < end, stride.v, stride.value_page), width, key < end, lane, y);
#pragma unroll
    for (int i = 0; i < Q; i++) {
      A score = 0;
#pragma unroll
      for (int p = 0; p < P; p++) score += query[i][p] * x[p];
      for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
      const I row = first_query + i;
      score = key < end && row < queries
                  ? masked<T, MASK>(score * factor, mask, mask_at + row * stride.mask + key * stride.column, row, key)
                  : minus_infinity();
      const A highest = math::max(maximum[i], score), shift = softmax_shift(highest);
      const A rescale = math::exp_fast(maximum[i] - shift), weight = math::exp_fast(score - shift);
      maximum[i] = highest;
      total[i] = total[i] * rescale + weight;
#pragma unroll
      for (int p = 0; p < P; p++) sum[i][p] = sum[i][p] * rescale + weight * y[p];
    }
  }
#pragma unroll
  for (int i = 0; i < Q; i++) {  // merge the keys of a warp
    A highest = maximum[i];
    for (int step = LANES; step < 32; step *= 2)
      highest = math::max(highest, __shfl_xor_sync(0xffffffffu, highest, step));
    const A rescale = math::exp_fast(maximum[i] - softmax_shift(highest));
    A* record = shared + (i * WARPS + warp) * RECORD;
    total[i] *= rescale;
    for (int step = LANES; step < 32; step *= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], step);
#pragma unroll
    for (int p = 0; p < P; p++) {
      A combined = sum[i][p] * rescale;
      for (int step = LANES; step < 32; step *= 2) combined += __shfl_xor_sync(0xffffffffu, combined, step);
      if (threadIdx.x % 32 < LANES) record[p / V * V * LANES + lane * V + p % V] = combined;
    }
    if (threadIdx.x % 32 == 0) record[N] = highest, record[N + 1] = total[i];
  }
  __syncthreads();
  const int rows = static_cast<int>(queries - first_query < Q ? queries - first_query : Q);
  sink = sink ? sink + sink_at + first_query * stride.sink : nullptr;
  out += first_query * stride.out;
  if (splits == 1) {
    for (int i = 0; i < rows; i++) {
      for (int c = threadIdx.x; c < width; c += WARPS * 32) {
        A highest = sink ? A(sink[i * stride.sink]) : minus_infinity(), combined = sink ? 1 : 0;
        const A result = merge(shared + i * WARPS * RECORD, WARPS, RECORD, N, c, highest, combined);
        out[i * stride.out + c] = T(result / combined);
      }
    }
    return;
  }
  parts += static_cast<long long>(blockIdx.x) * gridDim.y * Q * RECORD;
  for (int i = 0; i < Q; i++) {
    for (int c = threadIdx.x; c < N; c += WARPS * 32) {
      A highest = minus_infinity(), combined = 0;
      A* part = parts + (blockIdx.y * Q + i) * RECORD;
      part[c] = merge(shared + i * WARPS * RECORD, WARPS, RECORD, N, c, highest, combined);
      if (c == 0) part[N] = highest, part[N + 1] = combined;
    }
  }
  if (!is_last_block(arrived + blockIdx.x, splits, last)) return;
  merge_splits<Q, N>(
      parts, splits, RECORD, shared, rows, static_cast<int>(width),
      [&](int row) { return sink ? A(sink[row * stride.sink]) : A(minus_infinity()); },
      [&](int row, int column, A x) { out[row * stride.out + column] = T(x); });
}
