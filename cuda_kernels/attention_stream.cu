// Attention for few queries or small batches on tensor cores: flash-decoding (Dao et al. 2023). Blocks split the keys
// into ranges, and the warps of a block split its range. Keys and values go from global memory to registers, 16 bytes
// per load, without shared memory: the order of a sum's terms does not matter, so a lane uses the elements that it
// loads as mma fragments.
#include "attention_cluster.cuh"
#include "attention_mma.cuh"
#include "stored_tokens.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;

__device__ __forceinline__ uint4 load_chunk(const void* from, bool valid) {
  return valid ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

// Neighbouring elements of a key or value as a cache stores them, which are 16 bytes once they are restored, and the
// parameters of its row: none, unless C is u8.
template <class C>
struct Stored {
  using Chunk = uint4;
  struct Parameters {};

  static __device__ __forceinline__ Chunk load(const C* from, bool valid) { return load_chunk(from, valid); }
  template <class I>
  static __device__ __forceinline__ Parameters parameters(const C*, I, bool) {
    return {};
  }
  template <class T>
  static __device__ __forceinline__ uint4 restore(const Chunk& chunk, const Parameters&) {
    return chunk;
  }
};
template <>
struct Stored<unsigned char> {
  using Chunk = uint2;
  using Parameters = RowParameters;

  static __device__ __forceinline__ Chunk load(const unsigned char* from, bool valid) {
    return valid ? *reinterpret_cast<const uint2*>(from) : make_uint2(0, 0);
  }
  template <class I>
  static __device__ __forceinline__ Parameters parameters(const unsigned char* row, I size, bool valid) {
    return valid ? load_parameters<sizeof(uint2)>(row + size) : RowParameters{};
  }
  template <class T>
  static __device__ __forceinline__ uint4 restore(const Chunk& chunk, const Parameters& row) {
    unsigned pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const unsigned codes = i < 2 ? chunk.x : chunk.y;
      const int first = i % 2 * 2;
      pairs[i] = pack_rounded<T>(row.restore(code_of(codes, first)), row.restore(code_of(codes, first + 1)));
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
};

// Return element `e` of x and element `e` of y in one register; the element of x is in the low half.
__device__ __forceinline__ unsigned pair_elements(const uint4& x, const uint4& y, int e) {
  const unsigned a = e < 2 ? x.x : e < 4 ? x.y : e < 6 ? x.z : x.w, b = e < 2 ? y.x : e < 4 ? y.y : e < 6 ? y.z : y.w;
  return __byte_perm(a, b, e % 2 ? 0x7632 : 0x5410);  // bytes 2 and 3 of both, or bytes 0 and 1
}

// Pointer to a cache, which the kernel may write to.
template <class C, bool WRITES>
struct Cache {
  using Pointer = const C*;
};
template <class C>
struct Cache<C, true> {
  using Pointer = C*;
};

// New rows of a decode step: the key and the value that are appended to the caches, and the factors that rotate the key
// and the queries (`rotary.cu`, HALVES). The factors of the second half of a row are cos_second and sin_second elements
// behind those of the first half.
template <class T, class I>
struct NewRows {
  const T *key, *value, *cos, *sin;
  I cos_second, sin_second;

  // Write the rotated key and the value into the rows of the caches. All threads of a block call it; depth and width
  // are at most THREADS.
  __device__ __forceinline__ void append(T* key_row, T* value_row, I depth, I width) const {
    const I half = depth / 2, i = threadIdx.x;
    if (i < half) {
      const float a = float(key[i]), b = float(key[i + half]);
      const float c = float(cos[i]), d = float(cos[i + cos_second]), s = float(sin[i]), t = float(sin[i + sin_second]);
      key_row[i] = T(a * c - b * s);
      key_row[i + half] = T(b * d + a * t);
    }
    if (i < width) value_row[i] = value[i];
  }

  // The same for rows of u8: one warp stores the key, another one the value.
  __device__ __forceinline__ void append(unsigned char* key_row, unsigned char* value_row, I depth, I width) const {
    const I half = depth / 2;
    const int lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
      store_row(key_row, depth, lane, 32, [&](I i) {
        const bool second = i >= half;
        const I pair = second ? i - half : i;
        const float a = float(key[pair]), b = float(key[pair + half]);
        const float c = float(cos[second ? pair + cos_second : pair]);
        const float s = float(sin[second ? pair + sin_second : pair]);
        return float(T(second ? b * c + a * s : a * c - b * s));
      });
    } else if (threadIdx.x < 64) {
      store_row(value_row, width, lane, 32, [&](I i) { return float(value[i]); });
    }
  }

  // Rotate the chunks of queries that a lane holds; depth is 32 D.
  template <int TILES, int HALVES, int D>
  __device__ __forceinline__ void rotate(uint4 (&query)[TILES][HALVES][D], I quad) const {
#pragma unroll
    for (int i = 0; i < D / 2; i++) {
      const I column = i * 32 + quad * CHUNK<T>;
      const T* const from[4] = {cos + column, sin + column, cos + cos_second + column, sin + sin_second + column};
      Packed<T, CHUNK<T>> factors[4];
#pragma unroll
      for (int f = 0; f < 4; f++) factors[f] = *reinterpret_cast<const Packed<T, CHUNK<T>>*>(from[f]);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
          T a[CHUNK<T>], b[CHUNK<T>];
          memcpy(a, &query[m][h][i], sizeof(a)), memcpy(b, &query[m][h][i + D / 2], sizeof(b));
#pragma unroll
          for (int e = 0; e < CHUNK<T>; e++) {
            const float x = float(a[e]), y = float(b[e]);
            a[e] = T(x * float(factors[0].at[e]) - y * float(factors[1].at[e]));
            b[e] = T(y * float(factors[2].at[e]) + x * float(factors[3].at[e]));
          }
          memcpy(&query[m][h][i], a, sizeof(a)), memcpy(&query[m][h][i + D / 2], b, sizeof(b));
        }
      }
    }
  }
};

// Values that a block needs after its last key. Shared memory keeps them where registers are scarce.
template <class Out, class I>
struct Results {
  Out* out;
  I sink_at, first_query;
  int split, splits;
};

// A block computes ROWS rows of the output (8, 16 or 32) over one range of keys; `heads` tells their heads. blockIdx.x
// enumerates batches and blocks of rows, blockIdx.y ranges. With CLUSTER, it is the other way round, and the blocks of
// a row of the grid are a cluster. DEPTH and WIDTH are depth and width rounded up to multiples of 32 and 64.
// A warp processes STEP keys at a time. Column c of score tile n is key c / 2 * (STEP / 4) + 2 n + c % 2 among them, so
// that a lane's keys are neighbours. Column n of sum tile (c, e) is column 64 c + 8 n + e of the output.
// Shared memory holds the ClusterSums of a cluster, and sums [WARPS][ROWS][WIDTH + 4], later a weight per row and
// split.
// APPENDS: rotate the queries, and append the new rows to the caches first, as their last rows. The last four operands
// of `batch`, but for the table of pages, are those of the new rows.
template <class T, Mask MASK, int DEPTH, int WIDTH, int ROWS, int STEP, class I, int R, bool APPENDS = false,
          class Out = T, bool CLUSTER = false, bool PAGED = false, class C = T>
__global__ void __launch_bounds__(THREADS, 2)
    attend_stream(const T* q, typename Cache<C, APPENDS>::Pointer key_cache,
                  typename Cache<C, APPENDS>::Pointer value_cache, const void* mask, const T* scale, const T* sink,
                  Out* out, Axes<I, R, (APPENDS ? 10 : OPERANDS<Out>)+PAGED> batch, Strides<I> stride, I queries,
                  I keys, I depth, I width, float factor, const Length<PAGED>* length, float* parts, unsigned* arrived,
                  const T* new_key, const T* new_value, const T* cos, const T* sin, I cos_second, I sin_second,
                  const float* factors, Quantizer quantizer, Heads heads) {
  constexpr int TILES = (ROWS + 15) / 16, HALVES = ROWS == 8 ? 1 : 2;
  constexpr int N = STEP / 8, LANE_KEYS = STEP / 4, D = DEPTH / 32, W = WIDTH / 64, PITCH = WIDTH + 4;
  static_assert(WARPS * PITCH >= MAX_SPLITS, "shared memory holds a weight per split");
  constexpr int EACH = 4;  // neighbouring outputs of a thread
  using OutChunk = Packed<Out, EACH>;
  constexpr bool ONE_HEAD = sizeof(I) == sizeof(long long);  // has rows of only one head
  constexpr bool SAVES_REGISTERS = TILES == 2 || ONE_HEAD;
  constexpr bool HAS_MASK = MASK == ADDED || MASK == BOOLEAN;
  constexpr bool PREFETCHES_MASK = ROWS <= 16;  // the mask is loaded along with the keys if registers suffice
  using Element = MaskElement<T, MASK>;
  OVGPU_DYN_SHARED(float, memory);
  float* const shared = memory + (CLUSTER ? ClusterSums<WIDTH>::nbytes(ROWS) / static_cast<int>(sizeof(float)) : 0);
  start_next_launch();
  if (!APPENDS) wait_for_launches();
  OVGPU_SHARED(float, maxima, [WARPS * ROWS]);
  OVGPU_SHARED(float, totals, [WARPS * ROWS]);
  OVGPU_SHARED(bool, last, [1]);
  const I max_keys = keys, query_blocks = (queries + ROWS - 1) / ROWS, block = CLUSTER ? blockIdx.y : blockIdx.x,
          first_query = block % query_blocks * ROWS;
  KeyRows<PAGED> key_rows = {length};
  key_rows.select_batch(batch, block / query_blocks);
  keys = key_rows.count(keys);
  if (MASK == CAUSAL && first_query + ROWS < keys) keys = first_query + ROWS;
  const auto rows_of = [&](I first) { return static_cast<int>(queries - first < ROWS ? queries - first : ROWS); };
  I begin, end;
  const int split = CLUSTER ? blockIdx.x : blockIdx.y;
  const int splits = split_keys<WARPS * STEP, I>(keys, CLUSTER ? gridDim.x : gridDim.y, split, begin, end);
  if (split >= splits && (!CLUSTER || splits == 1)) return;
  if constexpr (CLUSTER) ClusterSums<WIDTH>(memory, rows_of(first_query), splits).template expect<UNTOUCHED>();
  const C *k = key_cache, *v = value_cache;
  I mask_at, sink_at;
  select_batch(batch, block / query_blocks, q, k, v, mask_at, sink_at, out);
  // the shuffle tells the compiler that the value is uniform in a warp
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = lane / 4,
            quad = lane % 4;
  const bool vectored = is_vectored<Element, LANE_KEYS>(mask, mask_at, stride.mask, stride.column, max_keys) &&
                        heads.mask % LANE_KEYS == 0;
  using OfBlock = Results<Out, I>;
  OVGPU_SHARED(OfBlock, results, [WARPS]);
  OfBlock found = {out, sink_at, first_query, split, splits};
  if constexpr (SAVES_REGISTERS) {
    if (lane == 0) results[warp] = found;
    __syncwarp();
  }

  using Tokens = Stored<C>;
  typename Tokens::Chunk key[N][D], value[LANE_KEYS][W];
  typename Tokens::Parameters key_parameters[N], value_parameters[LANE_KEYS];
  uint4 query[TILES][HALVES][D];
  // rows of this range that are in the caches
  I known = APPENDS && begin < end && end == keys && key_rows.has_new() ? end - 1 : end;
  static_assert(PAGE_TOKENS % LANE_KEYS == 0, "a lane's keys are in one page");
  const auto load_keys = [&](I start) {
    const I first = start + group / 2 * LANE_KEYS;
    const long long page = key_rows.page(first, first < known, stride.key_page);
#pragma unroll
    for (int n = 0; n < N; n++) {
      const I at = first + 2 * n + group % 2;
      const C* const row = k + key_rows.offset(page, at, stride.k);
      key_parameters[n] = Tokens::parameters(row, depth, at < known);
#pragma unroll
      for (int d = 0; d < D; d++) {
        const I column = d * 32 + quad * CHUNK<T>;
        key[n][d] = Tokens::load(row + column, at < known && column < depth);
      }
    }
  };
  const auto load_values = [&](I start) {
    const I first = start + quad * LANE_KEYS;
    const long long page = key_rows.page(first, first < known, stride.value_page);
#pragma unroll
    for (int n = 0; n < LANE_KEYS; n++) {
      const I at = first + n;
      const C* const row = v + key_rows.offset(page, at, stride.v);
      value_parameters[n] = Tokens::parameters(row, width, at < known);
#pragma unroll
      for (int c = 0; c < W; c++) {
        const I column = c * 64 + group * CHUNK<T>;
        value[n][c] = Tokens::load(row + column, at < known && column < width);
      }
    }
  };
  const auto load_row = [&](I start, I row) {  // one key and its value, which take the place of zeros
    const C* const key_row = k + key_rows.offset(row, true, stride.k, stride.key_page);
    const C* const value_row = v + key_rows.offset(row, true, stride.v, stride.value_page);
#pragma unroll
    for (int n = 0; n < N; n++) {
      const bool own = start + group / 2 * LANE_KEYS + 2 * n + group % 2 == row;
      if (own) key_parameters[n] = Tokens::parameters(key_row, depth, true);
#pragma unroll
      for (int d = 0; d < D; d++) {
        const I column = d * 32 + quad * CHUNK<T>;
        if (own && column < depth) key[n][d] = Tokens::load(key_row + column, true);
      }
    }
#pragma unroll
    for (int n = 0; n < LANE_KEYS; n++) {
      const bool own = start + quad * LANE_KEYS + n == row;
      if (own) value_parameters[n] = Tokens::parameters(value_row, width, true);
#pragma unroll
      for (int c = 0; c < W; c++) {
        const I column = c * 64 + group * CHUNK<T>;
        if (own && column < width) value[n][c] = Tokens::load(value_row + column, true);
      }
    }
  };
  using MaskChunk = Packed<Element, LANE_KEYS>;
  MaskChunk mask_chunks[TILES][HALVES];
  const auto read_mask = [&](I start, int m, int h) {
    const I row = first_query + m * 16 + h * 8 + group, lane_key = start + quad * LANE_KEYS;
    const Element* at = static_cast<const Element*>(mask) + mask_at +
                        heads.template offset<ONE_HEAD>(row, stride.mask, heads.mask) + lane_key * stride.column;
    MaskChunk chunk = {};
    if (row < queries && lane_key < end) {
      if (vectored) {
        chunk = *reinterpret_cast<const MaskChunk*>(at);
      } else {
#pragma unroll
        for (int i = 0; i < LANE_KEYS; i++) {
          if (lane_key + i < end) chunk.at[i] = at[i * stride.column];
        }
      }
    }
    return chunk;
  };
  const auto load_masks = [&](I start) {
#pragma unroll
    for (int i = 0; i < TILES * HALVES; i++) {
      if (HAS_MASK && PREFETCHES_MASK) mask_chunks[i / HALVES][i % HALVES] = read_mask(start, i / HALVES, i % HALVES);
    }
  };
  I start = begin + warp * STEP;
  load_keys(start);
  if (!APPENDS) load_masks(start);
  load_values(start);
  NewRows<T, I> fresh = {new_key, new_value, cos, sin, cos_second, sin_second};
  if constexpr (APPENDS) {  // no other launch of an inference writes to the caches
    wait_for_launches();
    load_masks(start);
    I at[R];
    unravel(batch, block / query_blocks, at);
    fresh.key += offset(batch, at, 6), fresh.value += offset(batch, at, 7);
    fresh.cos += offset(batch, at, 8), fresh.sin += offset(batch, at, 9);
    if (known < end) {
      fresh.append(key_cache + (k - key_cache + key_rows.offset(known, true, stride.k, stride.key_page)),
                   value_cache + (v - value_cache + key_rows.offset(known, true, stride.v, stride.value_page)), depth,
                   width);
      __syncthreads();
      load_row(start, known);
      known = end;
    }
  }
  if (scale) factor = float(*scale);
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      const I row = first_query + m * 16 + h * 8 + group;
      const T* const q_row = q + heads.template offset<ONE_HEAD>(row, stride.q, heads.q);
#pragma unroll
      for (int d = 0; d < D; d++) {
        const I column = d * 32 + quad * CHUNK<T>;
        query[m][h][d] = load_chunk(q_row + column, row < queries && column < depth);
      }
    }
  }
  if constexpr (APPENDS) fresh.rotate(query, static_cast<I>(quad));

  float sum[TILES][W * 8][4] = {}, maximum[TILES][HALVES], total[TILES][HALVES] = {};
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) maximum[m][h] = minus_infinity();
  }
  for (; start < end; start += WARPS * STEP) {
    float score[TILES][N][4] = {};
#pragma unroll
    for (int d = 0; d < D; d++) {
      uint4 chunk[N];
#pragma unroll
      for (int n = 0; n < N; n++) chunk[n] = Tokens::template restore<T>(key[n][d], key_parameters[n]);
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        const uint4 upper = query[m][0][d], lower = HALVES == 2 ? query[m][HALVES - 1][d] : make_uint4(0, 0, 0, 0);
        const unsigned even[4] = {upper.x, lower.x, upper.y, lower.y}, odd[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
        for (int n = 0; n < N; n++) {
          multiply_add<T>(even, chunk[n].x, chunk[n].y, score[m][n]);
          multiply_add<T>(odd, chunk[n].z, chunk[n].w, score[m][n]);
        }
      }
    }
    const I lane_key = start + quad * LANE_KEYS;  // the lane's first key
    if (start + WARPS * STEP < end) load_keys(start + WARPS * STEP);
#pragma unroll
    for (int m = 0; m < TILES; m++) {
#pragma unroll
      for (int h = 0; h < HALVES; h++) {
        const I row = first_query + m * 16 + h * 8 + group;
        MaskChunk mask_chunk;
        if (HAS_MASK) mask_chunk = PREFETCHES_MASK ? mask_chunks[m][h] : read_mask(start, m, h);
        float highest = maximum[m][h];
#pragma unroll
        for (int i = 0; i < LANE_KEYS; i++) {
          float& s = score[m][i / 2][2 * h + i % 2];
          s *= factor;
          bool hidden = row >= queries || lane_key + i >= end || (MASK == CAUSAL && lane_key + i > row);
          if constexpr (MASK == BOOLEAN) hidden = hidden || !mask_chunk.at[i];
          if constexpr (MASK == ADDED) s += float(mask_chunk.at[i]);
          s = hidden ? minus_infinity() : s;
          highest = fmaxf(highest, s);
        }
        highest = row_maximum(highest);
        const float shift = softmax_shift(highest), rescale = math::exp_fast(maximum[m][h] - shift);
        maximum[m][h] = highest;
        total[m][h] *= rescale;
#pragma unroll
        for (int i = 0; i < LANE_KEYS; i++) {
          float& s = score[m][i / 2][2 * h + i % 2];
          s = math::exp_fast(s - shift);
          total[m][h] += s;
        }
#pragma unroll
        for (int c = 0; c < W * 8; c++) sum[m][c][2 * h] *= rescale, sum[m][c][2 * h + 1] *= rescale;
      }
    }
    if (start + WARPS * STEP < end) load_masks(start + WARPS * STEP);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
      unsigned weight[TILES][4];
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        const float (&x)[4] = score[m][2 * i], (&y)[4] = score[m][2 * i + 1];
        weight[m][0] = pack_rounded<T>(x[0], x[1]), weight[m][2] = pack_rounded<T>(y[0], y[1]);
        weight[m][1] = HALVES == 2 ? pack_rounded<T>(x[2], x[3]) : 0,
        weight[m][3] = HALVES == 2 ? pack_rounded<T>(y[2], y[3]) : 0;
      }
#pragma unroll
      for (int c = 0; c < W; c++) {
        uint4 chunk[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
          chunk[n] = Tokens::template restore<T>(value[4 * i + n][c], value_parameters[4 * i + n]);
#pragma unroll
        for (int e = 0; e < 8; e++) {
          const unsigned upper = pair_elements(chunk[0], chunk[1], e);
          const unsigned lower = pair_elements(chunk[2], chunk[3], e);
#pragma unroll
          for (int m = 0; m < TILES; m++) multiply_add<T>(weight[m], upper, lower, sum[m][c * 8 + e]);
        }
      }
    }
    if (start + WARPS * STEP < end) load_values(start + WARPS * STEP);
  }

  // rescale the sums of all warps to a common maximum
#pragma unroll
  for (int m = 0; m < TILES; m++) {
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
      total[m][h] = row_sum(total[m][h]);
      if (quad == 0) maxima[warp * ROWS + m * 16 + h * 8 + group] = maximum[m][h];
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
      for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, maxima[w * ROWS + row]);
      const float rescale = math::exp_fast(maximum[m][h] - softmax_shift(highest));
      if (quad == 0) totals[warp * ROWS + row] = total[m][h] * rescale;
      float* to = shared + (warp * ROWS + row) * PITCH + quad * 16;
#pragma unroll
      for (int c = 0; c < W; c++) {
#pragma unroll
        for (int j = 0; j < 16; j += 4) {
          float part[4];
#pragma unroll
          for (int e = 0; e < 4; e++) part[e] = sum[m][c * 8 + j % 8 + e][2 * h + j / 8] * rescale;
          *reinterpret_cast<float4*>(to + c * 64 + j) = make_float4(part[0], part[1], part[2], part[3]);
        }
      }
    }
  }
  __syncthreads();
  if constexpr (SAVES_REGISTERS) found = results[warp];
  const int rows = rows_of(found.first_query);
  const auto sink_of = [&](int row) {
    const I at = heads.template offset<ONE_HEAD>(found.first_query + row, stride.sink, heads.sink);
    return sink ? float(sink[found.sink_at + at]) : minus_infinity();
  };
  const auto out_row = [&](int row) {
    return found.out + heads.template offset<ONE_HEAD>(found.first_query + row, stride.out, heads.out);
  };
  Conversion<T, Out> convert(factors, quantizer);
  convert.select_batch(batch, block / query_blocks);
  const bool aligned = stride.out % EACH == 0 && heads.out % EACH == 0 &&
                       reinterpret_cast<unsigned long long>(found.out) % sizeof(OutChunk) == 0;
  const auto write = [&](int row, int column, float highest, float row_total, const float4& x) {
    if (column >= width) return;
    float factor[1][EACH];
    convert.load_factors(column, 0, static_cast<int>(width), factor);
    float rescale = 1;
    if (sink) {
      const float sink_score = sink_of(row), shift = softmax_shift(fmaxf(sink_score, highest));
      rescale = math::exp_fast(highest - shift);
      row_total = row_total * rescale + math::exp_fast(sink_score - shift);
    }
    rescale /= row_total;
    const OutChunk chunk = {convert(x.x * rescale, factor[0][0]), convert(x.y * rescale, factor[0][1]),
                            convert(x.z * rescale, factor[0][2]), convert(x.w * rescale, factor[0][3])};
    Out* const to = out_row(row) + column;
    if (aligned) {
      *reinterpret_cast<OutChunk*>(to) = chunk;
    } else {
#pragma unroll
      for (int e = 0; e < EACH; e++) to[e] = chunk.at[e];
    }
  };
  float* const block_parts = parts + static_cast<long long>(block) * gridDim.y * ROWS * PITCH;
  const ClusterSums<WIDTH> cluster(memory, rows, found.splits);
  if constexpr (CLUSTER) cluster.ready();
  const int count = found.split < found.splits ? rows * WIDTH : 0;
  for (int i = threadIdx.x * EACH; i < count; i += THREADS * EACH) {
    const int row = i / WIDTH, column = i % WIDTH;
    float highest = minus_infinity(), row_total = 0;
    float4 sums = {};
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
      highest = fmaxf(highest, maxima[w * ROWS + row]);
      row_total += totals[w * ROWS + row];
      const float4 part = *reinterpret_cast<const float4*>(shared + (w * ROWS + row) * PITCH + column);
      sums.x += part.x, sums.y += part.y, sums.z += part.z, sums.w += part.w;
    }
    if constexpr (CLUSTER) {
      cluster.send(row, column / EACH, sums);
      if (column == 0) cluster.send(row, WIDTH / EACH, make_float4(highest, row_total, 0, 0));
    } else if (found.splits == 1) {
      write(row, column, highest, row_total, sums);
    } else {
      float* const part = block_parts + (found.split * ROWS + row) * PITCH;
      *reinterpret_cast<float4*>(part + column) = sums;
      if (column == 0) part[WIDTH] = highest, part[WIDTH + 1] = row_total;
    }
  }
  if constexpr (CLUSTER) {
    cluster.merge([](float x) { return math::exp_fast(x); }, write);
    return;
  }
  if (found.splits == 1 || !is_last_block(arrived + blockIdx.x, found.splits, last)) return;
  merge_splits<ROWS, WIDTH>(block_parts, found.splits, PITCH, shared, rows, static_cast<int>(width), sink_of,
                            [&](int row, int column, float x) {
                              float factor[1][1];
                              convert.load_factors(column, 0, static_cast<int>(width), factor);
                              out_row(row)[column] = convert(x, factor[0][0]);
                            });
}
