// Scaled dot product attention with online softmax: scores never leave the multiprocessor. All sums are in f32, those
// of f64 in f64. attention_mma.cu has the kernel for tensor cores.
#include "accumulator.cuh"
#include "attention.cuh"

constexpr int TILE = 64;   // queries per block, and keys per step
constexpr int DEPTH = 32;  // of q and k that are staged at a time
constexpr int PITCH = TILE + 4;

__device__ __forceinline__ void unpack(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// sum[i][j] += a[n][i] b[n][j] for n rows in shared memory.
template <int N>
__device__ __forceinline__ void multiply(const float* a, const float* b, float (&sum)[4][4]) {
#pragma unroll 8
  for (int n = 0; n < N; n++) {
    float x[4], y[4];
    unpack(a + n * PITCH, x);
    unpack(b + n * PITCH, y);
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
    }
  }
}

// Stages columns [start, start + DEPTH) of TILE rows transposed, [DEPTH][PITCH]: 8 x 4 elements per warp, which lie in
// different banks.
template <class T, class I>
__device__ __forceinline__ void stage_transposed(const T* from, I stride, I rows, I start, I columns, float* to) {
  const int column = threadIdx.x % 8, row = threadIdx.x / 8;
#pragma unroll
  for (int r = row; r < TILE; r += 32) {
#pragma unroll
    for (int c = column; c < DEPTH; c += 8) {
      to[c * PITCH + r] = r < rows && start + c < columns ? float(from[r * stride + start + c]) : 0.f;
    }
  }
}

// Many queries: 256 threads compute TILE rows of the output, whose columns they hold in COLUMNS tiles. Each thread has
// 4 x 4 scores and as many elements of each tile of the output. blockIdx.x counts batches and tiles of queries.
template <class T, Mask MASK, int COLUMNS, class I, int R>
__global__ void __launch_bounds__(256)
    attend_tiles(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, T* out,
                 Axes<I, R, 6> batch, Strides<I> stride, I queries, I keys, I depth, I width, float factor,
                 const long long* length) {
  if (length) keys = static_cast<I>(*length);
  OVGPU_SHARED(float, stage, [TILE * PITCH]);
  OVGPU_SHARED(float, weight, [TILE * PITCH]);
  const I tiles = (queries + TILE - 1) / TILE;
  const I first = (tiles - 1 - static_cast<I>(blockIdx.x) % tiles) * TILE;  // causal: the longest ones start first
  I mask_at, sink_at;
  enter(batch, static_cast<I>(blockIdx.x) / tiles, q, k, v, mask_at, sink_at, out);
  q += first * stride.q;
  if (scale) factor = float(*scale);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  const I row = first + ty * 4;

  float sum[COLUMNS][4][4] = {}, maximum[4], total[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const bool sunk = sink && row + i < queries;
    maximum[i] = sunk ? float(sink[sink_at + (row + i) * stride.sink]) : minus_infinity();
    total[i] = sunk && tx == 0 ? 1.f : 0.f;  // the part of this thread's columns
  }
  const I visible = MASK == CAUSAL && first + TILE < keys ? first + TILE : keys;
  for (I begin = 0; begin < visible; begin += TILE) {
    float score[4][4] = {};
    for (I start = 0; start < depth; start += DEPTH) {
      __syncthreads();
      stage_transposed(q, stride.q, queries - first, start, depth, stage);
      stage_transposed(k + begin * stride.k, stride.k, keys - begin, start, depth, stage + DEPTH * PITCH);
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
      const float shift = subtrahend(highest), shrink = __expf(maximum[i] - shift);
      maximum[i] = highest;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        score[i][j] = __expf(score[i][j] - shift);
        total[i] += score[i][j];
        weight[(tx * 4 + j) * PITCH + ty * 4 + i] = score[i][j];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) sum[c][i][j] *= shrink;
      }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      __syncthreads();
      const I column = c * TILE + threadIdx.x % TILE;
      for (int key = threadIdx.x / TILE; key < TILE; key += 256 / TILE) {
        const bool inside = begin + key < keys && column < width;
        stage[key * PITCH + threadIdx.x % TILE] = inside ? float(v[(begin + key) * stride.v + column]) : 0.f;
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

// Lanes per key: as many as have registers for its elements.
template <class A>
__device__ constexpr int lanes_per_key() {
  return sizeof(A) == 4 ? 8 : 16;
}

template <class T, int V>
struct __align__(sizeof(T) * V) Vector {
  T at[V];
};

// The lane's P elements of a row, in vectors of V that the lanes of a key take in turn.
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

// Parts of a row that saw different keys: `count` records of sums, then maximum and total. Returns column `c` of their
// unnormalised sum, whose maximum and total it adds to.
template <class A>
__device__ __forceinline__ A merge(const A* parts, int count, int pitch, int n, int c, A& maximum, A& total) {
  A highest = maximum, sum = 0;
  for (int i = 0; i < count; i++) highest = larger(highest, parts[i * pitch + n]);
  total *= exponential(maximum - subtrahend(highest));
  for (int i = 0; i < count; i++) {
    const A shrink = exponential(parts[i * pitch + n] - subtrahend(highest));
    sum += parts[i * pitch + c] * shrink;
    total += parts[i * pitch + n + 1] * shrink;
  }
  maximum = highest;
  return sum;
}

// Few queries, and any number in f64: each block takes Q of them and a part of the keys (at most gridDim.y parts); LANES
// lanes take a key, each P elements of it. The last block of a batch to finish merges the parts.
template <class T, Mask MASK, int V, int P, int Q, class I, int R, class A = typename Accumulator<T>::Type>
__global__ void __launch_bounds__(WARPS * 32, 2)
    attend_split(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, T* out,
                 Axes<I, R, 6> batch, Strides<I> stride, I queries, I keys, I depth, I width, A factor,
                 const long long* length, A* parts, unsigned* arrived) {
  constexpr int LANES = lanes_per_key<A>(), GROUPS = WARPS * (32 / LANES);  // keys that a block reads at a time
  constexpr int N = LANES * P, RECORD = N + 2;
  static_assert(WARPS * RECORD >= MOST_SPLITS, "shared memory holds a weight per split");
  OVGPU_SHARED(A, shared, [WARPS * Q * RECORD]);
  OVGPU_SHARED(bool, last, [1]);
  const I chunks = (queries + Q - 1) / Q, first = static_cast<I>(blockIdx.x) % chunks * Q;
  if (length) keys = static_cast<I>(*length);
  I begin, end;
  const int splits = split_keys<4 * GROUPS>(keys, begin, end);
  if (static_cast<int>(blockIdx.y) >= splits) return;
  I mask_at, sink_at;
  enter(batch, static_cast<I>(blockIdx.x) / chunks, q, k, v, mask_at, sink_at, out);
  if (scale) factor = A(*scale);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES, group = threadIdx.x / LANES;

  A query[Q][P], sum[Q][P] = {}, maximum[Q], total[Q] = {};
#pragma unroll
  for (int i = 0; i < Q; i++) {
    load_row<V>(q + (first + i) * stride.q, depth, first + i < queries, lane, query[i]);
    maximum[i] = minus_infinity();
  }
  for (I start = begin; start < end; start += GROUPS) {
    const I key = start + group;
    A x[P], y[P];
    load_row<V>(k + key * stride.k, depth, key < end, lane, x);
    load_row<V>(v + key * stride.v, width, key < end, lane, y);
#pragma unroll
    for (int i = 0; i < Q; i++) {
      A score = 0;
#pragma unroll
      for (int p = 0; p < P; p++) score += query[i][p] * x[p];
      for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
      const I row = first + i;
      score = key < end && row < queries ? masked<T, MASK>(score * factor, mask,
                                                           mask_at + row * stride.mask + key * stride.column, row, key)
                                         : minus_infinity();
      const A highest = larger(maximum[i], score), shift = subtrahend(highest);
      const A shrink = exponential(maximum[i] - shift), weight = exponential(score - shift);
      maximum[i] = highest;
      total[i] = total[i] * shrink + weight;
#pragma unroll
      for (int p = 0; p < P; p++) sum[i][p] = sum[i][p] * shrink + weight * y[p];
    }
  }
#pragma unroll
  for (int i = 0; i < Q; i++) {  // the keys of a warp
    A highest = maximum[i];
    for (int step = LANES; step < 32; step *= 2) highest = larger(highest, __shfl_xor_sync(0xffffffffu, highest, step));
    const A shrink = exponential(maximum[i] - subtrahend(highest));
    A* record = shared + (i * WARPS + warp) * RECORD;
    total[i] *= shrink;
    for (int step = LANES; step < 32; step *= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], step);
#pragma unroll
    for (int p = 0; p < P; p++) {
      A all = sum[i][p] * shrink;
      for (int step = LANES; step < 32; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
      if (threadIdx.x % 32 < LANES) record[p / V * V * LANES + lane * V + p % V] = all;
    }
    if (threadIdx.x % 32 == 0) record[N] = highest, record[N + 1] = total[i];
  }
  __syncthreads();
  const int rows = static_cast<int>(queries - first < Q ? queries - first : Q);
  sink = sink ? sink + sink_at + first * stride.sink : nullptr;
  out += first * stride.out;
  if (splits == 1) {
    for (int i = 0; i < rows; i++) {
      for (int c = threadIdx.x; c < width; c += WARPS * 32) {
        A highest = sink ? A(sink[i * stride.sink]) : minus_infinity(), all = sink ? 1 : 0;
        const A result = merge(shared + i * WARPS * RECORD, WARPS, RECORD, N, c, highest, all);
        out[i * stride.out + c] = T(result / all);
      }
    }
    return;
  }
  parts += static_cast<long long>(blockIdx.x) * gridDim.y * Q * RECORD;
  for (int i = 0; i < Q; i++) {
    for (int c = threadIdx.x; c < N; c += WARPS * 32) {
      A highest = minus_infinity(), all = 0;
      A* part = parts + (blockIdx.y * Q + i) * RECORD;
      part[c] = merge(shared + i * WARPS * RECORD, WARPS, RECORD, N, c, highest, all);
      if (c == 0) part[N] = highest, part[N + 1] = all;
    }
  }
  if (!arrives_last(arrived + blockIdx.x, splits, last)) return;
  merge_splits<Q, N>(parts, splits, RECORD, shared, sink, stride.sink, out, stride.out, rows, static_cast<int>(width));
}
