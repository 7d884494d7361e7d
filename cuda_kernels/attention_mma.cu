// Scaled dot product attention on tensor cores, after FlashAttention-2 (Dao, 2023): queries times keys and weights
// times values are products of 16-bit matrices with sums in f32; scores and weights stay in registers.
#include "attention_mma.cuh"
#include "vectors.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;
constexpr int PAD = CHUNK;  // after each staged row: eight rows that are read together lie in different banks
constexpr float LOG2E = 1.44269504f;

__device__ __forceinline__ float power(float x) { return exp2_approximate(x * LOG2E); }

// Stages N columns of ROWS rows, zeros outside of the array: eight threads take eight chunks of a row. Chunks of V
// elements, one or CHUNK, are aligned; they have arrived after wait_copies.
template <int ROWS, int N, int V, class T, class I>
__device__ __forceinline__ void stage(const T* from, I stride, I rows, I columns, T* to) {
  const int row = threadIdx.x / 8, column = threadIdx.x % 8 * CHUNK;
  from += row * stride + column;
  to += row * (N + PAD) + column;
#pragma unroll(V == 1 ? 1 : ROWS)  // single elements would take all registers
  for (int r = 0; r < ROWS; r += THREADS / 8) {
#pragma unroll
    for (int c = 0; c < N; c += 8 * CHUNK) {
      if (column + c >= N) continue;
      const T* source = from + r * stride + c;
      T* target = to + r * (N + PAD) + c;
      if constexpr (V == CHUNK) {
        copy_async(target, source, row + r < rows && column + c < columns);
      } else {
        T part[CHUNK];
#pragma unroll
        for (int j = 0; j < CHUNK; j++) {
          part[j] = row + r < rows && column + c + j < columns ? source[j] : T(0.f);
        }
        store(part, target);
      }
    }
  }
}

// score += q k^T of a warp. The lane's rows of matrices are 16 x 16 elements of q, 8 keys and then 8 further ones of k.
template <class T, int DEPTH, int TILES, int N>
__device__ __forceinline__ void add_products(const T* q, const T* k, float (&score)[TILES][N][4]) {
#pragma unroll
  for (int d = 0; d < DEPTH; d += 16) {
    unsigned a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) load_matrices(q + m * 16 * (DEPTH + PAD) + d, a[m]);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      unsigned b[4];
      load_matrices(k + n * 8 * (DEPTH + PAD) + d, b);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply_add<T>(a[m], b[0], b[1], score[m][n]);
        multiply_add<T>(a[m], b[2], b[3], score[m][n + 1]);
      }
    }
  }
}

// sum += weight v of a warp: weights lie in registers as the elements of a left matrix have to.
template <class T, int WIDTH, int TILES, int N>
__device__ __forceinline__ void add_weighted(const float (&weight)[TILES][N][4], const T* v,
                                             float (&sum)[TILES][WIDTH / 8][4]) {
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    unsigned a[TILES][4];
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float* pair = weight[m][n + i / 2] + i % 2 * 2;
        a[m][i] = rounded<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int c = 0; c < WIDTH; c += 16) {
      unsigned b[4];
      load_transposed(v + n * 8 * (WIDTH + PAD) + c, b);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        multiply_add<T>(a[m], b[0], b[1], sum[m][c / 8]);
        multiply_add<T>(a[m], b[2], b[3], sum[m][c / 8 + 1]);
      }
    }
  }
}

// More than a few queries: each warp computes TILES times 16 rows of the output, KEYS keys per step. DEPTH and WIDTH
// are depth and width rounded up to multiples of 16. A lane has rows lane / 4 and lane / 4 + 8 of each tile, and of
// every 8 columns 2 (lane % 4) and the next. blockIdx.x counts batches and blocks of queries. Values arrive while
// scores are computed, and the next keys while values are summed.
template <class T, Mask MASK, int DEPTH, int WIDTH, int TILES, int KEYS, int V, class I, int R>
__global__ void __launch_bounds__(THREADS, 2)
    attend_mma(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, T* out,
               Axes<I, R, 6> batch, Strides<I> stride, I queries, I keys, I depth, I width, float factor,
               const long long* length) {
  constexpr int ROWS = WARPS * TILES * 16;
  OVGPU_DYN_SHARED(T, q_tile);
  T* k_tile = q_tile + ROWS * (DEPTH + PAD);
  T* v_tile = k_tile + KEYS * (DEPTH + PAD);
  if (length) keys = static_cast<I>(*length);
  const I blocks = (queries + ROWS - 1) / ROWS;
  const I first = (blocks - 1 - static_cast<I>(blockIdx.x) % blocks) * ROWS;  // causal: the longest ones start first
  I mask_at, sink_at;
  enter(batch, static_cast<I>(blockIdx.x) / blocks, q, k, v, mask_at, sink_at, out);
  if (scale) factor = float(*scale);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const I top = first + warp * TILES * 16;  // of the warp's rows
  const I row = top + lane / 4;
  const T* q_rows = q_tile + (warp * TILES * 16 + lane % 16) * (DEPTH + PAD) + lane / 16 * 8;
  const T* k_rows = k_tile + (lane / 16 * 8 + lane % 8) * (DEPTH + PAD) + lane / 8 % 2 * 8;
  const T* v_rows = v_tile + lane % 16 * (WIDTH + PAD) + lane / 16 * 8;

  float sum[TILES][WIDTH / 8][4] = {}, maximum[TILES][2], total[TILES][2];
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const I r = row + m * 16 + h * 8;
      const bool sunk = sink && r < queries;
      maximum[m][h] = sunk ? float(sink[sink_at + r * stride.sink]) : minus_infinity();
      total[m][h] = sunk && lane % 4 == 0 ? 1.f : 0.f;  // the part of this lane's columns
    }
  }
  const I visible = MASK == CAUSAL && first + ROWS < keys ? first + ROWS : keys;
  stage<ROWS, DEPTH, V>(q + first * stride.q, stride.q, queries - first, depth, q_tile);
  stage<KEYS, DEPTH, V>(k, stride.k, keys, depth, k_tile);
  for (I begin = 0; begin < visible; begin += KEYS) {
    const bool active = top < queries && (MASK != CAUSAL || begin < top + TILES * 16);
    wait_copies();
    __syncthreads();  // keys are there, and the values before are read
    stage<KEYS, WIDTH, V>(v + begin * stride.v, stride.v, keys - begin, width, v_tile);
    float score[TILES][KEYS / 8][4] = {};
    if (active) add_products<T, DEPTH>(q_rows, k_rows, score);
    wait_copies();
    __syncthreads();  // values are there, and the keys are read
    if (begin + KEYS < visible) {
      stage<KEYS, DEPTH, V>(k + (begin + KEYS) * stride.k, stride.k, keys - begin - KEYS, depth, k_tile);
    }
    if (!active) continue;
    const bool all = begin + KEYS <= keys && (MASK == NONE || (MASK == CAUSAL && begin + KEYS <= top + 1));
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const I r = row + m * 16 + h * 8;
        float highest = maximum[m][h];
#pragma unroll
        for (int n = 0; n < KEYS / 4; n++) {
          float& s = score[m][n / 2][2 * h + n % 2];
          s *= factor;
          if (!all) {
            const I key = begin + n / 2 * 8 + lane % 4 * 2 + n % 2;
            s = key < keys && r < queries
                    ? masked<T, MASK>(s, mask, mask_at + r * stride.mask + key * stride.column, r, key)
                    : minus_infinity();
          }
          highest = fmaxf(highest, s);
        }
        highest = row_maximum(highest);
        const float shift = subtrahend(highest), shrink = power(maximum[m][h] - shift);
        maximum[m][h] = highest;
        total[m][h] *= shrink;
#pragma unroll
        for (int n = 0; n < KEYS / 4; n++) {
          float& s = score[m][n / 2][2 * h + n % 2];
          s = power(s - shift);
          total[m][h] += s;
        }
#pragma unroll
        for (int n = 0; n < WIDTH / 4; n++) sum[m][n / 2][2 * h + n % 2] *= shrink;
      }
    }
    add_weighted<T, WIDTH>(score, v_rows, sum);
  }
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const I r = row + m * 16 + h * 8;
      const float share = 1.f / row_sum(total[m][h]);
      if (r >= queries) continue;
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n++) {
        const I column = n * 8 + lane % 4 * 2;
        const float x = sum[m][n][2 * h] * share, y = sum[m][n][2 * h + 1] * share;
        T* to = out + r * stride.out + column;
        if (V == CHUNK) {
          if (column < width) *reinterpret_cast<unsigned*>(to) = rounded<T>(x, y);
        } else {
          if (column < width) to[0] = T(x);
          if (column + 1 < width) to[1] = T(y);
        }
      }
    }
  }
}
