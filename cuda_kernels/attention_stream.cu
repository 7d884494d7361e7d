// Attention of few queries, or in small batches, on tensor cores, after Flash-Decoding (Dao et al., 2023). Blocks split
// the keys, and warps those of a block. Keys and values go from global memory to registers, 16 bytes per load, without
// shared memory: products do not mind the order of what they sum, so the lanes' own elements serve as fragments.
#include "attention_mma.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;

__device__ __forceinline__ uint4 load_chunk(const void* from, bool there) {
  return there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Elements `e` of two rows as neighbours in a register.
__device__ __forceinline__ unsigned paired(const uint4& x, const uint4& y, int e) {
  const unsigned a = e < 2 ? x.x : e < 4 ? x.y : e < 6 ? x.z : x.w, b = e < 2 ? y.x : e < 4 ? y.y : e < 6 ? y.z : y.w;
  return __byte_perm(a, b, e % 2 ? 0x7632 : 0x5410);
}

// Each block computes ROWS rows of the output (8, 16 or 32) from the keys of its split; blockIdx.x counts batches and
// blocks of rows, blockIdx.y splits. DEPTH and WIDTH are depth and width rounded up to multiples of 32 and 64. Each
// warp takes STEP keys at a time. Of score tile n, column c is key c / 2 * (STEP / 4) + 2 n + c % 2 of these, so that a
// lane's keys are neighbours. Of sum tile (c, e), column n is column 64 c + 8 n + e of the output.
// Shared memory: [WARPS][ROWS][WIDTH + 4] sums, or a weight per row and split.
template <class T, Mask MASK, int DEPTH, int WIDTH, int ROWS, int STEP, class I, int R>
__global__ void __launch_bounds__(THREADS, 2)
    attend_stream(const T* q, const T* k, const T* v, const void* mask, const T* scale, const T* sink, T* out,
                  Axes<I, R, 6> batch, Strides<I> stride, I queries, I keys, I depth, I width, float factor,
                  const long long* length, float* parts, unsigned* arrived) {
  constexpr int TILES = (ROWS + 15) / 16, HALVES = ROWS == 8 ? 1 : 2;
  constexpr int N = STEP / 8, OWN = STEP / 4, D = DEPTH / 32, C = WIDTH / 64, PITCH = WIDTH + 4;
  static_assert(WARPS * PITCH >= MOST_SPLITS, "shared memory holds a weight per split");
  constexpr bool READS = MASK == ADDED || MASK == BOOLEAN;
  constexpr bool AHEAD = ROWS <= 16;  // the mask is read with the keys, where there are registers for it
  using Element = MaskElement<T, MASK>;
  OVGPU_DYN_SHARED(float, shared);
  OVGPU_SHARED(float, peak, [WARPS * ROWS]);
  OVGPU_SHARED(float, whole, [WARPS * ROWS]);
  OVGPU_SHARED(bool, last, [1]);
  const I extent = keys, chunks = (queries + ROWS - 1) / ROWS, first = static_cast<I>(blockIdx.x) % chunks * ROWS;
  if (length) keys = static_cast<I>(*length);
  if (MASK == CAUSAL && first + ROWS < keys) keys = first + ROWS;
  I begin, end;
  const int splits = split_keys<WARPS * STEP>(keys, begin, end);
  if (static_cast<int>(blockIdx.y) >= splits) return;
  I mask_at, sink_at;
  enter(batch, static_cast<I>(blockIdx.x) / chunks, q, k, v, mask_at, sink_at, out);
  if (scale) factor = float(*scale);
  // by way of a shuffle, the compiler sees that all lanes of a warp go one way
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const bool vectored = is_vectored<Element, OWN>(mask, mask_at, stride.mask, stride.column, extent);

  uint4 key[N][D], value[OWN][C], query[TILES][HALVES][D];
  const auto load_keys = [&](I start) {
#pragma unroll
    for (int n = 0; n < N; n++) {
      const I at = start + group / 2 * OWN + 2 * n + group % 2;
#pragma unroll
      for (int d = 0; d < D; d++) {
        const I column = d * 32 + quad * CHUNK;
        key[n][d] = load_chunk(k + at * stride.k + column, at < end && column < depth);
      }
    }
  };
  const auto load_values = [&](I start) {
#pragma unroll
    for (int n = 0; n < OWN; n++) {
      const I at = start + quad * OWN + n;
#pragma unroll
      for (int c = 0; c < C; c++) {
        const I column = c * 64 + group * CHUNK;
        value[n][c] = load_chunk(v + at * stride.v + column, at < end && column < width);
      }
    }
  };
  using Seen = Packed<Element, OWN>;
  Seen seen[TILES][HALVES];
  const auto read_mask = [&](I start, int m, int h) {
    const I row = first + m * 16 + h * 8 + group, own = start + quad * OWN;
    const Element* at = static_cast<const Element*>(mask) + mask_at + row * stride.mask + own * stride.column;
    Seen found = {};
    if (row < queries && own < end) {
      if (vectored) {
        found = *reinterpret_cast<const Seen*>(at);
      } else {
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          if (own + i < end) found.at[i] = at[i * stride.column];
        }
      }
    }
    return found;
  };
  const auto load_masks = [&](I start) {
#pragma unroll
    for (int i = 0; i < TILES * HALVES; i++) {
      if (READS && AHEAD) seen[i / HALVES][i % HALVES] = read_mask(start, i / HALVES, i % HALVES);
    }
  };
  I start = begin + warp * STEP;
  load_keys(start);
  load_masks(start);
  load_values(start);
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const I row = first + m * 16 + h * 8 + group;
#pragma unroll
      for (int d = 0; d < D; d++) {
        const I column = d * 32 + quad * CHUNK;
        query[m][h][d] = load_chunk(q + row * stride.q + column, row < queries && column < depth);
      }
    }
  }

  float sum[TILES][C * 8][4] = {}, maximum[TILES][HALVES], total[TILES][HALVES] = {};
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) maximum[m][h] = minus_infinity();
  }
  for (; start < end; start += WARPS * STEP) {
    float score[TILES][N][4] = {};
#pragma unroll
    for (int d = 0; d < D; d++) {
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        const uint4 upper = query[m][0][d], lower = HALVES == 2 ? query[m][HALVES - 1][d] : make_uint4(0, 0, 0, 0);
        const unsigned even[4] = {upper.x, lower.x, upper.y, lower.y}, odd[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (int n = 0; n < N; n++) {
          multiply_add<T>(even, key[n][d].x, key[n][d].y, score[m][n]);
          multiply_add<T>(odd, key[n][d].z, key[n][d].w, score[m][n]);
        }
      }
    }
    const I own = start + quad * OWN;  // the lane's first key
    if (start + WARPS * STEP < end) load_keys(start + WARPS * STEP);
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        const I row = first + m * 16 + h * 8 + group;
        Seen given;
        if (READS) given = AHEAD ? seen[m][h] : read_mask(start, m, h);
        float highest = maximum[m][h];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          float& s = score[m][i / 2][2 * h + i % 2];
          s *= factor;
          bool hidden = row >= queries || own + i >= end || (MASK == CAUSAL && own + i > row);
          if constexpr (MASK == BOOLEAN) hidden = hidden || !given.at[i];
          if constexpr (MASK == ADDED) s += float(given.at[i]);
          s = hidden ? minus_infinity() : s;
          highest = fmaxf(highest, s);
        }
        highest = row_maximum(highest);
        const float shift = subtrahend(highest), shrink = exponential(maximum[m][h] - shift);
        maximum[m][h] = highest;
        total[m][h] *= shrink;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
          float& s = score[m][i / 2][2 * h + i % 2];
          s = exponential(s - shift);
          total[m][h] += s;
        }
#pragma unroll
        for (int c = 0; c < C * 8; c++) sum[m][c][2 * h] *= shrink, sum[m][c][2 * h + 1] *= shrink;
      }
    }
    if (start + WARPS * STEP < end) load_masks(start + WARPS * STEP);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      unsigned weight[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        const float(&x)[4] = score[m][2 * i], (&y)[4] = score[m][2 * i + 1];
        weight[m][0] = rounded<T>(x[0], x[1]), weight[m][2] = rounded<T>(y[0], y[1]);
        weight[m][1] = HALVES == 2 ? rounded<T>(x[2], x[3]) : 0, weight[m][3] = HALVES == 2 ? rounded<T>(y[2], y[3]) : 0;
      }
#pragma unroll
      for (int c = 0; c < C; c++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
          const unsigned upper = paired(value[4 * i][c], value[4 * i + 1][c], e);
          const unsigned lower = paired(value[4 * i + 2][c], value[4 * i + 3][c], e);
#pragma unroll
          for (int m = 0; m < TILES; m++) multiply_add<T>(weight[m], upper, lower, sum[m][c * 8 + e]);
        }
      }
    }
    if (start + WARPS * STEP < end) load_values(start + WARPS * STEP);
  }

  // the block's warps: all sums by one maximum
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      total[m][h] = row_sum(total[m][h]);
      if (quad == 0) peak[warp * ROWS + m * 16 + h * 8 + group] = maximum[m][h];
    }
  }
  __syncthreads();
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const int row = m * 16 + h * 8 + group;
      float highest = minus_infinity();
#pragma unroll
      for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, peak[w * ROWS + row]);
      const float shrink = exponential(maximum[m][h] - subtrahend(highest));
      if (quad == 0) whole[warp * ROWS + row] = total[m][h] * shrink;
      float* to = shared + (warp * ROWS + row) * PITCH + quad * 16;
#pragma unroll
      for (int c = 0; c < C; c++) {
#pragma unroll
        for (int j = 0; j < 16; j += 4) {
          float part[4];
#pragma unroll
          for (int e = 0; e < 4; e++) part[e] = sum[m][c * 8 + j % 8 + e][2 * h + j / 8] * shrink;
          *reinterpret_cast<float4*>(to + c * 64 + j) = make_float4(part[0], part[1], part[2], part[3]);
        }
      }
    }
  }
  __syncthreads();
  const int rows = static_cast<int>(queries - first < ROWS ? queries - first : ROWS);
  sink = sink ? sink + sink_at + first * stride.sink : nullptr;
  out += first * stride.out;
  parts += static_cast<long long>(blockIdx.x) * gridDim.y * ROWS * PITCH;
  for (int i = threadIdx.x; i < rows * WIDTH; i += THREADS) {
    const int row = i / WIDTH, column = i % WIDTH;
    float highest = minus_infinity(), all = 0, result = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      highest = fmaxf(highest, peak[w * ROWS + row]);
      all += whole[w * ROWS + row];
      result += shared[(w * ROWS + row) * PITCH + column];
    }
    if (splits > 1) {
      float* part = parts + (static_cast<int>(blockIdx.y) * ROWS + row) * PITCH;
      part[column] = result;
      if (column == 0) part[WIDTH] = highest, part[WIDTH + 1] = all;
    } else if (column < width) {
      if (sink) {
        const float sunk = float(sink[row * stride.sink]), shift = subtrahend(fmaxf(sunk, highest));
        const float shrink = exponential(highest - shift);
        result *= shrink, all = all * shrink + exponential(sunk - shift);
      }
      out[row * stride.out + column] = T(result / all);
    }
  }
  if (splits == 1 || !arrives_last(arrived + blockIdx.x, splits, last)) return;
  merge_splits<ROWS, WIDTH>(parts, splits, PITCH, shared, sink, stride.sink, out, stride.out, rows,
                            static_cast<int>(width));
}
